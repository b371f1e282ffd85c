"""Whose turn it is: the strategies of a worker, in the order they do their steps."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

import poet
from poet.planner.search import strategies
from poet.planner.search.portfolio import COUNTED, TIMED, search
from poet.values.schedule import Effort
from tests.conftest import INSTANCES

SEVERAL = 3


def steps_of(
    monkeypatch: pytest.MonkeyPatch,
    instance: str,
    ram_bytes: int,
    until: set[str] | None = None,
    **effort: Any,
) -> list[str]:
    """The names of the strategies whose steps were done in a search.

    It ends when all of `until` have done several.
    """
    done: list[str] = []

    def noted(strategy: type, step: Callable[[Any], None]) -> Callable[[Any], None]:
        def step_and_note(self: Any) -> None:
            done.append(strategy.__name__)
            step(self)
            if until and all(done.count(name) >= SEVERAL for name in until):
                self.worker.incumbent.stop()

        return step_and_note

    for strategy in {*TIMED, *COUNTED}:
        assert isinstance(strategy, type)
        monkeypatch.setattr(strategy, "step", noted(strategy, strategy.step))  # type: ignore[attr-defined]
    problem = poet.read_instance(INSTANCES / f"{instance}.json")
    budget = poet.Budget(ram_bytes=ram_bytes, transfers="free")
    search(problem.graph, problem.costs, budget, Effort(relative_gap=0.0, **effort))
    return done


def test_counted_rounds_come_after_the_climb_and_a_step_of_proof_after_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = steps_of(monkeypatch, "linear-a72", 3500, work_limit=4, time_limit_seconds=300)
    assert done[0] == "Opening"
    climb, rounds = done[1 : done.index("Annealing")], done[done.index("Annealing") :]
    assert len(climb) > 2
    assert [name for name, _ in groupby(climb)] == ["ProofInTurn", "LeanAnnealing"]
    proofs = [len(list(run)) for name, run in groupby(rounds) if name == "ProofInTurn"]
    assert proofs == [1] * len(proofs)
    searched = [name for name in rounds if name not in ("ProofInTurn", "EndOfWork")]
    assert searched == ["Annealing", "NarrowedAnnealing", "WholeModel", "WholeModel"]
    assert rounds[-1] == "EndOfWork"


def test_by_the_clock_search_and_proof_have_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who else comes to it in the time is the machine's."""
    monkeypatch.setattr(strategies, "WHOLE_WINDOWS", (4,))
    turns = {"ProofByRate", "Annealing"}
    effort: dict[str, Any] = {"time_limit_seconds": 120, "threads": 2, "until": turns}
    done = steps_of(monkeypatch, "resnet18_cifar-m4", 330_000, **effort)
    assert {"Opening", *turns} <= set(done)
    assert set(done) <= {strategy.__name__ for strategy in TIMED}
    assert done.count("Opening") == 1


def test_an_error_in_a_worker_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> None:
        raise RuntimeError("a strategy broke")

    monkeypatch.setattr(strategies.Annealing, "step", broken)
    with pytest.raises(RuntimeError, match="a strategy broke"):
        steps_of(monkeypatch, "linear-m4", 4000, time_limit_seconds=20, threads=2)
