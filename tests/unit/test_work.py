"""The work of a call, FLOPs and bytes, against figures worked out by hand."""

from typing import Any

import pytest

from poet import Call, Graph, InPlace, Op, Tensor, Value
from poet.costs.analytic import OpWork, op_work
from tests.unit.small_graphs import one_call, tensor, view


def work(*args: Any, **options: Any) -> tuple[int, int]:
    """FLOPs and bytes of one call whose kind must be known."""
    done = op_work(one_call(*args, **options), 0)
    assert done.exact
    return done.flops, done.bytes_moved


def test_convolution_by_hand() -> None:
    image, weight, bias = tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), tensor(4)
    arrays = {"input": image, "weight": weight, "bias": bias}
    options = {"stride": [1, 1], "padding": [0, 0], "transposed": False, "groups": 1}
    # 2 x 4 x 6 x 6 outputs, each 27 multiply-adds
    assert work("aten.convolution", arrays, [tensor(2, 4, 6, 6)], **options) == (
        288 * 27 * 2,
        4 * (384 + 108 + 4 + 288),
    )


def test_a_depthwise_weight_gradient_counts_its_own_channels_only() -> None:
    arrays = {"grad_output": tensor(1, 8, 6, 6), "input": tensor(1, 8, 8, 8)}
    arrays["weight"] = tensor(8, 1, 3, 3)
    options = {"transposed": False, "groups": 8, "output_mask": [False, True, False]}
    made = [None, tensor(8, 1, 3, 3), None]
    # each of 72 weights sums over 36 points; the weight itself is not read
    assert work("aten.convolution_backward", arrays, made, **options) == (
        72 * 36 * 2,
        4 * (288 + 512 + 72),
    )


def test_an_input_gradient_does_not_read_the_input() -> None:
    arrays = {"grad_output": tensor(1, 4, 6, 6), "input": tensor(1, 3, 8, 8)}
    arrays["weight"] = tensor(4, 3, 3, 3)
    options = {"transposed": False, "groups": 1, "output_mask": [True, False, False]}
    made = [tensor(1, 3, 8, 8), None, None]
    assert work("aten.convolution_backward", arrays, made, **options) == (
        144 * 27 * 2,
        4 * (144 + 108 + 192),
    )


def test_matrix_products_by_hand() -> None:
    two = {"self": tensor(3, 5), "mat2": tensor(5, 7)}
    assert work("aten.mm", two, [tensor(3, 7)]) == (2 * 3 * 5 * 7, 4 * (15 + 35 + 21))
    biased = {"self": tensor(7), "mat1": tensor(3, 5), "mat2": tensor(5, 7)}
    assert work("aten.addmm", biased, [tensor(3, 7)]) == (210, 4 * (7 + 15 + 35 + 21))
    batches = {"self": tensor(4, 3, 5), "mat2": tensor(4, 5, 7)}
    assert work("aten.bmm", batches, [tensor(4, 3, 7)])[0] == 4 * 210


def test_attention_by_hand() -> None:
    wide = tensor(2, 3, 8, 6)
    arrays = {"query": tensor(2, 3, 8, 4), "key": tensor(2, 3, 8, 4), "value": wide}
    kind = "aten._scaled_dot_product_flash_attention_for_cpu"
    made = [wide, tensor(2, 3, 8)]
    scores = 2 * 3 * 8 * 8
    assert work(kind, arrays, made)[0] == 2 * scores * 4 + 2 * scores * 6
    arrays |= {"grad_out": wide, "out": wide, "logsumexp": made[1]}
    made = [arrays["query"], arrays["key"], wide]
    # scores again, and gradients of queries and keys; gradients of scores and values
    assert work(f"{kind}_backward", arrays, made)[0] == 3 * 2 * scores * 4 + 2 * 2 * scores * 6


def test_batch_norm_by_hand() -> None:
    rows = {name: tensor(3) for name in ("weight", "bias", "running_mean", "running_var")}
    arrays = {"input": tensor(2, 3, 4, 4), **rows}
    made = [tensor(2, 3, 4, 4), *[tensor(3)] * 4]
    assert work("aten._native_batch_norm_legit_functional", arrays, made, training=True) == (
        6 * 96,
        4 * (96 + 12 + 96 + 12),
    )
    statistics = {name: tensor(3) for name in ("running_mean", "running_var", "save_mean")}
    arrays = {"grad_out": tensor(2, 3, 4, 4), "input": tensor(2, 3, 4, 4), **statistics}
    made = [tensor(2, 3, 4, 4), tensor(3), tensor(3)]
    kind = "aten.native_batch_norm_backward"
    assert work(kind, arrays, made, train=True)[1] == 4 * (96 + 96 + 3 + 96 + 6)
    assert work(kind, arrays, made, train=False)[1] == 4 * (96 + 96 + 6 + 96 + 6)


