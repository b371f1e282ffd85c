"""Analytic costs: what each op takes on a device, from its calls and the device's rates.

A call takes as long as its arithmetic or its memory traffic, whichever is more (the roofline), and
a fixed time to start it; views take nothing. Joules are compute watts over that time, with the
arithmetic at the device's energy rate where it has one of its own. Transfers have the device's
latency, bandwidth and watts.

The FLOP rate is that of the call's class of work (`classes`) where the device has one, and else the
one rate of the device, for every element type.

A device without a memory rate is priced by FLOPs alone. Calls that only move data would be free
there; they are charged as if each 8 bytes were a FLOP, so that copying a float32 element costs what
one addition to it does.

Nothing is measured here, and no kernel's own inefficiency is known: a measured profile knows both.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from poet.calls.sizes import SizedCall, sized_calls
from poet.calls.workspace import workspace_bytes
from poet.costs.classes import class_of
from poet.costs.flops import call_flops, is_known
from poet.costs.traffic import call_bytes
from poet.errors import PoetError
from poet.values.device import PLAIN, SECTOR_BYTES, Costs, Device, Run, Transfer
from poet.values.graph import Graph

COPIED_BYTES_PER_FLOP = 8
"""Bytes moved, read and written together, that count as one FLOP where nothing else is known."""


class OpWork(msgspec.Struct, frozen=True, kw_only=True):
    """What an op does. `estimated` names the kinds whose FLOPs no table knows."""

    flops: int
    bytes_moved: int
    estimated: frozenset[str] = frozenset()

    @property
    def exact(self) -> bool:
        """Whether every call was counted, and none estimated."""
        return not self.estimated


def analytic(graph: Graph, device: Device) -> Costs:
    """The costs of every op and every transfer of the graph on the device."""
    runs = tuple({PLAIN: _run(graph, k, device)} for k in range(len(graph.ops)))
    try:
        return Costs(
            graph=graph.fingerprint,
            device=device.name or device.title,
            ops=runs,
            tensors=tuple(
                transfer(
                    device,
                    device.page_in_seconds(tensor.nbytes),
                    device.page_out_seconds(tensor.nbytes),
                )
                for tensor in graph.tensors
            ),
            sector=transfer(
                device,
                device.page_in_seconds(SECTOR_BYTES),
                device.page_out_seconds(SECTOR_BYTES),
            ),
            idle_watts=device.idle_watts,
            duplex=device.duplex,
            compute_speed_in_overlap=device.compute_speed_in_overlap or 1.0,
            transfer_speed_in_overlap=device.transfer_speed_in_overlap or 1.0,
        )
    except ValueError as error:
        raise PoetError(f"{device.title} has figures POET cannot use: {error}") from error


def with_workspaces(costs: Costs, workspaces_bytes: Iterable[int]) -> Costs:
    """The same costs, with the workspace that somebody else knows each op to take."""
    ops = tuple(
        {PLAIN: msgspec.structs.replace(runs[PLAIN], workspace_bytes=nbytes)}
        for runs, nbytes in zip(costs.ops, workspaces_bytes, strict=True)
    )
    return msgspec.structs.replace(costs, ops=ops)


def op_work(graph: Graph, k: int) -> OpWork:
    """The FLOPs and the bytes of op k, all its calls together."""
    flops = bytes_moved = 0
    estimated = set()
    for call in _calls(graph, k):
        flops += call_flops(call)
        bytes_moved += call_bytes(call)
        if _is_estimated(call):
            estimated.add(call.kind)
    return OpWork(flops=flops, bytes_moved=bytes_moved, estimated=frozenset(estimated))


def estimated_kinds(graph: Graph) -> dict[str, int]:
    """The kinds whose FLOPs no table knows, each with the number of its calls in the graph."""
    kinds = Counter(
        call.kind for k in range(len(graph.ops)) for call in _calls(graph, k) if _is_estimated(call)
    )
    return dict(sorted(kinds.items()))


def _is_estimated(call: SizedCall) -> bool:
    return not is_known(call.family) and not call.is_view


def _calls(graph: Graph, k: int) -> Iterator[SizedCall]:
    if not graph.ops[k].calls:
        raise PoetError(
            f"{graph.op_text(k)} has no calls to cost: the graph does not say what it computes. "
            "Give costs= with what its ops take"
        )
    return sized_calls(graph, k)


def main_kind(graph: Graph, k: int, device: Device) -> str:
    """The kind of the call that op k spends most of its time in, by the device's rates."""
    calls = [call for call in _calls(graph, k) if not call.is_view]
    most = max(calls, key=lambda call: _seconds(call, device)[0], default=None)
    return graph.ops[k].calls[0].kind if most is None else most.family


def _seconds(call: SizedCall, device: Device) -> tuple[float, float]:
    """How long a call takes, and for how long energy is charged."""
    flops: float = call_flops(call)
    nbytes = call_bytes(call)
    kind = class_of(call)
    if device.memory_bytes_per_second:
        moving = nbytes / device.class_bytes_per_second.get(kind, device.memory_bytes_per_second)
    else:
        moving = 0.0
        flops = flops or nbytes / COPIED_BYTES_PER_FLOP
    overhead = device.class_overhead_seconds.get(kind, device.op_overhead_seconds or 0.0)
    rate = device.class_flops_per_second.get(kind, device.flops_per_second)
    energy_rate = device.energy_flops_per_second or rate
    return max(flops / rate, moving) + overhead, max(flops / energy_rate, moving) + overhead


def call_seconds(call: SizedCall, device: Device) -> float:
    """How long a call takes by the device's rates; a view takes nothing."""
    return 0.0 if call.is_view else _seconds(call, device)[0]


def _run(graph: Graph, k: int, device: Device) -> Run:
    seconds = energy_seconds = 0.0
    try:
        for call in _calls(graph, k):
            if not call.is_view:
                taken, charged = _seconds(call, device)
                seconds += taken
                energy_seconds += charged
        return Run(
            seconds=seconds,
            joules=energy_seconds * device.compute_watts,
            workspace_bytes=workspace_bytes(graph.ops[k], graph),
        )
    except (OverflowError, ValueError) as error:
        raise PoetError(f"{graph.op_text(k)} is beyond what POET can cost: {error}") from error


def transfer(device: Device, in_seconds: float, out_seconds: float) -> Transfer:
    """A page that takes so long, each way, on a device with these watts."""
    return Transfer(
        in_seconds=in_seconds,
        in_joules=in_seconds * device.page_in_watts,
        out_seconds=out_seconds,
        out_joules=out_seconds * device.page_out_watts,
    )
