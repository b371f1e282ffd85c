"""Measuring: all that a profile holds, one measurement after the other.

The step runs with a learning rate of zero, and what it changes all the same (optimizer state, the
statistics of norms, the random generator) is put back afterwards: a program that was profiled
trains as if it had not been.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from poet.devices import find_device
from poet.errors import PoetError
from poet.planning.defaults import HERE
from poet.profiling.laps import Laps
from poet.profiling.power import Meter, Spent, find_counter
from poet.profiling.rates import measure_rates
from poet.profiling.results import Watts, costs_of, device_here
from poet.profiling.schedules import keep_all, much_paging
from poet.profiling.scratch import workspaces_here
from poet.profiling.store_speed import speeds_in_overlap, store_speed, usual_bytes
from poet.runtime.heap import keep_freed_memory
from poet.runtime.stores.base import Store
from poet.runtime.stores.file_store import FileStore
from poet.runtime.stores.memory_store import MemoryStore
from poet.tracer.program import Program
from poet.values.device import Device
from poet.values.profile import Profile, Timing
from poet.values.progress import CountProgress

_SECONDS = 20.0


def profile(
    program: Program,
    *,
    store: str | Path | None = None,
    seconds: float = _SECONDS,
    power: str | Device | None = None,
    progress: CountProgress | None = None,
) -> Profile:
    """Measure every op of a program here, and a page store in a folder (default: this one).

    A program on a GPU pages to host memory unless a folder is given. `seconds` is about how long
    the steps are repeated. Where no counter tells the energy, `power` names the board whose watts
    are taken: by default a laptop's, on a GPU an H200's.
    """
    if not seconds > 0:
        raise PoetError(f"profiling for {seconds} seconds measures nothing; give more than 0")
    keep_freed_memory()
    device = program.model_device
    board = power or ("h200" if device.type == "cuda" else HERE)
    board = find_device(board) if isinstance(board, str) else board
    report = progress or (lambda what, done, count: None)
    with _as_it_was(program), _opened(store, device) as (pages, where):
        plain = keep_all(program)
        counter = find_counter(device.type)
        meter = None if counter is None else Meter(counter)
        paging = Laps(program, much_paging(program, plain.costs), pages)
        with _metered(meter) as moving:
            paging.measure(
                seconds / 2, lambda done, count: report("steps with paging", done, count)
            )
        paging.close()
        laps = Laps(program, plain)
        with _metered(meter) as computing:
            laps.measure(seconds / 2, lambda done, count: report("steps", done, count))
        beside = speeds_in_overlap(
            lambda: laps.run(keep=False), pages, usual_bytes(program.graph), device
        )
        speed = store_speed(where, paging)
        report("workspaces", 0, 1)
        workspaces = workspaces_here(program.graph, device)
        report("the machine's rates", 0, 1)
        rates = measure_rates(device)
    watts = _watts(board, meter, computing, moving)
    here = device_here(device, rates, speed, beside, watts)
    ops = zip(laps.op_repeats, paging.op_repeats, strict=True)
    return Profile(
        machine=here.title,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        energy=watts.source,
        repeats=len(laps.steps) + len(paging.steps),
        device=here,
        step=laps.step_timing,
        ops=tuple(Timing.of([*all_kept, *little_ram]) for all_kept, little_ram in ops),
        store=speed,
        costs=costs_of(program.graph, here, laps, paging, workspaces, speed),
    )


def _metered(meter: Meter | None) -> contextlib.AbstractContextManager[list[Spent]]:
    """What a block takes, in the list once it has ended."""
    return contextlib.nullcontext([]) if meter is None else meter.stretch()


def _watts(
    board: Device, meter: Meter | None, computing: list[Spent], moving: list[Spent]
) -> Watts:
    if meter is None:
        return Watts(
            compute=board.compute_watts,
            page_in=board.page_in_watts,
            page_out=board.page_out_watts,
            idle=board.idle_watts,
            source=f"as {board.name or board.title}: no counter of energy was found here",
        )
    page = meter.beyond_idle(moving[0])
    return Watts(
        compute=meter.beyond_idle(computing[0]),
        page_in=page,
        page_out=page,
        idle=meter.idle_watts,
        source=f"counted by {meter.counter.name}",
    )


@contextlib.contextmanager
def _opened(folder: str | Path | None, device: torch.device) -> Iterator[tuple[Store, str]]:
    on_gpu = folder is None and device.type == "cuda"
    store: FileStore | MemoryStore = MemoryStore() if on_gpu else FileStore(folder or ".")
    try:
        yield store, "host memory" if on_gpu else str(Path(folder or ".").resolve())
    finally:
        store.close()


@contextlib.contextmanager
def _as_it_was(program: Program) -> Iterator[None]:
    """Leave no trace in the model, its optimizer state and the random generators."""
    kept = {i: home.clone() for i, home in program.homes().items()}
    rates, counts = list(program.learning_rates), program.counts
    program.learning_rates[:] = [0.0] * len(rates)
    device = program.model_device
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        program.learning_rates[:] = rates
        program.counts = counts
        with torch.no_grad():
            for i, home in program.homes().items():
                home.copy_(kept[i])
