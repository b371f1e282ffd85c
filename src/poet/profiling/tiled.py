"""Tiled: what ops take piece by piece beyond what their calls take whole.

Kernels that take several rows or channels at a time lose that in small tiles, and every block
prepares anew. So each op that takes a share of the step is counted in tiles of a few sizes, for any
of the three largest tensors that it may stream, for each other alone and for all of them; a plan's
tiles lie between.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations

from poet.calls.operands import works
from poet.calls.pieces.choices import Choice
from poet.calls.pieces.ways import Way, streamable, way_of
from poet.calls.signature import op_signature, signature, way_signature
from poet.firmware.write.probe import Probe
from poet.values.board_profile import TiledCost
from poet.values.graph import Graph

_LIMITS = (1_024, 6_144, 32_768)
"""Bytes that the tiles of an op may take, which are more where there are none so small."""
_LEAST_SHARE = 0.004
"""Of a step's instructions: what takes less makes no difference in tiles either."""
_MOST_BYTES = 1 << 20
_GROUPS = 3

_Key = tuple[str, str, int]


def tiled_probes(graph: Graph, known: Mapping[str, float]) -> dict[_Key, tuple[Probe, float]]:
    """Ways to run ops in tiles, each once, with the instructions of their calls whole."""
    taken = [_whole(graph, k, known) for k in range(len(graph.ops))]
    least = _LEAST_SHARE * sum(each for each in taken if each is not None)
    found: dict[_Key, tuple[Probe, float]] = {}
    done: set[str] = set()
    for k, instructions in enumerate(taken):
        calls = works(graph, k)
        alike = op_signature(calls)
        if instructions is None or instructions <= least or alike in done:
            continue
        done.add(alike)
        for way in _ways(graph, k):
            key = (alike, way_signature(calls, way), way.blocks)
            found.setdefault(key, (Probe(graph, k, tuple(calls), way), instructions))
    return found


def tiled_costs(
    probes: Mapping[_Key, tuple[Probe, float]], counts: Mapping[_Key, float]
) -> tuple[TiledCost, ...]:
    """What was counted of those, in times the op whole."""
    return tuple(
        TiledCost(op=key[0], way=key[1], blocks=key[2], times=instructions / probes[key][1])
        for key, instructions in counts.items()
    )


def _whole(graph: Graph, k: int, known: Mapping[str, float]) -> float | None:
    """The instructions of an op's calls; None: one was not counted."""
    found = [known.get(signature(work)) for work in works(graph, k)]
    return None if None in found else sum(x for x in found if x is not None)


def _ways(graph: Graph, k: int) -> Iterator[Way]:
    op, sets = graph.ops[k], streamable(graph, k)
    groups = sorted(sets, key=lambda group: -sum(graph.tensors[i].nbytes for i in group))
    some = [each for n in range(1, _GROUPS + 1) for each in combinations(groups[:_GROUPS], n)]
    rest = groups[_GROUPS:]
    some += [(each,) for each in rest]  # a parameter alone is small beside maps, and moves least
    for each in [*some, tuple(groups)] if rest else some:
        chosen = frozenset[int]().union(*each)
        reads, writes = chosen & set(op.inputs), chosen & set(op.outputs)
        for limit in _LIMITS:
            way = None
            while way is None and limit <= _MOST_BYTES:
                way = way_of(graph, k, Choice(reads, writes, limit))
                limit *= 2
            if way is not None:
                yield way
