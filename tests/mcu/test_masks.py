"""Masks, whole numbers and attention: kernels against PyTorch, then networks that need them."""

import ctypes
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from poet.calls.operands import Operand
from poet.errors import PoetError
from poet.firmware.card.image import read_tensors
from poet.firmware.card.safetensors import write_safetensors
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import build, emulate
from poet.firmware.write.folder import read_folder
from poet.firmware.write.kernels import statements
from poet.values.graph import Call

from . import nets
from .conftest import NETS, SANITIZED, Emitter, Planner, built_kernels
from .test_kernels import at, same, struct

SHAPE = (2, 3, 4, 5)
LESS, EQUAL, GREATER, UNORDERED = 1, 2, 4, 8
NOT, XOR, AND, OR = 3, 6, 8, 14


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    names = (
        "arithmetic",
        "attention",
        "loss",
        "mask",
        "matmul",
        "matmul_row",
        "pointwise",
        "reduce",
        "transformer",
    )
    return built_kernels(tmp_path_factory.mktemp("kernels"), names)


def view(tensor: Tensor) -> Any:
    missing = 4 - tensor.dim()
    return struct(*(1,) * missing, *tensor.shape, *(0,) * missing, *tensor.stride())


def scattered(chance: random.Random, dtype: torch.dtype) -> Tensor:
    """A tensor of `SHAPE` that is row-major, turned, a part of a wider one, or repeated."""
    made = torch.randint(-3, 4, (4, 6, 8, 10))
    if dtype is torch.float32:
        found = made.float() / 2
        found[made == 3] = chance.choice((torch.nan, torch.inf, -torch.inf))
    else:
        found = made > 0 if dtype is torch.bool else made << chance.choice((0, 0, 40))
    how = chance.randrange(4)
    if how == 0:
        return found[:2, :3, :4, :5].contiguous()
    if how == 1:
        return found[:2, :5, 1:5, 2:5].permute(0, 3, 2, 1)
    return found[1:3, :3, ::2, ::2] if how == 2 else found[0, 0, 0, :5].expand(SHAPE)


COMPARISONS = {
    torch.eq: EQUAL, torch.ne: LESS | GREATER | UNORDERED, torch.lt: LESS,
    torch.le: LESS | EQUAL, torch.gt: GREATER, torch.ge: GREATER | EQUAL,
}  # fmt: skip
TYPES = {"floats": torch.float32, "wholes": torch.int64, "truths": torch.bool}


@pytest.mark.parametrize("kind", TYPES)
def test_comparisons_choices_and_copies(kernels: ctypes.CDLL, kind: str) -> None:
    chance = random.Random(1)
    torch.manual_seed(1)
    for _ in range(30):
        a, b = scattered(chance, TYPES[kind]), scattered(chance, TYPES[kind])
        out = torch.empty(SHAPE, dtype=torch.bool)
        for compare, wanted in COMPARISONS.items():
            compare_all = getattr(kernels, f"poet_compare_{kind}")
            compare_all(at(out), at(a), at(b), wanted, view(out), view(a), view(b))
            assert torch.equal(out, compare(a, b)), compare
        condition, chosen = scattered(chance, torch.bool), torch.empty(SHAPE, dtype=TYPES[kind])
        getattr(kernels, f"poet_choose_{kind}")(
            at(chosen), at(condition), at(a), at(b), *map(view, (chosen, condition, a, b))
        )
        assert torch.equal(chosen.nan_to_num(9), torch.where(condition, a, b).nan_to_num(9))
        turned = torch.empty(5, 4, 3, 2, dtype=TYPES[kind]).permute(3, 2, 1, 0)
        name = "copy_view" if kind == "floats" else f"copy_{kind}"
        getattr(kernels, f"poet_{name}")(at(turned), at(a), view(turned), view(a))
        assert torch.equal(turned.nan_to_num(9), a.nan_to_num(9))


