"""Parts of pages: any bytes of a page go to the store and come back, or an error does."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import poet
from poet.errors import PageError
from poet.runtime.stores.base import PagePart
from poet.runtime.stores.page_file import BLOCK_BYTES
from poet.runtime.stores.queued import QueuedStore
from tests.torch.surviving import page_file

SIZES = {0: 3 * BLOCK_BYTES, 1: 100_001, 2: 700_000, 3: 1}
KINDS = ("direct", "cached", "small buffers", "memory")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueuedStore]:
    made: Any = poet.MemoryStore()
    if request.param != "memory":
        chunk = {"chunk_bytes": BLOCK_BYTES} if request.param == "small buffers" else {}
        made = poet.FileStore(tmp_path, direct=request.param != "cached", **chunk)
    yield made
    made.close()


def random_bytes(count: int, draw: random.Random) -> torch.Tensor:
    return torch.frombuffer(bytearray(draw.randbytes(count)), dtype=torch.uint8)


def test_parts_change_what_they_cover_and_nothing_else(store: QueuedStore) -> None:
    draw = random.Random(1)
    store.reserve(SIZES, in_parts=SIZES)
    pages = {page: random_bytes(count, draw) for page, count in SIZES.items()}
    for page, content in pages.items():
        store.write(page, content.untyped_storage()).wait()
    read = written = 0
    for _ in range(300):
        page = draw.choice(list(SIZES))
        start = draw.randrange(SIZES[page])
        most = draw.choice([1, 100, BLOCK_BYTES, 3 * BLOCK_BYTES, 400_000])
        count = draw.randint(0, min(most, SIZES[page] - start))
        at = draw.randrange(50)
        tile = random_bytes(at + count + 3, draw)
        before, part = tile.clone(), PagePart(start, count, at)
        if draw.random() < 0.5:
            store.write_part(page, tile.untyped_storage(), part)
            pages[page][start : start + count] = tile[at : at + count]
            written += count
        else:
            store.read_part(page, tile.untyped_storage(), part)
            before[at : at + count] = pages[page][start : start + count]
            read += count
        assert torch.equal(tile, before)
    assert store.read_bytes == read
    assert store.written_bytes == written + sum(SIZES.values())
    for page, content in pages.items():
        whole = torch.empty_like(content)
        store.read(page, whole.untyped_storage()).wait()
        assert torch.equal(whole, content)


def test_parts_wait_for_what_was_asked_before(store: QueuedStore) -> None:
    """Between transfers of the whole page that nobody waits for."""
    store.reserve({0: 700_000}, in_parts=[0])
    ones = torch.ones(700_000, dtype=torch.uint8)
    tiles = [torch.full((5_000,), n + 2, dtype=torch.uint8) for n in range(20)]
    store.write(0, ones.untyped_storage())
    found = []
    for n, tile in enumerate(tiles):
        store.write_part(0, tile.untyped_storage(), PagePart(1_000 * n, 5_000))
        back = torch.empty(700_000, dtype=torch.uint8)
        store.read(0, back.untyped_storage())
        found.append(back)
    store.flush()
    expected = ones.clone()
    for n, back in enumerate(found):
        expected[1_000 * n : 1_000 * n + 5_000] = n + 2
        assert torch.equal(back, expected)


@pytest.mark.parametrize("direct", [True, False])
def test_a_flipped_bit_is_found_by_those_who_read_its_block(direct: bool, tmp_path: Path) -> None:
    store = poet.FileStore(tmp_path, direct=direct)
    store.reserve({7: 100_001}, in_parts=[7])
    content = torch.arange(100_001).to(torch.uint8)
    store.write(7, content.untyped_storage(), now=True).wait()
    with open(page_file(tmp_path), "r+b") as pages:
        pages.seek(50_000)
        pages.write(bytes([content[50_000] ^ 8]))
    tile = torch.empty(20_000, dtype=torch.uint8)
    first = 50_000 // BLOCK_BYTES * BLOCK_BYTES
    for start, count in ((0, first), (first + BLOCK_BYTES, 20_000)):  # beside it
        count = min(count, 20_000)
        store.read_part(7, tile.untyped_storage(), PagePart(start, count))
        assert torch.equal(tile[:count], content[start : start + count])
    wrong = rf"page 7 .* those from {first:,} to {first + BLOCK_BYTES:,} have checksum"
    with pytest.raises(PageError, match=wrong):  # before it, and in its block
        store.read_part(7, tile.untyped_storage(), PagePart(first, 10))
    with pytest.raises(PageError, match=wrong):  # a write must not sign what it did not write
        store.write_part(7, tile.untyped_storage(), PagePart(first + 1, 10))
    with pytest.raises(PageError, match="its last write, number 2, did not succeed"):
        store.read_part(7, tile.untyped_storage(), PagePart(0, 10))
    with pytest.raises(PageError, match=r"cannot be changed in .* number 2, did not succeed"):
        store.write_part(7, tile.untyped_storage(), PagePart(0, 10))
    store.write(7, content.untyped_storage(), now=True).wait()  # all is well again
    store.read_part(7, tile.untyped_storage(), PagePart(50_000, 10))
    assert torch.equal(tile[:10], content[50_000:50_010])
    store.close()


def test_a_part_that_cannot_be_written_loses_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = poet.FileStore(tmp_path)
    store.reserve({0: 50_000}, in_parts=[0])
    tile = torch.zeros(50_000, dtype=torch.uint8)
    store.write(0, tile.untyped_storage(), now=True).wait()

    def fail(*_: Any) -> int:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail)
        with pytest.raises(PageError, match="could not be written"):
            store.write_part(0, tile.untyped_storage(), PagePart(0, 100))
    for part in (PagePart(0, 100), PagePart(20_000, 100)):
        with pytest.raises(PageError, match="did not succeed"):
            store.read_part(0, tile.untyped_storage(), part)
    with pytest.raises(PageError, match="did not succeed"):
        store.read(0, tile.untyped_storage(), now=True).wait()
    store.close()


def test_what_makes_no_sense_is_refused(store: QueuedStore) -> None:
    store.reserve({0: 100, 1: 100}, in_parts=[0])
    tile = torch.zeros(50).untyped_storage()
    for call in (store.read_part, store.write_part):
        for part in (
            PagePart(-1, 10),
            PagePart(95, 10),
            PagePart(0, -1),
            PagePart(0, 10, 195),
            PagePart(0, 10, -1),
        ):
            with pytest.raises(poet.PoetError, match=r"do not lie in a (page|storage) of"):
                call(0, tile, part)
        with pytest.raises(poet.PoetError, match="can only be moved whole; reserve it in parts"):
            call(1, tile, PagePart(0, 10))
        with pytest.raises(PageError, match="never written"):  # there is nothing around it
            call(0, tile, PagePart(0, 10))
