"""Guards: what a torch optimizer says to who uses it as if no trainer had taken it over.

Its state is the trainer's, and so are its steps. `zero_grad()` and a `step()` without gradients do
nothing, as in a loop where there are none; all that would be wrong is told, or refused.
"""

import warnings
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from poet.errors import PoetError, PoetWarning
from poet.tracer.groups import TrainersHook


def guards(optimizer: Any) -> list[RemovableHandle]:
    """A torch optimizer's state is the trainer's from here on: say so to who asks for it there."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return []

    def asked(_: torch.optim.Optimizer) -> None:
        warnings.warn(
            "a poet.Trainer has this optimizer's state: what is here is as it was before the "
            "trainer. Use trainer.state_dict(), or trainer.save()",
            PoetWarning,
            stacklevel=3,
        )

    def loaded(*_: Any) -> None:
        raise PoetError(
            "a poet.Trainer has taken this optimizer's state already. Load it before the trainer "
            "is made, or into the trainer: trainer.load_state_dict(), trainer.load()"
        )

    def stepped(optimizer: torch.optim.Optimizer) -> None:
        held = (each for group in optimizer.param_groups for each in group["params"])
        if any(parameter.grad is not None for parameter in held):
            raise PoetError(
                "a poet.Trainer makes this optimizer's updates inside trainer.step(), with "
                "gradients of its own. Here are others, at the parameters' .grad: leave out "
                "loss.backward() and optimizer.step(), or begin with optimizer.zero_grad()"
            )

    return [
        optimizer.register_step_pre_hook(TrainersHook(stepped)),
        optimizer.register_state_dict_pre_hook(asked),
        optimizer.register_load_state_dict_pre_hook(loaded),
    ]
