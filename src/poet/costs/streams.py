"""Streamed variants: what ops take that read their parameters from the store in tiles.

Compute takes what it takes with the parameter in RAM; each transfer of a tile has the store's
latency. Added to whatever costs there are, by rates or measured.
"""

from collections.abc import Callable

import msgspec

from poet.calls.loops import TILE_BYTES, Loop, loops
from poet.calls.torch_tiles import torch_tile_bytes
from poet.calls.workspace import workspace_bytes
from poet.values.device import PLAIN, Costs, Device, Run, Stream
from poet.values.graph import Graph


def with_streams(costs: Costs, graph: Graph, device: Device, in_torch: bool = False) -> Costs:
    """The same costs, with variants that stream for every op that can.

    `in_torch` says that PyTorch's kernels run them, which take more beside the tiles.
    """
    ops = tuple(
        {**runs, **_variants(graph, k, runs[PLAIN], device, in_torch)}
        for k, runs in enumerate(costs.ops)
    )
    return msgspec.structs.replace(costs, ops=ops)


def _variants(graph: Graph, k: int, plain: Run, device: Device, in_torch: bool) -> dict[str, Run]:
    found, op = loops(graph, k), graph.ops[k]
    if not found:
        return {}
    # What a measured workspace has beyond what its calls explain is the kernels' own.
    own = max(0, plain.workspace_bytes - workspace_bytes(op, graph))
    made: dict[str, Run] = {}
    for name, largest in TILE_BYTES.items():
        kernels = torch_tile_bytes(graph, k, found, largest) if in_torch else {}
        workspace = own + workspace_bytes(op, graph, found, largest, kernels)
        if made and workspace >= min(run.workspace_bytes for run in made.values()):
            continue  # no smaller than what there is
        made[name] = Run(
            seconds=plain.seconds,
            joules=plain.joules,
            workspace_bytes=workspace,
            reads=_streams(
                [(i, loop) for loop in found for i in loop.streamed],
                largest,
                device.page_in_seconds,
                device.page_in_watts,
            ),
            writes=_streams(
                [(i, loop) for loop in found for i in loop.updated],
                largest,
                device.page_out_seconds,
                device.page_out_watts,
            ),
        )
    return made


def _streams(
    tensors: list[tuple[int, Loop]],
    largest: int,
    transfer_seconds: Callable[[int, int], float],
    watts: float,
) -> tuple[Stream, ...]:
    moved: dict[int, tuple[int, float]] = {}
    for i, loop in tensors:
        nbytes, seconds = moved.get(i, (0, 0.0))
        more = loop.moved_rows * loop.row_bytes
        moved[i] = (nbytes + more, seconds + transfer_seconds(more, loop.tiles(largest)))
    return tuple(
        Stream(tensor=i, nbytes=nbytes, seconds=seconds, joules=seconds * watts)
        for i, (nbytes, seconds) in moved.items()
    )
