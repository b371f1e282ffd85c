"""Scratch: the memory that kernels take for themselves and give back before they return.

How much that is depends on the processor, the libraries and the threads, so it is found out by
running: every call of a graph by itself, equal ones once, on zeros of its shapes. That takes no
more memory than the op itself and less time than a step, for a step repeats many calls.

What a library inside torch takes from the system directly is not seen. Neither are kernels of other
people's operators: they might not like zeros.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch.utils._pytree import tree_map

from poet.calls.references import made_by, storage, storage_bytes
from poet.calls.updates import NUMBERS
from poet.calls.workspace import temporary_bytes, workspace_bytes
from poet.tracer.arguments import decode, target_of
from poet.tracer.kernels import KERNELS
from poet.tracer.true_results import zeros
from poet.values.graph import Call, Graph, Op

_log = logging.getLogger(__name__)
_TORCHS_OWN = ("aten.", "poet.dropout_mask", "poet.packed", "poet.padded")
_TRIED = {"learning_rate": 1, "step": 1, "skip": 0}
"""What an update is tried with; a share in place of any other number."""


def workspaces_here(
    graph: Graph, device: torch.device, peaks: dict[str, int] | None = None
) -> tuple[int, ...]:
    """The workspace of every op on this machine: what lies between its calls, and their kernels'.

    It tries kernels out and leaves no trace, in random generators neither. `peaks` remembers what
    was found, for other graphs with the same calls.
    """
    peaks = {} if peaks is None else peaks
    if torch._C._autograd._profiler_enabled():
        _log.warning(
            "a profiler is watching: what kernels take beside their results is not counted"
        )
        return tuple(workspace_bytes(op, graph) for op in graph.ops)
    known: dict[str, int] = {}
    with _as_in_a_step(device):
        return tuple(
            workspace_bytes(
                op,
                graph,
                kernels={
                    at: _scratch_bytes(graph, op, call, device, known, peaks)
                    for at, call in enumerate(op.calls)
                },
            )
            for op in graph.ops
        )


def _scratch_bytes(
    graph: Graph,
    op: Op,
    call: Call,
    device: torch.device,
    known: dict[str, int],
    peaks: dict[str, int],
) -> int:
    """What a call's kernel allocates at once, beyond what is counted of every call."""
    made = [reference for reference in made_by(call) if storage(op, reference) == reference]
    if not made or not (call.kind.startswith(_TORCHS_OWN) or call.kind in KERNELS):
        return 0
    arguments = {
        name: decode(argument, partial(_described, graph, op))
        for name, argument in call.arguments.items()
    }
    if call.kind in KERNELS:
        for name in NUMBERS:
            if isinstance(arguments.get(name), _Described):
                arguments[name] = _TRIED.get(name, 0.5)
    is_forward = op.phase == "forward"
    key = repr((call.kind, arguments, is_forward))
    if key not in known:
        seated = {pair.output for pair in op.in_place}
        counted = temporary_bytes(op, call, graph) + sum(
            storage_bytes(graph, op, (tag, n))
            for tag, n in made
            if tag == "value" or n not in seated
        )
        if key not in peaks:
            peaks[key] = _tried(call.kind, arguments, is_forward, device)
        known[key] = max(0, peaks[key] - counted)
    return known[key]


@dataclass(frozen=True)
class _Described:
    """A tensor that a call reads: all that its kernel's appetite depends on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    storage_bytes: int

    def made_up(self, device: torch.device) -> torch.Tensor:
        strides = self.strides or torch.empty(self.shape, device="meta").stride()
        dtype: torch.dtype = getattr(torch, self.dtype)
        return zeros(self.shape, strides, dtype, device, self.storage_bytes)


def _described(graph: Graph, op: Op, tag: str, n: int) -> _Described:
    about = graph.tensors[n] if tag == "tensor" else op.values[n]
    assert about.shape is not None
    assert about.dtype is not None
    room = storage_bytes(graph, op, (tag, n))
    return _Described(about.shape, about.strides, about.dtype, room)


def _tried(kind: str, arguments: dict[str, Any], is_forward: bool, device: torch.device) -> int:
    """How far allocation rises while a kernel runs on zeros; 0 where it refuses them."""
    function: Callable[..., object] = KERNELS.get(kind) or target_of(kind)
    given = tree_map(lambda x: x.made_up(device) if isinstance(x, _Described) else x, arguments)
    try:
        with torch.set_grad_enabled(is_forward):
            if device.type == "cuda":  # the first call may set up a library, for good
                function(**given)
            return peak_bytes(lambda: function(**given), device)
    except (RuntimeError, ValueError, IndexError) as error:
        _log.info("what %s takes beside its results is not known: %s", kind, error)
        return 0


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """How far the memory that torch's allocator has given out rises while something runs."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    return max(accumulate(_allocations(run)), default=0)


def step_peak_bytes(build: Callable[[], Callable[[], object]]) -> int:
    """The most that torch's CPU allocator had given out while a step ran, the model's bytes too.

    `build` makes everything the step needs and gives the step, which is watched when it runs for
    the second time.
    """
    made: list[Callable[[], object]] = []

    def begin() -> None:
        made.append(build())
        made[0]()

    held = sum(_allocations(begin))
    return held + max(accumulate(_allocations(made[0])), default=0)


def _allocations(run: Callable[[], object]) -> list[int]:
    """The bytes that something takes from the CPU's allocator, and those it gives back: below 0."""
    # The plain profiler in C++: torch.profiler takes a second to start, and writes to stderr.
    profiler: Any = torch._C._autograd
    kinds: Any = torch._C._profiler
    more = kinds._ExperimentalConfig()
    profiler._enable_profiler_legacy(
        kinds.ProfilerConfig(kinds.ProfilerState.CPU, False, True, False, False, False, more)
    )
    try:
        run()
    finally:
        threads = profiler._disable_profiler_legacy()
    events = chain.from_iterable(threads)
    return [event.cpu_memory_usage() for event in events if event.kind() == "memory_alloc"]


@contextlib.contextmanager
def _as_in_a_step(device: torch.device) -> Iterator[None]:
    """As kernels run in a step, with the random generators as they were afterwards."""
    generators = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=generators), torch.autocast(device.type, enabled=False):
        yield
