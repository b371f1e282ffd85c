"""Building: the calls of one op, with the views that its arguments are made by."""

from typing import Any, Protocol

import torch

from poet.tracer.arguments import dtype_text, encode, kind_of, named_arguments
from poet.tracer.nodes import GETITEM, Node, factory_dtype, strides_of
from poet.tracer.true_results import exactly
from poet.values.graph import Call, JsonReference, Value


class Storages(Protocol):
    """Which tensor a node's storage is, and the node that made it."""

    base: list[Node]

    def tensor_of(self, node: Node) -> int: ...


class OpBuilder:
    """The calls and inner values of one op, while they are put together."""

    def __init__(self, storages: Storages) -> None:
        self.storages = storages
        self.calls: list[Call] = []
        self.values: list[Value] = []
        self.inputs: dict[int, None] = {}
        self._seen: dict[Node, JsonReference] = {}
        self._copies: list[Call] = []

    def reference(self, node: Node) -> Any:
        """What an argument stands for: a tensor, a view made here, or a plain number."""
        if node in self._seen:
            return self._seen[node]
        made = node.meta.get("val")
        if not isinstance(made, torch.Tensor):
            return encode(made, self.reference)
        i = self.storages.tensor_of(node)
        self.inputs[i] = None
        root = {"tensor": i}
        found = root if self.storages.base[i] is node else self._view(node, root)
        self._seen[node] = found
        return found

    def _view(self, node: Node, root: JsonReference) -> JsonReference:
        """Repeat the call that makes a view."""
        source, place = node, None
        if node.target is GETITEM:
            source, place = node.args[0], node.args[1]  # type: ignore[assignment]
        elif (
            node.target is torch.ops.aten.detach.default
            or node.target is torch.ops.aten.alias.default
        ):
            return self.reference(node.args[0])  # type: ignore[arg-type, no-any-return]
        arguments = self.arguments(source)
        made = self.value(node.meta["val"], root)
        results: list[JsonReference | None] = [made]
        if place is not None:
            results = [None] * len(source.meta["val"])
            results[int(place)] = made  # type: ignore[arg-type]
        self.add(source, arguments, tuple(results))
        return made

    def arguments(self, node: Node) -> dict[str, Any]:
        given = named_arguments(node) | factory_dtype(node)
        return {name: encode(a, self.reference) for name, a in given.items()}

    def result(self, i: int, real: torch.Tensor) -> JsonReference:
        """What a call makes, to become tensor i: a copy, where it would keep more memory."""
        exact = exactly(real)
        if exact is real:
            return {"tensor": i}
        made, wanted = self.value(real), ({"tensor": i},)
        if real.is_contiguous():
            arguments = {"self": made, "memory_format": {"memory_format": "contiguous_format"}}
            self._copies.append(Call(kind="aten.clone", arguments=arguments, results=wanted))
            return made
        layout = {"self": made, "size": list(real.shape), "stride": list(real.stride())}
        room = self.value(exact)
        self._copies += (
            Call(kind="aten.new_empty_strided", arguments=layout, results=(room,)),
            Call(kind="aten.copy", arguments={"self": room, "src": made}, results=wanted),
        )
        return made

    def value(self, made: torch.Tensor, view_of: JsonReference | None = None) -> JsonReference:
        self.values.append(
            Value(
                nbytes=0 if view_of else made.untyped_storage().nbytes(),
                shape=tuple(made.shape),
                dtype=dtype_text(made.dtype),
                strides=strides_of(made),
                view_of=view_of,
            )
        )
        return {"value": len(self.values) - 1}

    def add(
        self, node: Node, arguments: dict[str, Any], results: tuple[JsonReference | None, ...]
    ) -> None:
        assert isinstance(node.target, torch._ops.OpOverload)
        self.calls.append(Call(kind=kind_of(node.target), arguments=arguments, results=results))
        self.calls += self._copies
        self._copies = []
