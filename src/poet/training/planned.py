"""Planned steps: a session whose batch shapes are captured and planned when they first come.

What `Trainer` and `wrap` share. A `StepSource` says how a batch's step is captured; `Terms` what is
asked of its plan. The first shape decides where parameters live, and the others follow it.

A captured step holds for the model as it was: each batch first asks a `Watch` whether anything has
changed since (a mode, a rate, a layer), and where it has, the step is captured anew.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from poet.errors import Infeasible, PoetError
from poet.planning.advice import ram_argument
from poet.planning.plan import cores, plan_for
from poet.planning.problem import Problem
from poet.planning.question import MIN, Terms
from poet.planning.residency import in_bytes, residency_of
from poet.profiling.scratch import workspaces_here
from poet.referee.replay import check
from poet.runtime.heap import keep_freed_memory
from poet.runtime.memory_info import memory_info
from poet.runtime.session import Session
from poet.runtime.step.executor import Executor
from poet.runtime.stores.base import Store
from poet.runtime.stores.file_store import CHUNK_BYTES, FileStore, buffers_bytes
from poet.runtime.stores.page_file import BLOCK_BYTES
from poet.tracer.program import Program
from poet.tracer.watch import Watch
from poet.values.graph import alike
from poet.values.plan import Plan
from poet.values.quantities import amount_text, bytes_text, parse_bytes
from poet.values.schedule import Effort, Goal, PageIn, PageOut

_log = logging.getLogger(__name__)
_CGROUP = Path("/sys/fs/cgroup")
_STORE_SHARE = 64
"""A store's buffers may take one part in so many of the budget: a few percent with all of them."""


_MOST_WAYS = 16
"""Ways of one kind of batch, by its values, whose plans are kept; the one not used longest goes."""
_MOST_VARIANTS = 4
"""States of the model whose steps are kept; the one that was not used for longest goes."""


class StepSource(Protocol):
    """How the step of a batch is captured, and what it depends on besides the batch."""

    def capture(self, batch: Any) -> Program: ...

    def key(self, batch: Any) -> Hashable: ...

    def watch(self) -> Watch: ...


