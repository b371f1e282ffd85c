"""Operators of our own that a captured graph may call.

`poet.dropout_mask` is eager's CPU dropout before the multiplication: Bernoulli draws, scaled. It
draws in the order in which the elements lie in memory, and reads nothing.

Defined by its schema, and not with `torch.library.custom_op`, whose first call imports torch's
compiler: more than a second, in every process that drops out.
"""

from typing import Any

import torch

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
