"""Layout: a captured graph, and which of its tensors is which part of the model. No torch."""

import msgspec

from poet.values.graph import Graph


class Layout(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-program/1",
):
    """A graph and what its tensors are to the model. Numbers are tensor ids."""

    graph: Graph
    parameters: dict[str, int]
    buffers: dict[str, int]
    constants: dict[int, bytes]
    inputs: dict[int, int]
    """For each tensor of the example that the step reads, by position, its tensor."""
    outputs: tuple[int, ...]
    """What the step gives: the loss, or, where it ends there, the model's own outputs."""
    tangents: dict[int, int] = {}
    """For outputs that have one, by position, the gradient that the caller hands in."""
    gradients: dict[str, int]
    """The gradients that the step gives out: none where its updates use them up."""
    member: dict[str, int] = {}
    """For each trained parameter, its group: which learning rate it has."""
    state: dict[str, dict[str, int]] = {}
    learning_rates: tuple[int, ...] = ()
    step_count: int | None = None
    doubts: tuple[str, ...] = ()
    """Why the last bits may not be eager's, a sentence each."""

    @property
    def loss(self) -> int:
        """The first output: the loss of a step that ends in one."""
        return self.outputs[0]
