"""How many bytes of storages are really alive: watched from outside, at every call."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts a storage from the call that makes it until the last tensor that uses it is gone."""

    def __init__(self, given: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.held: dict[int, weakref.ref[torch.Tensor]] = {}
        self.live_bytes = 0
        self.peak_bytes = 0
        for tensor in given:
            self._watch(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._watch(tensor)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return made

    def _watch(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self.held and self.held[id(tensor)]() is tensor:
            return
        storage = tensor.untyped_storage()._cdata
        if storage not in self.alive:
            self.alive[storage] = tensor.untyped_storage().nbytes()
            self.live_bytes += self.alive[storage]
            self.users[storage] = 0
        self.users[storage] += 1
        me = id(tensor)

        def gone(_: Any) -> None:
            self.held.pop(me, None)
            self.users[storage] -= 1
            if not self.users[storage]:
                self.live_bytes -= self.alive.pop(storage)

        self.held[me] = weakref.ref(tensor, gone)
