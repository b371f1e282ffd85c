"""POET: train neural networks in little memory, at the least energy, with exactly the same
gradients.

The public names, nothing else. Importing this imports neither torch nor a solver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from poet.devices import find_device
from poet.errors import Infeasible, OutOfBudget, PageError, PoetError, PoetWarning
from poet.planning.compare import compare
from poet.planning.plan import plan
from poet.referee.replay import check
from poet.referee.verdict import Report, Violation
from poet.tracer.capture import capture
from poet.values.device import Costs, Device, Run, Stream, Transfer
from poet.values.files import read_json, write_json
from poet.values.graph import Call, Graph, InPlace, Op, Tensor, Value
from poet.values.instances import Instance, read_instance
from poet.values.optimizers import SGD, Adam, AdamW
from poet.values.plan import Plan, draft
from poet.values.profile import Profile
from poet.values.schedule import Budget, Compute, Free, PageIn, PageOut, Schedule, places
from poet.version import __version__

if TYPE_CHECKING:
    from poet.firmware.emit import emit
    from poet.profiling.measuring import profile
    from poet.reports.page.charts import plot
    from poet.runtime.stores.file_store import FileStore
    from poet.runtime.stores.memory_store import MemoryStore
    from poet.server.client import connect
    from poet.training.compiled import compile
    from poet.training.foreseen import fit
    from poet.training.trainer import Trainer
    from poet.training.wrapped import unwrap, wrap

_LATE = {
    "FileStore": "poet.runtime.stores.file_store",
    "MemoryStore": "poet.runtime.stores.memory_store",
    "Trainer": "poet.training.trainer",
    "compile": "poet.training.compiled",
    "connect": "poet.server.client",
    "emit": "poet.firmware.emit",
    "fit": "poet.training.foreseen",
    "plot": "poet.reports.page.charts",
    "profile": "poet.profiling.measuring",
    "unwrap": "poet.training.wrapped",
    "wrap": "poet.training.wrapped",
}
"""Names that few need, or that need torch: imported when they are first asked for."""

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
    "Infeasible",
    "Instance",
    "MemoryStore",
    "Op",
    "OutOfBudget",
    "PageError",
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
    "compile",
    "connect",
    "draft",
    "emit",
    "find_device",
    "fit",
    "places",
    "plan",
    "plot",
    "profile",
    "read_instance",
    "read_json",
    "unwrap",
    "wrap",
    "write_json",
]


def __getattr__(name: str) -> Any:
    home = _LATE.get(name)
    if home is None:
        raise AttributeError(f"module 'poet' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
