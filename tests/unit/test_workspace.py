"""Memory inside an op: what its inner values take beside its inputs and outputs."""

from typing import Any

import pytest

from poet import Call, Graph, InPlace, find_device
from poet.calls.workspace import workspace_bytes
from poet.costs.analytic import analytic
from poet.values.device import PLAIN
from tests.unit.small_graphs import (
    T0,
    T1,
    T2,
    V0,
    V1,
    V2,
    add,
    merged,
    neg,
    one_call,
    op_of,
    tensor,
    value,
    view,
)  # fmt: skip


def space(graph: Graph) -> int:
    return workspace_bytes(graph.ops[0], graph)


def test_one_call_needs_nothing_inside() -> None:
    assert space(one_call("aten.relu", {"self": tensor(8)}, [tensor(8)])) == 0


def test_values_live_from_their_call_to_their_last_use() -> None:
    # at most two of 32 bytes at once; at the last call one and the output: the output is counted
    # by the referee all along, so 64 - 32 remain
    assert space(merged()) == 32


def test_a_value_that_is_used_late_stays() -> None:
    calls = (neg(T0, V0), neg(V0, V1), neg(V1, V2), add(V0, V2, T1))
    assert space(op_of(*calls, values=(value(8), value(8), value(8)))) == 3 * 32 - 32


def test_a_value_nobody_uses_goes_at_once() -> None:
    big = (value(100), value(8))
    assert space(op_of(neg(T0, V0), neg(T0, V1), neg(V1, T1), values=big)) == 400 - 32
    assert space(op_of(neg(T0, V1), neg(V1, T1), neg(T0, V0), values=big)) == 400


def test_a_view_keeps_what_it_looks_at() -> None:
    inner = (value(8), view({"value": 0}, 4, 2), value(8), view({"value": 1}, 2, 4))
    calls = (
        neg(T0, V0),
        neg(V0, V1, "aten.view"),
        neg(V1, {"value": 3}, "aten.view"),
        neg(T0, V2),
        add({"value": 3}, V2, T1),
    )
    assert space(op_of(*calls, values=inner)) == 64  # all three at the end, one of them the output
    calls = (*calls[:3], neg({"value": 3}, T1), neg(T0, V2))
    assert space(op_of(*calls, values=inner)) == 32


def test_a_view_of_an_input_takes_nothing() -> None:
    inner = (view({"tensor": 0}, 4, 2),)
    assert space(op_of(neg(T0, V0, "aten.view"), neg(V0, T1), values=inner)) == 0


def test_an_output_made_early_stays() -> None:
    both = {"outputs": (1, 2)}
    calls = (neg(T0, T1), neg(T0, V0), neg(V0, T2))
    assert space(op_of(*calls, values=(value(8),), **both)) == 32
    late = (neg(T0, V0), neg(V0, T2), neg(T0, T1))
    assert space(op_of(*late, values=(value(8),), **both)) == 0  # the other output is still to come


def test_an_output_in_place_of_an_input_is_nothing_new() -> None:
    calls = (neg(T0, V0), add(T0, V0, T1))
    in_place = (InPlace(output=1, input=0),)
    assert space(op_of(*calls, values=(value(8),), in_place=in_place)) == 32
    assert space(op_of(*calls, values=(value(8),))) == 32
    assert space(op_of(*calls, values=(value(20),))) == 80


@pytest.mark.parametrize(
    ("kind", "options", "temporary"),
    [
        ("poet.sgd", {"weight_decay": 0.0, "nesterov": False, "momentum": 0.9}, 0),
        ("poet.sgd", {"weight_decay": 0.1, "nesterov": False}, 32),
        ("poet.sgd", {"weight_decay": 0.0, "nesterov": True}, 32),
        ("poet.adam", {"weight_decay": 0.0}, 32),
        ("poet.adamw", {"weight_decay": 0.0}, 32),
    ],
)
def test_updates_need_a_temporary(kind: str, options: dict[str, Any], temporary: int) -> None:
    in_place = (InPlace(output=1, input=0),)
    arguments = {"parameter": T0, "gradient": V0} | options
    update = Call(kind=kind, arguments=arguments, results=(T1,))
    graph = op_of(neg(T0, V0), update, values=(value(8),), in_place=in_place)
    assert space(graph) == 32 + temporary
    costs = analytic(graph, find_device("nrf52840"))
    assert costs.ops[0][PLAIN].workspace_bytes == 32 + temporary
