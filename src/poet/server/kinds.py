"""Kinds: what may be asked, a plan, a comparison or a frontier; the table that routes and workers
go by."""

from poet.planning.frontier import Frontier
from poet.server.answers import ComparisonAnswer, FrontierAnswer, Kind, PlanAnswer
from poet.server.questions import ComparisonQuestion, FrontierQuestion, PlanQuestion
from poet.server.work import Compared
from poet.values.plan import Plan

JSON, CSV, HTML = "application/json", "text/csv", "text/html"

KINDS = {
    kind.path: kind
    for kind in (
        Kind(
            path="plans",
            field="plan",
            question=PlanQuestion,
            answer=PlanAnswer,
            result=Plan,
            results={
                "plan.json": JSON,
                "plan.csv": CSV,
                "report": HTML,
                "firmware.zip": "application/zip",
            },
        ),
        Kind(
            path="comparisons",
            field="comparison",
            question=ComparisonQuestion,
            answer=ComparisonAnswer,
            result=Compared,
            results={"comparison.json": JSON, "comparison.csv": CSV},
        ),
        Kind(
            path="frontiers",
            field="frontier",
            question=FrontierQuestion,
            answer=FrontierAnswer,
            result=Frontier,
            results={"frontier.json": JSON, "frontier.csv": CSV, "report": HTML},
        ),
    )
}
