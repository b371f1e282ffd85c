"""Capture: a model's training step becomes a Program.

`capture` takes the whole step, with its loss and its update; `capture_outputs` the model alone, for
loops that are the user's own. torch is imported when one of them is called.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, get_args

from poet.errors import MissingPackage, PoetError, PoetWarning
from poet.rewrites.granularity import Granularity
from poet.tracer.collector import collector_at_rest
from poet.values.optimizers import Optimizer
from poet.values.update_rules import UpdateRule

if TYPE_CHECKING:
    import torch

    from poet.tracer.groups import Groups
    from poet.tracer.layout import Layout
    from poet.tracer.outputs import Called
    from poet.tracer.program import Program
    from poet.tracer.step import Step

_log = logging.getLogger(__name__)
_PLAIN = UpdateRule()


def capture(
    model: "torch.nn.Module",
    loss_fn: "Callable[..., torch.Tensor] | None" = None,
    optimizer: "Optimizer | torch.optim.Optimizer | None" = None,
    *,
    example: Any,
    granularity: Granularity = "planning",
    fuse_updates: bool = False,
    autocast: "torch.dtype | str | None" = None,
    updates: UpdateRule = _PLAIN,
    name: str | None = None,
    cache: bool = True,
) -> "Program":
    """A model's training step, forward, backward and update, as a graph that runs bit-equal.

    `example` is a tuple `(*inputs, target)`: the step is `loss_fn(model(*inputs), target)`. With
    `loss_fn=None` the example, a tuple or a dict for keyword arguments, goes to the model, and what
    it returns, or its `.loss`, is the loss. `optimizer` is `poet.SGD`, `poet.Adam` or `poet.AdamW`,
    or one of torch's; without any, the step gives out gradients. `updates` says what is done with
    gradients before (`poet.values.update_rules`).

    `granularity="op"` keeps every kernel an op of its own. `fuse_updates` makes one op of a weight
    gradient and its update, where nothing else reads the gradient. `autocast`, a dtype, runs
    forward and loss under `torch.autocast`; called inside such a context, it is taken from there.
    A capture is kept on disk and found again for the same code, configuration, shapes and versions;
    `cache` says whether to.
    """
    torch = imported_torch()
    from poet.tracer.program import Program
    from poet.tracer.stand_ins import lacks_bytes

    if granularity not in get_args(Granularity):
        raise PoetError(f"granularity is {granularity!r}; it must be 'planning' or 'op'")
    _check_module(torch, model)
    if lacks_bytes(model, example):
        raise PoetError(
            "the model or the example has no bytes (torch.device('meta'), or a FakeTensorMode), so "
            "its step cannot run. poet.fit says what it would take; model.to_empty(device='cpu') "
            "gives it bytes"
        )
    traced, step, groups = _captured(
        model, loss_fn, optimizer, example, autocast, updates, name, cache
    )
    _warn(traced)
    program = Program(
        traced,
        step,
        [each.lr for each in groups.optimizers],
        granularity=granularity,
        fuse_updates=fuse_updates,
    )
    if isinstance(optimizer, torch.optim.Optimizer):
        program.follow(optimizer)
    return program


def capture_layout(
    model: "torch.nn.Module",
    loss_fn: "Callable[..., torch.Tensor] | None" = None,
    optimizer: "Optimizer | torch.optim.Optimizer | None" = None,
    *,
    example: Any,
    autocast: "torch.dtype | str | None" = None,
    name: str | None = None,
    cache: bool = True,
) -> "Layout":
    """The same step laid out and not joined with the model, which need not have any bytes: it may
    be built under `torch.device("meta")`."""
    _check_module(imported_torch(), model)
    return _captured(model, loss_fn, optimizer, example, autocast, _PLAIN, name, cache)[0]


def _captured(
    model: "torch.nn.Module",
    loss_fn: "Callable[..., torch.Tensor] | None",
    optimizer: "Optimizer | torch.optim.Optimizer | None",
    example: Any,
    autocast: "torch.dtype | str | None",
    updates: UpdateRule,
    name: str | None,
    cache: bool,
) -> "tuple[Layout, Step, Groups]":
    torch = imported_torch()
    from poet.tracer import cache as kept
    from poet.tracer.fitting import misfit
    from poet.tracer.groups import groups_of
    from poet.tracer.keys import key_of
    from poet.tracer.stand_ins import lacks_bytes, parameters_stand_in, with_batch
    from poet.tracer.step import Step, take_apart

    if isinstance(loss_fn, type) or not (loss_fn is None or callable(loss_fn)):
        is_class = isinstance(loss_fn, type)
        hint = f"give {loss_fn.__name__}(), not the class" if is_class else "or None"
        raise PoetError(f"loss_fn must be a function of (output, target): {hint}")
    take_apart(example)  # refused before anything is made of it
    real = not lacks_bytes(model, example)
    if not real:
        example = with_batch(model, example)
    step = Step(model, loss_fn, take_apart(example), autocast_of(model, autocast))
    groups = groups_of(optimizer, step)  # by the identity of parameters
    with nullcontext() if real else parameters_stand_in(model, example):
        _check_trainable(torch, step)
        _check_wants_no_gradient(torch, example)
        title = name or type(model).__name__
        key = key_of(step, title, groups.without_rates(), updates) if cache else None
        traced = None if key is None else kept.find(key)
        if traced is not None and (why := misfit(traced, step, len(groups.optimizers))):
            _log.warning("the captured step of %s is traced anew: %s", title, why)
            traced = None
        if traced is None:
            traced = _traced(torch, step, title, groups, updates)
            # What the first pass settles belongs to the key: who has yet to settle is traced.
            key = key and key_of(step, title, groups.without_rates(), updates)
            if key is not None and not step.asked and (real or not traced.constants):
                kept.keep(key, traced)
    return traced, step, groups


def capture_outputs(
    model: "torch.nn.Module",
    call: "Called",
    *,
    granularity: Granularity = "planning",
    autocast: "torch.dtype | str | None" = None,
) -> "Program":
    """A model's forward and backward pass alone: its outputs, then gradients from theirs.

    Gradients come out for parameters, and for those tensors of the call, that require one.
    """
    torch = imported_torch()
    from poet.tracer.groups import Groups
    from poet.tracer.outputs import Outputs
    from poet.tracer.program import Program

    _check_module(torch, model)
    step = Outputs(model, call, autocast_of(model, autocast))
    _check_parameters(torch, step)
    _check_devices(step)
    traced = _traced(torch, step, type(model).__name__, Groups(), _PLAIN)
    _warn(traced)
    return Program(traced, step, granularity=granularity)


def _traced(
    torch: Any,
    step: "Step",
    title: str,
    groups: "Groups",
    updates: UpdateRule,
) -> "Layout":
    from poet.tracer.pipeline import layout_of

    started = time.monotonic()
    with _no_autocast(torch), collector_at_rest():
        layout = layout_of(
            step,
            groups.optimizers,
            groups.member,
            updates,
            name=title,
            report=lambda stage: _log.info("capturing %s: %s", title, stage),
        )
    _log.info("captured %s in %.1f s", title, time.monotonic() - started)
    return layout


def _warn(layout: "Layout") -> None:
    for caveat in layout.caveats:
        warnings.warn(caveat, PoetWarning, stacklevel=3)


def imported_torch() -> Any:
    """torch, or an error that says how to get it."""
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingPackage("capturing a model", "torch") from None
    return torch


def _check_module(torch: Any, model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise PoetError(f"the model is a {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise PoetError("the model is scripted, and cannot be traced: give the module it came from")


def _check_trainable(torch: Any, step: "Step") -> None:
    parameters = list(step.owned_parameters())
    _check_parameters(torch, step)
    for _, name, value in parameters:
        if value._backward_hooks or value._post_accumulate_grad_hooks:
            raise PoetError(
                f"{name} has a gradient hook, which a captured step would not call. Remove it, or "
                "do the same in the loss or after the step"
            )
    if not any(value.requires_grad for _, _, value in parameters):
        why = "all of them are frozen" if parameters else "it has none at all"
        raise PoetError(f"the model has no trainable parameters: {why}. There is nothing to train")
    _check_devices(step)


def _check_parameters(torch: Any, step: "Step") -> None:
    for _, name, value in step.owned_parameters():
        if isinstance(value, torch.nn.parameter.UninitializedParameter):
            raise PoetError(
                f"{name} belongs to a lazy module and has no shape yet. Run the model on the "
                "example once, then capture it"
            )
        if value.numel() * value.element_size() != value.untyped_storage().nbytes():
            raise PoetError(
                f"{name} is a piece of a larger tensor; POET needs each parameter in a storage of "
                "its own. Make it with torch.nn.Parameter(x.clone())"
            )
        if value.requires_grad and not isinstance(value, torch.nn.Parameter):
            raise PoetError(
                f"a tensor that requires a gradient is in the place of the parameter {name}, as "
                "torch.func.functional_call puts it there. Make it an nn.Parameter, or call a "
                "model that is not wrapped"
            )
    for _, name, value in step.owned_buffers():
        if value.requires_grad:
            raise PoetError(
                f"the buffer {name} requires a gradient, which a captured step would not give it. "
                "Make it an nn.Parameter"
            )
    if torch.is_inference_mode_enabled():
        raise PoetError("capturing a training step needs gradients: leave torch.inference_mode()")


def _check_devices(step: "Step") -> None:
    devices = {str(value.device) for _, _, value in step.owned_parameters()}
    devices |= {str(tensor.device) for tensor in step.example.tensors}
    if len(devices) > 1:
        raise PoetError(
            f"the model and the example are on several devices ({', '.join(sorted(devices))}); a "
            "step runs on one"
        )


def _check_wants_no_gradient(torch: Any, example: Any) -> None:
    """Eager PyTorch would give an input its gradient; a training step has only parameters'."""
    leaves = torch.utils._pytree.tree_leaves(example)
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        raise PoetError(
            "an input requires a gradient, and a training step gives gradients to parameters only. "
            "Give x.detach(), or use poet.wrap, which gives inputs theirs"
        )


def autocast_of(model: "torch.nn.Module", asked: Any) -> Any:
    """The dtype of autocast that was asked for, or that holds here for the model's device."""
    torch = imported_torch()
    if isinstance(asked, str):
        found = getattr(torch, asked, None)
        if not isinstance(found, torch.dtype):
            raise PoetError(f"autocast is {asked!r}; it must be a dtype such as 'bfloat16'")
        asked = found
    if asked is not None and asked not in (torch.bfloat16, torch.float16):
        raise PoetError(f"autocast is {asked}; it must be torch.bfloat16 or torch.float16")
    if asked is None:
        kind = next((each.device.type for each in model.parameters() if not each.is_meta), "cpu")
        if torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
    return asked


@contextmanager
def _no_autocast(torch: Any) -> Iterator[None]:
    """Leave a surrounding autocast: eager's backward pass runs outside it, too."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield
