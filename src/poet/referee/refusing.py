"""Refusing: plans that nobody may train by, in words for whoever is about to."""

from poet.errors import PoetError
from poet.referee.replay import check
from poet.values.plan import Plan
from poet.values.schedule import not_kept


def refuse_if_wrong(plan: Plan) -> None:
    """Refuse a plan that the referee refuses, or that throws away what a step is for."""
    violation = check(plan).violation
    if violation is not None:
        raise PoetError(f"the plan is not valid: {violation.message}. Plan again")
    lost = not_kept(plan.graph, plan.budget)
    if lost is not None:
        raise PoetError(
            f"the plan does not keep {plan.graph.tensor_text(lost)} to the end of the step, which "
            "training needs. Plan again"
        )
