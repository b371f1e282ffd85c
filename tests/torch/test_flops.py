"""FLOPs as PyTorch's own counter counts them, call by call and for whole training steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from poet.calls.sizes import SizedCall, sized_calls
from poet.costs import flops, traffic
from poet.costs.flops import call_flops
from poet.costs.per_element import PER_READ_ELEMENT, PER_RESULT_ELEMENT
from poet.values import graph as values

aten = torch.ops.aten


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every ATen call that makes something new, as a graph of one op."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[SizedCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        returns = func._schema.returns
        if returns and not any(made.alias_info for made in returns):
            self.calls.append(sized(func, args, kwargs, results))
        return results


def sized(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> SizedCall:
    """A real call, its tensors described and its arguments named as a graph has them."""
    tensors: list[values.Tensor] = []

    def plain(argument: Any) -> Any:
        if isinstance(argument, Tensor):
            tensors.append(
                values.Tensor(
                    name="",
                    nbytes=argument.nbytes,
                    shape=tuple(argument.shape),
                    dtype=str(argument.dtype).removeprefix("torch."),
                )
            )
            return {"tensor": len(tensors) - 1}
        if isinstance(argument, list | tuple):
            return [plain(item) for item in argument]
        if isinstance(argument, float) and not isfinite(argument):
            return {"float": str(argument)}
        for tag in ("dtype", "device", "layout", "memory_format"):
            if isinstance(argument, getattr(torch, tag)):
                return {tag: str(argument).removeprefix("torch.")}
        return argument if isinstance(argument, int | float | str | None) else None

    names = [argument.name for argument in func._schema.arguments]
    named = dict(zip(names, args, strict=False)) | kwargs
    arguments = {name: plain(argument) for name, argument in named.items()}
    inputs = len(tensors)
    made = [
        plain(result) if isinstance(result, Tensor) else None
        for result in (results if isinstance(results, tuple | list) else [results])
    ]
    op = values.Op(
        name="op",
        inputs=tuple(range(inputs)),
        outputs=tuple(range(inputs, len(tensors))),
        calls=(
            values.Call(
                kind=str(func).removesuffix(".default"), arguments=arguments, results=tuple(made)
            ),
        ),
    )
    graph = values.Graph(name="one call", tensors=tuple(tensors), ops=(op,))
    return next(sized_calls(graph, 0))


@contextmanager
def counted() -> Iterator[tuple[Recorder, FlopCounterMode]]:
    with FlopCounterMode(display=False) as counter, Recorder() as recorder:
        yield recorder, counter


COUNTED = (
    "aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.linear", "aten.matmul",
    "aten.convolution", "aten.convolution_backward", "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_backward",
)  # fmt: skip


def ours(recorder: Recorder) -> int:
    return sum(call_flops(call) for call in recorder.calls if call.family in COUNTED)


def too_many(recorder: Recorder) -> int:
    """What PyTorch's counter counts beyond the work: weight gradients of grouped convolutions."""
    extra = 0
    for call in recorder.calls:
        if call.family == "aten.convolution_backward" and call.arguments["output_mask"][1]:
            gradients = sum(map(bool, call.arguments["output_mask"][:2]))
            extra += call_flops(call) // gradients * (call.arguments["groups"] - 1)
    return extra


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


PRODUCTS: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: leaf(3, 5) @ leaf(5, 7),
    "mm of one row": lambda: leaf(1, 5) @ leaf(5, 1),
    "mm of transposed": lambda: leaf(5, 3).t() @ leaf(7, 5).t(),
    "bmm": lambda: torch.bmm(leaf(4, 3, 5), leaf(4, 5, 7)),
    "bmm of expanded": lambda: torch.bmm(leaf(1, 3, 5).expand(4, 3, 5), leaf(4, 5, 7)),
    "matmul with batches": lambda: leaf(2, 4, 3, 5) @ leaf(4, 5, 7),
    "addmm": lambda: torch.addmm(leaf(7), leaf(3, 5), leaf(5, 7)),
    "baddbmm": lambda: torch.baddbmm(leaf(4, 3, 7), leaf(4, 3, 5), leaf(4, 5, 7)),
    "linear": lambda: F.linear(leaf(2, 9, 5), leaf(7, 5), leaf(7)),
    "linear without bias": lambda: F.linear(leaf(2, 9, 5), leaf(7, 5)),
    "einsum": lambda: torch.einsum("bchw,bcxw->bhx", leaf(2, 3, 4, 5), leaf(2, 3, 6, 5)),
    "attention by hand": lambda: torch.softmax(leaf(2, 6, 4) @ leaf(2, 4, 6), -1) @ leaf(2, 6, 8),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products_and_their_gradients(name: str) -> None:
    with counted() as (recorder, counter):
        torch.autograd.backward(PRODUCTS[name]().sum())
    assert ours(recorder) == counter.get_total_flops() > 0


