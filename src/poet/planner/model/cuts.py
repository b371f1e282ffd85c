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
    Σ bytes·held ≤ budget
    seen ≤ held + fetched + remade
    fetched ≤ store
    fetched ≤ Σ_{t≥a} load[t]
    remade ≤ Σ_{t≥a} out[t]
    remade ≤ seen of each input of its producer
    seen = 1 where the first run of an op from stage a on reads it

They tie a remade tensor to whole inputs, and those to theirs, down to what was kept or stored.

Where a window leaves out recomputations, a run outside of it loses its inputs, and with them what
brought those: keeps, which is why `held` may be more than keep, and runs and loads. The latter are
still paid for in any schedule, so here they may be bought back: once a tensor, at the price of one
run (or its share of one) or of one load.
"""

import numpy as np

from poet.planner.model.matrix import Ints
from poet.planner.model.relaxed import Relaxed


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
