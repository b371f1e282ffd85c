"""Joint: a model, an example and a loss become one functional graph of forward and backward.

AOT autograd traces and differentiates the step without running it. No op is decomposed: the joint
graph calls the very kernels that eager PyTorch calls (`eager_kernels`), so that running it gives
the same bits.

A step that depends on the values of its tensors has no such graph, unless it can be exported. Where
these are of its batch, it has one for the batches that answer as the example does (`ways`).

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

from poet.errors import PoetError
from poet.tracer.alignments import Alignments
from poet.tracer.alike import alike
from poet.tracer.by_values import numbers_seen
from poet.tracer.certain_draws import CertainDraws
from poet.tracer.checkpoints import parts_of
from poet.tracer.constants import Known
from poet.tracer.eager_kernels import as_eager
from poet.tracer.effects import KeptLooks
from poet.tracer.failures import (
    CustomFunction,
    depends_on_values,
    explanation,
    is_decision,
    place,
)
from poet.tracer.own_checks import own_checks_kept
from poet.tracer.python_state import unchanged
from poet.tracer.reentrant import reentrant_in_place
from poet.tracer.shape_kernels import shapes_known
from poet.tracer.stand_ins import is_without_bytes
from poet.tracer.step import MODEL, Step
from poet.tracer.ways import Asked

_tracing = threading.Lock()
_here = threading.local()


class Traced(NamedTuple):
    """A joint graph, what its parameters and buffers are called in the step, and constants.

    Constants are the values of tensors that it reads though no module owns them; `read` are the
    addresses of their storages.
    """

    module: torch.fx.GraphModule
    names: dict[str, str]
    constants: dict[str, torch.Tensor]
    read: frozenset[int] = frozenset()
    left_behind: tuple[str, ...] = ()
    """Attributes in which the forward pass leaves tensors."""
    outside: tuple[str, ...] = ()
    """What the step asks the world for."""
    decided: str | None = None
    """Where the step decides by values, if it was exported for that."""
    asked: Asked | None = None
    """What it asks of its batch, if it was traced for the answers of the example."""


def trace(step: Step, report: Callable[[str], None]) -> Traced:
    """The joint graph of a step. Anything that stands in the way becomes a PoetError.

    The step is differentiated as it runs. Where that fails, on a Python number taken from a tensor
    or a tensor that no module owns, it is exported first: `torch.export` copes with more, at the
    price of tracing what the model does when exported instead of what it does in eager mode. What
    depends on the values of its batch even then is traced as it runs for those of the example.
    """
    apart = step.traced_tensors()
    with (
        _one_at_a_time(),
        _quiet(),
        unchanged(step) as traces,
        torch.enable_grad(),
        as_eager(),
        shapes_known(),
        KeptLooks(),
        own_checks_kept(),
        CertainDraws(),
    ):
        failures: list[Exception] = []
        for way, what in _WAYS.items():
            if way is _by_values and not (
                any(map(depends_on_values, failures)) and _has_values(step)
            ):
                break
            report(what)
            try:
                made = way(step, apart)
                settled = traces.settled(step)
                if settled:
                    report(f"tracing again, since the first pass sets {settled[0]}")
                    again = way(step, apart)
                traces.check(made.read)
                if settled and not alike(made, again):
                    raise PoetError(
                        f"the first forward pass sets {settled[0]}, and computes something else "
                        "than those after it. Run the model once before it is captured"
                    )
                return made._replace(
                    left_behind=traces.left_behind,
                    outside=traces.outside,
                    decided=next((place(e, step, MODEL) for e in failures if is_decision(e)), None)
                    if way is _as_exported
                    else None,
                )
            except PoetError as error:
                raise error from None
            except Exception as error:
                failures.append(error)
                traces.again()
        raise explanation(failures, step, MODEL) from failures[-1]


def is_tracing() -> bool:
    """Whether a step is being traced in this thread."""
    return getattr(_here, "is_tracing", False)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    with _tracing:
        _here.is_tracing = True
        try:
            yield
        finally:
            _here.is_tracing = False


def _as_it_runs(step: Step, tensors: tuple[torch.Tensor, ...]) -> Traced:
    return _run(step, tensors, Known(), Alignments())


def _by_values(step: Step, tensors: tuple[torch.Tensor, ...]) -> Traced:
    """For batches that answer what the step asks of them as the example does."""
    known = Known(step.example.tensors)
    with numbers_seen():
        made = _run(step, tensors, known, Alignments(selects=False))
    return made._replace(asked=known.asked.pruned())


def _run(
    step: Step, tensors: tuple[torch.Tensor, ...], known: Known, alignments: Alignments
) -> Traced:
    with (
        known,
        parts_of(step, step.ends_in_loss) as parts,
        reentrant_in_place(step, parts),
        alignments,  # last, so that nobody else sees what it selects
    ):
        made = _joint(step, tensors, {}, known)
        parts.check(made.module.graph)
        return made


def _has_values(step: Step) -> bool:
    return not any(map(is_without_bytes, step.example.tensors))


def _as_exported(step: Step, tensors: tuple[torch.Tensor, ...]) -> Traced:
    exported, constants, read = _exported(step, tensors)
    return _joint(exported, tensors, constants)._replace(read=read)


_WAYS = {_as_it_runs: "tracing", _as_exported: "exporting", _by_values: "tracing for its values"}
"""What is tried, in this order."""


class _Flat(nn.Module):
    """A step whose parameters and buffers lie side by side, each once, however often it is tied."""

    def __init__(self, step: nn.Module, known: Known | None = None) -> None:
        super().__init__()
        self._known = known
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
        if self._known is not None:
            self._known.start(tensors)
        loss: torch.Tensor = functional_call(self._run[0], state, tensors, tie_weights=False)
        for name, value in state.items():
            old = given[name]
            if value is old:
                continue
            if value.shape != old.shape or value.dtype != old.dtype:
                raise PoetError(
                    f"the model puts {value.dtype} {list(value.shape)} into its buffer "
                    f"{name.removeprefix(f'{MODEL}.')}, which is {old.dtype} {list(old.shape)}; "
                    "the next step would be another. Keep shape and dtype"
                )
            old.copy_(value.detach())  # the model put another tensor in the buffer's place
        return loss


def _joint(
    module: nn.Module,
    tensors: tuple[torch.Tensor, ...],
    constants: dict[str, torch.Tensor],
    known: Known | None = None,
) -> Traced:
    flat = _Flat(module, known)
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
) -> tuple[torch.fx.GraphModule, dict[str, torch.Tensor], frozenset[int]]:
    with _no_custom_functions(), parts_of(step, again=False), Alignments():
        exported = torch.export.export(step, tensors, strict=False).module()
    assert isinstance(exported, torch.fx.GraphModule)
    owned = {name for name, _ in exported.named_parameters(remove_duplicate=False)}
    owned |= {name for name, _ in exported.named_buffers(remove_duplicate=False)}
    constants: dict[str, torch.Tensor] = {}
    read = set()
    for node in exported.graph.find_nodes(op="get_attr"):
        path = str(node.target)
        if path in owned or path in constants:
            continue
        owner, _, name = path.rpartition(".")
        module = exported.get_submodule(owner)
        value = getattr(module, name)
        if isinstance(value, torch.Tensor):
            read.add(value.untyped_storage().data_ptr())
            constants[path] = value.detach().clone()  # dense, whatever it was a view of
            delattr(module, name)
            module.register_buffer(name, constants[path], persistent=False)
    return exported, constants, frozenset(read)


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
    """An export would lose the backward pass of a custom autograd function: end it there."""
    apply = torch.autograd.Function.__dict__["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise CustomFunction(cls.__qualname__)

    setattr(torch.autograd.Function, "apply", classmethod(refuse))  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", apply)  # noqa: B010
