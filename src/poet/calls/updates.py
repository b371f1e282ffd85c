"""Updates: the calls that turn a parameter and its gradient into the next parameter.

They are named after POET's optimizers, and their arithmetic is POET's own, so all that a kernel
takes for itself is known: a temporary as large as the parameter, where it does more than add a
multiple of the gradient.
"""

from collections.abc import Mapping
from typing import Any

from poet.calls.operands import Operand, Work
from poet.calls.references import is_given
from poet.values.optimizers import SGD, Adam, AdamW

UPDATES: dict[str, tuple[str, ...] | None] = {
    SGD.kind: ("weight_decay", "nesterov"),
    Adam.kind: None,
    AdamW.kind: None,
}
"""The kinds of updates, each with the arguments that make a temporary necessary; None: it always
is."""
SCALARS = ("learning_rate", "step")
"""The arguments that are numbers, in tensors of one element."""


def needs_temporary(kind: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is an update that needs a temporary."""
    if kind not in UPDATES:
        return False
    names = UPDATES[kind]
    return names is None or any(is_given(arguments.get(name)) for name in names)


def state_of(update: Work) -> dict[str, Operand]:
    """The optimizer's state among the arguments of an update, by name."""
    others = ("parameter", "gradient", *SCALARS)
    return {
        name: argument
        for name, argument in update.arguments.items()
        if isinstance(argument, Operand) and name not in others
    }