def test_truths_and_whole_numbers(kernels: ctypes.CDLL) -> None:
    chance = random.Random(2)
    torch.manual_seed(2)
    tables: dict[int, Any] = {
        AND: torch.bitwise_and, OR: torch.bitwise_or, XOR: torch.bitwise_xor, NOT: lambda a, _: ~a,
    }  # fmt: skip
    for _ in range(30):
        a, b = scattered(chance, torch.bool), scattered(chance, torch.bool)
        out = torch.empty(SHAPE, dtype=torch.bool)
        for table, join in tables.items():
            kernels.poet_join_truths(at(out), at(a), at(b), table, view(out), view(a), view(b))
            assert torch.equal(out, join(a, b))
        x, y = scattered(chance, torch.int64), scattered(chance, torch.int64)
        whole = torch.empty(SHAPE, dtype=torch.int64)
        views = view(whole), view(x), view(y)
        kernels.poet_add_wholes(at(whole), at(x), at(y), ctypes.c_int64(-(2**30)), *views)
        assert torch.equal(whole, x - 2**30 * y)  # wraps around
        kernels.poet_multiply_wholes(at(whole), at(x), at(y), *views)
        assert torch.equal(whole, x * y)
        low, high = ctypes.c_int64(-(2**40)), ctypes.c_int64(1)
        kernels.poet_clamp_wholes(at(whole), at(x), low, high, *views[:2])
        assert torch.equal(whole, x.clamp(-(2**40), 1))
        f = scattered(chance, torch.float32).nan_to_num(1e30, 1e30, -1e30)
        for into, of, source in (("wholes", "truths", a), ("floats", "truths", a),
                                 ("floats", "wholes", x), ("wholes", "floats", f)):  # fmt: skip
            made = torch.empty(SHAPE, dtype=TYPES[into])
            getattr(kernels, f"poet_{into}_of_{of}")(at(made), at(source), view(made), view(source))
            known = source.to(TYPES[into])
            if of == "floats":
                known[source.abs() == 1e30] = -(2**63)  # on every processor
            assert torch.equal(made, known)


def test_sums_and_triangles(kernels: ctypes.CDLL) -> None:
    chance = random.Random(3)
    torch.manual_seed(3)
    for _ in range(20):
        whole, truth = scattered(chance, torch.int64), scattered(chance, torch.bool)
        for x, name in ((whole, "sum_wholes"), (truth, "sum_truths")):
            out = torch.empty(2, 4, dtype=torch.int64)
            getattr(kernels, f"poet_{name}")(at(out), at(x), view(x[:, 0, :, 0]), view(x[0, :, 0]))
            assert torch.equal(out, x.sum((1, 3)))
        for wanted, known in ((1, truth.any(2)), (0, truth.all(2))):
            found = torch.empty(2, 3, 5, dtype=torch.bool)
            inner = view(truth[0, 0, :, 0])
            kernels.poet_find_truths(at(found), at(truth), wanted, view(truth[:, :, 0]), inner)
            assert torch.equal(found, known)
        running = whole.contiguous().clone()
        kernels.poet_sum_along(at(running), 6, 4, 5)
        assert torch.equal(running, whole.cumsum(2))
        edge = chance.randint(-6, 6)
        for dtype in (torch.float32, torch.int64, torch.bool):
            x = torch.randint(1, 9, (3, 4, 5)).to(dtype)
            y = torch.empty_like(x)
            kernels.poet_triangle(at(y), at(x), 3, 4, 5, x.itemsize, edge + 1, 1)
            assert torch.equal(y, x.tril(edge))
            kernels.poet_triangle(at(y), at(x), 3, 4, 5, x.itemsize, edge, 0)
            assert torch.equal(y, x.triu(edge))


def test_rows_that_indices_name(kernels: ctypes.CDLL) -> None:
    torch.manual_seed(4)
    table, a, b = torch.randn(5, 3, 4), torch.randint(-5, 5, (6, 1)), torch.randint(-3, 3, (2,))
    views = [view(x.expand(6, 2)) for x in (a, b)]
    out = torch.empty(6, 2, 4)
    kernels.poet_pick_rows(at(out), at(table), at(a), at(b), struct(5, 3, 16), *views)
    assert torch.equal(out, table[a, b])
    known, rows = table.double().index_put((a, b), out.double(), True), table.clone()
    kernels.poet_add_rows(at(rows), at(out), at(a), at(b), struct(5, 3, 16), *views)
    assert same(rows, known)


