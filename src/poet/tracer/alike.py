"""Alike: whether two traces of one step are the same, node by node."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from poet.tracer.tracing import Traced


def alike(one: "Traced", other: "Traced") -> bool:
    """The same calls of the same tensors with the same arguments, and the same constants."""
    return (
        one.names == other.names
        and _calls(one.module) == _calls(other.module)
        and _same(one.constants, other.constants)
        and _same(_held(one.module), _held(other.module))
    )


def _calls(module: torch.fx.GraphModule) -> list[tuple[Any, ...]]:
    return [
        (node.op, node.name, str(node.target), str(node.args), str(node.kwargs), _about(node))
        for node in module.graph.nodes
    ]


def _about(node: torch.fx.Node) -> list[Any]:
    made = node.meta.get("val")
    made = made if isinstance(made, list | tuple) else [made]
    return [
        (x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else type(x) for x in made
    ]


def _held(module: torch.fx.GraphModule) -> dict[str, Any]:
    names = (str(node.target) for node in module.graph.find_nodes(op="get_attr"))
    return {name: getattr(module, name) for name in names}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        isinstance(value, torch.Tensor)
        and isinstance(other[name], torch.Tensor)
        and torch.equal(value, other[name])
        for name, value in one.items()
    )
