"""Checkpoints: what a model's own ones do twice.

A part that runs under `torch.utils.checkpoint` runs again in the backward pass. Its values are the
same the second time, and a trace, in which it runs once, has them right. But what it writes to
buffers eager PyTorch writes twice. Where that is batch statistics, the step has the second write as
well: the same call once more, behind the forward pass, for its statistics alone.

That is what eager PyTorch does if the part is recomputed exactly once, up to the call at least, and
nobody else writes the same statistics when it is. What is not sure to be so is refused, as is any
other write to a buffer: what is read from it would be another value the second time.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from poet.errors import PoetError
from poet.tracer.nodes import GETITEM, is_random
from poet.tracer.step import known_name

_WAY_OUT = (
    "Leave the checkpoint out (POET recomputes what its plan says), or keep the module out of it"
)
_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default


class _Seen(NamedTuple):
    """A tensor, and its version when it was read."""

    tensor: torch.Tensor
    version: int

    @property
    def is_changed(self) -> bool:
        return self.tensor._version != self.version


class _Write(NamedTuple):
    """A call that moves statistics on, what it made and was given, or a count of such calls."""

    again: Callable[[], Any]
    made: torch.Tensor | None = None
    given: _Seen | None = None


class Parts(TorchFunctionMode):
    """The parts of a step that run under checkpoints, and what they write to its buffers.

    `again` says whether the step can have the second writes: where it ends in the model's outputs,
    they would come before anybody asks for a backward pass.
    """

    def __init__(self, again: bool) -> None:
        super().__init__()
        self._again = again
        self._depth = 0
        self._buffers: dict[int, str] = {}
        self._writes: dict[int, list[_Write]] = {}
        """Those of parts, by the buffer."""
        self._counts: Counter[int] = Counter()
        self._reads: dict[int, _Seen] = {}
        """Buffers that parts have read, when they did so first."""
        self._open: list[torch.Tensor] = []
        """Counts that were written for a call yet to come."""
        self.norms = 0
        """How many calls the step has twice."""

    def start(self, step: nn.Module) -> None:
        """A pass of the trace begins."""
        self._buffers = {id(each): known_name(name) for name, each in step.named_buffers()}
        self._writes, self._counts, self._reads = {}, Counter(), {}
        self._open, self.norms = [], 0

    @contextlib.contextmanager
    def inside(self, step: nn.Module, keeps_random_state: bool = True) -> Iterator[None]:
        """While this holds, a part runs."""
        buffers = dict(step.named_buffers())
        before = {name: each._version for name, each in buffers.items()}
        counted = self._counts.copy()
        self._depth += 1
        drawn = _draws()
        try:
            yield
        finally:
            self._depth -= 1
        if not keeps_random_state and _draws() > drawn:
            raise PoetError(
                "a checkpoint with preserve_rng_state=False draws other numbers when it is run "
                "again. Leave that out, or the checkpoint: POET recomputes what its plan says"
            )
        now = dict(step.named_buffers())
        for name, each in buffers.items():
            written = self._counts[id(each)] - counted[id(each)]
            # A kernel that writes running statistics need not count that.
            is_other = each._version - before[name] > written or now.get(name) is not each
            is_open = any(each is count for count in self._open)
            if is_other or is_open or (written and not self._can_repeat):
                self._refuse(known_name(name), "which eager PyTorch does again when it recomputes")

    @property
    def _can_repeat(self) -> bool:
        return self._again and self._depth == 0

    def _refuse(self, name: str, why: str) -> None:
        raise PoetError(f"{name} is written inside a checkpoint, {why}. {_WAY_OUT}")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._depth and func is functional.batch_norm:
            return self._normalized(*args, **kwargs)
        made = func(*args, **kwargs)
        if not self._depth:
            return made
        if func is torch.Tensor.add_ and not any(map(_is_tensor, (*args[1:], *kwargs.values()))):
            self._note(args[0], _Write(lambda: func(*args, **kwargs)))
            self._open.append(args[0])
        elif getattr(func, "__name__", "") != "__get__" or _is_tensor(
            made
        ):  # else it asks for a size
            self._read(pytree.tree_leaves((args, kwargs)))
        return made

    def _read(self, things: Iterable[Any]) -> None:
        for each in things:
            if id(each) in self._buffers:
                self._reads.setdefault(id(each), _Seen(each, each._version))

    def _normalized(
        self,
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        def call() -> torch.Tensor:
            return functional.batch_norm(
                input, running_mean, running_var, weight, bias, training, momentum, eps
            )

        made = call()
        if not training:
            self._read((running_mean, running_var))
        elif running_mean is not None and running_var is not None:
            self._note(running_mean, _Write(call, made, _Seen(input, input._version)))
            self._counts[id(running_var)] += 1
            self._open.clear()
        return made

    def _note(self, buffer: torch.Tensor, write: _Write) -> None:
        if id(buffer) in self._buffers:
            self._counts[id(buffer)] += 1
            self._writes.setdefault(id(buffer), []).append(write)

    def write_again(self) -> None:
        """Behind the forward pass: what the recomputations of the backward pass write."""
        for buffer in self._counts.keys() & self._reads.keys():
            self._refuse(self._buffers[buffer], "and read there, as another value the second time")
        for buffer, seen in self._reads.items():
            if seen.is_changed:
                raise PoetError(
                    f"{self._buffers[buffer]} is changed after a checkpoint has read it, which "
                    f"reads another value when it is recomputed. {_WAY_OUT}"
                )
        for buffer, (write, *others) in self._writes.items():
            name = self._buffers[buffer]
            if others:
                self._refuse(name, "by two calls, in an order that the backward pass decides")
            if write.made is not None and not write.made.requires_grad:
                self._refuse(name, "where no gradient is wanted: it may run once or twice")
            if write.given is not None and write.given.is_changed:
                self._refuse(name, "from a tensor that is changed in place afterwards")
            self.norms += write.made is not None
            with torch.no_grad():
                write.again()

    def check(self, graph: torch.fx.Graph) -> None:
        """Refuse a step whose backward pass does not come to a part that it should run again."""
        first = [_first_of(node) for node in graph.nodes if node.target is _NORM]
        twice = [node for node in first if node is not None and _is_differentiated(node)]
        if len(twice) != self.norms:
            raise PoetError(
                "a checkpoint writes batch statistics and is not recomputed in the backward pass, "
                f"since no gradient comes through it. {_WAY_OUT}"
            )


@contextlib.contextmanager
def parts_of(step: nn.Module, again: bool) -> Iterator[Parts]:
    """While this holds, it is known what the checkpoints of a step write."""
    before = checkpoint._checkpoint_without_reentrant_generator
    parts = Parts(again)

    def generator(function: Any, keeps_random_state: bool, *rest: Any, **named: Any) -> Any:
        with parts.inside(step, keeps_random_state):
            yield from before(function, keeps_random_state, *rest, **named)

    hooks = (
        step.register_forward_pre_hook(lambda module, _: parts.start(module)),
        step.register_forward_hook(lambda *_: parts.write_again()),
    )
    checkpoint._checkpoint_without_reentrant_generator = generator  # type: ignore[assignment]
    try:
        with parts:
            yield parts
    finally:
        checkpoint._checkpoint_without_reentrant_generator = before
        for hook in hooks:
            hook.remove()


def _is_tensor(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor)


def _draws() -> int:
    """How many calls have drawn random numbers so far, in a pass that is recorded."""
    mode = get_proxy_mode()
    return 0 if mode is None else sum(map(is_random, mode.tracer.graph.nodes))


def _first_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """The call whose new statistics this one moves on, for the same input."""
    source = node.args[3]
    if not isinstance(source, torch.fx.Node) or source.target is not GETITEM:
        return None
    first = source.args[0]
    assert isinstance(first, torch.fx.Node)
    return first if first.target is _NORM and first.args[0] is node.args[0] else None


def _is_differentiated(node: torch.fx.Node) -> bool:
    return any(
        reader.target is _NORM_BACKWARD and item.args[1] == 1
        for item in node.users
        for reader in item.users
    )
