"""Updates: one op for each trained parameter, which consumes it and makes its next value.

An update stands right after its gradient is complete and every op that reads the old parameter has
run. Whether the two become one op is `poet.rewrites`' to say.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from poet.tracer.layout import TANGENT
from poet.tracer.lowered import Lowered, View
from poet.values.graph import Call, InPlace, Op, Tensor
from poet.values.optimizers import Optimizer


class Updated(NamedTuple):
    """The step with its updates, and the inputs and state that they brought."""

    tensors: list[Tensor]
    ops: list[Op]
    state: dict[str, dict[str, int]]
    learning_rates: tuple[int, ...]
    step_count: int | None


def with_updates(
    step: Lowered, groups: tuple[Optimizer, ...], member: Mapping[str, int]
) -> Updated:
    """Add an update for each gradient; `member` says which group a parameter belongs to."""
    tensors = list(step.tensors)
    learning_rates = tuple(
        _add(tensors, _scalar("learning rate" if n == 0 else f"learning rate {n}", "float64"))
        for n in range(len(groups))
    )
    step_count = None
    if any(group.counts_steps for group in groups):
        step_count = _add(tensors, _scalar("step count", "int64"))
    state: dict[str, dict[str, int]] = {}
    last_reader = {i: k for k, op in enumerate(step.ops) for i in op.inputs}
    maker = {i: k for k, op in enumerate(step.ops) for i in op.outputs}
    after: dict[int, list[Op]] = {}
    for name, gradient in step.gradients.items():
        group = groups[member[name]]
        old = step.parameters[name]
        op = _update(tensors, name, old, gradient, group, learning_rates[member[name]], step_count)
        state[name] = dict(zip(group.state, op.inputs[1 : 1 + len(group.state)], strict=True))
        at = max(maker.get(gradient.tensor, 0), last_reader.get(old, 0))
        after.setdefault(at, []).append(op)
    ops = [each for k, op in enumerate(step.ops) for each in (op, *after.get(k, ()))]
    return Updated(tensors, ops, state, learning_rates, step_count)


def _update(
    tensors: list[Tensor],
    name: str,
    old: int,
    gradient: View,
    group: Optimizer,
    learning_rate: int,
    step_count: int | None,
) -> Op:
    parameter = tensors[old]
    state = [
        _add(
            tensors,
            msgspec.structs.replace(parameter, name=f"{name}.{kept}", role="optimizer_state"),
        )
        for kept in group.state
    ]
    pairs = [
        InPlace(output=_add(tensors, msgspec.structs.replace(tensors[i], becomes=i)), input=i)
        for i in (old, *state)
    ]
    arguments: dict[str, Any] = {
        "parameter": {"tensor": old},
        **{kept: {"tensor": i} for kept, i in zip(group.state, state, strict=True)},
        "gradient": gradient.result,
        "learning_rate": {"tensor": learning_rate},
    }
    inputs = [old, *state, gradient.tensor, learning_rate]
    if group.counts_steps and step_count is not None:
        arguments["step"] = {"tensor": step_count}
        inputs.append(step_count)
    call = Call(
        kind=group.kind,
        arguments=arguments | group.options,
        results=tuple({"tensor": pair.output} for pair in pairs),
    )
    return Op(
        name=name,
        phase="update",
        inputs=tuple(dict.fromkeys(inputs)),
        outputs=tuple(pair.output for pair in pairs),
        in_place=tuple(pairs),
        recomputable=False,
        values=gradient.values,
        calls=(*gradient.calls, call),
    )


def with_outputs(step: Lowered) -> tuple[Updated, dict[str, int]]:
    """No updates: gradients are outputs, each laid out like its parameter."""
    tensors, ops = list(step.tensors), list(step.ops)
    outputs = {
        name: _output(tensors, ops, tensors[step.parameters[name]], name, gradient)
        for name, gradient in step.gradients.items()
    }
    return Updated(tensors, ops, {}, (), None), outputs


def _output(
    tensors: list[Tensor], ops: list[Op], parameter: Tensor, name: str, gradient: View
) -> int:
    """The tensor of a gradient; a copy where it is a piece of a larger one, or somebody else's."""
    i = gradient.tensor
    maker = next((k for k, op in enumerate(ops) if i in op.outputs), -1)
    whole = tensors[i].nbytes == parameter.nbytes and tensors[i].dtype == parameter.dtype
    own = maker >= 0 and ops[maker].calls[0].kind != TANGENT
    if whole and own and tensors[i].role in ("gradient", "activation"):
        tensors[i] = msgspec.structs.replace(tensors[i], role="output")
        return i
    new = _add(tensors, msgspec.structs.replace(parameter, name=f"{name}.grad", role="output"))
    copy = Call(
        kind="aten.clone",
        arguments={"self": gradient.result, "memory_format": {"memory_format": "preserve_format"}},
        results=({"tensor": new},),
    )
    ops.insert(
        maker + 1,
        Op(
            name=f"{name}.grad (copy)",
            phase="backward",
            inputs=(i,),
            outputs=(new,),
            values=gradient.values,
            calls=(*gradient.calls, copy),
        ),
    )
    return new


def _scalar(name: str, dtype: str) -> Tensor:
    return Tensor(name=name, nbytes=8, role="input", shape=(), dtype=dtype)


def _add(tensors: list[Tensor], tensor: Tensor) -> int:
    tensors.append(tensor)
    return len(tensors) - 1
