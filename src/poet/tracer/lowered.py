"""Lowered: what lowering makes of a traced step, and what it takes the trace's names for."""

from typing import NamedTuple

import torch

from poet.tracer.layout import Piece
from poet.values.graph import Call, JsonReference, Op, Tensor, Value

FIRST = "the gradient of the loss"
"""The op that the backward pass of a loss starts with."""


class Names(NamedTuple):
    """What the names in a trace stand for: parameters and buffers, or constants."""

    owned: dict[str, str]
    constants: dict[str, torch.Tensor]


class Lowered(NamedTuple):
    """The captured step before updates are added: tensors, ops, and which tensor is what.

    `gradients` say, for each trained parameter, the tensor that holds its gradient and the calls
    that view it in the parameter's shape.
    """

    tensors: list[Tensor]
    ops: list[Op]
    parameters: dict[str, int]
    buffers: dict[str, int]
    constants: dict[int, torch.Tensor]
    inputs: dict[int, int]
    outputs: tuple[int, ...]
    """What the step gives: the loss, or the model's own outputs."""
    pieces: tuple[Piece, ...]
    """The model's own outputs as it returns them."""
    tangents: dict[int, int]
    """For each of them that has one, the gradient that the caller hands in."""
    gradients: dict[str, "View"]
    input_gradients: dict[int, Piece]
    """The gradients of inputs, by position, that the step gives out."""


class View(NamedTuple):
    """A tensor seen through calls: `values` are the inner values those calls make."""

    tensor: int
    calls: tuple[Call, ...]
    values: tuple[Value, ...]
    result: JsonReference
