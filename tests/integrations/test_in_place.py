"""A model that is planned in place: what others see of it, and what it is afterwards."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poet
from poet.integrations.in_place import plan_in_place
from tests.integrations.same import Load, check_same_weights
from tests.torch.eager import same_bits

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return made


def gradients(net: nn.Module) -> list[torch.Tensor]:
    net.zero_grad()
    net(X).square().sum().backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


def test_it_is_the_model_and_copies_are_plain() -> None:
    net = Net()
    plain = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    heard: list[int] = []
    net.register_forward_hook(lambda *_: heard.append(1))
    planned = plan_in_place(net, time_limit=0.2)
    assert isinstance(net, Net)
    assert type(net).__name__ == "Net"
    with torch.no_grad():
        assert same_bits(net(X), plain(X))
    assert planned.measured == (0, None)  # nothing was to be trained
    assert all(map(same_bits, gradients(net), gradients(plain)))
    assert len(heard) == 2
    peak_bytes, budget_bytes = planned.measured
    assert 0 < peak_bytes <= (budget_bytes or 0)

    for other in (copy.copy(net), copy.deepcopy(net)):
        assert type(other) is Net
        assert all(map(same_bits, gradients(other), gradients(plain)))
    with torch.no_grad():
        copied = copy.deepcopy(net)
        copied.first.weight.zero_()
        assert not same_bits(copied(X), net(X))

    with pytest.raises(poet.PoetError, match="planned in place already"):
        plan_in_place(net)
    with pytest.raises(poet.PoetError, match=r"nn\.DataParallel runs one model in several threads"):
        net._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    optimizer.step()
    planned.close()
    assert type(net) is Net
    assert planned.measured == (peak_bytes, budget_bytes)
    plan_in_place(net).close()  # once more


def test_a_pickle_is_of_the_plain_class(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(16, 4))
    planned = plan_in_place(net, time_limit=0.2)
    gradients(net)
    torch.save(net, tmp_path / "net.pt")
    found: Any = torch.load(tmp_path / "net.pt", weights_only=False)
    assert type(found) is nn.Sequential
    check_same_weights(found, net)
    planned.close()


def test_what_a_trainer_cannot_have_is_refused_by_name(example: Load) -> None:
    script = example("hugging_face_trainer")
    for option, value in (("gradient_checkpointing", True), ("torch_compile", True)):
        trainer = script.trainer("run", [script.PoetCallback(ram="60%")])
        setattr(trainer.args, option, value)
        with pytest.raises(poet.PoetError, match=f"{option} is on, but"):
            trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    for part, message in (
        (
            "modell",
            "part='modell' is no module of GPT2LMHeadModel, which has 'transformer', 'lm_head'",
        ),
        ("unused", "without a call of part='unused', so that no budget holds"),
    ):
        trainer = script.trainer("run", [script.PoetCallback(ram="60%", part=part)])
        trainer.model.unused = nn.Linear(2, 2) if part == "unused" else None
        with pytest.raises(poet.PoetError, match=message):
            trainer.train()
    with pytest.raises(poet.PoetError, match="the first batch is the example"):
        script.PoetCallback(ram="60%", example=(X,))
