"""What a tape tells the machine about bytes, op by op or by the stretch."""

from typing import Any

import pytest
import torch
from torch import nn

import poet
from poet.errors import OutOfBudget
from poet.runtime.step.executor import Executor
from poet.runtime.step.machine import Machine
from poet.tracer.outputs import Called

X, Y = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, padding=1)]
    for _ in range(4):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]  # type: ignore[list-item]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16 * 16, 5))


def is_counting(executor: Executor) -> bool:
    return "machine.room(" in executor.tape.source


@pytest.mark.parametrize("ram", ["100%", "60%"])
def test_a_step_told_by_the_stretch_takes_what_was_counted(ram: str) -> None:
    torch.manual_seed(0)
    program = poet.capture(convolutions(), nn.functional.cross_entropy, poet.Adam(), example=(X, Y))
    plan = poet.plan(program, "laptop", ram, params="resident", paging=False, time_limit=1)
    assert plan.recomputed or ram == "100%"
    executor = Executor(program, plan)
    assert is_counting(executor)
    _, counted = executor.run(None)
    assert not is_counting(executor)
    _, told = executor.run(None)
    assert (told.peak_bytes, told.live_bytes) == (counted.peak_bytes, counted.live_bytes)
    assert told.peak_bytes <= (plan.peak_bytes or 0)


@pytest.mark.parametrize("ram", ["100%", "60%"])
def test_a_pass_told_by_the_stretch_holds_what_was_counted(ram: str) -> None:
    torch.manual_seed(0)
    small: Any = poet.wrap(convolutions(), example=(X,), ram=ram, time_limit=1)
    call = Called((X,), {})
    executor = small._poet.planned.executor(call)
    figures = []
    for _ in range(2):
        step = executor.begin(call)
        held = step.held_bytes, step.machine.live_bytes, step.machine.peak_bytes
        (output,) = step.hand_out()
        step.go_on([torch.ones_like(output)])
        figures.append((*held, step.machine.live_bytes, step.machine.peak_bytes))
    assert figures[0] == figures[1]
    assert not is_counting(executor)


def test_a_stretch_without_room_is_refused() -> None:
    program = poet.capture(convolutions(), nn.functional.cross_entropy, example=(X, Y))
    machine = Machine(program.graph, None, 1000, {}, {}, wait=True, device=torch.device("cpu"))
    machine.hold(600)
    machine.stretch(0, 400, 100, 300)
    assert (machine.live_bytes, machine.peak_bytes) == (400, 1000)
    with pytest.raises(OutOfBudget, match=r"op 0 .* would bring RAM to 1,001 bytes"):
        machine.stretch(0, 601, 0, 0)


def test_other_bytes_than_planned_are_counted_on() -> None:
    program = poet.capture(convolutions(), nn.functional.cross_entropy, example=(X, Y))
    executor = Executor(program, poet.plan(program, "laptop", params="resident", time_limit=1))
    machine, _ = executor.prepared(None)
    machine.made(program.graph.ops[0].outputs[0], torch.empty(1))
    executor._learn(machine)
    assert is_counting(executor)
