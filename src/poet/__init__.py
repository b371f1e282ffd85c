"""POET: train neural networks in little memory, at the least energy, with exactly the same
gradients.

The public names, nothing else. Importing this imports neither torch nor a solver.
"""

from poet.capturing import capture
from poet.device import Costs, Device, Run, Stream, Transfer
from poet.devices import find_device
from poet.errors import PoetError, PoetWarning
from poet.files import read_json, write_json
from poet.graph import Call, Graph, InPlace, Op, Tensor, Value
from poet.instances import Instance, read_instance
from poet.optimizers import SGD, Adam, AdamW
from poet.planning import plan
from poet.referee import check
from poet.schedule import Budget, Compute, Free, PageIn, PageOut, Plan, Schedule, places
from poet.verdict import Report, Violation

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Budget",
    "Call",
    "Compute",
    "Costs",
    "Device",
    "Free",
    "Graph",
    "InPlace",
    "Instance",
    "Op",
    "PageIn",
    "PageOut",
    "Plan",
    "PoetError",
    "PoetWarning",
    "Report",
    "Run",
    "Schedule",
    "Stream",
    "Tensor",
    "Transfer",
    "Value",
    "Violation",
    "__version__",
    "capture",
    "check",
    "find_device",
    "places",
    "plan",
    "read_instance",
    "read_json",
    "write_json",
]
