"""Eager page-outs: each moved to the moment its tensor comes into RAM.

Where transfers run beside compute, a tensor that is freed right after its page-out was issued holds
its bytes until the transfer has ended. A page-out only copies, so it can be issued as soon as the
tensor is in RAM; by the time it is freed the transfer is done, and the RAM is there.
"""

from poet.values.graph import Graph
from poet.values.schedule import Compute, Instruction, PageIn, PageOut, Schedule


def with_eager_page_outs(graph: Graph, schedule: Schedule) -> Schedule:
    """The same schedule with every page-out as early as it can be, in the order they were in."""
    entered = dict.fromkeys(graph.given, -1)
    after: dict[int, list[Instruction]] = {}
    rest: list[tuple[int, Instruction]] = []
    resident = set(graph.given)
    for at, instruction in enumerate(schedule):
        if isinstance(instruction, PageOut):
            after.setdefault(entered[instruction.tensor], []).append(instruction)
            continue
        rest.append((at, instruction))
        if isinstance(instruction, Compute):
            op = graph.ops[instruction.op]
            resident -= set(op.consumed)
            for i in op.outputs:
                if i not in resident:
                    entered[i] = at
                    resident.add(i)
        elif isinstance(instruction, PageIn):
            entered[instruction.tensor] = at
            resident.add(instruction.tensor)
        else:
            resident.discard(instruction.tensor)
    eager = list(after.get(-1, ()))
    for at, instruction in rest:
        eager += [instruction, *after.get(at, ())]
    return tuple(eager)