@pytest.mark.parametrize(
    ("product", "kind"),
    [
        (lambda: F.linear(torch.ones(2, 9, 5), torch.ones(7, 5)), "aten.linear"),
        (lambda: torch.ones(4, 3, 5) @ torch.ones(5, 7), "aten.matmul"),
    ],
)
def test_products_that_are_not_taken_apart(product: Callable[[], Tensor], kind: str) -> None:
    with torch.inference_mode(), counted() as (recorder, counter):
        product()
    assert [call.kind for call in recorder.calls if call.family in COUNTED] == [kind]
    assert ours(recorder) == counter.get_total_flops() > 0


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 17), (4, 3, 5), {}),
    "1d stride 2": ((2, 3, 17), (4, 3, 5), {"stride": [2], "padding": [2]}),
    "2d": ((2, 3, 9, 11), (4, 3, 3, 3), {}),
    "2d pointwise": ((1, 3, 9, 9), (4, 3, 1, 1), {}),
    "2d padded": ((2, 3, 9, 11), (4, 3, 3, 3), {"padding": [1, 2]}),
    "2d stride": ((2, 3, 9, 11), (4, 3, 3, 3), {"stride": [2, 3], "padding": [1, 1]}),
    "2d dilated": ((2, 3, 9, 11), (4, 3, 3, 2), {"dilation": [2, 3]}),
    "2d groups": ((2, 6, 9, 11), (4, 3, 3, 3), {"groups": 2}),
    "2d depthwise": ((2, 6, 9, 11), (6, 1, 3, 3), {"groups": 6, "padding": [1, 1]}),
    "2d depthwise, two each": ((2, 6, 9, 11), (12, 1, 3, 3), {"groups": 6, "stride": [2, 2]}),
    "3d": ((2, 3, 5, 6, 7), (4, 3, 2, 3, 3), {"stride": [1, 2, 2]}),
    "1d transposed": ((2, 3, 7), (3, 4, 5), {"transposed": True}),
    "2d transposed": ((2, 3, 7, 5), (3, 4, 3, 3), {"transposed": True, "stride": [2, 2]}),
    "2d transposed, output padded": (
        (2, 3, 7, 5),
        (3, 4, 3, 3),
        {"transposed": True, "stride": [2, 2], "output_padding": [1, 1]},
    ),
    "2d transposed, groups": (
        (2, 6, 7, 5),
        (6, 2, 3, 3),
        {"transposed": True, "stride": [2, 2], "groups": 3},
    ),
    "3d transposed": ((1, 3, 4, 3, 3), (3, 2, 2, 2, 2), {"transposed": True}),
}


def convolve(name: str) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    shape, weight, options = CONVOLUTIONS[name]
    axes = len(shape) - 2
    settings = (
        options.get("stride", [1] * axes),
        options.get("padding", [0] * axes),
        options.get("dilation", [1] * axes),
        options.get("transposed", False),
        options.get("output_padding", [0] * axes),
        options.get("groups", 1),
    )
    return torch.ones(shape), torch.ones(weight), settings


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, bias: bool) -> None:
    images, weight, settings = convolve(name)
    channels = weight.shape[1] * settings[5] if settings[3] else weight.shape[0]
    with counted() as (recorder, counter):
        aten.convolution(images, weight, torch.ones(channels) if bias else None, *settings)
    assert ours(recorder) == counter.get_total_flops() > 0


MASKS = [[bool(mask & 4), bool(mask & 2), bool(mask & 1)] for mask in range(1, 8)]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions(name: str, mask: list[bool]) -> None:
    images, weight, settings = convolve(name)
    gradient = torch.ones_like(aten.convolution(images, weight, None, *settings))
    channels = [gradient.shape[1]]
    with counted() as (recorder, counter):
        aten.convolution_backward(gradient, images, weight, channels, *settings, mask)
    assert ours(recorder) + too_many(recorder) == counter.get_total_flops()
    assert (ours(recorder) > 0) == (mask[0] or mask[1])
    assert (too_many(recorder) > 0) == (mask[1] and settings[5] > 1)


