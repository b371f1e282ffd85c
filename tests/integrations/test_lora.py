"""Adapters by PEFT: in one's own loop, in Hugging Face's Trainer, in TRL's SFTTrainer."""

from pathlib import Path
from typing import Any

import pytest

import poet
from tests.integrations.same import Load, check_same_weights, logged

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def test_adapters_in_ones_own_loop(example: Load, tmp_path: Path) -> None:
    script = example("lora")
    plain = script.llama()
    plain_losses = script.train(plain)
    losses, small = script.main()
    assert losses == plain_losses
    check_same_weights(small, plain)
    assert 0 < small.peak_bytes <= small.budget_bytes
    from peft import PeftModel

    assert isinstance(small, PeftModel)
    saved = PeftModel.from_pretrained(script.llama().unload(), tmp_path / "adapters")
    check_same_weights(saved, plain)


def test_adapters_in_sft_trainer(example: Load) -> None:
    script = example("trl_sft")
    plain = script.trainer("plain", [])
    plain.train()
    trained, budget = script.main()
    assert trained.state.global_step == 5
    assert logged(trained) == logged(plain)
    check_same_weights(trained.model, plain.model)
    assert 0 < budget.peak_bytes <= budget.budget_bytes

    again: Any = type(budget)(
        part="base_model.model.model", ram="60%", store=poet.MemoryStore(), time_limit=0.3
    )
    resumed = script.trainer("run", [again])
    resumed.train(resume_from_checkpoint="run/checkpoint-3")
    check_same_weights(resumed.model, plain.model)
    assert 0 < again.peak_bytes <= again.budget_bytes

    # The loss of the whole model selects tokens: a way for each batch.
    whole = script.trainer("whole", [type(budget)(ram="100%", time_limit=0.1)])
    with pytest.warns(poet.PoetWarning, match="depends on values of its batch"):
        whole.train()
    check_same_weights(whole.model, plain.model)
