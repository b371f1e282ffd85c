"""POET: train neural networks in little memory, at the least energy, with exactly the same
gradients.

The public names, nothing else. Importing this imports neither torch nor a solver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from poet.capturing import capture
from poet.comparisons import compare
from poet.device import Costs, Device, Run, Stream, Transfer
from poet.devices import find_device
from poet.errors import PoetError, PoetWarning
from poet.files import read_json, write_json
from poet.graph import Call, Graph, InPlace, Op, Tensor, Value
from poet.instances import Instance, read_instance
from poet.optimizers import SGD, Adam, AdamW
from poet.planning import plan
from poet.profiles import Profile
from poet.referee import check
from poet.schedule import Budget, Compute, Free, PageIn, PageOut, Plan, Schedule, places
from poet.verdict import Report, Violation
from poet.version import __version__

if TYPE_CHECKING:
    from poet.emitting import emit
    from poet.profiling.measuring import profile
    from poet.runtime.file_store import FileStore
    from poet.runtime.memory_store import MemoryStore
    from poet.training import Trainer, wrap

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Budget",
    "Call",
    "Compute",
    "Costs",
    "Device",
    "FileStore",
    "Free",
    "Graph",
    "InPlace",
    "Instance",
    "MemoryStore",
    "Op",
    "PageIn",
    "PageOut",
    "Plan",
    "PoetError",
    "PoetWarning",
    "Profile",
    "Report",
    "Run",
    "Schedule",
    "Stream",
    "Tensor",
    "Trainer",
    "Transfer",
    "Value",
    "Violation",
    "__version__",
    "capture",
    "check",
    "compare",
    "emit",
    "find_device",
    "places",
    "plan",
    "profile",
    "read_instance",
    "read_json",
    "wrap",
    "write_json",
]


_LATE = {
    "FileStore": "poet.runtime.file_store",
    "MemoryStore": "poet.runtime.memory_store",
    "Trainer": "poet.training",
    "emit": "poet.emitting",
    "profile": "poet.profiling.measuring",
    "wrap": "poet.training",
}


def __getattr__(name: str) -> Any:
    """The names that few need, or that need torch: imported when they are first asked for."""
    home = _LATE.get(name)
    if home is not None:
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'poet' has no attribute {name!r}")
