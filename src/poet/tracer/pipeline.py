"""Capturing: the way from a model to a Program, stage by stage.

trace (`joint`) -> lower (`lowering`) -> updates (`updates`) -> granularity (`merging`) -> Layout.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import torch

from poet.errors import PoetError
from poet.rewrites.joining import renumbered
from poet.rewrites.merging import merged
from poet.tracer import tracing
from poet.tracer.caveats import doubts
from poet.tracer.layout import Layout
from poet.tracer.lowering import Lowered, Names, lower
from poet.tracer.step import Step
from poet.tracer.updates import Updated, fused, with_outputs, with_updates
from poet.values.graph import Graph
from poet.values.optimizers import Optimizer

Granularity = Literal["planning", "op"]


def layout_of(
    step: Step,
    groups: tuple[Optimizer, ...],
    member: Mapping[str, int] | None,
    *,
    name: str,
    granularity: Granularity,
    fuse_updates: bool,
    report: Callable[[str], None],
) -> Layout:
    """Trace the step of a model and lay out its graph.

    `groups` are the optimizers and `member` says which of them a parameter has; without it all have
    the first.
    """
    traced = tracing.trace(step, step.example.tensors, report)
    report("lowering")
    lowered = lower(traced.module, names_of(step, traced), step.ends_in_loss)
    report("merging")
    if groups:
        member = member or dict.fromkeys(lowered.gradients, 0)
        for trained in lowered.gradients:
            if trained not in member:
                raise PoetError(
                    f"{trained} gets a gradient, but the optimizer does not have it. Add it to the "
                    "optimizer, or freeze it with requires_grad_(False)"
                )
        updated = with_updates(lowered, groups, member)
        if fuse_updates:
            updated = updated._replace(ops=fused(updated.tensors, updated.ops))
        gradients: dict[str, int] = {}
    else:
        updated, gradients = with_outputs(lowered)
    layout = _finished(
        name, lowered, updated, gradients, groups, member or {}, granularity, fuse_updates
    )
    return msgspec.structs.replace(layout, doubts=doubts(step, lowered))


def names_of(step: Step, traced: tracing.Traced) -> Names:
    """What the graph's names stand for. A tied weight goes by the first of its names."""
    known = {name: known for name, known, _ in (*step.owned_parameters(), *step.owned_buffers())}
    if len(set(known.values())) < len(known):
        raise PoetError(
            "the model has a part named loss_fn, as POET calls the loss's own parameters: rename it"
        )
    return Names(
        {key: known[name] for key, name in traced.names.items() if name in known},
        {key: traced.constants[n] for key, n in traced.names.items() if n in traced.constants},
    )


def _finished(
    name: str,
    step: Lowered,
    updated: Updated,
    gradients: dict[str, int],
    groups: tuple[Optimizer, ...],
    member: Mapping[str, int],
    granularity: Granularity,
    fuse_updates: bool,
) -> Layout:
    ops = updated.ops
    if granularity == "planning":
        kept = frozenset({*step.outputs, *gradients.values()})
        ops = merged(updated.tensors, ops, kept, fused=fuse_updates)
    tensors, ops, place = renumbered(updated.tensors, ops, updated.learning_rates)
    return Layout(
        graph=Graph(name=name, tensors=tuple(tensors), ops=tuple(ops)),
        parameters={n: place[i] for n, i in step.parameters.items() if i in place},
        buffers={n: place[i] for n, i in step.buffers.items() if i in place},
        constants={place[i]: _content(value) for i, value in step.constants.items() if i in place},
        inputs={n: place[i] for n, i in step.inputs.items() if i in place},
        outputs=tuple(place[i] for i in step.outputs),
        tangents={n: place[i] for n, i in step.tangents.items()},
        gradients={n: place[i] for n, i in gradients.items()},
        member={n: member[n] for n in step.gradients} if groups else {},
        state={n: {k: place[i] for k, i in held.items()} for n, held in updated.state.items()},
        learning_rates=tuple(place[i] for i in updated.learning_rates),
        step_count=None if updated.step_count is None else place[updated.step_count],
    )


def _content(value: torch.Tensor) -> bytes:
    storage = value.detach().cpu().untyped_storage()
    return bytes(storage)
