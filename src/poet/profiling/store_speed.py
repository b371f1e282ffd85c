"""How fast pages move: while the step waits for them, and beside it.

While it waits: the transfers of real steps that page much, each timed where it stands, put together
by size. Beside: another thread keeps the store busy while steps compute, and both are slower than
alone; by how much each, is what transfers under `overlap` need to know.
"""

import threading
from collections.abc import Callable, Sequence
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

import torch

from poet.profiling.laps import Laps
from poet.runtime.stores.base import Store
from poet.values.graph import Graph
from poet.values.profile import StoreSpeed, Timing
from poet.values.schedule import PageIn, PageOut

LEAST_BYTES = 4096
_BESIDE_REPEATS = 4
_BESIDE_PAGES = 4


class Beside(NamedTuple):
    """Speeds while a step and transfers run together, as shares of the speeds alone."""

    compute: float
    transfers: float


def store_speed(where: str, laps: Laps) -> StoreSpeed:
    """Page-ins and page-outs by size, from steps that page much.

    Sizes up to twice one another are put together; medians of the repeats of one transfer, and
    the mean over transfers, since a step has them all.
    """
    ins, outs = _by_size(laps.transfers(PageIn)), _by_size(laps.transfers(PageOut))
    sizes, page_ins, page_outs = [], [], []
    for key in sorted({*ins} & {*outs}):
        sizes.append(round(fmean(n for n, _ in (*ins[key], *outs[key]))))
        page_ins.append(_timing(ins[key]))
        page_outs.append(_timing(outs[key]))
    return StoreSpeed(
        where=where,
        sizes_bytes=tuple(sizes),
        page_ins=tuple(page_ins),
        page_outs=tuple(page_outs),
    )


_Repeats = list[tuple[int, list[float]]]


def _by_size(transfers: _Repeats) -> dict[int, _Repeats]:
    found: dict[int, _Repeats] = {}
    for nbytes, seconds in transfers:
        found.setdefault(nbytes.bit_length(), []).append((nbytes, seconds))
    return found


def _timing(transfers: _Repeats) -> Timing:
    """Of a page of their mean size: medians of all transfers together, step by step."""
    together = [fmean(each) for each in zip(*(seconds for _, seconds in transfers), strict=True)]
    return Timing.of(together)


def usual_bytes(graph: Graph) -> int:
    """The size that half of all bytes of a step lie in tensors of, or in smaller ones."""
    sizes = sorted(tensor.nbytes for tensor in graph.tensors)
    half, passed = sum(sizes) / 2, 0
    for nbytes in sizes:
        passed += nbytes
        if passed >= half:
            return max(nbytes, LEAST_BYTES)
    return LEAST_BYTES


def speeds_in_overlap(
    step: Callable[[], object], store: Store, nbytes: int, device: torch.device
) -> Beside:
    """Steps alone, pages alone, and both together, in turns."""
    store.reserve(dict.fromkeys(range(_BESIDE_PAGES), nbytes))
    pages = [_filled(nbytes, device) for _ in range(_BESIDE_PAGES)]
    steps_alone, steps_beside, pages_alone, pages_beside = [], [], [], []
    for _ in range(_BESIDE_REPEATS):
        steps_alone.append(_timed(step))
        with _Mover(store, pages) as mover:
            mover.rounds(2)
        pages_alone.append(mover.seconds_a_round)
        with _Mover(store, pages) as mover:
            mover.keep_on()
            steps_beside.append(_timed(step))
        pages_beside.append(mover.seconds_a_round)
    return Beside(
        compute=min(1.0, median(steps_alone) / median(steps_beside)),
        transfers=min(1.0, median(pages_alone) / median(pages_beside)),
    )


def _timed(step: Callable[[], object]) -> float:
    started = perf_counter()
    step()
    return perf_counter() - started


def _filled(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    return torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=device).untyped_storage()


class _Mover:
    """Moves pages out and in, round after round, in a thread where asked to."""

    def __init__(self, store: Store, pages: Sequence[torch.UntypedStorage]) -> None:
        self._store, self._pages = store, pages
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seconds: list[float] = []
        self._error: BaseException | None = None

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self._one()

    def keep_on(self) -> None:
        self._thread = threading.Thread(target=self._until_stopped, daemon=True)
        self._thread.start()

    @property
    def seconds_a_round(self) -> float:
        return median(self._seconds)

    def _one(self) -> None:
        started = perf_counter()
        for move in (self._store.write, self._store.read):
            for page, storage in enumerate(self._pages):
                move(page, storage).wait()
        self._seconds.append(perf_counter() - started)

    def _until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                self._one()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "_Mover":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
