"""Placements: no two live blocks overlap, and the arena is not much above what is alive at once."""

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