@pytest.mark.parametrize("dims", [(3, 7, 1), (2, 5, 12)])
def test_losses_of_rows_and_of_pixels(kernels: ctypes.CDLL, dims: tuple[int, int, int]) -> None:
    torch.manual_seed(5)
    x, target = torch.randn(dims) * 4, torch.randint(0, dims[1], (dims[0], dims[2]))
    target[0, 0] = -100
    wide = x.double().requires_grad_()
    logs = torch.log_softmax(wide, 1)
    exact = torch.nn.functional.nll_loss(logs, target)
    exact.backward()  # type: ignore[no-untyped-call]
    y, g, dx = torch.empty(dims), torch.empty(dims), torch.empty(dims)
    loss, counted, one = torch.empty(()), torch.empty(()), torch.ones(())
    ignored = ctypes.c_int64(-100)
    kernels.poet_log_softmax(at(y), at(x), *dims)
    kernels.poet_nll_loss(at(loss), at(counted), at(y), at(target), *dims, ignored, 1)
    kernels.poet_nll_loss_gradient(at(g), at(one), at(target), at(counted), *dims, ignored, 1)
    kernels.poet_log_softmax_gradient(at(dx), at(g), at(y), *dims)
    assert wide.grad is not None
    assert same(y, logs.detach())
    assert same(loss, exact.detach())
    assert same(dx, wide.grad)


def attention_shape(scale: float, is_causal: bool, *tensors: Tensor) -> Any:
    words: list[int | float] = [scale, int(is_causal)]
    for tensor in tensors:
        missing = 4 - tensor.dim()
        words += [*tensor.shape, *(1,) * missing, *tensor.stride(), *(0,) * missing]
    return struct(*words)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_attention(kernels: ctypes.CDLL, is_causal: bool, has_mask: bool) -> None:
    torch.manual_seed(6)
    aten, chance = torch.ops.aten, random.Random(6)
    for _ in range(12):
        b, h, d = chance.randint(1, 2), chance.randint(1, 3), chance.choice((1, 5, 8, 70))
        queries, keys = chance.randint(1, 21), chance.randint(1, 40)
        q = torch.randn(b, queries, h, d).transpose(1, 2) * 3
        k, v = torch.randn(b, keys, 2, h, d).permute(2, 0, 3, 1, 4)
        mask = torch.randn(b, 1, queries, keys)
        mask[torch.rand(b, 1, queries, keys) < 0.3] = -torch.inf
        mask[:, :, queries // 2] = -torch.inf  # sees nothing: zeros
        mask = mask.expand(b, h, queries, keys)
        wide = [x.double() for x in (q, k, v)]
        how = {"attn_mask": mask.double() if has_mask else None, "scale": 0.3}
        exact = aten._scaled_dot_product_flash_attention_for_cpu(*wide, 0.0, is_causal, **how)
        out, sums = torch.empty(b, queries, h, d).transpose(1, 2), torch.empty(b, h, queries)
        g = torch.randn(b, h, queries, d)
        grads = [torch.empty_like(x) for x in (q, k, v)]
        shape = attention_shape(0.3, is_causal, q, k, v, mask, out, sums, g, *grads)
        masks = at(mask if has_mask else None)
        kernels.poet_attention(at(out), at(sums), at(q), at(k), at(v), masks, shape)
        assert same(out, exact[0])
        assert same(sums, exact[1])
        known = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g.double(), *wide, *exact, 0.0, is_causal, **how
        )
        given = map(at, (*grads, g, q, k, v, out, sums))
        kernels.poet_attention_gradient(*given, masks, shape)
        for found, right in zip(grads, known, strict=True):
            assert same(found, right)


def test_softmax_of_what_is_masked_everywhere(kernels: ctypes.CDLL) -> None:
    x, y = torch.full((3, 4), -torch.inf), torch.empty(3, 4)
    x[1, 2], x[2, 1] = 0.5, torch.nan  # a NaN must not be hidden
    kernels.poet_softmax(at(y), at(x), 3, 4)
    known = torch.ops.aten._safe_softmax(x, -1)
    assert torch.equal(y.nan_to_num(9), known.nan_to_num(9))
    g, dx = torch.randn(3, 4), torch.empty(3, 4)
    kernels.poet_softmax_gradient(at(dx), at(g), at(y), 2, 4)
    assert torch.equal(dx[0], torch.zeros(4))


TIGHT = {f"{NETS}:masked": "12 KB", f"{NETS}:gpt2": "30 KB"}


@pytest.mark.parametrize("model", TIGHT)
def test_any_plan_gives_the_same_bits(model: str, planned: Planner, emitted: Emitter) -> None:
    found = []
    for ram, params, method in (("64 MB", "resident", "keep-all"), (TIGHT[model], "paged", None)):
        folder = emitted(planned(model, ram, params=params, method=method))
        assert emulate(folder).differences == ()
        against = compare_card(folder)
        assert against is not None
        assert against.is_close, against
        made, plan = read_folder(folder)
        card = read_tensors(folder / "card.img", plan.graph, made.card)
        found.append({plan.graph.tensors[i].name: x.tobytes() for i, x in card.items()})
    assert found[0] == found[1]


