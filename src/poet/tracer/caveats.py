"""Caveats: where a captured step may not be eager's, in its last bits or in what it is told."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from poet.tracer.lowered import Lowered
from poet.tracer.step import Step


def caveats(
    step: Step,
    lowered: Lowered,
    left_behind: Sequence[str],
    outside: Sequence[str],
    decided: str | None,
) -> tuple[str, ...]:
    """A sentence for each known reason why the step may differ."""
    found = []
    gated = [
        name
        for name, module in step.model.named_modules()
        if isinstance(module, nn.GRU | nn.GRUCell)
        and next(module.parameters()).device.type == "cpu"
    ]
    if gated:
        found.append(
            f"{gated[0] or 'the model'} is a GRU on a CPU: eager PyTorch applies sigmoid in place "
            "to strided pieces, a captured step to dense ones, and the last bits may differ"
        )
    for name in left_behind:
        found.append(
            f"the forward pass leaves a tensor in {name}, which a captured step does not. Return "
            "it from the model where it is wanted"
        )
    for asked in outside:
        found.append(
            f"the step asks for {asked}, which may answer something else at each step; a captured "
            "step has its answer once"
        )
    if decided is not None:
        found.append(
            f"{decided}the model decides by the values of a tensor, so that what it does when it "
            "is exported is captured: the last bits may differ from eager's"
        )
    if step.asked:
        found.append(
            f"{step.asked.places[0]}: what the step does depends on values of its batch. It is "
            "captured for batches that answer like the example; each other answer takes a capture "
            "and a plan of its own, or is refused"
        )
    parameters = {i: name for name, i in lowered.parameters.items()}
    casts = Counter(
        i
        for op in lowered.ops
        for call in op.calls
        if call.kind == "aten._to_copy" and op.phase == "forward"
        for i in (call.arguments["self"].get("tensor"),)
        if i in parameters
    )
    cast_often = [parameters[i] for i, count in casts.items() if count > 1]
    if cast_often:
        found.append(
            f"autocast casts {cast_often[0]} more than once: eager PyTorch adds the gradients of "
            "its uses before casting them back, a captured step after, and the last bits may differ"
        )
    return tuple(found)
