"""A loop with Accelerate around a wrapped model, beside the same loop around a plain one."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

import poet
from tests.integrations.same import check_same_weights

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def test_the_loop_gives_the_same_bits_and_resumes(example: Callable[[str], ModuleType]) -> None:
    script = example("accelerate_loop")
    torch.manual_seed(5)
    plain_losses, plain = script.train(script.network(), "plain")
    torch.manual_seed(5)
    losses, small = script.main()
    assert len(losses) == 11
    assert losses == plain_losses
    check_same_weights(small, plain)
    assert 0 < small.peak_bytes <= small.budget_bytes

    again = poet.wrap(
        script.network(),
        example=(torch.zeros(8, 1, 16, 16),),
        ram="60%",
        store=poet.MemoryStore(),
        time_limit=0.3,
    )
    losses, _ = script.train(again, "state", done=4)
    assert losses == plain_losses[4:]
    check_same_weights(again, plain)
    assert 0 < again.peak_bytes <= (again.budget_bytes or 0)
