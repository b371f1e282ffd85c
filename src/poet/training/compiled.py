"""Compiled: torch.compile within a budget in bytes, inside the user's own loop.

    small = poet.compile(model, example=(x,), ram="2 GiB")
    loss = loss_fn(small(x), y)
    loss.backward()
    optimizer.step()

The graph of forward and backward pass that torch.compile is about to split goes through POET's
planner, which decides what is saved and what is computed again; Inductor compiles what comes of
it. Then a step is measured, and planned again until it keeps to the budget (`compiling.rounds`).
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import nn

from poet.errors import PoetError
from poet.planning.plan import cores
from poet.planning.question import MIN
from poet.tracer.keys import autocast_around
from poet.tracer.outputs import Called
from poet.training.compiling import known
from poet.training.compiling.joint import Joint
from poet.training.compiling.measuring import held_bytes, step_bytes
from poet.training.compiling.rounds import Answer, Measure, answered
from poet.training.compiling.splitting import Split
from poet.training.compiling.torch_partition import check_torch, whole, why_not
from poet.training.planned import free_bytes
from poet.training.wrapped import Wrapped, disguised, first_call
from poet.values.plan import Plan
from poet.values.quantities import parse_bytes, parse_share
from poet.values.schedule import Effort
from poet.version import __version__


def compile(
    model: nn.Module,
    *,
    example: Any,
    kwargs: Mapping[str, Any] | None = None,
    ram: str | int | None = None,
    time_limit: float = 20.0,
) -> Wrapped:
    """The model, to everybody who looks, compiled so that a training step keeps to a budget.

    Loop, loss, optimizer and clipping stay the user's own. `example` and `kwargs` are what they are
    for `poet.wrap`; calls of another kind are compiled when they come. `ram` bounds what torch's
    allocator has given out in forward and backward pass, parameters, buffers, inputs, outputs and
    gradients among it: bytes, a size, a share such as `"60%"` (what is held anyway, and so much of
    what plain torch.compile takes beside it), or `"min"`; by default what is free here.
    `time_limit` is for one plan; at most four are compiled and measured.

    What comes back has `peak_bytes`, as measured, `budget_bytes`, and `plan`: None where torch's
    own choice keeps to the budget. `poet.unwrap` gives the model inside.
    """
    if isinstance(model, Wrapped):
        raise PoetError(
            "the model is wrapped already: compile the one inside it, poet.unwrap(model)"
        )
    check_torch()
    devices = {each.device for each in (*model.parameters(), *model.buffers())}
    if any(device.type != "cpu" for device in devices):
        raise PoetError("poet.compile plans for the CPU so far: use poet.wrap on other devices")
    if ram is not None and ram != MIN and not (isinstance(ram, str) and parse_share(ram)):
        parse_bytes(ram, "RAM budget")
    loop = CompiledLoop(model, ram, Effort(time_limit_seconds=time_limit, threads=cores()))
    loop.settle(first_call(example, kwargs))
    return disguised(model, loop)


class CompiledLoop:
    """The compiled steps of one model, one for each kind of call."""

    around: Callable[..., Any] | None = None

    def __init__(self, model: nn.Module, ram: str | int | None, effort: Effort) -> None:
        self.model, self._ram, self._effort = model, ram, effort
        self.call: Callable[..., Any] = torch._dynamo.disable(self._call)  # type: ignore[no-untyped-call]
        self.plan: Plan | None = None
        self.budget_bytes = 0
        self.peak_bytes = 0
        self._steps: dict[Hashable, _CompiledStep] = {}
        self._plain = torch.compile(self._forward)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.forward(*args, **kwargs)

    def settle(self, call: Called) -> "_CompiledStep":
        """Plan, compile and measure a kind of call."""
        if not any(each.requires_grad for each in (*self.model.parameters(), *call.tensors)):
            raise PoetError("the model has no backward pass to plan: nothing in it is trained")
        step = _CompiledStep(self.model, call)
        is_first = not self.budget_bytes  # what a share means, or all that is free, is settled once
        answer = step.settle(self._ram if is_first else self.budget_bytes, self._effort)
        if is_first:
            self.plan, self.budget_bytes = answer.round.plan, answer.budget_bytes
        self.peak_bytes = max(self.peak_bytes, step.held_bytes + answer.round.step_bytes)
        self._steps[self._kind(call)] = step
        return step

    def close(self) -> None:
        """Let go of what was compiled."""
        self._steps.clear()

    def _kind(self, call: Called) -> Hashable:
        return (
            call.kind,
            tuple(each.training for each in self.model.modules()),
            tuple(each.requires_grad for each in self.model.parameters()),
            repr(autocast_around()),
            torch.get_num_threads(),
        )

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Called(args, kwargs)
        if not torch.is_grad_enabled() or not any(
            each.requires_grad for each in (*self.model.parameters(), *call.tensors)
        ):
            return self._plain(*args, **kwargs)
        kind = self._kind(call)
        step = self._steps.get(kind)
        if step is None:
            step = self.settle(call)
        try:
            return step.run(*args, **kwargs)
        except Exception:
            if not step.has_changed:
                raise
        del self._steps[kind]
        return self.settle(call).run(*args, **kwargs)


_PLAIN = "plain"
"""In the place of a budget: what torch's own choice takes."""


