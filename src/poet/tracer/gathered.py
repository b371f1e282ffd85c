"""Gathered: what a training has from step to step besides the model, whichever program runs it.

The optimizer's state by parameter, its learning rates, and the count of steps. Programs of one
model, for other batch shapes or after a change of the model, join one training (`Training.join`).
"""

from collections.abc import Iterable, MutableSequence, Sequence
from typing import Any, overload

import torch

from poet.errors import PoetError
from poet.tracer.kernels import FIRST_MOMENTUM

State = dict[str, dict[str, torch.Tensor]]


class Rates(MutableSequence[float]):
    """Learning rates, one a parameter group; those of a torch optimizer are read and set there."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self._numbers = list(numbers)
        self._followed: torch.optim.Optimizer | None = None

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        self._followed = optimizer

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> float: ...
    @overload
    def __getitem__(self, at: slice) -> list[float]: ...
    def __getitem__(self, at: int | slice) -> float | list[float]:
        return self._now()[at]

    def __setitem__(self, at: int | slice, value: Any) -> None:
        rates: list[Any] = self._now()
        rates[at] = value
        if len(rates) != len(self._numbers):
            raise PoetError(f"there are {len(self)} learning rates, one a parameter group")
        if not all(isinstance(rate, int | float) for rate in rates):
            raise PoetError(f"learning rates are numbers; this is {value!r}")
        self._numbers[:] = rates
        if self._followed is not None:
            for group, rate in zip(self._followed.param_groups, rates, strict=True):
                group["lr"] = rate

    def __delitem__(self, at: int | slice) -> None:
        raise PoetError("each parameter group has a learning rate: set it to 0.0 instead")

    def insert(self, index: int, value: float) -> None:
        raise PoetError(f"there are {len(self)} learning rates, one a parameter group")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._now() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._now())

    def _now(self) -> list[float]:
        if self._followed is None:
            return list(self._numbers)
        return [group["lr"] for group in self._followed.param_groups]


class Training:
    """What a training gathers, shared by all programs that take its steps."""

    def __init__(
        self, rates: Iterable[float], state: State, trained: dict[str, torch.Tensor]
    ) -> None:
        self.rates = Rates(rates)
        self.state = state
        self.steps_done = 0
        self._trained = trained
        self._left: dict[str, int] = {}
        """For parameters that were trained and are not any more, the steps they have had."""

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the state a torch optimizer has gathered, and from now on its learning rates."""
        self.rates.follow(optimizer)
        steps = set()
        for name, held in self.state.items():
            gathered = optimizer.state.get(self._trained[name], {})
            steps.add(int(gathered.get("step", 1 if gathered else 0)))
            for kept, value in held.items():
                if gathered.get(kept) is not None:
                    value.copy_(gathered[kept])
        if len(steps) > 1:
            raise PoetError(
                f"the optimizer has made {min(steps)} steps for some parameters and {max(steps)} "
                "for others; POET counts steps for all together"
            )
        self.steps_done = max(steps, default=0)

    def join(self, other: "Training") -> "Training":
        """The other training, with the state that this one needs: the same model, perhaps changed.

        State stays with its parameter, also while that is frozen.
        """
        for name, held in self.state.items():
            known = other.state.setdefault(name, {})
            for kept, value in held.items():
                known.setdefault(kept, value)
        if len(self.rates) != len(other.rates):
            other.rates = self.rates
        return other

    def begin_step(self, trained: dict[str, torch.Tensor], counts_steps: bool) -> None:
        """A step that trains these comes next.

        A parameter that is new, or was frozen for some steps, has made fewer than the rest, which
        matters to an optimizer that counts them.
        """
        if trained is self._trained:
            return
        for name, parameter in trained.items():
            before = self._trained.get(name)
            if before is parameter:
                continue
            had = self._left.get(name, 0) if before is None else 0
            if counts_steps and had != self.steps_done:
                raise PoetError(
                    f"{name} would be trained from here on, after {had:,} steps of its own and "
                    f"{self.steps_done:,} of the others; Adam's arithmetic depends on that count, "
                    "and POET counts steps for all together. Make a new Trainer, or use SGD"
                )
            if before is not None:  # another parameter in its place
                for kept, value in self.state.get(name, {}).items():
                    value.copy_(fresh_state(kept, value))
        gone = self._trained.keys() - trained.keys()
        self._left |= dict.fromkeys(gone, self.steps_done)
        self._trained = trained


def fresh_state(kept: str, like: torch.Tensor) -> torch.Tensor:
    """An optimizer's state before the first step."""
    first = FIRST_MOMENTUM if kept == "momentum_buffer" else 0.0
    return torch.full_like(like.detach(), first, memory_format=torch.preserve_format)
