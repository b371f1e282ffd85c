"""Shape kernels: what some calls make, for traces whose own answer is wrong.

A trace asks each operator for the shapes of its results. Grouped products of experts are refused
there unless they are in bfloat16, which is a GPU's rule. Only shapes are made here: the kernels
that run are torch's own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict


@contextlib.contextmanager
def shapes_known() -> Iterator[None]:
    """While this holds, traces know these shapes."""
    before = {op: op_implementations_dict.get(op) for op in _KERNELS}
    torch._subclasses.FakeTensorMode.cache_clear()
    op_implementations_dict.update(_KERNELS)
    try:
        yield
    finally:
        torch._subclasses.FakeTensorMode.cache_clear()
        for op, kernel in before.items():
            if kernel is None:
                del op_implementations_dict[op]
            else:
                op_implementations_dict[op] = kernel


def _grouped_mm(
    fake_mode: Any,
    func: Any,
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Rows in groups by a matrix each, and the two products of its backward pass."""
    if self.device.type != "cpu" or offs is None or bias is not None or out_dtype is not None:
        return NotImplemented
    if self.dim() == 2 and mat2.dim() == 2:
        size = [offs.shape[0], self.shape[0], mat2.shape[1]]
    elif self.dim() == 2:
        size = [self.shape[0], mat2.shape[2]]
    else:
        size = [self.shape[1], mat2.shape[1]]
    wide = 16 // self.element_size()
    row = -(-size[-1] // wide) * wide  # each begins at a multiple of 16 bytes
    strides = [row, 1] if len(size) == 2 else [size[1] * row, row, 1]
    with fake_mode:
        return torch.empty_strided(size, strides, dtype=self.dtype, device=self.device)


_KERNELS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    torch.ops.aten._grouped_mm.default: _grouped_mm,
}
