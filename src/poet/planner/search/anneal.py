"""Local search for schedules: simulated annealing over stage-structured schedules.

The search itself is C (csrc/anneal.c, which says how it works; built by compiled.py). This module
flattens graph, costs and budget into arrays, turns a schedule into the search's choices (what is
kept into each stage, what is loaded and what recomputed, in which variant ops run), and turns the
best state found back into instructions.

Under `overlap` the search counts compute seconds alone and RAM as if transfers were over at once;
the caller has to time what it gets with the referee. It proves nothing.
"""

import ctypes
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from poet.planner.proof.floor import pinned_beside, working_set_bytes
from poet.planner.search import compiled
from poet.planner.search.choices import Choices
from poet.planner.search.reruns import Reruns
from poet.values.device import PLAIN, Costs, Run
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, Free, Instruction, PageIn, PageOut, Schedule

GREEDY_SECONDS = 0.25
"""By the clock, so long a greedy start may take: 0.03 s for 769 ops where RAM is not scarce, and
where it is, annealing from a bad start is worth more than a good one."""
_NO_LIMIT_BYTES = 2**62
_ENDS = {"ram": 1, "store": 2, "both": 3, "either": 4}
_WRITTEN_LAST = 3
"""Added to the code of an end: `store` and `both`, written when the step ends and not before."""
_CODES = {"q": ctypes.c_int64, "d": ctypes.c_double, "i": ctypes.c_int32, "B": ctypes.c_uint8}
_FIELDS = """
    nbytes:q in_joules:d in_seconds:d out_joules:d out_seconds:d producer:i consumed_by:i
    last_keep:i load_from:i load_to:i slot:i pinned:B start_ram:B start_stored:B end:B rerun_to:i
    rerun_if_kept:i inputs_at:i inputs:i outputs_at:i outputs:i seat:i variants_at:i again_at:i
    again:i run_joules:d run_seconds:d workspace:q reads_at:i reads:i writes_at:i writes:i
    pairs:i"""
"""The arrays of `problem` in anneal.c, in its order, with the codes of their elements."""
_ARRAYS: dict[str, Any] = {
    name: _CODES[code] for name, code in (field.split(":") for field in _FIELDS.split())
}


class _Problem(ctypes.Structure):
    """`problem` of anneal.c: the same fields in the same order."""

    _fields_ = [
        ("ram_bytes", ctypes.c_int64),
        ("store_bytes", ctypes.c_int64),
        ("deadline_seconds", ctypes.c_double),
        ("n_ops", ctypes.c_int32),
        ("n_tensors", ctypes.c_int32),
        ("n_pairs", ctypes.c_int32),
        ("makes_early", ctypes.c_int32),
        *((name, ctypes.POINTER(element)) for name, element in _ARRAYS.items()),
    ]


