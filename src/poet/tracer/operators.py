"""Operators of our own that a captured graph may call.

`poet.dropout_mask` is eager's CPU dropout before the multiplication: Bernoulli draws, scaled. It
draws in the order in which the elements lie in memory, and reads nothing.
"""

import torch


@torch.library.custom_op(
    "poet::dropout_mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def dropout_mask(size: list[int], strides: list[int], p: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, strides, dtype=dtype).bernoulli_(1 - p).div_(1 - p)


@dropout_mask.register_fake
def _(size: list[int], strides: list[int], p: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, strides, dtype=dtype)
