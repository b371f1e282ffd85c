"""Operators that PyTorch has for float32 alone, for other types: what they compute, step by step.

A layer of LSTM cells is one call into the processor's library, which keeps what it likes for the
gradient in a tensor of bytes. Here nothing is kept: the gradient takes the steps again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Shapes = Sequence[tuple[int, ...] | None]


def _lstm(
    given: Tensor, weights: Sequence[Tensor], first: Tensor, first_cell: Tensor, is_reversed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """All states, the last one, and its cell."""
    in_weight, weight, in_bias, bias = weights
    state, cell, states = first, first_cell, []
    for x in given.flip(0) if is_reversed else given:
        gates = x @ in_weight.t() + in_bias + state @ weight.t() + bias
        entry, keep, new, leave = gates.chunk(4, 1)
        cell = keep.sigmoid() * cell + entry.sigmoid() * new.tanh()
        state = leave.sigmoid() * cell.tanh()
        states.append(state)
    out = torch.stack(states[::-1] if is_reversed else states)
    return out, state, cell


def _lstm_layer(arguments: dict[str, Any], shapes: Shapes) -> tuple[Tensor, ...]:
    weights = [arguments[f"weight{n}"] for n in range(4)]
    states = arguments["hx_"], arguments["cx_"]
    made = _lstm(arguments["input"], weights, *states, arguments["reverse"])
    return *made, torch.zeros(shapes[3] or 0, dtype=torch.uint8)


def _lstm_layer_gradient(arguments: dict[str, Any], shapes: Shapes) -> tuple[Tensor, ...]:
    names = ("input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp")
    with torch.enable_grad():
        leaves = [arguments[name].detach().clone().requires_grad_() for name in names]
        made = _lstm(leaves[0], leaves[1:5], leaves[5], leaves[6], arguments["reverse"])
        later = [arguments[name] for name in ("grad_output", "grad_hy", "grad_cy")]
        pairs = [(x, g) for x, g in zip(made, later, strict=True) if g is not None]
        return torch.autograd.grad([x for x, _ in pairs], leaves, [g for _, g in pairs])


STAND_INS: dict[str, Callable[[dict[str, Any], Shapes], tuple[Tensor, ...]]] = {
    "aten.mkldnn_rnn_layer": _lstm_layer,
    "aten.mkldnn_rnn_layer_backward": _lstm_layer_gradient,
}
