"""Where parameters live is decided once: the same answer for plans, comparisons and training."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import poet
from poet.costs.analytic import analytic
from poet.planning.compare import compared as compare_all
from poet.planning.compare import comparing
from poet.planning.figures import keep_all_bytes
from poet.planning.problem import Problem, problem_of, read_problem
from poet.planning.question import Terms, terms
from poet.planning.residency import questions, residency_of
from poet.planning.solve import solve
from poet.training import planned
from poet.training.planned import problem_here
from poet.values.schedule import Effort
from poet.zoo import build
from tests.conftest import Poet
from tests.torch.eager import captured

LENET: Any = "lenet?batch=1"


@pytest.fixture(scope="module")
def problem() -> Problem:
    return read_problem(LENET, "sgd?momentum=0.9")


def test_the_order_and_the_graphs(problem: Problem) -> None:
    resident, paged, streamed, in_pieces = questions(problem, terms("nrf52840"))
    assert set(resident.budget.start.values()) == {"ram"}
    assert resident.graph is paged.graph is problem.graph
    assert "store" in paged.budget.start.values()
    assert streamed.graph is problem.fused
    assert any(len(variants) > 1 for variants in streamed.costs.ops)
    assert len(problem.fused.ops) < len(problem.graph.ops)
    assert in_pieces.graph is problem.in_pieces
    assert len(in_pieces.graph.ops) > len(problem.fused.ops)
    assert any(run.writes for runs in in_pieces.costs.ops for run in runs.values())
    for params, count in (("resident", 1), ("paged", 1), ("streamed", 2)):
        asked = terms("nrf52840", params=params)  # type: ignore[arg-type]
        assert len(list(questions(problem, asked))) == count


@pytest.mark.parametrize(
    "asked",
    [
        terms("nrf52840", paging=False),  # nothing can be anywhere else
        Terms(ram=10_000),
    ],
)
def test_where_there_is_no_choice(problem: Problem, asked: Terms) -> None:
    if asked.board is None:
        with pytest.raises(poet.PoetError, match='device="rpi4"'):
            list(questions(problem, asked))
        return
    (only,) = questions(problem, asked)
    assert set(only.budget.start.values()) == {"ram"}


def test_a_graph_is_priced_once(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[poet.Graph] = []

    def counted(graph: poet.Graph, board: poet.Device) -> poet.Costs:
        priced.append(graph)
        return analytic(graph, board)

    monkeypatch.setattr("poet.planning.problem.analytic", counted)
    fresh = read_problem(LENET, "sgd?momentum=0.9")
    assert len(list(questions(fresh, terms("nrf52840")))) == 4
    assert priced == [fresh.graph, fresh.fused, fresh.in_pieces]


def test_a_share_is_of_the_step_in_ram_whatever_the_residency(problem: Problem) -> None:
    whole = keep_all_bytes(problem.graph)
    for question in questions(problem, terms("nrf52840", "60%")):
        assert question.budget.ram_bytes == int(0.6 * whole)
    inputs = terms("nrf52840", "60%", pinned_roles=("input",))
    first = next(questions(problem, inputs))
    held = sum(first.graph.tensors[i].nbytes for i in first.budget.pinned)
    assert held > 0
    assert first.budget.ram_bytes == held + int(0.6 * (first.keep_all_bytes - held))


def test_plan_comparison_and_trainer_agree(tmp_path: Path) -> None:
    """Too little for the optimizer's state beside the weights: in the store, read in tiles."""
    made: Any = build(LENET)
    optimizer = poet.SGD(lr=0.01, momentum=0.9)
    program = captured(made, optimizer)
    ram = keep_all_bytes(program.graph) // 3
    plan = poet.plan(program, "laptop", ram, time_limit=2)
    assert plan.schedule, plan.reason
    rows = compare_all(problem_of(program), terms("laptop", ram), comparing(2, 1), ["poet"])
    assert residency_of(plan) == "streamed"
    assert rows.asked.graph.fingerprint == plan.graph.fingerprint == program.fused.fingerprint
    store = poet.MemoryStore()
    with poet.Trainer(
        made.model, made.loss, optimizer, example=made.example, ram=ram + store.buffer_bytes,
        store=store, time_limit=2,
    ) as trainer:  # fmt: skip
        assert residency_of(trainer.plan) == "streamed"
        assert trainer.plan.graph.fingerprint == plan.graph.fingerprint
        trainer.run(made.example)
        assert trainer.peak_bytes <= ram + store.buffer_bytes
    store.close()


