"""Residency: where parameters and optimizer state live between steps, and what follows from it.

They live in RAM if a schedule is found for that; else in the store, and are paged in and out whole;
else in the store, where ops read them in tiles. To be updated in tiles, a parameter needs a graph
in which its gradient and its update are one op, so streaming plans the fused graph. This is decided
here and nowhere else: for plans, comparisons, training and firmware alike.
"""

from collections.abc import Iterator
from typing import get_args

import msgspec

from poet.planning.defaults import runs_c
from poet.planning.problem import Problem
from poet.planning.question import Question, Terms, question
from poet.values.graph import MAX_BYTES, Graph
from poet.values.plan import Plan
from poet.values.quantities import parse_share
from poet.values.schedule import PERSISTENT, Residency


def questions(problem: Problem, terms: Terms) -> Iterator[Question]:
    """The question for each residency that may be tried, in order: the first that fits is taken.

    Ops in pieces are the last that is asked for. In C they are a rival to parameters in tiles, for
    they move longer runs of bytes and may take less energy; in PyTorch, where they round otherwise,
    they are for what does not fit.
    """
    terms = in_bytes(problem, terms)
    for residency in places_of(problem, terms):
        cut = residency == "streamed" and _can_be_cut(problem, terms)
        asked = question(problem, terms, _graph(problem, terms, residency), residency)
        yield asked._replace(has_rival=cut and runs_c(terms.board))
        if cut:
            assert problem.in_pieces is not None
            yield question(problem, terms, problem.in_pieces, residency, in_pieces=True)


def in_bytes(problem: Problem, terms: Terms) -> Terms:
    """A budget that is a share of keep-all's peak as bytes: of the step with all of it in RAM."""
    share = parse_share(terms.ram) if isinstance(terms.ram, str) else None
    if share is None:
        return terms
    graph, roomy = problem.graph, msgspec.structs.replace(terms, ram=MAX_BYTES, reserved_bytes=0)
    if terms.costs is not None and terms.costs.graph != graph.fingerprint:
        graph = problem.fused
    whole = question(problem, roomy, graph, "resident")
    held = sum(whole.graph.tensors[i].nbytes for i in whole.budget.pinned)
    ram_bytes = held + int(share * (whole.keep_all_bytes - held))
    return msgspec.structs.replace(terms, ram=ram_bytes)


def residency_of(plan: Plan) -> Residency:
    """Where parameters live by a plan."""
    if any(len(variants) > 1 for variants in plan.costs.ops):
        return "streamed"
    return "paged" if "store" in plan.budget.start.values() else "resident"


def places_of(problem: Problem, terms: Terms) -> tuple[Residency, ...]:
    """Where parameters may live, in the order in which it is tried."""
    if terms.params != "auto":
        return (terms.params,)
    graph = problem.graph
    lives_on = any(graph.tensors[i].role in PERSISTENT for i in graph.given)
    has_limit = terms.board is not None or terms.ram is not None
    if not (lives_on and terms.paging and has_limit):
        return ("resident",)
    residencies: tuple[Residency, ...] = get_args(Residency)
    return residencies if terms.board is not None else residencies[:-1]


def _can_be_cut(problem: Problem, terms: Terms) -> bool:
    """Whether ops may run piece by piece: where their kernels are known, by the rates of a board.

    Measured costs are of another graph.
    """
    return terms.costs is None and problem.costs is None and problem.has_pieces


def _graph(problem: Problem, terms: Terms, residency: Residency) -> Graph:
    """The fused one for streaming, unless costs are given that are of the other alone."""
    if residency != "streamed" or problem.costs is not None:
        return problem.graph
    given = terms.costs
    if given is not None and terms.machine is None and given.graph != problem.fused.fingerprint:
        return problem.graph
    return problem.fused
