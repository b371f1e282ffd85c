"""Where the blocks of a page in a file go in memory that is not aligned to blocks.

A page lies in its file at some distance from a block's start, its `phase`: as it lay in the memory
it was written from. Direct I/O moves whole blocks between the file and block-aligned memory, so

- the file's first block, if it holds bytes that lie before the first aligned address of the memory,
  goes through a buffer: the head;
- the blocks after it go to the memory, from its first aligned address on: the body;
- what does not fit there, at most two blocks, goes through a buffer: the tail.

Where memory and file have the same phase, the body is then in its place. Otherwise it lies `shift`
bytes too high. Never too low: so runs of blocks can land one after another, and each be moved down
once it is there without touching the next.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Landing:
    """Bytes, counted from the start of the page's first block in the file unless named otherwise.

    With an alignment of 1 everything is body.
    """

    address: int  # of the memory
    nbytes: int
    phase: int
    head_bytes: int
    body_address: int
    body_bytes: int
    tail_bytes: int

    @classmethod
    def of(cls, address: int, nbytes: int, phase: int, align_bytes: int) -> "Landing":
        """The memory must hold at least one aligned block."""
        before = -address % align_bytes
        head = align_bytes if before + phase >= align_bytes else 0
        body = (nbytes - before) // align_bytes * align_bytes
        blocks = -(-(phase + nbytes) // align_bytes)
        tail = blocks * align_bytes - head - body
        return cls(address, nbytes, phase, head, address + before, body, tail)

    @property
    def shift(self) -> int:
        """How far the body lands above its place."""
        return self.body_address - self.address + self.phase - self.head_bytes

    @property
    def tail_start(self) -> int:
        """The place in the page of the tail's first byte."""
        return self.head_bytes + self.body_bytes - self.phase

    def place(self, offset: int) -> int:
        """The address where the page's byte at this place in the body belongs."""
        return self.body_address - self.shift + offset

    def runs(self, run_bytes: int) -> "list[tuple[int, int]]":
        """The body in pieces: where each starts in it and ends."""
        return [
            (start, min(start + run_bytes, self.body_bytes))
            for start in range(0, self.body_bytes, run_bytes)
        ]