def test_a_program_runs_the_plan_of_its_fused_step() -> None:
    made: Any = build(LENET)
    program = captured(made, poet.SGD(lr=0.01))
    fused = poet.plan(program.fused, "laptop", time_limit=1)
    assert fused.graph.fingerprint != program.fingerprint
    before = program.steps_done
    assert program.run(plan=fused).loss.isfinite()
    assert program.steps_done == before + 1
    other = captured(build("lenet?batch=2"), poet.SGD(lr=0.01))
    with pytest.raises(poet.PoetError, match="the plan is for the graph"):
        other.for_plan(fused)


def test_without_a_budget_a_trainer_has_what_the_machine_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: Any = build(LENET)
    trainer = poet.Trainer(made.model, made.loss, poet.SGD(), example=made.example, time_limit=1)
    machine = trainer.budget_bytes
    assert machine is not None
    assert 2**26 < machine < 2**50
    given = sum(t.untyped_storage().nbytes() for t in trainer.program.given(None).values())
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1500000\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\ninactive_file 500000\n")
    monkeypatch.setattr(planned, "_CGROUP", tmp_path)
    assert planned.machine_bytes(trainer.program) == 4_000_000 + given
    (tmp_path / "memory.max").write_text("max\n")
    assert planned.machine_bytes(trainer.program) > 2**26
    monkeypatch.setattr("poet.runtime.memory_info.MEMINFO", tmp_path / "none")
    assert planned.machine_bytes(trainer.program) > 2**26


def test_the_batch_is_pinned_and_the_costs_are_the_devices_own(tmp_path: Path) -> None:
    made: Any = build("lenet")
    trainer = poet.Trainer(
        made.model, made.loss, poet.SGD(), example=made.example, ram="4 MB", store=tmp_path,
        time_limit=1,
    )  # fmt: skip
    plan = trainer.plan
    roles = {plan.graph.tensors[i].role for i in plan.budget.pinned}
    assert roles == {"input"}
    assert max(price.in_seconds for price in plan.costs.tensors) < plan.costs.keep_all_seconds * 100
    trainer.close()
    small = poet.wrap(made.model, example=made.example[:1], time_limit=1)
    pinned = {small.plan.graph.tensors[i].role for i in small.plan.budget.pinned}
    assert pinned == {"input", "parameter", "output"}
    assert small.budget_bytes is not None


@pytest.mark.parametrize("how", ["plan", "wrap", "train"])
def test_no_plan_is_infeasible(how: str, poet_command: Poet) -> None:
    made: Any = build("lenet")
    if how == "wrap":
        with pytest.raises(poet.Infeasible, match="no plan within the budget") as caught:
            poet.wrap(made.model, example=made.example[:1], ram=1000)
        assert caught.value.proven
    elif how == "plan":
        plan = poet.plan("lenet", "laptop", 1000, time_limit=1)
        assert plan.status == "infeasible"
        assert 'ram="' in plan.reason
    else:
        done = poet_command("train", "lenet", "--ram", "1000", "--steps", "1")
        assert done.code == 3
        assert "--ram " in done.err
        assert "ram=" not in done.err


def test_the_library_logs_and_prints_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "poet"):
        captured(build("mlp"), poet.SGD(), cache=False)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("poet.")]
    assert any(text.startswith("captured Sequential in") for text in told)
    assert capsys.readouterr() == ("", "")


def test_every_public_name_is_there_and_known_to_tab_completion() -> None:
    for name in poet.__all__:
        assert getattr(poet, name) is not None
    assert set(poet.__all__) <= set(dir(poet))
    assert not {"import_module", "Any", "TYPE_CHECKING", "ModuleType"} & set(dir(poet))
    assert "poet.planning.solve" in sys.modules


