"""Question: what a person asks, out of words and into values.

`Terms` are what is asked of the plan. Once it is decided where parameters live (`residency`), they
and the `Problem` make a `Question`: graph, costs and budget.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, get_args

import msgspec

from poet.baselines.keep_all import kept_all
from poet.calls.pieces.ways import LEAST_BYTES
from poet.costs.analytic import with_workspaces
from poet.costs.counted import counted
from poet.costs.streams import with_streams
from poet.costs.tiles import with_tiles
from poet.devices import find_device
from poet.errors import Infeasible, PoetError
from poet.firmware.boards import find_board
from poet.planning.problem import Problem
from poet.values.board_profile import BoardProfile
from poet.values.device import PLAIN, Costs, Device
from poet.values.graph import MAX_BYTES, Graph, Role, printable
from poet.values.profile import Profile
from poet.values.quantities import parse_bytes, parse_deadline
from poet.values.schedule import Budget, Params, Residency, Schedule, Transfers, places

if TYPE_CHECKING:
    pass

_log = logging.getLogger(__name__)
MIN = "min"
"""The `ram` that asks for the smallest budget with a schedule."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a plan, whatever the step.

    `ram` is bytes, a size, a share of keep-all's peak, `min`, or None for what the board has;
    `reserved_bytes` of it, where it is a size, are somebody else's. Tensors of `pinned_roles` that
    are given, at the start or halfway, or that the forward pass makes, are held in RAM by somebody
    else. `in_torch` says that PyTorch runs the plan, which takes more beside tiles than C does.
    `machine` is where `costs` were measured, if they were. `target` is the board that C is to be
    written for; `counts` are what calls take on the board.
    """

    board: Device | None = None
    ram: str | int | None = None
    deadline: str | float | None = None
    costs: Costs | None = None
    machine: Device | None = None
    transfers: Transfers | None = None
    params: Params = "auto"
    paging: bool = True
    recompute: bool = True
    pinned_roles: tuple[Role, ...] = ()
    reserved_bytes: int = 0
    in_torch: bool = False
    target: str | None = None
    counts: BoardProfile | None = None

    @property
    def runs_on(self) -> Device | None:
        """Where the step will run: where costs were measured, or else the board."""
        return self.machine or self.board

    def __post_init__(self) -> None:
        if self.target is not None:
            find_board(self.target)
        for what, value, kinds in (
            ("transfers", self.transfers, (None, *get_args(Transfers))),
            ("params", self.params, get_args(Params)),
        ):
            if value not in kinds:
                known = ", ".join(map(str, kinds))
                raise PoetError(f"{what} is {value!r}; it must be one of {known}")


def terms(
    device: str | Device | None = None,
    ram: str | int | None = None,
    deadline: str | float | None = None,
    *,
    costs: Costs | Profile | BoardProfile | None = None,
    transfers: Transfers | None = None,
    params: Params = "auto",
    paging: bool = True,
    recompute: bool = True,
    pinned_roles: tuple[Role, ...] = (),
    reserved_bytes: int = 0,
    in_torch: bool = False,
    target: str | None = None,
) -> Terms:
    """Terms out of words: a board by name, a profile for costs and machine in one."""
    board = find_device(device) if isinstance(device, str) else device
    counts = None
    if isinstance(costs, BoardProfile):
        counts, costs = costs, None
        if board is not None and board.name != counts.device.name:
            raise PoetError(
                f"the profile is of {counts.device.name}, not of {board.name or board.title}: give "
                f'device="{counts.device.name}", or leave it out'
            )
        board = board or counts.device
    machine = costs.device if isinstance(costs, Profile) else None
    if isinstance(costs, Profile):
        costs = costs.costs
    return Terms(
        board=board or machine,
        ram=ram,
        deadline=deadline,
        costs=costs,
        machine=machine,
        transfers=transfers,
        params=params,
        paging=paging,
        recompute=recompute,
        pinned_roles=pinned_roles,
        reserved_bytes=reserved_bytes,
        in_torch=in_torch,
        target=target,
        counts=counts,
    )


class Question(NamedTuple):
    """What is asked, in values. `either`: nobody said how transfers take time, so serial ones will
    do, too. `by_rates` are smooth costs to begin with where `costs` were measured. `tiled` gives
    the costs for a budget, where the ways to run an op follow it."""

    graph: Graph
    costs: Costs
    budget: Budget
    either: bool = False
    by_rates: Costs | None = None
    tiled: Callable[[int | None], Costs] | None = None
    has_rival: bool = False
    """The next question may have a better answer."""
    placed: Schedule = ()
    """A schedule whose tensors have addresses within the budget, where one is known."""

    def within(self, ram_bytes: int | None) -> "Question":
        """The same question with another RAM budget. Ways that were known before stay known, so
        that a schedule may be handed on."""
        budget = msgspec.structs.replace(self.budget, ram_bytes=ram_bytes)
        same = self._replace(budget=budget)
        return same if self.tiled is None else same.knowing(self.tiled(ram_bytes))

    def knowing(self, costs: Costs) -> "Question":
        """The same question with the ways to run an op that other costs of its graph have, too."""
        ops = tuple({**mine, **more} for mine, more in zip(self.costs.ops, costs.ops, strict=True))
        return self._replace(costs=msgspec.structs.replace(self.costs, ops=ops))

    @property
    def keep_all_bytes(self) -> int:
        """The most RAM at once when everything is kept for as long as it is used."""
        report = kept_all(self.graph, self.costs, self.budget)
        return MAX_BYTES if report is None else report.peak_bytes

    @property
    def is_roomy(self) -> bool:
        """Whether everything can be kept in RAM."""
        limit = self.budget.ram_bytes
        return limit is None or limit >= self.keep_all_bytes


def question(
    problem: Problem, asked: Terms, graph: Graph, residency: Residency, in_pieces: bool = False
) -> Question:
    """The values behind the terms, with one of the problem's graphs and parameters in a place.

    `in_pieces` lets ops run piece by piece, with any tensor in the store. A RAM budget of `min` is
    the board's: it takes a search to tell. Shares are bytes by now.
    """
    board = asked.board
    costs = _costs(problem, asked, graph)
    smooth = None
    if asked.machine is not None and costs is asked.costs:
        known = [runs[PLAIN].workspace_bytes for runs in costs.ops]
        rates = with_workspaces(problem.by_rates(graph, asked.machine), known)
        smooth = msgspec.structs.replace(costs, ops=rates.ops)
    tiled: Callable[[int | None], Costs] | None = None
    if residency == "streamed":
        if board is None:
            raise PoetError(
                'streamed parameters need a device, whose store they are read from: device="rpi4"'
            )
        if in_pieces:
            tiled = partial(_with_tiles, costs, graph, board, asked.in_torch, asked.counts)
            costs = tiled(_ram_bytes(asked))
        else:
            costs = with_streams(costs, graph, board, in_torch=asked.in_torch)
        if smooth is not None:
            smooth = with_streams(smooth, graph, board, in_torch=asked.in_torch)
    start, end = places(graph, residency)
    if in_pieces and not asked.in_torch:  # what comes from a card may as well stay there
        start |= {i: "store" for i in graph.given if _is_large_input(graph, i)}
    transfers = asked.transfers or _usual_transfers(problem, board)
    if asked.transfers is None and transfers == "overlap" and not asked.paging:
        transfers = "serial"  # there are none, and one search is better than two
    budget = Budget(
        ram_bytes=_ram_bytes(asked),
        store_bytes=board.store_bytes if board else None,
        deadline_seconds=(
            None
            if asked.deadline is None
            else parse_deadline(asked.deadline, costs.keep_all_seconds)
        ),
        transfers=transfers,
        start=start,
        end=end,
        paging=asked.paging,
        recompute=asked.recompute,
        pinned=tuple(
            i
            for i, (tensor, maker) in enumerate(zip(graph.tensors, graph.producer, strict=True))
            if tensor.role in asked.pinned_roles
            if maker is None or tensor.role == "input" or graph.ops[maker].phase == "forward"
        ),
    )
    either = asked.transfers is None and transfers == "overlap"
    return Question(graph, costs, budget, either, smooth, tiled)


def _with_tiles(
    costs: Costs,
    graph: Graph,
    board: Device,
    in_torch: bool,
    counts: BoardProfile | None,
    ram_bytes: int | None,
) -> Costs:
    return with_tiles(costs, graph, board, ram_bytes, in_torch, counts)


def _is_large_input(graph: Graph, i: int) -> bool:
    tensor = graph.tensors[i]
    return tensor.role == "input" and tensor.nbytes >= LEAST_BYTES


def _costs(problem: Problem, asked: Terms, graph: Graph) -> Costs:
    """Those given, the problem's own, or the board's by its rates.

    A profile of the step with updates apart says nothing of the fused one: that goes by the rates
    of the machine that was measured.
    """
    given = asked.costs or problem.costs
    if given is None or (
        asked.machine is not None
        and given.graph == problem.graph.fingerprint
        and graph.fingerprint != given.graph
    ):
        board = asked.machine or asked.board
        if board is None:
            raise PoetError(
                f'{graph.name} has no costs: give a device, such as device="rpi4" (poet devices '
                "lists them), or costs="
            )
        if given is not None:
            _log.warning(
                "the profile is of %s with its updates apart; with updates fused, its step is "
                "costed by the machine's rates (poet profile --fuse-updates measures it)",
                printable(graph.name),
            )
        if asked.counts is not None:
            return counted(graph, board, asked.counts)
        return problem.where_it_runs(graph, board)
    if given.graph != graph.fingerprint:
        raise PoetError(
            f"the costs are of another graph than {printable(graph.name)}'s ({given.graph}, not "
            f"{graph.fingerprint}): of another model, batch shape, optimizer or granularity. "
            "poet profile measures this one"
        )
    try:
        given.check_belongs(graph)
    except ValueError as error:
        raise PoetError(str(error)) from None
    return given


def _ram_bytes(asked: Terms) -> int | None:
    ram, target = asked.ram, None if asked.target is None else find_board(asked.target)
    if ram is None or ram == MIN:
        limits = [] if asked.board is None else [asked.board.available_bytes]
        limits += [] if target is None else [target.free_bytes]
        return min(limits, default=None)
    nbytes = parse_bytes(ram, "RAM budget")
    if target is not None and nbytes > target.free_bytes:
        raise PoetError(target.refusal(nbytes))
    if asked.reserved_bytes and nbytes <= asked.reserved_bytes:
        raise Infeasible(
            f"the budget is {nbytes:,} bytes; the store's buffers alone take "
            f"{asked.reserved_bytes:,}"
        )
    return nbytes - asked.reserved_bytes


def _usual_transfers(problem: Problem, board: Device | None) -> Transfers:
    if problem.costs is not None:
        return "free"  # an instance: as the released code counts
    return "overlap" if board and board.overlap else "serial"
