"""Hugging Face's Trainer with PoetCallback, beside itself without."""

from pathlib import Path

import pytest

import poet
from tests.integrations.same import Load, check_same_weights, logged

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def test_the_trainer_gives_the_same_bits_and_resumes(example: Load, tmp_path: Path) -> None:
    script = example("hugging_face_trainer")
    plain = script.trainer("plain", [])
    plain.train()
    trained, budget = script.main()
    assert trained.state.global_step == 5
    assert logged(trained) == logged(plain)
    check_same_weights(trained.model, plain.model)
    assert 0 < budget.peak_bytes <= budget.budget_bytes
    assert type(trained.model) is type(plain.model)  # it is given back as it came
    assert list(tmp_path.glob("pages/*")) == []

    poet_again = type(budget)(ram="60%", store=poet.MemoryStore(), time_limit=0.3)
    resumed = script.trainer("run", [poet_again])
    resumed.train(resume_from_checkpoint="run/checkpoint-4")
    assert logged(resumed)[:-1] == logged(plain)[:-1]  # the last is of the steps since then
    check_same_weights(resumed.model, plain.model)
    assert 0 < poet_again.peak_bytes <= poet_again.budget_bytes
