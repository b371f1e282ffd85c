"""Power cuts: whatever instant power goes, training goes on from the last step that was done."""

import random
from pathlib import Path

import msgspec
import pytest
from benchmarks.firmware_kills import CASES, killed

from poet.firmware.card.layout import card_layout
from poet.values.plan import Plan
from poet.values.schedule import Compute
from tests.torch.streamed import largest_tiles

from .conftest import NETS, ROOT, Planner
from .cutting import cut_everywhere
from .forced import forced_plan, graph_in_pieces, with_random_ways, written_for_host
from .test_streams import by_hand

MLP = "mlp?size=4&hidden=12&layers=1&dropout=0.3"
WORDS = f"{NETS}:words"
OPTIMIZERS = ("sgd", "sgd?momentum=0.9", "adam")
WAYS = 4


def in_pieces(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr("poet.calls.pieces.ways.LEAST_BYTES", 64)
    graph = graph_in_pieces(f"{ROOT}/{WORDS}", optimizer)
    costs, ways = with_random_ways(graph, random.Random(1))
    assert len(ways) > len(graph.ops) / 2
    return forced_plan(graph, costs, ways)


def plan_of(kind: str, optimizer: str, planned: Planner, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A network with its parameters in one of four kinds of places."""
    if kind == "in tiles":
        plan = by_hand(WORDS, optimizer, largest_tiles)
        assert any(isinstance(s, Compute) and s.variant == "streamed" for s in plan.schedule)
        return plan
    if kind == "in pieces":
        return in_pieces(optimizer, monkeypatch)
    plan = planned(MLP, "64 KB", optimizer, params=kind)
    return msgspec.structs.replace(
        plan, budget=msgspec.structs.replace(plan.budget, ram_bytes=None)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["resident", "paged", "in tiles", "in pieces"])
def test_no_cut_loses_a_step(
    kind: str, optimizer: str, planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(kind, optimizer, planned, monkeypatch)
    written_for_host(plan, tmp_path / "c", save_every=1)
    cuts = cut_everywhere(tmp_path / "c")
    assert cuts.cuts == WAYS * cuts.writes
    assert cuts.writes > 3 * 4
    if kind in ("in tiles", "in pieces") and optimizer == "sgd":
        assert card_layout(plan, 2).journal_entries > 0
        assert cuts.while_taken_up > 0  # rows went back, and that was cut, too


def test_a_network_in_ram_loses_no_more_than_it_was_told_to(
    planned: Planner, tmp_path: Path
) -> None:
    plan = planned(MLP, "64 KB", "adam", params="resident")
    written_for_host(plan, tmp_path / "c", save_every=2)
    assert cut_everywhere(tmp_path / "c").cuts > 0


@pytest.mark.usefixtures("board_tools")
def test_an_emulated_board_that_is_killed_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of `python -m benchmarks firmware-kills`."""
    monkeypatch.setattr("poet.firmware.reference.write_reference", lambda folder: None)
    came = killed(CASES[0], 3, tmp_path, random.Random(1))
    assert came.is_equal
    assert came.kills >= 3
