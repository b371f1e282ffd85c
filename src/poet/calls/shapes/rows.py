"""Products, norms and softmax of rows, losses, attention, tables, updates."""

from math import prod

from poet.calls.operands import Operand
from poet.calls.shapes.given import Given, Made, Rule, Shape, broadcast, size_of
from poet.calls.updates import OPTIONS


def product(left: str, right: str) -> Rule:
    def rule(given: Given) -> list[Made]:
        a, b = given[left], given[right]
        if {a.dtype, b.dtype} != {"float32"} or not 2 <= len(a.shape) == len(b.shape) <= 3:
            raise ValueError("its operands are not matrices of float32")
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            raise ValueError(f"a product of {list(a.shape)} and {list(b.shape)}")
        shape = (*a.shape[:-1], b.shape[-1])
        given.must("self" if left == "mat1" else "", shape[-1:])
        return [Made(shape)]

    return rule


def layer_norm(given: Given) -> list[Made]:
    image, rows = given["input"].shape, _rows(given)
    return [Made(image), Made(rows), Made(rows)]


def _rows(given: Given) -> Shape:
    """What LayerNorm has one mean for."""
    image, inner = given["input"].shape, size_of(given, "normalized_shape")
    if not inner or image[-len(inner) :] != inner or not prod(inner):
        raise ValueError(f"rows of {list(inner)} in {list(image)}")
    for name in ("weight", "bias"):
        given.must(name, inner)
    return (*image[: -len(inner)], *[1] * len(inner))


def layer_norm_gradient(given: Given) -> list[Made]:
    image, rows = given["input"].shape, _rows(given)
    given.must("grad_out", image)
    given.must("mean", rows)
    given.must("rstd", rows)
    inner = size_of(given, "normalized_shape")
    return [Made(image), Made(inner), Made(inner)]


def softmax(given: Given) -> list[Made]:
    shape = given["self"].shape
    given.dim("dim", len(shape))
    return [Made(shape)]


def softmax_gradient(given: Given) -> list[Made]:
    shape = given["output"].shape
    given.must("grad_output", shape)
    given.dim("dim", len(shape))
    return [Made(shape)]


def _loss_shape(given: Given) -> Shape:
    """What a loss is: a number, or one for each row and pixel."""
    scores = given["self"].shape
    if len(scores) < 2:
        raise ValueError(f"scores of {list(scores)}")
    given.must("target", (scores[0], *scores[2:]))
    given.must("weight", scores[1:2])
    return () if given.get("reduction", 1) else (scores[0], *scores[2:])


def loss(given: Given) -> list[Made]:
    return [Made(_loss_shape(given)), Made(())]


def loss_gradient(given: Given) -> list[Made]:
    given.must("grad_output", _loss_shape(given))
    given.must("total_weight", ())
    return [Made(given["self"].shape)]


def margins(given: Given) -> list[Made]:
    return [Made(_loss_shape(given))]


def margins_gradient(given: Given) -> list[Made]:
    given.must("grad_output", _loss_shape(given))
    return [Made(given["self"].shape)]


def _lstm_shapes(given: Given, first: str) -> tuple[Shape, Shape, tuple[Shape, ...]]:
    """Of the results, of a state, and of the weights."""
    sequence, hidden = given["input"].shape, given.arguments["hidden_size"]
    if len(sequence) != 3 or hidden < 1 or min(sequence) < 1:
        raise ValueError(f"states of {hidden} over {list(sequence)}")
    moments, batch, inputs = sequence
    weights = ((4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,))
    at = int(first[-1])
    for n, shape in enumerate(weights):
        given.must(f"weight{at + n}", shape)
    for name in ("hx_", "cx_", "cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy"):
        given.must(name, (batch, hidden))
    for name in ("output", "grad_output"):
        given.must(name, (moments, batch, hidden))
    return (moments, batch, hidden), (batch, hidden), weights


def lstm(given: Given) -> list[Made]:
    """What it keeps for its gradient is as large as PyTorch makes it; kernels ask if it will do."""
    out, state, _ = _lstm_shapes(given, "weight0")
    kept = given.work.results[3]
    memory = Made((0,) if kept is None else kept.shape, "uint8")
    return [Made(out), Made(state), Made(state), memory]


def lstm_gradient(given: Given) -> list[Made]:
    _, state, weights = _lstm_shapes(given, "weight1")
    sequence = given["input"].shape
    return [Made(sequence), *map(Made, weights), Made(state), Made(state)]


def _attention_shapes(given: Given) -> tuple[Shape, Shape, Shape]:
    query, key, value = (given[name].shape for name in ("query", "key", "value"))
    if len(query) != 4 or key != value or key != (*query[:2], *key[2:3], query[3]):
        raise ValueError(f"attention of {list(query)}, {list(key)} and {list(value)}")
    for mask in given.operands("attn_mask"):
        whole = Operand(mask.storage, 0, (*query[:3], key[2]), (0, 0, 0, 0), mask.dtype)
        if broadcast([mask, whole]) != whole.shape:
            raise ValueError(f"a mask of {list(mask.shape)} for {list(whole.shape)}")
    return query, key, query[:3]


def attention(given: Given) -> list[Made]:
    query, _, sums = _attention_shapes(given)
    return [Made(query), Made(sums)]


def attention_gradient(given: Given) -> list[Made]:
    query, key, sums = _attention_shapes(given)
    given.must("grad_out", query)
    given.must("out", query)
    given.must("logsumexp", sums)
    return [Made(query), Made(key), Made(key)]


def embedding(given: Given) -> list[Made]:
    table, indices = given["weight"].shape, given["indices"].shape
    if len(table) != 2:
        raise ValueError(f"a table of {list(table)}")
    return [Made((*indices, table[1]))]


def embedding_gradient(given: Given) -> list[Made]:
    indices, gradient = given["indices"].shape, given["grad_output"].shape
    if len(gradient) != len(indices) + 1 or gradient[:-1] != indices:
        raise ValueError(f"a gradient of {list(gradient)} for indices of {list(indices)}")
    rows, ignored = given.arguments["num_weights"], given.arguments["padding_idx"]
    if rows < 1 or ignored >= rows:
        raise ValueError(f"row {ignored} of {rows}")
    return [Made((rows, gradient[-1]))]


def update(*state: str) -> Rule:
    def rule(given: Given) -> list[Made]:
        shape = given["parameter"].shape
        names = [name for name in state if given.operands(name)]
        for name in ("gradient", *names):
            given.must(name, shape)
            if given[name].dtype != "float32":
                raise ValueError(f"{name} is of {given[name].dtype}")
        for name, dtype in (("learning_rate", "float64"), ("step", "int64")):
            given.must(name, ())
            if any(x.dtype != dtype for x in given.operands(name)):
                raise ValueError(f"{name} is not of {dtype}")
        for name in OPTIONS:
            if given.operands(name):
                raise ValueError(
                    f"{name} is an input of the step, where C has a number: capture with poet's "
                    "own optimizer"
                )
        return [Made(shape)] * (1 + len(names))

    return rule
