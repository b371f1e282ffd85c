"""Single calls as C: each with tensors of PyTorch's, all of them in one library."""

import copy
import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poet.calls.operands import Operand, Work
from poet.calls.shapes.check import _check_results
from poet.errors import PoetError
from poet.firmware.write.folder import FLAGS
from poet.firmware.write.kernels import statements
from poet.firmware.write.kernels.call_site import CallSite
from poet.firmware.write.text import SOURCES, check_statement
from poet.runtime.step.in_doubles import STAND_INS
from poet.tracer.arguments import dtype_text
from poet.values.operators import schemas

STRICT = "-Wpedantic -Wconversion -Wshadow -Wsign-conversion"


class Case(NamedTuple):
    """A call of an operator, and its arguments by name."""

    kind: str
    arguments: dict[str, Any]

    @property
    def target(self) -> Any:
        namespace, name, *overload = self.kind.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), *overload or ["default"])

    def made(self, dtype: torch.dtype) -> list[Tensor | None]:
        """What PyTorch makes of it, with floats of this type."""
        if dtype == torch.float64 and self.kind in STAND_INS:
            return list(STAND_INS[self.kind](self._given(dtype), self._shapes()))
        given = self._given(dtype)
        made = self.target(**given)
        return list(made) if isinstance(made, list | tuple) else [made]

    def _given(self, dtype: torch.dtype) -> dict[str, Any]:
        return {name: _as(dtype, x) for name, x in self.arguments.items()}

    def _shapes(self) -> list[tuple[int, ...]]:
        return [tuple(x.shape) for x in self.made(torch.float32) if x is not None]


def _as(dtype: torch.dtype, x: Any) -> Any:
    if isinstance(x, list | tuple):
        return [_as(dtype, item) for item in x]
    if isinstance(x, Tensor) and x.dtype == torch.uint8:
        return x.clone()  # PyTorch's library may write into what it has kept
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        return x
    return x if dtype == torch.float32 else x.to(dtype)


class _Calls(CallSite):
    """A call whose tensors are the elements of an array of addresses."""

    def __init__(
        self, case: Case, made: Sequence[Tensor | None], constants: dict[Any, str]
    ) -> None:
        self.tensors: list[Tensor] = []
        self._constants = constants
        self.op_number, self.kind = 0, case.kind
        self.family = ".".join(case.kind.split(".")[:2])
        self.arguments = {name: self._found(x) for name, x in case.arguments.items()}
        self.results = tuple(None if x is None else self._seat(x) for x in made)
        self.work = Work(0, self.kind, self.family, self.arguments, self.results)

    def _found(self, x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [self._found(item) for item in x]
        return self._seat(x) if isinstance(x, Tensor) else x

    def _seat(self, x: Tensor) -> Operand:
        self.tensors.append(x)
        place = ("tensor", len(self.tensors) - 1)
        return Operand(place, 0, tuple(x.shape), x.stride(), dtype_text(x.dtype))

    def refuse(self, why: str) -> Exception:
        return PoetError(f"{self.kind}: {why}")

    def at(self, operand: Operand | None, further: int = 0) -> str:
        if operand is None:
            return "NULL"
        kinds = {"float32": "floats", "int64": "wholes", "bool": "truths", "uint8": "truths"}
        text = f"{kinds[operand.dtype]}({operand.storage[1]})"
        offset = operand.offset + further
        return text if offset == 0 else f"{text} + {offset}"

    def with_arguments(self, arguments: dict[str, Any]) -> "_Calls":
        other = copy.copy(self)
        other.arguments = arguments
        return other

    def is_parameter(self, operand: Operand) -> bool:
        return False

    def literal(self, struct: str, text: str) -> str:
        check_statement(text, ())
        known = self._constants.setdefault((struct, text), f"{struct}_{len(self._constants)}")
        return f"&{known}"


def run_in_c(cases: Sequence[Case], folder: Path) -> list[list[Tensor | None]]:
    """The results of all cases, by kernels in one library."""
    constants: dict[Any, str] = {}
    sites, bodies = [], []
    for n, case in enumerate(cases):
        made = [
            None if x is None else torch.full_like(x, _wrong(x)) for x in case.made(torch.float32)
        ]
        site = _Calls(case, made, constants)
        assert case.kind in schemas(), case.kind
        _check_results(site.work)
        lines = statements(site)
        for line in lines:
            check_statement(line, {*constants.values(), "floats", "wholes", "truths"})
        bodies += [f"void case_{n}(void **at)", "{", *(f"    {line}" for line in lines), "}"]
        sites.append((site, made))
    head = [
        '#include "layers.h"',
        "#define floats(n) ((float *)at[n])",
        "#define wholes(n) ((int64_t *)at[n])",
        "#define truths(n) ((uint8_t *)at[n])",
    ]
    structs = [f"static const struct poet_{kind} {name} = {{{text}}};"
               for (kind, text), name in constants.items()]  # fmt: skip
    (folder / "cases.c").write_text("\n".join([*head, *structs, *bodies, ""]))
    library = _built(folder)
    for n, (site, _) in enumerate(sites):
        addresses = [ctypes.c_void_p(x.data_ptr()) for x in site.tensors]
        getattr(library, f"case_{n}")((ctypes.c_void_p * len(addresses))(*addresses))
    return [made for _, made in sites]


def _wrong(x: Tensor) -> float:
    return torch.nan if x.dtype.is_floating_point else 1


def _built(folder: Path) -> ctypes.CDLL:
    stub = folder / "stub.c"
    stub.write_text('#include "kernels.h"\nvoid poet_no_such_index(int64_t i, int32_t n)\n'
                    "{\n    (void)i;\n    (void)n;\n    __builtin_trap();\n}\n"
                    "void poet_check_failed(uint32_t op)\n{\n    (void)op;\n"
                    "    __builtin_trap();\n}\n")  # fmt: skip
    kernels = [str(x) for x in sorted(SOURCES.glob("*.c"))]
    words = [*FLAGS.split(), *STRICT.split(), f"-I{SOURCES}", "-fPIC", "-shared"]
    path = folder / "calls.so"
    subprocess.run(
        ["cc", *words, "-o", str(path), str(folder / "cases.c"), str(stub), *kernels], check=True
    )
    return ctypes.CDLL(str(path))
