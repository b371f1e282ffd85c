"""Problems: what a person names, a file or a model, becomes a graph with its costs."""

from pathlib import Path
from typing import TYPE_CHECKING

from poet.costs.analytic import analytic
from poet.errors import PoetError
from poet.tracer.capture import Granularity, graph_named
from poet.values.device import Costs, Device
from poet.values.files import decode_json, format_of, read_bytes
from poet.values.graph import Graph
from poet.values.instances import Instance, decode_instance
from poet.values.optimizers import parse_optimizer
from poet.values.profile import Profile

if TYPE_CHECKING:
    from poet.tracer.program import Program


def read_problem(
    path: str,
    optimizer: str = "sgd",
    *,
    granularity: Granularity = "planning",
    fuse_updates: bool = False,
    cache: bool = True,
) -> Instance | Graph:
    """An instance or a graph from a .json file, or the graph of a model by name."""
    chosen = parse_optimizer(optimizer)
    if not path.endswith(".json"):
        return graph_named(
            path, chosen, granularity=granularity, fuse_updates=fuse_updates, cache=cache
        )
    data = read_bytes(path)
    if format_of(data, path) is None:
        return decode_instance(data, path)
    return decode_json(data, Graph, path)


def read_costs(path: str | Path) -> Costs | Profile:
    """Costs, or a profile, from a .json file."""
    data = read_bytes(path)
    profiled = format_of(data, path) == "poet-profile/1"
    return decode_json(data, Profile, path) if profiled else decode_json(data, Costs, path)


def graph_and_costs(
    problem: "Instance | Graph | Program", costs: Costs | None, board: Device | None
) -> tuple[Graph, Costs]:
    """The graph of a problem, and its costs: those given, its own, or the board's by its rates."""
    graph = problem if isinstance(problem, Graph) else problem.graph
    if costs is None:
        if isinstance(problem, Instance):
            costs = problem.costs
        elif board is not None:
            costs = analytic(graph, board)
        else:
            raise PoetError(
                f"the graph {graph.name!r} has no costs: give a device (--device rpi4; see poet "
                "devices) or `costs` (--costs FILE)"
            )
    try:
        costs.check_belongs(graph)
    except ValueError as error:
        raise PoetError(
            f"{error}. Costs hold for one model, batch shape, optimizer and granularity"
        ) from None
    return graph, costs
