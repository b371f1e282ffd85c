"""Layout: a captured graph, and which of its tensors is which part of the model. No torch."""

import msgspec

from poet.rewrites.granularity import Granularity, rewritten
from poet.values.graph import Graph


class Piece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody outside the step sees of a tensor: strides and offset are in elements."""

    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    dtype: str


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
    pieces: tuple[Piece, ...] = ()
    """The model's own outputs, as it returns them."""
    tangents: dict[int, int] = {}
    """For outputs that have one, by position, the gradient that the caller hands in."""
    gradients: dict[str, int]
    """The gradients that the step gives out: none where its updates use them up."""
    input_gradients: dict[int, Piece] = {}
    """The same for tensors of the example, by position."""
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
        given_out = (piece.tensor for piece in self.input_gradients.values())
        visible = (*self.outputs, *self.gradients.values(), *given_out)
        graph, place = rewritten(
            self.graph, granularity, fuse_updates, visible, self.learning_rates
        )

        def moved(piece: Piece) -> Piece:
            return msgspec.structs.replace(piece, tensor=place[piece.tensor])

        return msgspec.structs.replace(
            self,
            graph=graph,
            parameters={n: place[i] for n, i in self.parameters.items() if i in place},
            buffers={n: place[i] for n, i in self.buffers.items() if i in place},
            constants={place[i]: content for i, content in self.constants.items() if i in place},
            inputs={n: place[i] for n, i in self.inputs.items() if i in place},
            outputs=tuple(place[i] for i in self.outputs),
            pieces=tuple(map(moved, self.pieces)),
            tangents={n: place[i] for n, i in self.tangents.items()},
            gradients={n: place[i] for n, i in self.gradients.items()},
            input_gradients={n: moved(piece) for n, piece in self.input_gradients.items()},
            state={n: {k: place[i] for k, i in held.items()} for n, held in self.state.items()},
            learning_rates=tuple(place[i] for i in self.learning_rates),
            step_count=None if self.step_count is None else place[self.step_count],
        )