class _Changed(Exception):
    """What is to be compiled is not what was planned."""


class _Told(Exception):
    """What was to be compiled to be measured has been measured before."""


class _CompiledStep:
    """Forward and backward pass for one kind of call."""

    run: Callable[..., Any]

    def __init__(self, model: nn.Module, call: Called) -> None:
        self._model, self._first = model, call
        self.held_bytes = held_bytes(model, call)
        self.has_changed = False
        self._joint: Joint | None = None
        self._told_bytes: int | None = None
        self._last: tuple[Split | None, int] | None = None

    def settle(self, ram: str | int | None, effort: Effort) -> Answer:
        if ram is None:
            ram = self.held_bytes + free_bytes()

        def find() -> Split | None:
            found = known.find(self._file(ram))
            return None if found is None else found.split

        measure = Measure(self._compiled, self._plain_bytes, self._both_passes, find)
        answer = answered(ram, self.held_bytes, measure, effort)
        found = answer.round
        self._compiled(found.split)
        if found.plan is not None and ram != MIN:
            known.keep(self._file(ram), known.Known(found.step_bytes, found.split))
        return answer

    def _both_passes(self) -> Joint:
        if self._joint is None:
            raise PoetError("the model has no backward pass to plan: nothing in it is trained")
        return self._joint

    def _file(self, ram: str | int) -> str:
        with_what = (torch.__version__, __version__, torch.get_num_threads())
        return known.name_of(self._both_passes(), ram, self.held_bytes, *with_what)

    def _plain_bytes(self) -> int:
        """What torch's own choice takes: measured now, or before, and then not compiled."""
        try:
            nbytes = self._compiled(None)
        except Exception:
            if self._told_bytes is None:
                raise
            return self._told_bytes
        known.keep(self._file(_PLAIN), known.Known(nbytes))
        return nbytes

    def _compiled(self, split: Split | None) -> int:
        """Compile with a split, and measure; once where it is the one of the last time."""
        if self._last is not None and self._last[0] is split:
            return self._last[1]
        self._last = None
        self.run = whole(self._model.forward, lambda joint: self._chosen(joint, split))
        try:
            nbytes = step_bytes(self._model, self.run, self._first, torch.device("cpu"))
        except Exception as error:
            reason = why_not(error)
            if reason is None:
                raise
            raise reason from error
        self._both_passes()
        self._last = split, nbytes
        return nbytes

    def _chosen(self, joint: Joint, split: Split | None) -> Split | None:
        if self._joint is None:
            self._joint = joint
            told = known.find(self._file(_PLAIN))
            if told is not None:
                self._told_bytes = told.step_bytes
                raise _Told
        elif self._joint != joint:
            self.has_changed = True
            raise _Changed
        return split
