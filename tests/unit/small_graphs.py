"""Graphs of one op, written down call by call, for tests of costs."""

import math
from typing import Any

from poet import Call, Graph, InPlace, Op, Tensor, Value
from poet.calls.sizes import ITEM_BYTES

T0, T1, T2 = {"tensor": 0}, {"tensor": 1}, {"tensor": 2}
V0, V1, V2 = {"value": 0}, {"value": 1}, {"value": 2}


def tensor(*shape: int, dtype: str = "float32", **fields: Any) -> Tensor:
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    return Tensor(name="t", shape=shape, dtype=dtype, nbytes=nbytes, **fields)


def value(*shape: int, **fields: Any) -> Value:
    return Value(nbytes=math.prod(shape) * 4, shape=shape, dtype="float32", **fields)


def view(of: dict[str, int], *shape: int, strides: tuple[int, ...] | None = None) -> Value:
    return Value(nbytes=0, shape=shape, dtype="float32", strides=strides, view_of=of)


def one_call(
    kind: str,
    arrays: dict[str, Tensor | list[Tensor]],
    made: list[Tensor | None],
    in_place: tuple[InPlace, ...] = (),
    **options: Any,
) -> Graph:
    """A graph of one op with one call: `arrays` are its tensor arguments, `made` its results."""
    tensors: list[Tensor] = []

    def add(new: Tensor) -> dict[str, int]:
        tensors.append(new)
        return {"tensor": len(tensors) - 1}

    arguments: dict[str, Any] = {
        name: [add(each) for each in given] if isinstance(given, list) else add(given)
        for name, given in arrays.items()
    }
    inputs = tuple(range(len(tensors)))
    results = tuple(None if new is None else add(new) for new in made)
    op = Op(
        name="f",
        inputs=inputs,
        outputs=tuple(range(len(inputs), len(tensors))),
        in_place=in_place,
        calls=(Call(kind=kind, arguments=arguments | options, results=results),),
    )
    return Graph(name="g", tensors=tuple(tensors), ops=(op,))


def neg(source: dict[str, int], result: dict[str, int], kind: str = "aten.neg") -> Call:
    return Call(kind=kind, arguments={"self": source}, results=(result,))


def add(first: dict[str, int], second: dict[str, int], result: dict[str, int]) -> Call:
    arguments = {"self": first, "other": second}
    return Call(kind="aten.add.Tensor", arguments=arguments, results=(result,))


def op_of(*calls: Call, values: tuple[Value, ...] = (), **fields: Any) -> Graph:
    made = {"inputs": (0,), "outputs": (1,)} | fields
    op = Op(name="f", values=values, calls=calls, **made)
    return Graph(name="g", tensors=(tensor(8), tensor(8), tensor(8)), ops=(op,))


def merged() -> Graph:
    """Four calls of 8 FLOPs, one after the other: two inner values at once at the most."""
    inner = (value(8), value(8), value(8))
    calls = (neg(T0, V0), neg(V0, V1), neg(V1, V2), neg(V2, T1))
    return op_of(*calls, values=inner)
