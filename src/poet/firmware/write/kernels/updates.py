"""Random masks and updates of parameters."""

from collections.abc import Callable

from poet.calls.operands import Operand
from poet.calls.updates import SCALARS
from poet.firmware.write.kernels.site import Site, Table, addresses, dense, operand, result
from poet.firmware.write.text import c_double, c_float


def _dropout_mask(site: Site) -> list[str]:
    out = result(site)
    kept = c_float(1.0 - site.arguments["p"])
    return [
        f"poet_dropout_mask({site.at(out)}, {kept}, ctx->seed, ctx->steps + 1u, "
        f"{site.op_number}u, 0, {out.count});"
    ]


def _sgd(site: Site) -> list[str]:
    gradient, parameter = dense(site, "gradient"), dense(site, "parameter")
    rule = site.constant(
        "sgd",
        {
            "momentum": float(site.arguments["momentum"]),
            "dampening": float(site.arguments["dampening"]),
            "weight_decay": float(site.arguments["weight_decay"]),
            "nesterov": int(site.arguments["nesterov"]),
        },
    )
    rate = site.scalar(operand(site, "learning_rate"))
    buffer = site.arguments.get("momentum_buffer")
    count = parameter.count
    if buffer is None:
        return [f"poet_sgd({site.at(parameter)}, {site.at(gradient)}, {rate}, {rule}, {count});"]
    step = site.arguments.get("step")
    number = site.scalar(step) if isinstance(step, Operand) else "2"
    operands = addresses(site, parameter, buffer, gradient)
    return [f"poet_sgd_momentum({operands}, {rate}, {number}, {rule}, {count});"]


def _adam(is_decoupled: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        names = ("parameter", "exp_avg", "exp_avg_sq", "gradient")
        tensors = [dense(site, name) for name in names]
        texts = (
            *(f".{name} = {c_double(site.arguments[name])}"
              for name in ("beta1", "beta2", "epsilon", "weight_decay")),
            f".is_decoupled = {int(is_decoupled)}",
        )  # fmt: skip
        rule = site.literal("adam", ", ".join(texts))
        rate, step = (site.scalar(operand(site, n)) for n in SCALARS)
        operands = addresses(site, *tensors)
        return [f"poet_adam({operands}, {rate}, {step}, {rule}, {tensors[0].count});"]

    return make


KERNELS: Table = {
    "poet.dropout_mask": _dropout_mask,
    "poet.sgd": _sgd,
    "poet.adam": _adam(False),
    "poet.adamw": _adam(True),
}
