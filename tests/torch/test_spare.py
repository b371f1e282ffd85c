"""Parameters that get no gradient: left as they are, by every optimizer, as eager PyTorch does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poet
from tests.torch.loops import (
    LOSS,
    Eager,
    Loop,
    Make,
    Planned,
    adamw,
    batch,
    folder_of,
    net,
    sgd,
    steps_apart,
    trainings_apart,
)
from tests.torch.wrapping import X, pair, same_step


class Spare(nn.Module):
    """Has more than it uses: a layer that it never calls, and one for large batches alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(width=8)
        self.spare = nn.Linear(4, 4)
        self.more = nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> Any:
        made = self.net(x)
        return self.more(made) if x.shape[0] > 8 else made


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


ALL: dict[str, tuple[Make, Loop]] = {
    "decay": (sgd, Loop()),
    "adam": (adamw, Loop()),
    "clipped": (adamw, Loop(accumulate=2, clip_norm=0.1)),
    "torch's own": (lambda model: torch.optim.RMSprop(model.parameters(), 0.01, 0.9), Loop()),
}


@pytest.mark.parametrize("which", ALL)
def test_what_gets_no_gradient_is_left_alone(which: str, tmp_path: Path) -> None:
    make, loop = ALL[which]
    params = "paged" if which == "adam" else "resident"
    model = Spare()
    eager = Eager(model, make, loop)
    mine = Planned(model, make, loop, cache=False, **folder_of(tmp_path, params))
    assert not steps_apart(eager, mine, range(4))
    unused = {"spare.weight", "spare.bias", "more.weight", "more.bias"}
    assert mine.trainer.program.state.keys() == dict(model.named_parameters()).keys() - unused
    checkpoint = mine.trainer.save(tmp_path / "checkpoint.safetensors")
    mine.trainer.close()

    again = Spare()
    resumed = Planned(again, make, loop, cache=False, **folder_of(tmp_path, params))
    resumed.trainer.load(checkpoint)
    assert not trainings_apart(eager, resumed.trainer)
    assert not steps_apart(eager, resumed, range(4, 6))
    resumed.trainer.close()


def test_what_other_batches_train_has_a_state_of_its_own() -> None:
    model = Spare()
    eager, mine = Eager(model, sgd, Loop()), Planned(model, sgd, Loop(), cache=False)
    for size in (8, 16, 8, 16, 16):
        assert not steps_apart(eager, mine, range(2), size)


def test_adam_counts_the_steps_of_all_together() -> None:
    trainer = Planned(Spare(), adamw, Loop(), cache=False).trainer
    trainer.step(*batch(0))
    with pytest.raises(
        poet.PoetError, match=r"more.weight would be trained .*after 0 steps of its"
    ):
        trainer.step(*batch(1, 16))


def test_gradients_by_name_leave_out_what_has_none() -> None:
    model = Spare()
    program = poet.capture(model, LOSS, example=batch(0), cache=False)
    assert program.run().gradients.keys() == dict(model.net.named_parameters(prefix="net")).keys()


def test_wrapped_models_have_none_where_eager_has_none() -> None:
    small, plain = pair(Half())
    same_step(small, plain, X)
    assert small.used.weight.grad is not None
    assert small.spare.weight.grad is None
