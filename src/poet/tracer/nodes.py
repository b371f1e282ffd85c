"""Nodes: small questions about the nodes of a traced graph."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import TangentAOTInput

from poet.errors import PoetError
from poet.tracer.operators import CHECKS

Node = torch.fx.Node
GETITEM = operator.getitem
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution")


def storage_of(made: torch.Tensor) -> int:
    """What names a storage: two tensors with the same answer share memory."""
    return int(made.untyped_storage()._cdata)


def strides_of(made: torch.Tensor) -> tuple[int, ...] | None:
    """The strides in elements, or None where the elements lie in row-major order."""
    return None if made.is_contiguous() else tuple(made.stride())


def is_random(node: Node) -> bool:
    """Whether a call draws from the random generator."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
    )


def is_check(node: Node) -> bool:
    """Whether a call is there for the error that it may raise."""
    return node.target in CHECKS


def state_bytes(node: Node) -> int:
    """The size of the state of the random generator that a node draws from."""
    device = node.meta["val"].device
    if device.type == "cuda":
        return int(torch.cuda.get_rng_state(device).numel())
    return int(torch.get_rng_state().numel())


def factory_dtype(node: Node) -> dict[str, torch.dtype]:
    """The dtype of a tensor that is made from nothing, which would else follow torch's default."""
    made, target = node.meta.get("val"), node.target
    if not isinstance(made, torch.Tensor) or not isinstance(target, torch._ops.OpOverload):
        return {}
    names = {argument.name for argument in target._schema.arguments}
    if "dtype" not in names or any(
        isinstance(each.meta.get("val"), torch.Tensor) for each in node.all_input_nodes
    ):
        return {}
    return {"dtype": made.dtype}


def check_dense(made: torch.Tensor, name: str) -> None:
    """Refuse sparse and other tensors whose elements do not lie in one storage."""
    if made.layout is not torch.strided:
        raise PoetError(f"{name} is {made.layout}: POET plans dense tensors. Use dense ones there")


def check_dtypes(node: Node) -> None:
    """Refuse a product of different element types: traces let it pass, kernels do not."""
    if getattr(node.target, "_opname", "") not in _PRODUCTS:
        return
    kinds = {
        str(each.meta["val"].dtype)
        for each in node.all_input_nodes
        if isinstance(each.meta.get("val"), torch.Tensor)
    }
    if len(kinds) > 1:
        raise PoetError(
            f"{op_name(node)}: the dtypes of the example do not fit the model: it multiplies "
            f"{' with '.join(sorted(kinds))}"
        )


def needed(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that some output depends on, and those that draw or check for others' sake."""
    wanted: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or is_random(node) or is_check(node) or node in wanted:
            wanted.add(node)
            wanted.update(node.all_input_nodes)
    return wanted


def backward_nodes(nodes: Sequence[Node]) -> set[Node]:
    """The nodes of the backward pass: those behind the loss's gradient, and those so tagged."""
    found: set[Node] = set()
    for node in nodes:
        if (
            isinstance(node.meta.get("desc"), TangentAOTInput)
            or node.meta.get("partitioner_tag") == "is_backward"
            or any(source in found for source in node.all_input_nodes)
        ):
            found.add(node)
    return found


def op_name(node: Node, prefix: str = "model") -> str:
    """The module path, and for calls that no single layer stands for, the call: `layer1.0.add`."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or node.meta.get(
        "fwd_nn_module_stack", {}
    )
    path, kind = next(reversed(stack.values())) if stack else ("", "")
    short = str(getattr(node.target, "_opname", node.name)).strip("_")
    path = path.removeprefix(prefix).removeprefix(".")
    kind = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    if path and kind.startswith("torch.nn.modules."):
        return path
    return f"{path}.{short}" if path else short
