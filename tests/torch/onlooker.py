"""What each op of a step really takes, as torch's own profiler sees it from outside."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from poet.profiling.schedules import keep_all
from poet.profiling.scratch import workspaces_here
from poet.runtime.step.executor import Executor
from poet.tracer.interpreter import Memory
from poet.tracer.program import Program
from poet.values.schedule import Compute

_MARK = "poet op "


class Seen(NamedTuple):
    """An op's bytes, planned (its new outputs and its workspace) and as they were allocated."""

    op: str
    planned_bytes: int
    real_bytes: int


def ops_seen(program: Program) -> list[Seen]:
    """Every op of a step that the runtime makes with everything kept in RAM."""
    graph, plan = program.graph, keep_all(program)

    def lap(at: int) -> None:
        step = plan.schedule[at]
        assert isinstance(step, Compute)
        with record_function(f"{_MARK}{step.op}"):
            pass

    executor = Executor(program, plan, lap=lap)
    executor.run(None)
    machine, given = executor.prepared(None)
    watch = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with torch.enable_grad(), _hushed(), watch as watched:  # the tape leaves another mode behind
        executor.tape.run(machine, given)
    peaks = _peaks(watched, len(graph.ops))
    found = []
    for k, workspace in enumerate(workspaces_here(graph, torch.device("cpu"))):
        seated = {pair.output for pair in graph.ops[k].in_place}
        new = sum(graph.tensors[i].nbytes for i in graph.ops[k].outputs if i not in seated)
        found.append(Seen(graph.op_text(k), new + workspace, peaks[k]))
    return found


def storages_seen(program: Program) -> dict[str, tuple[int, int]]:
    """The tensors whose storage has other bytes than the graph says: those, and the real ones."""
    graph, wrong = program.graph, {}
    memory = Memory(program.given(None))
    for k, op in enumerate(graph.ops):
        program._interpreter.follow((Compute(op=k),), memory)
        for i in op.outputs:
            real = memory.ram[i].untyped_storage().nbytes()
            if real != graph.tensors[i].nbytes:
                wrong[f"{graph.op_text(k)}: {op.calls[-1].kind}"] = (graph.tensors[i].nbytes, real)
    return wrong


def _peaks(watched: profile, ops: int) -> list[int]:
    recorded: Any = watched.profiler
    events = [
        event
        for event in recorded.kineto_results.events()
        if event.name() == "[memory]" or event.name().startswith(_MARK)
    ]
    peaks, level, low, high = [0] * ops, 0, 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            level += event.nbytes()
            high = max(high, level)
        else:
            peaks[int(event.name().removeprefix(_MARK))] = high - low
            low = high = level
    return peaks


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
