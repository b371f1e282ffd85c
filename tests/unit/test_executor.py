"""The executor: every question ends, in an answer or in words, and nothing runs on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import poet
from poet.planning.compare import compared, comparing
from poet.planning.executor import Executor, Limits
from poet.planning.problem import problem_of
from poet.planning.question import terms
from poet.planning.turns import Outcome, Task
from poet.planning.workers import Tell
from tests.conftest import INSTANCES

PATIENT = 60.0


class Sum(msgspec.Struct):
    """A question: a number, and what to do on the way."""

    number: int
    way: str = ""


def summed(given: int, asked: Sum, before: list[int], tell: Tell) -> int:
    tell(os.getpid())
    if asked.way == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif asked.way == "crash":
        os.abort()
    elif asked.way == "leave":
        os._exit(7)
    elif asked.way == "hang":
        time.sleep(PATIENT)
    elif asked.way == "grow":
        taken = bytearray(300 << 20)
        time.sleep(PATIENT)
        del taken
    elif asked.way == "print":
        os.write(1, b"what a library has to say")
    elif asked.way == "refuse":
        raise poet.Infeasible("there is no sum", proven=False)
    elif asked.way == "fail":
        raise ZeroDivisionError
    elif asked.way == "start":
        tell(subprocess.Popen(["sleep", "60"], start_new_session=True).pid)
        time.sleep(PATIENT)
    return given + asked.number + sum(before)


def outcomes(tasks: list[Task], limits: Limits) -> dict[str, Outcome]:
    with Executor(summed, 100, limits) as executor:
        return {outcome.key: outcome for outcome in executor.run(tasks)}


def is_running(number: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def wait_for_end(number: int) -> None:
    until = time.monotonic() + PATIENT
    while is_running(number):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_answers_are_handed_to_those_who_need_them() -> None:
    tasks = [Task("c", Sum(3), ("a", "b", "known")), Task("a", Sum(1, "print")), Task("b", Sum(2))]
    with Executor(summed, 100, Limits(workers=2)) as executor:
        found = {each.key: each.answer for each in executor.run(tasks, {"known": 1000})}
        assert found == {"a": 101, "b": 102, "c": 1306}
        assert [each.answer for each in executor.run([Task(0, Sum(4))])] == [104]


def test_a_worker_that_is_lost_costs_its_question_alone() -> None:
    ways = ("die", "crash", "leave", "hang", "grow", "refuse", "")
    tasks = [Task(way, Sum(1, way)) for way in ways] + [Task("after", Sum(1), ("die", ""))]
    found = outcomes(tasks, Limits(workers=2, seconds=2.0, ram_bytes=200 << 20))
    assert set(found) == {*ways, "after"}
    assert (found[""].answer, found["after"].answer) == (101, 202)
    assert "its process was killed" in found["die"].lost
    assert "SIGABRT" in found["crash"].lost
    assert "with code 7" in found["leave"].lost
    assert found["hang"].lost == "it took more than 2 s, its limit"
    assert "its limit is 209,715,200 B (200.0 MiB)" in found["grow"].lost
    with pytest.raises(poet.Infeasible, match="there is no sum") as refused:
        _ = found["refuse"].answer
    assert not refused.value.proven
    with pytest.raises(poet.PoetError, match="a worker of this machine was lost"):
        _ = found["hang"].answer


def test_a_bug_is_no_answer() -> None:
    failed = outcomes([Task("", Sum(1, "fail"))], Limits())[""]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        _ = failed.answer


def test_nothing_runs_when_it_is_left_in_the_middle() -> None:
    told: list[int] = []

    def heard(task: Task, value: int) -> None:
        told.append(value)
        if len(told) == 3:  # a worker, another, and what that one has started
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Executor(summed, 0, Limits(workers=2)) as executor:
        list(executor.run([Task(0, Sum(1, "hang")), Task(1, Sum(1, "start"))], heard=heard))
    assert len(set(told)) == 3
    for number in told:
        wait_for_end(number)


def test_workers_end_when_their_owner_is_killed() -> None:
    code = (
        "from tests.unit.test_executor import *\n"
        "with Executor(summed, 0, Limits(workers=2)) as executor:\n"
        "    tell = lambda task, value: print(value, flush=True)\n"
        "    list(executor.run([Task(i, Sum(1, 'hang')) for i in range(2)], heard=tell))\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    workers = [int(owner.stdout.readline()) for _ in range(2)]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    for number in workers:
        wait_for_end(number)


def test_an_interrupted_question_says_what_it_has() -> None:
    with Executor(summed, 0) as executor:
        found = executor.run(
            [Task("a", Sum(1, "hang")), Task("b", Sum(2))],
            heard=lambda task, value: executor.interrupt("a"),
        )
        (first, second) = found
    assert (str(first.error), second.answer) == ("interrupted", 2)


def test_a_method_whose_worker_is_lost_says_so_in_its_row() -> None:
    problem = problem_of(poet.read_instance(INSTANCES / "bert-m4.json"))
    asked, effort = terms(None, "20%"), comparing(PATIENT, 1)
    (row,) = compared(problem, asked, effort, ["poet"], limits=Limits(seconds=0.2)).rows
    assert row.status == "unknown"
    assert row.reason == "poet: it took more than 0.2 s, its limit."
