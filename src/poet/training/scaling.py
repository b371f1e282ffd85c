"""Scaling: a torch GradScaler that a trainer asks for the scale of the loss, and tells what came of
it.

Nothing of the scaler's rules is repeated here: it is shown a gradient of one element that is finite
or not, as all of the step's were, and makes up its mind by its own step and update.
"""

from math import inf
from typing import Any

import torch

from poet.errors import PoetError
from poet.tracer.gathered import ScalerState


class ScaledLoss:
    """What scales the loss of a training."""

    def __init__(self, scaler: torch.amp.GradScaler, device: torch.device) -> None:
        self._scaler, self._device = scaler, device

    @property
    def scale(self) -> float:
        return self._scaler.get_scale()

    def learn(self, was_finite: bool) -> None:
        """An update was made, or skipped."""
        witness = torch.zeros(1, device=self._device)
        self._scaler.scale(witness)  # the first time, it makes its tensors
        witness.grad = torch.full_like(witness, 0.0 if was_finite else inf)
        optimizer = torch.optim.SGD([witness], lr=0.0)
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> ScalerState:
        return dict(self._scaler.state_dict())

    def load(self, state: ScalerState) -> None:
        self._scaler.load_state_dict(state)


def checked_scaler(scaler: Any) -> torch.amp.GradScaler | None:
    """A scaler that does something; None where it does not."""
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        raise PoetError(
            f"scaler is a {type(scaler).__name__}; give a torch.amp.GradScaler, made for the "
            'model\'s device: scaler=torch.amp.GradScaler("cpu")'
        )
    return scaler if scaler.is_enabled() else None
