"""Scratch: the memory that kernels take for themselves while an op runs.

torch's profiler sees every allocation of torch's allocator; markers between ops say whose each is.
What a library inside torch takes from the system directly is not seen.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from poet.calls.workspace import workspace_bytes
from poet.runtime.step.executor import Executor
from poet.tracer.program import Program
from poet.values.graph import Graph
from poet.values.plan import Plan
from poet.values.schedule import Compute

_MARK = "poet op "


def scratch_bytes(program: Program, plan: Plan) -> tuple[int, ...]:
    """The workspace of every op: the most that was allocated beside its inputs and outputs.

    Never less than the inner results of its calls, which the runtime counts, too. The plan
    must not page.
    """

    def lap(at: int) -> None:
        step = plan.schedule[at]
        assert isinstance(step, Compute)
        with torch.profiler.record_function(f"{_MARK}{step.op}"):
            pass

    executor = Executor(program, plan, lap=lap)
    activities = [ProfilerActivity.CPU]
    if program.model_device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    executor.run(None)
    with _hushed(), profile(activities=activities, profile_memory=True) as seen:
        executor.run(None)
    peaks = _peaks(seen, len(program.graph.ops), program.model_device.type)
    return tuple(
        max(peak - _output_bytes(program.graph, k), workspace_bytes(op, program.graph), 0)
        for k, (op, peak) in enumerate(zip(program.graph.ops, peaks, strict=True))
    )


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Without what the profiler's C++ says on stderr: it is of no use to anybody."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def allocator_peak(build: Callable[[], Callable[[], object]], device: str = "cpu") -> int:
    """The most that torch's allocator had given out while a step ran.

    `build` makes everything the step needs, while the profiler is already watching: only so are all
    bytes known, those of the model among them. It gives the step.
    """
    with _hushed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step = build()
        step()
        with torch.profiler.record_function(_MARK):
            pass
        step()
    level, peak, is_second = 0, 0, False
    for name, nbytes in _events(seen, device):
        level += nbytes
        is_second = is_second or name == _MARK
        peak = max(peak, level) if is_second else 0
    return peak


def _output_bytes(graph: Graph, k: int) -> int:
    seated = {pair.output for pair in graph.ops[k].in_place}
    return sum(graph.tensors[i].nbytes for i in graph.ops[k].outputs if i not in seated)


def _peaks(seen: profile, ops: int, device: str) -> list[int]:
    """How far allocation rose while each op ran."""
    peaks = [0] * ops
    level = low = high = 0
    for name, nbytes in _events(seen, device):
        if name.startswith(_MARK):
            op = int(name.removeprefix(_MARK))
            peaks[op] = max(peaks[op], high - low)
            low = high = level
        else:
            level += nbytes
            high = max(high, level)
    return peaks


def _events(seen: profile, device: str) -> list[tuple[str, int]]:
    recorded: Any = seen.profiler
    kind = device.upper()
    events = [
        event
        for event in recorded.kineto_results.events()
        if (event.name() == "[memory]" and kind in str(event.device_type()))
        or event.name().startswith(_MARK)
    ]
    events.sort(key=lambda event: event.start_ns())
    return [(event.name(), event.nbytes() if event.name() == "[memory]" else 0) for event in events]
