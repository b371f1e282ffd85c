"""Kernels called directly, on random shapes, against PyTorch in double precision."""

import ctypes
import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from .conftest import built_kernels

TOLERANCE = 3e-6


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    names = (
        "arithmetic",
        "conv",
        "conv_apart",
        "conv_plane",
        "conv_sums",
        "conv_weight",
        "matmul",
        "matmul_row",
        "norm",
        "pointwise",
        "pooling",
        "reduce",
        "transformer",
    )
    return built_kernels(tmp_path_factory.mktemp("kernels"), names)


def struct(*values: int | float) -> Any:
    fields = [
        (f"f{n}", ctypes.c_float if isinstance(v, float) else ctypes.c_int32)
        for n, v in enumerate(values)
    ]
    kind = type("Struct", (ctypes.Structure,), {"_fields_": fields})
    return ctypes.byref(kind(*values))


def at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def same(found: Tensor, exact: Tensor) -> bool:
    size = exact.abs().max().clamp(min=1.0)
    return bool(((found.double() - exact).abs().max() / size) < TOLERANCE)


def conv_cases() -> list[dict[str, Any]]:
    chance = random.Random(0)
    made: list[dict[str, Any]] = []
    while len(made) < 250:
        groups = chance.choice((1, 1, 1, 2, 3))
        ins, outs = groups * chance.randint(1, 6), groups * chance.randint(1, 9)
        if chance.random() < 0.15:
            groups = ins = outs = chance.randint(1, 6)
        case: dict[str, Any] = {
            "batch": chance.randint(1, 2), "groups": groups, "ins": ins, "outs": outs,
            "size": (chance.randint(1, 9), chance.randint(1, 9)),
            "kernel": chance.choice(((3, 3), (3, 3), (1, 1), (2, 4), (5, 5), (1, 3))),
            "stride": (chance.randint(1, 3), chance.randint(1, 3)),
            "padding": (chance.randint(0, 2), chance.randint(0, 2)),
            "dilation": (chance.choice((1, 1, 2)), chance.choice((1, 1, 2, 3))),
        }  # fmt: skip
        reach = [case["dilation"][d] * (case["kernel"][d] - 1) + 1 for d in (0, 1)]
        if all(case["size"][d] + 2 * case["padding"][d] >= reach[d] for d in (0, 1)):
            made.append(case)
    return made


