"""The first gradient: what the backward pass starts from, where the loss counts in part, or scaled.

`(loss / n).backward()` and `scaler.scale(loss).backward()` start the backward pass of the loss from
another number than 1. So the loss stays what it is, and that number is worked out by the calls that
autograd would make.
"""

from typing import Any

import msgspec

from poet.calls.sizes import ITEM_BYTES
from poet.tracer.lowered import FIRST, Lowered, View
from poet.tracer.viewed import Seen
from poet.values.graph import Op, Tensor
from poet.values.update_rules import UpdateRule


def with_first_gradient(step: Lowered, rule: UpdateRule) -> tuple[Lowered, int | None]:
    """The step with its first gradient as the rule has it, and the scale, if that is an input."""
    if rule.accumulate == 1 and not rule.is_scaled:
        return step, None
    tensors, ops = list(step.tensors), list(step.ops)
    k = next(k for k, op in enumerate(ops) if op.name == FIRST)
    (made,) = ops[k].outputs
    about = tensors[made]
    scale = None
    if rule.is_scaled:
        scale = len(tensors)
        tensors.append(Tensor(name="scale", nbytes=4, role="input", shape=(), dtype="float32"))
    ops[k] = _first(ops[k], about, scale, rule.accumulate)
    return step._replace(tensors=tensors, ops=ops), scale


def _first(op: Op, about: Tensor, scale: int | None, share: int) -> Op:
    assert about.dtype is not None
    look = Seen(View(op.outputs[0], (), (), {}))
    (begin,) = op.calls
    wide = "float32" if scale is not None and ITEM_BYTES[about.dtype] < 4 else about.dtype
    arguments: dict[str, Any] = begin.arguments | {"dtype": {"dtype": wide}}
    like = msgspec.structs.replace(about, dtype=wide, nbytes=ITEM_BYTES[wide])
    look.result = look.number(wide, like.nbytes, about.shape or ())
    look.call(begin.kind, arguments, look.result)
    if scale is not None:
        look.make("aten.mul.Tensor", like, other={"tensor": scale})
        if wide != about.dtype:
            look.make("aten._to_copy", about, dtype={"dtype": about.dtype})
    if share > 1:
        look.make("aten.div.Tensor", about, other=share)
    last = msgspec.structs.replace(look.calls[-1], results=({"tensor": op.outputs[0]},))
    return msgspec.structs.replace(
        op,
        inputs=() if scale is None else (scale,),
        values=tuple(look.values[:-1]),
        calls=(*look.calls[:-1], last),
    )
