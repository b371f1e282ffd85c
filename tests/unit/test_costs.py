"""Analytic costs: seconds, joules and transfers by hand, and what is said of unknowns."""

import math
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet import Call, Device, Graph, Op, PoetError, Tensor, find_device, read_instance
from poet.calls.sizes import ITEM_BYTES
from poet.costs.analytic import OpWork, analytic, estimated_kinds, op_work
from poet.values.device import PLAIN
from tests.conftest import INSTANCES
from tests.unit.small_graphs import (
    T0,
    T1,
    V0,
    V1,
    merged,
    neg,
    one_call,
    op_of,
    tensor,
    value,
    view,
)

BOARD = msgspec.structs.replace(
    find_device("nrf52840-paper"), flops_per_second=1000.0, compute_watts=2.0, idle_watts=0.5
)
"""A board without a memory rate and without overhead, with round figures."""


def relu(n: int = 100) -> Graph:
    return one_call("aten.relu", {"self": tensor(n)}, [tensor(n)])


def priced(graph: Graph, **figures: Any) -> tuple[float, float]:
    run = analytic(graph, msgspec.structs.replace(BOARD, **figures)).ops[0][PLAIN]
    return run.seconds, run.joules


def test_both_sides_of_the_roofline() -> None:
    assert priced(relu()) == (0.1, 0.2)  # 100 FLOPs
    assert priced(relu(), memory_bytes_per_second=1e6) == (0.1, 0.2)
    assert priced(relu(), memory_bytes_per_second=400.0) == (2.0, 4.0)  # 800 bytes
    assert priced(relu(), memory_bytes_per_second=400.0, op_overhead_seconds=0.5) == (2.5, 5.0)


def test_classes_of_work_have_figures_of_their_own() -> None:
    rates = {"memory_bytes_per_second": 400.0, "op_overhead_seconds": 0.5}
    of_another = {
        "class_bytes_per_second": {"tables": 1.0},
        "class_overhead_seconds": {"pooling": 9.0},
    }
    assert priced(relu(), **rates, **of_another) == (2.5, 5.0)
    assert priced(relu(), **rates, class_overhead_seconds={"elementwise": 0.25}) == (2.25, 4.5)
    assert priced(relu(), **rates, class_bytes_per_second={"elementwise": 800.0}) == (1.5, 3.0)


def test_a_view_starts_for_free() -> None:
    graph = op_of(neg(T0, V0, "aten.view"), neg(V0, T1), values=(view({"tensor": 0}, 4, 2),))
    assert priced(graph, op_overhead_seconds=1.0) == (1.008, 2.016)


def test_energy_has_its_own_rate_for_arithmetic_only() -> None:
    assert priced(relu(), energy_flops_per_second=100.0) == (0.1, 2.0)
    slow = {"energy_flops_per_second": 100.0, "memory_bytes_per_second": 1600.0}
    assert priced(relu(), **slow) == (0.5, 2.0)  # time bound by memory, energy by arithmetic
    slow["memory_bytes_per_second"] = 400.0
    assert priced(relu(), **slow, op_overhead_seconds=0.5) == (2.5, 5.0)


def test_copies_are_not_free_where_no_memory_rate_is_known() -> None:
    copy = one_call("aten.clone", {"self": tensor(100)}, [tensor(100)])
    assert priced(copy) == priced(relu())
    assert op_work(copy, 0).flops == 0
    assert priced(copy, memory_bytes_per_second=1e6) == (800 / 1e6, 2 * 800 / 1e6)


@pytest.mark.parametrize("name", ["mkr1000", "nrf52840", "rpi4", "jetson-tx2"])
def test_transfers_cost_latency_and_bandwidth_at_the_store_s_power(name: str) -> None:
    board, graph = find_device(name), relu(12345)
    costs = analytic(graph, board)
    nbytes = 4 * 12345
    for price in costs.tensors:
        into = board.page_in_latency_seconds + nbytes / board.page_in_bytes_per_second
        out = board.page_out_latency_seconds + nbytes / board.page_out_bytes_per_second
        assert math.isclose(price.in_seconds, into)
        assert math.isclose(price.out_seconds, out)
        assert math.isclose(price.in_joules, into * board.page_in_watts)
        assert math.isclose(price.out_joules, out * board.page_out_watts)
    assert (costs.device, costs.idle_watts, costs.duplex) == (name, board.idle_watts, board.duplex)
    costs.check_belongs(graph)