class PlannedSteps:
    """Steps of a model within a budget. A folder for `store` becomes a page file of its own."""

    def __init__(
        self,
        source: StepSource,
        terms: Terms,
        example: Any,
        *,
        store: str | Path | Store | None = None,
        plan: Plan | None = None,
        minimize: Goal = "joules",
        time_limit: float = 20.0,
    ) -> None:
        keep_freed_memory()
        self._source, self._minimize = source, minimize
        self._effort = Effort(time_limit_seconds=time_limit, threads=cores())
        program = source.capture(example)
        self._watches = {0: source.watch()}
        self._variant = 0
        self._ways: dict[Hashable, list[int]] = {}
        """For each key the numbers of its ways, the one used last at the end."""
        self._beside_plans: dict[Hashable, Plan] = {}
        self._turn = threading.RLock()
        self._is_closed = False
        problem = problem_here(program)
        terms = in_bytes(problem, terms)
        if terms.ram is None:
            terms = msgspec.structs.replace(terms, ram=machine_bytes(program))
        self._owned: FileStore | None = None
        if isinstance(store, str | Path):
            store = self._owned = _opened(store, terms.ram)
        self._held = 0 if store is None else store.buffer_bytes
        try:
            self.session = self._begun(program, problem, terms, example, store, plan)
        except BaseException:  # nobody else can close it
            self._close_store()
            raise

    def _begun(
        self,
        program: Program,
        problem: Problem,
        terms: Terms,
        example: Any,
        store: Store | None,
        plan: Plan | None,
    ) -> Session:
        held = self._held
        terms = msgspec.structs.replace(terms, reserved_bytes=held)
        total = None if terms.ram in (None, MIN) else parse_bytes(terms.ram or 0, "RAM budget")
        if plan is None:
            plan = self._planned(problem, terms)
        else:
            _check_claims(plan)
        if total is not None and (plan.peak_bytes or 0) + held > total:
            raise Infeasible(
                f"the plan takes {plan.peak_bytes:,} bytes and the store's buffers {held:,}; there "
                f"are {total:,}. Plan again, or give "
                f"{ram_argument(self._whole_budget(plan.peak_bytes or 0))}",
                proven=False,
            )
        limit = plan.budget.ram_bytes
        if limit is None and total is not None:  # a plan without a limit, on a machine that has one
            limit = total - held
        self.budget_bytes = None if limit is None else limit + held
        # Other shapes have no measurements, and the same budget and places.
        self._terms = msgspec.structs.replace(
            terms,
            ram=limit,
            reserved_bytes=0,
            costs=None,
            machine=None,
            params=residency_of(plan),
        )
        return Session(program, plan, store, (*self.key(example), 0))

    def key(self, batch: Any, source: StepSource | None = None) -> tuple[int, Hashable]:
        """What needs a capture and a plan of its own: a state of the model, and a kind of batch."""
        return self._variant, (source or self._source).key(batch)

    @contextlib.contextmanager
    def alone(self) -> Iterator[Session]:
        """The session, for one thread at a time: a step changes the model that others would see."""
        if not self._turn.acquire(blocking=False):
            raise PoetError(
                "another thread is in a step of this model, or saves or loads it: one at a time. "
                "Give each thread a model of its own, or take turns with a lock"
            )
        try:
            if self._is_closed:
                raise PoetError("this trainer is closed: make a new one to go on")
            yield self.session
        finally:
            self._turn.release()

    def known(self, batch: Any, source: StepSource | None = None) -> Executor | None:
        """Who runs batches of this key, if that was planned already.

        Where the step depends on the values of its batch, that goes for those that go its way.
        """
        key = self.key(batch, source)
        ways = self._ways.setdefault(key, [0])
        for way in reversed(ways):
            known = self.session.executor((*key, way))
            if known is not None and known.program.takes(batch):
                if way != ways[-1]:
                    ways.remove(way)
                    ways.append(way)
                return known
        return None

    def _new_way(self, key: tuple[int, Hashable]) -> tuple[int, Hashable, int]:
        """What a batch is known by that goes none of the ways that are known for its key."""
        ways = self._ways.setdefault(key, [0])
        if self.session.executor((*key, 0)) is None and ways == [0]:
            return *key, 0
        ways.append(max(ways) + 1)
        if len(ways) > _MOST_WAYS:
            oldest = (*key, ways.pop(0))
            for each in self.session.plans:
                if isinstance(each, tuple) and each[:3] == oldest:
                    self.session.forget(each)
        return *key, ways[-1]

    def executor(
        self, batch: Any, source: StepSource | None = None, beside_bytes: int = 0
    ) -> Executor:
        """Who runs batches of this key, with the model as it is noticed to be; a new one is
        captured and planned first. Another `source` captures other steps of the same training.

        Where `beside_bytes` of the budget are taken, it runs by a plan for what is left.
        """
        known = self.known(batch, source)
        if known is not None:
            return self._beside(batch, known, beside_bytes) if beside_bytes else known
        session, key = self.session, self._new_way(self.key(batch, source))
        with session.unpaged():
            program = (source or self._source).capture(batch)
            session.program.counts = session.counts
            program.share_state(session.program)
            plan = _plan_of_alike(session.plans.values(), program)
            plan = plan or self._planned(problem_here(program), self._terms)
            program = program.for_plan(plan)
            if session.can_add(program):
                session.add(key, program, plan)
                return self.executor(batch, source, beside_bytes)
        self._begin_anew(key, program, plan)
        return self.executor(batch, source, beside_bytes)

    def _beside(self, batch: Any, whole: Executor, beside_bytes: int) -> Executor:
        key = (*self.key(batch), self._ways[self.key(batch)][-1], beside_bytes)
        known = self.session.executor(key)
        if known is not None:
            return known
        return self.session.add(key, whole.program, self.plan_beside(batch, whole, beside_bytes))

    def plan_beside(self, batch: Any, whole: Executor, beside_bytes: int) -> Plan:
        """A plan for the step that `whole` runs, which leaves so much of the budget to others."""
        limit = whole.plan.budget.ram_bytes
        if limit is None:
            return whole.plan
        key = (whole.program.fingerprint, beside_bytes)
        if key not in self._beside_plans:
            left = msgspec.structs.replace(self._terms, ram=max(1, limit - beside_bytes))
            plan = self._planned(problem_here(whole.program), left)
            # It runs in the whole budget, of which others have their part.
            budget = msgspec.structs.replace(plan.budget, ram_bytes=limit)
            self._beside_plans[key] = msgspec.structs.replace(plan, budget=budget)
        return self._beside_plans[key]

    def notice_changes(self) -> None:
        """Follow the model to the state it is in: one that is known, or a new one."""
        self.session.check_whole()
        what = self._watches[self._variant].change()
        if what is None:
            return
        known = [n for n, watch in self._watches.items() if watch.change() is None]
        if known:
            self._variant = known[0]
        else:
            _log.warning("capturing the step anew, because of a change: %s", what)
            self._variant = max(self._watches) + 1
        watch = self._watches.pop(self._variant, None) or self._source.watch()
        while len(self._watches) >= _MOST_VARIANTS:
            oldest = next(iter(self._watches))
            del self._watches[oldest]
            for key in self.session.plans:
                if isinstance(key, tuple) and key[0] == oldest:
                    self.session.forget(key)
        self._watches[self._variant] = watch  # last: used last

    def _begin_anew(self, key: Hashable, program: Program, plan: Plan) -> None:
        """Go on with other parameters, buffers or state than before."""
        old = self.session
        self.session = Session(program, plan, old.store, key)
        self.session.counts, self.session.peak_bytes = old.counts, old.peak_bytes
        self._watches = {self._variant: self._watches[self._variant]}

    def _planned(self, problem: Problem, terms: Terms) -> Plan:
        plan = plan_for(
            problem, terms, self._effort, self._minimize, whole_budget=self._whole_budget
        )
        if not plan.schedule:
            text = f"no plan within the budget: {plan.status}. {plan.reason}"
            if self._held:
                text += f" The store's buffers take {self._held:,} bytes beside that."
            if not terms.paging:
                text += ' Nothing is paged without a store: give a folder, store="pages/".'
            raise Infeasible(text, proven=plan.status == "infeasible")
        _log.info("%s", planned_text(plan, is_measured=terms.costs is not None))
        return plan

    def _whole_budget(self, nbytes: int) -> int:
        """The budget that leaves so many bytes beside the store's buffers, which may follow it."""
        total = nbytes + self._held
        while self._owned is not None and total - buffers_bytes(_chunk_bytes(total)) < nbytes:
            total = nbytes + buffers_bytes(_chunk_bytes(total))
        return total

    def close(self, bring_back: bool = True) -> None:
        """Bring parameters back into RAM, unless a step failed, and remove the page file."""
        if self._is_closed:
            return
        with self.alone() as session:
            self._is_closed = True
            try:
                session.close(bring_back)
            finally:
                self._close_store()

    def _close_store(self) -> None:
        if self._owned is not None:
            self._owned.close()


