"""What PyTorch's kernels take beyond the tiles of a loop, and the gradient of one.

A convolution cannot write into some planes of a larger result, nor add to one, so a tile's part of
it exists twice for a moment; and an update's temporary comes while values are there that only the
gradient needs. Firmware's own kernels need none of this.
"""

from collections.abc import Sequence

from poet.calls.loops import Loop
from poet.calls.operands import Work, works
from poet.calls.sizes import ITEM_BYTES
from poet.calls.updates import needs_temporary
from poet.values.graph import Graph


def torch_tile_bytes(
    graph: Graph, k: int, loops: Sequence[Loop], largest_tile: int
) -> dict[int, int]:
    """For the maker of each loop of op k, the bytes that it takes besides."""
    calls = {work.number: work for work in works(graph, k)}
    return {loop.maker: _bytes(calls, loop, loop.tile_rows(largest_tile)) for loop in loops}


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
