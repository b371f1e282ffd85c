"""What stores share: the rules for pages, and threads that move them in order.

A store keeps for each page a slot: where it lies, its size, and how many writes were asked for. A
read asked for after the n-th write accepts the n-th write's bytes only: if that write failed, what
an earlier one left must not pass for it.

A write of a part of a page counts as a write of the page: it wants the write before it whole, and
leaves the page whole or lost.

A transfer has one stage or more, each on a thread of its own; every thread takes the transfers in
the order they were asked for. Threads start with the first transfer that needs them. They hold no
reference to the store while they wait: a store that is forgotten closes itself, and one that is
still open when the interpreter ends is closed before threads stop working.

Ctrl-C comes between any two steps of the calling thread. It finds a store that can be used or
closed: transfers that were asked for run on, and one that ran in the calling thread counts as
failed.
"""

import operator
import os
import traceback
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import torch

from poet.errors import PageError, PoetError
from poet.runtime.stores.base import PagePart, PageTransfer
from poet.runtime.stores.call_thread import CallThread

_DEVICES = ("cpu", "cuda")


@dataclass
class Slot:
    """The place of one page."""

    offset: int
    nbytes: int
    in_parts: bool = False  # whether it can be moved in parts
    asked: int = 0  # writes asked for
    kept: int = 0  # the write whose bytes lie here; 0 where none do
    checksums: dict[int, int] = field(default_factory=dict)  # of its parts, in stores that check


class Order:
    """A transfer that was asked for: which page or part of one, to or from where."""

    def __init__(
        self,
        page: int,
        slot: Slot,
        storage: torch.UntypedStorage,
        out: bool,
        part: PagePart | None = None,
    ) -> None:
        self.page, self.slot, self.out = page, slot, out
        self.whole = part is None
        self.part = part or PagePart(0, slot.nbytes)
        self.generation = slot.asked
        self.transfer = PageTransfer()
        self.error: BaseException | None = None
        self._storage: torch.UntypedStorage | None = storage
        # What computes or uses the storage's bytes was launched on the caller's stream.
        self._launched = None
        if storage.device.type == "cuda":
            self._launched = torch.cuda.current_stream(storage.device).record_event()

    @property
    def storage(self) -> torch.UntypedStorage:
        assert self._storage is not None
        return self._storage

    def wait_for_kernels(self) -> None:
        if self._launched is not None:
            self._launched.synchronize()

    def attempt(self, call: Callable[[], None]) -> None:
        """Make a call unless one before it failed; keep what goes wrong for `wait`."""
        if self.error is None:
            try:
                call()
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # their variables hold the storage
                self.error = error

    def finish(self) -> None:
        self._storage = None
        self.transfer.finish(self.error)


Stage = Callable[[Order], None]


