"""What a network asks for that C has no kernel for: all of it, before anything is planned.

Each call is written as it would be, for tensors that lie anywhere, and thrown away.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from poet.calls.operands import Operand, Work, works
from poet.calls.shapes.check import check_work, unknown_calls
from poet.errors import PoetError
from poet.firmware.write.kernels import statements
from poet.firmware.write.kernels.call_site import CallSite
from poet.firmware.write.source import C_TYPES
from poet.firmware.write.text import check_statement
from poet.values.device import PLAIN
from poet.values.graph import Graph, printable
from poet.values.plan import Plan
from poet.values.schedule import Compute


class Missing(NamedTuple):
    """A kind of call without a kernel, and the ops that it is in."""

    kind: str
    why: str
    ops: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.ops) - _NAMED} more" if len(self.ops) > _NAMED else ""
        return f"{self.kind} of {', '.join(self.ops[:_NAMED])}{more}: {self.why}"


_NAMED = 4
"""Ops that are named, if there are more."""


def missing_kernels(graph: Graph, ops: Iterable[int] | None = None) -> list[Missing]:
    """The calls that cannot be written in C, in the order of the step; of these ops, or of all.

    Ops without calls, as instances have them, are passed over: nothing says what they are.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for k in range(len(graph.ops)) if ops is None else ops:
        op = graph.ops[k]
        for kind, why in _refused(graph, k) if op.calls else ():
            found.setdefault((kind, why), {})[graph.op_text(k)] = None
    return [Missing(kind, why, tuple(named)) for (kind, why), named in found.items()]


def refuse_missing(plan: Plan) -> None:
    """All that keeps a plan from being C, in one error.

    Ops that run in tiles are passed over: they are written for pieces of their tensors.
    """
    plain = dict.fromkeys(
        s.op for s in plan.schedule if isinstance(s, Compute) and s.variant == PLAIN
    )
    found = missing_kernels(plan.graph, plain)
    if found:
        raise PoetError(missing_text(found, "C cannot be written"))


def missing_text(found: list[Missing], what: str) -> str:
    kinds = "a kind of call" if len(found) == 1 else f"{len(found)} kinds of calls"
    return "\n  ".join([f"{what}: there is no kernel for {kinds}", *map(str, found)])


def _refused(graph: Graph, k: int) -> Iterator[tuple[str, str]]:
    """The kinds of calls of an op that have no kernel, and why."""
    unknown = list(unknown_calls(graph.ops[k]))
    yield from unknown
    try:
        found = works(graph, k)
    except PoetError as error:
        if not unknown:  # whose results may be views that nobody can follow
            yield "a call", str(error)
        return
    kinds = {kind for kind, _ in unknown}
    for work in found:
        if printable(work.kind) in kinds:
            continue
        try:
            check_work(graph, k, work)
            for text in statements(_DrySite(graph, k, work)):
                check_statement(text, ("here",))
        except (PoetError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            yield printable(work.kind), str(error)


class _DrySite(CallSite):
    """A call whose tensors are nowhere yet."""

    def __init__(self, graph: Graph, k: int, work: Work) -> None:
        super().__init__(work, k)
        self._graph, self._work = graph, work

    def refuse(self, why: str) -> Exception:
        return PoetError(why)

    def at(self, operand: Operand | None, further: int = 0) -> str:
        if operand is None:
            return "NULL"
        if operand.dtype not in C_TYPES:
            raise self.refuse(f"{operand.dtype} has no type in C")
        return "here"

    def literal(self, struct: str, text: str) -> str:
        check_statement(text, ())
        return "&here"

    def is_parameter(self, operand: Operand) -> bool:
        key, i = operand.storage
        return key == "tensor" and self._graph.tensors[i].role == "parameter"

    def with_arguments(self, arguments: dict[str, Any]) -> "_DrySite":
        other = _DrySite(self._graph, self.op_number, self._work)
        other.arguments = arguments
        return other
