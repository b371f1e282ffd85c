"""Packed: sequences of several lengths, the steps of all of them after each other in time.

torch's functions read the lengths from a tensor, which a trace has none of. Here they are numbers:
operators of our own call the same kernels.
"""

from typing import Any

import torch


def steps_of(lengths: list[int]) -> list[int]:
    """For each time step, how many sequences are that long."""
    return [sum(length > at for length in lengths) for at in range(max(lengths))]


@torch.library.custom_op("poet::packed", mutates_args=())
def packed(given: torch.Tensor, lengths: list[int], batch_first: bool) -> torch.Tensor:
    """The rows of sequences that are padded to one length."""
    made: torch.Tensor = torch.ops.aten._pack_padded_sequence.default(
        given, torch.tensor(lengths), batch_first
    )[0]
    return made


@packed.register_fake
def _(given: torch.Tensor, lengths: list[int], batch_first: bool) -> torch.Tensor:
    return given.new_empty((sum(lengths), *given.shape[2:]))


@torch.library.custom_op("poet::packed_backward", mutates_args=())
def _packed_backward(
    grad: torch.Tensor, size: list[int], steps: list[int], batch_first: bool
) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten._pack_padded_sequence_backward.default(
        grad, size, torch.tensor(steps), batch_first
    )
    return made


@_packed_backward.register_fake
def _(grad: torch.Tensor, size: list[int], steps: list[int], batch_first: bool) -> torch.Tensor:
    if not batch_first:
        return grad.new_empty(size)
    return grad.new_empty((size[1], size[0], *size[2:])).transpose(0, 1)


def _keep_packed(ctx: Any, inputs: Any, output: Any) -> None:
    given, lengths, ctx.batch_first = inputs
    ctx.size, ctx.steps = list(given.shape), steps_of(lengths)


def _differentiate_packed(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _packed_backward(grad, ctx.size, ctx.steps, ctx.batch_first), None, None


packed.register_autograd(_differentiate_packed, setup_context=_keep_packed)


@torch.library.custom_op("poet::padded", mutates_args=())
def padded(data: torch.Tensor, steps: list[int], padding: float, total: int) -> torch.Tensor:
    """The other way round, time first."""
    made: torch.Tensor = torch.ops.aten._pad_packed_sequence.default(
        data, torch.tensor(steps), False, padding, total
    )[0]
    return made


@padded.register_fake
def _(data: torch.Tensor, steps: list[int], padding: float, total: int) -> torch.Tensor:
    return data.new_empty((max(total, len(steps)), steps[0], *data.shape[1:]))


@torch.library.custom_op("poet::padded_backward", mutates_args=())
def _padded_backward(grad: torch.Tensor, steps: list[int]) -> torch.Tensor:
    """Each row's own gradient. Autograd adds up a whole one for each stretch of steps that are
    alike, so that a zero loses its sign where there are several."""
    made = grad.new_empty((sum(steps), *grad.shape[2:]))
    offset = 0
    for at, count in enumerate(steps):
        made[offset : offset + count].copy_(grad[at, :count])
        offset += count
    return made.add_(0.0) if len(set(steps)) > 1 else made


@_padded_backward.register_fake
def _(grad: torch.Tensor, steps: list[int]) -> torch.Tensor:
    return grad.new_empty((sum(steps), *grad.shape[2:]))


def _keep_padded(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.steps = inputs[1]


def _differentiate_padded(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _padded_backward(grad, ctx.steps), None, None, None


padded.register_autograd(_differentiate_padded, setup_context=_keep_padded)
