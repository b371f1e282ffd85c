"""Layout: a captured graph, and which of its tensors is which part of the model. No torch.

It checks itself when it is made, since it may come from a file: every tensor that exists when the
step starts is one thing of the model's, and nothing else is.
"""

from collections import Counter

import msgspec

from poet.errors import PoetError
from poet.rewrites.granularity import Granularity, rewritten
from poet.values.graph import Graph, printable
from poet.values.update_rules import UpdateRule

TANGENT = "poet.tangent"
"""The call that takes a gradient from the caller."""


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
    live_options: tuple[dict[str, int], ...] = ()
    """For each group, its options that are inputs like the learning rate, by name."""
    first_values: dict[str, dict[str, float]] = {}
    """Where state starts, by parameter; at 0 where nothing is said."""
    scale: int | None = None
    """What the loss is multiplied by."""
    inverse_scale: int | None = None
    norm: int | None = None
    """The norm of all gradients, where they are clipped by it."""
    skip: int | None = None
    """Whether the updates were skipped, where a step may do so."""
    rule: UpdateRule = UpdateRule()
    """What is done with gradients."""
    caveats: tuple[str, ...] = ()
    """Why the step may not be eager's, a sentence each."""

    def __post_init__(self) -> None:
        check_layout(self)

    @property
    def loss(self) -> int:
        """The first output: the loss of a step that ends in one."""
        return self.outputs[0]

    def rewritten(self, granularity: Granularity, fuse_updates: bool) -> "Layout":
        """The same step, its graph at another granularity: for layouts as they were captured."""
        given_out = (piece.tensor for piece in self.input_gradients.values())
        told = [i for i in (self.norm, self.skip) if i is not None]
        visible = (*self.outputs, *self.gradients.values(), *given_out, *told)
        state = (i for held in self.state.values() for i in held.values())
        kept = (*_numbers(self), *state)
        try:
            return self._moved(*rewritten(self.graph, granularity, fuse_updates, visible, kept))
        except (ValueError, LookupError) as error:  # a layout that no tracer made
            raise PoetError(f"{printable(self.graph.name)} cannot be rewritten: {error}") from None

    def _moved(self, graph: Graph, place: dict[int, int]) -> "Layout":
        """The same of another graph, where each tensor has its place."""

        def moved(piece: Piece) -> Piece:
            return msgspec.structs.replace(piece, tensor=place[piece.tensor])

        def at(i: int | None) -> int | None:
            return None if i is None else place[i]

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
            step_count=at(self.step_count),
            live_options=tuple(
                {n: place[i] for n, i in live.items()} for live in self.live_options
            ),
            scale=at(self.scale),
            inverse_scale=at(self.inverse_scale),
            norm=at(self.norm),
            skip=at(self.skip),
        )


def check_layout(layout: Layout) -> None:
    graph, given = layout.graph, Counter(_given(layout))
    twice = [i for i, count in given.items() if count > 1]
    apart = given.keys() ^ set(graph.given)
    if twice or apart:
        i = min(twice or apart)
        raise ValueError(f"tensor {i} is not one thing that exists when the step starts")
    for i, tensor in enumerate(graph.tensors):
        if tensor.shape is None or tensor.dtype is None:
            raise ValueError(f"{graph.tensor_text(i)} has no shape or no element type")
    pieces = (piece.tensor for piece in layout.input_gradients.values())
    told = (i for i in (layout.norm, layout.skip) if i is not None)
    made = (*layout.outputs, *layout.gradients.values(), *layout.tangents.values(), *pieces, *told)
    if not layout.outputs or not all(0 <= i < len(graph.tensors) for i in made):
        raise ValueError("the outputs and gradients are not tensors of the graph")
    for i in layout.tangents.values():
        maker = graph.producer[i]
        kinds = () if maker is None else tuple(call.kind for call in graph.ops[maker].calls)
        if set(kinds) != {TANGENT}:
            raise ValueError(f"tensor {i} is no gradient that the caller hands in")
    for i, content in layout.constants.items():
        if len(content) != graph.tensors[i].nbytes:
            text = graph.tensor_text(i)
            raise ValueError(f"the constant {text} has {len(content)} bytes")
    if not set(layout.member.values()) <= set(range(len(layout.learning_rates) or 1)):
        raise ValueError("a parameter is in a group without a learning rate")


def _given(layout: Layout) -> list[int]:
    """What exists when the step starts, as the layout has it."""
    state = (i for held in layout.state.values() for i in held.values())
    return [
        *layout.parameters.values(), *layout.buffers.values(), *layout.constants,
        *layout.inputs.values(), *state, *_numbers(layout),
    ]  # fmt: skip


def _numbers(layout: Layout) -> list[int]:
    """Inputs that are no part of the batch."""
    live = (i for options in layout.live_options for i in options.values())
    single = (layout.step_count, layout.scale, layout.inverse_scale)
    return [*layout.learning_rates, *live, *(i for i in single if i is not None)]
