"""Advice works: who is refused and asks for what was advised gets a plan."""

import re
from typing import Any

import msgspec
import pytest

import poet
from poet.planner.proof.floor import memory_floor
from poet.planning.advice import enough_bytes, ram_argument
from poet.planning.problem import problem_of
from poet.planning.question import terms
from poet.planning.residency import questions
from tests.conftest import INSTANCES, Poet

LARGEST = "bert_captured-m4"
NAMES = sorted({path.stem for path in INSTANCES.glob("*-m4.json")} - {LARGEST})
ANY: Any = {"gap": 1.0, "time_limit": 60.0}
"""The first schedule will do."""


def advised_ram(reason: str) -> str:
    found = re.search(r'Try ram="([^"]+)"', reason)
    assert found, reason
    return found[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fields", [{}, {"paging": False}, {"deadline": "1.3x"}], ids=str)
def test_whoever_follows_advice_gets_a_plan(name: str, fields: dict[str, Any]) -> None:
    problem = poet.read_instance(INSTANCES / f"{name}.json")
    refused = poet.plan(problem, ram=100, **fields, **ANY)
    assert refused.status == "infeasible"
    ram = advised_ram(refused.reason)
    assert poet.plan(problem, ram=ram, **fields, **ANY).schedule


def test_a_floor_that_nobody_reaches_is_no_advice() -> None:
    """Without paging the largest working set of ResNet-18 is not enough for any schedule known."""
    problem = poet.read_instance(INSTANCES / "resnet18_cifar-m4.json")
    asked = next(questions(problem_of(problem), terms(None, 100, paging=False)))
    floor = memory_floor(asked.graph, asked.costs, asked.budget).nbytes
    enough = enough_bytes([asked])
    assert enough is not None
    assert enough > floor


def test_advice_is_given_above_a_budget_that_was_not_proven_too_small() -> None:
    problem = poet.read_instance(INSTANCES / "resnet18_cifar-m4.json")
    asked = next(questions(problem_of(problem), terms(None, 100, paging=False)))
    floor = memory_floor(asked.graph, asked.costs, asked.budget).nbytes
    refused = poet.plan(problem, ram=floor, paging=False, time_limit=0.0)
    assert refused.status == "unknown"
    assert refused.reason.endswith("or a longer time_limit=.")
    assert poet.plan(problem, ram=advised_ram(refused.reason), paging=False, **ANY).schedule


def test_advice_of_a_method_is_its_own() -> None:
    problem = poet.read_instance(INSTANCES / "vgg16-m4.json")
    for method in ("chen-sqrt", "revolve", "keep-all"):
        refused = poet.plan(problem, ram=100, method=method)
        ram = advised_ram(refused.reason)
        assert poet.plan(problem, ram=ram, method=method).schedule, method


def test_a_deadline_that_nothing_meets_is_said_and_ram_is_not_advised() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    refused = poet.plan(problem, ram=100, deadline="0.5x")
    assert "ram=" not in refused.reason
    assert refused.reason.endswith('Try deadline="1.0x" or more.')
    assert poet.plan(problem, deadline="1.0x", **ANY).schedule


def test_nothing_is_advised_where_nothing_would_help() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    asked = next(questions(problem_of(problem), terms(None, 100)))
    closed = msgspec.structs.replace(asked.budget, paging=False, end={0: "store"})
    assert enough_bytes([asked._replace(budget=closed)]) is None


def test_advice_in_the_words_of_the_command_line(poet_command: Poet) -> None:
    path = INSTANCES / "vgg16-m4.json"
    outcome = poet_command("plan", path, "--ram=1KB", "--no-paging")
    assert outcome.code == 3
    found = re.search(r"Try --ram (\S+)\.\n", outcome.err)
    assert found
    outcome = poet_command("plan", path, "--ram", found[1], "--no-paging", "--gap=1")
    assert outcome.code == 0


def test_budgets_are_advised_as_one_would_give_them() -> None:
    assert ram_argument(3256) == 'ram="3256"'
    assert ram_argument(262_144) == 'ram="256KiB"'
