"""Cuts through a stage: what is used after it was kept into it, loaded, or made from such tensors.

FORMULATION 3.9, an addition of ours. In a fractional solution a tenth of a tensor, kept for ten
stages, can make a tenth of its reader in each of them, and gather a whole copy from a tenth of the
input. No schedule can. So at a chosen stage a, for each tensor made before a that may matter later,
read as 0 or 1:

    held      it is in RAM when stage a begins
    fetched   it is loaded in stage a or later
    remade    it is made again in stage a or later
    seen      it is in RAM at some time from stage a on

and these rows hold for every schedule:

    keep[a] ≤ held
    Σ bytes·held ≤ budget, and with what op a-1 takes beside what it does not touch
    seen ≤ held + fetched + remade
    fetched ≤ store
    fetched ≤ Σ_{t≥a} load[t]
    remade ≤ Σ_{t≥a} out[t]
    remade ≤ seen of each input of its producer
    seen = 1 where the first run of an op from stage a on reads it

They tie a remade tensor to whole inputs, and those to theirs, down to what was kept or stored.

Where transfers run beside compute (relaxed_time.py), `held` counts a page-in from its issue and a
page-out until its end, as the referee does, and there are two rows more: what is fetched crosses
after the cut, and what is seen, but neither held nor remade, was written before it.

Where a window leaves out recomputations, a run outside of it loses its inputs, and with them what
brought those: keeps, which is why `held` may be more than keep, and runs and loads. The latter are
still paid for in any schedule, so here they may be bought back: once a tensor, at the price of one
run (or its share of one) or of one load.
"""

from typing import NamedTuple

import numpy as np

from poet.planner.model.matrix import Ints
from poet.planner.model.relaxed import NOTHING, Relaxed
from poet.planner.proof.floor import working_set_bytes

SINCE = 16
"""So many stages, evenly spread, from which on what was written before a cut is looked at."""


def rows_3_9_cuts(r: Relaxed) -> None:
    """3.9: rows for each of the stages in `r.cut_stages`."""
    if not r.cut_stages:
        return
    again, reload = _bought_back(r)
    for a in r.cut_stages:
        _rows_at(r, a, again, reload)


def _bought_back(r: Relaxed) -> tuple[Ints, Ints]:
    """For each tensor a run and a load that the windows may have left out; -1 if nothing is."""
    count = len(r.graph.tensors)
    again: Ints = np.full(count, -1, dtype=np.int64)
    reload = again.copy()
    if r.makes is r.reads:
        return again, reload
    for i in range(count):
        v = int(r.first[i])
        if v >= 0 and r.last[v] > v:
            share = min(r.price_run(way.run) for way in r.ways[v])
            again[i] = r.builder.new_columns(1, cost=share / len(r.graph.ops[v].outputs))[0]
        if r.budget.paging:
            reload[i] = r.builder.new_columns(1, cost=r.price_load(i))[0]
    return again, reload


def _rows_at(r: Relaxed, a: int, again: Ints, reload: Ints) -> None:
    builder, count = r.builder, len(r.graph.tensors)
    alive = [i for i in range(count) if r.first[i] < a <= r.need[i]]
    seen: Ints = np.full(count, -1, dtype=np.int64)
    remade, fetched, held = seen.copy(), seen.copy(), seen.copy()
    must = [_must_be_seen(r, i, a) for i in range(count)]
    for i in alive:
        seen[i] = builder.new_columns(1, low=float(must[i]))[0]
        if r.first[i] >= 0 and r.last[int(r.first[i])] >= a:
            remade[i] = builder.new_columns(1)[0]
        if r.budget.paging:
            fetched[i] = builder.new_columns(1)[0]
        starts_stored = r.first[i] < 0 and r.budget.start[i] == "store" and a == 0
        held[i] = builder.new_columns(1, high=0.0 if starts_stored else 1.0)[0]
    if r.ram < np.inf:
        budget = builder.new_rows(1, high=r.ram)
        sizes = np.array([r.size[i] for i in alive])
        builder.add(np.full(len(alive), budget[0]), held[alive], sizes)
        if a:
            _row_beside(r, a - 1, alive, held)
    for i in alive:
        keeps = builder.new_rows(1, high=0.0)
        builder.add(keeps, r.keep_at(i, a, a), 1.0)
        builder.add(keeps, held[[i]], -1.0)
        row = builder.new_rows(1, high=0.0)
        builder.add(row, seen[[i]], 1.0)
        builder.add(row, held[[i]], -1.0)
        builder.add(row, fetched[[i]], -1.0)
        builder.add(row, remade[[i]], -1.0)
        if fetched[i] >= 0:
            _rows_fetched(r, i, a, fetched[[i]], reload[[i]])
        if remade[i] >= 0:
            _rows_remade(r, i, a, remade[[i]], again[[i]], seen)
    if r.time.ends.size and r.budget.paging:
        _rows_time(r, a, alive, Cut(seen, held, remade, fetched))


