"""Defaults: what is meant where nobody says, the same for every command and function.

A profile, a plan, a comparison and a training of one model must be of one step, so its optimizer is
decided here. It is Adam, but SGD where the step can only run as C on a microcontroller: Adam's
state is twice the parameters, which are more than such a board has already.
"""

from poet.values.device import Device

HERE = "laptop"
"""The board whose rates stand for this machine's until those are measured."""
OPTIMIZER = "adam?lr=0.001"
SMALL_OPTIMIZER = "sgd"
LEAST_FOR_TORCH = 64 << 20
"""Bytes of RAM: PyTorch itself takes more."""


def runs_c(board: Device | None) -> bool:
    """Whether a plan for the board is for C alone: no PyTorch runs in so little RAM."""
    return board is not None and board.ram_bytes < LEAST_FOR_TORCH


def optimizer_for(board: Device | None) -> str:
    """The optimizer of a model's step on a board, by default this machine."""
    return SMALL_OPTIMIZER if runs_c(board) else OPTIMIZER
