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

from poet.planner.model.columns import Blocks
from poet.planner.model.matrix import Ints


def rows_3_9_cuts(b: Blocks) -> None:
    """3.9: rows for each of the stages in `b.cut_stages`."""
    if not b.cut_stages:
        return
    again, reload = _bought_back(b)
    for a in b.cut_stages:
        _rows_at(b, a, again, reload)


def _bought_back(b: Blocks) -> tuple[Ints, Ints]:
    """For each tensor a run and a load that the windows may have left out; -1 if nothing is."""
    count = len(b.graph.tensors)
    again: Ints = np.full(count, -1, dtype=np.int64)
    reload = again.copy()
    if b.makes is b.reads:
        return again, reload
    for i in range(count):
        v = int(b.first[i])
        if v >= 0 and b.last[v] > v:
            share = min(b.price_run(variant.run) for variant in b.variants[v])
            again[i] = b.builder.new_columns(1, cost=share / len(b.graph.ops[v].outputs))[0]
        if b.budget.paging:
            price = b.costs.tensors[i]
            cost = b.price(price.in_joules, 0.0, price.in_seconds)
            reload[i] = b.builder.new_columns(1, cost=cost)[0]
    return again, reload


def _rows_at(b: Blocks, a: int, again: Ints, reload: Ints) -> None:
    builder, count = b.builder, len(b.graph.tensors)
    alive = [i for i in range(count) if b.first[i] < a <= b.need[i]]
    seen: Ints = np.full(count, -1, dtype=np.int64)
    remade, fetched, held = seen.copy(), seen.copy(), seen.copy()
    must = [_must_be_seen(b, i, a) for i in range(count)]
    for i in alive:
        seen[i] = builder.new_columns(1, low=float(must[i]))[0]
        if b.first[i] >= 0 and b.last[int(b.first[i])] >= a:
            remade[i] = builder.new_columns(1)[0]
        if b.budget.paging:
            fetched[i] = builder.new_columns(1)[0]
        starts_stored = b.first[i] < 0 and b.budget.start[i] == "store" and a == 0
        held[i] = builder.new_columns(1, high=0.0 if starts_stored else 1.0)[0]
    if b.ram < np.inf:
        budget = builder.new_rows(1, high=b.ram)
        sizes = np.array([b.size[i] for i in alive])
        builder.add(np.full(len(alive), budget[0]), held[alive], sizes)
    for i in alive:
        keeps = builder.new_rows(1, high=0.0)
        builder.add(keeps, b.at_stages(b.keep[i], int(b.first[i]) + 1, a, a), 1.0)
        builder.add(keeps, held[[i]], -1.0)
        row = builder.new_rows(1, high=0.0)
        builder.add(row, seen[[i]], 1.0)
        builder.add(row, held[[i]], -1.0)
        builder.add(row, fetched[[i]], -1.0)
        builder.add(row, remade[[i]], -1.0)
        if fetched[i] >= 0:
            _rows_fetched(b, i, a, fetched[[i]], reload[[i]])
        if remade[i] >= 0:
            _rows_remade(b, i, a, remade[[i]], again[[i]], seen)


def _rows_fetched(b: Blocks, i: int, a: int, fetched: Ints, reload: Ints) -> None:
    from poet.planner.model.correctness import add_stored

    loads = b.builder.new_rows(1, high=0.0)
    b.builder.add(loads, fetched, 1.0)
    for v in b.graph.readers[i]:
        late = b.load[i, v][max(0, a - v) :]
        b.builder.add(np.full(late.size, loads[0]), late, -1.0)
    b.builder.add(loads, b.end_load[[i]], -1.0)
    b.builder.add(loads, reload, -1.0)
    if not b.stored_at_start[i]:
        stored = b.builder.new_rows(1, high=0.0)
        b.builder.add(stored, fetched, 1.0)
        add_stored(b, stored, i, -1.0)


def _rows_remade(b: Blocks, i: int, a: int, remade: Ints, again: Ints, seen: Ints) -> None:
    v = int(b.first[i])
    outs = b.builder.new_rows(1, high=0.0)
    b.builder.add(outs, remade, 1.0)
    late = b.out[i][max(0, a - v) :]
    b.builder.add(np.full(late.size, outs[0]), late, -1.0)
    b.builder.add(outs, again, -1.0)
    for j in b.graph.ops[v].inputs:
        if any(j in variant.streamed_in for variant in b.variants[v]):
            continue
        row = b.builder.new_rows(1, high=0.0)
        b.builder.add(row, remade, 1.0)
        b.builder.add(row, seen[[j]], -1.0)


def _must_be_seen(b: Blocks, i: int, a: int) -> bool:
    """Some op reads i from RAM in its first run in stage a or later, whatever its variant."""
    return any(
        v >= a and all(i not in variant.streamed_in for variant in b.variants[v])
        for v in b.graph.readers[i]
    )
