"""Functions of single elements, and losses that are sums of such: tables of what they are called.

A row says which C function it is, of which operands, and with which numbers. All of them go through
one loop, which takes tensors of any layout.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from poet.calls.operands import Operand
from poet.calls.pieces.elements import flat
from poet.firmware.write.kernels.site import Site, Table, operand, result, view_text
from poet.firmware.write.text import c_float

Numbers = Callable[[dict[str, Any]], Sequence[float]]


class Function(NamedTuple):
    """A C function of up to three operands, and its numbers, made of the call's arguments."""

    name: str
    operands: tuple[str, ...] = ("self",)
    numbers: Numbers = lambda given: ()

    def statements(self, site: Site) -> list[str]:
        given = [operand(site, name) for name in self.operands]
        return [each(site, self.name, result(site), given, self.numbers(site.arguments))]


def each(
    site: Site, name: str, out: Operand, given: Sequence[Operand], numbers: Sequence[float] = ()
) -> str:
    """A function of each element of up to three operands, repeated to the result's shape."""
    if any(x.dtype != "float32" for x in (out, *given)):
        raise site.refuse("only float32 is covered")
    sides = flat([out, *given], out.shape)
    missing = 4 - len(sides)
    addresses = ", ".join([*map(site.at, given), *["NULL"] * missing])
    views = ", ".join(map(site.view, [*sides, *sides[:1] * missing]))
    return (
        f"poet_each({site.at(out)}, poet_{name}, {addresses}, {_numbers(site, numbers)}, {views});"
    )


def _numbers(site: Site, numbers: Sequence[float]) -> str:
    return site.literal("numbers", f"{{{', '.join(c_float(float(x)) for x in numbers or (0,))}}}")


def with_defaults(**defaults: float) -> Numbers:
    """The numbers of these arguments, in this order."""
    return lambda given: [given.get(name, default) for name, default in defaults.items()]


def _elu(given: dict[str, Any]) -> Sequence[float]:
    alpha, scale = given.get("alpha", 1), given.get("scale", 1)
    return alpha * scale, scale, given.get("input_scale", 1)


def _celu(given: dict[str, Any]) -> Sequence[float]:
    return given.get("alpha", 1), 1, 1 / given.get("alpha", 1)


def _elu_gradient(site: Site) -> list[str]:
    name = "elu_slope_of_result" if site.arguments["is_result"] else "elu_slope"
    return Function(name, ("grad_output", "self_or_result"), _elu).statements(site)


def _log_sigmoid(site: Site) -> list[str]:
    """The result, and what PyTorch keeps for the gradient, if somebody asks for it."""
    out, kept = site.results
    names = {"log_sigmoid": out, "exp_of_minus_size": kept}
    given = [operand(site, "self")]
    return [each(site, name, x, given) for name, x in names.items() if x is not None and x.count]


def _prelu_gradient(site: Site) -> list[str]:
    gradient, given = operand(site, "grad_output"), operand(site, "self")
    to_input, to_weight = site.results
    lines = []
    if to_input is not None:
        operands = [gradient, given, operand(site, "weight")]
        lines.append(each(site, "prelu_slope", to_input, operands))
    if to_weight is not None:
        lines.append(each(site, "prelu_weight_slope", to_weight, [gradient, given]))
    return lines


def _halves(site: Site, whole: Operand) -> tuple[Operand, Operand]:
    """What GLU lets through, and its gate."""
    dim = site.arguments.get("dim", -1) % len(whole.shape)
    half = whole.shape[dim] // 2
    shape = (*whole.shape[:dim], half, *whole.shape[dim + 1 :])
    first, second = (
        Operand(whole.storage, whole.offset + at, shape, whole.strides, whole.dtype)
        for at in (0, half * whole.strides[dim])
    )
    return first, second


def _glu(site: Site) -> list[str]:
    return [each(site, "gated", result(site), _halves(site, operand(site, "self")))]


def _glu_gradient(site: Site) -> list[str]:
    gradient = operand(site, "grad_output")
    value, gate = _halves(site, operand(site, "self"))
    to_value, to_gate = _halves(site, result(site))
    return [
        each(site, "gated", to_value, [gradient, gate]),
        each(site, "gate_slope", to_gate, [gradient, value, gate]),
    ]


