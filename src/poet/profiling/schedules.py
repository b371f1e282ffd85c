"""The schedules that steps are measured under."""

import msgspec

from poet.baselines import STARTS
from poet.errors import PoetError
from poet.planning.defaults import HERE
from poet.planning.plan import answer
from poet.planning.problem import problem_of
from poet.planning.question import terms
from poet.planning.residency import questions
from poet.referee.replay import check
from poet.tracer.program import Program
from poet.values.device import Costs
from poet.values.plan import Plan, draft
from poet.values.schedule import Budget, Effort, places

_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def keep_all(program: Program) -> Plan:
    """Every op once, in order, and everything kept in RAM to its last use."""
    asked = terms(HERE, params="resident", transfers="serial")
    question = next(questions(problem_of(program), asked)).within(None)
    made = answer(question, Effort(), "keep-all")
    if not made.schedule:
        raise PoetError(f"no step of {program.graph.name} could be scheduled: {made.reason}")
    return made


def much_paging(program: Program, costs: Costs) -> Plan:
    """Parameters and state in the store, and half of the RAM to page activations through."""
    graph = program.graph
    start, end = places(graph, "paged")
    roomy = Budget(start=start, end=end, transfers="serial")
    whole = STARTS["keep-all"](graph, costs, roomy, Effort())
    peak = check(draft(graph, costs, roomy, whole.schedule)).peak_bytes
    for share in _SHARES:
        budget = msgspec.structs.replace(roomy, ram_bytes=int(share * peak))
        made = STARTS["paging-greedy"](graph, costs, budget, Effort())
        found = draft(graph, costs, budget, made.schedule)
        if made.schedule and check(found).violation is None:
            return found
    return draft(graph, costs, roomy, whole.schedule)
