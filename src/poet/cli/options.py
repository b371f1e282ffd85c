"""Options that several commands share: one spelling, one help, one place.

Python's messages name arguments (`ram="2 GiB"`); `as_options` says them in the words of the command
line.
"""

import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from poet.devices import find_device
from poet.errors import PoetError
from poet.planning.compare import COMPARED
from poet.planning.defaults import OPTIMIZER, SMALL_OPTIMIZER
from poet.planning.problem import Problem, read_costs, read_problem
from poet.planning.question import Terms, terms
from poet.values.schedule import Params

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A model (see: poet models), your_file.py:function, an instance or graph .json."
    ),
]
TrainedModelArgument = Annotated[
    str, typer.Argument(help="A model (see: poet models), or your_file.py:function.")
]
PlanArgument = Annotated[Path, typer.Argument(help="A plan .json file.", metavar="PLAN")]
FolderArgument = Annotated[Path, typer.Argument(help="A folder that poet emit wrote.")]
DeviceOption = Annotated[
    str | None, typer.Option(help="A board (see: poet devices) or your own .toml.")
]
RamOption = Annotated[
    str | None,
    typer.Option(
        help="RAM budget: 300000, 500KB, 256KiB, 60% of keep-all's, or min. "
        "Default: what the device has."
    ),
]
HereRamOption = Annotated[
    str | None,
    typer.Option(
        help="RAM budget: 300000, 500KB, 256KiB, 60% of keep-all's, or min. "
        "Default: what this machine has."
    ),
]
DeadlineOption = Annotated[
    str | None, typer.Option(help="20s, or 1.5x the unconstrained step. Default: none.")
]
CostsOption = Annotated[
    Path | None, typer.Option(help="Measured costs (poet profile), or costs of a graph (.json).")
]
TransfersOption = Annotated[
    Literal["serial", "overlap", "free"] | None,
    typer.Option(help="How transfers take time. Default: as the device; instances: free."),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        help="Of a captured model: none, sgd, adam, adamw?weight_decay=0.1. "
        f"Default: {OPTIMIZER}; {SMALL_OPTIMIZER} for a microcontroller."
    ),
]
GranularityOption = Annotated[
    Literal["planning", "op"], typer.Option(help="Of a captured model: merged ops, or each.")
]
FuseUpdatesFlag = Annotated[
    bool, typer.Option("--fuse-updates", help="One op for a weight gradient and its update.")
]
ParamsOption = Annotated[
    Params,
    typer.Option(
        help="Parameters and state between steps: in RAM, in the store, or there and read in "
        "tiles. auto: the first that fits."
    ),
]
MethodsOption = Annotated[
    list[str] | None, typer.Option(help=f"Only these; repeat it: {', '.join(COMPARED)}.")
]
TimeLimitOption = Annotated[float, typer.Option(help="Seconds for each plan.", min=0.0)]
ThreadsOption = Annotated[int | None, typer.Option(help="Default: all cores.", min=1)]
SeedOption = Annotated[int, typer.Option(help="Of the search.", min=0)]
CacheFlag = Annotated[
    bool, typer.Option(" /--no-cache", help="Capture anew, and do not keep the capture.")
]
ForceFlag = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def asked_terms(
    model: str,
    device: str | None,
    ram: str | None,
    deadline: str | None,
    costs: Path | None,
    transfers: Literal["serial", "overlap", "free"] | None,
    params: Params,
    paging: bool = True,
    recompute: bool = True,
    target: str | None = None,
) -> Terms:
    """What is asked of a plan; refused before a capture takes its time."""
    if device is None and costs is None and not model.endswith(".json"):
        raise PoetError(
            f'{model} has no costs: give a device, such as device="rpi4" (poet devices lists them)'
        )
    board = None if device is None else find_device(device)
    return terms(
        board,
        ram,
        deadline,
        costs=None if costs is None else read_costs(costs),
        transfers=transfers,
        params=params,
        paging=paging,
        recompute=recompute,
        target=target,
    )


def asked_problem(
    model: str,
    optimizer: str | None,
    asked: Terms,
    cache: bool,
    granularity: Literal["planning", "op"] = "planning",
    fuse_updates: bool = False,
) -> Problem:
    """The step that a model argument names."""
    return read_problem(
        model,
        optimizer,
        board=asked.runs_on,
        granularity=granularity,
        fuse_updates=fuse_updates,
        cache=cache,
    )


_ARGUMENTS = (
    "costs", "deadline", "device", "edited", "force", "optimizer", "params", "ram", "resume",
    "seed", "solver", "store", "target", "time_limit", "token", "weights",
)  # fmt: skip
_ARGUMENT = re.compile(
    rf'(?<![\w./-])({"|".join(_ARGUMENTS)})=(?:"([^"]*)"|True\b|(?=[\s,.;:)]|$))'
)


def as_options(text: str) -> str:
    """A message to Python users, to one at the command line: `ram="2 GiB"` → `--ram 2GiB`."""

    def option(match: re.Match[str]) -> str:
        name, value = f"--{match[1].replace('_', '-')}", match[2]
        if not value:
            return name
        return f"{name} {value.replace(' ', '') if match[1] == 'ram' else shlex.quote(value)}"

    return _ARGUMENT.sub(option, text)
