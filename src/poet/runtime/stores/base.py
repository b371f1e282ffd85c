"""What a page store is: secondary storage for the pages of a training step.

A page is one tensor's whole storage. The runtime decides which page moves when; a store moves the
bytes, and gives back exactly the bytes it was given or an error, never anything else. Transfers
start in the order they were asked for, beside the computation. Pages that are reserved for it can
be moved in parts, too: some of their bytes, wherever they begin and end.

`file_store` keeps pages in a file, `memory_store` in host memory. This module holds only what they
have in common for those who use them.
"""

import threading
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

import torch


class PagePart(NamedTuple):
    """Some bytes of a page: `nbytes` of them from `start` on, at place `at` of a storage."""

    start: int
    nbytes: int
    at: int = 0


class PageTransfer:
    """One page on its way."""

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.told = False  # whether somebody has seen the error
        self._moving = threading.Lock()
        self._moving.acquire()

    def wait(self) -> None:
        """Return when the page has arrived; raise what went wrong."""
        self.settle()
        if self.error is not None:
            self.told = True
            raise self.error

    def settle(self) -> None:
        """Return when the page has arrived, or failed to."""
        with self._moving:
            pass

    def finish(self, error: BaseException | None = None) -> None:
        """For stores: the page has arrived, or failed to."""
        self.error = error
        self.done = True
        self._moving.release()


class Store(Protocol):
    """One thread calls a store; the store has threads of its own."""

    @property
    def buffer_bytes(self) -> int:
        """RAM that the store takes for itself, whatever it stores."""

    @property
    def size_bytes(self) -> int:
        """What is reserved for pages."""

    @property
    def read_bytes(self) -> int:
        """What reached storages; not what a store had to read besides."""

    @property
    def written_bytes(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Time in which pages were moving."""

    def reserve(self, pages: Mapping[int, int], in_parts: Collection[int] = ()) -> None:
        """Make room for pages of so many bytes; what was stored before is gone.

        Those named in `in_parts` can be moved in parts.
        """

    def write(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> PageTransfer:
        """Start copying a storage to its page. It must not change until the transfer is done.

        With `now`, do it in the calling thread, after everything that was asked for before.
        """

    def read(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> PageTransfer:
        """Start copying a page to a storage of the page's size."""

    def begin(self, page: int) -> None:
        """A page that is reserved in parts begins anew, with nothing in it, to be written in parts.

        What is read before it was written is an error, in stores that check.
        """

    def write_part(self, page: int, storage: torch.UntypedStorage, part: PagePart) -> None:
        """Copy some bytes of a storage to some of a page that is there already.

        It is done in the calling thread, after everything that was asked for before. If it fails,
        all of the page counts as lost.
        """

    def read_part(self, page: int, storage: torch.UntypedStorage, part: PagePart) -> None:
        """The other way round."""

    def flush(self) -> None:
        """Wait for all transfers; raise the first error that no `wait` has raised."""

    def close(self) -> None:
        """Wait for all transfers and give back everything. More than once is fine."""
