"""Foreseen: `poet.fit`, what a training step takes before anything is trained.

The step is captured as it is for training, but from stand-ins without bytes where there are no
others: models of the zoo, models built under `torch.device("meta")`, batches that are tried out. Of
this machine it is known what kernels take for themselves, by trying them, as long as that takes
seconds.
"""

import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

from poet.calls.workspace import workspace_bytes
from poet.costs.analytic import analytic
from poet.devices import find_device
from poet.errors import PoetError, PoetWarning
from poet.planning.batches import largest_batches
from poet.planning.defaults import HERE, optimizer_for
from poet.planning.fit import Fit, foreseen
from poet.planning.problem import Problem
from poet.planning.question import Terms, terms
from poet.planning.residency import in_bytes
from poet.profiling.scratch import workspaces_here
from poet.tracer.by_name import layout_named, shapes_by_name
from poet.tracer.capture import capture_layout
from poet.tracer.collector import collector_at_rest
from poet.tracer.layout import Layout
from poet.tracer.stand_ins import batch_size, is_without_bytes, with_batch
from poet.training.planned import free_bytes
from poet.values.device import Device
from poet.values.graph import Graph
from poet.values.optimizers import Optimizer, parse_optimizer
from poet.values.progress import CountProgress
from poet.values.schedule import Params
from poet.zoo import parse

_TRIED_SECONDS = 2.0
"""Kernels are tried where a step takes no longer than this by a laptop's rates."""


@collector_at_rest()
def fit(
    model: nn.Module | str,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    optimizer: Optimizer | torch.optim.Optimizer | str | None = None,
    *,
    example: Any = None,
    device: str | Device | None = None,
    ram: str | int | None = None,
    params: Params = "auto",
    largest_batch: bool | None = None,
    autocast: torch.dtype | str | None = None,
    time_limit: float = 2.0,
    cache: bool = True,
    progress: CountProgress | None = None,
) -> Fit:
    """What a training step takes, the least it can take, and at which price. Nothing is trained.

    Arguments are `poet.Trainer`'s: without a `device` it is this machine, with PyTorch; with one it
    is that board, as `poet.plan` has it, which need not be here. The model may be built under
    `torch.device("meta")`, or be a name or `file.py:function`, as on the command line; so may the
    optimizer: `"adamw"`, or `"none"`. Without one it is the usual one of the device.

    `largest_batch` asks how large a batch the budget `ram` holds, which captures some batch sizes;
    by default it is asked where `ram` is given. `time_limit` is for prices.
    """
    board = find_device(device) if isinstance(device, str) else device
    if optimizer is None or isinstance(optimizer, str):
        optimizer = parse_optimizer(optimizer or optimizer_for(board))
    elif not isinstance(optimizer, Optimizer | torch.optim.Optimizer):
        raise PoetError(
            f"the optimizer is a {type(optimizer).__name__}; it must be poet.SGD, poet.Adam, "
            "poet.AdamW, or one of torch.optim"
        )
    if isinstance(model, str):
        batch, at = _named(model, optimizer, cache)
        held = 0
    elif example is None:
        raise PoetError("a model needs an example, example=(*inputs, target): its shapes count")
    else:
        batch, at = _given(model, loss_fn, optimizer, example, autocast, cache)
        owned = (*model.parameters(), *model.buffers())
        held = sum(each.nbytes for each in owned if not is_without_bytes(each))
    on_gpu = isinstance(model, nn.Module) and any(x.is_cuda for x in model.parameters())
    here = torch.device("cuda" if on_gpu else "cpu")
    asked = _terms(board, ram, params, None if on_gpu else held)
    layout = at(None)
    problem, tried = _problem(layout, board, here)
    found = foreseen(
        problem,
        asked,
        time_limit,
        optimizer=_optimizer_text(optimizer),
        batch=batch,
        kernels_tried=tried,
        progress=progress,
    )
    if largest_batch is False or (largest_batch is None and ram is None):
        return found
    if batch is None:
        raise PoetError(
            "the largest batch is not known: no tensor of the example has a first extent"
        )
    if found.ram_bytes is None:
        raise PoetError("the largest batch needs a budget: give ram=")
    if _is_by_values(problem.graph):
        why = (
            "the largest batch is not known: what the step does depends on values of its batch, "
            "and other batch sizes have none"
        )
        if largest_batch:
            raise PoetError(f"{why}. Ask for no largest_batch")
        warnings.warn(why, PoetWarning, stacklevel=2)
        return found
    bounded = msgspec.structs.replace(in_bytes(problem, asked), ram=found.ram_bytes)

    def problem_at(size: int) -> Problem:
        return problem if size == batch else _problem(at(size), board, here)[0]

    largest = largest_batches(problem_at, batch, bounded, found.ram_bytes, progress)
    return msgspec.structs.replace(found, largest=largest)


