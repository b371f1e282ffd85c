"""Machine: what a running step has besides its tensors: pages, random states, and a count of bytes.

Bytes are those of real storages, looked up when a tensor is made. Before an op runs, `room` asks
whether its outputs and workspace fit beside all that is alive; where transfers run beside compute
it first waits for page-outs that still hold memory. What does not fit raises before it is
allocated. Tiles of tensors that are streamed are part of an op's workspace.

A page-in starts where the schedule has it, once there is room: real transfers are faster or slower
than planned ones, and the budget holds either way.
"""

from collections.abc import Callable, Iterable, Mapping

import torch

from poet.errors import OutOfBudget
from poet.runtime.stores.base import PagePart, PageTransfer, Store
from poet.tracer.arguments import dtype_named
from poet.values.graph import Graph

_SMALL_BYTES = 64 * 1024
"""Buffers up to this size are exchanged by way of a copy, which takes a third of the time."""


class Machine:
    """State of one step.

    `homes` are storages that the model owns, of what is freed or paged in: emptied, never dropped.
    """

    lap: Callable[[int], None]
    """Whom tapes with laps tell that an instruction has ended."""

    def __init__(
        self,
        graph: Graph,
        store: Store | None,
        budget_bytes: int | None,
        homes: Mapping[int, torch.UntypedStorage],
        slots: Mapping[int, int],
        wait: bool,
        device: torch.device,
    ) -> None:
        self.graph = graph
        self.store = store
        self.budget_bytes = budget_bytes
        self.homes = homes
        self.slots = slots
        self.wait = wait
        self.device = device
        self.live_bytes = 0
        self.peak_bytes = 0
        self.is_as_planned = True
        """Whether all tensors that were made had the bytes of the plan."""
        self._bytes: dict[int, int] = {}
        self._coming: dict[int, tuple[PageTransfer, torch.Tensor]] = {}
        self._going: dict[int, tuple[PageTransfer, int]] = {}
        self.has_updated = False
        """Whether an update has begun: before that, a step has changed nothing that lasts."""
        self._drawn: dict[int, torch.Tensor] = {}
        self._now: torch.Tensor | None = None

    def start(self, given: Mapping[int, torch.Tensor], beside_bytes: int = 0) -> None:
        """A new step begins with these tensors in RAM, and so many bytes of somebody else's.

        Of a batch that is a piece of something larger, the rest is none of the step's business.
        """
        self._bytes = {i: tensor.untyped_storage().nbytes() for i, tensor in given.items()}
        for i in self.graph.batch:
            if i in given:
                self._bytes[i] = min(self._bytes[i], self.graph.tensors[i].nbytes)
        self.live_bytes = self.peak_bytes = 0
        self.hold(sum(self._bytes.values()) + beside_bytes)
        self._coming.clear()
        self._going.clear()

    def bytes_of(self, tensors: Iterable[int]) -> int:
        """What these take that are in RAM."""
        return sum(map(self._bytes.__getitem__, tensors))

    def hold(self, nbytes: int) -> None:
        """Somebody else has taken so many bytes more, or fewer, until the step ends."""
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def room(self, k: int, nbytes: int) -> None:
        """Make sure that op k can take so many bytes more."""
        need = self.live_bytes + nbytes
        if self.budget_bytes is not None and need > self.budget_bytes:
            need = self._need_after_page_outs(nbytes)
            if need > self.budget_bytes:
                raise OutOfBudget(
                    f"{self.graph.op_text(k)} would bring RAM to {need:,} bytes; the budget is "
                    f"{self.budget_bytes:,}"
                )
        self.peak_bytes = max(self.peak_bytes, need)

    def stretch(self, k: int, most_bytes: int, made_bytes: int, freed_bytes: int) -> None:
        """A stretch of the tape whose bytes are known: at most so many more, in op k."""
        self.room(k, most_bytes)
        self.live_bytes += made_bytes - freed_bytes

    def _need_after_page_outs(self, nbytes: int) -> int:
        """The bytes there would be with so many more, once enough page-outs have ended."""
        for i in list(self._going):
            if self.live_bytes + nbytes <= (self.budget_bytes or 0):
                break
            transfer, held = self._going.pop(i)
            transfer.wait()
            self.live_bytes -= held
        return self.live_bytes + nbytes

    def made(self, i: int, tensor: torch.Tensor) -> None:
        """A tensor was made: count the bytes it really has, be they more than planned."""
        self._bytes[i] = nbytes = tensor.untyped_storage().nbytes()
        self.live_bytes += nbytes
        planned = self.graph.tensors[i].nbytes
        if nbytes != planned:
            self.is_as_planned = False
        if nbytes > planned and self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
            if self.budget_bytes is not None and self.live_bytes > self.budget_bytes:
                raise OutOfBudget(
                    f"{self.graph.tensor_text(i)} has {nbytes:,} bytes, where the plan has "
                    f"{planned:,}, and brings RAM to {self.live_bytes:,}; the budget is "
                    f"{self.budget_bytes:,}. This torch, or this processor, is not the one that "
                    "the step was captured with: capture and plan it here"
                )

    def seat(self, new: int, old: int) -> None:
        """A tensor took over the bytes of another."""
        self._bytes[new] = self._bytes.pop(old)

    def free(self, i: int, tensor: torch.Tensor) -> None:
        """A tensor leaves RAM, once a page-out of it has ended."""
        nbytes = self._bytes.pop(i)
        if self._going.get(i, (None, 0))[1]:  # bytes of an earlier stay in RAM
            self.settle(i)
        if i in self._going:
            transfer, _ = self._going[i]
            if i in self.homes:  # its storage is about to be emptied
                transfer.wait()
                del self._going[i]
            else:
                self._going[i] = (transfer, nbytes)
                if not transfer.done:
                    return
                del self._going[i]
        if i in self.homes:
            self.homes[i].resize_(0)
        self.live_bytes -= nbytes

    def page_out(self, i: int, tensor: torch.Tensor) -> None:
        assert self.store is not None
        self.settle(i)  # an earlier page-out of it may still hold bytes
        transfer = self.store.write(self.slots[i], tensor.untyped_storage(), now=self.wait)
        if self.wait:
            transfer.wait()
        else:
            self._going[i] = (transfer, 0)

    def page_in(self, i: int) -> None:
        """Start a page-in, once there is room for it."""
        assert self.store is not None
        nbytes = self.graph.tensors[i].nbytes
        self.room_for_page(i, nbytes)
        tensor = self._empty(i)
        transfer = self.store.read(self.slots[i], tensor.untyped_storage(), now=self.wait)
        self._coming[i] = (transfer, tensor)
        self._bytes[i] = nbytes
        self.live_bytes += nbytes

    def arrive(self, i: int) -> torch.Tensor:
        """A tensor that was paged in, before its first use."""
        transfer, tensor = self._coming.pop(i)
        transfer.wait()
        return tensor

    def room_for_page(self, i: int, nbytes: int) -> None:
        need = self.live_bytes + nbytes
        if self.budget_bytes is not None and need > self.budget_bytes:
            need = self._need_after_page_outs(nbytes)
            if need > self.budget_bytes:
                raise OutOfBudget(
                    f"the page-in of {self.graph.tensor_text(i)} would bring RAM to {need:,} "
                    f"bytes; the budget is {self.budget_bytes:,}"
                )
        self.peak_bytes = max(self.peak_bytes, need)

    def _empty(self, i: int) -> torch.Tensor:
        about = self.graph.tensors[i]
        assert about.shape is not None
        dtype = dtype_named(about.dtype)
        strides = about.strides or torch.empty(about.shape, device="meta").stride()
        if i in self.homes:
            self.homes[i].resize_(about.nbytes)
            blank = torch.empty(0, dtype=dtype, device=self.device)
            return blank.set_(self.homes[i], 0, about.shape, strides)
        return torch.empty_strided(about.shape, strides, dtype=dtype, device=self.device)

    def stream_in(self, i: int, tile: torch.Tensor, start: int, count: int, at: int = 0) -> None:
        """Bring some bytes of a tensor from the store to place `at` of a tile's storage."""
        assert self.store is not None
        self.store.read_part(self.slots[i], tile.untyped_storage(), PagePart(start, count, at))

    def stream_out(self, i: int, tile: torch.Tensor, start: int, count: int, at: int = 0) -> None:
        """The other way round."""
        assert self.store is not None
        self.store.write_part(self.slots[i], tile.untyped_storage(), PagePart(start, count, at))

    def stream_begin(self, i: int) -> None:
        """A new tensor is about to be written to the store, part by part."""
        assert self.store is not None
        self.store.begin(self.slots[i])

    def exchange(self, old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put a buffer's new value where the model has it, and give the old one in another place.

        The user may look at the model between the passes; what the step reads stays as it was.
        """
        nbytes = new.nbytes
        most_bytes = self.live_bytes + nbytes
        has_room = self.budget_bytes is None or most_bytes <= self.budget_bytes
        is_plain = old.is_contiguous() and new.is_contiguous() and not old.is_inference()
        if has_room and is_plain and nbytes <= _SMALL_BYTES:
            self.peak_bytes = max(self.peak_bytes, most_bytes)
            kept = old.clone()
            old.copy_(new)
            return kept, old
        _exchange_bits(old, new)
        return new, old

    def settle(self, i: int) -> None:
        """Before a tensor is written over: its page-out must have ended."""
        transfer, held = self._going.pop(i, (None, 0))
        if transfer is not None:
            transfer.wait()
            self.live_bytes -= held

    def draw(self, k: int) -> None:
        """Keep the random state before op k draws."""
        self._drawn[k] = self.random_state()

    def draw_again(self, k: int) -> None:
        """Go back to the random state before op k drew first."""
        self._now = self.random_state()
        self.set_random_state(self._drawn[k])

    def draw_on(self) -> None:
        """Go on from where the random generator was."""
        assert self._now is not None
        self.set_random_state(self._now)

    def random_state(self) -> torch.Tensor:
        """That of the generator that the step's ops draw from."""
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return torch.get_rng_state()

    def set_random_state(self, state: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)

    def finish(self) -> None:
        """The step has ended: nothing may be under way."""
        for transfer, _ in (*self._coming.values(), *self._going.values()):
            transfer.wait()
        self._coming.clear()
        self._going.clear()
        self._drawn.clear()


def _exchange_bits(old: torch.Tensor, new: torch.Tensor) -> None:
    """Exchange whole storages in place, however tensors lie in them."""
    mine, theirs = (
        torch.empty(0, dtype=torch.uint8, device=each.device).set_(each.untyped_storage())
        for each in (old, new)
    )
    mine ^= theirs
    theirs ^= mine
    mine ^= theirs
    torch.autograd.graph.increment_version(old)
