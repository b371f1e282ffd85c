"""A graph's step in PyTorch, op by op, from values by id: what other ways to run it are held to.

No plan, no model: the graph says which operators to call. In float64 the same calls run with every
float32 tensor widened, which shows how much of a difference is rounding.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from poet.calls.updates import NUMBERS
from poet.errors import PoetError
from poet.runtime.step.in_doubles import STAND_INS
from poet.tracer.arguments import decode, function_of
from poet.tracer.kernels import KERNELS
from poet.values.graph import Call, Graph, Tensor, Value
from poet.values.operators import check_whole

FLOAT32_ROUNDING = 2.0**-24
"""How far a number may be from the float32 beside it, as a share of itself."""

PICKED = ("aten.amax", "aten.amin", "aten.max.dim", "aten.min.dim")
"""Operators that round nothing, and whose gradients look for the very number that was picked."""


def reference_step(
    graph: Graph,
    given: dict[int, torch.Tensor],
    dtype: torch.dtype = torch.float32,
    dropout_mask: Callable[[int, tuple[int, ...], float], torch.Tensor] | None = None,
    wanted: Collection[int] | None = None,
    noise: torch.Generator | None = None,
) -> dict[int, torch.Tensor]:
    """The tensors of a step by id, from those that exist when it starts; all, or those `wanted`.

    `dropout_mask(op, shape, p)` stands in for PyTorch's random numbers. Only operators that POET
    knows are called, and what they give must be what the graph says, before anything reads it. With
    `noise`, each result is off by chance as far as the rounding of float32 could make it.
    """
    known = {i: _copied(tensor, dtype) for i, tensor in given.items()}
    with torch.no_grad():
        for k, op in enumerate(graph.ops):
            values: dict[int, torch.Tensor] = {}

            def found(tag: str, n: int, values: dict[int, torch.Tensor] = values) -> torch.Tensor:
                return known[n] if tag == "tensor" else values[n]

            for call in op.calls:
                check_whole(call.kind, call.arguments, call.results)
                if not any(call.results):
                    continue  # nobody would see that it ran
                arguments: dict[str, Any] = {
                    name: _dtype(decode(argument, found), dtype)
                    for name, argument in call.arguments.items()
                }
                made: Any
                if call.kind == "poet.dropout_mask" and dropout_mask is not None:
                    shape = tuple(arguments["size"])
                    made = dropout_mask(k, shape, arguments["p"]).to(dtype)
                elif call.kind in STAND_INS and dtype != torch.float32:
                    shapes = [_shape(graph, k, result) for result in call.results]
                    made = STAND_INS[call.kind](arguments, shapes)
                else:
                    for name in NUMBERS if call.kind in KERNELS else ():
                        if isinstance(arguments.get(name), torch.Tensor):
                            arguments[name] = arguments[name].item()
                    # A recurrent layer keeps nothing for its gradient where none is wanted.
                    with torch.set_grad_enabled(call.kind in STAND_INS):
                        made = function_of(call)(**arguments)
                results = made if isinstance(made, tuple | list) else (made,)
                for result, tensor in zip(call.results, results, strict=False):
                    if result is not None:
                        ((tag, n),) = result.items()
                        described = (graph.tensors if tag == "tensor" else op.values)[n]
                        _check_result(call, described, tensor)
                        is_view = tag == "value" and op.values[n].view_of is not None
                        is_rounded = not is_view and call.kind not in PICKED
                        if noise is not None and is_rounded and tensor.is_floating_point():
                            off = torch.rand(tensor.shape, generator=noise, dtype=tensor.dtype)
                            tensor = tensor * (1 + FLOAT32_ROUNDING * (2 * off - 1))
                        (known if tag == "tensor" else values)[n] = tensor
            if wanted is not None:
                for i in (*op.inputs, *op.outputs):
                    if i not in wanted and max((*graph.readers[i], 0)) <= k:
                        known.pop(i, None)
    return known


def _shape(graph: Graph, k: int, result: dict[str, int] | None) -> tuple[int, ...] | None:
    if result is None:
        return None
    ((tag, n),) = result.items()
    return (graph.tensors if tag == "tensor" else graph.ops[k].values)[n].shape


def _check_result(call: Call, described: Tensor | Value, made: torch.Tensor) -> None:
    found = str(made.dtype).removeprefix("torch.")
    found = found if described.dtype != "float32" or found != "float64" else "float32"
    if tuple(made.shape) != described.shape or found != described.dtype:
        shape = list(described.shape or ())
        raise PoetError(
            f"{call.kind} made {found} {list(made.shape)}; the graph says {described.dtype} {shape}"
        )


def _copied(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype if tensor.dtype == torch.float32 else tensor.dtype, copy=True)


def _dtype(argument: Any, dtype: torch.dtype) -> Any:
    if isinstance(argument, torch.device):
        return torch.device("cpu")
    return dtype if argument is torch.float32 else argument