def test_the_least_ram_is_the_least_wherever_parameters_may_be(poet_command: Poet) -> None:
    """On a board of 32 KiB: nothing fits but tiles, and the board's RAM is a limit all the same."""
    plan = poet.plan("mlp", "mkr1000", "min", time_limit=6)
    assert plan.schedule, plan.reason
    assert plan.peak_bytes is not None
    assert plan.peak_bytes <= poet.find_device("mkr1000").available_bytes
    assert residency_of(plan) == "streamed"
    done = poet_command(
        "compare", "mlp", "--device", "mkr1000", "--ram", "min", "--method", "poet",
        "--time-limit", "4", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["rows"]
    assert row["peak_bytes"] <= poet.find_device("mkr1000").available_bytes


def test_a_share_has_the_stores_buffers_in_it(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=16")
    program = captured(made, poet.SGD(lr=0.1, momentum=0.9))
    whole = keep_all_bytes(problem_here(program))
    with poet.Trainer(
        made.model, made.loss, poet.SGD(lr=0.1, momentum=0.9), example=made.example, ram="75%",
        store=tmp_path, time_limit=2,
    ) as trainer:  # fmt: skip
        trainer.run(made.example)
        assert trainer.budget_bytes is not None
        assert trainer.store_buffer_bytes > 0
        assert trainer.peak_bytes <= trainer.budget_bytes <= 0.76 * whole


def test_a_share_of_a_fused_profile(tmp_path: Path) -> None:
    program = captured(build(LENET), poet.SGD(lr=0.1))
    costs = analytic(program.fused.graph, poet.find_device("laptop"))
    plan = poet.plan(program, "laptop", "70%", costs=costs, params="streamed", time_limit=2)
    assert plan.schedule, plan.reason


def test_a_program_and_its_fused_step_are_one_training() -> None:
    program = captured(build(LENET), poet.SGD(lr=0.1, momentum=0.9))
    fused = program.fused
    other = captured(build(LENET), poet.SGD(lr=0.2, momentum=0.9))
    fused.run()
    assert program.steps_done == fused.steps_done == 1
    program.learning_rates[:] = [0.0]
    before = [p.clone() for p in program.model.parameters()]
    fused.run()
    assert all(map(torch.equal, before, program.model.parameters()))
    program.share_state(other)
    assert fused.state is program.state is other.state
    assert fused.learning_rates == [0.2]


def test_a_trainer_refuses_what_a_plan_refuses(tmp_path: Path) -> None:
    made: Any = build("lenet")
    given: dict[str, Any] = {"example": made.example, "cache": True}
    for wrong, message in (
        ({"minimize": "x"}, "minimize is 'x'"),
        ({"time_limit": -1.0}, "time_limit is -1"),
        ({"params": "x"}, "params is 'x'"),
        ({"ram": "much"}, "is not a size.*60%, or min"),
    ):
        with pytest.raises(poet.PoetError, match=message):
            poet.Trainer(made.model, made.loss, poet.SGD(), **given, **wrong)
    plan = poet.plan(captured(made, poet.SGD()), "laptop", time_limit=1)
    with pytest.raises(poet.Infeasible, match="the plan takes"):
        poet.Trainer(made.model, made.loss, poet.SGD(), **given, plan=plan, ram=100_000)
    with pytest.raises(poet.PoetError, match="a Sequential cannot be planned"):
        poet.plan(made.model, "laptop")


def test_what_takes_a_graph_takes_a_program() -> None:
    program = captured(build(LENET), poet.SGD())
    costs = analytic(program.graph, poet.find_device("laptop"))
    start, end = poet.places(program)
    budget = poet.Budget(start=start, end=end)
    once = tuple(map(poet.Compute, range(len(program.graph.ops))))
    assert poet.check(poet.draft(program, costs, budget, once)).valid
    assert solve(program, costs, budget, Effort(time_limit_seconds=1)).schedule
