"""Kernels by the calls they do: random shapes and layouts, against PyTorch in doubles."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .calls import Case, run_in_c

ULPS = 4
"""How far a result may lie from the true one, in float32's steps at the largest element; or as far
again as PyTorch's own does, where a sum is small beside what it is a sum of."""


def laid_out(chance: random.Random, shape: tuple[int, ...], spread: float = 3) -> Tensor:
    """Random numbers, in memory in some order, or some of them repeated."""
    how = chance.choice(("row-major", "row-major", "permuted", "repeated"))
    if how == "permuted":
        order = chance.sample(range(len(shape)), len(shape))
        x = torch.randn([shape[d] for d in order]) * spread
        return x.permute([order.index(d) for d in range(len(shape))])
    if how == "repeated" and shape:
        return (torch.randn(1, *shape[1:]) * spread).expand(shape)
    return torch.randn(shape) * spread


def some_shape(chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randint(1, 5) for _ in range(chance.randint(1, 4)))


def function_cases(chance: random.Random) -> Iterator[Case]:
    """What treats each element by itself, and the slopes of it."""
    slope = ("grad_output", "self")
    kinds: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("relu", ("self",), {}), ("tanh", ("self",), {}), ("sigmoid", ("self",), {}),
        ("hardtanh", ("self",), {"min_val": -1.0, "max_val": 2.0}),
        ("clamp", ("self",), {"min": -0.5}), ("clamp_min", ("self",), {"min": 0.5}),
        ("threshold_backward", slope, {"threshold": 0.3}),
        ("hardtanh_backward", slope, {"min_val": -1.0, "max_val": 2.0}),
        ("tanh_backward", ("grad_output", "output"), {}),
        ("sigmoid_backward", ("grad_output", "output"), {}),
        ("abs", ("self",), {}), ("sgn", ("self",), {}), ("sign", ("self",), {}),
        ("exp", ("self",), {}), ("expm1", ("self",), {}), ("reciprocal", ("self",), {}),
        ("sin", ("self",), {}), ("cos", ("self",), {}),
        ("threshold", ("self",), {"threshold": 0.2, "value": -1.5}),
        ("leaky_relu", ("self",), {"negative_slope": 0.2}), ("leaky_relu", ("self",), {}),
        ("leaky_relu_backward", slope,
         {"negative_slope": 0.2, "self_is_result": False}),
        ("elu", ("self",), {"alpha": 1.5, "scale": 1.1, "input_scale": 0.7}),
        ("elu", ("self",), {}),
        ("celu", ("self",), {"alpha": 0.7}),
        ("elu_backward", ("grad_output", "self_or_result"),
         {"alpha": 1.5, "scale": 1.1, "input_scale": 0.7, "is_result": False}),
        ("elu_backward", ("grad_output", "self_or_result"),
         {"alpha": 1.5, "scale": 1.1, "input_scale": 0.7, "is_result": True}),
        ("softplus", ("self",), {"beta": 2.0, "threshold": 5.0}), ("softplus", ("self",), {}),
        ("softplus_backward", slope, {"beta": 2.0, "threshold": 5.0}),
        ("mish", ("self",), {}), ("mish_backward", slope, {}),
        ("hardswish", ("self",), {}), ("hardswish_backward", slope, {}),
        ("hardsigmoid", ("self",), {}), ("hardsigmoid_backward", slope, {}),
        ("hardshrink", ("self",), {"lambd": 0.8}), ("softshrink", ("self",), {}),
        ("hardshrink_backward", ("grad_out", "self"), {"lambd": 0.8}),
        ("softshrink_backward", slope, {"lambd": 0.5}),
        ("log_sigmoid_forward", ("self",), {}), ("log_sigmoid_backward",
         ("grad_output", "self", "buffer"), {}),
        ("_prelu_kernel", ("self", "weight"), {}),
        ("_prelu_kernel_backward", ("grad_output", "self", "weight"), {}),
        ("maximum", ("self", "other"), {}), ("minimum", ("self", "other"), {}),
    ]  # fmt: skip
    for name, operands, numbers in kinds:
        for _ in range(3):
            shape = some_shape(chance)
            given = {x: laid_out(chance, shape) for x in operands}
            if "buffer" in given:
                given["buffer"] = (-given["self"].abs()).exp()
            yield Case(f"aten.{name}", {**given, **numbers})
    for name in ("log", "log1p", "sqrt", "rsqrt"):
        for spread in (1e-3, 1.0, 1e4):
            x = laid_out(chance, some_shape(chance)).abs() * spread
            yield Case(f"aten.{name}", {"self": x})
    for _ in range(3):
        shape = (*some_shape(chance)[:3], 2 * chance.randint(1, 3))
        x = laid_out(chance, shape)
        half = (*shape[:-1], shape[-1] // 2)
        yield Case("aten.glu", {"self": x})
        gradient = {"grad_output": laid_out(chance, half), "self": x, "dim": -1}
        yield Case("aten.glu_backward", gradient)
        y = torch.where(torch.rand(shape) < 0.3, 0, x.abs())
        yield Case("aten.xlogy.Tensor", {"self": y, "other": laid_out(chance, shape).abs()})


def loss_cases(chance: random.Random) -> Iterator[Case]:
    """Losses with every reduction, and their gradients."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("mse_loss", {}), ("smooth_l1_loss", {"beta": 0.7}), ("huber_loss", {"delta": 1.3}),
        ("binary_cross_entropy", {}), ("soft_margin_loss", {}),
    ]  # fmt: skip
    for name, numbers in kinds:
        for reduction in (0, 1, 2):
            for _ in range(2):
                shape = (*some_shape(chance)[:3], 17)
                x, y = laid_out(chance, shape), laid_out(chance, shape)
                if name == "binary_cross_entropy":
                    x, y = x.sigmoid(), y.sigmoid()
                    weight = laid_out(chance, shape).abs()
                    numbers = {"weight": weight if chance.random() < 0.5 else None}
                if name == "soft_margin_loss":
                    y = y.sign()
                given = {"self": x, "target": y, "reduction": reduction, **numbers}
                yield Case(f"aten.{name}", given)
                gradient = torch.randn(()) if reduction else laid_out(chance, shape)
                given = {"grad_output": gradient, **given}
                yield Case(f"aten.{name}_backward", given)
    for reduction in (0, 1, 2):
        shape = (3, 4, 5)
        for of_all, of_true in ((None, None), ((3, 4, 5), None), ((5,), (5,)), (None, (4, 1))):
            given = {
                "self": laid_out(chance, shape, 20), "target": torch.rand(shape),
                "weight": None if of_all is None else torch.rand(of_all),
                "pos_weight": None if of_true is None else 3 * torch.rand(of_true),
            }  # fmt: skip
            kind = "aten.binary_cross_entropy_with_logits"
            yield Case(kind, {**given, "reduction": reduction})


def conv_cases(chance: random.Random) -> Iterator[Case]:
    """Convolutions of signals and images, transposed or not, in groups, in any layout."""
    made = 0
    while made < 60:
        rank, is_transposed = chance.randint(1, 2), chance.random() < 0.5
        groups = chance.choice((1, 1, 2, 3))
        few, many = groups * chance.randint(1, 4), groups * chance.randint(1, 5)
        if chance.random() < 0.2:
            groups = few = many = chance.randint(2, 5)
        stride = [chance.randint(1, 3) for _ in range(rank)]
        kernel = [chance.choice((1, 2, 3, 4)) for _ in range(rank)]
        given: dict[str, Any] = {
            "stride": stride, "padding": [chance.randint(0, k // 2) for k in kernel],
            "dilation": [chance.choice((1, 1, 2)) for _ in range(rank)],
            "transposed": is_transposed, "output_padding": [0] * rank, "groups": groups,
        }  # fmt: skip
        if is_transposed:
            given["output_padding"] = [chance.randrange(n) for n in stride]
        size = [chance.randint(3, 8) for _ in range(rank)]
        weight = (few, many // groups) if is_transposed else (many, few // groups)
        x = laid_out(chance, (2, few, *size), 1)
        w = laid_out(chance, (*weight, *kernel), 1)
        bias = torch.randn(many) if chance.random() < 0.7 else None
        try:
            y = torch.ops.aten.convolution.default(x, w, bias, **given)
        except RuntimeError:
            continue  # the kernel is larger than the image
        made += 1
        yield Case("aten.convolution", {"input": x, "weight": w, "bias": bias, **given})
        gradient = {"grad_output": laid_out(chance, tuple(y.shape), 1), "input": x, "weight": w}
        more = {"bias_sizes": [many], "output_mask": [True, True, True]}
        yield Case("aten.convolution_backward", {**gradient, **given, **more})


def row_cases(chance: random.Random) -> Iterator[Case]:
    """Norms of groups and rows, softmax along any dimension, losses by classes, rows of tables."""
    for _ in range(6):
        batch, groups, each = (chance.randint(1, 3) for _ in range(3))
        shape = (batch, groups * each, *(chance.randint(1, 6) for _ in range(chance.randint(1, 2))))
        x, weight = laid_out(chance, shape).contiguous(), torch.randn(shape[1])
        sizes = {"N": batch, "C": shape[1], "HxW": x[0, 0].numel(), "group": groups}
        weights = {"weight": chance.choice((weight, None)), "bias": torch.randn(shape[1])}
        norm = torch.ops.aten.native_group_norm.default(x, **weights, **sizes, eps=0.1)
        yield Case("aten.native_group_norm", {"input": x, **weights, **sizes, "eps": 0.1})
        given = {"grad_out": torch.randn(shape), "input": x,
                 "mean": norm[1], "rstd": norm[2], "weight": weights["weight"]}  # fmt: skip
        mask = {"output_mask": [True, *[weights["weight"] is not None] * 2]}
        yield Case("aten.native_group_norm_backward", {**given, **sizes, **mask})
        x, gradient, weight = (
            laid_out(chance, shape),
            laid_out(chance, shape),
            torch.randn(shape[-1]),
        )
        bias, inner = torch.randn(shape[-1]), {"normalized_shape": [shape[-1]]}
        norm = torch.ops.aten.native_layer_norm.default(
            x, **inner, weight=weight, bias=bias, eps=0.1
        )
        given = {"input": x, **inner, "weight": weight, "bias": bias}
        yield Case("aten.native_layer_norm", {**given, "eps": 0.1})
        given = {**given, "grad_out": gradient, "mean": norm[1], "rstd": norm[2]}
        given["output_mask"] = [True, True, True]
        yield Case("aten.native_layer_norm_backward", given)
    for wanted, train in ((False, True), (True, True), (False, False)):
        x, gradient, stats = torch.randn(4, 5, 2), torch.randn(4, 9, 2), torch.rand(4, 5) + 0.5
        given = {"grad_out": gradient[:, 2:7], "input": x, "weight": stats[0],
                 "running_mean": stats[1], "running_var": stats[2], "save_mean": x.mean((0, 2)),
                 "save_invstd": x.var((0, 2)).rsqrt(), "train": train}  # fmt: skip
        mask = {"output_mask": [wanted, True, True]}
        yield Case("aten.native_batch_norm_backward", {**given, "eps": 0.1, **mask})
    for _ in range(12):
        shape = (*some_shape(chance)[:3], chance.randint(2, 5))
        x, dim = laid_out(chance, shape), chance.randrange(len(shape))
        for name in ("_softmax", "_log_softmax"):
            made = getattr(torch.ops.aten, name).default(x, dim, False).contiguous()
            yield Case(f"aten.{name}", {"self": x, "dim": dim, "half_to_float": False})
            given = {"grad_output": laid_out(chance, shape), "output": made, "dim": dim}
            yield Case(f"aten.{name}_backward_data", {**given, "input_dtype": torch.float32})
    for reduction in (0, 1, 2):
        for area, name in (((), "nll_loss"), ((2, 3), "nll_loss2d")):
            for by_class in (None, torch.rand(4) + 0.1):
                x, target = -torch.rand(5, 4, *area), torch.randint(4, (5, *area))
                given = {"self": x, "target": target, "weight": by_class, "reduction": reduction,
                         "ignore_index": 2}  # fmt: skip
                made, total = getattr(torch.ops.aten, f"{name}_forward").default(**given)
                yield Case(f"aten.{name}_forward", given)
                given = {**given, "grad_output": laid_out(chance, tuple(made.shape)),
                         "total_weight": total}  # fmt: skip
                yield Case(f"aten.{name}_backward", given)
        for power in (1, 2):
            given = {"self": torch.randn(6, 5), "target": torch.randint(5, (6,)), "p": power,
                     "margin": 0.7, "weight": chance.choice((None, torch.rand(5))),
                     "reduction": reduction}  # fmt: skip
            yield Case("aten.multi_margin_loss", given)
            gradient = torch.randn(()) if reduction else torch.randn(6)
            yield Case("aten.multi_margin_loss_backward", {"grad_output": gradient, **given})
    for _ in range(4):
        rows = torch.randint(6, (3, 4))
        given = {"grad_output": laid_out(chance, (3, 4, 5)), "indices": rows, "num_weights": 6,
                 "padding_idx": chance.choice((-1, 2)), "scale_grad_by_freq": False}  # fmt: skip
        yield Case("aten.embedding_dense_backward", given)


def place_cases(chance: random.Random) -> Iterator[Case]:
    """What moves elements to other places, or looks for some among them."""
    for _ in range(8):
        shape = some_shape(chance)
        x, dim = laid_out(chance, shape), chance.randrange(len(shape))
        pads = [chance.randint(-(min(shape) - 1) // 2, 2) for _ in range(2 * len(shape))]
        yield Case("aten.constant_pad_nd", {"self": x, "pad": pads, "value": 0.5})
        times = [chance.randint(1, 3) for _ in range(chance.randint(len(shape), 4))]
        yield Case("aten.repeat", {"self": x, "repeats": times})
        dims = chance.sample(range(len(shape)), chance.randint(1, len(shape)))
        shifts = [chance.randint(-4, 4) for _ in dims]
        yield Case("aten.roll", {"self": x, "shifts": shifts, "dims": dims})
        yield Case("aten.flip", {"self": x, "dims": dims})
        x = x.round()  # some of them alike: the first is it
        keepdim = chance.random() < 0.5
        for name in ("amax", "amin"):
            yield Case(f"aten.{name}", {"self": x, "dim": dims, "keepdim": keepdim})
        for name in ("max.dim", "min.dim", "argmax", "argmin"):
            yield Case(f"aten.{name}", {"self": x, "dim": dim, "keepdim": keepdim})
        for power in (1.0, 2.0):
            given = {"self": x, "dim": dims, "keepdim": keepdim}
            yield Case("aten.linalg_vector_norm", {**given, "ord": power})
            yield Case("aten.norm.ScalarOpt_dim", {**given, "p": power})
        few = tuple(chance.randint(1, extent) for extent in shape)
        places = torch.randint(shape[dim], few)
        yield Case("aten.gather", {"self": laid_out(chance, shape), "dim": dim, "index": places})
        given = {"self": laid_out(chance, shape), "dim": dim, "index": places,
                 "src": laid_out(chance, few)}  # fmt: skip
        yield Case("aten.scatter_add", given)
        order = [torch.randperm(shape[dim]) for _ in range(max(1, x.numel() // shape[dim]))]
        places = torch.stack(order).reshape([*shape[:dim], *shape[dim + 1 :], shape[dim]])
        places = places.movedim(-1, dim)
        given = {**given, "index": places, "src": laid_out(chance, shape)}
        yield Case("aten.scatter.src", given)
    for shape in ((2, 12, 3, 2), (1, 4, 2, 3), (2, 12, 4, 4)):
        x = laid_out(chance, shape)
        yield Case("aten.channel_shuffle", {"self": x, "groups": 4})
        yield Case("aten.pixel_shuffle", {"self": x, "upscale_factor": 2})
        if shape[2] % 2 == shape[3] % 2 == 0:
            yield Case("aten.pixel_unshuffle", {"self": x, "downscale_factor": 2})


def image_cases(chance: random.Random) -> Iterator[Case]:
    """Images and signals of another size, and the largest of windows that cover them."""
    for _ in range(12):
        rank = chance.randint(1, 2)
        size, out = ([chance.randint(1, 9) for _ in range(rank)] for _ in range(2))
        image, gradient = torch.randn(2, 3, *size), torch.randn(2, 3, *out)
        names: dict[str, Any] = (
            {"scales": None} if rank == 1 else {"scales_h": None, "scales_w": None}
        )
        if chance.random() < 0.4:  # a factor, not a size
            factor = chance.choice((0.7, 1.5, 2.0, 3.3))
            out = [max(1, int(extent * factor)) for extent in size]
            gradient, names = torch.randn(2, 3, *out), dict.fromkeys(names, factor)
        linear = "upsample_linear1d" if rank == 1 else "upsample_bilinear2d"
        for name in (f"upsample_nearest{rank}d", f"_upsample_nearest_exact{rank}d", linear):
            more = {"align_corners": chance.random() < 0.5} if name == linear else {}
            given = {"output_size": out, **more, **names}
            yield Case(f"aten.{name}", {"self": image, **given})
            given = {"grad_output": gradient, **given, "input_size": [2, 3, *size]}
            yield Case(f"aten.{name}_backward", given)
    for area, out in (((7, 5), [2, 3]), ((4, 4), [1, 1]), ((5, 9), [5, 4])):
        image = torch.randn(2, 3, *area)
        made, at = torch.ops.aten.adaptive_max_pool2d.default(image, out)
        yield Case("aten.adaptive_max_pool2d", {"self": image, "output_size": out})
        given = {"grad_output": torch.randn(made.shape), "self": image, "indices": at}
        yield Case("aten.adaptive_max_pool2d_backward", given)


def lstm_cases(chance: random.Random) -> Iterator[tuple[Case, Case]]:
    """A layer of cells over all moments, forward and backward in time, and its gradient."""
    for is_reversed in (False, True):
        for has_last in (False, True):
            moments, batch, inputs, hidden = (chance.randint(1, 6) for _ in range(4))
            sizes = (4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)
            weights = [torch.randn(size) / 2 for size in sizes]
            states = [torch.randn(batch, hidden) for _ in range(2)]
            x = torch.randn(batch, moments, inputs).transpose(0, 1).contiguous()
            how: dict[str, Any] = {
                "reverse": is_reversed, "batch_sizes": [], "mode": 2, "hidden_size": hidden,
                "num_layers": 1, "has_biases": True, "bidirectional": False, "batch_first": False,
                "train": True,
            }  # fmt: skip
            given: dict[str, Any] = {f"weight{n}": weight for n, weight in enumerate(weights)}
            given = {"input": x, **given, "hx_": states[0], "cx_": states[1]}
            forward = Case("aten.mkldnn_rnn_layer", {**given, **how})
            made = forward.made(torch.float32)
            given = {f"weight{n}": weight for n, weight in enumerate(weights, 1)}
            later: list[Any] = [torch.randn(batch, hidden) if has_last else None for _ in range(2)]
            given = {
                "input": x, **given, "hx_": states[0], "cx_tmp": states[1], "output": made[0],
                "hy_": made[1], "cy_": made[2], "workspace": made[3], "grad_hy": later[0],
                "grad_output": torch.randn(batch, moments, hidden).transpose(0, 1),
                "grad_cy": later[1], **how,
            }  # fmt: skip
            yield forward, Case("aten.mkldnn_rnn_layer_backward", given)


def all_cases(chance: random.Random) -> list[Case]:
    families = (function_cases, loss_cases, conv_cases, row_cases, place_cases, image_cases)
    return [case for family in families for case in family(chance)]


def test_calls_are_pytorchs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    cases = all_cases(random.Random(0))
    assert len(cases) > 550
    for case, found in zip(cases, run_in_c(cases, tmp_path), strict=True):
        assert_close(case, found)


def test_layers_of_lstm_cells_are_pytorchs(tmp_path: Path) -> None:
    """The gradient reads what the layer has kept: PyTorch's what PyTorch did, C's what C did."""
    torch.manual_seed(0)
    forward, backward = zip(*lstm_cases(random.Random(0)), strict=True)
    kept = []
    for case, found in zip(forward, run_in_c(forward, tmp_path), strict=True):
        kept.append(found.pop())
        assert_close(case, found)
    ours = [Case(case.kind, {**case.arguments, "workspace": memory})
            for case, memory in zip(backward, kept, strict=True)]  # fmt: skip
    again = tmp_path / "again"
    again.mkdir()
    for case, found in zip(backward, run_in_c(ours, again), strict=True):
        assert_close(case, found)


def assert_close(case: Case, found: list[Tensor | None]) -> None:
    of_torch, exact = case.made(torch.float32), case.made(torch.float64)
    for ours, theirs, true in zip(found, of_torch, exact, strict=False):
        if ours is None or theirs is None or true is None:
            assert ours is true, case
        elif true.is_floating_point() and true.numel():
            step = true.abs().max().clamp(min=1e-30) / 2**23
            apart, rounded = (float((x.double() - true).abs().max() / step) for x in (ours, theirs))
            assert apart <= max(ULPS, 2 * rounded), (case, apart, rounded)
        else:
            assert torch.equal(ours, theirs), case
