"""Laps: the time of every instruction of a step, taken while the step runs.

The runtime's own tape calls a stopwatch when an op or a transfer has ended, together with the frees
that follow it; so laps add up to the step, and what the runtime itself takes is in them. On CUDA
the stopwatch stands in the GPU's own stream of work, so that no lap makes anything wait.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from poet.runtime.session import Session
from poet.runtime.stores.base import Store
from poet.tracer.program import Program
from poet.values.plan import Plan
from poet.values.profile import Timing
from poet.values.schedule import Compute, Free, PageIn, PageOut

WARM_UP = 3
LEAST_REPEATS = 7
MOST_REPEATS = 60

Repeats = Callable[[int, int], None]
"""Told how many repeats are done, of how many."""


class Laps:
    """Steps of a program under a plan, timed instruction by instruction.

    What a step does before its first instruction and after its last goes to these.
    """

    def __init__(self, program: Program, plan: Plan, store: Store | None = None) -> None:
        self._plan = plan
        self._marks: list[tuple[int, Any]] = []
        self._on_cuda = program.model_device.type == "cuda"
        self._example = program.example.rebuilt(program.example.tensors)
        self._session = Session(program, plan, store, lap=self._lap)
        executor = self._session.executor()
        assert executor is not None
        self._executor = executor
        self.steps: list[float] = []
        self._took: dict[int, list[float]] = {
            at: [] for at, step in enumerate(plan.schedule) if not isinstance(step, Free)
        }

    def _lap(self, at: int) -> None:
        self._marks.append((at, self._now()))

    def _now(self) -> Any:
        if not self._on_cuda:
            return perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _seconds(self, before: Any, after: Any) -> float:
        took: float = before.elapsed_time(after) / 1e3 if self._on_cuda else after - before
        return took

    def run(self, keep: bool = True) -> float:
        """One step on the example."""
        self._marks.clear()
        if self._on_cuda:
            torch.cuda.synchronize()
        started = before = self._now()
        self._session.run(self._executor, self._example)
        ended = self._now()
        if self._on_cuda:
            torch.cuda.synchronize()
        took = self._seconds(started, ended)
        if keep:
            self.steps.append(took)
            last = self._marks[-1][0]
            for at, now in self._marks:
                self._took[at].append(self._seconds(before, ended if at == last else now))
                before = now
        return took

    def measure(self, seconds: float, progress: Repeats | None = None) -> None:
        """Warm up, then repeat for about so many seconds."""
        for _ in range(WARM_UP):
            one = self.run(keep=False)
        count = max(LEAST_REPEATS, min(MOST_REPEATS, round(seconds / one)))
        for done in range(count):
            if progress is not None:
                progress(done, count)
            self.run()
        if progress is not None:
            progress(count, count)

    def close(self) -> None:
        """Bring back into RAM what the plan keeps in the store between steps."""
        self._session.close()

    @property
    def step_timing(self) -> Timing:
        return Timing.of(self.steps)

    @property
    def op_repeats(self) -> list[list[float]]:
        """The times of each op's first run, step by step."""
        first: dict[int, int] = {}
        for at, step in enumerate(self._plan.schedule):
            if isinstance(step, Compute):
                first.setdefault(step.op, at)
        return [self._took[first[k]] for k in range(len(self._plan.graph.ops))]

    @property
    def op_seconds(self) -> list[float]:
        """Each op's median, all scaled so that they add up to the median of their sum.

        Medians leave out what now and then holds up one op or another; the step has it all.
        """
        repeats = self.op_repeats
        medians = [median(each) for each in repeats]
        together = sum(medians)
        scale = median(map(sum, zip(*repeats, strict=True))) / together if together else 1.0
        return [scale * each for each in medians]

    def transfers(self, kind: type[PageIn] | type[PageOut]) -> list[tuple[int, list[float]]]:
        """Of every page-in or page-out its bytes, and its seconds step by step."""
        return [
            (self._plan.graph.tensors[step.tensor].nbytes, self._took[at])
            for at, step in enumerate(self._plan.schedule)
            if isinstance(step, kind)
        ]
