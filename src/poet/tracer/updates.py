"""Updates: one op for each trained parameter, which consumes it and makes its next value.

An update stands right after its gradient is complete and every op that reads the old parameter has
run. Whether the two become one op is `poet.rewrites`' to say. Where gradients are clipped by their
norm or checked (`UpdateRule.waits`), updates stand behind the op that has seen all of them, the
last gradient first: it is the one that is still in RAM (`joint_gradients`).

Gradients that are gathered over several batches are state of their parameters, updated in place.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import msgspec

from poet.calls.sizes import ITEM_BYTES
from poet.calls.updates import CLEAR, GATHER
from poet.tracer.joint_gradients import Joint, Verdict, joint_of
from poet.tracer.layout import TANGENT
from poet.tracer.lowered import Lowered, View
from poet.tracer.viewed import Seen
from poet.values.graph import Call, InPlace, JsonReference, Op, Tensor
from poet.values.optimizers import Optimizer
from poet.values.torch_optimizers import TorchOptimizer
from poet.values.update_rules import GATHERED, NOTHING, UpdateRule

FIRST_MOMENTUM = NOTHING
"""Where the momentum buffer of SGD starts: it begins with the first gradient itself."""
_PLAIN = UpdateRule()


class Updated(NamedTuple):
    """The step with its updates, and the inputs and state that they brought."""

    tensors: list[Tensor]
    ops: list[Op]
    state: dict[str, dict[str, int]]
    learning_rates: tuple[int, ...]
    step_count: int | None
    live_options: tuple[dict[str, int], ...] = ()
    first_values: dict[str, dict[str, float]] = {}
    """Where state starts that does not start at 0, by parameter."""
    inverse_scale: int | None = None
    verdict: Verdict | None = None


def with_updates(
    step: Lowered,
    groups: tuple[Optimizer | TorchOptimizer, ...],
    member: Mapping[str, int],
    rule: UpdateRule = _PLAIN,
) -> Updated:
    """Add an update for each gradient; `member` says which group a parameter belongs to."""
    return _Updating(step, groups, member, rule).run()


class _Updating:
    def __init__(
        self,
        step: Lowered,
        groups: tuple[Optimizer | TorchOptimizer, ...],
        member: Mapping[str, int],
        rule: UpdateRule,
    ) -> None:
        self.step, self.groups, self.member, self.rule = step, groups, member, rule
        self.tensors = list(step.tensors)
        self.learning_rates = tuple(
            self._scalar("learning rate" if n == 0 else f"learning rate {n}", "float64")
            for n in range(len(groups))
        )
        counts = any(group.counts_steps for group in groups)
        self.step_count = self._scalar("step count", "int64") if counts else None
        self.live = tuple(map(self._live_options, range(len(groups))))
        self.inverse: int | None = None
        if rule.is_scaled and not rule.gathers:
            self.inverse = self._scalar("inverse of the scale", "float32", 4)
        self.state: dict[str, dict[str, int]] = {}
        self.first_values: dict[str, dict[str, float]] = {}

    def run(self) -> Updated:
        step, rule = self.step, self.rule
        last_reader = {i: k for k, op in enumerate(step.ops) for i in op.inputs}
        maker = {i: k for k, op in enumerate(step.ops) for i in op.outputs}
        after: dict[int, list[Op]] = {}
        complete: dict[str, View] = {}
        place: dict[str, int] = {}
        for name, gradient in step.gradients.items():
            self._add_state(name)
            place[name] = maker.get(gradient.tensor, 0)
            if rule.keeps_gradients and (rule.gathers or rule.waits):
                op = self._gathering(name, gradient)
                after.setdefault(place[name], []).append(op)
                gradient = View(op.outputs[0], (), (), {"tensor": op.outputs[0]})
            complete[name] = gradient
            if not (rule.gathers or rule.waits):
                op = self._update(name, gradient, None)
                at = max(place[name], last_reader.get(step.parameters[name], 0))
                after.setdefault(at, []).append(op)
        joint = self._joint(complete)
        for name, op in joint.looks.items():
            after.setdefault(place[name], []).append(op)
        ops = [each for k, op in enumerate(step.ops) for each in (op, *after.get(k, ()))]
        if joint.verdict is not None:
            ops.append(joint.verdict.op)
            for name in sorted(complete, key=place.__getitem__, reverse=True):
                ops.append(self._update(name, complete[name], joint.verdict))
        return Updated(
            self.tensors, ops, self.state, self.learning_rates, self.step_count, self.live,
            self.first_values, self.inverse, joint.verdict,
        )  # fmt: skip

    def _joint(self, complete: Mapping[str, View]) -> Joint:
        """What waits for all gradients, in the order of their parameters."""
        if not self.rule.waits:
            return Joint({}, None)
        gradients = [
            (name, self.tensors[i], complete[name])
            for name, i in self.step.parameters.items()
            if name in complete
        ]
        return joint_of(self.tensors, gradients, self.rule, self.inverse)

    def _live_options(self, n: int) -> dict[str, int]:
        """Those of a group that are inputs of the step."""
        if not self.rule.has_live_options:
            return {}
        options = self.groups[n].options
        return {
            option: self._scalar(f"{option} {n}".removesuffix(" 0"), "float64")
            for option in ("momentum", "beta1", "beta2")
            if options.get(option) or (option != "momentum" and option in options)
        }

    def _add_state(self, name: str) -> None:
        """What is kept for a parameter from step to step."""
        parameter, group = self.tensors[self.step.parameters[name]], self.groups[self.member[name]]
        state = self.state[name] = {}
        first = {}
        if isinstance(group, TorchOptimizer):
            assert parameter.shape is not None
            for kept in group.keeps(parameter.shape):
                shape = kept.shape(parameter.shape)
                state[kept.name] = self._kept(name, kept.name, parameter, shape, group.scalar_dtype)
                first[kept.name] = group.first(kept)
        else:
            for each in group.state:
                state[each] = self._kept(name, each, parameter)
                first[each] = FIRST_MOMENTUM if each == "momentum_buffer" else 0.0
        if self.rule.keeps_gradients:
            state[GATHERED] = self._kept(name, GATHERED, parameter)
            first[GATHERED] = NOTHING
        self.first_values |= {name: first}

    def _kept(
        self,
        name: str,
        kept: str,
        parameter: Tensor,
        shape: tuple[int, ...] | None = None,
        scalar_dtype: str = "float32",
    ) -> int:
        about = msgspec.structs.replace(parameter, name=f"{name}.{kept}", role="optimizer_state")
        if shape is not None and shape != parameter.shape:
            dtype = parameter.dtype if shape else scalar_dtype
            nbytes = prod(shape) * ITEM_BYTES[dtype or ""]
            about = msgspec.structs.replace(
                about, shape=shape, dtype=dtype, nbytes=nbytes, strides=None
            )
        return self._add(about)

    def _gathering(self, name: str, gradient: View) -> Op:
        """Add a gradient to those before it."""
        old = self.state[name][GATHERED]
        becomes = old if self.rule.gathers else None  # else an update makes it nothing again
        new = self._add(msgspec.structs.replace(self.tensors[old], becomes=becomes))
        look = Seen(gradient)
        look.call(GATHER, {"total": {"tensor": old}, "gradient": look.result}, {"tensor": new})
        return Op(
            name=f"{name}.grad (gathered)",
            phase="update",
            inputs=tuple(dict.fromkeys((old, gradient.tensor))),
            outputs=(new,),
            in_place=(InPlace(output=new, input=old),),
            recomputable=False,
            values=tuple(look.values),
            calls=tuple(look.calls),
        )

    def _update(self, name: str, gradient: View, verdict: Verdict | None) -> Op:
        rule, group, n = self.rule, self.groups[self.member[name]], self.member[name]
        old, kept = self.step.parameters[name], dict(self.state[name])
        total = kept.pop(GATHERED, None)
        pairs = [(i, i) for i in (old, *kept.values())]
        look = Seen(gradient)
        inputs = [old, *kept.values(), gradient.tensor]
        if total is not None:
            pairs.append((gradient.tensor if rule.waits else total, total))
        made = [
            InPlace(
                output=self._add(msgspec.structs.replace(self.tensors[i], becomes=heir)), input=i
            )
            for i, heir in pairs
        ]
        results: list[JsonReference] = [{"tensor": pair.output} for pair in made]
        updated = results[: 1 + len(kept)]
        if total is not None and not rule.waits:
            inputs.append(total)
            gathered = {"total": {"tensor": total}, "gradient": look.result}
            look.call(GATHER, gathered, results[-1])
            look.result = results[-1]
        complete = look.result
        inputs += self._clip(look, self.tensors[old], verdict)
        rate = self.learning_rates[n]
        live = self.live[n]
        arguments: dict[str, Any] = {
            "parameter": {"tensor": old},
            **{each: {"tensor": i} for each, i in kept.items()},
            "gradient": look.result,
            "learning_rate": {"tensor": rate},
        }
        inputs += [rate, *live.values()]
        if group.counts_steps and self.step_count is not None:
            arguments["step"] = {"tensor": self.step_count}
            inputs.append(self.step_count)
        arguments |= group.options | {option: {"tensor": i} for option, i in live.items()}
        if verdict is not None and verdict.skip is not None:
            arguments["skip"] = {"tensor": verdict.skip}
            inputs.append(verdict.skip)
        look.calls.append(Call(kind=group.kind, arguments=arguments, results=tuple(updated)))
        if total is not None:
            look.call(CLEAR, {"total": complete}, results[-1])
        return Op(
            name=name,
            phase="update",
            inputs=tuple(dict.fromkeys(inputs)),
            outputs=tuple(pair.output for pair in made),
            in_place=tuple(made),
            recomputable=False,
            values=tuple(look.values),
            calls=tuple(look.calls),
        )

    def _clip(self, look: Seen, parameter: Tensor, verdict: Verdict | None) -> list[int]:
        """Unscale and clip a gradient, as torch does to all of them. Gives what that reads."""
        inputs = []
        if self.inverse is not None:
            inputs.append(self.inverse)
            look.make("aten.mul.Tensor", parameter, other={"tensor": self.inverse})
        if self.rule.clip_value is not None:
            most = self.rule.clip_value
            look.make("aten.clamp", parameter, min=-most, max=most)
        if verdict is not None and verdict.coefficient is not None:
            inputs.append(verdict.coefficient)
            look.make("aten.mul.Tensor", parameter, other={"tensor": verdict.coefficient})
        return inputs

    def _scalar(self, name: str, dtype: str, nbytes: int = 8) -> int:
        return self._add(Tensor(name=name, nbytes=nbytes, role="input", shape=(), dtype=dtype))

    def _add(self, tensor: Tensor) -> int:
        return _add(self.tensors, tensor)


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


def _add(tensors: list[Tensor], tensor: Tensor) -> int:
    tensors.append(tensor)
    return len(tensors) - 1
