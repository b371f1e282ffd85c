"""What places of calls have in common, whatever their tensors are called (see `site.Site`)."""

from typing import Any

from poet.calls.operands import Operand, Work
from poet.firmware.write.kernels.site import MOST_DIMS, Fields
from poet.firmware.write.text import c_float, c_int


class CallSite:
    """A call in its place. What its tensors and constants are called there, others say."""

    def __init__(self, work: Work, op_number: int) -> None:
        self.kind, self.family = work.kind, work.family
        self.arguments, self.results = work.arguments, work.results
        self.op_number = op_number

    def refuse(self, why: str) -> Exception:
        raise NotImplementedError

    def at(self, operand: Operand | None, further: int = 0) -> str:
        raise NotImplementedError

    def literal(self, struct: str, text: str) -> str:
        raise NotImplementedError

    def is_parameter(self, operand: Operand) -> bool:
        raise NotImplementedError

    def with_arguments(self, arguments: dict[str, Any]) -> "CallSite":
        raise NotImplementedError

    def scalar(self, operand: Operand) -> str:
        return f"*{self.at(operand)}"

    def constant(self, struct: str, fields: Fields) -> str:
        text = ", ".join(
            f".{name} = {c_float(x) if isinstance(x, float) else c_int(x)}"
            for name, x in fields.items()
        )
        return self.literal(struct, text)

    def view(self, operand: Operand) -> str:
        dims = _merged(operand.shape, operand.strides)
        if len(dims) > MOST_DIMS:
            raise self.refuse(f"it has {len(dims)} dimensions that cannot be merged")
        dims = [(1, 0)] * (MOST_DIMS - len(dims)) + dims
        sizes, strides = (", ".join(str(d[n]) for d in dims) for n in (0, 1))
        return self.literal("view", f"{{{sizes}}}, {{{strides}}}")


def _merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Dimensions of extent 1 dropped. The rest stay: several views must agree on them."""
    return [(s, t) for s, t in zip(shape, strides, strict=True) if s != 1]
