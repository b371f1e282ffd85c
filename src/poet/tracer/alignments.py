"""Alignments: connectionist temporal classification, in shapes that depend on no values.

The kernel of `ctc_loss` makes a tensor for its backward pass that is as wide as the longest target
of the batch, which is a value. In a trace it is as wide as the longest target could be: operators
of our own call the kernels that eager PyTorch calls, with lengths as tensors, and fill up or cut
off what lies beyond. So lengths may be others in each step.

Targets are often selected by a mask, which makes as many of them as the mask has true values. They
are selected inside those operators, from the labels and the mask (`Selected`), so that nothing else
sees how many there are.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of a batch, and what the backward pass needs."""
    chosen = targets if mask is None else targets.masked_select(mask)
    losses, alpha = torch.ops.aten._ctc_loss.default(
        log_probs, chosen, input_lengths.tolist(), target_lengths.tolist(), blank, zero_infinity
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
    mask: torch.Tensor | None,
) -> torch.Tensor:
    lengths: list[int] = target_lengths.tolist()
    made: torch.Tensor = torch.ops.aten._ctc_loss_backward.default(
        grad,
        log_probs,
        targets if mask is None else targets.masked_select(mask),
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
    ctx.options, ctx.mask = inputs[4:6], inputs[6]


def _differentiate(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    made = _ctc_backward(grad, *ctx.saved_tensors, *ctx.options, ctx.mask)
    return made, None, None, None, None, None, None


_ctc.register_autograd(_differentiate, setup_context=_keep)


class SelectedByValues(Exception):
    """A question to a selection, whose answer is data dependent."""


class Selected:
    """What a mask selects of the targets: as many as it has true values, which nobody may ask.

    It is no tensor, and does not pass for one: whatever is done with it ends the trace. `ctc_loss`
    is met before it comes to that.
    """

    def __init__(self, targets: torch.Tensor, mask: torch.Tensor) -> None:
        shape = torch.broadcast_shapes(targets.shape, mask.shape)  # type: ignore[no-untyped-call]
        self._apart = targets.expand(shape), mask.expand(shape)

    if not TYPE_CHECKING:  # isinstance() asks for it

        @property
        def __class__(self) -> Any:
            raise SelectedByValues("what a mask selects is data dependent")

    def __getattr__(self, name: str) -> Any:
        raise SelectedByValues(f"{name} of what a mask selects is data dependent")


def _refused(_self: Any, /, *_: Any, **__: Any) -> Any:
    raise SelectedByValues("what a mask selects is data dependent, and so is how much that is")


for _name in (
    "__torch_function__", "__getitem__", "__len__", "__iter__", "__bool__", "__int__", "__float__",
    "__index__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__radd__",
    "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__neg__", "__and__", "__or__",
    "__invert__", "__repr__", "__contains__",
):  # fmt: skip
    setattr(Selected, _name, classmethod(_refused) if _name == "__torch_function__" else _refused)


class Alignments(TorchFunctionMode):
    """Has `ctc_loss` on the CPU in shapes that depend on no values.

    `selects` says whether integers that a mask selects are taken for its targets.
    """

    def __init__(self, selects: bool = True) -> None:
        super().__init__()
        self._selects = selects

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
        if self._selects and func in (torch.masked_select, torch.Tensor.masked_select):
            asked = dict(zip(("input", "mask"), args, strict=False)) | kwargs
            if set(asked) == {"input", "mask"} and _may_be_targets(asked["input"]):
                return Selected(asked["input"], asked["mask"])
        return func(*args, **kwargs)


def _may_be_targets(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.int32, torch.int64)


def _loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor | Selected,
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
    whole, mask = targets._apart if type(targets) is Selected else (targets, None)
    made: torch.Tensor = _ctc(
        log_probs if is_batch else log_probs.unsqueeze(1),
        whole,
        *lengths,
        blank,
        zero_infinity,
        mask,
    )[0]
    if zero_infinity:
        made = torch.where(made == torch.inf, torch.zeros((), dtype=made.dtype), made)
    if reduction == "mean":
        return (made / lengths[1].to(made.dtype).clamp_min(1)).mean()
    if reduction == "sum":
        return made.sum()
    return made if is_batch else made.squeeze(0)
