"""Fitting: whether a layout that was kept can be the step of this model.

A capture's key stands for all that the layout depends on, so one that was found under it fits. This
is looked at all the same, before a layout is joined with a model: names, shapes and element types,
and that every call has an operator with such arguments.
"""

from poet.calls.operands import row_major
from poet.errors import PoetError
from poet.tracer.arguments import dtype_named, dtype_text, function_of
from poet.tracer.layout import TANGENT, Layout
from poet.tracer.step import Step
from poet.values.graph import Graph, Tensor
from poet.values.torch_optimizers import OWN_SHAPES

LIBRARIES = ("aten", "poet")
"""Whose operators a kept graph may call: a key does not stand for the code of others."""


def misfit(layout: Layout, step: Step, groups: int) -> str | None:
    """Why the layout cannot be this step with so many parameter groups; None where it can."""
    try:
        _check_calls(layout.graph)
        _check_tensors(layout, step)
    except PoetError as error:
        return str(error)
    if len(layout.learning_rates) != groups:
        return f"it has {len(layout.learning_rates)} learning rates, not {groups}"
    return None


def _check_calls(graph: Graph) -> None:
    for k, op in enumerate(graph.ops):
        if not op.calls:
            raise PoetError(f"{graph.op_text(k)} has no calls")
        for call in op.calls:
            if call.kind.partition(".")[0] not in LIBRARIES:
                raise PoetError(f"{graph.op_text(k)} calls {call.kind}")
            if call.kind != TANGENT:
                function_of(call)


def _check_tensors(layout: Layout, step: Step) -> None:
    graph = layout.graph
    parameters = {known: value for _, known, value in step.owned_parameters()}
    buffers = {known: value for _, known, value in step.owned_buffers()}
    inputs = dict(enumerate(step.example.tensors))
    for i, value in (
        *((i, parameters.get(name)) for name, i in layout.parameters.items()),
        *((i, buffers.get(name)) for name, i in layout.buffers.items()),
        *((i, inputs.get(place)) for place, i in layout.inputs.items()),
        *(
            (i, parameters.get(n))
            for n, held in layout.state.items()
            for kept, i in held.items()
            if kept not in OWN_SHAPES
        ),
    ):
        about = graph.tensors[i]
        if value is None or (about.shape, about.dtype, about.nbytes) != (
            tuple(value.shape), dtype_text(value.dtype), value.untyped_storage().nbytes(),
        ):  # fmt: skip
            raise PoetError(f"{graph.tensor_text(i)} is not the model's")
    for name in (*layout.gradients, *layout.member, *layout.state):
        if name not in parameters:
            raise PoetError(f"the model has no parameter {name}")
    for name, held in layout.state.items():
        for kept, i in held.items():
            shape, about = tuple(parameters[name].shape), graph.tensors[i]
            if kept in OWN_SHAPES and about.shape != OWN_SHAPES[kept](shape):
                raise PoetError(f"{graph.tensor_text(i)} is not as its optimizer has it")
    for i, tensor in enumerate(graph.tensors):
        if _covered_bytes(tensor) > tensor.nbytes:
            raise PoetError(f"{graph.tensor_text(i)} is larger than its {tensor.nbytes} bytes")


def _covered_bytes(tensor: Tensor) -> int:
    """The bytes from the first element of a tensor to its last."""
    assert tensor.shape is not None  # a layout sees to that
    strides = row_major(tensor.shape) if tensor.strides is None else tensor.strides
    if len(strides) != len(tensor.shape) or min(strides, default=0) < 0:
        raise PoetError(f"{tensor.name} has {len(strides)} strides for {len(tensor.shape)} extents")
    if 0 in tensor.shape:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, strides, strict=True))
    return (last + 1) * dtype_named(tensor.dtype).itemsize
