"""Grid: the questions of a sweep, as a TOML file writes them.

Models × devices × budgets × methods. What stands at the top holds for every model; a model that is
written as a table has what it says there instead. Paths are those from the grid's own folder. All
of it is checked before anything is captured or planned, and what is wrong is named with its key,
its value and its line.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from poet.devices import find_device
from poet.errors import PoetError
from poet.planning.compare import COMPARED, check_names
from poet.planning.curves import check_points
from poet.planning.problem import Problem, read_problem
from poet.planning.question import MIN, Terms, terms
from poet.values.device import Device
from poet.values.files import decode_toml, read_bytes
from poet.values.graph import printable
from poet.values.optimizers import parse_optimizer
from poet.values.quantities import parse_bytes, parse_deadline, parse_share
from poet.values.schedule import Effort, Params, Transfers
from poet.zoo import parse

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[int, msgspec.Meta(ge=0)]
SECONDS = 5.0
"""For each plan, where a grid does not say."""
_COUNTED_SECONDS = 24 * 3600.0
"""Where work is counted: an answer that the clock cut short would not repeat."""
_GAP = 1e-6
"""As in a comparison: a plan that is as good as the best is not good enough."""
_POINTS = re.compile(r"(\d{1,6}) points?")
MOST_CELLS = 100_000


class GridModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a grid, and what is asked of it instead of what is asked of all."""

    name: str
    devices: tuple[str, ...] | None = None
    budgets: str | int | tuple[str | int, ...] | None = None
    methods: tuple[str, ...] | None = None
    optimizer: str | None = None
    deadline: str | float | None = None
    transfers: Transfers | None = None
    params: Params | None = None


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a grid file says."""

    format: Literal["poet-grid/1"] = "poet-grid/1"
    models: tuple[str | GridModel, ...]
    devices: tuple[str, ...] = ()
    budgets: str | int | tuple[str | int, ...] = "12 points"
    methods: tuple[str, ...] = COMPARED
    optimizer: str | None = None
    deadline: str | float | None = None
    transfers: Transfers | None = None
    params: Params = "auto"
    time_limit: float | None = None
    work_limit: Amount | None = None
    seed: Amount = 0
    threads: Count = 1

    @property
    def effort(self) -> Effort:
        """What each plan may take. With a `work_limit` an answer repeats for the seed."""
        seconds = self.time_limit
        if seconds is None:
            seconds = SECONDS if self.work_limit is None else _COUNTED_SECONDS
        return Effort(
            time_limit_seconds=seconds,
            work_limit=self.work_limit,
            seed=self.seed,
            threads=self.threads,
            relative_gap=_GAP,
        )


class Asked(NamedTuple):
    """One model on one device, and what is asked of it. An instance has no device."""

    model: str
    source: str
    """Where the model is found: its name, or the path of its file."""
    optimizer: str | None
    device: str | None
    terms: Terms
    points: int | None
    """Budgets along the curve, from the least RAM to keep-all's; or else:"""
    amounts: tuple[str | int, ...]
    methods: tuple[str, ...]

    @property
    def budgets(self) -> int:
        """How many there are; along a curve, at most."""
        return len(self.amounts) if self.points is None else self.points

    @property
    def cells(self) -> int:
        return self.budgets * len(self.methods)

    @property
    def place(self) -> str:
        return self.model if self.device is None else f"{self.model} on {self.device}"

    def problem(self, cache: bool = True) -> Problem:
        """The step, captured where that is needed."""
        board = self.terms.runs_on
        return read_problem(self.source, self.optimizer, board=board, cache=cache)


class Questions(NamedTuple):
    """A grid that was checked."""

    effort: Effort
    curves: tuple[Asked, ...]

    @property
    def cells(self) -> int:
        return sum(each.cells for each in self.curves)


def read_grid(
    path: str | Path,
    time_limit: float | None = None,
    work_limit: int | None = None,
    seed: int | None = None,
) -> Questions:
    """The questions of a grid file; the limits and the seed given here go before its own."""
    data = read_bytes(path)
    lines = data.decode("utf-8", "replace").splitlines()
    try:
        grid = decode_toml(data, Grid, path)
    except PoetError as error:
        raise PoetError(_with_line(str(error), lines)) from None
    said = {"time_limit": time_limit, "work_limit": work_limit, "seed": seed}
    grid = msgspec.structs.replace(grid, **{k: v for k, v in said.items() if v is not None})
    return _Reading(Path(path), lines).questions(grid)


