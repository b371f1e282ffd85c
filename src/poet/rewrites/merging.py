"""Merging: ops whose inner tensors are never worth a decision become one op.

A tensor with one reader, which the backward pass does not need, is made and used up at once in any
sensible schedule: keeping or paging it saves nothing over keeping what its reader makes of it, as
long as that is no larger. Such a tensor is hidden inside one op that does the work of both, and the
planner never hears of it. The op's workspace counts it for as long as it lives.

The rules, each of which must hold for a tensor t that op A makes and op B reads:
1. A and B are of one phase, can be recomputed, and nobody else reads t.
2. B makes no more than t holds, give or take a little, or t is small.
3. A can run right before B, or B right after A, and what is alive in between grows no larger.
4. The whole needs no more RAM at once than half the largest op of the graph, or than A or B alone.
   Where updates are fused, parameters may be streamed, and do not count.

Ops that only touch a few bytes (BatchNorm's step counters) join their neighbour. The rules know
bytes and kinds, not devices, so that one graph serves every board.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from poet.rewrites.joining import joined
from poet.values.graph import Op, Tensor

SMALL_BYTES = 4096
"""A tensor up to this size is never worth a decision."""
_GROWTH = 1.05
# A merged op goes by the name of the first of these in it.
_HEAVY = (
    "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "attention", "rnn", "einsum", "lstm",
)  # fmt: skip


def merged(
    tensors: Sequence[Tensor], ops: Sequence[Op], kept: frozenset[int], fused: bool = False
) -> list[Op]:
    """The ops after merging, in an order that is still topological. `kept` stay visible."""
    return _Merging(tensors, ops, kept, fused).run()


class _Merging:
    def __init__(
        self, tensors: Sequence[Tensor], ops: Sequence[Op], kept: frozenset[int], fused: bool
    ) -> None:
        self.tensors = tensors
        uncounted = ("parameter", "optimizer_state") if fused else ()
        self.counted = [0 if t.role in uncounted else t.nbytes for t in tensors]
        self.ops: list[Op | None] = list(ops)
        self.heavy = [_is_heavy(op) for op in ops]
        self.inner_bytes = [sum(value.nbytes for value in op.values) for op in ops]
        self.maker: dict[int, int] = {i: k for k, op in enumerate(ops) for i in op.outputs}
        self.readers: dict[int, set[int]] = {}
        for k, op in enumerate(ops):
            for i in op.inputs:
                self.readers.setdefault(i, set()).add(k)
        self.kept = kept
        ready = [k for k, op in enumerate(ops) if op.phase != "update" or not fused]
        self.half = max(map(self._footprint, ready), default=0) / 2

    def run(self) -> list[Op]:
        changed = True
        while changed:
            changed = sum(self._merge_into(k) for k in range(len(self.ops))) > 0
        for k in range(len(self.ops)):
            self._join_neighbour(k)
        return [op for op in self.ops if op is not None]

    def _merge_into(self, b: int) -> bool:
        """Merge into op b one op that makes something for it, if the rules allow."""
        op = self.ops[b]
        if op is None:
            return False
        for t in op.inputs:
            a = self.maker.get(t)
            if a is None or not self._worthwhile(a, b, t):
                continue
            if self._can_wait(a, b):
                self._join(a, b, at=b)
                return True
            if self._can_hurry(a, b, t):
                self._join(a, b, at=a)
                return True
        return False

    def _worthwhile(self, a: int, b: int, t: int) -> bool:
        first, second = self._op(a), self._op(b)
        tensor = self.tensors[t]
        if (
            first.phase != second.phase
            or first.phase == "update"
            or not (first.recomputable and second.recomputable)
            or not self._hidden(t, b)
        ):
            return False
        made = self._bytes(second.outputs)
        small = tensor.nbytes <= SMALL_BYTES
        if not small and made > tensor.nbytes * _GROWTH + SMALL_BYTES:
            return False
        inputs = {*first.inputs, *second.inputs} - set(first.outputs)
        hidden = [i for i in first.outputs if self._hidden(i, b)]
        whole = self._bytes(inputs) + self._bytes({*first.outputs, *second.outputs})
        whole += self.inner_bytes[a] + self.inner_bytes[b]
        alone = max(self._footprint(a), self._footprint(b))
        return bool(hidden) and whole <= max(alone, self.half)

    def _hidden(self, t: int, b: int) -> bool:
        """Whether tensor t may vanish once its maker is part of op b."""
        return (
            t not in self.kept
            and self.tensors[t].role in ("activation", "gradient")
            and self.tensors[t].becomes is None
            and self.readers.get(t, set()) == {b}
        )

    def _can_wait(self, a: int, b: int) -> bool:
        """Whether op a can as well run right before op b."""
        op = self._op(a)
        if any(min(self.readers[i], default=b) < b for i in op.outputs if i in self.readers):
            return False
        for other in self._between(a, b):
            if not set(other.consumed).isdisjoint(op.inputs):
                return False
            if op.random_state_bytes and other.random_state_bytes:
                return False
        longer = [
            i
            for i in op.inputs
            if self.tensors[i].role in ("activation", "gradient") and max(self.readers[i]) == a
        ]
        alone = next(self._between(a, b), None) is None
        return alone or self._bytes(longer) <= self._bytes(op.outputs)

    def _can_hurry(self, a: int, b: int, t: int) -> bool:
        """Whether op b can as well run right after op a, and what it makes takes t's place."""
        op = self._op(b)
        if any(self.maker.get(i, a) > a for i in op.inputs):
            return False
        if self._bytes(op.outputs) > self.tensors[t].nbytes * _GROWTH + SMALL_BYTES:
            return False
        return not (
            op.random_state_bytes and any(o.random_state_bytes for o in self._between(a, b))
        )

    def _between(self, a: int, b: int) -> Iterator[Op]:
        return (op for op in self.ops[a + 1 : b] if op is not None)

    def _op(self, k: int) -> Op:
        op = self.ops[k]
        assert op is not None
        return op

    def _join(self, a: int, b: int, at: int) -> None:
        """Make one op of two, at the place of either."""
        first, second = self._op(a), self._op(b)
        gone = a + b - at
        hidden = frozenset(i for i in first.outputs if self._hidden(i, b))
        name = first.name if self.heavy[a] else second.name
        self.ops[at] = joined((first, second), hidden, self.tensors, name)
        self.ops[gone] = None
        self.heavy[at] = self.heavy[a] or self.heavy[b]
        self.inner_bytes[at] = self.inner_bytes[a] + self.inner_bytes[b] + self._bytes(hidden)
        for i in (*first.inputs, *second.inputs):
            self.readers[i] -= {a, b}
        for i in self._op(at).inputs:
            self.readers[i].add(at)
        for i in (*first.outputs, *second.outputs):
            self.maker[i] = at

    def _join_neighbour(self, a: int) -> None:
        """An op that only touches a few bytes runs with the next one."""
        op = self.ops[a]
        if op is None or not op.recomputable or op.phase == "update":
            return
        if self._bytes((*op.inputs, *op.outputs)) + self.inner_bytes[a] > SMALL_BYTES:
            return
        b = next((k for k in range(a + 1, len(self.ops)) if self.ops[k] is not None), None)
        if b is None:
            return
        other = self._op(b)
        if other.phase == op.phase and other.recomputable:
            self._join(a, b, at=b)

    def _footprint(self, k: int) -> int:
        op = self._op(k)
        return self._bytes((*op.inputs, *op.outputs)) + self.inner_bytes[k]

    def _bytes(self, ids: Iterable[int]) -> int:
        return sum(self.counted[i] for i in ids)


def _is_heavy(op: Op) -> bool:
    words = (word for call in op.calls for word in re.split(r"[._]", call.family)[1:])
    return not set(words).isdisjoint(_HEAVY)
