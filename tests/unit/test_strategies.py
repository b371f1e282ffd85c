"""Whose turn it is: the strategies of a worker, in the order they do their steps."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import msgspec
import pytest

import poet
from poet.planner.incumbent import Incumbent
from poet.planner.search import strategies
from poet.planner.search.portfolio import COUNTED, TIMED, search
from poet.planner.search.worker import Team, Worker
from poet.planning.solve import solve
from poet.referee.replay import check
from poet.values.plan import draft
from poet.values.schedule import Effort
from tests.conftest import INSTANCES

SEVERAL = 3
COUNTED_EFFORT = Effort(time_limit_seconds=60, work_limit=6)


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


def team_for(instance: str, ram_bytes: int) -> Team:
    problem = poet.read_instance(INSTANCES / f"{instance}.json")
    budget = poet.Budget(ram_bytes=ram_bytes, transfers="free")
    return Team(Incumbent(problem.graph, problem.costs, budget, COUNTED_EFFORT))


@pytest.mark.parametrize(
    ("method", "forbidden"), [("paging", {"recompute": False}), ("checkmate", {"paging": False})]
)
def test_a_search_is_narrowed_to_what_the_best_schedule_does(
    method: str, forbidden: dict[str, bool]
) -> None:
    team = team_for("linear-m4", 4000)
    inc, worker = team.incumbent, Worker(team, leads=True, proves=True)
    known = solve(inc.graph, inc.costs, inc.budget, COUNTED_EFFORT, method).schedule
    assert worker.around_best() is None
    assert inc.offer(known)
    tools = worker.around_best()
    assert tools is not None
    assert tools.budget == msgspec.structs.replace(inc.budget, **forbidden)
    assert tools.annealer is not None
    again = tools.annealer.run(known, seconds=5, moves=2000)
    assert again is not None
    assert check(draft(inc.graph, inc.costs, tools.budget, again)).valid
    team.close()


def test_a_search_is_not_narrowed_where_the_best_schedule_does_both() -> None:
    team = team_for("linear-a72", 3500)
    inc, worker = team.incumbent, Worker(team, leads=True, proves=True)
    both = solve(inc.graph, inc.costs, inc.budget, COUNTED_EFFORT).schedule
    assert any(isinstance(step, poet.PageIn) for step in both)
    assert sum(isinstance(step, poet.Compute) for step in both) > len(inc.graph.ops)
    assert inc.offer(both)
    assert worker.around_best() is None
    team.close()