@pytest.mark.parametrize(
    ("kind", "arrays", "made", "options", "flops"),
    [
        ("aten.relu", {"self": tensor(4, 5)}, tensor(4, 5), {}, 20),
        ("aten.add.Tensor", {"self": tensor(4, 5), "other": tensor(5)}, tensor(4, 5), {}, 20),
        ("aten.sum.dim_IntList", {"self": tensor(4, 5)}, tensor(4), {"dim": [1]}, 20),
        ("aten._softmax", {"self": tensor(4, 5)}, tensor(4, 5), {"dim": 1}, 240),
        ("aten.pow.Tensor_Scalar", {"self": tensor(6)}, tensor(6), {"exponent": 2}, 6),
        ("aten.pow.Tensor_Scalar", {"self": tensor(6)}, tensor(6), {"exponent": 2.5}, 6 * 17),
        ("aten.clone", {"self": tensor(4, 5)}, tensor(4, 5), {}, 0),
        ("aten.avg_pool2d", {"self": tensor(1, 4, 4)}, tensor(1, 2, 2), {"kernel_size": [2]}, 16),
        ("aten.max_pool2d_with_indices", {"self": tensor(1, 6, 6)}, tensor(1, 2, 3),
         {"kernel_size": [3, 2]}, 36),
        ("aten.sort", {"self": tensor(2, 8)}, tensor(2, 8), {"dim": -1}, 16 * 3),
        ("aten.nll_loss_forward", {"self": tensor(4, 9), "target": tensor(4, dtype="int64")},
         tensor(), {}, 8),
        ("aten.index_put", {"self": tensor(9), "values": tensor(4)}, tensor(9), {}, 0),
        ("aten.index_put", {"self": tensor(9), "values": tensor(4)}, tensor(9),
         {"accumulate": True}, 4),
        ("aten._grouped_mm", {"self": tensor(6, 4), "mat2": tensor(2, 4, 5)}, tensor(6, 5), {},
         6 * 4 * 5 * 2),
        ("aten._grouped_mm", {"self": tensor(2, 3, 4), "mat2": tensor(4, 6)}, tensor(3, 6), {},
         3 * 4 * 6 * 2),
        ("aten.mkldnn_rnn_layer",
         {"input": tensor(5, 2, 3), "weight0": tensor(16, 3), "weight1": tensor(16, 4)},
         tensor(5, 2, 4), {}, 10 * 16 * 7 * 2),
    ],
)  # fmt: skip
def test_flops_by_hand(
    kind: str, arrays: dict[str, Any], made: Tensor, options: dict[str, Any], flops: int
) -> None:
    assert work(kind, arrays, [made], **options)[0] == flops


HALF = tensor(8, dtype="bfloat16")
IDS = tensor(3, dtype="int64")


@pytest.mark.parametrize(
    ("kind", "arrays", "made", "options", "nbytes"),
    [
        ("aten.add.Tensor", {"self": HALF, "other": HALF}, HALF, {}, 3 * 16),
        ("aten.cat", {"tensors": [tensor(3), tensor(5)]}, tensor(8), {}, 64),
        ("aten.full", {}, tensor(8), {"fill_value": 0}, 32),
        ("aten.ones_like", {"self": tensor(8)}, tensor(8), {}, 32),
        ("aten.bernoulli.p", {"self": tensor(8)}, tensor(8), {"p": 0.5}, 32),
        ("aten.bernoulli", {"self": tensor(8)}, tensor(8), {}, 64),
        ("aten.copy", {"self": tensor(8), "src": tensor(8)}, tensor(8), {}, 64),
        ("aten.embedding", {"weight": tensor(1000, 4), "indices": IDS}, tensor(3, 4), {},
         24 + 48 + 48),
        ("aten.embedding", {"weight": tensor(2, 4), "indices": IDS}, tensor(3, 4), {},
         24 + 32 + 48),
        ("aten.index.Tensor", {"self": tensor(1000, 4), "indices": [IDS]}, tensor(3, 4), {},
         24 + 48 + 48),
        ("aten.nll_loss_forward", {"self": tensor(3, 50), "target": IDS}, tensor(), {},
         12 + 24 + 4),
        ("aten.nll_loss_backward", {"self": tensor(3, 50), "target": IDS}, tensor(3, 50), {},
         24 + 600),
        ("aten.embedding_dense_backward", {"grad_output": tensor(3, 4), "indices": IDS},
         tensor(10, 4), {}, 48 + 24 + 160 + 2 * 48),
        ("aten.index_put", {"self": tensor(9), "indices": [IDS], "values": tensor(3)}, tensor(9),
         {"accumulate": False}, 36 + 24 + 12 + 36 + 12),
        ("aten.index_put", {"self": tensor(9), "indices": [IDS], "values": tensor(3)}, tensor(9),
         {"accumulate": True}, 36 + 24 + 12 + 36 + 24),
        ("aten.max_pool2d_with_indices_backward",
         {"grad_output": tensor(1, 2, 2), "self": tensor(1, 8, 8),
          "indices": tensor(1, 2, 2, dtype="int64")}, tensor(1, 8, 8), {}, 16 + 32 + 256),
    ],
)  # fmt: skip
def test_bytes_by_hand(
    kind: str, arrays: dict[str, Any], made: Tensor, options: dict[str, Any], nbytes: int
) -> None:
    assert work(kind, arrays, [made], **options)[1] == nbytes


