"""Limits: the store's size, memory, deadline and streams; FORMULATION 3.6, 3.7, 4, 6, 7 as rows."""

import numpy as np

from poet.planner.model.columns import Blocks
from poet.planner.model.correctness import add_stored
from poet.planner.model.matrix import Ints


def rows_3_6_slots(b: Blocks) -> None:
    """3.6: a tensor written to the slot it shares makes the old one's copy unreadable.

    That nothing reads a consumed tensor in a later stage needs no row: no such variable exists.
    """
    for old, i in b.graph.heir.items():
        if b.first[i] < 0 or not b.budget.paging:
            continue
        after = int(b.first[i]) + 1
        for v in b.graph.readers[old]:
            late = b.load[old, v][max(0, after - v) :]
            rows = b.builder.new_rows(late.size, high=1.0)
            b.builder.add(rows, late, 1.0)
            add_stored(b, rows, i, 1.0)
            for variant in b.variants[v]:
                if old in variant.streamed_in:
                    late = variant.columns[max(0, after - v) :]
                    rows = b.builder.new_rows(late.size, high=1.0)
                    b.builder.add(rows, late, 1.0)
                    add_stored(b, rows, i, 1.0)
        if b.budget.end.get(old) in ("store", "both"):
            rows = b.builder.new_rows(1, high=0.0)
            add_stored(b, rows, i, 1.0)


def rows_3_7_store_size(b: Blocks) -> None:
    """3.7: the slots in use fit the store."""
    if b.budget.store_bytes is None or not b.budget.paging:
        return
    tensors, heir = b.graph.tensors, b.graph.heir
    taken = sum(t.nbytes for i, t in enumerate(tensors) if b.stored_at_start[i])
    limit = b.builder.new_rows(1, high=float(b.budget.store_bytes - taken))
    for i, tensor in enumerate(tensors):
        if b.stored_at_start[i] or tensor.becomes is not None:
            continue  # the slot is in use anyway, or counted with the tensor it belongs to
        used = b.builder.new_columns(1)
        b.builder.add(limit, used, tensor.nbytes)
        sharers = [i] if i not in heir else [i, heir[i]]
        for column in (c for j in sharers for c in _writers(b, j)):
            rows = b.builder.new_rows(1, high=0.0)
            b.builder.add(rows, np.array([column]), 1.0)
            b.builder.add(rows, used, -1.0)


def _writers(b: Blocks, i: int) -> list[int]:
    """The columns that put tensor i into the store."""
    columns = [int(b.store[i])]
    for variant in b.variants[int(b.first[i])] if b.first[i] >= 0 else []:
        if i in variant.streamed_out:
            columns += [int(c) for c in variant.columns]
    return [c for c in columns if c >= 0]