@pytest.mark.usefixtures("board_tools")
def test_attention_fits_the_smallest_stack(planned: Planner, emitted: Emitter) -> None:
    plan = planned(f"{NETS}:masked", TIGHT[f"{NETS}:masked"])
    board, host = emitted(plan, "microbit", steps=1), emitted(plan, steps=1)
    (step,) = emulate(board).steps
    assert step.stack_bytes < 960  # of 1,024
    emulate(host)
    assert (board / "card.img").read_bytes() == (host / "card.img").read_bytes()


@pytest.mark.parametrize("net", ["rules", "bert", "pixels"])
def test_networks_that_need_masks(
    net: str, planned: Planner, emitted: Emitter, tmp_path: Path
) -> None:
    plan = planned(f"{NETS}:{net}", "64 MB", "sgd", params="resident", method="keep-all")
    how: dict[str, Path] = {}
    if any(tensor.role == "buffer" for tensor in plan.graph.tensors):
        with pytest.raises(PoetError, match=r"the buffer .* is not known: give weights="):
            emitted(plan)
        model = nets.bert()[0]
        how["weights"] = tmp_path / "weights.safetensors"
        named = (*model.named_parameters(), *model.named_buffers())
        write_safetensors({n: t.detach().numpy() for n, t in named}, how["weights"])
    folder = emitted(plan, **how)
    if net == "rules":
        made, _ = read_folder(folder)
        build(folder, made, f"EXTRA={SANITIZED}")
    assert emulate(folder).differences == ()
    against = compare_card(folder)
    assert against is not None
    assert against.is_close, against
    assert against.difference < 2e-6, against  # one wrong mask of many would be more


class Place:
    """A call with nothing around it."""

    op_number = 0

    def __init__(self, kind: str, results: Any, arguments: dict[str, Any]) -> None:
        self.kind, self.family = kind, Call(kind=kind).family
        self.results, self.arguments = results, arguments

    def refuse(self, why: str) -> Exception:
        return PoetError(why)

    def at(self, operand: Operand | None, further: int = 0) -> str:
        return "x"

    def literal(self, *about: Any) -> str:
        return "&x"

    view = constant = scalar = literal


def operand(dtype: str, *shape: int, strides: tuple[int, ...] | None = None) -> Operand:
    whole = torch.empty(shape).stride()
    return Operand(("value", 0), 0, shape, strides or whole, dtype)


X, N, B, SMALL = (operand(dtype, 2, 6) for dtype in ("float32", "int64", "bool", "int32"))
REFUSED: dict[str, list[tuple[str, Operand, dict[str, Any]]]] = {
    "float32 and int64": [
        ("aten.eq.Tensor", B, {"self": X, "other": N}),
        ("aten.cumsum", X, {"self": X, "dim": 0}),
        ("aten.arange", X, {"end": 6}),
        ("aten.index_put", N, {"self": N, "indices": [N], "values": X, "accumulate": True}),
    ],
    "int32": [("aten.ge.Scalar", B, {"self": SMALL, "other": 0}), ("aten.ones", SMALL, {})],
    "no whole number": [("aten.ge.Scalar", B, {"self": N, "other": 0.5}),
                        ("aten.gt.Scalar", B, {"self": N, "other": -torch.inf})],
    "a truth beside 2": [("aten.eq.Scalar", B, {"self": B, "other": 2})],
    "only truths": [("aten.bitwise_and.Tensor", N, {"self": N, "other": N}),
                    ("aten.bitwise_not", N, {"self": N})],
    "first dimensions": [("aten.index.Tensor", X, {"self": X, "indices": [None, N]}),
                         ("aten.index.Tensor", X, {"self": X, "indices": [B]})],
    "row-major": [("aten.index.Tensor", X,
                   {"self": operand("float32", 2, 6, strides=(1, 2)), "indices": [N]})],
    "rows that are added": [("aten.index_put", X, {"self": X, "indices": [N], "values": X})],
    "rounded": [("aten.div.Tensor_mode", X, {"self": X, "other": 2, "rounding_mode": "floor"})],
    "a power of 0.3": [("aten.pow.Tensor_Scalar", X, {"self": X, "exponent": 0.3})],
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused(why: str) -> None:
    for kind, out, arguments in REFUSED[why]:
        site: Any = Place(kind, (out,), arguments)
        with pytest.raises(PoetError, match=why):
            statements(site)
