"""A graph refuses whatever would make it meaningless, and says what."""

import re
from typing import Any

import msgspec
import pytest

from poet import Call, Graph, InPlace, Op, Tensor, Value


def tensor(nbytes: int = 4, **fields: Any) -> Tensor:
    return Tensor(name="t", nbytes=nbytes, **fields)


def graph(tensors: list[Tensor], *ops: Op) -> Graph:
    return Graph(name="g", tensors=tuple(tensors), ops=ops)


def op(inputs: tuple[int, ...], outputs: tuple[int, ...], **fields: Any) -> Op:
    return Op(name="f", inputs=inputs, outputs=outputs, **fields)


def test_producers_readers_and_givens() -> None:
    g = graph([tensor()] * 4, op((0,), (1, 2)), op((0, 2), (3,)))
    assert g.producer == (None, 0, 0, 1)
    assert g.readers == ((0, 1), (), (1,), ())
    assert g.given == (0,)


def test_consumers_heirs_and_slots() -> None:
    in_place = (InPlace(output=3, input=1),)
    tensors = [tensor(), tensor(), tensor(becomes=0), tensor(becomes=1)]
    g = graph(tensors, op((0, 1), (2,)), op((1, 2), (3,), in_place=in_place))
    assert g.consumer == (None, 1, None, None)
    assert g.heir == {0: 2, 1: 3}
    assert g.slot == (0, 1, 0, 1)


WRONG = [
    (lambda: graph([tensor()]), "no ops"),
    (lambda: op((), ()), "no outputs"),
    (lambda: op((1, 1), (2,)), "twice in inputs"),
    (lambda: graph([tensor()], op((), (1,))), "names tensor 1; the graph has tensors 0 to 0"),
    (lambda: graph([tensor()], op((-1,), (0,))), "names tensor -1"),
    (lambda: graph([tensor()], op((), (0,)), op((), (0,))), "made by both op 0 and op 1"),
    (lambda: graph([tensor()] * 2, op((1,), (0,)), op((), (1,))), "topological order"),
    (lambda: graph([tensor()] * 2, op((1,), (0,)), op((0,), (1,))), "cycle: op"),
    (lambda: graph([tensor()], op((0,), (0,))), "cycle: op 0 -> op 0"),
    (lambda: tensor(-1), "nbytes is -1"),
    (lambda: tensor(2**53), "nbytes is 9007199254740992"),
    (lambda: tensor(shape=(2, -3)), "extents cannot be negative"),
    (lambda: op((0,), (1,), in_place=(InPlace(output=1, input=5),)), "not one of its outputs"),
    (
        lambda: graph(
            [tensor(4), tensor(8)], op((0,), (1,), in_place=(InPlace(output=1, input=0),))
        ),
        "8 bytes in place of tensor 0 (t) of 4 bytes",
    ),
    (
        lambda: graph(
            [tensor()] * 3,
            op((0,), (1,), in_place=(InPlace(output=1, input=0),)),
            op((0,), (2,)),
        ),
        "after op 0 (f, forward) consumed it",
    ),
    (lambda: graph([tensor(), tensor(becomes=9)], op((0,), (1,))), "tensor 9, which does not"),
    (lambda: graph([tensor(becomes=1), tensor()], op((0,), (1,))), "an op must make the first"),
    (lambda: graph([tensor(2), tensor(becomes=0)], op((0,), (1,))), "they must be equal"),
    (
        lambda: graph([tensor(), tensor(becomes=0), tensor(becomes=0)], op((0,), (1, 2))),
        "both become",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_refuses(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def calls(*made: Call) -> Op:
    inner = Value(nbytes=8, shape=(2,), dtype="float32")
    return op((0,), (1,), values=(inner,), calls=made)


def test_calls_may_name_tensors_and_earlier_values() -> None:
    calls(
        Call(kind="aten.mm", arguments={"a": {"tensor": 0}, "k": 3}, results=({"value": 0}, None)),
        Call(
            kind="aten.full",
            arguments={"x": [{"value": 0}, {"float": "-inf"}, None], "d": {"dtype": "float32"}},
            results=({"tensor": 1},),
        ),
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call(kind="k", arguments={"a": {"tensor": 7}}), "reads tensor 7"),
        (Call(kind="k", arguments={"a": {"value": 0}}), "value 0 before it is made"),
        (Call(kind="k", arguments={"a": {"tensor": [1]}}), "does not know"),
        (Call(kind="k", arguments={"a": {"tensor": True}}), "does not know"),
        (Call(kind="k", arguments={"a": {"what": 1}}), "does not know"),
        (Call(kind="k", arguments={"a": float("inf")}), "argument inf"),
        (Call(kind="k", arguments={"a": object()}), "type object"),
        (Call(kind="k", results=({"tensor": 0},)), "not one of the op's outputs"),
        (Call(kind="k", results=({"gizmo": 0},)), "wrong result"),
        (Call(kind="k", results=({"value": 1},)), "makes value 1; the op describes 1 values"),
    ],
)
def test_wrong_calls_are_refused(call: Call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calls(call)


def test_arguments_nested_too_deeply_are_refused() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="nested deeper"):
        calls(Call(kind="k", arguments={"a": deep}))


def test_fingerprint_ignores_names_and_nothing_else() -> None:
    base = graph([tensor()] * 2, op((0,), (1,)))
    renamed = graph([Tensor(name="other", nbytes=4)] * 2, op((0,), (1,)))
    assert base.fingerprint == renamed.fingerprint
    assert (
        base.fingerprint == msgspec.json.decode(msgspec.json.encode(base), type=Graph).fingerprint
    )
    others = [
        graph([tensor(8)] * 2, op((0,), (1,))),
        graph([tensor(role="gradient")] * 2, op((0,), (1,))),
        graph([tensor()] * 2, op((0,), (1,), recomputable=False)),
        graph([tensor()] * 2, op((0,), (1,), phase="backward")),
        graph([tensor()] * 2, op((0,), (1,), calls=(Call(kind="k"),))),
    ]
    assert len({g.fingerprint for g in [base, *others]}) == len(others) + 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": (-1,)}, "extents cannot be negative"),
        ({"view_of": {"tensor": 0}}, "takes no bytes of its own"),
        ({"nbytes": 0, "view_of": {"gizmo": 0}}, "must name a tensor or a value"),
        ({"nbytes": 0, "view_of": {"tensor": 7}}, "a view of tensor 7, not its own"),
        ({"nbytes": 0, "view_of": {"value": 0}}, "a view of value 0, not its own"),
    ],
)
def test_wrong_inner_values_are_refused(fields: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"nbytes": 8, "shape": (2,), "dtype": "int8"}
    with pytest.raises(ValueError, match=message):
        op((0,), (1,), values=(Value(**usual | fields),))
