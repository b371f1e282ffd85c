"""The way from a model to the Layout of its step, stage by stage.

trace (`tracing`) -> lower (`lowering`) -> updates (`updates`) -> Layout. The graph has an op for
each kernel; `Layout.rewritten` makes it coarser.
"""

from collections.abc import Callable, Mapping

import msgspec
import torch

from poet.errors import PoetError
from poet.tracer import tracing
from poet.tracer.caveats import caveats
from poet.tracer.first_gradient import with_first_gradient
from poet.tracer.layout import Layout
from poet.tracer.lowered import Lowered, Names
from poet.tracer.lowering import lower
from poet.tracer.stand_ins import is_without_bytes
from poet.tracer.step import Step
from poet.tracer.updates import Updated, with_outputs, with_updates
from poet.values.graph import Graph
from poet.values.optimizers import Optimizer
from poet.values.torch_optimizers import TorchOptimizer
from poet.values.update_rules import UpdateRule

_PLAIN = UpdateRule()


def layout_of(
    step: Step,
    groups: tuple[Optimizer | TorchOptimizer, ...],
    member: Mapping[str, int] | None,
    rule: UpdateRule = _PLAIN,
    *,
    name: str,
    report: Callable[[str], None],
) -> Layout:
    """Trace the step of a model and lay out its graph.

    `groups` are the optimizers and `member` says which of them a parameter has; without it all have
    the first.
    """
    traced = tracing.trace(step, report)
    step.asked = traced.asked
    report("lowering")
    lowered = lower(traced.module, names_of(step, traced), step.ends_in_loss)
    scale = None
    if groups:
        lowered, scale = with_first_gradient(lowered, rule)
        member = member or dict.fromkeys(lowered.gradients, 0)
        for trained in lowered.gradients:
            if trained not in member:
                raise PoetError(
                    f"{trained} gets a gradient, but the optimizer does not have it. Add it to the "
                    "optimizer, or freeze it with requires_grad_(False)"
                )
        updated = with_updates(lowered, groups, member, rule)
        gradients: dict[str, int] = {}
    else:
        updated, gradients = with_outputs(lowered)
    layout = _laid_out(name, lowered, updated, gradients, member or {}, scale, rule)
    told = caveats(step, lowered, traced.left_behind, traced.outside, traced.decided)
    return msgspec.structs.replace(layout, caveats=told)


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


def _laid_out(
    name: str,
    step: Lowered,
    updated: Updated,
    gradients: dict[str, int],
    member: Mapping[str, int],
    scale: int | None,
    rule: UpdateRule,
) -> Layout:
    verdict = updated.verdict
    captured = Layout(
        graph=Graph(name=name, tensors=tuple(updated.tensors), ops=tuple(updated.ops)),
        parameters=step.parameters,
        buffers=step.buffers,
        constants={i: _content(value) for i, value in step.constants.items()},
        inputs=step.inputs,
        outputs=step.outputs,
        pieces=step.pieces,
        tangents=step.tangents,
        gradients=gradients,
        input_gradients=step.input_gradients,
        member={n: member[n] for n in step.gradients if n in member},
        state=updated.state,
        learning_rates=updated.learning_rates,
        step_count=updated.step_count,
        live_options=updated.live_options,
        first_values=updated.first_values,
        scale=scale,
        inverse_scale=updated.inverse_scale,
        norm=verdict and verdict.norm,
        skip=verdict and verdict.skip,
        rule=rule,
    )
    return captured.rewritten("op", fuse_updates=False)  # without tensors that nobody uses


def _content(value: torch.Tensor) -> bytes:
    if is_without_bytes(value):
        return bytes(value.untyped_storage().nbytes())  # nobody will run this
    storage = value.detach().cpu().untyped_storage()
    return bytes(storage)
