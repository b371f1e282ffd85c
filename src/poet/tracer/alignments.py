"""Alignments: connectionist temporal classification, in shapes that depend on no values.

The kernel of `ctc_loss` makes a tensor for its backward pass that is as wide as the longest target
of the batch, which is a value. In a trace it is as wide as the longest target could be: operators
of our own call the kernels that eager PyTorch calls, with lengths as tensors, and fill up or cut
off what lies beyond. So lengths may be others in each step.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


@torch.library.custom_op("poet::ctc", mutates_args=())
def _ctc(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of a batch, and what the backward pass needs."""
    losses, alpha = torch.ops.aten._ctc_loss.default(
        log_probs, targets, input_lengths.tolist(), target_lengths.tolist(), blank, zero_infinity
    )
    room = alpha.new_zeros(_width(log_probs, targets))
    room[..., : alpha.shape[-1]] = alpha
    return losses, room


@torch.library.custom_op("poet::ctc_backward", mutates_args=())
def _ctc_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    losses: torch.Tensor,
    alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    lengths: list[int] = target_lengths.tolist()
    made: torch.Tensor = torch.ops.aten._ctc_loss_backward.default(
        grad,
        log_probs,
        targets,
        input_lengths.tolist(),
        lengths,
        losses,
        alpha[..., : 2 * max(lengths, default=0) + 1].contiguous(),
        blank,
        zero_infinity,
    )
    return made


def _width(log_probs: torch.Tensor, targets: torch.Tensor) -> list[int]:
    return [log_probs.shape[1], log_probs.shape[0], 2 * targets.shape[-1] + 1]


@_ctc.register_fake
def _(log_probs: torch.Tensor, targets: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    losses = log_probs.new_empty(log_probs.shape[1])
    return losses, log_probs.new_empty(_width(log_probs, targets))


@_ctc_backward.register_fake
def _(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.options = inputs[4:]


def _differentiate(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    made = _ctc_backward(grad, *ctx.saved_tensors, *ctx.options)
    return made, None, None, None, None, None


_ctc.register_autograd(_differentiate, setup_context=_keep)


class Alignments(TorchFunctionMode):
    """Has `ctc_loss` on the CPU in shapes that depend on no values."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = args[0] if args else kwargs.get("log_probs")
        if isinstance(given, torch.Tensor) and given.device.type == "cpu":
            if func is functional.ctc_loss:
                return _loss(*args, **kwargs)
            if func is torch.ctc_loss:
                names = ("blank", "reduction", "zero_infinity")
                kwargs = dict(zip(names, args[4:], strict=False)) | kwargs
                kwargs["reduction"] = ("none", "mean", "sum")[kwargs.get("reduction", 1)]
                return _loss(*args[:4], **kwargs)
        return func(*args, **kwargs)


def _loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """What torch's own function does around the kernel, in the same order."""
    is_batch = log_probs.dim() == 3
    lengths = [
        each.to(torch.long).reshape(-1) if isinstance(each, torch.Tensor) else torch.tensor(each)
        for each in (input_lengths, target_lengths)
    ]
    made: torch.Tensor = _ctc(
        log_probs if is_batch else log_probs.unsqueeze(1), targets, *lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        made = torch.where(made == torch.inf, torch.zeros((), dtype=made.dtype), made)
    if reduction == "mean":
        return (made / lengths[1].to(made.dtype).clamp_min(1)).mean()
    if reduction == "sum":
        return made.sum()
    return made if is_batch else made.squeeze(0)
