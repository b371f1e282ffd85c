"""Capturing: a model that a person brings, by object or by name, becomes a Program.

`capture` takes the model itself; `capture_named` what one types: a name of the zoo with options, or
a function in a Python file. torch is imported here only when one of them is called.
"""

import importlib.util
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from poet.errors import MissingPackage, PoetError, PoetWarning
from poet.values.graph import Graph
from poet.values.optimizers import Optimizer

if TYPE_CHECKING:
    import torch

    from poet.tracer.program import Program

Granularity = Literal["planning", "op"]
_QUIET_SECONDS = 2.0


def capture(
    model: "torch.nn.Module",
    example: Any,
    loss: "Callable[..., torch.Tensor] | None" = None,
    optimizer: "Optimizer | torch.optim.Optimizer | None" = None,
    *,
    granularity: Granularity = "planning",
    fuse_updates: bool = False,
    autocast: "torch.dtype | str | None" = None,
    name: str | None = None,
    cache: bool = True,
) -> "Program":
    """A model's training step, forward, backward and update, as a graph that runs bit-equal.

    `example` is a tuple `(*inputs, target)`: the step is `loss(model(*inputs), target)`. With
    `loss=None` the example, a tuple or a dict for keyword arguments, goes to the model, and what it
    returns, or its `.loss`, is the loss. `optimizer` is `poet.SGD`, `poet.Adam` or `poet.AdamW`, or
    the torch one; without any, the step gives out gradients.

    `granularity="op"` keeps every kernel an op of its own. `fuse_updates` makes one op of a weight
    gradient and its update, where nothing else reads the gradient. `autocast`, a dtype, runs
    forward and loss under `torch.autocast`; called inside such a context, it is taken from there.
    A capture is kept on disk and found again for the same code, configuration, shapes and versions;
    `cache` says whether to.
    """
    torch = _torch()
    from poet.tracer import cache as kept
    from poet.tracer.groups import groups_of
    from poet.tracer.keys import key_of
    from poet.tracer.pipeline import layout_of
    from poet.tracer.program import Program
    from poet.tracer.step import Step, take_apart

    if granularity not in ("planning", "op"):
        raise PoetError(f"granularity is {granularity!r}; it must be 'planning' or 'op'")
    if not isinstance(model, torch.nn.Module):
        raise PoetError(f"the model is a {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise PoetError("the model is scripted, and cannot be traced: give the module it came from")
    if isinstance(loss, type) or not (loss is None or callable(loss)):
        hint = f"give {loss.__name__}(), not the class" if isinstance(loss, type) else "or None"
        raise PoetError(f"the loss must be a function of (output, target): {hint}")
    step = Step(model, loss, take_apart(example), _autocast(torch, autocast))
    _check_trainable(torch, step)
    groups = groups_of(optimizer, step)
    title = name or type(model).__name__
    settings = (title, groups.without_rates(), granularity, fuse_updates)
    key = key_of(step, *settings) if cache else None
    layout = None if key is None else kept.find(key)
    if layout is None:
        with _line(f"capturing {title}") as report, _no_autocast(torch):
            layout = layout_of(
                step,
                groups.optimizers,
                groups.member,
                name=title,
                granularity=granularity,
                fuse_updates=fuse_updates,
                report=report,
            )
        if key is not None:
            kept.keep(key, layout)
    for doubt in layout.doubts:
        warnings.warn(doubt, PoetWarning, stacklevel=2)
    program = Program(layout, step, [each.lr for each in groups.optimizers])
    if isinstance(optimizer, torch.optim.Optimizer):
        program.follow(optimizer)
    return program


def capture_outputs(
    model: "torch.nn.Module",
    example: Any,
    *,
    granularity: Granularity = "planning",
    autocast: "torch.dtype | str | None" = None,
) -> "Program":
    """A model's forward and backward pass alone: its outputs, then gradients from theirs.

    The example holds the model's arguments, a tuple or a dict. Gradients of the parameters come
    out.
    """
    torch = _torch()
    from poet.tracer.pipeline import layout_of
    from poet.tracer.program import Program
    from poet.tracer.step import Outputs, take_apart

    if not isinstance(model, torch.nn.Module):
        raise PoetError(f"the model is a {type(model).__name__}; it must be a torch.nn.Module")
    step = Outputs(model, take_apart(example), _autocast(torch, autocast))
    _check_trainable(torch, step)
    title = type(model).__name__
    with _line(f"capturing {title}") as report, _no_autocast(torch):
        layout = layout_of(
            step, (), None, name=title, granularity=granularity, fuse_updates=False, report=report
        )
    for doubt in layout.doubts:
        warnings.warn(doubt, PoetWarning, stacklevel=2)
    return Program(layout, step)


def capture_named(
    text: str,
    optimizer: Optimizer | None = None,
    *,
    granularity: Granularity = "planning",
    fuse_updates: bool = False,
    cache: bool = True,
    seed: int = 0,
    on: str = "cpu",
) -> "Program":
    """The same for a zoo name with options, or `file.py:function` that makes the first three.

    With `on="cuda"` the model and its example go to the GPU first.
    """
    model, example, loss = made_by_name(text, seed)
    if on != "cpu":
        model, example = _moved(model, example, on)
    return capture(
        model,
        example,
        loss,
        optimizer,
        granularity=granularity,
        fuse_updates=fuse_updates,
        name=text,
        cache=cache,
    )


def _moved(model: Any, example: Any, on: str) -> tuple[Any, Any]:
    torch = _torch()
    if on.startswith("cuda") and not torch.cuda.is_available():
        raise PoetError("torch finds no GPU here: it was built without CUDA, or there is none")

    def moved(leaf: Any) -> Any:
        return leaf.to(on) if isinstance(leaf, torch.Tensor) else leaf

    return model.to(on), torch.utils._pytree.tree_map(moved, example)


def made_by_name(text: str, seed: int = 0) -> tuple[Any, Any, Any]:
    """Model, example and loss of a zoo name with options, or of `file.py:function`."""
    return _from_file(text) if ".py:" in text else _from_zoo(text, seed)


def graph_named(
    text: str,
    optimizer: Optimizer | None = None,
    *,
    granularity: Granularity = "planning",
    fuse_updates: bool = False,
    cache: bool = True,
) -> Graph:
    """The graph of the same. A zoo model that was captured before is found without torch."""
    key = None
    if cache and ".py:" not in text and _usual_settings():
        from poet.tracer import cache as kept
        from poet.tracer.versions import zoo_key
        from poet.zoo import parse

        key = zoo_key(parse(text).text, optimizer, text, granularity, fuse_updates)
        layout = kept.find(key)
        if layout is not None:
            return layout.graph
    program = capture_named(
        text, optimizer, granularity=granularity, fuse_updates=fuse_updates, cache=cache
    )
    if key is not None:
        kept.keep(key, program.layout)
    return program.graph


def _usual_settings() -> bool:
    if "torch" not in sys.modules:
        return True
    from poet.tracer.keys import settings_are_usual

    return settings_are_usual()


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingPackage("capturing a model", "torch") from None
    return torch


def _from_zoo(text: str, seed: int) -> tuple[Any, Any, Any]:
    from poet.zoo import build

    made = build(text, seed)
    return made.model, made.example, made.loss


def _from_file(text: str) -> tuple[Any, Any, Any]:
    """What `make()` in a user's file returns."""
    _torch()
    path, _, function = text.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise PoetError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"poet_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
        make = getattr(module, function, None)
        if not callable(make):
            here = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
            raise PoetError(
                f"{path} has no function {function!r}. It has {', '.join(sorted(here)) or 'none'}"
            )
        made = make()
    except PoetError:
        raise
    except Exception as error:
        raise PoetError(f"{text} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(made, tuple) or len(made) != 3:
        what = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise PoetError(
            f"{text} returned {what}; it must return (model, example, loss), with loss None where "
            "the model returns its own"
        )
    return made


def _check_trainable(torch: Any, step: Any) -> None:
    parameters = list(step.owned_parameters())
    for _, name, value in parameters:
        if isinstance(value, torch.nn.parameter.UninitializedParameter):
            raise PoetError(
                f"{name} belongs to a lazy module and has no shape yet. Run the model on the "
                "example once, then capture it"
            )
        if value._backward_hooks or value._post_accumulate_grad_hooks:
            raise PoetError(
                f"{name} has a gradient hook, which a captured step would not call. Remove it, or "
                "do the same in the loss or after the step"
            )
        if value.numel() * value.element_size() != value.untyped_storage().nbytes():
            raise PoetError(
                f"{name} is a piece of a larger tensor; POET needs each parameter in a storage of "
                "its own. Make it with torch.nn.Parameter(x.clone())"
            )
    if torch.is_inference_mode_enabled():
        raise PoetError("capturing a training step needs gradients: leave torch.inference_mode()")
    if not any(value.requires_grad for _, _, value in parameters):
        why = "all of them are frozen" if parameters else "it has none at all"
        raise PoetError(f"the model has no trainable parameters: {why}. There is nothing to train")
    devices = {str(value.device) for _, _, value in parameters}
    devices |= {str(tensor.device) for tensor in step.example.tensors}
    if len(devices) > 1:
        raise PoetError(
            f"the model and the example are on several devices ({', '.join(sorted(devices))}); a "
            "step runs on one"
        )


def _autocast(torch: Any, asked: Any) -> Any:
    if isinstance(asked, str):
        found = getattr(torch, asked, None)
        if not isinstance(found, torch.dtype):
            raise PoetError(f"autocast is {asked!r}; it must be a dtype such as 'bfloat16'")
        asked = found
    if asked is not None and asked not in (torch.bfloat16, torch.float16):
        raise PoetError(f"autocast is {asked}; it must be torch.bfloat16 or torch.float16")
    if asked is None:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                return torch.get_autocast_dtype(kind)
    return asked


@contextmanager
def _no_autocast(torch: Any) -> Iterator[None]:
    """Leave a surrounding autocast: eager's backward pass runs outside it, too."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def _line(title: str) -> Iterator[Callable[[str], None]]:
    """A line on a terminal's stderr that says how far a long capture has come."""
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    from rich.console import Console

    status = Console(file=sys.stderr).status(f"{title} …")
    timer = threading.Timer(_QUIET_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    started = time.monotonic()

    def report(stage: str) -> None:
        status.update(f"{title}: {stage}, {time.monotonic() - started:.0f} s so far")

    try:
        yield report
    finally:
        timer.cancel()
        timer.join()
        status.stop()
