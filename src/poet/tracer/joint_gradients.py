"""Joint gradients: what is known only when all gradients are.

Each gradient is looked at as soon as it is complete, by an op that makes one or three numbers of
it: its norm, and its least and largest element, which are not finite if any is not. So a gradient
can be paged out at once. One op makes the verdict of all these numbers: the norm of all gradients,
the coefficient that each is multiplied by, and whether the updates are to be skipped. The calls are
those of `torch.nn.utils.clip_grad_norm_`, in their order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from poet.calls.sizes import ITEM_BYTES
from poet.errors import PoetError
from poet.tracer.lowered import View
from poet.tracer.viewed import Seen
from poet.values.graph import JsonReference, Op, Tensor
from poet.values.update_rules import UpdateRule

_BESIDE = 1e-6
"""What torch adds to the norm before it divides by it."""
_NORMS = {"complex64": "float32", "complex128": "float64"}


class Verdict(NamedTuple):
    """The op that has seen all gradients, and what it makes, by tensor."""

    op: Op
    norm: int | None
    coefficient: int | None
    skip: int | None


class Joint(NamedTuple):
    """The looks at single gradients, by parameter, and the verdict."""

    looks: dict[str, Op]
    verdict: Verdict | None


def joint_of(
    tensors: list[Tensor],
    gradients: Sequence[tuple[str, Tensor, View]],
    rule: UpdateRule,
    inverse_scale: int | None,
) -> Joint:
    """Look at gradients that are laid out like their parameters, in the order of those.

    New tensors are added to `tensors`.
    """
    dtypes = {parameter.dtype: name for name, parameter, _ in gradients}
    if len(dtypes) > 1:
        names = " and ".join(f"{name} is {dtype}" for dtype, name in list(dtypes.items())[:2])
        raise PoetError(
            f"the parameters have different dtypes ({names}), so POET cannot say in which order "
            "torch sums up their gradients' norms. Give all parameters one dtype, or leave out "
            "clip_norm and scaler"
        )
    (dtype,) = dtypes
    if rule.is_scaled and dtype not in ("float32", "float64", "bfloat16"):
        raise PoetError(
            f"the parameters are {dtype}, and torch unscales no gradients of that dtype: keep "
            "parameters in float32 and train under autocast, or leave out the scaler"
        )
    looks: dict[str, Op] = {}
    norms: list[int] = []
    extremes: list[int] = []
    for name, parameter, view in gradients:
        look, inputs, outputs = Seen(view), [view.tensor], []
        if rule.is_scaled and parameter.nbytes:
            ends = [_number(tensors, f"{name}.grad ({end})", dtype) for end in ("least", "largest")]
            results: list[JsonReference] = [{"tensor": i} for i in ends]
            look.call("aten.aminmax", {"self": look.result}, *results)
            extremes += ends
            outputs += ends
        if rule.clip_norm is not None:
            if inverse_scale is not None:
                look.make("aten.mul.Tensor", parameter, other={"tensor": inverse_scale})
                inputs.append(inverse_scale)
            norm = _number(tensors, f"{name}.grad (norm)", _NORMS.get(dtype or "", dtype))
            # A list of one: torch has a kernel of its own for lists on some devices.
            look.call(
                "aten._foreach_norm.Scalar",
                {"self": [look.result], "ord": 2.0},
                {"tensor": norm},
            )
            norms.append(norm)
            outputs.append(norm)
        if outputs:
            looks[name] = _op(f"{name}.grad (norm)", inputs, outputs, look)
    return Joint(looks, _verdict(tensors, rule, norms, extremes))


def _verdict(
    tensors: list[Tensor], rule: UpdateRule, norms: list[int], extremes: list[int]
) -> Verdict:
    look = Seen(View(0, (), (), {}))
    norm = coefficient = skip = None
    if rule.clip_norm is not None:
        dtype = tensors[norms[0]].dtype
        norm = _number(tensors, "norm of the gradients", dtype, "output")
        coefficient = _number(tensors, "clipping coefficient", dtype)
        stacked = _stacked(look, tensors, norms)
        look.call("aten.linalg_vector_norm", {"self": stacked, "ord": 2.0}, {"tensor": norm})
        look.result = {"tensor": norm}
        like = tensors[coefficient]
        look.make("aten.add.Tensor", like, other=_BESIDE)
        look.make("aten.reciprocal", like)
        look.make("aten.mul.Tensor", like, other=float(rule.clip_norm))
        clamped: dict[str, Any] = {"self": look.result, "max": 1.0}
        look.call("aten.clamp", clamped, {"tensor": coefficient})
    if rule.is_scaled:
        skip = _number(tensors, "whether a gradient is not finite", "bool", "output")
        look.result = _stacked(look, tensors, extremes)
        count, dtype = len(extremes), tensors[extremes[0]].dtype or ""
        size = look.number(dtype, count * ITEM_BYTES[dtype], (count,))
        look.call("aten.abs", {"self": look.result}, size)
        finite = look.number("bool", count, (count,))
        look.call("aten.lt.Scalar", {"self": size, "other": {"float": "inf"}}, finite)
        everywhere = look.number("bool", 1)
        look.call("aten.all", {"self": finite}, everywhere)
        look.call("aten.logical_not", {"self": everywhere}, {"tensor": skip})
    made = [i for i in (norm, coefficient, skip) if i is not None]
    op = _op("all gradients", [*norms, *extremes], made, look)
    return Verdict(op, norm, coefficient, skip)


def _stacked(look: Seen, tensors: list[Tensor], numbers: list[int]) -> JsonReference:
    dtype, count = tensors[numbers[0]].dtype or "", len(numbers)
    made = look.number(dtype, count * ITEM_BYTES[dtype], (count,))
    look.call("aten.stack", {"tensors": [{"tensor": i} for i in numbers]}, made)
    return made


def _op(name: str, inputs: list[int], outputs: list[int], look: Seen) -> Op:
    """Of the updates' phase, so that it is merged with nothing: a gradient stays free to leave."""
    return Op(
        name=name,
        phase="update",
        inputs=tuple(dict.fromkeys(inputs)),
        outputs=tuple(outputs),
        recomputable=False,
        values=tuple(look.values),
        calls=tuple(look.calls),
    )


def _number(tensors: list[Tensor], name: str, dtype: str | None, role: Any = "gradient") -> int:
    nbytes = ITEM_BYTES[dtype or ""]
    tensors.append(Tensor(name=name, nbytes=nbytes, role=role, shape=(), dtype=dtype))
    return len(tensors) - 1