class QueuedStore(ABC):
    """Subclasses say where pages lie, and the stages that move them; the last finishes the order.

    `release` gives back what a subclass holds, after the `threads` have stopped; it must not refer
    to the store.
    """

    def __init__(self, release: Callable[[], None], *threads: CallThread) -> None:
        self.size_bytes = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.seconds = 0.0
        self._slots: dict[int, Slot] = {}
        self._moving: deque[PageTransfer] = deque()
        self._failed: list[PageTransfer] = []
        self._owner = os.getpid()
        self._shut = weakref.finalize(self, _shut, self._owner, threads, release)

    @property
    @abstractmethod
    def buffer_bytes(self) -> int: ...

    @property
    @abstractmethod
    def where(self) -> str:
        """The place of the pages, for messages."""

    @abstractmethod
    def _slot_bytes(self, nbytes: int) -> int:
        """The room that a page of so many bytes takes."""

    @abstractmethod
    def _make_room(self, nbytes: int) -> None:
        """Reserve so many bytes in all, or raise."""

    @abstractmethod
    def _stages(self, order: Order) -> list[tuple[CallThread, Stage]]: ...

    def reserve(self, pages: Mapping[int, int], in_parts: Collection[int] = ()) -> None:
        self._check_open()
        self._drain()
        self._slots, self.size_bytes = {}, 0
        slots, end = {}, 0
        for page, nbytes in pages.items():
            if nbytes < 0:
                raise PoetError(f"page {page} cannot have {nbytes:,} bytes")
            slots[page] = Slot(end, nbytes, page in in_parts)
            end += self._slot_bytes(nbytes)
        self._make_room(end)
        self._slots, self.size_bytes = slots, end

    def write(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> PageTransfer:
        slot = self._slot(page, storage)
        slot.asked += 1
        return self._start(Order(page, slot, storage, out=True), now)

    def read(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> PageTransfer:
        return self._start(Order(page, self._slot(page, storage), storage, out=False), now)

    # Parts have one stage, so that they run in the calling thread: with the threads at rest, the
    # stages of other transfers cannot come between.

    def begin(self, page: int) -> None:
        slot = self._slots.get(page)
        if slot is None or not slot.in_parts:
            raise PoetError(f"page {page} has no place in {self.where} for its parts")
        self._drain()
        slot.asked += 1
        slot.kept = slot.asked
        slot.checksums.clear()

    def write_part(self, page: int, storage: torch.UntypedStorage, part: PagePart) -> None:
        slot = self._slot(page, storage, part)
        slot.asked += 1
        self._start(Order(page, slot, storage, True, part), now=True).wait()

    def read_part(self, page: int, storage: torch.UntypedStorage, part: PagePart) -> None:
        slot = self._slot(page, storage, part)
        self._start(Order(page, slot, storage, False, part), now=True).wait()

    def flush(self) -> None:
        self._drain()
        failed, self._failed = self._failed, []
        for transfer in failed:
            if not transfer.told:
                transfer.wait()

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._drain()
        self._shut()

    def _slot(self, page: int, storage: torch.UntypedStorage, part: PagePart | None = None) -> Slot:
        self._check_open()
        slot = self._slots.get(page)
        if slot is None:
            raise PoetError(
                f"page {page} has no place in {self.where}; reserve it with its size first"
            )
        if part is not None:
            self._check_part(page, slot, storage, part)
        elif storage.nbytes() != slot.nbytes:
            raise PoetError(
                f"page {page} in {self.where} is reserved with {slot.nbytes:,} bytes; "
                f"the storage has {storage.nbytes():,}. Reserve the pages again with their sizes."
            )
        if storage.device.type not in _DEVICES:
            raise PoetError(
                f"page {page} is on device {storage.device}; a store moves pages of "
                f"{' and '.join(_DEVICES)} only"
            )
        return slot

    def _check_part(
        self, page: int, slot: Slot, storage: torch.UntypedStorage, part: PagePart
    ) -> None:
        if not slot.in_parts:
            raise PoetError(
                f"page {page} in {self.where} can only be moved whole; reserve it in parts"
            )
        for what, start, nbytes in (
            ("page", part.start, slot.nbytes),
            ("storage", part.at, storage.nbytes()),
        ):
            if not 0 <= start <= start + part.nbytes <= nbytes:
                raise PoetError(
                    f"bytes {start:,} to {start + part.nbytes:,} of page {page} in {self.where} do "
                    f"not lie in a {what} of {nbytes:,}"
                )

    def _check_open(self) -> None:
        if not self._shut.alive:
            raise PoetError(f"the page store {self.where} is closed; open a new one")
        if os.getpid() != self._owner:
            raise PoetError(
                f"the page store {self.where} belongs to process {self._owner}, which forked this "
                "one; open a store of its own in each process"
            )

    def _start(self, order: Order, now: bool) -> PageTransfer:
        stages = self._stages(order)
        if now and len(stages) == 1:
            self._drain()
            stages[0][1](order)
            if not isinstance(order.error, Exception | None):
                raise order.error  # Ctrl-C, not the order's own
            self._note(order.transfer)
            return order.transfer
        while self._moving and self._moving[0].done:
            self._note(self._moving.popleft())
        steps: list[Callable[[], None]] = [partial(self._moving.append, order.transfer)]
        steps += [thread.entry(partial(stage, order)) for thread, stage in stages]
        # An order must reach all its threads or none: Ctrl-C cannot come between calls made by C.
        deque(map(operator.call, steps), maxlen=0)
        if now:  # beside what threads gain together, their waking up is nothing
            self._drain()
        return order.transfer

    def _drain(self) -> None:
        while self._moving:
            self._moving[0].settle()
            self._note(self._moving.popleft())

    def _note(self, transfer: PageTransfer) -> None:
        if transfer.error is not None:
            self._failed.append(transfer)

    def _begin(self, order: Order) -> None:
        """For the stage that has to do with the page: its first access to it."""
        slot = order.slot
        if order.out and order.whole:
            slot.kept = 0  # until all of it is there
            return
        before = order.generation - order.out  # the write that must have left the page whole
        if before == 0:
            raise PageError(
                f"page {order.page} was never written to {self.where}: there is nothing to "
                f"{'change' if order.out else 'read'}. Page it out first."
            )
        if slot.kept != before:
            raise PageError(
                f"page {order.page} cannot be {'changed in' if order.out else 'read from'} "
                f"{self.where}: its last write, number {before:,}, did not succeed. Write it again."
            )
        if order.out:
            slot.kept = 0

    def _end(self, order: Order, started: float) -> None:
        """For the same stage: its last access."""
        if order.error is None and order.out:
            order.slot.kept = order.generation
            self.written_bytes += order.part.nbytes
        elif order.error is None:
            self.read_bytes += order.part.nbytes
        self.seconds += perf_counter() - started


def _shut(owner: int, threads: tuple[CallThread, ...], release: Callable[[], None]) -> None:
    if os.getpid() == owner:  # a forked child has neither the threads nor the right to release
        for thread in threads:
            thread.stop()
        release()