@pytest.mark.parametrize(
    ("instance", "name"), [("m0", "mkr1000"), ("m4", "nrf52840"), ("a72", "rpi4")]
)
def test_transfers_cost_what_the_instances_say(instance: str, name: str) -> None:
    problem, board = read_instance(INSTANCES / f"vgg16-{instance}.json"), find_device(name)
    for about, price in zip(problem.graph.tensors[:9], problem.costs.tensors, strict=False):
        got = analytic(relu(about.nbytes // 4), board).tensors[0]
        assert msgspec.structs.astuple(got) == pytest.approx(msgspec.structs.astuple(price))


def test_an_op_costs_what_its_calls_cost() -> None:
    graph = merged()
    alone = sum(priced(one_call("aten.neg", {"self": tensor(8)}, [tensor(8)]))[0] for _ in range(2))
    assert priced(graph)[0] == pytest.approx(alone + 0.008 * 2)


# What is not known


def test_unknown_kinds_are_estimated_and_named() -> None:
    graph = one_call("mine.wobble.Tensor", {"self": tensor(4)}, [tensor(10), tensor(3)])
    done = op_work(graph, 0)
    assert done == OpWork(flops=13, bytes_moved=4 * 17, estimated=frozenset({"mine.wobble.Tensor"}))
    assert not done.exact
    assert estimated_kinds(graph) == {"mine.wobble.Tensor": 1}
    assert estimated_kinds(relu()) == {}
    assert priced(graph)[0] == 0.013


def test_a_view_of_an_unknown_kind_is_still_nothing() -> None:
    graph = op_of(neg(T0, V0, "mine.look"), neg(V0, T1), values=(view({"tensor": 0}, 8),))
    assert estimated_kinds(graph) == {}
    assert op_work(graph, 0) == OpWork(flops=8, bytes_moved=64)


def test_a_graph_without_calls_cannot_be_costed() -> None:
    op = Op(name="conv1", inputs=(0,), outputs=(1,))
    graph = Graph(name="g", tensors=(tensor(4), tensor(4)), ops=(op,))
    for ask in (lambda: analytic(graph, BOARD), lambda: op_work(graph, 0)):
        with pytest.raises(PoetError, match=r"op 0 \(conv1, forward\) has no calls.*costs="):
            ask()


BLANK = Tensor(name="blank", nbytes=16)
WRONG: list[tuple[Graph, str]] = [
    (one_call("aten.neg", {"self": BLANK}, [tensor(4)]), r"tensor 0 \(blank\) has no shape"),
    (
        one_call("aten.neg", {"self": Tensor(name="x", nbytes=4, shape=(1,))}, [tensor(1)]),
        "has no dtype",
    ),
    (
        one_call("aten.neg", {"self": Tensor(name="x", nbytes=4, shape=(1,), dtype="int3")},
                 [tensor(1)]),
        "type 'int3'",
    ),
    (one_call("aten.mm", {"mat2": tensor(2, 2)}, [tensor(2, 2)]), "no tensor as its argument"),
    (one_call("aten.mm", {"self": tensor()}, [tensor(2, 2)]), r"does not fit its kind.*self \[\]"),
    (
        one_call("aten.convolution", {"input": tensor(2, 2), "weight": tensor(2, 2)}, [tensor(2)]),
        "does not fit its kind: points",
    ),
    (one_call("aten.avg_pool2d", {"self": tensor(2, 2)}, [tensor(1)]), "no argument 'kernel_size'"),
    (
        one_call("aten.avg_pool2d", {"self": tensor(2, 2)}, [tensor(1)], kernel_size=[-1, 1]),
        "does not fit its kind: -1 FLOPs",
    ),
    (
        one_call("aten.avg_pool2d", {"self": tensor(2, 2)}, [tensor(1)], kernel_size=[2**62] * 2),
        "beyond what POET can cost",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_makes_no_sense_is_refused(graph: Graph, message: str) -> None:
    with pytest.raises(PoetError, match=message):
        analytic(graph, BOARD)


def test_a_device_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(PoetError, match="figures POET cannot use: in_joules"):
        analytic(relu(), msgspec.structs.replace(BOARD, page_in_watts=1e300))


# In general

KINDS = ["aten.relu", "aten.clone", "aten.exp", "aten.sum", "aten.full", "mine.unknown"]
BOARDS = [
    BOARD,
    find_device("rpi4"),
    find_device("h200"),
    msgspec.structs.replace(find_device("laptop"), op_overhead_seconds=1e-6),
]


@given(
    kind=st.sampled_from(KINDS),
    shape=st.lists(st.integers(0, 9), max_size=4),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    device=st.sampled_from(BOARDS),
)
def test_nothing_is_negative_and_no_bytes_are_free(
    kind: str, shape: list[int], dtype: str, device: Device
) -> None:
    arrays: dict[str, Any] = {} if kind == "aten.full" else {"self": tensor(*shape, dtype=dtype)}
    graph = one_call(kind, arrays, [tensor(*shape, dtype=dtype)])
    done, run = op_work(graph, 0), analytic(graph, device).ops[0][PLAIN]
    assert min(done.flops, done.bytes_moved, run.seconds, run.joules, run.workspace_bytes) >= 0
    assert (done.bytes_moved > 0) == (0 not in shape)
    assert (run.seconds > 0) >= (done.bytes_moved > 0)
    assert (run.joules > 0) >= (done.bytes_moved > 0)


def convolutions(size: int) -> Graph:
    """One after the other, each of the same weight, turned."""
    image, weight = (2, 8, 16, 16), tensor(8, 8, 3, 3)
    options = {"stride": [1, 1], "padding": [1, 1], "transposed": False, "groups": 1}
    ops = tuple(
        Op(
            name=f"conv{k}",
            inputs=(0, k + 1),
            outputs=(k + 2,),
            values=(view({"tensor": 0}, 8, 8, 3, 3, strides=(9, 72, 3, 1)), value(*image)),
            calls=(
                neg(T0, V0, "aten.transpose.int"),
                Call(
                    kind="aten.convolution",
                    arguments={"input": {"tensor": k + 1}, "weight": V0, "bias": None} | options,
                    results=(V1,),
                ),
                neg(V1, {"tensor": k + 2}, "aten.relu"),
            ),
        )
        for k in range(size)
    )
    return Graph(name="deep", tensors=(weight, *[tensor(*image)] * (size + 1)), ops=ops)


def lines_run(graph: Graph) -> int:
    """How many lines of Python it takes to cost a graph: work that no other process can slow."""
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    _ = graph.fingerprint
    before = sys.gettrace()
    sys.settrace(count)
    try:
        costs = analytic(graph, BOARD)
    finally:
        sys.settrace(before)
    assert len(costs.ops) == len(graph.ops)
    return lines


def test_work_grows_with_a_graph_and_not_with_its_square() -> None:
    few, many = lines_run(convolutions(100)), lines_run(convolutions(400))
    assert 100 < few < many < 4.4 * few
