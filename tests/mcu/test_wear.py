"""What a step writes to its card: no sector twice for small tensors, and what no plan has."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poet.devices import find_device
from poet.firmware.card.layout import CardLayout, card_layout
from poet.firmware.card.sectors import SECTOR, sectors_of
from poet.firmware.card.upkeep import upkeep
from poet.values.plan import Plan
from poet.values.schedule import PageIn, PageOut
from tests.torch.streamed import largest_tiles

from .conftest import NETS, Planner
from .forced import written_for_host
from .library import _CALL, Library
from .test_streams import by_hand

MLP = "mlp?size=4&hidden=12&layers=6"
BOARD = find_device("nrf52840")


class Watched(Library):
    """Counts what the store is asked for, sector by sector."""

    def __init__(self, folder: Path) -> None:
        self.written, self.read, self.flushes = Counter[int](), Counter[int](), 0
        super().__init__(folder)
        self.io.flush = _CALL(self._flush)
        self.check(self.init())

    def _write(self, _: Any, offset: int, source: int, count: int) -> int:
        self.written[offset // SECTOR] += 1
        return super()._write(_, offset, source, count)

    def _read(self, _: Any, offset: int, to: int, count: int) -> int:
        self.read[offset // SECTOR] += 1
        return super()._read(_, offset, to, count)

    def _flush(self, _: Any) -> int:
        self.flushes += 1
        return 0

    def step(self, sample: int) -> None:
        """One step, with counts of its own."""
        self.written.clear()
        self.read.clear()
        self.flushes = 0
        self.train(sample)


def on_host(plan: Plan, folder: Path, **more: Any) -> tuple[Watched, CardLayout]:
    card = written_for_host(plan, folder, **more)
    return Watched(folder), card


def copy_of(card: CardLayout, side: int) -> range:
    first = card.copy_at + side * card.copy_sectors
    return range(first, first + card.copy_sectors)


def has_small_ones_apart(plan: Plan, card: CardLayout) -> bool:
    """Whether a large tensor is written between two small ones of one sector."""
    last: dict[int, int] = {}
    outs = [s.tensor for s in plan.schedule if isinstance(s, PageOut)]
    for n, i in enumerate(outs):
        sector = card.copies[i] // 508 if i in card.copies else -1
        if card.copy_at <= sector < card.copy_at + card.shared_sectors:
            if n - last.get(sector, n) > 1:
                return True
            last[sector] = n
    return False


@pytest.mark.parametrize("model", [MLP, f"{NETS}:resnet8"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_small_tensors_are_one_sectors_writing(
    model: str, optimizer: str, planned: Planner, tmp_path: Path
) -> None:
    plan = planned(model, "240 KB", optimizer)
    library, card = on_host(plan, tmp_path / "c")
    assert has_small_ones_apart(plan, card)
    pages = sum(
        sectors_of(plan.graph.tensors[s.tensor].nbytes)
        for s in plan.schedule
        if isinstance(s, PageOut) and s.tensor in card.pages
    )
    again = sum(  # what is new, read in the step that made it: the plan's own transfers
        isinstance(s, PageIn) and plan.graph.tensors[s.tensor].becomes is not None
        for s in plan.schedule
    )
    for n in range(3):
        library.step(0)
        fresh = copy_of(card, side=1 - n % 2)
        assert {s: c for s, c in library.written.items() if s >= 3 and s < card.pages_at} == (
            dict.fromkeys(fresh, 1)
        )
        commit = upkeep(plan).sectors_written
        assert library.written.total() == card.copy_sectors + pages + commit
        reads = sum(library.read[s] for s in fresh)
        assert card.shared_sectors <= reads <= card.shared_sectors + again
        assert library.flushes == upkeep(plan).flushes
    smaller = sum(
        plan.graph.tensors[i].nbytes
        for i in plan.written
        if card.copies.get(i, 0) // 508 < card.copy_at + card.shared_sectors
    )
    assert smaller > card.shared_sectors * 254  # no sector is for four bytes


def test_a_save_takes_what_is_told(planned: Planner, tmp_path: Path) -> None:
    plan = planned(MLP, "240 KB", "adam", params="resident")
    told, (library, card) = upkeep(plan), on_host(plan, tmp_path / "c", save_every=2)
    assert not told.each_step
    library.step(0)
    assert (library.written.total(), library.flushes) == (0, 0)
    library.step(0)
    assert library.written.total() == told.sectors_written > 2
    assert sum(library.read[s] for s in copy_of(card, side=1)) == told.sectors_read > 0
    assert library.flushes == told.flushes == 2


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_journal_takes_no_more_than_is_told(optimizer: str, tmp_path: Path) -> None:
    plan = by_hand(f"{NETS}:words", optimizer, largest_tiles)
    told, (library, card) = upkeep(plan), on_host(plan, tmp_path / "c")
    journal = range(card.journal_at, card.journal_at + 2 * card.journal_entries)
    if optimizer == "adam":
        assert told.journal_entries == 0  # every row changes, and has a second copy
    for n in range(4):
        library.step(n % 2)
        entries = sum(library.written[s] for s in journal) // 2
        assert entries <= told.journal_entries
        assert entries > 0 or optimizer == "adam"
        assert library.flushes == 2 + 2 * entries <= told.flushes
        assert library.written[n % 2] + library.written[1 - n % 2] == 1  # the commit


def test_prices_are_those_of_sectors(planned: Planner) -> None:
    plan = by_hand(f"{NETS}:words", "sgd", largest_tiles)
    for each in (plan, planned(MLP, "240 KB", "adam", params="resident")):
        told = upkeep(each)
        out = BOARD.page_out_latency_seconds + 512 / BOARD.page_out_bytes_per_second
        back = BOARD.page_in_latency_seconds + 512 / BOARD.page_in_bytes_per_second
        assert told.seconds == pytest.approx(told.sectors_written * out + told.sectors_read * back)
        assert told.seconds is not None
        assert told.joules == pytest.approx(told.seconds * BOARD.page_out_watts)
        assert told.card_bytes == card_layout(each, 0).image_bytes
        unpriced = msgspec.structs.replace(
            each, costs=msgspec.structs.replace(each.costs, sector=None)
        )
        assert upkeep(unpriced).seconds is None
