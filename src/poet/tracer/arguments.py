"""Arguments: what a call is given, as plain JSON and back, and what it calls.

The graph's files hold calls so that readers need no torch; here are the two directions. What JSON
lacks is a one-key object: a tensor, a dtype, a device, a number that is not finite (see
`poet.values.graph.Call`).

A graph may come from a file, so `function_of` gives nothing but kernels of POET and operators that
make tensors, and only for arguments that these have. No operator that reads or writes files is
among them.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch

from poet.errors import PoetError
from poet.tracer import operators as operators  # a graph may name those that it registers
from poet.tracer.kernels import ARGUMENTS, KERNELS
from poet.values.graph import Call

_TENSORS = ("Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]")
_ON_FILES = ("filename", "path")
"""Arguments by which an operator would reach a file."""
_BESIDE = frozenset(
    ("prim", "debugprims", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd",
     "symm_mem", "inductor", "export", "static_runtime")
)  # fmt: skip
"""Libraries of torch whose operators do something else than arithmetic."""
_KINDS = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def kind_of(target: torch._ops.OpOverload) -> str:
    """`aten.convolution`, `aten.add.Tensor`: the overload is left out where it is the default."""
    name = str(target)
    return name.removesuffix(".default")


def target_of(kind: str) -> torch._ops.OpOverload:
    """The operator that a kind names now: a user's may be registered anew."""
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
    schema = found._schema
    makes = [str(each.type) in _TENSORS for each in schema.returns]
    reaches_out = parts[0] in _BESIDE or any(x.name in _ON_FILES for x in schema.arguments)
    if not makes or not all(makes) or reaches_out:
        raise PoetError(f"{kind} is not an operator that makes tensors from tensors and numbers")
    return found


def function_of(call: Call) -> Any:
    """What a call of a graph calls, once it is known to have the arguments that are given."""
    kernel = KERNELS.get(call.kind)
    if kernel is not None:
        _check_names(call, ARGUMENTS[call.kind])
        return kernel
    found = target_of(call.kind)
    _check_names(call, tuple(argument.name for argument in found._schema.arguments))
    returns = found._schema.returns
    is_list = len(returns) == 1 and str(returns[0].type).startswith("List")
    if not call.results or not (is_list or len(call.results) == len(returns)):
        raise PoetError(f"{call.kind} gives {len(returns)} results; here are {len(call.results)}")
    return found


def _check_names(call: Call, known: tuple[str, ...]) -> None:
    for name in call.arguments:
        if name not in known:
            raise PoetError(f"{call.kind} has no argument {name!r}: it has {', '.join(known)}")


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
    return _of_torch(_KINDS[tag], content)


def dtype_named(text: str | None) -> torch.dtype:
    """An element type by its name."""
    found: torch.dtype = _of_torch(torch.dtype, text or "")
    return found


def _of_torch(kind: type[Any], name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise PoetError(f"torch has no {kind.__name__} {name!r}")
    return found


def named_arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a traced call by the names its schema gives them."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}
