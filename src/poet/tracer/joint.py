"""Joint: a model, an example and a loss become one functional graph of forward and backward.

AOT autograd traces and differentiates the step without running it. No op is decomposed: the joint
graph calls the very kernels that eager PyTorch calls, so that running it gives the same bits.
 Two things must be held off for that (`as_eager`): torch registers formulas
in Python that replace some kernels while it traces, among them dropout, interpolation and the
recurrent networks, and their results differ from eager's in the last bits.

The graph's inputs and outputs describe themselves (`meta["desc"]`). This module does not look at
its ops; `lowering` does.
"""

import contextlib
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.func import functional_call
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

from poet.errors import PoetError
from poet.tracer.operators import dropout_mask
from poet.tracer.trouble import explanation

MODEL = "model"
"""The name under which the user's module is known inside the step."""
_EAGER_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
# Their kernels write the running statistics without saying so; the stand-ins say it.
_HIDDEN_WRITES = ("native_batch_norm", "cudnn_batch_norm")
_tracing = threading.Lock()


class Example(NamedTuple):
    """An example in pieces: its tensors, and how they, and the constants, make it up again."""

    tensors: tuple[torch.Tensor, ...]
    constants: tuple[Any, ...]
    """One for each leaf: a constant, or None where a tensor goes."""
    is_tensor: tuple[bool, ...]
    spec: pytree.TreeSpec

    def rebuilt(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The example with other tensors in it."""
        given = iter(tensors)
        leaves = [
            next(given) if here else constant
            for here, constant in zip(self.is_tensor, self.constants, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)


class Traced(NamedTuple):
    """A joint graph, what its parameters and buffers are called in the step, and constants.

    Constants are the values of tensors that it reads though no module owns them.
    """

    module: torch.fx.GraphModule
    names: dict[str, str]
    constants: dict[str, torch.Tensor]


def take_apart(example: Any) -> Example:
    """Tensors and constants of an example: a tuple or list for positions, a dict for keywords."""
    if isinstance(example, torch.Tensor):
        example = (example,)
    elif isinstance(example, list):
        example = tuple(example)
    if not isinstance(example, tuple | dict) or not example:
        raise PoetError(
            "the example must be a tuple (*inputs, target), or a dict of keyword arguments for the "
            f"model; this one is {'empty' if not example else f'a {type(example).__name__}'}"
        )
    leaves, spec = pytree.tree_flatten(example)
    is_tensor = tuple(isinstance(leaf, torch.Tensor) for leaf in leaves)
    return Example(
        tensors=tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)),
        constants=tuple(None if here else x for here, x in zip(is_tensor, leaves, strict=True)),
        is_tensor=is_tensor,
        spec=spec,
    )


class Step(nn.Module):
    """Model and loss as one module from the example's tensors to the scalar loss."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        example: Example,
        autocast: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.example = example
        self.autocast = autocast
        self.in_loss = False

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        example = self.example.rebuilt(tensors)
        if self.autocast is None:
            return self._loss_of(example)
        kind = next((t.device.type for t in self.model.parameters()), "cpu")
        with torch.autocast(kind, self.autocast):
            return self._loss_of(example)

    def owned_parameters(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Each parameter as traced, as people know it, and itself; tied ones under every name."""
        for name, value in self.named_parameters(remove_duplicate=False):
            yield name, _known_name(name), value

    def owned_buffers(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        for name, value in self.named_buffers(remove_duplicate=False):
            yield name, _known_name(name), value

    def _loss_of(self, example: Any) -> torch.Tensor:
        if self.loss is None:
            made = self.model(**example) if isinstance(example, dict) else self.model(*example)
            return checked_loss(_own_loss(made), "the model")
        if isinstance(example, dict):
            raise PoetError(
                "a dict example goes to the model as keyword arguments, and its result must be the "
                "loss: give loss=None, or a tuple (*inputs, target)"
            )
        self.in_loss = False
        made = self.model(*example[:-1])
        self.in_loss = True
        return checked_loss(self.loss(made, example[-1]), "the loss")


def _known_name(traced: str) -> str:
    owner, _, name = traced.partition(".")
    return name if owner == MODEL else f"loss_fn.{name}"


def checked_loss(loss: Any, who: str) -> torch.Tensor:
    """The loss, if it is one: a floating-point tensor of one element with a gradient."""
    if not isinstance(loss, torch.Tensor):
        raise PoetError(
            f"{who} returned {_kind_text(loss)} instead of a scalar tensor. Give "
            "loss=a function of (model output, target), or return the loss from the model"
        )
    if loss.numel() != 1:
        raise PoetError(
            f"{who} returned a tensor of shape {list(loss.shape)}; training needs a scalar: reduce "
            'it with .mean() or .sum(), or use reduction="mean"'
        )
    if not loss.is_floating_point():
        raise PoetError(f"{who} returned {loss.dtype}; training needs a floating-point loss")
    if not loss.requires_grad:
        raise PoetError(
            f"what {who} returned depends on no trainable parameter: is something under "
            "torch.no_grad(), or detached?"
        )
    return loss


def _own_loss(made: Any) -> Any:
    """The loss in what a model returns: `.loss`, `["loss"]`, or the thing itself."""
    if isinstance(made, torch.Tensor):
        return made
    loss = made.get("loss") if isinstance(made, dict) else getattr(made, "loss", None)
    if loss is None and isinstance(made, tuple | list) and len(made) == 1:
        return made[0]
    return made if loss is None else loss


def _kind_text(thing: Any) -> str:
    if isinstance(thing, dict):
        return f"a {type(thing).__name__} with {', '.join(map(str, list(thing)[:6])) or 'nothing'}"
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}"
    return "nothing" if thing is None else f"a {type(thing).__name__}"


def trace(step: Step, tensors: tuple[torch.Tensor, ...], report: Callable[[str], None]) -> Traced:
    """The joint graph of a step. Anything that stands in the way becomes a PoetError.

    The step is differentiated as it runs. Where that fails, on a Python number taken from a tensor
    or a tensor that no module owns, it is exported first: `torch.export` copes with more, at the
    price of tracing what the model does when exported instead of what it does in eager mode.
    """
    # Two inputs that share memory would be traced as one; the trace is of shapes only.
    apart = tuple(tensor.clone() for tensor in tensors)
    with (
        _tracing,
        _quiet(),
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        as_eager(),
    ):
        failures: list[Exception] = []
        for way in (_as_it_runs, _as_exported):
            report("tracing" if way is _as_it_runs else "exporting")
            try:
                return way(step, apart)
            except PoetError as error:
                raise error from None
            except Exception as error:
                failures.append(error)
        raise explanation(failures, step, MODEL) from failures[-1]


def _as_it_runs(step: Step, tensors: tuple[torch.Tensor, ...]) -> Traced:
    return _joint(step, tensors, {})


def _as_exported(step: Step, tensors: tuple[torch.Tensor, ...]) -> Traced:
    exported, constants = _exported(step, tensors)
    return _joint(exported, tensors, constants)


class _Flat(nn.Module):
    """A step whose parameters and buffers lie side by side, each once, however often it is tied."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.traced_names: dict[str, str] = {}
        self._places: dict[str, str] = {}
        key_of: dict[int, str] = {}
        for path, module in step.named_modules():
            for attribute, value in (*module._parameters.items(), *module._buffers.items()):
                if value is None:
                    continue
                name = f"{path}.{attribute}".removeprefix(".")
                if id(value) not in key_of:
                    key_of[id(value)] = f"t{len(key_of)}"
                    self.traced_names[key_of[id(value)]] = name
                    if isinstance(value, nn.Parameter):
                        self.register_parameter(key_of[id(value)], value)
                    else:
                        self.register_buffer(key_of[id(value)], value)
                self._places[name] = key_of[id(value)]
        self._run = [step]  # in a list, so that it is not a submodule

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        given = {name: getattr(self, key) for name, key in self._places.items()}
        state = dict(given)
        loss: torch.Tensor = functional_call(self._run[0], state, tensors, tie_weights=False)
        for name, value in state.items():
            if value is not given[name]:  # the model put another tensor in a buffer's place
                given[name].copy_(value.detach())
        return loss


def _joint(
    module: nn.Module, tensors: tuple[torch.Tensor, ...], constants: dict[str, torch.Tensor]
) -> Traced:
    flat = _Flat(module)
    with contextlib.ExitStack() as stack, _module_paths(module):
        joint = aot_export_joint_with_descriptors(
            stack,
            flat,
            tensors,
            decompositions={},
            # The batch sizes and sequence lengths of the example hold for every step.
            ignore_shape_env=True,
        )
    made = joint.graph_module
    assert isinstance(made, torch.fx.GraphModule)
    return Traced(made, flat.traced_names, constants)


def _exported(
    step: Step, tensors: tuple[torch.Tensor, ...]
) -> tuple[torch.fx.GraphModule, dict[str, torch.Tensor]]:
    with _no_custom_functions():
        exported = torch.export.export(step, tensors, strict=False).module()
    assert isinstance(exported, torch.fx.GraphModule)
    owned = {**dict(exported.named_parameters()), **dict(exported.named_buffers())}
    constants: dict[str, torch.Tensor] = {}
    for node in exported.graph.find_nodes(op="get_attr"):
        path = str(node.target)
        if path in owned or path in constants:
            continue
        owner, _, name = path.rpartition(".")
        module = exported.get_submodule(owner)
        value = getattr(module, name)
        if isinstance(value, torch.Tensor):
            constants[path] = value
            delattr(module, name)
            module.register_buffer(name, value, persistent=False)
    return exported, constants


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's own complaints are kept back: what matters of them becomes one message."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _module_paths(step: nn.Module) -> Iterator[None]:
    """While this holds, traced calls remember the path and the kind of the module they are from."""
    if isinstance(step, torch.fx.GraphModule):
        yield  # it remembers already
        return
    entered: list[dict[str, tuple[str, type]]] = [{}]

    def enter(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, *_: Any) -> None:
            entered.append({**entered[-1], path: (path, type(module))})
            fx_traceback.current_meta["nn_module_stack"] = entered[-1]

        return hook

    def leave(*_: Any) -> None:
        entered.pop()
        fx_traceback.current_meta["nn_module_stack"] = entered[-1]

    hooks = []
    for path, module in step.named_modules():
        hooks.append(module.register_forward_pre_hook(enter(path)))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with fx_traceback.preserve_node_meta():
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _no_custom_functions() -> Iterator[None]:
    """An export would lose the backward pass of a custom autograd function: refuse that."""
    apply = torch.autograd.Function.__dict__["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise PoetError(
            f"the custom autograd function {cls.__qualname__} cannot be captured here: the model "
            "must be exported because it takes Python numbers from tensors or holds tensors that "
            "are neither parameters nor buffers, and an export loses custom backward passes. "
            "Remove those, or write the function with torch operations"
        )

    setattr(torch.autograd.Function, "apply", classmethod(refuse))  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", apply)  # noqa: B010


@contextlib.contextmanager
def as_eager() -> Iterator[None]:
    """While this holds, traces call what eager calls: torch's stand-ins in Python are set aside.

    Eager's CPU dropout is a formula in C++ that traces cannot enter, so it is written out here,
    with an operator for its mask: the functional form of `bernoulli_` draws in another order.
    """
    aside: list[tuple[torch._ops.OpOverload, dict[Any, Any]]] = []
    try:
        for op in _stand_ins():
            taken = {key: op.py_kernels.pop(key) for key in _EAGER_KEYS if key in op.py_kernels}
            aside.append((op, taken))
            if op is torch.ops.aten.dropout.default:
                fused = taken[torch._C.DispatchKey.Autograd]
                op.py_kernels.update(dict.fromkeys(taken, _dropout_like(fused)))
            op._dispatch_cache.clear()
        yield
    finally:
        for op, taken in aside:
            op.py_kernels.update(taken)
            op._dispatch_cache.clear()


def _stand_ins() -> Iterator[torch._ops.OpOverload]:
    for name in torch.ops.aten:
        if name in _HIDDEN_WRITES:
            continue
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if any(key in op.py_kernels for key in _EAGER_KEYS):
                yield op


def _dropout_like(fused: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if input.device.type != "cpu":
            return fused(input, p, train)
        if p == 0 or not train or input.numel() == 0:
            return input
        if p == 1:
            return input.mul(torch.zeros((), dtype=input.dtype))
        like = torch.empty_like(input)  # for its strides: draws follow the order in memory
        size, strides = list(like.shape), list(like.stride())
        mask: torch.Tensor = dropout_mask(size, strides, p, input.dtype)
        return input * mask

    return dropout
