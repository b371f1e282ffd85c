"""A graph's step in PyTorch, op by op, from values by id: what other ways to run it are held to.

No plan, no model: the graph says which operators to call. In float64 the same calls run with every
float32 tensor widened, which shows how much of a difference is rounding.
"""

from collections.abc import Callable
from typing import Any

import torch

from poet.calls.updates import SCALARS
from poet.tracer.arguments import decode, function_of
from poet.tracer.kernels import KERNELS
from poet.values.graph import Graph


def reference_step(
    graph: Graph,
    given: dict[int, torch.Tensor],
    dtype: torch.dtype = torch.float32,
    dropout_mask: Callable[[int, tuple[int, ...], float], torch.Tensor] | None = None,
) -> dict[int, torch.Tensor]:
    """All tensors of a step by id, from those that exist when it starts.

    `dropout_mask(op, shape, p)` stands in for PyTorch's random numbers.
    """
    known = {i: _widened(tensor, dtype).clone() for i, tensor in given.items()}
    with torch.no_grad():
        for k, op in enumerate(graph.ops):
            values: dict[int, torch.Tensor] = {}

            def found(tag: str, n: int, values: dict[int, torch.Tensor] = values) -> torch.Tensor:
                return known[n] if tag == "tensor" else values[n]

            for call in op.calls:
                arguments: dict[str, Any] = {
                    name: _dtype(decode(argument, found), dtype)
                    for name, argument in call.arguments.items()
                }
                made: Any
                if call.kind == "poet.dropout_mask" and dropout_mask is not None:
                    shape = tuple(arguments["size"])
                    made = dropout_mask(k, shape, arguments["p"]).to(dtype)
                else:
                    for name in SCALARS if call.kind in KERNELS else ():
                        if isinstance(arguments.get(name), torch.Tensor):
                            arguments[name] = arguments[name].item()
                    made = function_of(call)(**arguments)
                results = made if isinstance(made, tuple | list) else (made,)
                for result, tensor in zip(call.results, results, strict=False):
                    if result is not None:
                        ((tag, n),) = result.items()
                        (known if tag == "tensor" else values)[n] = tensor
    return known


def _widened(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor


def _dtype(argument: Any, dtype: torch.dtype) -> Any:
    return dtype if argument is torch.float32 else argument