def _check_claims(plan: Plan) -> None:
    """Refuse a plan that says of itself what is not so; what it does, its executor checks."""
    for wrong in check(plan).mismatches:
        raise PoetError(
            f"the plan claims {wrong.field} {wrong.claimed}; its replay gives {wrong.replayed}. "
            "Plan again"
        )


def _plan_of_alike(plans: Iterable[Plan], program: Program) -> Plan | None:
    """A plan in hand for the same step with other numbers, such as a dropout rate."""
    for plan in plans:
        for graph in (program.graph, program.fused.graph):
            if alike(plan.graph, graph):
                costs = msgspec.structs.replace(plan.costs, graph=graph.fingerprint)
                return msgspec.structs.replace(plan, graph=graph, costs=costs)
    return None


def problem_here(program: Program) -> Problem:
    """A step to be planned for this machine, with what its kernels take here."""
    return Problem(
        program.graph,
        traced=program.traced,
        granularity=program.granularity,
        workspaces=partial(workspaces_here, device=program.model_device),
    )


def planned_text(plan: Plan, is_measured: bool) -> str:
    """A plan in one line, with its time where that was measured: else it is not this machine's."""
    outs, ins = (sum(isinstance(s, kind) for s in plan.schedule) for kind in (PageOut, PageIn))
    limit = plan.budget.ram_bytes
    of = ", no limit" if limit is None else f" of {bytes_text(limit)}"
    streamed = len(plan.streamed_runs)
    streams = f", {streamed} ops streamed" if streamed else ""
    time = f"; {amount_text(plan.seconds or 0.0, 's')} predicted" if is_measured else ""
    gap = "" if plan.gap is None else f", within {plan.gap:.1%} of the best in this op order"
    return (
        f"{plan.graph.name}: peak {bytes_text(plan.peak_bytes or 0)}{of}; "
        f"{plan.recomputed} ops recomputed, {outs} page-outs, {ins} page-ins{streams}{time}{gap}"
    )


def machine_bytes(program: Program) -> int:
    """The RAM or GPU memory that a step may take here: what is free, and what it holds already."""
    device = program.model_device
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)
    held = sum(t.untyped_storage().nbytes() for t in program.given(None).values())
    return free_bytes() + held


def free_bytes() -> int:
    """What this process may still allocate, by the machine's memory and its control group's."""
    free = memory_info().get("MemAvailable")
    if free is None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        most = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        reclaimable = int(dict(line.split() for line in lines)["inactive_file"])
    except (OSError, KeyError, ValueError):  # no group of its own, or no limit
        return free
    return min(free, max(0, most - used + reclaimable))


def _opened(folder: str | Path, ram: str | int | None) -> FileStore:
    """A store whose buffers take a few percent of the budget, and no more than they need."""
    nbytes = 0 if ram is None or ram == MIN else parse_bytes(ram, "RAM budget")
    return FileStore(folder, chunk_bytes=_chunk_bytes(nbytes))


def _chunk_bytes(ram_bytes: int) -> int:
    share = ram_bytes // _STORE_SHARE // BLOCK_BYTES * BLOCK_BYTES
    return max(4 * BLOCK_BYTES, min(share, CHUNK_BYTES))
