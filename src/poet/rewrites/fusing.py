"""Fusing: a weight gradient and the update that alone reads it become one op.

The gradient then never exists outside that op, so that a parameter that is read in tiles can be
updated in tiles: of its gradient, too, only a tile is ever there.
"""

from collections.abc import Sequence

from poet.rewrites.joining import joined
from poet.values.graph import Op, Tensor


def fused(tensors: Sequence[Tensor], ops: Sequence[Op]) -> list[Op]:
    """The ops with each update that follows its gradient's op directly made one with it.

    Only updates that are their gradient's single reader are; the gradient becomes an inner value.
    """
    readers: dict[int, int] = {}
    for op in ops:
        for i in op.inputs:
            readers[i] = readers.get(i, 0) + 1
    made: list[Op] = []
    for op in ops:
        if op.phase == "update" and made:
            last = made[-1]
            hidden = {
                i
                for i in op.inputs
                if i in last.outputs and readers[i] == 1 and tensors[i].role == "gradient"
            }
            if hidden:
                made[-1] = joined((last, op), frozenset(hidden), tensors, last.name)
                continue
        made.append(op)
    return made
