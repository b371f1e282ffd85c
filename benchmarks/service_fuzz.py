"""Requests that schemathesis makes up from the service's own schema, good and bad.

`python -m benchmarks service-fuzz` tries a hundred of each. No answer may be a 5xx, and each must
be one of those that the schema declares for its path: status, media type, headers and body. Made-up
questions are seldom whole, so half of them get a step that can be planned, and half of the paths
the ids of real jobs.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from rich.console import Console
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from benchmarks.serving import served
from poet.reports.tables import print_table

CASES = 100
"""Of each path and method, good ones; and as many bad ones."""
_CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_headers_conformance, response_schema_conformance,
]  # fmt: skip
_FILE = Path(__file__).parent.parent / "instances/linear-m4.json"
_WORDS = ("seed", "minimize", "paging", "recompute", "gap", "work_limit", "points")
_EVENTS_SECONDS = 20


class Tally(NamedTuple):
    cases: int
    statuses: Counter[int]
    paths: int
    seconds: float


def main(cases: int, number: int = 0) -> Tally:
    """The first wrong answer is raised, with what was asked."""
    began, statuses = time.perf_counter(), Counter[int]()
    instance = msgspec.json.decode(_FILE.read_bytes())
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), posts_a_minute=1e6, requests_a_minute=1e6, waiting_jobs=8) as service,
        requests.Session() as session,
    ):
        schema = schemathesis.openapi.from_url(f"{service.address}/api/openapi.json")
        jobs = _jobs(session, service.address, instance)
        found: list[Any] = list(schema.get_all_operations())
        operations, turns = [each.ok() for each in found], count()
        for operation in operations:
            for mode in GenerationMode:
                _try(operation, mode, cases, number, session, jobs, instance, statuses, turns)
    return Tally(statuses.total(), statuses, len(operations), time.perf_counter() - began)


def _try(
    operation: Any,
    mode: GenerationMode,
    cases: int,
    number: int,
    session: requests.Session,
    jobs: dict[str, str],
    instance: Any,
    statuses: Counter[int],
    turns: Iterator[int],
) -> None:
    @seed(number)
    @settings(
        max_examples=cases, deadline=None, database=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        if next(turns) % 2 == 0:
            _complete(case, jobs, instance)
        answer = case.call(session=session, timeout=_EVENTS_SECONDS)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=_CHECKS)

    try:
        one()
    except Unsatisfiable:  # nothing can be wrong with a path that takes nothing
        return


def _complete(case: Any, jobs: dict[str, str], instance: Any) -> None:
    """An id that there is; a question that can be asked, with the words that were made up."""
    kind = case.path.split("/")[2]
    if case.path_parameters and "id" in case.path_parameters:
        case.path_parameters["id"] = jobs[kind]
    if isinstance(case.body, dict) and kind in jobs:
        made_up: Any = case.body
        kept = {word: made_up[word] for word in _WORDS if word in made_up}
        case.body = {**kept, "instance": instance, "time_limit": 0.1}


def _jobs(session: requests.Session, address: str, instance: Any) -> dict[str, str]:
    """One of each kind, which has ended."""
    few = {"methods": ["chen-sqrt"], "time_limit": 0.1}
    asked_for: dict[str, dict[str, Any]] = {
        "plans": {"ram": "60%", "work_limit": 0},
        "comparisons": {"ram": "60%", **few},
        "frontiers": {"points": 2, **few},
    }
    found = {}
    for kind, terms in asked_for.items():
        asked = session.post(f"{address}/api/{kind}", json={"instance": instance, **terms})
        found[kind] = asked.json()["id"]
        session.get(f"{address}/api/{kind}/{found[kind]}/events")
    return found


def benchmark() -> None:
    tally = main(CASES)
    heads = [("paths", "right"), ("requests", "right"), ("answers", "left"), ("time", "right")]
    told = ", ".join(f"{count:,}x {status}" for status, count in sorted(tally.statuses.items()))
    row = [f"{tally.paths}", f"{tally.cases:,}", told, f"{tally.seconds:.0f} s"]
    print_table(Console(), heads, [row])  # type: ignore[arg-type]


BENCHMARKS: dict[str, Callable[[], None]] = {"service-fuzz": benchmark}