class _Reading:
    """Checks a grid, with the place in its file at hand."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self.path, self.lines = path, lines

    @contextmanager
    def at(self, key: str, value: object) -> Iterator[None]:
        """Whatever is wrong here is wrong with this key and value."""
        try:
            yield
        except PoetError as error:
            where = f"{self.path}{_line_of(self.lines, key, value)}"
            raise PoetError(f"{where}: {key}: {error}") from None

    def checked(self, key: str, value: Any, check: Callable[[Any], object]) -> None:
        with self.at(key, value):
            check(value)

    def questions(self, grid: Grid) -> Questions:
        self.checked("models", "", lambda _: _at_least_one(grid.models, "model"))
        if grid.time_limit is not None:
            self.checked("time_limit", grid.time_limit, _check_seconds)
        curves: list[Asked] = []
        for entry in grid.models:
            model = GridModel(name=entry) if isinstance(entry, str) else entry
            curves += self.curves(grid, model)
        seen: set[tuple[str, str | None]] = set()
        for curve in curves:
            with self.at("models", curve.model):
                if (curve.model, curve.device) in seen:
                    raise PoetError(f"{printable(curve.place)} is asked for twice")
                seen.add((curve.model, curve.device))
        found = Questions(grid.effort, tuple(curves))
        if found.cells > MOST_CELLS:
            raise PoetError(f"{self.path}: {found.cells:,} cells; a sweep has up to {MOST_CELLS:,}")
        return found

    def curves(self, grid: Grid, model: GridModel) -> Iterator[Asked]:
        budgets = grid.budgets if model.budgets is None else model.budgets
        points, amounts = self.budgets(budgets)
        methods = grid.methods if model.methods is None else model.methods
        self.checked("methods", methods[0] if methods else "", lambda _: _check_methods(methods))
        for name in methods:
            self.checked("methods", name, lambda name: check_names([name]))
        optimizer = model.optimizer or grid.optimizer
        if optimizer is not None:
            self.checked("optimizer", optimizer, parse_optimizer)
        deadline = grid.deadline if model.deadline is None else model.deadline
        if deadline is not None:
            self.checked("deadline", deadline, lambda text: parse_deadline(text, 1.0))
        with self.at("models", model.name):
            source, has_costs = self.source(model.name)
        for device in self.devices(grid, model, has_costs):
            board = None
            if device is not None:
                with self.at("devices", device):
                    board = self.board(device)
            yield Asked(
                model=model.name,
                source=source,
                optimizer=optimizer,
                device=device,
                terms=terms(
                    board,
                    deadline=deadline,
                    transfers=model.transfers or grid.transfers,
                    params=model.params or grid.params,
                ),
                points=points,
                amounts=amounts,
                methods=tuple(methods),
            )

    def source(self, name: str) -> tuple[str, bool]:
        """Where a model is found, and whether it brings its costs along."""
        if name.endswith(".json"):
            file = str(self.path.parent / name)
            return file, read_problem(file).costs is not None
        if ".py:" in name:
            file = str(self.path.parent / name)
            if not Path(file.rpartition(":")[0]).is_file():
                raise PoetError(f"there is no file {file.rpartition(':')[0]}")
            return file, False
        return parse(name).text, False

    def devices(self, grid: Grid, model: GridModel, has_costs: bool) -> tuple[str | None, ...]:
        """A model with costs of its own has none, unless it asks for one by itself."""
        names = model.devices
        if names is None:
            names = () if has_costs else grid.devices
        if names or has_costs:
            return names or (None,)
        with self.at("models", model.name):
            raise PoetError(
                f'{model.name} has no costs: give devices, such as devices = ["rpi4"] '
                "(poet devices lists them)"
            )

    def board(self, name: str) -> Device:
        is_file = name.endswith(".toml")
        return find_device(str(self.path.parent / name) if is_file else name)

    def budgets(
        self, given: str | int | tuple[str | int, ...]
    ) -> tuple[int | None, tuple[str | int, ...]]:
        """So many points, or amounts."""
        if isinstance(given, str) and (match := _POINTS.fullmatch(given.strip())):
            self.checked("budgets", given, lambda _: check_points(int(match[1])))
            return int(match[1]), ()
        amounts = given if isinstance(given, tuple) else (given,)
        self.checked("budgets", "", lambda _: _at_least_one(amounts, "budget"))
        for amount in amounts:
            self.checked("budgets", amount, _check_amount)
        if len(set(amounts)) < len(amounts):
            twice = next(each for each in amounts if amounts.count(each) > 1)
            with self.at("budgets", twice):
                raise PoetError(f"{twice} is asked for twice")
        return None, amounts


def _check_amount(amount: str | int) -> None:
    if amount == MIN:
        return
    if isinstance(amount, str):
        if _POINTS.fullmatch(amount.strip()):
            raise PoetError(
                f"{amount!r} stands in a list; points along the curve stand alone: budgets = "
                f'"{amount.strip()}"'
            )
        if parse_share(amount) is not None:
            return
    parse_bytes(amount, "RAM budget")


def _check_methods(methods: tuple[str, ...]) -> None:
    _at_least_one(methods, "method")
    if len(set(methods)) < len(methods):
        raise PoetError("one of them is there twice")


def _check_seconds(seconds: float) -> None:
    if not (isfinite(seconds) and seconds >= 0):
        raise PoetError(f"{seconds} is no time; it must be 0 seconds or more")


def _at_least_one(values: tuple[object, ...], what: str) -> None:
    if not values:
        raise PoetError(f"there is none; a sweep has at least one {what}")


def _line_of(lines: list[str], key: str, value: object) -> str:
    """`, line 3`: where a value stands, or else its key; nothing where that is not clear."""
    written = f"[\"']{re.escape(str(value))}[\"']" if isinstance(value, str) else rf"\b{value}\b"
    starts = re.compile(rf"\s*{re.escape(key)}\s*=")
    for pattern in ([re.compile(written)] if value != "" else []) + [starts]:
        found = [at for at, line in enumerate(lines, 1) if pattern.search(line)]
        if found:
            return f", line {found[0]}"
    return ""


def _with_line(message: str, lines: list[str]) -> str:
    """A message about a key, with the key's line."""
    match = re.search(r": (?:models\[\d+\]\.)?(\w+)(?:\[\d+\])?: |unknown field `(\w+)`", message)
    if match is None:
        return message
    where = _line_of(lines, match[1] or match[2], "")
    return message.replace(": ", f"{where}: ", 1) if where else message
