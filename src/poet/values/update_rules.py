"""Update rules: how the gradients of a step become updates.

By default each gradient updates its parameter as soon as it is complete. Gradients may also be
gathered over several batches, and clipped or unscaled, where no update may begin before all of them
are known. Optimizers (`optimizers`) say what an update is; a rule says what happens before.
"""

from math import inf, isnan

import msgspec

from poet.errors import PoetError

GATHERED = "gathered"
"""The state of a parameter that is the sum of its gradients so far."""
NOTHING = -0.0
"""Where a sum of gradients starts: -0.0 + g is g, bit for bit, for every g; 0.0 + -0.0 is not."""


class UpdateRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done with gradients. A step whose rule `gathers` adds them up and updates nothing."""

    accumulate: int = 1
    """Batches for one update; the loss of each counts one part in so many."""
    gathers: bool = False
    clip_norm: float | None = None
    """The most that the norm of all gradients together may be."""
    clip_value: float | None = None
    """The most that any element of a gradient may be, above or below 0."""
    is_scaled: bool = False
    """The loss is multiplied by a scale, which is an input; gradients that are not finite then
    leave all as it was."""
    has_live_options: bool = False
    """Momentum and betas are inputs like the learning rate, for schedulers that change them."""

    def __post_init__(self) -> None:
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise PoetError(
                f"accumulate is {self.accumulate!r}; it must be a whole number of batches from 1"
            )
        for name, value in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < inf and not isnan(value)):
                raise PoetError(f"{name} is {value!r}; it must be a number above 0, not infinite")
        if self.clip_norm is not None and self.clip_value is not None:
            raise PoetError("clip_norm and clip_value are two ways to clip gradients: give one")

    @property
    def waits(self) -> bool:
        """Whether all gradients must be known before the first update."""
        return not self.gathers and (self.clip_norm is not None or self.is_scaled)

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients last from one batch to the next."""
        return self.accumulate > 1
