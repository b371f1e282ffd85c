"""Placements: no two live blocks overlap, and the arena is not much above what is alive at once."""

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poet.errors import PoetError
from poet.firmware.place.arena import Placement, check, least_bytes, place
from poet.firmware.place.lifetimes import Block


def block(nbytes: int, *spans: tuple[int, int], alignment: int = 4) -> Block:
    return Block(
        name=f"b{nbytes}", nbytes=nbytes, alignment=alignment, spans=list(spans), dtype="float32"
    )


spans = st.tuples(st.integers(0, 20), st.integers(0, 10)).map(lambda s: (s[0], s[0] + s[1]))
blocks = st.lists(
    st.builds(
        lambda nbytes, span, alignment: block(nbytes, span, alignment=alignment),
        st.integers(0, 400), spans, st.sampled_from([4, 8]),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@given(blocks)
@settings(max_examples=150, deadline=None)
def test_placements_are_sound(given_blocks: list[Block]) -> None:
    found = place(given_blocks, limit=2**30, work=3000)
    check(given_blocks, found, limit=found.arena_bytes)
    assert found.arena_bytes >= least_bytes(given_blocks)


@given(blocks, st.data())
@settings(max_examples=100, deadline=None)
def test_the_checker_finds_what_a_slow_one_finds(
    given_blocks: list[Block], data: st.DataObject
) -> None:
    offsets = tuple(data.draw(st.integers(0, 60)) * each.alignment for each in given_blocks)
    top = max(o + b.padded for o, b in zip(offsets, given_blocks, strict=True))
    clash = any(
        a < b and given_blocks[a].nbytes and given_blocks[b].nbytes
        and offsets[a] < offsets[b] + given_blocks[b].nbytes
        and offsets[b] < offsets[a] + given_blocks[a].nbytes
        and any(p[0] <= q[1] and q[0] <= p[1]
                for p in given_blocks[a].spans for q in given_blocks[b].spans)
        for a in range(len(offsets)) for b in range(len(offsets))
    )  # fmt: skip
    if clash:
        with pytest.raises(PoetError, match="overlap"):
            check(given_blocks, Placement(offsets, top), top)
    else:
        check(given_blocks, Placement(offsets, top), top)


def tiling(rng: Random, count: int, ticks: int, height: int) -> list[Block]:
    """Blocks that fill so many ticks and bytes without a gap, cut from one at random."""
    pieces = [(0, ticks, height)]
    while len(pieces) < count:
        at = rng.randrange(len(pieces))
        first, after, nbytes = pieces[at]
        if rng.random() < 0.5 and after - first > 1:
            middle = rng.randrange(first + 1, after)
            pieces[at : at + 1] = [(first, middle, nbytes), (middle, after, nbytes)]
        elif nbytes > 4:
            low = 4 * rng.randrange(1, nbytes // 4)
            pieces[at : at + 1] = [(first, after, low), (first, after, nbytes - low)]
    return [block(nbytes, (first, after - 1)) for first, after, nbytes in pieces]


def test_tilings_without_a_gap_are_found() -> None:
    found = []
    for seed in range(20):
        made = tiling(Random(seed), count=120, ticks=60, height=4000)
        assert least_bytes(made) == 4000
        placement = place(made, limit=4000)
        check(made, placement, placement.arena_bytes)
        found.append(placement.arena_bytes)
    assert found.count(4000) >= 18
    assert max(found) <= 4040


def least_by_brute_force(made: list[Block]) -> int:
    """The least that piling in any order reaches: one order puts each block as low as the best
    arena has it."""
    least = sum(each.padded for each in made)
    for order in permutations(made):
        placed: list[tuple[Block, int]] = []
        for each in order:
            others = [
                (offset, offset + other.padded) for other, offset in placed
                if any(p[0] <= q[1] and q[0] <= p[1] for p in each.spans for q in other.spans)
            ]  # fmt: skip
            at = min(
                start for start in (0, *(end for _, end in others))
                if all(start + each.padded <= a or b <= start for a, b in others)
            )  # fmt: skip
            placed.append((each, at))
        least = min(least, max(at + each.padded for each, at in placed))
    return least


def test_what_brute_force_finds_is_found() -> None:
    gaps = 0
    for seed in range(80):
        rng = Random(seed)
        made = []
        for _ in range(6):
            first, again = rng.randrange(8), rng.randrange(10, 14)
            spans = [(first, first + rng.randrange(4))]
            if rng.random() < 0.3:
                spans.append((again, again + rng.randrange(3)))
            made.append(block(4 * rng.randrange(1, 12), *spans))
        least = least_by_brute_force(made)
        found = place(made, limit=least)
        check(made, found, least)
        assert found.arena_bytes == least
        gaps += least > least_bytes(made)
    assert gaps >= 3


def test_gaps_that_one_order_leaves_are_closed_by_another() -> None:
    # Largest first leaves a gap here; the least is reached all the same.
    made = [block(8, (0, 3)), block(12, (2, 5)), block(8, (4, 7)), block(12, (6, 9)),
            block(16, (8, 11)), block(4, (0, 11))]  # fmt: skip
    found = place(made, limit=0)
    assert found.arena_bytes == least_bytes(made)


def test_a_block_may_come_back_to_its_place() -> None:
    made = [block(8, (0, 1), (8, 9)), block(8, (2, 7)), block(8, (0, 9))]
    found = place(made, limit=0)
    check(made, found, 16)
    assert found.arena_bytes == 16


def test_the_checker_knows_limits_and_alignment() -> None:
    made = [block(8, (0, 1), alignment=8)]
    with pytest.raises(PoetError, match="limit is 4"):
        check(made, Placement((0,), 8), 4)
    with pytest.raises(PoetError, match="alignment"):
        check(made, Placement((4,), 12), 12)
    with pytest.raises(PoetError, match="past the end"):
        check(made, Placement((8,), 12), 12)
