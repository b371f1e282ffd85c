"""What planning starts, it ends: threads, helper processes, models that are half built."""

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import poet
from poet.planner.backends import Answer, Limits, find_backend, highs
from poet.planner.backends.helper import Helper
from poet.planner.backends.highs_here import program_of
from poet.planner.model.build import build_model
from poet.planner.model.matrix import Milp
from poet.planner.search import portfolio
from poet.planning.compare import compared, comparing
from poet.planning.frontier import frontier
from poet.planning.plan import answer, plan_for
from poet.planning.problem import problem_of
from poet.planning.question import terms
from poet.planning.residency import questions
from poet.values.plan import PlanInterrupted
from poet.values.progress import SearchProgress
from poet.values.schedule import Effort
from tests.conftest import INSTANCES

PATIENT = 120.0
FOREVER = 600.0
"""A search that is not ended fails its test by its length."""


def instance(name: str) -> poet.Instance:
    return poet.read_instance(INSTANCES / f"{name}.json")


def tasks() -> set[str]:
    """Threads of this process, Python's and others."""
    return set(os.listdir("/proc/self/task"))


def children() -> set[str]:
    """Processes that threads of this one have started, and that were not waited for."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            found.update((task / "children").read_text().split())
    return found


def relaxation(name: str, ram_bytes: int) -> Milp:
    problem = instance(name)
    budget = poet.Budget(ram_bytes=ram_bytes)
    return build_model(problem.graph, problem.costs, budget, window=4).milp


@pytest.mark.slow
def test_nothing_runs_after_a_plan_of_several_hundred_ops() -> None:
    """Sixteen workers, as on a large machine: most of them are building models when time is up."""
    problem = instance("bert_captured-m4")
    before = tasks()
    plan = poet.plan(problem, ram="25%", time_limit=2, threads=16)
    after = {each for each in tasks() if (Path("/proc/self/task") / each).exists()}
    assert plan.schedule
    assert after <= before
    assert not children()


def interrupting(in_process: bool = True) -> Any:
    """A listener to progress that makes Ctrl-C come once a worker has moved a schedule's gap. What
    other processes tell is heard in the main thread."""
    came = threading.Event()

    def listen(progress: SearchProgress) -> None:
        at_work = threading.current_thread() is not threading.main_thread() or not in_process
        if at_work and progress.joules and not came.is_set():
            came.set()
            _thread.interrupt_main()

    return listen


def effort(**fields: Any) -> Effort:
    return Effort(time_limit_seconds=FOREVER, relative_gap=0.0, threads=2, **fields)


@pytest.mark.parametrize("work_limit", [None, 1000])
def test_ctrl_c_in_python_gives_the_best_plan_and_ends_everything(work_limit: int | None) -> None:
    before = threading.active_count()
    plan = poet.plan(
        instance("resnet18_cifar-m4"),
        ram=330_000,
        time_limit=FOREVER,
        gap=0.0,
        work_limit=work_limit,
        progress=interrupting(),
    )
    assert plan.schedule
    assert plan.bound_joules
    assert poet.check(plan).claims_match
    assert threading.active_count() == before
    assert not children()


def test_ctrl_c_does_not_go_on_to_the_next_phase() -> None:
    """Where transfers slow compute, and nobody said how they take time, turns are planned first;
    Ctrl-C ends both."""
    asked = next(questions(problem_of(instance("resnet18_cifar-m4")), terms(None, 330_000)))
    either = asked._replace(
        either=True,
        budget=msgspec.structs.replace(asked.budget, transfers="overlap"),
        costs=msgspec.structs.replace(asked.costs, compute_speed_in_overlap=0.9),
    )
    with pytest.raises(PlanInterrupted) as stopped:
        answer(either, effort(progress=interrupting()))
    assert stopped.value.plan.budget.transfers == "serial"
    assert poet.check(stopped.value.plan).claims_match
    measured = either._replace(by_rates=asked.costs, either=False)
    with pytest.raises(PlanInterrupted) as stopped:
        answer(measured, effort(progress=interrupting()))
    assert poet.check(stopped.value.plan).claims_match


def test_ctrl_c_while_looking_for_the_smallest_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, searches = portfolio.search, 0

    def search(graph: Any, costs: Any, budget: Any, brief: Effort, *more: Any) -> Any:
        nonlocal searches
        searches += 1
        if searches == 3:
            raise KeyboardInterrupt
        if searches == 1:  # a busy machine may take its second to import the solver
            brief = msgspec.structs.replace(brief, time_limit_seconds=FOREVER)
        return searched(graph, costs, budget, brief, *more)

    monkeypatch.setattr(portfolio, "search", search)
    problem = instance("resnet18_cifar-m4")  # nobody reaches its floor without paging
    with pytest.raises(PlanInterrupted) as stopped:
        plan_for(problem_of(problem), terms(None, "min", paging=False), effort())
    plan = stopped.value.plan
    assert poet.check(plan).claims_match
    assert plan.peak_bytes == plan.budget.ram_bytes


def test_ctrl_c_is_heard_by_those_who_do_not_want_half_a_plan() -> None:
    problem, asked = problem_of(instance("resnet18_cifar-m4")), terms(None, 330_000)
    with pytest.raises(PlanInterrupted):
        plan_for(problem, asked, effort(progress=interrupting()))
    loud = msgspec.structs.replace(comparing(FOREVER, 2), progress=interrupting(in_process=False))
    with pytest.raises(KeyboardInterrupt):
        compared(problem, asked, loud, ["poet", "checkmate"])
    loud = msgspec.structs.replace(loud, progress=interrupting(in_process=False))
    with pytest.raises(KeyboardInterrupt):
        compared(problem, asked, loud, ["paging", "poet"])
    loud = msgspec.structs.replace(loud, progress=interrupting(in_process=False))
    with pytest.raises(KeyboardInterrupt):
        frontier(problem, terms(), loud, points=3, methods=["poet"])
    assert not children()


def test_an_error_while_planning_ends_everything() -> None:
    def fail(progress: SearchProgress) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        poet.plan(instance("bert-m4"), ram="60MB", time_limit=FOREVER, gap=0.0, progress=fail)
    assert threading.active_count() == before
    assert not children()


def test_a_model_can_be_left_half_built() -> None:
    class Enough(Exception):
        pass

    problem, calls = instance("vgg16-m4"), 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 100:
            raise Enough

    budget = poet.Budget(ram_bytes=60_000_000)
    with pytest.raises(Enough):
        build_model(problem.graph, problem.costs, budget, check=check)
    assert calls == 101
    assert build_model(problem.graph, problem.costs, budget, window=4)  # it is whose turn it is


# Helpers


def test_a_helper_says_what_would_be_said_here(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, limits = find_backend("highs"), Limits(seconds=PATIENT, nodes=20, seed=3)
    milp = relaxation("linear-m4", 3500)
    fixed = milp.high.copy()
    fixed[np.flatnonzero(milp.integer & (milp.low < milp.high))[:3]] = 0.0
    answers: list[list[Answer]] = []
    for small in (0, 10**9):
        monkeypatch.setattr(highs, "SMALL", small)
        session = backend.session(milp, limits)
        answers.append(
            [
                backend.solve_linear(milp, limits),
                backend.solve_integer(milp, limits),
                session.solve(milp.low, milp.high, PATIENT),
                session.solve(milp.low, fixed, PATIENT),
                session.solve(milp.low, np.minimum(fixed, milp.low), PATIENT),  # infeasible
            ]
        )
        assert children()  # those of the first round wait for more
    backend.close()
    assert not children()
    assert {each.status for each in answers[0]} == {"optimal", "infeasible"}
    for beside, here in zip(*answers, strict=True):
        for name, value in vars(here).items():
            np.testing.assert_array_equal(getattr(beside, name), value)


def test_a_helper_is_ended_in_the_middle_of_a_program() -> None:
    """HiGHS solves this for minutes, and for seconds of them without looking up."""
    backend, looks = find_backend("highs"), 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return looks > 3

    limits = Limits(seconds=FOREVER, stop=stop)
    answer = backend.solve_integer(relaxation("resnet18_cifar-m4", 330_000), limits)
    assert answer.status == "stopped"
    assert looks == 4
    assert not children()


def test_a_helper_whose_owner_is_killed_ends_itself() -> None:
    code = (
        "from tests.unit.test_ending import *\n"
        "milp = relaxation('resnet18_cifar-m4', 330_000)\n"
        "def say():\n"
        "    print(*children(), flush=True)\n"
        "    return False\n"
        "find_backend('highs').solve_integer(milp, Limits(seconds=600.0, stop=say))\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    helper = Path("/proc") / owner.stdout.readline().strip()
    assert helper.name.isdigit()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + PATIENT
    while helper.exists() and "\nState:\tZ" not in (helper / "status").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_where_no_process_answers_programs_are_solved_here(monkeypatch: pytest.MonkeyPatch) -> None:
    milp, limits = relaxation("linear-m4", 3500), Limits(seconds=PATIENT)
    usual = find_backend("highs").solve_linear(milp, limits)
    monkeypatch.setattr(highs, "SMALL", 0)
    for interpreter in ("", "/nowhere/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", interpreter)
        backend = find_backend("highs")
        assert backend.solve_linear(milp, limits).objective == usual.objective
        assert backend.session(milp, limits).solve(milp.low, milp.high, PATIENT).values is not None
        backend.close()


def test_a_helper_that_dies_is_a_failed_answer() -> None:
    helper = Helper()
    program = vars(program_of(relaxation("linear-m4", 3500)))
    limits = Limits(seconds=PATIENT)
    assert helper.ask("linear", limits, program).status == "optimal"
    (number,) = children()
    os.kill(int(number), signal.SIGKILL)
    assert helper.ask("linear", replace(limits, seed=1), program).status == "failed"
    assert not helper.is_alive
    assert not children()
