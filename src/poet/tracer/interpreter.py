"""Interpreter: the simple way to run a schedule, instruction by instruction.

It executes the four instructions as they come, holds pages in a dictionary, and exists to show that
a schedule computes the same bits as eager PyTorch.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from poet.calls.references import named_in
from poet.calls.updates import NUMBERS
from poet.errors import PoetError
from poet.tracer.arguments import decode, function_of
from poet.tracer.kernels import KERNELS
from poet.values.graph import Graph, Op
from poet.values.schedule import Compute, Free, PageIn, PageOut, Schedule

Made = TypeVar("Made")


class Memory:
    """RAM and store while a step runs: tensors by id."""

    def __init__(self, ram: dict[int, torch.Tensor], in_store: Iterable[int] = ()) -> None:
        self.ram = ram
        self.store: dict[int, torch.Tensor] = {}
        for i in in_store:
            self.page_out(i)
            del self.ram[i]

    def page_out(self, i: int) -> None:
        self.store[i] = self.ram[i].clone()

    def anywhere(self, i: int) -> torch.Tensor:
        return self.ram[i] if i in self.ram else self.store[i]


class Interpreter:
    """Runs schedules of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._runners: dict[int, Callable[[Memory], None]] = {}

    def run(
        self,
        given: dict[int, torch.Tensor],
        schedule: Schedule | None,
        in_store: Iterable[int],
        finish: Callable[[Callable[[int], torch.Tensor]], Made],
    ) -> Made:
        """One step from what is given, and what is made of its results. Without a schedule every
        op runs once, in order."""
        count = len(self.graph.ops)
        if schedule is None:
            schedule = tuple(Compute(op=k) for k in range(count))
        left_out = set(range(count)) - {s.op for s in schedule if isinstance(s, Compute)}
        if left_out:
            text = f"{self.graph.op_text(min(left_out))} never runs"
            raise PoetError(f"the schedule does not fit the program: {text}")
        memory = Memory(given, in_store)
        try:
            self.follow(schedule, memory)
            return finish(memory.anywhere)
        except (KeyError, IndexError) as error:
            raise PoetError(
                f"the schedule does not fit the program ({type(error).__name__}: {error}): "
                "poet.check says where"
            ) from error

    def follow(self, schedule: Schedule, memory: Memory) -> None:
        """Run a schedule; what it makes stays in the memory."""
        runs = Counter(step.op for step in schedule if isinstance(step, Compute))
        self._check_draws(schedule)
        random_state: dict[int, torch.Tensor] = {}
        for instruction in schedule:
            match instruction:
                case Compute(op=k):
                    op = self.graph.ops[k]
                    if not op.random_state_bytes:
                        self._compute(k, memory)
                    elif k in random_state:
                        now = torch.get_rng_state()
                        torch.set_rng_state(random_state[k])
                        self._compute(k, memory)
                        torch.set_rng_state(now)
                    else:
                        if runs[k] > 1:
                            random_state[k] = torch.get_rng_state()
                        self._compute(k, memory)
                case PageOut(tensor=i):
                    memory.page_out(i)
                case PageIn(tensor=i):
                    memory.ram[i] = memory.store[i].clone()
                case Free(tensor=i):
                    del memory.ram[i]

    def _check_draws(self, schedule: Schedule) -> None:
        """Random ops draw one after the other, so their first runs must keep the graph's order."""
        ops = self.graph.ops
        order = dict.fromkeys(
            step.op
            for step in schedule
            if isinstance(step, Compute) and step.op < len(ops) and ops[step.op].random_state_bytes
        )
        if list(order) != sorted(order):
            raise PoetError(
                "the schedule runs random ops in another order than the graph, so they would draw "
                "other numbers than eager PyTorch"
            )

    def _compute(self, k: int, memory: Memory) -> None:
        op = self.graph.ops[k]
        if k not in self._runners:
            self._runners[k] = _runner(op)
        # No tensor here needs a gradient, but some kernels (recurrent ones) ask for the mode.
        with torch.set_grad_enabled(op.phase == "forward"):
            self._runners[k](memory)


def _runner(op: Op) -> Callable[[Memory], None]:
    """The op as a function on the memory: its calls resolved once."""
    steps = []
    for call in op.calls:
        scalars = NUMBERS if call.kind in KERNELS else ()
        steps.append((function_of(call), call.arguments, scalars, call.results))
    last_use: dict[int, int] = {}
    for at, call in enumerate(op.calls):
        for tag, n in named_in(call):
            if tag == "value":
                last_use[n] = at
    dying: dict[int, list[int]] = {}
    for n, at in last_use.items():
        dying.setdefault(at, []).append(n)

    def run(memory: Memory) -> None:
        inner: dict[int, torch.Tensor] = {}
        made: dict[int, torch.Tensor] = {}

        def found(tag: str, n: int) -> torch.Tensor:
            if tag == "value":
                return inner[n]
            return made[n] if n in made else memory.ram[n]

        for at, (function, arguments, scalars, results) in enumerate(steps):
            given = {name: decode(argument, found) for name, argument in arguments.items()}
            for name in scalars:
                if isinstance(given.get(name), torch.Tensor):
                    given[name] = given[name].item()
            out = function(**given)
            del given
            if not isinstance(out, list | tuple):
                out = (out,)
            for result, item in zip(results, out, strict=True):
                if result is None:
                    continue
                if "value" in result:
                    inner[result["value"]] = item
                else:
                    made[result["tensor"]] = item
            del out
            for n in dying.get(at, ()):
                inner.pop(n, None)
        for i in op.consumed:
            del memory.ram[i]
        for i, tensor in made.items():
            memory.ram.setdefault(i, tensor)

    return run
