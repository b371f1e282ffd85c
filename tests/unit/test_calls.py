"""What calls name, and which of them are updates."""

from typing import get_args

import pytest

from poet import Call, Graph, Op
from poet.calls.operands import works
from poet.calls.references import made_by, named_in, references, storage, storage_bytes
from poet.calls.updates import UPDATES
from poet.errors import PoetError
from poet.firmware.write.kernels import TABLE
from poet.rewrites.granularity import rewritten
from poet.values.optimizers import Optimizer
from tests.unit.small_graphs import T0, T1, V0, V1, neg, op_of, tensor, value, view


@pytest.mark.parametrize(
    ("kind", "family"),
    [("aten.add.Tensor", "aten.add"), ("aten.mm", "aten.mm"), ("poet.sgd", "poet.sgd"), ("f", "f")],
)
def test_a_family_is_a_kind_without_its_overload(kind: str, family: str) -> None:
    assert Call(kind=kind).family == family


@pytest.mark.parametrize("kind", ["f", "aten", "aten.addmm.default"])
def test_a_kind_of_any_form_can_be_merged(kind: str) -> None:
    graph = op_of(neg(T0, V0, kind), neg(V0, T1), values=(value(8),))
    made = rewritten(graph, "planning", fuse_updates=True, visible=(), kept=())
    assert made.graph.ops == graph.ops


def test_a_call_names_what_it_reads_and_what_it_makes() -> None:
    arguments = {"tensors": [T0, V0], "other": V1, "dim": 1, "dtype": {"dtype": "float32"}}
    call = Call(kind="aten.cat", arguments=arguments, results=(T1, None))
    read = [("tensors", ("tensor", 0)), ("tensors", ("value", 0)), ("other", ("value", 1))]
    assert list(references(call)) == read
    assert list(made_by(call)) == [("tensor", 1)]
    assert list(named_in(call)) == [*(each for _, each in read), ("tensor", 1)]


def test_a_view_of_a_view_lies_where_the_first_one_looks() -> None:
    inner = (value(8), view({"value": 0}, 2, 4), view({"value": 1}, 4))
    calls = (neg(T0, V0), neg(V0, V1, "aten.view"), neg(V1, {"value": 2}, "aten.slice.Tensor"))
    graph = op_of(*calls, neg({"value": 2}, T1), values=inner)
    op = graph.ops[0]
    assert [storage(op, ("value", n)) for n in range(3)] == [("value", 0)] * 3
    assert storage_bytes(graph, op, ("value", 2)) == 32
    last = works(graph, 0)[-1]
    assert last.arguments["self"].storage == ("value", 0)


def test_a_view_that_cannot_be_followed_has_a_storage_but_no_operand() -> None:
    strange = Call(kind="aten.as_strided", arguments={"self": T0}, results=(V0,))
    op = Op(
        name="f", inputs=(0,), outputs=(1,), values=(view({"tensor": 0}, 4),),
        calls=(strange, neg(V0, T1)),
    )  # fmt: skip
    graph = Graph(name="g", tensors=(tensor(8), tensor(4)), ops=(op,))
    assert storage(op, ("value", 0)) == ("tensor", 0)
    with pytest.raises(PoetError, match=r"aten\.as_strided .* cannot follow"):
        works(graph, 0)


def test_every_optimizer_is_an_update_with_a_kernel_in_c() -> None:
    kinds = {each.kind for each in get_args(Optimizer)}
    assert kinds == UPDATES.keys()
    assert kinds <= TABLE.keys()
