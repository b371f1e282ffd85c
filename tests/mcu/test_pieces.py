"""Ops that run piece by piece: the same bits as in RAM, with any tensors in the store."""

import random
from bisect import bisect_right
from pathlib import Path

import pytest

import poet
from poet.costs.analytic import analytic
from poet.firmware.card.layout import card_layout
from poet.firmware.card.sectors import HELD
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import emulate
from poet.referee.replay import check
from poet.values.quantities import parse_bytes

from .conftest import NETS, ROOT, SANITIZED
from .forced import BOARD, forced_plan, graph_in_pieces, trained_on_host, with_random_ways
from .test_boards import assert_inside

WORDS = "bert-tiny?seq=4&vocab=40&layers=1"
TWICE = (WORDS, f"{ROOT}/{NETS}:resnet8", f"{ROOT}/{NETS}:planes")
MOMENTUM = "sgd?momentum=0.9&nesterov=1&weight_decay=0.01"


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (f"{ROOT}/{NETS}:resnet8", "sgd"),
        (f"{ROOT}/{NETS}:separable", "adam"),
        (f"{ROOT}/{NETS}:mixed", "adam"),
        (f"{ROOT}/{NETS}:gpt2", "sgd"),
        (f"{ROOT}/{NETS}:masked", "sgd"),
        (f"{ROOT}/{NETS}:planes", "sgd"),
        ("lenet?size=16&batch=3", MOMENTUM),
        (WORDS, "sgd"),
        (WORDS, "adamw?weight_decay=0.1"),
    ],
)
def test_pieces_give_the_same_bits(
    model: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_in_pieces(model, optimizer)
    whole, _ = trained_on_host(forced_plan(graph, analytic(graph, BOARD), {}), tmp_path / "c")
    names_rows = any("embedding" in call.kind for op in graph.ops for call in op.calls)
    for seed in range(2 if model in TWICE else 1):
        # In the second run norms' parameters stay in RAM, so that their planes can be cut.
        monkeypatch.setattr("poet.calls.pieces.ways.LEAST_BYTES", (64, 300)[seed % 2])
        costs, ways = with_random_ways(graph, random.Random(seed))
        assert len(ways) > len(graph.ops) / 2
        plan = forced_plan(graph, costs, ways)
        pieces, said = trained_on_host(plan, tmp_path / "c")
        for i, content in whole.items():
            assert content == pieces[i], (seed, graph.tensors[i].name)
        report = check(plan)
        for line in said:
            words = line.split()
            for way, planned in (
                ("in", report.streamed_in_bytes), ("out", report.streamed_out_bytes)
            ):  # fmt: skip
                moved = int(words[words.index(f"streamed_{way}") + 1])
                assert moved == planned or (names_rows and moved < planned)


def test_every_tensor_moves_as_many_bytes_as_planned(tmp_path: Path) -> None:
    """By tensor and direction: the places on the card that a build which traces says."""
    graph = graph_in_pieces(f"{ROOT}/{NETS}:resnet8", "sgd?momentum=0.9")
    costs, ways = with_random_ways(graph, random.Random(3))
    plan = forced_plan(graph, costs, ways)
    trained_on_host(plan, tmp_path / "c", steps=1, extra="-DPOET_TRACE")
    card, moved = card_layout(plan, 2), dict[tuple[str, int], int]()
    slots = card.copies | card.rows | card.fixed | card.pages
    starts, second = sorted(set(slots.values())), card.copy_sectors * HELD
    for line in (tmp_path / "c" / "said").read_text().splitlines():
        verb, *numbers = line.split()
        if verb in ("reads", "writes"):
            at, count = map(int, numbers)
            if second <= at - card.copy_at * HELD < 2 * second:
                at -= second
            slot = starts[bisect_right(starts, at) - 1]
            moved[verb, slot] = moved.get((verb, slot), 0) + count
    planned = dict[tuple[str, int], int]()
    for i, (read, written) in check(plan).streamed.items():
        for verb, nbytes in (("reads", read), ("writes", written)):
            if nbytes:
                planned[verb, slots[i]] = planned.get((verb, slots[i]), 0) + nbytes
    assert moved == planned


def test_no_complaints_from_the_sanitizers(tmp_path: Path) -> None:
    graph = graph_in_pieces(f"{ROOT}/{NETS}:mixed", "adam")
    costs, ways = with_random_ways(graph, random.Random(7))
    plan = forced_plan(graph, costs, ways)
    trained_on_host(plan, tmp_path / "c", extra=SANITIZED)


@pytest.mark.parametrize(
    ("model", "board", "ram"),
    [
        ("bert-tiny?seq=8&layers=1&vocab=60", "mkr1000", "12 KB"),
        (f"{ROOT}/{NETS}:resnet8", "mkr1000", "16 KB"),
        (f"{ROOT}/{NETS}:wide", "nrf52840", "64 KB"),
    ],
)
@pytest.mark.usefixtures("board_tools")
def test_networks_train_on_boards_in_a_fraction_of_an_op(
    model: str, board: str, ram: str, tmp_path: Path
) -> None:
    """Planned as a person would: no variant and no way is asked for."""
    plan = poet.plan(model, board, ram, time_limit=4)
    assert plan.schedule, plan.reason
    assert plan.floor_bytes is not None
    assert plan.floor_bytes <= parse_bytes(ram)
    largest = max(
        sum(plan.graph.tensors[i].nbytes for i in {*op.inputs, *op.outputs})
        for op in plan.graph.ops
    )
    assert largest > parse_bytes(ram)
    folder = tmp_path / "firmware"
    poet.emit(plan, folder, board, samples=2, steps=2)
    run = emulate(folder)
    assert run.differences == ()
    assert_inside(run, board)
    against = compare_card(folder)
    assert against is not None
    assert against.is_close, against


def test_the_least_ram_is_found_and_true() -> None:
    plan = poet.plan("lenet?batch=1", "nrf52840", "min", time_limit=6)
    assert plan.peak_bytes == plan.floor_bytes
    assert plan.floor_bytes is not None
    less = poet.plan("lenet?batch=1", "nrf52840", plan.floor_bytes - 1, time_limit=2)
    assert less.status == "infeasible"