def rows_4_memory(b: Blocks) -> None:
    """4: what is in RAM while op v runs in stage t, by recurrence over the ops of the stage.

    An in-place output sits in the bytes of an input that was read from RAM, and its op runs only at
    the end of its own stage, so it brings nothing unless the input is streamed.
    """
    if b.ram == np.inf:
        return
    builder, count = b.builder, b.count
    runs = b.runs
    offset = np.concatenate(([0], np.cumsum([r.size for r in runs])))
    flat = np.concatenate(runs)
    used = np.full(flat.size, -1, dtype=np.int64)
    used[flat] = builder.new_columns(int(flat.sum()), high=b.ram)
    level = builder.new_rows(flat.size, high=0.0)

    # For each pair (t, v): the pair of the next op in the same stage; and each stage's first pair.
    stage = np.concatenate([np.arange(v, v + r.size) for v, r in enumerate(runs)])
    op = np.repeat(np.arange(count), [r.size for r in runs])
    there = np.flatnonzero(flat)
    order = there[np.lexsort((op[there], stage[there]))]
    follows = np.full(flat.size, -1, dtype=np.int64)
    same = stage[order[1:]] == stage[order[:-1]]
    follows[order[:-1][same]] = order[1:][same]
    opens = np.full(count, -1, dtype=np.int64)
    starts = np.concatenate(([True], ~same)) if order.size else np.zeros(0, bool)
    opens[stage[order[starts]]] = order[starts]

    # level: everything brought minus everything dropped, minus used ≤ 0
    builder.add(level, used, -1.0)
    passed = follows >= 0
    builder.add(level[follows[passed]], used[passed], 1.0)
    for i, size in enumerate(b.size):
        if size == 0:
            continue
        first = int(b.first[i])
        keep = b.keep[i][: max(0, count - 1 - first)]
        stages = np.arange(first + 1, first + 1 + keep.size)
        builder.add(level[opens[stages]], keep, size)
        if first >= 0:
            brings = level[offset[first] : offset[first + 1]]
            builder.add(brings, b.out[i], size)
            for pair in b.graph.ops[first].in_place:
                if pair.output == i:
                    for variant in b.variants[first]:
                        if i not in variant.streamed_out and pair.input not in variant.streamed_in:
                            builder.add(brings[:1], variant.columns[:1], -size)
        for v in b.graph.readers[i]:
            pairs = np.arange(offset[v], offset[v + 1])
            builder.add(level[pairs], b.load[i, v], size)
            after = follows[pairs]
            builder.add(np.where(after >= 0, level[after], -1), b.drop[i, v], -size)

    _rows_workspace(b, used, offset)


def _rows_workspace(b: Blocks, used: Ints, offset: Ints) -> None:
    """4: used + workspace + outputs that are not taken ≤ budget, where that says more than used."""
    for v, variants in enumerate(b.variants):
        block = used[offset[v] : offset[v + 1]]
        extra = [
            (variant.columns, variant.run.workspace_bytes / b.unit_bytes)
            for variant in variants
            if variant.run.workspace_bytes
        ]
        for i in b.graph.ops[v].outputs:
            if b.size[i] and not any(b.out[i] is variant.columns for variant in variants):
                extra.append((b.out[i], -b.size[i]))
                extra += [
                    (variant.columns, b.size[i])
                    for variant in variants
                    if i not in variant.streamed_out
                ]
        if not extra:
            continue
        rows = b.builder.new_rows(block.size, high=b.ram)
        rows = np.where(b.runs[v], rows, -1)
        b.builder.add(rows, block, 1.0)
        for columns, size in extra:
            b.builder.add(rows, columns, size)


def rows_6_deadline(b: Blocks) -> None:
    """6: compute seconds, and with serial transfers theirs too, end before the deadline."""
    deadline = b.budget.deadline_seconds
    if deadline is None:
        return
    builder, serial = b.builder, b.budget.transfers == "serial"
    unit = deadline or 1.0
    row = builder.new_rows(1, high=deadline / unit * (1 + 1e-9))

    def add(columns: Ints, seconds: float) -> None:
        if seconds:
            builder.add(np.full(columns.size, row[0]), columns, seconds / unit)

    for variants in b.variants:
        for variant in variants:
            streams = (*variant.run.reads, *variant.run.writes)
            moving = sum(stream.seconds for stream in streams) if serial else 0.0
            add(variant.columns, variant.run.seconds + moving)
    if serial:
        for (i, _), block in b.load.items():
            add(block, b.costs.tensors[i].in_seconds)
        for i, price in enumerate(b.costs.tensors):
            add(b.store[[i]], price.out_seconds)
            add(b.end_load[[i]], price.in_seconds)


def rows_7_streams(b: Blocks) -> None:
    """7: what a variant streams in is in the store."""
    for v, variants in enumerate(b.variants):
        for variant in variants:
            for i in variant.streamed_in:
                if not b.stored_at_start[i]:
                    rows = b.builder.new_rows(variant.columns.size, high=0.0)
                    b.builder.add(rows, variant.columns, 1.0)
                    add_stored(b, rows, i, -1.0, np.arange(v, v + rows.size))
