"""Correctness: FORMULATION 2 and 3 as rows, one function a numbered group."""

import numpy as np

from poet.planner.model.columns import Blocks
from poet.planner.model.matrix import Ints


def rows_2_out(b: Blocks) -> None:
    """2: an output is taken from a run; a load or drop happens only beside its reader's run."""
    builder = b.builder
    for v, variants in enumerate(b.variants):
        stages = int(b.last[v]) - v + 1
        if len(variants) > 1:
            once = builder.new_rows(stages, high=1.0)
            builder.row_low[-1][0] = 1.0
            for variant in variants:
                builder.add(once, variant.columns, 1.0)
        for i in b.graph.ops[v].outputs:
            if b.out[i] is variants[0].columns or not b.out[i].size:
                continue
            rows = builder.new_rows(stages, high=0.0)
            builder.row_low[-1][0] = 0.0
            builder.add(rows, b.out[i], 1.0)
            for variant in variants:
                if i not in variant.streamed_out:
                    builder.add(rows, variant.columns, -1.0)
        for i in b.graph.ops[v].inputs:
            for block in (b.load[i, v], b.drop[i, v]):
                rows = builder.new_rows(stages, high=0.0)
                builder.add(rows, block, 1.0)
                for variant in variants:
                    builder.add(rows, variant.columns, -1.0)


def rows_3_1_present(b: Blocks) -> None:
    """3.1: present when used, and not dropped before."""
    for v, variants in enumerate(b.variants):
        last = int(b.last[v])
        for i in b.graph.ops[v].inputs:
            rows = b.builder.new_rows(last - v + 1, high=0.0)
            rows = np.where(b.runs[v], rows, -1)
            for variant in variants:
                if i not in variant.streamed_in:
                    b.builder.add(rows, variant.columns, 1.0)
            b.add_drops(rows, i, v, last, 1.0, before=v)
            b.add_sources(rows, i, v, last, -1.0)
            b.add_loads(rows, i, v, last, -1.0, upto=v)


def rows_3_2_one_source(b: Blocks) -> None:
    """3.2: one source at most."""
    for i in range(len(b.graph.tensors)):
        low, high = int(b.first[i]) + 1, min(int(b.need[i]), b.count - 1)
        if low > high:
            continue
        rows = b.builder.new_rows(high - low + 1, high=1.0)
        rows = np.where(b.events(i)[low : high + 1], rows, -1)
        b.add_sources(rows, i, low, high, 1.0)
        b.add_loads(rows, i, low, high, 1.0)


def rows_3_3_from_somewhere(b: Blocks) -> None:
    """3.3: nothing from nowhere."""
    for i in range(len(b.graph.tensors)):
        low, high = max(0, int(b.first[i])), min(int(b.need[i]), b.count - 1)
        if low > high:
            continue
        rows = b.builder.new_rows(high - low + 1, high=0.0)
        rows = np.where(b.events(i)[low : high + 1], rows, -1)
        first = int(b.first[i])
        b.builder.add(rows, b.at_stages(b.keep[i], first + 1, low + 1, high + 1), 1.0)
        b.add_drops(rows, i, low, high, 1.0)
        b.add_sources(rows, i, low, high, -1.0)
        b.add_loads(rows, i, low, high, -1.0)


def rows_3_4_origin(b: Blocks) -> None:
    """3.4: a copy has one origin, and a loaded one implies a stored one."""
    builder = b.builder
    for i in range(len(b.graph.tensors)):
        first, need = int(b.first[i]), int(b.need[i])
        if b.store[i] < 0:
            continue
        low, high = max(0, first), min(need, b.count - 1)
        if low > high:
            continue
        happens = b.events(i)[low : high + 1]
        loads, makes, stored = (
            np.where(happens, builder.new_rows(high - low + 1, high=0.0), -1) for _ in range(3)
        )
        loaded_next = b.at_stages(b.loaded[i], first + 1, low + 1, high + 1)
        loaded_now = b.at_stages(b.loaded[i], first + 1, low, high)
        builder.add(loads, loaded_next, 1.0)
        builder.add(loads, loaded_now, -1.0)
        b.add_loads(loads, i, low, high, -1.0)
        builder.add(makes, b.at_stages(b.keep[i], first + 1, low + 1, high + 1), 1.0)
        builder.add(makes, loaded_next, -1.0)
        builder.add(makes, loaded_now, 1.0)
        b.add_sources(makes, i, low, high, -1.0)
        builder.add(stored, loaded_now, 1.0)
        b.add_loads(stored, i, low, high, 1.0)
        add_stored(b, stored, i, -1.0, np.arange(low, high + 1))


def add_stored(b: Blocks, rows: Ints, i: int, sign: float, stages: Ints | None = None) -> None:
    """Whether tensor i is in the store: written, or streamed there by a run of its producer.

    With `stages`, by the end of the stage that each row stands for. Not for tensors that start
    there.
    """
    b.builder.add(rows, np.full(rows.size, b.store[i]), sign)
    maker = int(b.first[i])
    if maker < 0:
        return
    for variant in b.variants[maker]:
        if i in variant.streamed_out:
            for offset, column in enumerate(variant.columns):
                late = rows if stages is None else np.where(stages >= maker + offset, rows, -1)
                b.builder.add(late, np.full(rows.size, column), sign)


def rows_3_5_ends(b: Blocks) -> None:
    """3.5: each tensor where it must be at the end."""
    builder = b.builder
    for i, place in b.budget.end.items():
        if i in b.stages.consumed:
            builder.new_rows(1, low=1.0)  # cannot be
            continue
        last_keep = b.at_stages(b.keep[i], int(b.first[i]) + 1, b.count, b.count)
        in_ram, in_store = place in ("ram", "both"), place in ("store", "both")
        if in_ram or place == "either":
            rows = builder.new_rows(1, low=1.0)
            builder.add(rows, last_keep, 1.0)
            builder.add(rows, b.end_load[[i]], 1.0)
            if place == "either":
                add_stored(b, rows, i, 1.0)
                if b.stored_at_start[i]:
                    builder.row_low[-1][0] = 0.0
        if in_store and not b.stored_at_start[i]:
            add_stored(b, builder.new_rows(1, low=1.0), i, 1.0)
        if b.end_load[i] >= 0 and not b.stored_at_start[i]:
            rows = builder.new_rows(1, high=0.0)
            builder.add(rows, b.end_load[[i]], 1.0)
            add_stored(b, rows, i, -1.0)