@pytest.mark.parametrize(
    ("kind", "options", "flops"),
    [
        ("poet.sgd", {"weight_decay": 0.0, "momentum": 0.0}, 2),
        ("poet.sgd", {"weight_decay": 0.1, "momentum": 0.0}, 4),
        ("poet.sgd", {"weight_decay": 0.1, "momentum": 0.9}, 6),
        ("poet.sgd", {"momentum": 0.9, "dampening": 0.1}, 5),
        ("poet.sgd", {"momentum": 0.9, "nesterov": True}, 6),
        ("poet.adam", {"weight_decay": 0.0}, 22),
        ("poet.adam", {"weight_decay": 0.1}, 24),
        ("poet.adamw", {"weight_decay": 0.1}, 23),
    ],
)
def test_updates_by_hand(kind: str, options: dict[str, Any], flops: int) -> None:
    both = {"parameter": tensor(10), "gradient": tensor(10)}
    pair = (InPlace(output=2, input=0),)
    assert work(kind, both, [tensor(10)], pair, **options) == (10 * flops, 120)


def with_views(*values: Value, calls: tuple[Call, ...]) -> Graph:
    op = Op(name="f", inputs=(0,), outputs=(1,), values=values, calls=calls)
    return Graph(name="g", tensors=(tensor(4, 6), tensor(2, 6)), ops=(op,))


def look(kind: str, result: int, **options: Any) -> Call:
    return Call(
        kind=kind, arguments={"self": {"tensor": 0}} | options, results=({"value": result},)
    )


def test_a_view_does_no_work_and_is_read_for_what_it_shows() -> None:
    half = view({"tensor": 0}, 2, 6)
    relu = Call(kind="aten.relu", arguments={"self": {"value": 0}}, results=({"tensor": 1},))
    graph = with_views(half, calls=(look("aten.slice.Tensor", 0), relu))
    assert op_work(graph, 0) == OpWork(flops=12, bytes_moved=48 + 48)


def test_repeated_elements_are_read_once() -> None:
    row = view({"tensor": 0}, 6)
    wide = view({"value": 0}, 2, 6, strides=(0, 1))
    unsaid = view({"value": 0}, 100, 6)
    for last in (wide, unsaid):
        graph = with_views(
            row,
            last,
            calls=(
                look("aten.select.int", 0),
                Call(kind="aten.expand", arguments={"self": {"value": 0}}, results=({"value": 1},)),
                Call(kind="aten.neg", arguments={"self": {"value": 1}}, results=({"tensor": 1},)),
            ),
        )
        read = 24 if last is wide else 96  # never more than the storage
        assert op_work(graph, 0).bytes_moved == read + 48


def test_one_tensor_given_twice_is_read_once() -> None:
    twice = {"self": {"tensor": 0}, "other": {"tensor": 0}}
    call = Call(kind="aten.mul.Tensor", arguments=twice, results=({"tensor": 1},))
    op = Op(name="f", inputs=(0,), outputs=(1,), calls=(call,))
    graph = Graph(name="g", tensors=(tensor(6), tensor(6)), ops=(op,))
    assert op_work(graph, 0).bytes_moved == 24 + 24