class Annealer:
    """A search for one problem. One thread at a time may run it; any may call `stop`."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        library = compiled.load()
        if library is None:
            raise RuntimeError(
                f"no C compiler among {', '.join(compiled.COMPILERS)} could build the local search"
            )
        self._library = library
        self._graph, self._costs, self._budget = graph, costs, budget
        self._flat = _FlatProblem(graph, costs, budget)
        self._search = library.poet_anneal_new(ctypes.byref(self._flat.problem))
        if not self._search:
            raise MemoryError("the local search got no memory")
        weakref.finalize(self, library.poet_anneal_free, self._search)
        self._words = len(graph.tensors) // 64 + 1
        self.moves_done = 0  # by the last run

    def greedy(self, seconds: float = GREEDY_SECONDS) -> Schedule | None:
        """A valid schedule found in milliseconds, or None if this way finds none.

        The same every time, as long as `seconds` do not cut it off.
        """
        possible = self._flat.possible
        found = possible and self._library.poet_anneal_greedy(self._search, seconds)
        return self._best() if found else None

    def run(
        self, start: Schedule | None, *, seconds: float, moves: int | None = None, seed: int = 0
    ) -> Schedule | None:
        """The best valid schedule found, `start` itself if none is better; None if there is none.

        Deterministic for a seed and a number of `moves`, as long as `seconds` does not cut it off.
        """
        if not self._flat.possible:
            return start
        until = time.monotonic() + seconds
        if start is not None:
            self._set(start)
        else:
            patience = seconds if moves is not None else min(GREEDY_SECONDS, seconds)
            if self._library.poet_anneal_greedy(self._search, patience):
                self._library.poet_anneal_restore(self._search)
        done = ctypes.c_int64()
        limit = -1 if moves is None else moves
        found = self._library.poet_anneal_run(
            self._search, until - time.monotonic(), limit, seed % 2**64, ctypes.byref(done)
        )
        self.moves_done = done.value
        best = self._best() if found else None
        if best is None or start is None:
            return best
        return best if self.joules(best) < self.joules(start) else start

    def lean(
        self, keep: list[int], load: list[int], *, seconds: float, moves: int | None, seed: int = 0
    ) -> Schedule | None:
        """The best schedule found from such choices, one row of bits a stage; None if none is."""
        if not self._flat.possible:
            return None
        self._give((keep, load, [0] * len(load)), None)
        done = ctypes.c_int64()
        limit = -1 if moves is None else moves
        found = self._library.poet_anneal_lean(
            self._search, seconds, limit, seed % 2**64, ctypes.byref(done)
        )
        return self._best() if found else None

    def represented(self, schedule: Schedule) -> Schedule | None:
        """A schedule as the search sees it: the same for one with stages, else what comes nearest;
        None where that is not valid."""
        if not self._flat.possible:
            return None
        self._set(schedule)
        done = ctypes.byref(ctypes.c_int64())
        found = self._library.poet_anneal_run(self._search, 1.0, 0, 0, done)
        return self._best() if found else None

    def stop(self) -> None:
        """End the run under way, and any later one at once: each returns the best it has."""
        self._library.poet_anneal_stop(self._search, 1)

    def joules(self, schedule: Schedule) -> float:
        """The energy the search minimises; under `serial` and `free` it is the referee's."""
        total, flat = 0.0, self._flat
        for step in schedule:
            if isinstance(step, Compute):
                total += flat.run_joules(self._costs.ops[step.op][step.variant])
            elif isinstance(step, PageOut):
                total += flat.columns["out_joules"][step.tensor]
            elif isinstance(step, PageIn):
                total += flat.columns["in_joules"][step.tensor]
        return total

    def counted(self) -> tuple[Schedule, float, int]:
        """The best state of the last run as it stands, with the joules and the RAM while ops run
        as the search counted them: for who wants to know whether it counts like the referee."""
        peak = ctypes.c_int64()
        joules = self._library.poet_anneal_counted(self._search, ctypes.byref(peak))
        return tuple(self._instructions(self._emitted())), joules, peak.value

    def _best(self) -> Schedule | None:
        emitted = self._emitted()
        return self._schedule(emitted) if emitted else None

    def _emitted(self) -> list[int]:
        """The best state as triples of numbers; none if there is no such state."""
        empty = (ctypes.c_int32 * 1)()
        count = self._library.poet_anneal_emit(self._search, empty, 0)
        triples = (ctypes.c_int32 * (3 * count + 1))()
        if not count or self._library.poet_anneal_emit(self._search, triples, count) != count:
            return []
        return list(triples[: 3 * count])

    def _schedule(self, triples: Iterable[int]) -> Schedule:
        """What the search emits, as a schedule."""
        return _freed_early(self._graph, self._instructions(triples))

    def _instructions(self, triples: Iterable[int]) -> Iterator[Instruction]:
        steps = iter(triples)
        for what, which, variant in zip(steps, steps, steps, strict=True):
            if what:
                yield (PageOut, PageIn, Free)[what - 1](which)
            else:
                yield Compute(which, self._flat.variant_names[variant])

    def _set(self, schedule: Schedule) -> None:
        """Make the search start from the choices nearest to a schedule."""
        choices = Choices(self._graph, self._costs, self._budget, schedule)
        rows = (choices.keep, choices.page, choices.early)
        self._give(rows, choices)

    def _give(self, rows: tuple[list[int], ...], choices: Choices | None) -> None:
        keep, page, early = rows
        first, again = self._flat.variants_used(choices)
        self._library.poet_anneal_set(
            self._search,
            _as_words(keep, self._words),
            _as_words(page, self._words),
            _as_words(early, self._words),
            (ctypes.c_int32 * len(first))(*first),
            (ctypes.c_int32 * len(again))(*again),
        )


def _freed_early(graph: Graph, schedule: Iterable[Instruction]) -> Schedule:
    """The same schedule with each free right after the last instruction that touches its tensor."""
    keyed: list[tuple[tuple[int, int], Instruction]] = []
    last_touch, count = [0] * len(graph.tensors), 0
    for step in schedule:
        if isinstance(step, Free):
            keyed.append(((last_touch[step.tensor], step.tensor + 1), step))
            continue
        count += 1
        keyed.append(((count, 0), step))
        if isinstance(step, Compute):
            touched = (*graph.ops[step.op].inputs, *graph.ops[step.op].outputs)
        else:
            touched = (step.tensor,)
        for i in touched:
            last_touch[i] = count
    return tuple(step for _, step in sorted(keyed, key=lambda pair: pair[0]))


