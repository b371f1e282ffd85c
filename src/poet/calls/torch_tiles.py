"""What PyTorch's kernels take beyond the tiles of a loop, and the gradient of one.

A convolution cannot write into some planes of a larger result, nor add to one, so a tile's part of
it exists twice for a moment; and an update's temporary comes while values are there that only the
gradient needs. Firmware's own kernels need none of this.
"""

from collections.abc import Sequence
from math import prod

from poet.calls.loops import Loop
from poet.calls.operands import Work, works
from poet.calls.pieces.nest import tile_bytes
from poet.calls.pieces.planes import APPLIED, GRADIENT, STATISTICS, SUMS
from poet.calls.pieces.products import KEYS
from poet.calls.pieces.ways import Way
from poet.calls.sizes import ITEM_BYTES
from poet.calls.updates import needs_temporary
from poet.values.graph import Graph


def torch_tile_bytes(
    graph: Graph, k: int, loops: Sequence[Loop], largest_tile: int
) -> dict[int, int]:
    """For the maker of each loop of op k, the bytes that it takes besides."""
    calls = {work.number: work for work in works(graph, k)}
    return {loop.maker: _bytes(calls, loop, loop.tile_rows(largest_tile)) for loop in loops}


_COPIED = {
    "aten.convolution": ("input",),
    "aten.convolution_backward": ("input", "grad_output"),
    STATISTICS: ("input",),
    APPLIED: ("input",),
    SUMS: ("input",),
    GRADIENT: ("input", "input"),
    "aten.max_pool2d_with_indices": ("self", "self"),
    "aten.max_pool2d_with_indices_backward": ("indices", "indices", "grad_output"),
    "aten.avg_pool2d": ("self",),
    "aten.avg_pool2d_backward": ("grad_output",),
}
"""Of what a kernel reads, what is padded, subtracted from or converted in memory of its own."""


def torch_piece_bytes(way: Way) -> dict[int, int]:
    """For each call that goes block by block, what PyTorch takes beside its tiles.

    A kernel gives its results in memory of their own before they are copied to where they belong;
    an image may be padded; an update needs a temporary.
    """
    found: dict[int, int] = {}
    for part in way.parts:
        space, nest = part.space, part.nest
        if space is None or nest is None:
            continue
        sides = [side for side in space.writes if side is not None]
        sides += [space.reads[name] for name in _COPIED.get(part.work.family, ())]
        made = sum(tile_bytes(side, space.axes, nest.sizes) for side in sides)
        if "attention" in part.work.family and len(space.axes) > KEYS:
            made += 4 * ITEM_BYTES["float32"] * prod(nest.sizes)  # scores, and what they become
        for follower in part.followers:
            if needs_temporary(follower.work.kind, follower.work.arguments):
                side = follower.sides["parameter"]
                made += tile_bytes(side, space.axes, nest.sizes)
        if needs_temporary(part.work.kind, part.work.arguments):
            made += tile_bytes(space.reads["parameter"], space.axes, nest.sizes)
        found[part.work.number] = max(found.get(part.work.number, 0), made)
    return found


def _bytes(calls: dict[int, Work], loop: Loop, tile_rows: int) -> int:
    maker = calls[loop.maker]
    family = maker.family
    is_whole = tile_rows == loop.rows and loop.named_rows is None
    made = 0
    if family.startswith("aten.convolution") and not is_whole:
        result = maker.results[0]
        made = 0 if result is None else result.nbytes
        if loop.kind == "columns":
            made = made // loop.rows * tile_rows
    if family == "aten.convolution_backward" and maker.results[2] is not None:
        made += tile_rows * ITEM_BYTES["float32"]
    temporary = False
    if loop.update is not None:
        update = calls[loop.update]
        temporary = needs_temporary(update.kind, update.arguments)
    return max(made, tile_rows * loop.row_bytes if temporary else 0)
