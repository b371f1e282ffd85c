"""Layout: a captured graph, and which of its tensors is which part of the model. No torch."""

import msgspec

from poet.rewrites.granularity import Granularity, rewritten
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
    caveats: tuple[str, ...] = ()
    """Why the last bits may not be eager's, a sentence each."""

    @property
    def loss(self) -> int:
        """The first output: the loss of a step that ends in one."""
        return self.outputs[0]

    def rewritten(self, granularity: Granularity, fuse_updates: bool) -> "Layout":
        """The same step, its graph at another granularity: for layouts as they were captured."""
        visible = (*self.outputs, *self.gradients.values())
        graph, place = rewritten(
            self.graph, granularity, fuse_updates, visible, self.learning_rates
        )
        return msgspec.structs.replace(
            self,
            graph=graph,
            parameters={n: place[i] for n, i in self.parameters.items() if i in place},
            buffers={n: place[i] for n, i in self.buffers.items() if i in place},
            constants={place[i]: content for i, content in self.constants.items() if i in place},
            inputs={n: place[i] for n, i in self.inputs.items() if i in place},
            outputs=tuple(place[i] for i in self.outputs),
            tangents={n: place[i] for n, i in self.tangents.items()},
            gradients={n: place[i] for n, i in self.gradients.items()},
            state={n: {k: place[i] for k, i in held.items()} for n, held in self.state.items()},
            learning_rates=tuple(place[i] for i in self.learning_rates),
            step_count=None if self.step_count is None else place[self.step_count],
        )