class Loss(NamedTuple):
    """A loss of a term an element; its number is an argument of the call."""

    name: str
    number: tuple[str, float] | None = None

    def _numbers(self, site: Site) -> list[float]:
        return [] if self.number is None else [site.arguments.get(*self.number)]

    def statements(self, site: Site) -> list[str]:
        given = {name: _given(site, name) for name in ("self", "target", "weight", "pos_weight")}
        first, target, weight, positive = given.values()
        out = result(site)
        if site.arguments.get("reduction", 1) == 0:
            operands = [x for x in (first, target, positive) if x is not None]
            lines = [each(site, f"{self.name}_term", out, operands, self._numbers(site))]
            if weight is not None:
                lines.append(each(site, "product", out, [out, weight]))
            return lines
        shape, _ = self._shape(site, given)
        parts = ", ".join(map(site.at, given.values()))
        return [f"poet_loss({site.at(out)}, poet_{self.name}_term, {parts}, {shape});"]

    def gradient(self, site: Site) -> list[str]:
        out, gradient = result(site), operand(site, "grad_output")
        given = {name: _given(site, name) for name in ("self", "target", "weight")}
        shape, (made, along) = self._shape(site, given, [out, gradient])
        where = ", ".join(map(site.at, (gradient, *given.values())))
        views = f"{site.view(made)}, {site.view(along)}"
        slope = f"poet_{self.name}_slope"
        return [f"poet_loss_gradient({site.at(out)}, {slope}, {where}, {shape}, {views});"]

    def _shape(
        self, site: Site, given: dict[str, Operand | None], more: Sequence[Operand] = ()
    ) -> tuple[str, list[Operand]]:
        """The constant of a loss, and the views of other tensors that go along with it."""
        there = {name: x for name, x in given.items() if x is not None}
        if any(x.dtype != "float32" for x in (*there.values(), *more)):
            raise site.refuse("only float32 is covered")
        count = there["self"].count
        sides = flat([*there.values(), *more], there["self"].shape)
        divisor = count if site.arguments.get("reduction", 1) == 1 else 1
        numbers = ", ".join(map(c_float, self._numbers(site) or [0.0]))
        fields = [f".divisor = {c_float(divisor)}", f".numbers = {{{{{numbers}}}}}"]
        for name, side in zip(there, sides, strict=False):
            fields.append(f".{_FIELDS[name]} = {view_text(site, side)}")
        return site.literal("loss", ", ".join(fields)), sides[len(there) :]


_FIELDS = {"self": "in", "target": "target", "weight": "weight", "pos_weight": "positive"}


def _given(site: Site, name: str) -> Operand | None:
    return None if site.arguments.get(name) is None else operand(site, name)


_BETA, _DELTA = ("beta", 1.0), ("delta", 1.0)
_LOSSES = {
    "mse_loss": Loss("mse"),
    "smooth_l1_loss": Loss("smooth", _BETA),
    "huber_loss": Loss("huber", _DELTA),
    "binary_cross_entropy": Loss("bce"),
    "soft_margin_loss": Loss("margin"),
}
_SLOPED = ("grad_output", "self")
_SOFTPLUS = with_defaults(beta=1, threshold=20)
_LAMBDA, _LEAK = with_defaults(lambd=0.5), with_defaults(negative_slope=0.01)

FUNCTIONS = {
    "aten.abs": Function("absolute"),
    "aten.sgn": Function("sign"),
    "aten.sign": Function("sign"),
    "aten.exp": Function("exp_of"),
    "aten.expm1": Function("expm1_of"),
    "aten.log": Function("log_of"),
    "aten.log1p": Function("log1p_of"),
    "aten.sqrt": Function("sqrt_of"),
    "aten.rsqrt": Function("rsqrt_of"),
    "aten.reciprocal": Function("reciprocal"),
    "aten.sin": Function("sine"),
    "aten.cos": Function("cosine"),
    "aten.threshold": Function("threshold", numbers=with_defaults(threshold=0, value=0)),
    "aten.leaky_relu": Function("leaky_relu", numbers=_LEAK),
    "aten.leaky_relu_backward": Function("leaky_relu_slope", _SLOPED, _LEAK),
    "aten.elu": Function("elu", numbers=_elu),
    "aten.celu": Function("elu", numbers=_celu),
    "aten.softplus": Function("softplus", numbers=_SOFTPLUS),
    "aten.softplus_backward": Function("softplus_slope", _SLOPED, _SOFTPLUS),
    "aten.mish": Function("mish"),
    "aten.mish_backward": Function("mish_slope", _SLOPED),
    "aten.hardswish": Function("hardswish"),
    "aten.hardswish_backward": Function("hardswish_slope", _SLOPED),
    "aten.hardsigmoid": Function("hardsigmoid"),
    "aten.hardsigmoid_backward": Function("hardsigmoid_slope", _SLOPED),
    "aten.hardshrink": Function("hardshrink", numbers=_LAMBDA),
    "aten.hardshrink_backward": Function("shrink_slope", ("grad_out", "self"), _LAMBDA),
    "aten.softshrink": Function("softshrink", numbers=_LAMBDA),
    "aten.softshrink_backward": Function("shrink_slope", _SLOPED, _LAMBDA),
    "aten.log_sigmoid_backward": Function("log_sigmoid_slope", _SLOPED),
    "aten._prelu_kernel": Function("prelu", ("self", "weight")),
    "aten.maximum": Function("most", ("self", "other")),
    "aten.minimum": Function("least", ("self", "other")),
    "aten.xlogy.Tensor": Function("xlogy", ("self", "other")),
}
"""What makes each element of its one result from those at the same place."""

KERNELS: Table = {
    **{kind: function.statements for kind, function in FUNCTIONS.items()},
    "aten.elu_backward": _elu_gradient,
    "aten.log_sigmoid_forward": _log_sigmoid,
    "aten._prelu_kernel_backward": _prelu_gradient,
    "aten.glu": _glu,
    "aten.glu_backward": _glu_gradient,
    **{f"aten.{kind}": loss.statements for kind, loss in _LOSSES.items()},
    **{f"aten.{kind}_backward": loss.gradient for kind, loss in _LOSSES.items()},
    "aten.binary_cross_entropy_with_logits": Loss("logits").statements,
}
