"""What must hold of the calls of an op: plain words, plain JSON, nothing read before it is made.

A call from a file may end up as a call of PyTorch or of C. So its kind and the names of its
arguments are words of ASCII letters, digits and underscores, an argument is plain JSON, and what
JSON lacks has one of a few forms. Arguments of operators that POET knows are of their types
(`operators`); that others exist at all is for those to say who call them.
"""

import re
from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from poet.values.operators import check_given

if TYPE_CHECKING:
    from poet.values.graph import Call, Op

MAX_ARGUMENT_DEPTH = 32
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KIND = re.compile(rf"{_WORD.pattern}(\.{_WORD.pattern}){{0,2}}")
_TEXTS = {
    "float": re.compile(r"inf|-inf|nan"),
    "dtype": _WORD,
    "device": re.compile(r"[a-z]+(:[0-9]{1,3})?"),
    "layout": _WORD,
    "memory_format": _WORD,
}
"""What stands for a thing that JSON lacks, by its tag."""


def check_words(call: "Call") -> None:
    """Refuse a kind, or a name of an argument, that is not a plain word."""
    if not _KIND.fullmatch(call.kind):
        raise ValueError(f"a call has the kind {call.kind[:60]!r}; POET expects one like aten.add")
    for name in call.arguments:
        if not _WORD.fullmatch(name):
            raise ValueError(f"{call.kind} has an argument named {name[:60]!r}, which is no name")


def check_calls(op: "Op") -> None:
    inputs, outputs = set(op.inputs), set(op.outputs)
    made: set[tuple[str, int]] = set()
    for n, value in enumerate(op.values):
        if value.view_of is not None:
            ((tag, i),) = value.view_of.items()
            if (tag == "tensor" and i not in inputs | outputs) or (
                tag == "value" and not 0 <= i < n
            ):
                raise ValueError(f"value {n} of op {op.name!r} is a view of {tag} {i}, not its own")
    for call in op.calls:
        where = f"{call.kind} in op {op.name!r}"
        for argument in call.arguments.values():
            for key, i in _references(argument, where):
                if key == "tensor" and i not in inputs and i not in outputs:
                    raise ValueError(f"{where} reads tensor {i}, which is not the op's")
                if (key, i) not in made and not (key == "tensor" and i in inputs):
                    raise ValueError(f"{where} reads {key} {i} before it is made")
        for result in call.results:
            if result is not None:
                _check_result(op, result, where)
                made |= result.items()
        try:
            check_given(call.kind, call.arguments)
        except ValueError as error:
            raise ValueError(f"{where} cannot be called: {error}") from None


def _check_result(op: "Op", result: dict[str, int], where: str) -> None:
    if len(result) != 1 or not result.keys() <= {"tensor", "value"}:
        raise ValueError(f"{where} has a wrong result: {result}")
    ((key, i),) = result.items()
    if key == "value" and not 0 <= i < len(op.values):
        raise ValueError(f"{where} makes value {i}; the op describes {len(op.values)} values")
    if key == "tensor" and i not in op.outputs:
        raise ValueError(f"{where} writes tensor {i}, which is not one of the op's outputs")


def _references(argument: Any, where: str, depth: int = 0) -> Iterator[tuple[str, int]]:
    """The tensors and values inside an argument; anything that is not plain JSON is refused."""
    if depth > MAX_ARGUMENT_DEPTH:
        raise ValueError(f"{where} has arguments nested deeper than {MAX_ARGUMENT_DEPTH}")
    if isinstance(argument, list | tuple):
        for item in argument:
            yield from _references(item, where, depth + 1)
    elif isinstance(argument, dict):
        key, content = next(iter(argument.items())) if len(argument) == 1 else ("", None)
        if key in ("tensor", "value") and type(content) is int:
            yield key, content
        elif not (key in _TEXTS and isinstance(content, str) and _TEXTS[key].fullmatch(content)):
            raise ValueError(f"{where} has an argument POET does not know: {str(argument)[:80]}")
    elif isinstance(argument, float) and not isfinite(argument):
        raise ValueError(f"{where} has the argument {argument}; write it as {{'float': 'inf'}}")
    elif argument is not None and not isinstance(argument, str | int | float):
        raise ValueError(f"{where} has an argument of type {type(argument).__name__}")
