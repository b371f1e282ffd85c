"""Operators of our own that a captured graph may call.

`poet.dropout_mask` is eager's CPU dropout before the multiplication: Bernoulli draws, scaled. It
draws in the order in which the elements lie in memory, and reads nothing.

`poet.required`, `poet.decided` and `poet.solved` are checks: they read values, and raise an error
or do nothing.

The first is defined by its schema, and not with `torch.library.custom_op`, whose first call imports
torch's compiler: more than a second, in every process that drops out.
"""

from typing import Any

import torch

from poet.errors import AnotherWay, PoetError

_OURS: Any = torch.library.Library("poet", "DEF")  # type: ignore[no-untyped-call]
_OURS.define(
    "dropout_mask(SymInt[] size, SymInt[] strides, float p, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
)


def _drawn(size: list[int], strides: list[int], p: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, strides, dtype=dtype).bernoulli_(1 - p).div_(1 - p)


def _shaped(size: list[int], strides: list[int], p: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, strides, dtype=dtype)


_OURS.impl("dropout_mask", _drawn, "CompositeExplicitAutograd")
torch.library.register_fake("poet::dropout_mask", _shaped, lib=_OURS)
dropout_mask = torch.ops.poet.dropout_mask


@torch.library.custom_op("poet::required", mutates_args=())
def required(asked: torch.Tensor, wanted: bool, said: str) -> torch.Tensor:
    """A check of the step's own Python: an error where a number is not as it must be."""
    if bool(asked) is not wanted:
        raise PoetError(said)
    return torch.empty(1, dtype=torch.bool, device=asked.device).fill_(True)


@required.register_fake
def _(asked: torch.Tensor, wanted: bool, said: str) -> torch.Tensor:
    return torch.empty(1, dtype=torch.bool, device=asked.device)


@torch.library.custom_op("poet::decided", mutates_args=())
def decided(asked: torch.Tensor, wanted: list[float], said: str) -> torch.Tensor:
    """A check that a batch goes the way that was captured."""
    have = asked.tolist()
    if repr([float(x) for x in have]) != repr([float(x) for x in wanted]):
        raise AnotherWay(f"{said}: the batch has other values here than the captured one: {have}")
    return torch.empty(1, dtype=torch.bool, device=asked.device).fill_(True)


@decided.register_fake
def _(asked: torch.Tensor, wanted: list[float], said: str) -> torch.Tensor:
    return torch.empty(1, dtype=torch.bool, device=asked.device)


@torch.library.custom_op("poet::solved", mutates_args=())
def solved(info: torch.Tensor, function: str, is_matrix: bool) -> torch.Tensor:
    """The look of torch.linalg at its result: torch's own error where a matrix is singular."""
    torch.ops.aten._linalg_check_errors(info, function, is_matrix=is_matrix)
    return torch.empty(1, dtype=torch.bool, device=info.device).fill_(True)


@solved.register_fake
def _(info: torch.Tensor, function: str, is_matrix: bool) -> torch.Tensor:
    return torch.empty(1, dtype=torch.bool, device=info.device)


CHECKS = tuple(getattr(torch.ops.poet, name).default for name in ("required", "decided", "solved"))
"""Operators that are there for the errors they raise: what they make means nothing."""
for _check in CHECKS:
    torch.fx.node.has_side_effect(_check)  # or a trace would leave them out
