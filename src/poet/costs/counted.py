"""Counted costs: what each op takes on a microcontroller, from a profile of its calls.

An op takes the sum of its calls, in the kernels that C is written with; the joules are the board's
watts over that time. Transfers, workspace and all else are as they are by rates. In tiles an op
takes as many times that as was counted for such tiles, between and beyond the counted numbers of
blocks by straight lines.
"""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from poet.calls.operands import works
from poet.calls.pieces.ways import Way
from poet.calls.signature import op_signature, signature, way_signature
from poet.costs.analytic import analytic
from poet.errors import PoetError
from poet.values.board_profile import BoardProfile
from poet.values.device import PLAIN, Costs, Device
from poet.values.graph import Graph, printable


def counted(graph: Graph, device: Device, profile: BoardProfile) -> Costs:
    """The costs of a graph whose calls the profile knows."""
    by_rates = analytic(graph, device)
    ops = []
    for k, runs in enumerate(by_rates.ops):
        seconds = 0.0
        for work in works(graph, k):
            call = profile.by_signature.get(signature(work))
            if call is None:
                raise PoetError(
                    f"the profile of {printable(profile.model)} has no {printable(work.kind)} as "
                    f"{graph.op_text(k)} runs it: it is of another model, batch shape or "
                    "optimizer. poet profile counts this one"
                )
            seconds += profile.seconds(call)
        run = msgspec.structs.replace(
            runs[PLAIN], seconds=seconds, joules=seconds * device.compute_watts
        )
        ops.append({PLAIN: run})
    return msgspec.structs.replace(by_rates, ops=tuple(ops))


def times_in_tiles(graph: Graph, k: int, way: Way, profile: BoardProfile) -> float:
    """How many times what op k takes whole it takes piece by piece.

    Of a way that was not counted: the mean of the op's others, or 1 if there are none.
    """
    calls = works(graph, k)
    known = profile.tiled_by_op.get(op_signature(calls))
    if known is None:
        return 1.0
    points = known.get(way_signature(calls, way))
    return fmean(_along(each, way.blocks) for each in ([points] if points else known.values()))


def _along(points: Sequence[tuple[int, float]], blocks: int) -> float:
    """The times of so many blocks, at least those of the fewest that were counted."""
    (first, times), *_ = points
    if blocks <= first or len(points) == 1:
        return times
    upper = next((n for n, (at, _) in enumerate(points) if at >= blocks), len(points) - 1)
    (x, low), (y, high) = points[upper - 1], points[upper]
    return max(low + (high - low) * (blocks - x) / (y - x), min(low, high))