def _as_words(rows: list[int], words: int) -> ctypes.Array[ctypes.c_uint64]:
    flat = [row >> 64 * w & (2**64 - 1) for row in rows for w in range(words)]
    return (ctypes.c_uint64 * len(flat))(*flat)


class _FlatProblem:
    """Graph, costs and budget as the arrays of anneal.c."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        self.graph, self.costs, self.budget = graph, costs, budget
        self.serial = budget.transfers == "serial"
        self.columns: dict[str, list[Any]] = {name: [] for name in _ARRAYS}
        self.variant_names: list[str] = []
        self.reruns = Reruns(graph, budget)
        self.consumed_by = self.reruns.consumed_by
        self.beside = pinned_beside(graph, budget)
        self.add_ops()
        self.add_tensors()
        self.possible = self.is_possible()
        ram, store, deadline = budget.ram_bytes, budget.store_bytes, budget.deadline_seconds
        self.problem = _Problem(
            ram_bytes=_NO_LIMIT_BYTES if ram is None else ram,
            store_bytes=_NO_LIMIT_BYTES if store is None else store,
            # Well inside the referee's tolerance: sums in another order differ in the last bits.
            deadline_seconds=1e300 if deadline is None else deadline * (1 + 1e-10),
            n_ops=len(graph.ops),
            n_tensors=len(graph.tensors),
            n_pairs=len(self.columns["pairs"]) // 2,
            makes_early=self.reruns.of_consumed,
        )
        for name, element in _ARRAYS.items():
            column = self.columns[name]
            setattr(self.problem, name, (element * (len(column) + 1))(*column))

    def run_seconds(self, run: Run) -> float:
        streams = sum(stream.seconds for stream in (*run.reads, *run.writes))
        return run.seconds + (streams if self.serial else 0.0)

    def run_joules(self, run: Run) -> float:
        return run.joules + run.stream_joules + self.costs.idle_watts * self.run_seconds(run)

    def add_ops(self) -> None:
        for name in ("inputs_at", "outputs_at", "variants_at", "again_at", "reads_at", "writes_at"):
            self.columns[name].append(0)
        for k, op in enumerate(self.graph.ops):
            seats = {pair.output: pair.input for pair in op.in_place}
            self.columns["inputs"].extend(op.inputs)
            self.columns["outputs"].extend(op.outputs)
            self.columns["seat"].extend(seats.get(i, -1) for i in op.outputs)
            self.add_variants(k)
            self.close_op()
        self.add_end()
        self.columns["rerun_to"].extend((*self.reruns.to, -1))
        self.columns["rerun_if_kept"].extend((*self.reruns.if_kept, -1))

    def add_end(self) -> None:
        """The made-up op of the step's end: it reads all that must end in RAM, and what was made
        again after it was consumed, to write it where it must end in the store."""
        wanted = [
            i
            for i, place in sorted(self.budget.end.items())
            if place in ("ram", "both") or self.is_written_last(i)
        ]
        last = [self.costs.tensors[i] for i in wanted if self.is_written_last(i)]
        self.columns["inputs"].extend(wanted)
        seconds = sum(price.out_seconds for price in last) if self.serial else 0.0
        self.add_variant("", Run(seconds=seconds, joules=sum(price.out_joules for price in last)))
        self.close_op()

    def is_consumed(self, i: int) -> bool:
        return self.consumed_by[i] < len(self.graph.ops)

    def is_written_last(self, i: int) -> bool:
        """Whether tensor i must end in the store, and is written when the step ends: a copy from
        before it was consumed is no longer good."""
        return self.is_consumed(i) and self.budget.end.get(i) in ("store", "both")

    def end_code(self, i: int) -> int:
        place = self.budget.end.get(i, "")
        return _ENDS.get(place, 0) + (_WRITTEN_LAST if self.is_written_last(i) else 0)

    def close_op(self) -> None:
        for name in ("inputs", "outputs", "again"):
            self.columns[f"{name}_at"].append(len(self.columns[name]))
        self.columns["variants_at"].append(len(self.variant_names))

    def add_variants(self, k: int) -> None:
        """The cheapest that fits by itself first: the search starts from it."""
        limit, op, beside = self.budget.ram_bytes, self.graph.ops[k], self.beside[k]
        usable = [
            (name, run)
            for name, run in self.costs.ops[k].items()
            if self.budget.paging or not (run.reads or run.writes)
        ]

        def rank(item: tuple[str, Run]) -> tuple[bool, float, bool]:
            name, run = item
            too_big = limit is not None and working_set_bytes(self.graph, op, run, beside) > limit
            return too_big, self.run_joules(run), name != PLAIN

        for name, run in sorted(usable, key=rank):
            self.add_variant(name, run)

    def add_variant(self, name: str, run: Run) -> None:
        if not run.writes:
            self.columns["again"].append(len(self.variant_names))
        self.variant_names.append(name)
        self.columns["run_joules"].append(self.run_joules(run))
        self.columns["run_seconds"].append(self.run_seconds(run))
        self.columns["workspace"].append(run.workspace_bytes)
        for side, streams in (("reads", run.reads), ("writes", run.writes)):
            self.columns[side].extend(stream.tensor for stream in streams)
            self.columns[f"{side}_at"].append(len(self.columns[side]))

    def add_tensors(self) -> None:
        graph, budget, columns = self.graph, self.budget, self.columns
        idle = self.costs.idle_watts if self.serial else 0.0
        pinned = frozenset(budget.pinned)
        for i, (tensor, price) in enumerate(zip(graph.tensors, self.costs.tensors, strict=True)):
            maker = graph.producer[i]
            columns["nbytes"].append(tensor.nbytes)
            columns["in_joules"].append(price.in_joules + idle * price.in_seconds)
            columns["out_joules"].append(price.out_joules + idle * price.out_seconds)
            columns["in_seconds"].append(price.in_seconds if self.serial else 0.0)
            columns["out_seconds"].append(price.out_seconds if self.serial else 0.0)
            columns["producer"].append(-1 if maker is None else maker)
            columns["consumed_by"].append(self.consumed_by[i])
            columns["last_keep"].append(self.reruns.last_keep[i])
            columns["load_from"].append(0 if maker is None else maker + 1)
            columns["load_to"].append(self.load_to(i, graph.heir.get(i)))
            columns["slot"].append(graph.slot[i])
            columns["pinned"].append(i in pinned)
            columns["start_ram"].append(budget.start.get(i) in ("ram", "both"))
            columns["start_stored"].append(budget.start.get(i) in ("store", "both"))
            columns["end"].append(self.end_code(i))
        for old, heir in graph.heir.items():
            made = graph.producer[heir]
            if made is not None and self.consumed_by[old] > made:
                columns["pairs"].extend((old, heir))

    def load_to(self, i: int, heir: int | None) -> int:
        """The last stage in which the store can hold a good copy of tensor i; -1 if never."""
        stored, old, end = ("store", "both"), self.graph.tensors[i].becomes, self.budget.end
        if not self.budget.paging or (old is not None and end.get(old) in stored):
            return -1
        if heir is not None and end.get(heir) in stored:
            return min(self.consumed_by[i], self.graph.producer[heir] or 0)
        return self.consumed_by[i]

    def is_possible(self) -> bool:
        """Whether start and end can be met at all by what this search can express."""
        budget, nbytes = self.budget, self.columns["nbytes"]
        held = sum(nbytes[i] for i, place in budget.start.items() if place != "store")
        if budget.ram_bytes is not None and held > budget.ram_bytes:
            return False
        stored = {i for i, place in budget.start.items() if place != "ram"}
        return all(
            self.reruns.there_until(i) == len(self.graph.ops)
            and (place in ("ram", "either") or budget.paging or i in stored)
            for i, place in budget.end.items()
        )

    def variants_used(self, choices: Choices | None) -> tuple[list[int], list[int]]:
        """The numbers of the variants that a schedule uses, for first and later runs; without one
        the usual."""
        at, again_at = self.columns["variants_at"], self.columns["again_at"]
        named = ({}, {}) if choices is None else (choices.first, choices.again)
        first, again = [], []
        for k in range(len(at) - 1):
            number = {self.variant_names[n]: n for n in range(at[k], at[k + 1])}
            allowed = self.columns["again"][again_at[k] : again_at[k + 1]]
            first.append(number.get(named[0].get(k, ""), at[k]))
            later = number.get(named[1].get(k, ""), allowed[0])
            again.append(later if later in allowed else allowed[0])
        return first, again
