"""Lowering: the joint graph of torch becomes a Graph, one op for each kernel that runs.

A storage is a tensor. Views own nothing: each op that reads a view repeats the calls that make it,
starting from the storage's own tensor, so that views cost nothing and keep nothing alive. Items of
a call with several results, detaches and other bookkeeping disappear the same way. What a call
makes and nobody reads is an inner value, which takes RAM only while the op runs.

Parameters, buffers, constants and inputs are the tensors that exist when the step starts. A buffer
that the step changes (BatchNorm's statistics) is written to a new tensor that `becomes` the old one
at the next step: the op that does so reads the old value and leaves it alone, so it can run again
and gives the same bits. The gradient of the loss, 1, is an op of its own.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)

from poet.errors import PoetError
from poet.tracer.answers import answers_of
from poet.tracer.arguments import dtype_text, encode
from poet.tracer.building import OpBuilder
from poet.tracer.handing import handed_in, leave_out_copies, piece_of, whole
from poet.tracer.layout import TANGENT, Piece
from poet.tracer.lowered import FIRST, Lowered, Names, View
from poet.tracer.nodes import (
    GETITEM,
    Node,
    backward_nodes,
    check_dense,
    check_dtypes,
    is_check,
    is_random,
    needed,
    op_name,
    state_bytes,
    storage_of,
    strides_of,
)
from poet.tracer.true_results import exactly, true_results
from poet.values.graph import Call, JsonReference, Op, Phase, Role, Tensor


def lower(module: torch.fx.GraphModule, names: "Names", ends_in_loss: bool = True) -> Lowered:
    """The step that a joint graph describes.

    Its backward pass starts from 1, the gradient of the loss, or, where the step ends in the
    model's outputs, from gradients that the caller hands in.
    """
    if not ends_in_loss:
        leave_out_copies(module.graph)
    return _Lowering(module, names, ends_in_loss).run()


class _Lowering:
    def __init__(
        self, module: torch.fx.GraphModule, names: Names, ends_in_loss: bool = True
    ) -> None:
        self.module = module
        self.names = names
        self.ends_in_loss = ends_in_loss
        self.nodes = list(module.graph.nodes)
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.base: list[Node] = []
        self.step = Lowered(self.tensors, self.ops, {}, {}, {}, {}, (), (), {}, {}, {})
        self._of_storage: dict[int, int] = {}
        self._backward = backward_nodes(self.nodes)
        self._used = needed(self.nodes)
        self._first: list[Op] = []

    def run(self) -> Lowered:
        for node in self.nodes:
            if node.op == "placeholder":
                self._given(node)
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function" and node in self._used:
                self._call(node)
        return self._outputs(self.nodes[-1])

    def tensor_of(self, node: Node) -> int:
        return self._of_storage[storage_of(node.meta["val"])]

    def _tensor(self, node: Node, name: str, role: Role, made: torch.Tensor | None = None) -> int:
        made = node.meta["val"] if made is None else made
        i = len(self.tensors)
        self.tensors.append(
            Tensor(
                name=name,
                nbytes=made.untyped_storage().nbytes(),
                role=role,
                shape=tuple(made.shape),
                dtype=dtype_text(made.dtype),
                strides=strides_of(made),
            )
        )
        self.base.append(node)
        self._of_storage[storage_of(node.meta["val"])] = i
        return i

    def _given(self, node: Node) -> None:
        about = node.meta["desc"]
        if isinstance(about, TangentAOTInput):
            self._first_gradient(node)
            return
        made = node.meta.get("val")
        if not isinstance(made, torch.Tensor):
            return
        check_dense(made, self.names.owned.get(getattr(about, "target", ""), "an input"))
        if storage_of(node.meta["val"]) in self._of_storage:
            other = self.tensors[self.tensor_of(node)].name
            name = self.names.owned.get(getattr(about, "target", ""), node.name)
            raise PoetError(
                f"{other} and {name} are views of one storage: POET needs each parameter and "
                "buffer in its own. Give them separate tensors"
            )
        if isinstance(about, ParamAOTInput):
            name = self.names.owned[about.target]
            self.step.parameters[name] = self._tensor(node, name, "parameter")
        elif isinstance(about, BufferAOTInput) and about.target in self.names.constants:
            i = self._tensor(node, f"constant {about.target}", "buffer")
            self.step.constants[i] = self.names.constants[about.target]
        elif isinstance(about, BufferAOTInput):
            name = self.names.owned[about.target]
            self.step.buffers[name] = self._tensor(node, name, "buffer")
        elif isinstance(about, PlainAOTInput):
            if node.users:
                self.step.inputs[about.idx] = self._tensor(node, f"input {about.idx}", "input")
        else:
            raise PoetError(f"the step has an input that POET does not know: {about}")

    def _constant(self, node: Node) -> None:
        value = getattr(self.module, str(node.target))
        if not isinstance(value, torch.Tensor):
            raise PoetError(f"the step holds {node.target}, a {type(value).__name__}")
        node.meta.setdefault("val", value)
        self.step.constants[self._tensor(node, f"constant {node.target}", "buffer")] = value

    def _first_gradient(self, node: Node) -> None:
        """Where the backward pass starts: an op that runs then, though its placeholder is first."""
        made, about = node.meta["val"], node.meta["desc"]
        if not self.ends_in_loss:
            name = f"the gradient of output {about.output.idx}"
            self.step.tangents[about.output.idx] = self._tensor(node, name, "input")
            self._first = [handed_in(self.step.tangents)]
            return
        i = self._tensor(node, FIRST, "gradient")
        arguments = {
            "size": list(made.shape),
            "fill_value": 1,
            "dtype": {"dtype": dtype_text(made.dtype)},
            "device": {"device": str(made.device)},
        }
        call = Call(kind="aten.full", arguments=arguments, results=({"tensor": i},))
        self._first = [Op(name=FIRST, phase="backward", outputs=(i,), calls=(call,))]

    def _starts(self) -> list[Op]:
        """The op that starts the backward pass, once."""
        return [self._first.pop()] if self._first else []

    def _wait_for(self, behind: Iterable[int]) -> None:
        """Gradients that the caller hands in come when all that is handed out is there."""
        for k, op in enumerate(self.ops):
            if op.calls[0].kind == TANGENT:
                self.ops[k] = msgspec.structs.replace(op, inputs=tuple(sorted(set(behind))))

    def _call(self, node: Node) -> None:
        if node.target is GETITEM:
            return
        made = node.meta.get("val")
        results = list(made) if isinstance(made, list | tuple) else [made]
        tensors = [item for item in results if isinstance(item, torch.Tensor)]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise PoetError(
                f"{op_name(node)}: POET cannot keep {node.target}, which is no operator but a "
                "piece of Python or a region with rules of its own"
            )
        for item in tensors:
            check_dense(item, op_name(node))
        if not tensors:
            return  # a size, an assertion: already true of the shapes at hand
        known = [storage_of(item) in self._of_storage for item in tensors]
        if all(known):
            return  # a view: whoever reads it repeats it
        if any(known):
            raise PoetError(f"{op_name(node)}: {node.target} returns both new tensors and views")
        self._op(node, results, self._readers(node))

    def _readers(self, node: Node) -> dict[int, Node]:
        """For a call with several results, the node that takes each; for one result, the call."""
        if not isinstance(node.meta["val"], list | tuple):
            return {0: node} if node.users or is_random(node) or is_check(node) else {}
        return {int(user.args[1]): user for user in node.users if user.target is GETITEM}  # type: ignore[arg-type]

    def _op(self, node: Node, results: list[Any], readers: dict[int, Node]) -> None:
        check_dtypes(node)
        builder = OpBuilder(self)
        arguments = builder.arguments(node)
        phase: Phase = "backward" if node in self._backward else "forward"
        role: Role = "gradient" if phase == "backward" else "activation"
        name = op_name(node)
        outputs: list[int] = []
        references: list[JsonReference | None] = []
        for place, (item, real) in enumerate(zip(results, true_results(node), strict=True)):
            if not isinstance(item, torch.Tensor):
                references.append(None)
            elif place in readers and (readers[place] in self._used):
                label = name if len(results) == 1 else f"{name}.{place}"
                outputs.append(self._tensor(readers[place], label, role, exactly(real)))
                references.append(builder.result(outputs[-1], real))
            else:
                references.append(builder.value(real))
        if not outputs:
            return
        builder.add(node, arguments, tuple(references))
        if phase == "backward":
            self.ops += self._starts()
        self.ops.append(
            Op(
                name=name,
                phase=phase,
                inputs=tuple(i for i in builder.inputs if i not in outputs),
                outputs=tuple(outputs),
                random_state_bytes=state_bytes(self.base[outputs[0]]) if is_random(node) else 0,
                values=tuple(builder.values),
                calls=tuple(builder.calls),
            )
        )

    def _outputs(self, output: Node) -> Lowered:
        """Roles and names of what the step is for: the loss, new buffers, gradients."""
        outputs: dict[int, int] = {}
        pieces: dict[int, Piece] = {}
        self.ops += self._starts()  # there still, if every gradient is the loss's own
        if self.ends_in_loss:
            for i, answers in answers_of(self.nodes, self._backward, self.tensor_of).items():
                self.tensors[i] = msgspec.structs.replace(self.tensors[i], answers=answers)
        for node, about in zip(output.args[0], output.meta["desc"], strict=True):  # type: ignore[arg-type]
            if isinstance(about, PlainAOTOutput) and self.ends_in_loss:
                outputs[about.idx] = self._owned(node, "loss", "output")
            elif isinstance(about, PlainAOTOutput):
                pieces[about.idx] = self._handed_out(node, about.idx)
                outputs[about.idx] = pieces[about.idx].tensor
            elif isinstance(about, InputMutationAOTOutput):
                self._changed(node, about.mutated_input)
            elif isinstance(about, GradAOTOutput) and isinstance(about.grad_of, ParamAOTInput):
                name = self.names.owned[about.grad_of.target]
                if node is not None:  # else the optimizer leaves it alone, as eager's does
                    self.step.gradients[name] = self._gradient(node, name)
            elif isinstance(about, GradAOTOutput) and isinstance(about.grad_of, PlainAOTInput):
                if node is not None:
                    place = about.grad_of.idx
                    self.step.input_gradients[place] = self._input_gradient(node, place)
            elif node is not None:
                raise PoetError(f"the step has an output that POET does not know: {about}")
        if not self.step.gradients and not self.step.input_gradients:
            raise PoetError("no parameter gets a gradient: there is nothing to train")
        if not self.ends_in_loss:
            changed = (i for i, tensor in enumerate(self.tensors) if tensor.becomes is not None)
            self._wait_for((*outputs.values(), *changed))
        return self.step._replace(
            outputs=tuple(outputs[place] for place in sorted(outputs)),
            pieces=tuple(pieces[place] for place in sorted(pieces)),
        )

    def _handed_out(self, node: Node, place: int) -> Piece:
        """An output as the model returns it, whatever storage it is a piece of."""
        i = self.tensor_of(node)
        about, name = self.tensors[i], f"output {place}"
        if not self._made_by_op(i) or about.role == "buffer":
            raise PoetError(
                f"{name} of the model is a view of {about.name}, and a change of either would "
                "change the other: return a copy, made with .clone()"
            )
        self.tensors[i] = msgspec.structs.replace(about, name=name, role="output")
        return piece_of(i, node.meta["val"], name)

    def _input_gradient(self, node: Node, place: int) -> Piece:
        """The gradient of an input, in a storage that nobody else is given."""
        i, name = self.tensor_of(node), f"gradient of input {place}"
        if self._made_by_op(i) and self.tensors[i].role == "gradient":
            self.tensors[i] = msgspec.structs.replace(self.tensors[i], name=name, role="output")
            return piece_of(i, node.meta["val"], name)
        builder = OpBuilder(self)
        i = self._copy(builder, builder.reference(node), node, name, "output")
        return whole(i, self.tensors[i])

    def _changed(self, node: Node, about: Any) -> None:
        if isinstance(about, PlainAOTInput):
            raise PoetError(
                f"the forward pass changes its input number {about.idx} in place, which a captured "
                "step would do to a copy. Let the model change a copy of its own: x = x.clone()"
            )
        if not isinstance(about, BufferAOTInput):
            name = self.names.owned.get(getattr(about, "target", ""), str(about))
            raise PoetError(
                f"the model changes its parameter {name} in the forward pass; POET changes "
                "parameters in updates only. Do it outside the step"
            )
        if about.target in self.names.constants:
            raise PoetError(
                "the model changes a tensor in the forward pass that is neither a parameter nor a "
                "buffer, so the next step would not see it. Make it a buffer with register_buffer"
            )
        name = self.names.owned[about.target]
        old = self.step.buffers[name]
        new = self._owned(node, name, "buffer")
        if self.tensors[new].strides != self.tensors[old].strides and not self.ends_in_loss:
            raise PoetError(
                f"the model changes the order of the elements of its buffer {name} in memory. Let "
                "it copy_() the new value into the buffer"
            )
        self.tensors[new] = msgspec.structs.replace(
            self.tensors[new], name=name, role="buffer", becomes=old
        )

    def _owned(self, node: Node, name: str, role: Role) -> int:
        """The tensor of an output, which must have its storage to itself; else a copy of it."""
        i = self.tensor_of(node)
        taken = self.tensors[i].role not in ("activation", "gradient")
        if self.base[i] is node and not taken and self._made_by_op(i):
            self.tensors[i] = msgspec.structs.replace(self.tensors[i], name=name, role=role)
            return i
        builder = OpBuilder(self)
        return self._copy(builder, builder.reference(node), node, name, role)

    def _made_by_op(self, i: int) -> bool:
        return self.base[i].op == "call_function"

    def _gradient(self, node: Node, name: str) -> View:
        """A gradient, laid out as eager accumulates it: like its parameter."""
        parameter = self.base[self.step.parameters[name]].meta["val"]
        made = node.meta["val"]
        builder = OpBuilder(self)
        reference = builder.reference(node)
        i = self.tensor_of(node)
        if made.stride() != parameter.stride() or made.shape != parameter.shape:
            i = self._copy(builder, reference, node, f"{name}.grad", "gradient", parameter)
            return View(i, (), (), {"tensor": i})
        if self.tensors[i].role == "gradient" and self.base[i].op == "call_function":
            self.tensors[i] = msgspec.structs.replace(self.tensors[i], name=f"{name}.grad")
        return View(i, tuple(builder.calls), tuple(builder.values), reference)

    def _copy(
        self,
        builder: OpBuilder,
        source: JsonReference,
        node: Node,
        name: str,
        role: Role,
        like: torch.Tensor | None = None,
    ) -> int:
        made: torch.Tensor = node.meta["val"]
        like = made if like is None else like
        form = torch.contiguous_format
        if not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last):
            form = torch.channels_last
        i = len(self.tensors)
        self.tensors.append(
            Tensor(
                name=name,
                nbytes=made.numel() * made.element_size(),
                role=role,
                shape=tuple(made.shape),
                dtype=dtype_text(made.dtype),
                strides=None if form is torch.contiguous_format else tuple(like.stride()),
            )
        )
        self.base.append(node)
        arguments = {"self": source, "memory_format": encode(form, builder.reference)}
        copy = Call(kind="aten.clone", arguments=arguments, results=({"tensor": i},))
        phase: Phase = "backward" if node in self._backward else "forward"
        makers = [
            k for k, op in enumerate(self.ops) if not builder.inputs.keys().isdisjoint(op.outputs)
        ]
        self.ops.insert(
            max(makers, default=-1 if phase == "forward" else len(self.ops) - 1) + 1,
            Op(
                name=f"{name} (copy)",
                phase=phase,
                inputs=tuple(builder.inputs),
                outputs=(i,),
                values=tuple(builder.values),
                calls=(*builder.calls, copy),
            ),
        )
        return i