def _row_beside(r: Relaxed, v: int, alive: list[int], held: Ints) -> None:
    """What is held after the first run of op v was there beside it, but for what v brought."""
    op = r.graph.ops[v]
    usable = [way.run for way in r.ways[v]]
    takes = min(working_set_bytes(r.graph, op, run) for run in usable)
    besides = {i for each in r.graph.ops for i in each.consumed if i in r.pinned}
    besides.update(op.inputs, op.outputs)
    there = [i for i in alive if i not in besides]
    row = r.builder.new_rows(1, high=r.ram - r.units(takes))
    sizes = np.array([r.size[i] for i in there])
    r.builder.add(np.full(len(there), row[0]), held[there], sizes)


class Cut(NamedTuple):
    """The columns of a cut, by tensor."""

    seen: Ints
    held: Ints
    remade: Ints
    fetched: Ints


def _rows_time(r: Relaxed, a: int, alive: list[int], cut: Cut) -> None:
    """What is fetched after the cut crosses after it; what is seen after it, and neither held nor
    remade, was written before it, and after it was made; so was what is of no use after it.

    Nothing is issued while op a-1 runs, so what it does not touch was written before it began.
    """
    builder, time = r.builder, r.time
    after = builder.new_rows(1, high=0.0)
    began = time.ends[a - 1 : a] if a else NOTHING
    builder.add(after, time.ends[-1:], -1.0)
    builder.add(after[: began.size], began, 1.0)
    touched = (*r.graph.ops[a - 1].inputs, *r.graph.ops[a - 1].outputs) if a else ()
    outs: list[tuple[int, Ints, float]] = []
    ins: list[tuple[Ints, float]] = []
    for i, price in enumerate(r.costs.tensors):
        into, out = time.crossing(price.in_seconds), time.crossing(price.out_seconds)
        if r.first[i] >= a:  # made after the cut, and so loaded after it
            builder.add(np.full(r.load[i].size, after[0]), r.load[i], into)
        if 0 <= r.need[i] < a and i not in r.budget.end:  # written and loaded before it, if at all
            outs.append((int(r.first[i]), r.store[[i]], out))
            ins.append((r.load[i], into))
    for i in alive:
        price = r.costs.tensors[i]
        into, out = time.crossing(price.in_seconds), time.crossing(price.out_seconds)
        builder.add(after, cut.fetched[[i]], into)
        if r.stored_at_start[i] or len(r.writers(i)) != 1 or i in touched:
            continue
        gone, row = builder.new_columns(1), builder.new_rows(1, high=0.0)
        builder.add(row, gone, -1.0)
        builder.add(row, cut.seen[[i]], 1.0)
        builder.add(row, cut.held[[i]], -1.0)
        builder.add(row, cut.remade[[i]], -1.0)
        outs.append((int(r.first[i]), gone, out))
    time.page_in.append((int(after[0]), 1.0 / time.transfer_speed))
    makers = sorted({maker for maker, _, _ in outs if maker >= 0})
    for since in (-1, *makers[:: -(-len(makers) // SINCE) or 1]) if a else ():
        before = builder.new_rows(1, high=0.0)
        if since >= 0:
            builder.add(before, time.ends[[since]], 1.0)
        if since < a - 1:
            for way in r.ways[a - 1]:
                builder.add(before, way.columns[:1], way.run.seconds / time.unit_seconds)
        builder.add(before, began, -1.0)
        for maker, column, took in outs:
            if maker >= since:
                builder.add(before, column, took)
        for columns, took in ins if since < 0 and not r.costs.duplex else ():
            builder.add(np.full(columns.size, before[0]), columns, took)
        time.page_out.append((int(before[0]), 1.0 / time.transfer_speed))


def _rows_fetched(r: Relaxed, i: int, a: int, fetched: Ints, reload: Ints) -> None:
    loads = r.builder.new_rows(1, high=0.0)
    r.builder.add(loads, fetched, 1.0)
    late = r.load[i][max(0, a - 1 - int(r.first[i])) :]
    r.builder.add(np.full(late.size, loads[0]), late, -1.0)
    r.builder.add(loads, reload, -1.0)
    if not r.stored_at_start[i]:
        stored = r.builder.new_rows(1, high=0.0)
        r.builder.add(stored, fetched, 1.0)
        r.add_stored(stored, i, -1.0)


def _rows_remade(r: Relaxed, i: int, a: int, remade: Ints, again: Ints, seen: Ints) -> None:
    v = int(r.first[i])
    outs = r.builder.new_rows(1, high=0.0)
    r.builder.add(outs, remade, 1.0)
    late = r.out[i][max(0, a - v) :]
    r.builder.add(np.full(late.size, outs[0]), late, -1.0)
    r.builder.add(outs, again, -1.0)
    for j in r.graph.ops[v].inputs:
        if any(j in way.reads for way in r.ways[v]):
            continue
        row = r.builder.new_rows(1, high=0.0)
        r.builder.add(row, remade, 1.0)
        r.builder.add(row, seen[[j]], -1.0)


def _must_be_seen(r: Relaxed, i: int, a: int) -> bool:
    """Some op reads i from RAM in its first run in stage a or later, whatever its variant, or it
    must be there when the step ends."""
    return i in r.reach.wanted or any(
        v >= a and all(i not in way.reads for way in r.ways[v]) for v in r.graph.readers[i]
    )
