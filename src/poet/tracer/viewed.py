"""Viewed: the calls of an op that begin with a gradient seen through views, while they are put
together."""

from typing import Any

from poet.tracer.lowered import View
from poet.values.graph import Call, JsonReference, Tensor, Value


class Seen:
    """Calls, the inner values that they make, and what has come of the gradient so far."""

    def __init__(self, view: View) -> None:
        self.calls: list[Call] = list(view.calls)
        self.values: list[Value] = list(view.values)
        self.result: JsonReference = view.result

    def call(self, kind: str, arguments: dict[str, Any], *results: JsonReference | None) -> None:
        self.calls.append(Call(kind=kind, arguments=arguments, results=results))

    def make(self, kind: str, like: Tensor, **arguments: Any) -> None:
        """Go on with what a call makes of it, as large as it is."""
        assert like.shape is not None
        assert like.dtype is not None
        made = self.value(
            Value(nbytes=like.nbytes, shape=like.shape, dtype=like.dtype, strides=like.strides)
        )
        self.call(kind, {"self": self.result, **arguments}, made)
        self.result = made

    def value(self, about: Value) -> JsonReference:
        self.values.append(about)
        return {"value": len(self.values) - 1}

    def number(self, dtype: str, nbytes: int, shape: tuple[int, ...] = ()) -> JsonReference:
        """An inner value of one element, or of a few."""
        return self.value(Value(nbytes=nbytes, shape=shape, dtype=dtype))
