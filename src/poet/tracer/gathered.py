"""Gathered: what a training has from step to step besides the model, whichever program runs it.

The optimizer's state by parameter, its learning rates, the scale of the loss, and what was done so
far. Programs of one model, for other batch shapes or after a change of the model, join one training
(`Training.join`).
"""

from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple, Protocol, overload

import torch

from poet.errors import PoetError
from poet.tracer.layout import Layout
from poet.values.graph import Tensor

State = dict[str, dict[str, torch.Tensor]]
ScalerState = dict[str, int | float]
_BETAS = {"beta1": 0, "beta2": 1}


class Counts(NamedTuple):
    """What a training has done: batches, updates, and batches since the last update."""

    steps: int = 0
    updates: int = 0
    gathered: int = 0


class Scaler(Protocol):
    """Who says what the loss is multiplied by, and learns whether the gradients were finite."""

    @property
    def scale(self) -> float: ...

    def learn(self, was_finite: bool) -> None: ...

    def state(self) -> ScalerState: ...

    def load(self, state: ScalerState) -> None: ...


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
        self,
        rates: Iterable[float],
        state: State,
        trained: dict[str, torch.Tensor],
        first_values: Mapping[str, Mapping[str, float]],
    ) -> None:
        self.rates = Rates(rates)
        self.state = state
        self.counts = Counts()
        self.scaler: Scaler | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._first_values = dict(first_values)
        self._trained = trained
        self._left: dict[str, int] = {}
        """For parameters that were trained and are not any more, the updates they have had."""

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the state a torch optimizer has gathered, and from now on its learning rates."""
        self.rates.follow(optimizer)
        self._optimizer = optimizer
        steps = set()
        for name, held in self.state.items():
            gathered = optimizer.state.get(self._trained[name], {})
            # Some make their state before the first step.
            begun = int(any(gathered.get(kept) is not None for kept in held))
            steps.add(int(gathered.get("step", begun)))
            for kept, value in held.items():
                if gathered.get(kept) is not None:
                    value.copy_(gathered[kept])
        if len(steps) > 1:
            raise PoetError(
                f"the optimizer has made {min(steps)} steps for some parameters and {max(steps)} "
                "for others; POET counts steps for all together"
            )
        done = max(steps, default=0)
        self.counts = Counts(done, done)

    def join(self, other: "Training") -> "Training":
        """The other training, with the state that this one needs: the same model, perhaps changed.

        State stays with its parameter, also while that is frozen.
        """
        for name, held in self.state.items():
            known = other.state.setdefault(name, {})
            for kept, value in held.items():
                known.setdefault(kept, value)
            other._first_values.setdefault(name, self._first_values[name])
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
        done = self.counts.updates
        if self.counts.gathered and trained.keys() != self._trained.keys():
            name = min(trained.keys() ^ self._trained.keys())
            raise PoetError(
                f"{name} was frozen or unfrozen after {self.counts.gathered} of the batches whose "
                "gradients are gathered for one update. Do so between updates, or give up the "
                "gradients gathered so far: trainer.zero_grad()"
            )
        for name, parameter in trained.items():
            before = self._trained.get(name)
            if before is parameter:
                continue
            had = self._left.get(name, 0) if before is None else 0
            if counts_steps and had != done:
                raise PoetError(
                    f"{name} would be trained from here on, after {had:,} steps of its own and "
                    f"{done:,} of the others; Adam's arithmetic depends on that count, "
                    "and POET counts steps for all together. Make a new Trainer, or use SGD"
                )
            if before is not None:  # another parameter in its place
                for kept, value in self.state.get(name, {}).items():
                    value.fill_(self._first_values[name][kept])
        gone = self._trained.keys() - trained.keys()
        self._left |= dict.fromkeys(gone, done)
        self._trained = trained

    def numbers(self, layout: Layout) -> dict[int, torch.Tensor]:
        """The inputs of the next step that are no part of its batch, by id."""
        made = {
            i: torch.tensor(rate, dtype=torch.float64)
            for i, rate in zip(layout.learning_rates, self.rates, strict=True)
        }
        for live, values in zip(layout.live_options, self.options(layout), strict=True):
            made |= {i: torch.tensor(values[n], dtype=torch.float64) for n, i in live.items()}
        if layout.step_count is not None:
            made[layout.step_count] = torch.tensor(self.counts.updates + 1)
        if layout.scale is not None:
            if self.scaler is None:
                raise PoetError("the loss of this step is scaled: say by what, with scale_by()")
            scale = torch.tensor(self.scaler.scale, dtype=torch.float32)
            made[layout.scale] = scale
            if layout.inverse_scale is not None:  # as torch works it out
                made[layout.inverse_scale] = scale.double().reciprocal().float()
        return made

    def options(self, layout: Layout) -> tuple[dict[str, float], ...]:
        """The options of each group that are inputs of the step, as they are now."""
        return tuple(
            {
                option: group["betas"][_BETAS[option]] if option in _BETAS else group[option]
                for option in live
            }
            for live, group in zip(layout.live_options, self._groups(layout), strict=True)
        )

    def set_options(self, layout: Layout, options: Sequence[Mapping[str, float]]) -> None:
        """As they were in another run."""
        for live, group, values in zip(
            layout.live_options, self._groups(layout), options, strict=True
        ):
            known = {option: values[option] for option in live if option in values}
            if known.keys() >= _BETAS.keys():
                group["betas"] = tuple(known[option] for option in _BETAS)
            group.update({n: value for n, value in known.items() if n not in _BETAS})

    def _groups(self, layout: Layout) -> list[dict[str, Any]]:
        if self._optimizer is None or not any(layout.live_options):
            return [{} for _ in layout.live_options]
        return self._optimizer.param_groups

    def done(self, gathers: bool, skipped: bool) -> None:
        """A step has ended."""
        steps, updates, gathered = self.counts
        if gathers:
            self.counts = Counts(steps + 1, updates, gathered + 1)
            return
        self.counts = Counts(steps + 1, updates + (not skipped), 0)
        if self.scaler is not None:
            self.scaler.learn(not skipped)
        if self._optimizer is not None:  # so that no scheduler warns that nothing was updated
            self._optimizer._opt_called = True  # type: ignore[attr-defined]


def fresh_state(parameter: torch.Tensor, about: Tensor, first: float) -> torch.Tensor:
    """An optimizer's state before the first step."""
    like = parameter.detach()
    if about.shape == tuple(like.shape):
        return torch.full_like(like, first, memory_format=torch.preserve_format)
    dtype = getattr(torch, about.dtype or "")
    return torch.full(about.shape or (), first, dtype=dtype, device=like.device)
