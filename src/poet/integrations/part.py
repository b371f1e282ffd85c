"""Part: the module inside a trainer's model whose calls are planned while it trains."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from poet.errors import PoetError
from poet.integrations.in_place import Measured, PlannedInPlace, plan_in_place


class PlannedPart:
    """What the callbacks share: a part by its name, planned in place between `open` and `close`."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        if "example" in asked or "kwargs" in asked:
            raise PoetError("the first batch is the example: leave example= and kwargs= out")
        self._asked = dict(asked)
        self._planned: PlannedInPlace | None = None
        self._name = ""

    @property
    def measured(self) -> Measured:
        return self._planned.measured if self._planned else Measured(0, None)

    def open(self, model: nn.Module, name: str) -> None:
        """Plan the part of this name. One that is open still, since its training failed, is not."""
        self.close()
        try:
            part = model.get_submodule(name)
        except AttributeError:
            raise PoetError(
                f"part={name!r} is no module of {type(model).__name__}, which has "
                f"{', '.join(repr(name) for name, _ in model.named_children())}"
            ) from None
        self._name, self._planned = name, plan_in_place(part, **self._asked)

    def check_used(self) -> None:
        """Refuse a training that goes around the plan, so that no budget holds."""
        if self.measured.budget_bytes is None:
            what = f"part={self._name!r}" if self._name else "the model"
            raise PoetError(
                f"a step was made without a call of {what}, so that no budget holds. Name the "
                'module that the loop calls, such as part="model"'
            )

    def close(self) -> None:
        """The part is called as it was before."""
        if self._planned is not None:
            self._planned.close()


class ShowsBudget:
    """What every callback tells of its part."""

    _planned: PlannedPart

    @property
    def peak_bytes(self) -> int:
        """The most RAM that a step has taken, the store's buffers among it."""
        return self._planned.measured.peak_bytes

    @property
    def budget_bytes(self) -> int | None:
        """The most RAM that a step may take; None before the first."""
        return self._planned.measured.budget_bytes
