"""Eager kernels: what eager PyTorch calls, in a trace too.

torch registers formulas in Python that replace some kernels while it traces: dropout,
interpolation, the recurrent networks. Their results differ from eager's in the last bits, so they
are set aside.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from poet.tracer.operators import dropout_mask

_EAGER_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
# Their kernels write the running statistics without saying so; the stand-ins say it.
_HIDDEN_WRITES = ("native_batch_norm", "cudnn_batch_norm")


@contextlib.contextmanager
def as_eager() -> Iterator[None]:
    """While this holds, traces call what eager calls: torch's stand-ins in Python are set aside.

    Eager's CPU dropout is a formula in C++ that traces cannot enter, so it is written out here,
    with an operator for its mask: the functional form of `bernoulli_` draws in another order.
    """
    aside: list[tuple[torch._ops.OpOverload, dict[Any, Any]]] = []
    try:
        for op in _stand_ins():
            taken = {key: op.py_kernels.pop(key) for key in _EAGER_KEYS if key in op.py_kernels}
            aside.append((op, taken))
            if op is torch.ops.aten.dropout.default:
                fused = taken[torch._C.DispatchKey.Autograd]
                op.py_kernels.update(dict.fromkeys(taken, _dropout_like(fused)))
            op._dispatch_cache.clear()
        yield
    finally:
        for op, taken in aside:
            op.py_kernels.update(taken)
            op._dispatch_cache.clear()


def _stand_ins() -> Iterator[torch._ops.OpOverload]:
    for name in torch.ops.aten:
        if name in _HIDDEN_WRITES:
            continue
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if any(key in op.py_kernels for key in _EAGER_KEYS):
                yield op


def _dropout_like(fused: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if input.device.type != "cpu":
            return fused(input, p, train)
        if p == 0 or not train or input.numel() == 0:
            return input
        if p == 1:
            return input.mul(torch.zeros((), dtype=input.dtype))
        like = torch.empty_like(input)  # for its strides: draws follow the order in memory
        size, strides = list(like.shape), list(like.stride())
        mask: torch.Tensor = dropout_mask(size, strides, p, input.dtype)
        return input * mask

    return dropout
