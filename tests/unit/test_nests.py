"""Nests: what a search remembers of tiles is what each of them takes and moves."""

from itertools import permutations
from random import Random

from poet.calls.operands import Operand, row_major
from poet.calls.pieces.nest import (
    RUN_BYTES,
    Held,
    Nest,
    _sizes,
    _Tiles,
    best_nest,
    held_bytes,
    is_possible,
    moved,
)
from poet.calls.pieces.space import Along, Axis, Side


def random_held(rng: Random, axes: tuple[Axis, ...]) -> tuple[Held, ...]:
    """Sides that follow some of the axes, densely, with steps, or with a halo."""
    held = []
    for n in range(rng.randint(1, 4)):
        shape: list[int] = []
        reach: list[Along | None] = []
        for a in rng.sample(range(len(axes)), rng.randint(1, len(axes))):
            step, halo = rng.choice(((1, 0), (1, 0), (2, 0), (1, 2)))
            shape.append(axes[a].extent * step)
            reach.append(Along(a, step, halo // 2, step + halo))
        if rng.random() < 0.5:
            shape.append(rng.randint(1, 5))
            reach.append(None)
        operand = Operand(("tensor", n), 0, tuple(shape), row_major(tuple(shape)), "float32")
        is_read = rng.random() < 0.7
        is_result = rng.random() < 0.4
        side = Side(operand, tuple(reach), is_unread=rng.random() < 0.1)
        held.append(Held(side, is_read=is_read, is_written=is_result, is_result=is_result))
    return tuple(held)


def test_what_is_remembered_is_what_is_so() -> None:
    compared = found = 0
    for seed in range(150):
        rng = Random(seed)
        axes = tuple(
            Axis(rng.choice((1, 2, 6, 8, 15)), granule=rng.choice((1, 1, 4))) for _ in range(3)
        )
        held = random_held(rng, axes)
        tiles = _Tiles(held, axes)
        for _ in range(20):
            sizes = tuple(rng.choice(_sizes(axis)) for axis in axes)
            loops = [a for a in range(3) if sizes[a] < axes[a].extent]
            order = rng.choice(list(permutations(loops)))
            nest = Nest(order, sizes)
            moves = 0
            for one in held:
                nbytes, transfers = moved(one.side, axes, nest)
                moves += (one.is_read + one.is_written) * (nbytes + RUN_BYTES * transfers)
            assert tiles.held_bytes(sizes) == held_bytes(held, axes, sizes), seed
            assert tiles.traffic(nest) == moves, seed
            assert tiles.is_possible(order) == is_possible(held, order), seed
            compared += len(order) > 1
        limit = rng.choice((64, 256, 1024))
        best = best_nest(held, axes, limit)
        if best is not None:
            found += 1
            assert held_bytes(held, axes, best.sizes) <= limit, seed
            assert is_possible(held, best.order), seed
    assert compared > 500
    assert found > 50
