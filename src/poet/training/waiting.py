"""Waiting: several passes of one model between forward and backward, in one budget.

A loop may call a model twice before it calls backward, and it may skip a backward pass. Each pass
that waits holds some RAM, which counts for all others. A pass that is about to run, forward or
backward, runs by a plan whose peak fits beside them. Where none does, passes that wait give up what
they hold, the oldest first, since its backward pass mostly comes last: it runs again when it comes.
What they cannot give up, inputs, outputs and old buffers, is the loop's, and what runs is planned
for what is left.
"""

import contextlib
import weakref
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import torch

from poet.errors import Infeasible, PoetError
from poet.referee.replay import check
from poet.runtime.step.executor import Executor
from poet.runtime.step.passes import Pass
from poet.tracer.keys import autocast_around
from poet.tracer.outputs import Called
from poet.training.planned import PlannedSteps
from poet.values.plan import Plan


class _Owner(Protocol):
    """Who goes on with a step."""

    waiting: "Waiting"

    def go_on(
        self, step: "Step", gradients: tuple[torch.Tensor | None, ...]
    ) -> list[torch.Tensor | None]: ...


class Token:
    """Lives as long as the node of autograd's graph that holds it."""


class Step:
    """A call on its way through a wrapped model."""

    def __init__(
        self,
        owner: _Owner,
        call: Called,
        kind: Any,
        parameters: tuple[str, ...],
        inputs: tuple[int, ...],
        executor: Executor,
        going: Pass,
    ) -> None:
        self.owner, self.call, self.executor, self.going = owner, call, executor, going
        self.kind = kind
        """The key of all such calls, whichever outputs get a gradient."""
        self.parameters, self.inputs = parameters, inputs
        """What may get a gradient, parameters by name and inputs by place."""
        self._autocast = autocast_around()

    @contextlib.contextmanager
    def as_it_was_called(self) -> Iterator[None]:
        """Under the autocast that was around the call."""
        with contextlib.ExitStack() as stack:
            for kind, then, now in zip(
                ("cpu", "cuda"), self._autocast, autocast_around(), strict=True
            ):
                if then != now:
                    stack.enter_context(torch.autocast(kind, then or None, enabled=bool(then)))
            yield


class Waiting:
    """The passes of a model that wait, the oldest first."""

    def __init__(self, planned: PlannedSteps) -> None:
        self._planned = planned
        self._steps: dict[Step, weakref.ref[Token]] = {}

    def add(self, step: Step, token: Token) -> None:
        """A backward pass may come for as long as the token lives."""
        self._steps[step] = weakref.ref(token, lambda _: self._let_go())

    def drop(self, step: Step) -> None:
        """Its backward pass has come."""
        self._steps.pop(step, None)

    def executor(self, call: Called, mine: Step | None = None) -> tuple[Executor, int]:
        """Who runs a call beside all that wait but `mine`, and what those hold.

        Where it is `mine` that runs again, its outputs of before are the loop's, too.
        """
        own_bytes = 0 if mine is None else mine.going.output_bytes
        others = self._others(mine)
        whole = self._planned.known(call)
        if whole is None:
            self._give_up([step for step in others if step.executor.pages])  # they are laid anew
            whole = self._planned.executor(call)
        least_bytes = own_bytes + sum(step.going.least_bytes for step in others)
        if _fits(whole.plan, least_bytes):
            self._make_room(whole.plan, whole.pages, others, own_bytes)
            return whole, own_bytes + _held_bytes(others)
        try:
            plan = self._planned.plan_beside(call, whole, least_bytes)
        except Infeasible as error:
            what = "outputs, inputs and buffers of earlier calls"
            if others:
                what = f"{_number_text(len(others))} for a backward pass, and what cannot be freed"
            raise Infeasible(
                f"{what} takes {least_bytes:,} bytes of the budget of "
                f"{self._planned.budget_bytes:,}. Call backward sooner, let go of outputs, or give "
                f"more RAM. For this pass there is {error}",
                proven=error.proven,
            ) from error
        self._give_up([step for step in others if step.executor.pages])
        self._make_room(plan, {}, others, own_bytes)
        executor = self._planned.executor(call, beside_bytes=least_bytes)
        return executor, own_bytes + _held_bytes(others)

    def has_room_for(self, mine: Step) -> bool:
        """Whether a backward pass can go on beside all others that wait."""
        others = self._others(mine)
        if not _fits(mine.executor.plan, sum(step.going.least_bytes for step in others)):
            return False
        self._make_room(mine.executor.plan, mine.executor.pages, others, 0)
        mine.going.beside(_held_bytes(others))
        return True

    @contextlib.contextmanager
    def while_buffers_move_on(self, mine: Step | None = None) -> Iterator[None]:
        """A pass changes buffers that others have seen."""
        with contextlib.ExitStack() as stack:
            for step in self._others(mine):
                stack.enter_context(step.going.while_buffers_move_on())
            yield

    def _others(self, mine: Step | None) -> list[Step]:
        self._let_go()
        return [step for step in self._steps if step is not mine]

    def _let_go(self) -> None:
        """Free what passes hold whose backward passes nobody can ask for any more."""
        try:
            with self._planned.alone():
                for step in [step for step, token in self._steps.items() if token() is None]:
                    del self._steps[step]
                    if step.going.is_waiting:
                        step.going.abandon()
        except PoetError:  # another thread is in a step: it looks for itself
            return

    def _make_room(
        self, plan: Plan, pages: Collection[int], others: list[Step], own_bytes: int
    ) -> None:
        """Let others give up what is in the way of a pass by this plan."""
        in_the_way = [step for step in others if not step.executor.pages.keys().isdisjoint(pages)]
        held_bytes = own_bytes + _held_bytes(others)
        for step in others:
            if _fits(plan, held_bytes):
                break
            held_bytes -= step.going.held_bytes - step.going.least_bytes
            in_the_way.append(step)
        self._give_up(in_the_way)

    def _give_up(self, steps: list[Step]) -> None:
        """Let them hold no more than they must. First it is made sure that they can run again."""
        steps = [step for step in steps if not step.going.has_given_up]
        for step in steps:
            outputs_bytes, plan = step.going.output_bytes, step.executor.plan
            if _fits(plan, outputs_bytes):
                continue
            try:
                self._planned.plan_beside(step.call, step.executor, outputs_bytes)
            except Infeasible as error:
                raise Infeasible(
                    f"{_number_text(len(self._steps))} for a backward pass, and cannot make room: "
                    f"to run again later beside its outputs, {outputs_bytes:,} bytes, there is "
                    f"{error} Call backward sooner, let go of outputs, or give more RAM",
                    proven=error.proven,
                ) from error
        for step in steps:
            step.going.give_up()


def _fits(plan: Plan, beside_bytes: int) -> bool:
    limit = plan.budget.ram_bytes
    if limit is None or beside_bytes == 0:
        return True
    peak = check(plan).peak_bytes if plan.peak_bytes is None else plan.peak_bytes
    return peak + beside_bytes <= limit


def _held_bytes(steps: list[Step]) -> int:
    return sum(step.going.held_bytes for step in steps)


def _number_text(count: int) -> str:
    return "a forward pass waits" if count == 1 else f"{count} forward passes wait"
