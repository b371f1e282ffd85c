"""Joining: several ops become one, and tensors that nobody sees any more become inner values."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from poet.values.graph import Call, InPlace, JsonReference, Op, Tensor, Value


def joined(ops: Sequence[Op], hidden: frozenset[int], tensors: Sequence[Tensor], name: str) -> Op:
    """One op that does what these do, in order; `hidden` are outputs that stay inside."""
    values: list[Value] = []
    calls: list[Call] = []
    inside = {i: n for n, i in enumerate(i for op in ops for i in op.outputs if i in hidden)}
    for i in inside:
        made = tensors[i]
        assert made.shape is not None
        assert made.dtype is not None
        values.append(
            Value(
                nbytes=made.nbytes,
                shape=made.shape,
                dtype=made.dtype,
                strides=made.strides,
                answers=made.answers,
            )
        )
    for op in ops:
        offset = len(values)

        def moved(reference: JsonReference, offset: int = offset) -> JsonReference:
            ((tag, n),) = reference.items()
            if tag == "value":
                return {"value": n + offset}
            return {"value": inside[n]} if n in inside else {"tensor": n}

        for value in op.values:
            of = value.view_of
            values.append(msgspec.structs.replace(value, view_of=None if of is None else moved(of)))
        calls += [_moved_call(call, moved) for call in op.calls]
    made_here = {i for op in ops for i in op.outputs}
    inputs = dict.fromkeys(i for op in ops for i in op.inputs if i not in made_here)
    return Op(
        name=name,
        phase=ops[-1].phase,
        inputs=tuple(inputs),
        outputs=tuple(i for op in ops for i in op.outputs if i not in hidden),
        in_place=tuple(pair for op in ops for pair in op.in_place),
        recomputable=all(op.recomputable for op in ops),
        random_state_bytes=max(op.random_state_bytes for op in ops),
        values=tuple(values),
        calls=tuple(calls),
    )


def _moved_call(call: Call, moved: Any) -> Call:
    arguments = {name: _moved_argument(item, moved) for name, item in call.arguments.items()}
    results = tuple(None if result is None else moved(result) for result in call.results)
    return Call(kind=call.kind, arguments=arguments, results=results)


def _moved_argument(argument: Any, moved: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_moved_argument(item, moved) for item in argument]
    if isinstance(argument, dict) and not argument.keys().isdisjoint(("tensor", "value")):
        return moved(argument)
    return argument


def renumbered(
    tensors: Sequence[Tensor], ops: Sequence[Op], kept: Iterable[int]
) -> tuple[list[Tensor], list[Op], dict[int, int]]:
    """The same with tensors that no op uses left out, and where each tensor went.

    `kept` are tensors to keep though no op reads or makes them.
    """
    used = {i for op in ops for i in (*op.inputs, *op.outputs)} | set(kept)
    used |= {old for i in used if (old := tensors[i].becomes) is not None}
    place = {old: new for new, old in enumerate(sorted(used))}
    made = [
        msgspec.structs.replace(
            tensors[i], becomes=None if (old := tensors[i].becomes) is None else place[old]
        )
        for i in place
    ]

    def moved(reference: JsonReference) -> JsonReference:
        return {"tensor": place[reference["tensor"]]} if "tensor" in reference else reference

    return made, [_moved_op(op, place, moved) for op in ops], place


def _moved_op(op: Op, place: dict[int, int], moved: Any) -> Op:
    values = tuple(
        value
        if value.view_of is None
        else msgspec.structs.replace(value, view_of=moved(value.view_of))
        for value in op.values
    )
    return msgspec.structs.replace(
        op,
        inputs=tuple(place[i] for i in op.inputs),
        outputs=tuple(place[i] for i in op.outputs),
        in_place=tuple(
            InPlace(output=place[pair.output], input=place[pair.input]) for pair in op.in_place
        ),
        values=values,
        calls=tuple(_moved_call(call, moved) for call in op.calls),
    )
