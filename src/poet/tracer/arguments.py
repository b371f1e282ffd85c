"""Arguments: what a call is given, as plain JSON and back.

The graph's files hold calls so that readers need no torch; here are the two directions. What JSON
lacks is a one-key object: a tensor, a dtype, a device, a number that is not finite (see
`poet.values.graph.Call`).
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch

from poet.errors import PoetError
from poet.tracer import operators as operators  # a graph may name those that it registers


def kind_of(target: torch._ops.OpOverload) -> str:
    """`aten.convolution`, `aten.add.Tensor`: the overload is left out where it is the default."""
    name = str(target)
    return name.removesuffix(".default")


def target_of(kind: str) -> torch._ops.OpOverload:
    """The operator that a kind names."""
    parts = kind.split(".")
    if len(parts) == 2:
        parts.append("default")
    found: Any = torch.ops
    try:
        for part in parts:
            found = getattr(found, part)
    except (AttributeError, RuntimeError):
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise PoetError(
            f"this torch ({torch.__version__}) has no operator {kind!r}: the graph was captured "
            "with another version, or needs a library of custom operators that is not imported"
        )
    return found


def encode(argument: Any, reference: Callable[[torch.fx.Node], Any]) -> Any:
    """An argument of a traced call as plain JSON; `reference` says what a node stands for."""
    if isinstance(argument, torch.fx.Node):
        return reference(argument)
    if argument is None or isinstance(argument, bool | int | str):
        return argument
    if isinstance(argument, float):
        return argument if isfinite(argument) else {"float": str(argument)}
    if isinstance(argument, list | tuple):
        return [encode(item, reference) for item in argument]
    if isinstance(argument, torch.dtype):
        return {"dtype": dtype_text(argument)}
    if isinstance(argument, torch.device):
        return {"device": str(argument)}
    if isinstance(argument, torch.layout):
        return {"layout": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.memory_format):
        return {"memory_format": str(argument).removeprefix("torch.")}
    raise PoetError(f"an argument of type {type(argument).__name__} ({argument}) cannot be kept")


def dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def decode(argument: Any, found: Callable[[str, int], Any]) -> Any:
    """The argument to call with; `found` gives the tensor or inner value of a reference."""
    if isinstance(argument, list | tuple):
        return [decode(item, found) for item in argument]
    if not isinstance(argument, dict):
        return argument
    ((tag, content),) = argument.items()
    if tag in ("tensor", "value"):
        return found(tag, content)
    return constant(tag, content)


def constant(tag: str, content: str) -> Any:
    """What a tagged argument that is no tensor stands for."""
    if tag == "float":
        return float(content)
    if tag == "device":
        return torch.device(content)
    found = getattr(torch, content, None)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise PoetError(f"this torch ({torch.__version__}) has no {tag} {content!r}")
    return found


def named_arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a traced call by the names its schema gives them."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}
