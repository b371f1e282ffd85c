"""Operators: what the calls in a graph may be given, by PyTorch's own schemas, without torch.

`operators.txt` lists the operators that POET knows. An argument of one of them is of the type that
its schema says when a graph is made or read, so that whoever costs, writes or runs a call need not
ask. An operator that is not listed is data: it can be planned for by the sizes of its tensors, but
nothing is written or run for it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LARGEST = 2**63 - 1
"""Whole numbers in a call have 64 bits."""
_LIST = re.compile(r"(?P<item>.+)\[(?P<count>\d*)\]")
_ALIAS = re.compile(r"\(a(?: -> \*)?\)")


class Parameter(NamedTuple):
    """What an operator takes: `SymInt[2]`, or nothing, where it is optional."""

    type: str
    is_optional: bool
    has_default: bool


class Schema(NamedTuple):
    """An operator's parameters by name, and how many results it gives; None: a list of them."""

    parameters: dict[str, Parameter]
    results: int | None


@cache
def schemas() -> dict[str, Schema]:
    """The operators that POET knows, by the kind of their calls."""
    lines = Path(__file__).with_name("operators.txt").read_text().splitlines()
    return dict(_parsed(line) for line in lines if not line.startswith("#"))


def _parsed(line: str) -> tuple[str, Schema]:
    text = _ALIAS.sub("", line)
    head, _, returns = text.rpartition(" -> ")
    name, _, inside = head.removesuffix(")").partition("(")
    parameters = {}
    for words in inside.split(", "):
        if words == "*":
            continue
        kind, _, rest = words.rpartition(" ")
        named, has_default, _ = rest.partition("=")
        parameters[named] = Parameter(kind.removesuffix("?"), kind[-1] == "?", bool(has_default))
    results = None if returns.endswith("[]") else returns.count("Tensor")
    return name.replace("::", "."), Schema(parameters, results)


def check_given(kind: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a known operator that are not of its types.

    What is missing, or not in the schema, is not looked at: another version of PyTorch may have
    given its operator one parameter more or less. Whoever writes or runs the call asks
    `check_whole`.
    """
    schema = schemas().get(kind)
    if schema is None:
        return
    for name, argument in arguments.items():
        parameter = schema.parameters.get(name)
        if parameter is not None and not _fits(argument, parameter):
            wanted = parameter.type.replace("SymInt", "int") + "?" * parameter.is_optional
            raise ValueError(f"its argument {name} is {_short(argument)}, not {wanted}")


def check_whole(kind: str, arguments: Mapping[str, Any], results: Sequence[Any]) -> None:
    """Refuse a call that POET cannot answer for: of an operator or with arguments it knows not."""
    schema = schemas().get(kind)
    if schema is None:
        raise ValueError("POET does not know the operator")
    for name in arguments:
        if name not in schema.parameters:
            raise ValueError(f"POET does not know its argument {name}")
    for name, parameter in schema.parameters.items():
        if name not in arguments and not parameter.has_default:
            raise ValueError(f"its argument {name} is missing")
    if schema.results is not None and len(results) != schema.results:
        raise ValueError(f"it has {len(results)} results, not {schema.results}")


def is_whole(kind: str, arguments: Mapping[str, Any], results: Sequence[Any]) -> bool:
    """Whether a call has all that its operator takes and gives, where POET knows it."""
    try:
        check_whole(kind, arguments, results)
    except ValueError:
        return kind not in schemas()
    return True


def _short(argument: Any) -> str:
    text = repr(argument)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _fits(argument: Any, parameter: Parameter) -> bool:
    return (argument is None and parameter.is_optional) or _is(argument, parameter.type)


def _is(argument: Any, kind: str) -> bool:
    found = _LIST.fullmatch(kind)
    if found is None:
        return _TYPES[kind](argument)
    item, count = found["item"], found["count"]
    if not isinstance(argument, list | tuple):
        return bool(count) and _is(argument, item)  # one for all of them
    optional = item.endswith("?")
    return all((x is None and optional) or _is(x, item.removesuffix("?")) for x in argument)


def _is_whole(argument: Any) -> bool:
    return type(argument) is int and -LARGEST - 1 <= argument <= LARGEST


def _is_number(argument: Any) -> bool:
    return type(argument) is float or _is_whole(argument) or _tagged("float")(argument)


def _tagged(*tags: str) -> Callable[[Any], bool]:
    return lambda argument: isinstance(argument, dict) and any(tag in argument for tag in tags)


def _is_tensor(argument: Any) -> bool:
    """A number will do as a tensor of one element."""
    return _tagged("tensor", "value")(argument) or _is_scalar(argument)


def _is_scalar(argument: Any) -> bool:
    return isinstance(argument, bool) or _is_number(argument)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "Tensor": _is_tensor,
    "Scalar": _is_scalar,
    "int": _is_whole,
    "SymInt": _is_whole,
    "float": _is_number,
    "bool": lambda argument: isinstance(argument, bool),
    "str": lambda argument: isinstance(argument, str),
    "ScalarType": _tagged("dtype"),
    "Layout": _tagged("layout"),
    "Device": _tagged("device"),
    "MemoryFormat": _tagged("memory_format"),
}
