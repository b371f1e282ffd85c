"""Results: what was measured, as a device and as the costs of a graph."""

import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from poet.costs.analytic import transfer
from poet.profiling.laps import Laps
from poet.profiling.rates import Rates
from poet.profiling.store_speed import Beside
from poet.runtime.memory_info import memory_info
from poet.values.device import CLASS_FIGURES, LEAST_SPEED, PLAIN, Costs, Device, Run
from poet.values.graph import Graph
from poet.values.profile import StoreSpeed

_WORTH_IT = 1.1
"""Transfers are to run beside compute where both together get this much more done than in turn."""


class Watts(NamedTuple):
    """On top of an idle machine, but for `idle`."""

    compute: float
    page_in: float
    page_out: float
    idle: float
    source: str


def device_here(
    device: torch.device, rates: Rates, speed: StoreSpeed, beside: Beside, watts: Watts
) -> Device:
    """This machine as a board."""
    largest, smallest = speed.sizes_bytes[-1], speed.sizes_bytes[0]
    in_latency, in_rate = _line(smallest, largest, speed.in_seconds)
    out_latency, out_rate = _line(smallest, largest, speed.out_seconds)
    ram, reserved = _memory(device)
    compute, transfers = (max(LEAST_SPEED, share) for share in beside)
    figures: dict[str, Any] = {
        "ram_bytes": ram,
        "reserved_bytes": reserved,
        "store_bytes": _store_bytes(speed.where),
        "flops_per_second": max(rates.classes.values()),
        "class_flops_per_second": rates.classes,
        "class_bytes_per_second": rates.class_bytes,
        "class_overhead_seconds": rates.class_overheads,
        "memory_bytes_per_second": rates.memory_bytes_per_second,
        "op_overhead_seconds": rates.op_overhead_seconds,
        "compute_speed_in_overlap": compute,
        "transfer_speed_in_overlap": transfers,
        "page_in_latency_seconds": in_latency,
        "page_in_bytes_per_second": in_rate,
        "page_out_latency_seconds": out_latency,
        "page_out_bytes_per_second": out_rate,
        "overlap": compute + transfers >= _WORTH_IT,
        "duplex": False,
    }
    powers: dict[str, Any] = {
        "compute_watts": watts.compute,
        "page_in_watts": watts.page_in,
        "page_out_watts": watts.page_out,
        "idle_watts": watts.idle,
    }
    return Device(
        name="host" if device.type == "cpu" else device.type,
        title=_title(device),
        **figures,
        **powers,
        sources={
            **{field: "measured" for field in figures if field not in CLASS_FIGURES},
            **dict.fromkeys(powers, watts.source),
        },
    )


def costs_of(
    graph: Graph,
    device: Device,
    plain: Laps,
    paging: Laps,
    workspaces: tuple[int, ...],
    speed: StoreSpeed,
) -> Costs:
    """Each op at the mean of what it took with all kept and with little RAM.

    The second is often faster: memory that was freed a moment ago is still in the caches. Plans lie
    between the two.
    """
    pairs = zip(plain.op_seconds, paging.op_seconds, strict=True)
    return Costs(
        graph=graph.fingerprint,
        device=device.name,
        ops=tuple(
            {
                PLAIN: Run(
                    seconds=(all_kept + little_ram) / 2,
                    joules=(all_kept + little_ram) / 2 * device.compute_watts,
                    workspace_bytes=nbytes,
                )
            }
            for (all_kept, little_ram), nbytes in zip(pairs, workspaces, strict=True)
        ),
        tensors=tuple(
            transfer(device, speed.in_seconds(tensor.nbytes), speed.out_seconds(tensor.nbytes))
            for tensor in graph.tensors
        ),
        idle_watts=device.idle_watts,
        duplex=device.duplex,
        compute_speed_in_overlap=device.compute_speed_in_overlap or 1.0,
        transfer_speed_in_overlap=device.transfer_speed_in_overlap or 1.0,
    )


def _line(smallest: int, largest: int, seconds: Callable[[int], float]) -> tuple[float, float]:
    """Latency and bytes a second of the straight line through the smallest and largest size."""
    few, many = seconds(smallest), seconds(largest)
    if largest == smallest or many <= few:
        return 0.0, largest / many
    return few, (largest - smallest) / (many - few)


def _memory(device: torch.device) -> tuple[int, int]:
    """All there is, and what is taken already."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, total - free
    told = memory_info()
    return told["MemTotal"], told["MemTotal"] - told["MemAvailable"]


def _store_bytes(where: str) -> int:
    folder = Path(where)
    return shutil.disk_usage(folder).free if folder.is_dir() else _memory(torch.device("cpu"))[0]


def _title(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model}, {torch.get_num_threads()} threads"
