"""Reentrant checkpoints: traced as the part that they run, in its place.

`checkpoint(part, x, use_reentrant=True)` runs a backward pass inside the backward pass, which has
no graph. Its values are those of the part itself, which is run in its place here; whether it is
recomputed is for the plan to say. As in eager PyTorch, nothing in it gets a gradient unless one of
the tensors it is given by position needs one.

Two things give other bits, or an error, in eager PyTorch, and are refused: a parameter that is
used outside of the part as well, whose gradients are added in another order; and a tensor that
needs a gradient and comes in by another way than by position. So are recurrent layers, whose
kernels differ where no gradient is wanted, as in the forward pass of such a checkpoint, and
checkpoints that do not keep the state of the random generator.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from poet.errors import PoetError
from poet.tracer.checkpoints import Parts

_WAY_OUT = (
    'Give use_reentrant=False (with transformers: gradient_checkpointing_kwargs={"use_reentrant": '
    "False}), or leave checkpoints out: POET recomputes what its plan says"
)


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Their kernels ask whether gradients are wanted: not in the forward pass of such a checkpoint."""


@contextlib.contextmanager
def reentrant_in_place(step: nn.Module, parts: Parts) -> Iterator[None]:
    """While this holds, a reentrant checkpoint in the step is the part that it runs."""
    before = checkpoint.CheckpointFunction
    with _Uses() as uses:
        hook = step.register_forward_pre_hook(lambda module, _: uses.start(module))
        checkpoint.CheckpointFunction = _InPlace(step, uses, parts)  # type: ignore[misc, assignment]
        try:
            yield
        finally:
            checkpoint.CheckpointFunction = before  # type: ignore[misc]
            hook.remove()


class _InPlace:
    """Stands for torch's function of that name while a step is traced."""

    def __init__(self, step: nn.Module, uses: "_Uses", parts: Parts) -> None:
        self._step, self._uses, self._parts = step, uses, parts

    def apply(self, part: Callable[..., Any], keeps_random_state: bool, *given: Any) -> Any:
        if not keeps_random_state:
            raise PoetError(
                "a reentrant checkpoint with preserve_rng_state=False draws other numbers when it "
                f"is run again. {_WAY_OUT}"
            )
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
        with (
            torch.set_grad_enabled(trains),
            self._uses.inside(tensors),
            self._parts.inside(self._step),
        ):
            return part(*given)


class _Uses(TorchFunctionMode):
    """Which tensors that need gradients are used in the parts of checkpoints, and which outside."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[_Part] = []
        """Those that run now, the innermost last."""
        self._parameters: dict[int, torch.Tensor] = {}
        """As they are in this pass of the trace, by id, and held, so that no id is used twice."""
        self._users: dict[int, _Part | None] = {}
        """Who used a parameter first."""

    def start(self, step: nn.Module) -> None:
        self._parameters = {id(each): each for each in step.parameters()}
        self._users = {}

    @contextlib.contextmanager
    def inside(self, given: list[torch.Tensor]) -> Iterator[None]:
        self._parts.append(_Part({id(each): each for each in given}))
        try:
            yield
        finally:
            part = self._parts.pop()
            if self._parts:
                self._parts[-1].known.update(part.known)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._parts:
            self._check(func)
        made = func(*args, **(kwargs or {}))
        results = [each for each in pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
        if any(each.requires_grad for each in results):
            for each in pytree.tree_leaves((args, kwargs)):
                if isinstance(each, torch.Tensor) and each.requires_grad:
                    self._use(each)
        if self._parts:
            self._parts[-1].known.update((id(each), each) for each in results)
        return made

    def _check(self, func: Any) -> None:
        name = getattr(func, "__name__", "")
        if name in _RECURRENT:
            raise PoetError(
                f"a recurrent layer ({name}) lies in a reentrant checkpoint, whose forward pass "
                f"may take another kernel in eager PyTorch. {_WAY_OUT}"
            )

    def _use(self, tensor: torch.Tensor) -> None:
        part = self._parts[-1] if self._parts else None
        if part is not None and id(tensor) in part.known:
            return
        if id(tensor) not in self._parameters:
            if part is not None:
                raise PoetError(
                    "a reentrant checkpoint uses a tensor that needs a gradient and is not among "
                    f"the arguments it is given by position. {_WAY_OUT}"
                )
            return
        if self._users.setdefault(id(tensor), part) is not part:
            raise PoetError(
                f"a parameter {list(tensor.shape)} is used in a reentrant checkpoint and outside "
                "of it as well: eager PyTorch adds its gradients in another order than a captured "
                f"step. {_WAY_OUT}"
            )


class _Part:
    """A part that runs."""

    def __init__(self, known: dict[int, torch.Tensor]) -> None:
        self.known = known
        """What it was given and has made, by id, held."""
