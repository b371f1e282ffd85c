"""Shape kernels: what some calls make, for traces whose own answer is wrong.

A trace asks each operator for the shapes of its results. Grouped products of experts are refused
there unless they are in bfloat16, which is a GPU's rule. Of tensors that are not row-major, some
results are said to lie otherwise than the kernels write them, and a view of one that lies otherwise
fails, or is of other elements. A gradient of BatchNorm that nobody asked for is said to be made.
Only shapes are made here: the kernels that run are torch's own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import meta_table
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict


@contextlib.contextmanager
def shapes_known() -> Iterator[None]:
    """While this holds, traces know these shapes."""
    torch._subclasses.FakeTensorMode.cache_clear()
    try:
        with contextlib.ExitStack() as stack:
            for op, kernel in _KERNELS.items():
                stack.enter_context(_entry(op_implementations_dict, op, kernel))
                # What is in this table is not taken apart before the other is asked.
                stack.enter_context(_entry(meta_table, op, meta_table.get(op, kernel)))
            yield
    finally:
        torch._subclasses.FakeTensorMode.cache_clear()


@contextlib.contextmanager
def _entry(table: Any, op: torch._ops.OpOverload, kernel: Any) -> Iterator[None]:
    """A table with another entry for an operator, or with none, for a while."""
    before = table.pop(op, None)
    if kernel is not None:
        table[op] = kernel
    try:
        yield
    finally:
        table.pop(op, None)
        if before is not None:
            table[op] = before


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


Kernel = Callable[..., Any]


def _as_traced(fake_mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """What the trace itself says of a call."""
    known = None if meta_table.get(func) is _KERNELS[func] else meta_table.get(func)
    with _entry(op_implementations_dict, func, None), _entry(meta_table, func, known), fake_mode:
        return func(*args, **kwargs)


Given = dict[str, Any]


def _laid(how: Callable[[torch.Tensor, Given], torch.Tensor], *, all: bool = False) -> Kernel:
    """What the trace says, but for how the first result lies, or how all of them do."""

    def kernel(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        made = _as_traced(fake_mode, func, args, kwargs)
        names = (each.name for each in func._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        with fake_mode:
            if isinstance(made, torch.Tensor):
                return how(made, given)
            end = len(made) if all else 1
            laid = (x if x is None else how(x, given) for x in made[:end])
            return (*laid, *made[end:])

    return kernel


def _row_major(made: torch.Tensor, given: Given) -> torch.Tensor:
    return made if made.is_contiguous() else torch.empty_like(made, memory_format=_ROWS)


def _as_image(made: torch.Tensor, given: Given) -> torch.Tensor:
    """Row-major, unless channels come last in the image: there they stay, on a CPU."""
    image: Any = given.get("input", given.get("self"))
    format = suggest_memory_format(image) if made.device.type == "cpu" else _ROWS
    is_so = made.is_contiguous(memory_format=format)
    return made if is_so else torch.empty_like(made, memory_format=format)


def _as_gradient(made: torch.Tensor, given: Given) -> torch.Tensor:
    """As elements of several tensors do: the first that has an order of its own says it."""
    strides = compute_elementwise_output_strides(
        given["grad_output"], given.get("self", given.get("self_or_result"))
    )
    if made.stride() == strides:
        return made
    return torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device)


def _batch_norm_gradient(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Those that were asked for."""
    made = _laid(_as_image)(fake_mode, func, *args, **kwargs)
    wanted = kwargs.get("output_mask", args[-1])
    return tuple(x if asked else None for x, asked in zip(made, wanted, strict=True))


_ATEN, _ROWS = torch.ops.aten, torch.contiguous_format
_KERNELS: dict[torch._ops.OpOverload, Kernel] = {
    _ATEN._grouped_mm.default: _grouped_mm,
    **dict.fromkeys(
        (_ATEN.mse_loss_backward.default, _ATEN.smooth_l1_loss_backward.default,
         _ATEN.huber_loss_backward.default, _ATEN.native_layer_norm_backward.default,
         _ATEN._log_softmax_backward_data.default),
        _laid(_row_major),
    ),
    _ATEN.log_sigmoid_forward.default: _laid(_row_major, all=True),
    **dict.fromkeys(
        (_ATEN.native_group_norm_backward.default, _ATEN.channel_shuffle.default,
         _ATEN.roll.default, _ATEN._native_batch_norm_legit.default,
         _ATEN._native_batch_norm_legit.no_stats,
         _ATEN._native_batch_norm_legit_functional.default,
         _ATEN._native_batch_norm_legit_no_training.default),
        _laid(_as_image),
    ),
    _ATEN.native_batch_norm_backward.default: _batch_norm_gradient,
    **dict.fromkeys(
        (_ATEN.hardswish_backward.default, _ATEN.hardsigmoid_backward.default,
         _ATEN.hardtanh_backward.default, _ATEN.elu_backward.default,
         _ATEN.softplus_backward.default),
        _laid(_as_gradient),
    ),
}  # fmt: skip