def test_a_grouped_weight_gradient_is_as_much_work_as_its_groups_one_by_one() -> None:
    """Why we do not follow PyTorch's counter there: the same work, taken apart, counts less."""

    def backward(groups: int, times: int) -> tuple[int, int]:
        images, weight = torch.ones(2, 6 // times, 9, 9), torch.ones(6 // times, 1, 3, 3)
        gradient = torch.ones(2, 6 // times, 7, 7)
        settings = ([1, 1], [0, 0], [1, 1], False, [0, 0], groups, [False, True, False])
        with counted() as (recorder, counter):
            for _ in range(times):
                aten.convolution_backward(gradient, images, weight, None, *settings)
        return ours(recorder), counter.get_total_flops()

    assert backward(groups=6, times=1)[0] == backward(groups=1, times=6)[0]
    assert backward(groups=6, times=1)[1] == 6 * backward(groups=1, times=6)[1]


ATTENTIONS = {
    "square": ((2, 3, 8, 4), (2, 3, 8, 4), 4),
    "longer keys": ((2, 3, 8, 4), (2, 3, 12, 4), 4),
    "grouped queries": ((2, 6, 8, 4), (2, 2, 8, 4), 4),
    "one query": ((1, 2, 1, 16), (1, 2, 33, 16), 16),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_and_its_gradient(name: str, causal: bool) -> None:
    """PyTorch counts the GPU's kernel and not the CPU's, so the GPU's is counted without running it
    and the CPU's, really run, must come to the same."""
    query, key, depth = ATTENTIONS[name]
    value = (*key[:-1], depth)
    with torch.device("meta"), counted() as (recorder, counter):
        q, k, v = torch.empty(query), torch.empty(key), torch.empty(value)
        out, lse, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        aten._scaled_dot_product_flash_attention_backward(
            out, q, k, v, out, lse, *rest[:4], 0.0, causal, *rest[4:6]
        )
    theirs = counter.get_total_flops()
    assert ours(recorder) == theirs > 0

    with counted() as (recorder, _):
        inputs = leaf(*query), leaf(*key), leaf(*value)
        torch.autograd.backward(
            F.scaled_dot_product_attention(
                *inputs, is_causal=causal, enable_gqa=query[1] != key[1]
            ).sum()
        )
    on_cpu = [call for call in recorder.calls if "attention_for_cpu" in call.kind]
    assert len(on_cpu) == 2
    assert sum(map(call_flops, on_cpu)) == theirs


class SmallConvolutional(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.ReLU6(),
            nn.Conv2d(8, 12, 1),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(12, 4, 2, stride=2, groups=2),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(16, 5),
        )


class SmallTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.embedding(tokens)).mean(1))
        return result


def test_a_training_step_of_a_convolutional_net() -> None:
    model = SmallConvolutional()
    with counted() as (recorder, counter):
        loss = F.cross_entropy(model(torch.randn(2, 3, 17, 17)), torch.tensor([1, 4]))
        torch.autograd.backward(loss)
    assert ours(recorder) + too_many(recorder) == counter.get_total_flops()
    assert too_many(recorder) > 0
    assert unknown(recorder) == set()


def test_a_training_step_of_a_transformer() -> None:
    model = SmallTransformer()
    tokens = torch.randint(0, 11, (2, 6))
    with counted() as (recorder, counter):
        torch.autograd.backward(F.cross_entropy(model(tokens), torch.tensor([1, 4])))
    assert ours(recorder) == counter.get_total_flops() > 0
    assert unknown(recorder) == set()


def unknown(recorder: Recorder) -> set[str]:
    return {call.kind for call in recorder.calls if not flops.is_known(call.family)}


def test_every_kind_in_the_tables_is_one_of_pytorch() -> None:
    tables = (
        PER_READ_ELEMENT,
        PER_RESULT_ELEMENT,
        flops.FORMULAS,
        traffic.UNREAD,
        traffic.UNREAD_BY_RULE,
        traffic.PICKED,
        traffic.SCATTERED,
    )
    for kind in {kind for table in tables for kind in table if not kind.startswith("poet.")}:
        packet, _, overload = kind.removeprefix("aten.").partition(".")
        assert hasattr(aten, packet), kind
        assert not overload or overload in getattr(aten, packet).overloads(), kind


def test_arguments_in_the_tables_have_pytorch_s_names() -> None:
    named = dict(traffic.UNREAD)
    named |= {kind: frozenset({row[0]}) for kind, row in traffic.PICKED.items()}
    named |= {kind: frozenset({row[0]}) for kind, row in traffic.SCATTERED.items()}
    for kind, names in named.items():
        packet = getattr(aten, kind.removeprefix("aten.").partition(".")[0])
        known = {
            argument.name
            for overload in packet.overloads()
            for argument in getattr(packet, overload)._schema.arguments
        }
        assert names <= known, kind
