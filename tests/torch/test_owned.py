"""Parameters and buffers of a step, as its modules have them now."""

from typing import Any

import torch
from torch import nn

from poet.tracer.owned import Owned
from poet.tracer.step import Step, known_name, take_apart


def _as_walked(step: Step) -> dict[str, int]:
    named = (*step.named_parameters(remove_duplicate=False),
             *step.named_buffers(remove_duplicate=False))  # fmt: skip
    return {known_name(name): id(value) for name, value in named}


def test_what_modules_own_is_found_again_after_every_change() -> None:
    net: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4)))
    loss: Any = nn.BCEWithLogitsLoss(pos_weight=torch.ones(4))
    step = Step(net, loss, take_apart((torch.randn(2, 4), torch.ones(2, 4))), None)
    owned = Owned(step)

    def check() -> None:
        found = {**owned.parameters(), **owned.buffers()}
        assert {name: id(value) for name, value in found.items()} == _as_walked(step)

    check()
    net[0].weight = nn.Parameter(torch.ones(4, 4))
    check()
    net[2][0] = nn.Linear(4, 4, bias=False)  # replaced, deep inside
    check()
    net[2].add_module("tied", net[0])
    check()
    net[2].add_module("other", net[2]._modules.pop("tied"))  # the same under another name
    check()
    net[1].register_buffer("more", torch.ones(1))
    del net[2]
    check()
