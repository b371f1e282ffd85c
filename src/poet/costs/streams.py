"""Streamed variants: what ops take that read their parameters from the store in tiles.

Compute takes what it takes with the parameter in RAM; each transfer of a tile has the store's
latency. Added to whatever costs there are, by rates or measured.
"""

import msgspec

from poet.costs.workspace import workspace_bytes
from poet.device import PLAIN, Costs, Device, Run, Stream
from poet.graph import Graph
from poet.streaming import TILE_BYTES, Loop, loops


def with_streams(costs: Costs, graph: Graph, device: Device) -> Costs:
    """The same costs, with variants that stream for every op that can."""
    ops = tuple(
        {**runs, **_variants(graph, k, runs[PLAIN], device)} for k, runs in enumerate(costs.ops)
    )
    return msgspec.structs.replace(costs, ops=ops)


def _variants(graph: Graph, k: int, plain: Run, device: Device) -> dict[str, Run]:
    found, op = loops(graph, k), graph.ops[k]
    if not found:
        return {}
    # What a measured workspace has beyond what its calls explain is the kernels' own.
    own = max(0, plain.workspace_bytes - workspace_bytes(op, graph))
    made: dict[str, Run] = {}
    for name, largest in TILE_BYTES.items():
        workspace = own + workspace_bytes(op, graph, found, largest)
        if made and workspace >= min(run.workspace_bytes for run in made.values()):
            continue  # no smaller than what there is
        made[name] = Run(
            seconds=plain.seconds,
            joules=plain.joules,
            workspace_bytes=workspace,
            reads=_streams(found, largest, device, is_reading=True),
            writes=_streams(found, largest, device, is_reading=False),
        )
    return made


def _streams(
    found: tuple[Loop, ...], largest: int, device: Device, is_reading: bool
) -> tuple[Stream, ...]:
    moved: dict[int, list[float]] = {}
    watts = device.page_in_watts if is_reading else device.page_out_watts
    for loop in found:
        nbytes, tiles = loop.moved_rows * loop.row_bytes, loop.tiles(largest)
        if is_reading:
            rate, latency = device.page_in_bytes_per_second, device.page_in_latency_seconds
        else:
            rate, latency = device.page_out_bytes_per_second, device.page_out_latency_seconds
        for i in loop.streamed if is_reading else loop.updated:
            total = moved.setdefault(i, [0, 0.0])
            total[0] += nbytes
            total[1] += tiles * latency + nbytes / rate
    return tuple(
        Stream(tensor=i, nbytes=int(nbytes), seconds=seconds, joules=seconds * watts)
        for i, (nbytes, seconds) in moved.items()
    )