def test_convolutions(kernels: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    for case in conv_cases():
        how: dict[str, Any] = {k: case[k] for k in ("stride", "padding", "dilation", "groups")}
        x = torch.randn(case["batch"], case["ins"], *case["size"])
        w = torch.randn(case["outs"], case["ins"] // case["groups"], *case["kernel"])
        b = torch.randn(case["outs"])
        double = [t.double().requires_grad_() for t in (x, w, b)]
        exact: Tensor = F.conv2d(double[0], double[1], double[2], **how)
        g = torch.randn(exact.shape)
        exact.backward(g.double())  # type: ignore[no-untyped-call]

        once = (case["kernel"], case["stride"], case["padding"]) == ((1, 1), (1, 1), (0, 0))

        def shape(
            outs: int,
            case: Any = case,
            x: Tensor = x,
            exact: Tensor = exact,
            is_product: int = once,
        ) -> Any:
            return struct(
                case["batch"], case["groups"], *x.shape[1:], outs, *exact.shape[2:],
                *case["kernel"], *case["stride"], *case["padding"], *case["dilation"],
                case["outs"], 4, is_product,
            )  # fmt: skip

        whole = shape(case["outs"])
        y, dx, dw, db = (torch.full(t.shape, torch.nan) for t in (exact, x, w, b))
        kernels.poet_conv(at(y), at(x), at(w), at(b), whole)
        kernels.poet_conv_input_gradient(at(dx), at(g), at(w), whole)
        kernels.poet_conv_weight_gradient(at(dw), at(g), at(x), whole)
        kernels.poet_conv_bias_gradient(at(db), at(g), whole)
        assert same(y, exact.detach()), case
        for found, known in zip((dx, dw, db), double, strict=True):
            assert known.grad is not None
            assert same(found, known.grad), case
        if case["groups"] == 1:  # tile after tile gives the same bits
            y2, dw2 = (torch.full(t.shape, torch.nan) for t in (exact, w))
            dx2 = torch.zeros_like(x)
            for row in range(0, case["outs"], 4):
                rows = min(4, case["outs"] - row)
                tile, some = w[row : row + rows].clone(), shape(rows)
                kernels.poet_conv(at(y2[:, row:]), at(x), at(tile), at(b[row:]), some)
                kernels.poet_conv_input_gradient_part(at(dx2), at(g[:, row:]), at(tile), some, 1)
                kernels.poet_conv_weight_gradient(at(dw2[row:]), at(g[:, row:]), at(x), some)
            assert all(torch.equal(p, q) for p, q in ((y, y2), (dx, dx2), (dw, dw2))), case


def test_products_in_every_layout(kernels: ctypes.CDLL) -> None:
    chance = random.Random(1)
    torch.manual_seed(1)
    for _ in range(150):
        m, n, k = chance.randint(1, 13), chance.randint(1, 13), chance.choice((1, 3, 64, 65, 130))
        a = torch.randn(m, k) if chance.random() < 0.5 else torch.randn(k, m).t()
        b = torch.randn(k, n) if chance.random() < 0.5 else torch.randn(n, k).t()
        row = torch.randn(n) if chance.random() < 0.5 else None
        out = torch.full((m, n), torch.nan)
        block = chance.choice((4, 64))
        strides = (*a.stride(), *b.stride(), n, block)
        kernels.poet_matmul(at(out), at(a), at(b), at(row), struct(m, n, k, *strides))
        exact = a.double() @ b.double() + (0 if row is None else row.double())
        assert same(out, exact), (m, n, k, a.stride(), b.stride())
        # Columns a tile, and a sum over k in tiles of whole blocks: the same bits.
        columns, sums = torch.full((m, n), torch.nan), torch.zeros(m, n)
        for j in range(0, n, 3):
            some = struct(m, min(3, n - j), k, *strides)
            part = None if row is None else row[j:]
            kernels.poet_matmul(at(columns[:, j:]), at(a), at(b[:, j:]), at(part), some)
        assert torch.equal(columns, out)
        for j in range(0, k, 2 * block):
            some = struct(m, n, min(2 * block, k - j), *strides)
            kernels.poet_matmul_part(at(sums), at(a[:, j:]), at(b[j:]), at(None), some, 1)
        kernels.poet_matmul(at(out), at(a), at(b), at(None), struct(m, n, k, *strides))
        assert torch.equal(sums, out)


@pytest.mark.parametrize("ceil", [False, True])
def test_pools(kernels: ctypes.CDLL, ceil: bool) -> None:
    chance = random.Random(2)
    torch.manual_seed(2)
    for _ in range(80):
        size = (chance.randint(3, 9), chance.randint(3, 9))
        kernel = (chance.randint(1, 3), chance.randint(1, 3))
        stride = (chance.randint(1, 3), chance.randint(1, 3))
        padding = tuple(chance.randint(0, k // 2) for k in kernel)
        x = torch.randn(2, 3, *size)
        wide = x.double().requires_grad_()
        best, where = F.max_pool2d(
            wide, kernel, stride, padding, ceil_mode=ceil, return_indices=True
        )
        plain = (6, *size, *best.shape[2:], *kernel, *stride, *padding, 1, 1)
        y, i = torch.empty(best.shape), torch.empty(best.shape, dtype=torch.int64)
        kernels.poet_max_pool(at(y), at(i), at(x), struct(*plain, 1, 0))
        assert same(y, best.detach())
        assert torch.equal(i, where)
        g = torch.randn(best.shape)
        best.backward(g.double())  # type: ignore[no-untyped-call]
        dx = torch.empty(x.shape)
        kernels.poet_max_pool_gradient(at(dx), at(g), at(i), struct(*plain, 1, 0))
        assert wide.grad is not None
        assert same(dx, wide.grad)
        counted = chance.random() < 0.5
        wide = x.double().requires_grad_()
        mean = F.avg_pool2d(wide, kernel, stride, padding, ceil, counted)
        shape = struct(6, *size, *mean.shape[2:], *kernel, *stride, *padding, 1, 1, int(counted), 0)
        y, g = torch.empty(mean.shape), torch.randn(mean.shape)
        kernels.poet_average_pool(at(y), at(x), shape)
        assert same(y, mean.detach())
        mean.backward(g.double())  # type: ignore[no-untyped-call]
        kernels.poet_average_pool_gradient(at(dx), at(g), shape)
        assert wide.grad is not None
        assert same(dx, wide.grad)


def test_adaptive_pools(kernels: ctypes.CDLL) -> None:
    torch.manual_seed(3)
    for size, to in (((7, 5), (2, 3)), ((4, 4), (1, 1)), ((5, 9), (5, 4))):
        x = torch.randn(2, 3, *size)
        wide = x.double().requires_grad_()
        exact = F.adaptive_avg_pool2d(wide, to)
        shape = struct(6, *size, *to, *(0,) * 8, 1, 0)
        y, g, dx = torch.empty(exact.shape), torch.randn(exact.shape), torch.empty(x.shape)
        kernels.poet_adaptive_pool(at(y), at(x), shape)
        assert same(y, exact.detach())
        exact.backward(g.double())  # type: ignore[no-untyped-call]
        kernels.poet_adaptive_pool_gradient(at(dx), at(g), shape)
        assert wide.grad is not None
        assert same(dx, wide.grad)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(kernels: ctypes.CDLL, training: bool) -> None:
    torch.manual_seed(4)
    x = torch.randn(3, 4, 5, 2) * 3 + 100  # far from 0: sums must not lose the small part
    w, b, mean, variance = torch.randn(4), torch.randn(4), torch.randn(4) + 99, torch.rand(4) + 1
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    stats = mean.double().clone(), variance.double().clone()
    exact = F.batch_norm(wide[0], stats[0], stats[1], wide[1], wide[2], training, 0.2, 1e-3)
    g = torch.randn(exact.shape)
    exact.backward(g.double())  # type: ignore[no-untyped-call]
    shape = struct(3, 4, 10, 0, 0.2, 1e-3)
    y, dx, dw, db = (torch.full(t.shape, torch.nan) for t in (x, x, w, b))
    if training:
        saved = [torch.empty(4) for _ in range(4)]
        kernels.poet_batch_norm(
            at(y), *map(at, saved), at(x), at(w), at(b), at(mean), at(variance), shape
        )
        assert torch.allclose(saved[2].double(), stats[0], rtol=1e-6)
        assert torch.allclose(saved[3].double(), stats[1], rtol=1e-5)
        kernels.poet_batch_norm_gradient(
            at(dx), at(dw), at(db), at(g), at(x), at(w), at(saved[0]), at(saved[1]), shape
        )
    else:
        kernels.poet_batch_norm_fixed(at(y), at(x), at(w), at(b), at(mean), at(variance), shape)
        kernels.poet_batch_norm_fixed_gradient(
            at(dx), at(dw), at(db), at(g), at(x), at(w), at(mean), at(variance), shape
        )
    assert torch.allclose(y.double(), exact.detach(), atol=2e-4)
    for found, known in zip((dx, dw, db), wide, strict=True):
        assert known.grad is not None
        assert torch.allclose(found.double(), known.grad, atol=2e-4)


def test_transformer_kernels(kernels: ctypes.CDLL) -> None:
    torch.manual_seed(5)
    x = torch.randn(6, 70) * 3
    w, b, g = torch.randn(70), torch.randn(70), torch.randn(6, 70)
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    exact = F.layer_norm(wide[0], (70,), wide[1], wide[2], 1e-5)
    exact.backward(g.double())  # type: ignore[no-untyped-call]
    y, dx, dw, db = (torch.full(t.shape, torch.nan) for t in (x, x, w, b))
    mean, inverse = torch.empty(6), torch.empty(6)
    epsilon = ctypes.c_float(1e-5)
    kernels.poet_layer_norm(at(y), at(mean), at(inverse), at(x), at(w), at(b), 6, 70, epsilon)
    kernels.poet_layer_norm_gradient(
        at(dx), at(dw), at(db), at(g), at(x), at(mean), at(inverse), at(w), 6, 70
    )
    assert same(y, exact.detach())
    for found, known in zip((dx, dw, db), wide, strict=True):
        assert known.grad is not None
        assert same(found, known.grad)
    x[2] = -torch.inf
    kernels.poet_softmax(at(y), at(x), 6, 70)
    exact = torch.ops.aten._safe_softmax(x.double(), -1)
    assert same(y, exact)
    kernels.poet_softmax_gradient(at(dx), at(g), at(y), 6, 70)
    assert same(dx, torch.ops.aten._softmax_backward_data(g.double(), exact, -1, torch.float64))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_smooth_activations(kernels: ctypes.CDLL, name: str) -> None:
    x = torch.linspace(-8, 8, 4001)
    wide = x.double().requires_grad_()
    exact = F.silu(wide) if name == "silu" else F.gelu(
        wide, approximate="tanh" if name == "gelu_tanh" else "none"
    )  # fmt: skip
    exact.sum().backward()  # type: ignore[no-untyped-call]
    y, dx, ones = torch.empty(4001), torch.empty(4001), torch.ones(4001)
    getattr(kernels, f"poet_{name}")(at(y), at(x), 4001)
    getattr(kernels, f"poet_{name}_gradient")(at(dx), at(ones), at(x), 4001)
    assert wide.grad is not None
    assert (y.double() - exact.detach()).abs().max() < 1e-6
    assert (dx.double() - wide.grad).abs().max() < 1e-6
