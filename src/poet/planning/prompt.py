"""Prompt: the same transfers, with shorter stays in RAM.

What a search finds keeps a tensor until its bytes are wanted, since that costs nothing. It costs
addresses: each tensor that stays for longer than it is of use is one more that the others must lie
beside. Here a free and a page-out come as soon as they can, a page-in as late as it can. Where
computing waits for transfers, joules and seconds are sums over the same instructions, and at no
moment is more in RAM.
"""

from collections.abc import Iterable

from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Compute, Free, Instruction, PageIn, PageOut, Schedule


def prompt(graph: Graph, costs: Costs, schedule: Schedule) -> Schedule:
    """The schedule with page-ins as late, and page-outs and frees as early as they can be."""
    slots = [slots_of(graph, costs, instruction) for instruction in schedule]
    small = {PageOut(i) for i, each in enumerate(graph.tensors) if each.nbytes < SECTOR_BYTES}
    late = _moved(list(zip(schedule, slots, strict=True))[::-1], (PageIn,), set())
    early = _moved(late[::-1], (PageOut, Free), small)
    return tuple(instruction for instruction, _ in early)


SECTOR_BYTES = 512
"""Less than this shares a sector with what is paged out before it, which is then written once."""
_Touching = tuple[Instruction, frozenset[int]]


def _moved(
    given: Iterable[_Touching], kinds: tuple[type, ...], small: set[PageOut]
) -> list[_Touching]:
    """The instructions in their order, but those of some kinds as near to the front as may be: an
    instruction passes only those that have nothing to do with its tensor's slot of the store, and
    none of its kinds where it ends; a small page-out passes no other."""
    out: list[_Touching] = []
    for each in given:
        at = len(out)
        if isinstance(each[0], kinds):
            while at and not (out[at - 1][1] & each[1]):
                if each[0] in small and isinstance(out[at - 1][0], PageOut):
                    break
                at -= 1
            while at < len(out) and isinstance(out[at][0], kinds):
                at += 1
        out.insert(at, each)
    return out


def slots_of(graph: Graph, costs: Costs, instruction: Instruction) -> frozenset[int]:
    """The slots of all that an instruction has to do with, in RAM or in the store."""
    if not isinstance(instruction, Compute):
        return frozenset((graph.slot[instruction.tensor],))
    op, run = graph.ops[instruction.op], costs.ops[instruction.op][instruction.variant]
    streamed = (stream.tensor for stream in (*run.reads, *run.writes))
    return frozenset(graph.slot[i] for i in (*op.inputs, *op.outputs, *op.consumed, *streamed))
