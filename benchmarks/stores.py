"""How fast pages move to a file and back, and whether they move beside computation.

Ours: a file store, checksums and all; pages are asked for one after another, then waited for. Peer:
the same bytes written to a plain file and synced, dropped from the page cache, and read again.
Limit: direct I/O of an aligned buffer in huge pages, one call a page, nothing checked. Best of
several rounds, in which the three take turns, since a shared disk is not always equally fast.

The second table: a page and a matrix product, each alone, then both at once. Copies and
checksums take a core's time: on a fast disk the product must leave one to gain anything.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from poet.reports.tables import print_table
from poet.runtime.stores.base import PageTransfer
from poet.runtime.stores.file_store import FileStore
from poet.runtime.stores.host_memory import HostMemory

SIZES = {"4 KiB": 2**12, "64 KiB": 2**16, "1 MiB": 2**20, "16 MiB": 2**24, "128 MiB": 2**27}
ROUND_BYTES = 2**26
MAX_PAGES = 256
ROUNDS = 9


class Contender(NamedTuple):
    write: Callable[[], object]
    read: Callable[[], object]
    before_read: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        print_table(
            Console(),
            [("page", "left"), ("out MB/s", "right"), ("of limit", "right"), ("of peer", "right"),
             ("in MB/s", "right"), ("of limit", "right"), ("of peer", "right")],
            [_row(name, nbytes, Path(folder)) for name, nbytes in SIZES.items()],
        )  # fmt: skip
        cores = torch.get_num_threads()
        rows = [
            row
            for threads in sorted({1, max(1, cores - 1), cores})
            for row in _beside(Path(folder), threads)
        ]
        print_table(
            Console(),
            [("page of 128 MiB", "left"), ("threads", "right"), ("page", "right"),
             ("product", "right"), ("sum", "right"), ("at once", "right"), ("of sum", "right")],
            rows,
        )  # fmt: skip
        torch.set_num_threads(cores)


def _row(name: str, nbytes: int, folder: Path) -> list[str]:
    count = max(1, min(MAX_PAGES, ROUND_BYTES // nbytes))
    contenders = [make(folder, nbytes, count) for make in (_ours, _direct, _plain)]
    writes, reads = ([float("inf")] * len(contenders) for _ in range(2))
    for _ in range(ROUNDS):
        for i, contender in enumerate(contenders):
            writes[i] = min(writes[i], _seconds(contender.write))
            contender.before_read()
            reads[i] = min(reads[i], _seconds(contender.read))
    for contender in contenders:
        contender.close()
    row = [name]
    for seconds in (writes, reads):
        row.append(f"{count * nbytes / seconds[0] / 1e6:,.0f}")
        row += [f"{other / seconds[0]:.2f}" for other in seconds[1:]]
    return row


def _ours(folder: Path, nbytes: int, count: int) -> Contender:
    store = FileStore(folder)
    store.reserve(dict.fromkeys(range(count), nbytes))
    pages = dict(enumerate(_storage(nbytes) for _ in range(count)))

    def move(way: Callable[[int, torch.UntypedStorage], object]) -> None:
        for page, storage in pages.items():
            way(page, storage)
        store.flush()

    return Contender(lambda: move(store.write), lambda: move(store.read), close=store.close)


def _direct(folder: Path, nbytes: int, count: int) -> Contender:
    handle = os.open(folder / "direct.bin", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.posix_fallocate(handle, 0, nbytes * count)
    buffer = HostMemory(nbytes).view
    buffer[:] = os.urandom(nbytes)
    starts = range(0, nbytes * count, nbytes)
    return Contender(
        lambda: [os.pwritev(handle, [buffer], start) for start in starts],
        lambda: [os.preadv(handle, [buffer], start) for start in starts],
        close=lambda: os.close(handle),
    )


def _plain(folder: Path, nbytes: int, count: int) -> Contender:
    file = open(folder / "plain.bin", "w+b", buffering=0)  # noqa: SIM115
    buffer = bytearray(os.urandom(nbytes))

    def write() -> None:
        file.seek(0)
        for _ in range(count):
            file.write(buffer)
        os.fsync(file.fileno())

    def read() -> None:
        file.seek(0)
        for _ in range(count):
            file.readinto(buffer)

    def drop() -> None:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return Contender(write, read, drop, file.close)


def _beside(folder: Path, threads: int) -> list[list[str]]:
    """The product is repeated until it takes as long as the page."""
    torch.set_num_threads(threads)
    nbytes = SIZES["128 MiB"]
    store = FileStore(folder)
    store.reserve({0: nbytes})
    storage = _storage(nbytes)
    matrix = torch.rand(1024, 1024)
    rows = []
    for name, way in (("out", store.write), ("in", store.read)):
        page = _best(lambda way=way: way(0, storage).wait())  # type: ignore[misc]
        repeats = max(1, round(page / _best(lambda: matrix @ matrix)))

        def multiply(repeats: int = repeats) -> None:
            for _ in range(repeats):
                matrix @ matrix

        def both(way: Callable[..., PageTransfer] = way) -> None:
            transfer = way(0, storage)
            multiply()
            transfer.wait()

        product, together = _best(multiply), _best(both)
        figures = (page, product, page + product, together)
        times = [f"{seconds * 1e3:.1f} ms" for seconds in figures]
        rows.append([name, f"{threads}", *times, f"{together / (page + product):.2f}"])
    store.close()
    return rows


def _storage(nbytes: int) -> torch.UntypedStorage:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8).untyped_storage()


def _best(call: Callable[[], object]) -> float:
    return min(_seconds(call) for _ in range(ROUNDS))


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


BENCHMARKS: dict[str, Callable[[], None]] = {"stores": main}
