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
from poet.values.torch_optimizers import KNOWN, MORE_TEMPORARIES, NAMES, NUMBERS_BYTES

UPDATES: dict[str, tuple[str, ...] | None] = {
    SGD.kind: ("weight_decay", "nesterov"),
    Adam.kind: None,
    AdamW.kind: None,
}
"""The kinds of updates whose arithmetic is POET's own, which can run in tiles, each with the
arguments that make a temporary necessary; None: it always is."""
ALL_UPDATES = (*UPDATES, *NAMES)
"""With those that torch runs, on whole parameters only."""
GATHER = "poet.gather"
"""Adds a gradient to the sum of those before it, in place."""
CLEAR = "poet.clear"
"""Makes a sum of gradients nothing again, in place."""
SCALARS = ("learning_rate", "step")
"""The arguments that are numbers, in tensors of one element."""
OPTIONS = ("momentum", "beta1", "beta2")
"""Those that may be."""
NUMBERS = (*SCALARS, *OPTIONS, "skip")
"""All that are numbers where they are tensors. By `skip` an update may leave all as it is."""


def needs_temporary(kind: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is an update that needs a temporary."""
    if kind not in UPDATES:
        return False
    names = UPDATES[kind]
    return names is None or any(is_given(arguments.get(name)) for name in names)


def temporary_bytes(kind: str, arguments: Mapping[str, Any], parameter_bytes: int) -> int:
    """What an update takes beside its parameter, state and gradient, at most."""
    if kind in NAMES:
        more = sum(is_given(arguments.get(option)) for option in MORE_TEMPORARIES)
        return (KNOWN[NAMES[kind]].temporaries + more) * parameter_bytes + NUMBERS_BYTES
    return parameter_bytes if needs_temporary(kind, arguments) else 0


def state_of(update: Work) -> dict[str, Operand]:
    """The optimizer's state among the arguments of an update, by name."""
    others = ("parameter", "gradient", *NUMBERS)
    return {
        name: argument
        for name, argument in update.arguments.items()
        if isinstance(argument, Operand) and name not in others
    }
