"""Problem: what is to be planned, whatever it is given as.

A training step, which may come with its own costs; the same step with its updates fused, or with an
op for each kernel; and what each of these costs on a board.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from poet.costs.analytic import analytic, with_workspaces
from poet.errors import PoetError
from poet.planning.defaults import optimizer_for
from poet.rewrites.granularity import Granularity
from poet.tracer.by_name import layout_named
from poet.tracer.layout import Layout
from poet.values.board_profile import BoardProfile
from poet.values.device import Costs, Device
from poet.values.files import decode_json, format_of, read_bytes
from poet.values.graph import Graph
from poet.values.instances import Instance, decode_instance
from poet.values.optimizers import parse_optimizer
from poet.values.profile import Profile

if TYPE_CHECKING:
    from poet.tracer.program import Program


class Problem:
    """A step to plan. `costs` are those it brings along; `traced` is what a capture found.

    `workspaces` says what each op of a graph of it takes where it will run, if somebody can tell.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        costs: Costs | None = None,
        traced: Layout | None = None,
        granularity: Granularity = "planning",
        workspaces: Callable[[Graph], tuple[int, ...]] | None = None,
    ) -> None:
        self.graph, self.costs = graph, costs
        self.traced, self.granularity = traced, granularity
        self._by_rates: dict[str, tuple[Device, Costs]] = {}
        self._workspaces = workspaces
        self._workspaces_bytes: dict[str, tuple[int, ...]] = {}

    @cached_property
    def fused(self) -> Graph:
        """The same step with weight gradients and their updates in one op, where that is known."""
        if self.traced is None:
            return self.graph
        return self.traced.rewritten(self.granularity, fuse_updates=True).graph

    @property
    def has_pieces(self) -> bool:
        """Whether the kernels of its ops are known, each of which may run piece by piece."""
        return self.traced is not None

    @cached_property
    def in_pieces(self) -> Graph | None:
        """The same step with an op for each kernel, so that each can run piece by piece; None where
        the kernels are not known."""
        if self.traced is None:
            return None
        return self.traced.rewritten("op", fuse_updates=True).graph

    def by_rates(self, graph: Graph, board: Device) -> Costs:
        """What either graph costs by a board's rates; counted once."""
        known = self._by_rates.get(graph.fingerprint)
        if known is None or known[0] is not board:
            known = (board, analytic(graph, board))
            self._by_rates[graph.fingerprint] = known
        return known[1]

    def where_it_runs(self, graph: Graph, board: Device) -> Costs:
        """The same, with the workspaces that its ops have there; asked for once."""
        costs, key = self.by_rates(graph, board), graph.fingerprint
        if self._workspaces is None:
            return costs
        if key not in self._workspaces_bytes:
            self._workspaces_bytes[key] = self._workspaces(graph)
        return with_workspaces(costs, self._workspaces_bytes[key])


def problem_of(
    problem: "Problem | Instance | Graph | Program | str", board: Device | None = None
) -> Problem:
    """What may be planned, whatever it is given as; a model by name as it is trained on the
    board."""
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, str):
        return read_problem(problem, board=board)
    if isinstance(problem, Graph):
        return Problem(problem)
    if isinstance(problem, Instance):
        return Problem(problem.graph, costs=problem.costs)
    if not hasattr(problem, "traced"):
        raise PoetError(
            f"a {type(problem).__name__} cannot be planned: give a captured step "
            "(poet.capture(model, …)), a graph, an instance, a file or a model's name"
        )
    return Problem(problem.graph, traced=problem.traced, granularity=problem.granularity)


def read_problem(
    text: str,
    optimizer: str | None = None,
    *,
    board: Device | None = None,
    granularity: Granularity = "planning",
    fuse_updates: bool = False,
    cache: bool = True,
) -> Problem:
    """An instance or a graph from a .json file, or a model by name; its optimizer is the usual one
    on the board where nobody says."""
    chosen = parse_optimizer(optimizer or optimizer_for(board))
    if text.endswith(".json"):
        data = read_bytes(text)
        if format_of(data, text) is None:
            return problem_of(decode_instance(data, text))
        return Problem(decode_json(data, Graph, text))
    traced = layout_named(text, chosen, cache=cache)
    graph = traced.rewritten(granularity, fuse_updates).graph
    return Problem(graph, traced=traced, granularity=granularity)


def read_costs(path: str | Path) -> Costs | Profile | BoardProfile:
    """Costs, or a profile, from a .json file."""
    data = read_bytes(path)
    kind = format_of(data, path)
    if kind == "poet-board-profile/1":
        return decode_json(data, BoardProfile, path)
    if kind == "poet-profile/1":
        return decode_json(data, Profile, path)
    return decode_json(data, Costs, path)
