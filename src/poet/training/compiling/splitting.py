"""Splitting: a plan of both passes as what a compiler needs, the backward pass in order.

What is in RAM when the loop's turn comes, and is read afterwards, is saved. What is made again
after it is a copy of what made it first, a new one each time: the forward pass stays as it was.
"""

from collections.abc import Iterator

import msgspec

from poet.errors import Infeasible
from poet.planning.solve import solve
from poet.training.compiling.joint import PlanningGraph
from poet.values.plan import Plan
from poet.values.schedule import Compute, Effort, Goal

LEAST_SECONDS = 5.0


class Step(msgspec.Struct, frozen=True):
    """Nodes that run in the backward pass, in this order.

    `copy` is 0 for the backward pass's own nodes, and else the number that these copies of nodes of
    the forward pass have. `reads` gives the copy of each thing that is read; what is not in it is
    the one that was saved, or the backward pass's own.
    """

    nodes: tuple[str, ...]
    copy: int = 0
    reads: dict[str, int] = {}


class Split(msgspec.Struct, frozen=True):
    """The backward pass, step by step. `late` are all nodes that are its own."""

    steps: tuple[Step, ...]
    late: frozenset[str]


def planned(
    asked: PlanningGraph, ram_bytes: int | None, effort: Effort, minimize: Goal = "joules"
) -> Plan:
    """The quickest plan found within so many bytes beside what is given; or one of the fewest."""
    if minimize == "bytes":  # a search of many budgets
        seconds = max(LEAST_SECONDS, effort.time_limit_seconds)
        effort = msgspec.structs.replace(effort, time_limit_seconds=seconds)
    budget = msgspec.structs.replace(asked.budget, ram_bytes=ram_bytes)
    plan = solve(asked.graph, asked.costs, budget, effort, minimize=minimize)
    if not plan.schedule:
        raise Infeasible(plan.reason, proven=plan.status == "infeasible")
    return plan


def _own(asked: PlanningGraph, k: int, reads: dict[str, int], number: int) -> Iterator[Step]:
    """The backward pass's own nodes, and before them copies of others that are fused with them."""
    nodes = asked.nodes_of[k]
    others = tuple(name for name in nodes if name not in asked.late)
    if others:
        yield Step(others, number, reads)
        reads = reads | dict.fromkeys(others, number)
    yield Step(tuple(name for name in nodes if name in asked.late), 0, reads)


def split(asked: PlanningGraph, plan: Plan) -> Split:
    """What a plan does after the forward pass."""
    ops = asked.graph.ops
    version: dict[int, int] = {}
    steps: list[Step] = []
    is_late = False
    for instruction in plan.schedule:
        if not isinstance(instruction, Compute):
            continue
        k = instruction.op
        if k == asked.between:
            is_late = True
        elif is_late:
            op = ops[k]
            reads = {asked.node_of[i]: version[i] for i in op.inputs if version.get(i)}
            if k > asked.between:
                steps += _own(asked, k, reads, len(steps) + 1)
            elif op.recomputable:
                number = len(steps) + 1
                version |= dict.fromkeys(op.outputs, number)
                steps.append(Step(asked.nodes_of[k], number, reads))
    return Split(tuple(steps), asked.late)
