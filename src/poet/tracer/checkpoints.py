"""Checkpoints: what a model's own ones do twice.

A part that runs under `torch.utils.checkpoint` runs again in the backward pass. Its values are the
same the second time, and a trace has them right. But what it writes to buffers it writes twice:
running statistics move two steps where a trace has seen one. Such parts are refused.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils import checkpoint

from poet.errors import PoetError
from poet.tracer.step import MODEL


@contextlib.contextmanager
def no_writes_in_checkpoints(step: nn.Module) -> Iterator[None]:
    """While this holds, a module that writes to its buffers inside a checkpoint is an error."""
    hooks = []
    for path, module in step.named_modules():
        if module._buffers:
            watch = _Watch(path.removeprefix(f"{MODEL}."))
            hooks.append(module.register_forward_pre_hook(watch.enter))
            hooks.append(module.register_forward_hook(watch.leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Watch:
    """The counts of writes to a module's buffers, from when it is called until it returns."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._versions: list[int] | None = None

    def enter(self, module: nn.Module, _: Any) -> None:
        self._versions = _versions(module) if _is_checkpointed() else None

    def leave(self, module: nn.Module, *_: Any) -> None:
        if self._versions is None:
            return
        # A kernel that writes running statistics need not count that.
        statistics = module.training and getattr(module, "track_running_stats", False)
        if statistics or _versions(module) != self._versions:
            raise PoetError(
                f"{self._name} writes to its buffers inside a checkpoint, which eager PyTorch does "
                "again when it recomputes; a captured step would do it once. Leave the checkpoint "
                "out (POET recomputes what its plan says), or keep the module out of it"
            )


def _versions(module: nn.Module) -> list[int]:
    return [buffer._version for buffer in module._buffers.values() if buffer is not None]


def _is_checkpointed() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