At = Callable[[int | None], Layout]
"""The step with so many samples; None: as many as the example has."""


def _named(text: str, optimizer: Any, cache: bool) -> tuple[int | None, At]:
    if text.endswith(".json"):
        raise PoetError(
            f"{text} is no model: give a name or file.py:function. poet plan --ram min and poet "
            "frontier say the same of instances and graphs"
        )
    if isinstance(optimizer, torch.optim.Optimizer):
        raise PoetError("a model by name needs poet.SGD, poet.Adam or poet.AdamW")
    if ".py:" in text:
        model, example, loss_fn, _ = shapes_by_name(text)
        return _given(model, loss_fn, optimizer, example, None, cache, name=text)
    spec = parse(text)

    def at(batch: int | None) -> Layout:
        if batch is None:
            return layout_named(text, optimizer, cache=cache)
        chosen = msgspec.structs.replace(spec, options={**spec.options, "batch": batch})
        return layout_named(chosen.text, optimizer, cache=cache)

    return spec.whole("batch"), at


def _given(
    model: nn.Module,
    loss_fn: Any,
    optimizer: Any,
    example: Any,
    autocast: Any,
    cache: bool,
    name: str | None = None,
) -> tuple[int | None, At]:
    def at(batch: int | None) -> Layout:
        return capture_layout(
            model,
            loss_fn,
            optimizer,
            example=example if batch is None else with_batch(model, example, batch),
            autocast=autocast,
            name=name,
            cache=cache,
        )

    return batch_size(example), at


def _terms(
    board: Device | None, ram: str | int | None, params: Params, held_bytes: int | None
) -> Terms:
    if board is not None:
        return terms(board, ram, params=params)
    if ram is None:
        ram = _gpu_bytes() if held_bytes is None else free_bytes() + held_bytes
    return terms(HERE, ram, params=params, pinned_roles=("input",), in_torch=True)


def _gpu_bytes() -> int:
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved()


def _problem(layout: Layout, board: Device | None, here: torch.device) -> tuple[Problem, bool]:
    """The step as it is planned, and whether its kernels are tried here."""
    graph = layout.rewritten("planning", fuse_updates=False).graph
    tried = board is None and _is_brief(graph)
    peaks: dict[str, int] = {}

    def workspaces(asked: Graph) -> tuple[int, ...]:
        if tried:
            return workspaces_here(asked, device=here, peaks=peaks)
        return tuple(workspace_bytes(op, asked) for op in asked.ops)

    return Problem(graph, traced=layout, workspaces=workspaces), tried


def _is_by_values(graph: Graph) -> bool:
    """Whether it is the step of batches that answer as the example does."""
    return any(call.kind == "poet.decided" for op in graph.ops for call in op.calls)


def _is_brief(graph: Graph) -> bool:
    return analytic(graph, find_device(HERE)).keep_all_seconds <= _TRIED_SECONDS


def _optimizer_text(optimizer: Any) -> str:
    return "no optimizer" if optimizer is None else type(optimizer).__name__
