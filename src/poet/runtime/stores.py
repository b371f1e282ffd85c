"""What a page store is: secondary storage for the pages of a training step.

A page is one tensor's whole storage. The runtime decides which page moves when; a store moves the
bytes, and gives back exactly the bytes it was given or an error, never anything else. Transfers
start in the order they were asked for, beside the computation.

`file_store` keeps pages in a file, `memory_store` in host memory. This module holds only what they
have in common for those who use them.
"""

import threading
from collections.abc import Mapping
from typing import Protocol

import torch

from poet.errors import PoetError


class PageError(PoetError):
    """A page that could not be moved, or did not come back as it was."""


class Transfer:
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
    def read_bytes(self) -> int: ...

    @property
    def written_bytes(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Time in which pages were moving."""

    def reserve(self, pages: Mapping[int, int]) -> None:
        """Make room for pages of so many bytes; what was stored before is gone."""

    def write(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> Transfer:
        """Start copying a storage to its page. It must not change until the transfer is done.

        With `now`, do it in the calling thread, after everything that was asked for before.
        """

    def read(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> Transfer:
        """Start copying a page to a storage of the page's size."""

    def flush(self) -> None:
        """Wait for all transfers; raise the first error that no `wait` has raised."""

    def close(self) -> None:
        """Wait for all transfers and give back everything. More than once is fine."""
