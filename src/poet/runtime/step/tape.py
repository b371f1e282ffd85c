"""Tape: a schedule becomes straight-line Python, one line an instruction.

Where every tensor is at every moment follows from the schedule alone, so nothing is decided while
the step runs: tensors are local variables, a Free is a `del`, a call is a call. The text can be
read (`Tape.source`) and is the same for the same plan. All of it is made by `source`, which lets
nothing of a graph stand there but numbers and names.

The tape knows a `machine`, which holds what a step needs besides the tensors: the page store, the
saved random states, and the count of live bytes (`machine`, `ledger`). Where an op streams
parameters, some of its calls are loops over tiles, which ask the machine for them (`streams`,
`tiles`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from poet.calls.references import made_by, references, storage
from poet.calls.updates import NUMBERS
from poet.errors import PoetError
from poet.runtime.step.ledger import Ledger
from poet.runtime.step.pieces import Pieces
from poet.runtime.step.source import Source, joined, literal, written
from poet.runtime.step.streams import Way
from poet.tracer.arguments import constant, function_of, target_of
from poet.tracer.kernels import KERNELS
from poet.tracer.layout import TANGENT
from poet.values.graph import Call, Graph, Op
from poet.values.schedule import Budget, Compute, Free, PageIn, PageOut, Schedule


class Tape(NamedTuple):
    """A step as a function of a machine and the tensors in RAM at the start, by id.

    It empties the dictionary it is given, so that what it frees is really gone. It gives the wanted
    tensors by id; where the backward pass starts from gradients that the caller hands in, it is a
    generator that yields the outputs and takes those gradients, by id.
    """

    run: Callable[[Any, dict[int, torch.Tensor]], Any]
    source: str


def tape_of(
    graph: Graph,
    schedule: Schedule,
    budget: Budget,
    ways: Mapping[tuple[int, str], Way],
    wanted: tuple[int, ...],
    outputs: tuple[int, ...] = (),
    laps: bool = False,
    counts: bool = True,
) -> Tape:
    """The tape of a schedule. `wanted` are the tensors that it returns, where they are in RAM.

    `ways` are those of each op and variant that the schedule has. Where it does not count, bytes
    are taken to be those of the plan (`ledger`).

    With `laps` it tells the machine when each instruction has ended, with the frees that follow it:
    `machine.lap(at)`, the instruction's place in the schedule.
    """
    return _Writer(graph, schedule, budget, ways, wanted, outputs, laps, counts).tape()


class _Writer:
    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        budget: Budget,
        ways: Mapping[tuple[int, str], Way],
        wanted: tuple[int, ...],
        outputs: tuple[int, ...],
        laps: bool,
        counts: bool,
    ) -> None:
        self.outputs = outputs
        self.laps = laps
        self.graph, self.schedule, self.budget = graph, schedule, budget
        self.ways, self.wanted = ways, wanted
        self.lines: list[Source] = []
        self.names: dict[str, Any] = {
            "torch": torch,
            "grad_mode": torch._C._set_grad_enabled,
        }
        self.functions: dict[str, Source] = {}
        self.ram = {i for i, place in budget.start.items() if place != "store"}
        handed_in = (i for op in graph.ops if op.calls[0].kind == TANGENT for i in op.outputs)
        self.ledger = Ledger(graph, self.lines, (*graph.given, *handed_in), counts)
        self.arriving: set[int] = set()
        self.leaving: set[int] = set()
        self.runs = Counter(step.op for step in schedule if isinstance(step, Compute))
        self.ran: set[int] = set()
        self.updates = False
        self.phase = ""

    def tape(self) -> Tape:
        for i in sorted(self.ram):
            self._line("t{} = given.pop({})", i, i)
        begun: int | None = None
        for at, instruction in enumerate(self.schedule):
            if self.laps and not isinstance(instruction, Free):
                if begun is not None:
                    self._line("machine.lap({})", begun)
                begun = at
            match instruction:
                case Compute(op=k, variant=variant):
                    self._compute(k, variant)
                case PageOut(tensor=i):
                    self._arrive(i)
                    self._line("machine.page_out({}, t{})", i, i)
                    self.leaving.add(i)
                case PageIn(tensor=i):
                    self._line("machine.page_in({})", i)
                    self.ram.add(i)
                    self.arriving.add(i)
                case Free(tensor=i):
                    self._arrive(i)
                    self.ledger.free(i)
                    self.ram.discard(i)
        if begun is not None:
            self._line("machine.lap({})", begun)
        for i in self.wanted:
            if i in self.ram:
                self._arrive(i)
        self.ledger.end()
        self._line("return {}", self._in_ram(self.wanted))
        source = "def step(machine, given):\n" + "\n".join(f"    {line}" for line in self.lines)
        space = dict(self.names)
        exec(compile(source, "<poet tape>", "exec"), space)
        return Tape(space["step"], source + "\n")

    def _line(self, template: str, *parts: int | str) -> None:
        self.lines.append(written(template, *parts))

    def _in_ram(self, tensors: tuple[int, ...]) -> Source:
        """Those that are in RAM, by id."""
        here = joined(written("{}: t{}", i, i) for i in tensors if i in self.ram)
        return written("{{{}}}", here)

    def _arrive(self, i: int) -> None:
        """Before a tensor is used: its page-in must have ended."""
        if i in self.arriving:
            self._line("t{} = machine.arrive({})", i, i)
            self.arriving.discard(i)

    def _compute(self, k: int, variant: str) -> None:
        op, way = self.graph.ops[k], self.ways[k, variant]
        made = {reference for call in op.calls for reference in made_by(call)}
        for i in op.outputs:
            if ("tensor", i) not in made:
                text = self.graph.tensor_text(i)
                raise PoetError(f"no call of {self.graph.op_text(k)} makes {text}")
        missing = [i for i in op.outputs if i not in self.ram and i not in way.writes]
        seated = {pair.output: pair.input for pair in op.in_place if pair.input not in way.reads}
        new = sum(self.graph.tensors[i].nbytes for i in missing if i not in seated)
        again = sum(self.graph.tensors[i].nbytes for i in op.outputs if i in self.ram)
        outdated = [i for i in op.consumed if i in way.reads and i in self.ram]
        for i in op.inputs:
            if i not in way.reads or i in outdated:
                self._arrive(i)
        for i in op.consumed:
            if i in self.leaving:
                self._line("machine.settle({})", i)
        self.ledger.room(k, new + again + way.workspace_bytes)
        if any(call.kind in KERNELS for call in op.calls) and not self.updates:
            self._line("machine.has_updated = True")
            self.updates = True
        if (op.phase == "forward") != (self.phase == "forward") or not self.phase:
            self._line("grad_mode({})", literal(op.phase == "forward"))
        self.phase = op.phase
        if op.random_state_bytes:
            if k in self.ran:
                self._line("machine.draw_again({})", k)
            elif self.runs[k] > 1:
                self._line("machine.draw({})", k)
        if op.calls[0].kind == TANGENT:
            self._tangents(op)
        else:
            self._calls(k, op, way, missing)
        if op.random_state_bytes and k in self.ran:
            self._line("machine.draw_on()")
        self.ran.add(k)
        for i in missing:
            if i in seated:
                self.ledger.seat(i, seated[i])
            else:
                self.ledger.made(i)
        for i in outdated:
            self.ledger.free(i)
        self.ram -= set(op.consumed)
        self.ram |= set(missing)

    def _tangents(self, op: Op) -> None:
        """Hand out the outputs, and wait for their gradients."""
        self.ledger.end()
        for old, new in self.graph.heir.items():
            self._line("t{}, t{} = machine.exchange(t{}, t{})", old, new, old, new)
        handed = joined(written("{}: t{}", i, i) for i in self.outputs)
        self._line("tangents = yield {{{}}}", handed)
        self._line("grad_mode(False)")
        for i in op.outputs:
            self._line("t{} = tangents.pop({})", i, i)

    def _calls(self, k: int, op: Op, way: Way, missing: list[int]) -> None:
        last: dict[Source, int] = {}
        texts = {}
        for at, call in enumerate(op.calls):
            if at in way.left_out:
                continue
            read, text = self._loop(k, op, way, at) if at in way.makers else self._call(call)
            results = [self._result(result, way, missing) for result in call.results]
            for name in (*read, *(name for name in results if name[0] in "vx")):
                if name[0] in "vx":
                    last[name] = at
            texts[at] = (results, text)
        for at, (results, text) in texts.items():
            left = joined(results)
            if len(results) == 1 and at not in way.makers and not self._is_tuple(op.calls[at]):
                self._line("{} = {}", left, text)
            else:
                self._line("{}, = {}", left, text)
            dead = sorted({name for name, end in last.items() if end == at})
            if dead:
                self._line("del {}", joined(dead))

    def _is_tuple(self, call: Call) -> bool:
        if call.kind in KERNELS:
            return True
        returns = target_of(call.kind)._schema.returns
        return len(returns) > 1 or str(returns[0].type).startswith("List")

    def _result(self, result: dict[str, int] | None, way: Way, missing: list[int]) -> Source:
        if result is None:
            return written("x_")
        ((tag, n),) = result.items()
        if (tag, n) in way.away:  # a gradient that the loop has used up
            return written("x_")
        if tag == "value":
            return written("v{}", n)
        return written("t{}" if n in missing else "x{}", n)  # x: a second copy, dropped at once

    def _call(self, call: Call) -> tuple[list[Source], Source]:
        read: list[Source] = []
        function = function_of(call)
        is_kernel = call.kind in KERNELS
        name = self._name(*(("kernel", call.kind, function) if is_kernel else
                            ("aten", call.kind, function._op)))  # fmt: skip
        places = () if is_kernel else _places(call, function)
        parts = [self._argument(call.arguments[argument], read) for argument in places]
        for argument, value in call.arguments.items():
            if argument in places:
                continue
            text = self._argument(value, read)
            if is_kernel and argument in NUMBERS and isinstance(value, dict):
                text = written("{}.item()", text)
            parts.append(written("{}={}", argument, text))
        return read, written("{}({})", name, joined(parts))

    def _loop(self, k: int, op: Op, way: Way, at: int) -> tuple[list[Source], Source]:
        """The call of a loop over tiles, in the place of its maker."""
        read: list[Source] = []
        loop, call = way.makers[at], op.calls[at]
        function_of(call)
        if isinstance(loop, Pieces):
            return self._pieces(k, op, loop, at)
        away = {n for n, each in references(call) if storage(op, each) in way.away}
        given = [
            written("{}: {}", literal(name), self._argument(value, read))
            for name, value in call.arguments.items()
            if name not in away
        ]
        rates = []
        if loop.loop.update is not None:
            update = op.calls[loop.loop.update]
            function_of(update)
            rates = [
                written("{}: {}.item()", literal(name), self._argument(value, read))
                for name in NUMBERS
                if isinstance(value := update.arguments.get(name), dict)
            ]
        name = self._name("stream", f"{k} {at} {loop.tile_rows}", loop)
        text = written("{}(machine, {{{}}}, {{{}}})", name, joined(given), joined(rates))
        return read, text

    def _pieces(self, k: int, op: Op, loop: Pieces, at: int) -> tuple[list[Source], Source]:
        """The call of a nest of loops over blocks, in the place of a call."""
        read: list[Source] = []
        given: dict[str, list[Source]] = {"tensor": [], "value": []}
        for tag, n in loop.needs:
            name = written("t{}" if tag == "tensor" else "v{}", n)
            read.append(name)
            given[tag].append(written("{}: {}", n, name))
        rates = []
        for number in loop.updates:
            update = op.calls[number]
            function_of(update)
            each = [
                written("{}: {}.item()", literal(name), self._argument(value, read))
                for name in NUMBERS
                if isinstance(value := update.arguments.get(name), dict)
            ]
            rates.append(written("{}: {{{}}}", number, joined(each)))
        name = self._name("pieces", f"{k} {at} {loop.name}", loop)
        template = "{}(machine, {{{}}}, {{{}}}, {{{}}})"
        parts = (joined(given["tensor"]), joined(given["value"]), joined(rates))
        return read, written(template, name, *parts)

    def _argument(self, value: Any, read: list[Source]) -> Source:
        if isinstance(value, list | tuple):
            return written("[{}]", joined(self._argument(item, read) for item in value))
        if not isinstance(value, dict):
            return literal(value)
        ((tag, content),) = value.items()
        if tag in ("tensor", "value"):
            name = written("t{}" if tag == "tensor" else "v{}", content)
            read.append(name)
            return name
        return self._name(tag, str(content), constant(tag, content))

    def _name(self, prefix: str, key: str, thing: Any) -> Source:
        """A global of the tape that stands for a function or a constant."""
        full = f"{prefix} {key}"
        if full not in self.functions:
            readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in key)
            name = f"{prefix}_{readable}"
            while name in self.names:
                name += "_"
            self.functions[full] = written("{}", name)
            self.names[name] = thing
        return self.functions[full]


def _places(call: Call, function: torch._ops.OpOverload) -> tuple[str, ...]:
    """The arguments that can be given by place, which torch looks up in less time than names."""
    arguments = takewhile(
        lambda each: each.name in call.arguments and not each.kwarg_only,
        function._schema.arguments,
    )
    return tuple(each.name for each in arguments)
