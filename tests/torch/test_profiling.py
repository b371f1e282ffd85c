"""Profiles of real steps on this machine. How fast it is, is not asserted: only what must hold."""

import copy
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import poet
from poet.calls.workspace import workspace_bytes
from poet.costs.classes import CLASSES
from poet.profiling.laps import LEAST_REPEATS, Laps
from poet.profiling.schedules import keep_all
from poet.profiling.scratch import step_peak_bytes
from poet.values.device import PLAIN
from poet.zoo import build
from tests.conftest import Poet
from tests.torch.eager import same_bits

ADAM = poet.Adam(lr=0.01)


@pytest.fixture(scope="module")
def made() -> Any:
    return build("lenet?batch=4")


@pytest.fixture(scope="module")
def program(made: Any) -> Any:
    return poet.capture(made.model, made.loss, ADAM, example=made.example)


@pytest.fixture(scope="module")
def profile(program: Any, tmp_path_factory: pytest.TempPathFactory) -> poet.Profile:
    return poet.profile(program, store=tmp_path_factory.mktemp("pages"), seconds=0.2)


def test_every_op_is_timed(program: Any, profile: poet.Profile) -> None:
    assert len(profile.ops) == len(program.graph.ops)
    assert all(0 < each.low_seconds <= each.seconds <= each.high_seconds for each in profile.ops)
    assert profile.repeats >= 14
    profile.check_belongs(program.graph)


def test_ops_add_up_to_the_step(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is looked at."""
    monkeypatch.setattr("poet.profiling.laps.perf_counter", itertools.count().__next__)
    laps = Laps(program, keep_all(program))
    laps.measure(seconds=1.0)
    ops = len(program.graph.ops)
    # A look after each op, and one when the step has ended, which is the last op's, too.
    assert laps.steps == [ops + 1] * LEAST_REPEATS
    assert [set(each) for each in laps.op_repeats] == [{1}] * (ops - 1) + [{2}]
    assert sum(laps.op_seconds) == pytest.approx(ops + 1)


def test_what_kernels_take_is_in_the_workspace(program: Any, profile: poet.Profile) -> None:
    graph = program.graph
    counted = [workspace_bytes(op, graph) for op in graph.ops]
    assert all(seen >= own for seen, own in zip(profile.workspaces_bytes, counted, strict=True))
    convolutions = [
        k for k, op in enumerate(graph.ops) if any("convolution" in c.kind for c in op.calls)
    ]
    assert any(profile.workspaces_bytes[k] > counted[k] for k in convolutions)


def test_the_store_is_measured_by_size(profile: poet.Profile) -> None:
    store, device = profile.store, profile.device
    assert len(store.sizes_bytes) > 2
    assert all(timing.seconds > 0 for timing in (*store.page_ins, *store.page_outs))
    assert 0 < (device.compute_speed_in_overlap or 0) <= 1
    assert 0 < (device.transfer_speed_in_overlap or 0) <= 1
    limited = set(device.class_flops_per_second) | set(device.class_bytes_per_second)
    assert limited == set(CLASSES)
    assert set(device.class_overhead_seconds) == set(CLASSES)


def test_profiling_leaves_no_trace(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=2")
    program = poet.capture(made.model, made.loss, ADAM, example=made.example)
    program.run()
    model, state = copy.deepcopy(made.model.state_dict()), copy.deepcopy(program.state)
    torch.manual_seed(3)
    random = torch.get_rng_state()
    poet.profile(program, store=tmp_path, seconds=0.05)
    assert torch.equal(random, torch.get_rng_state())
    assert all(same_bits(value, made.model.state_dict()[n]) for n, value in model.items())
    for name, held in state.items():
        assert all(same_bits(value, program.state[name][kept]) for kept, value in held.items())
    assert (program.steps_done, list(program.learning_rates)) == (1, [0.01])
    assert not list(tmp_path.iterdir())  # no page file stays


def test_a_profile_is_a_file_that_plans_and_trains(
    made: Any, program: Any, profile: poet.Profile, tmp_path: Path
) -> None:
    file = tmp_path / "profile.json"
    poet.write_json(profile, file)
    assert poet.read_json(file, poet.Profile) == profile
    plan = poet.plan(program, costs=profile, ram=2**30, time_limit=1)
    assert plan.costs == profile.costs
    assert plan.status == "optimal"
    with poet.Trainer(
        made.model,
        made.loss,
        ADAM,
        example=made.example,
        costs=file,
        store=tmp_path / "p",
        time_limit=1,
    ) as trainer:
        trainer.run(made.example)
        assert trainer.plan.costs.ops == profile.costs.ops
        x, y = made.example
        trainer.step(x[:2], y[:2])  # another shape follows the machine's rates


def test_a_profile_of_another_graph_is_refused(profile: poet.Profile) -> None:
    other: Any = build("mlp?batch=2")
    with pytest.raises(poet.PoetError, match="of another graph"):
        poet.plan(poet.capture(other.model, other.loss, ADAM, example=other.example), costs=profile)


def test_the_predicted_peak_is_the_allocators(tmp_path: Path) -> None:
    spec = "resnet18-cifar?batch=4"
    made: Any = build(spec)
    program = poet.capture(made.model, made.loss, ADAM, example=made.example)
    profile = poet.profile(program, store=tmp_path, seconds=0.1)
    whole = poet.plan(program, costs=profile, ram=2**40, method="keep-all").peak_bytes
    assert whole is not None
    plan: Any = None

    def watched() -> Any:
        nonlocal plan
        mine: Any = build(spec)
        store = poet.FileStore(tmp_path)
        trainer = poet.Trainer(
            mine.model,
            mine.loss,
            ADAM,
            example=mine.example,
            ram=int(0.6 * whole) + store.buffer_bytes,
            store=store,
            costs=profile,
            transfers="serial",
            time_limit=2,
        )
        plan = trainer.plan
        return lambda: trainer.run(mine.example)

    seen = step_peak_bytes(watched)
    assert plan.peak_bytes <= 0.6 * whole
    assert plan.peak_bytes == pytest.approx(seen, rel=0.01)
    without = msgspec.structs.replace(
        plan.costs,
        ops=tuple(
            {PLAIN: msgspec.structs.replace(each[PLAIN], workspace_bytes=0)}
            for each in plan.costs.ops
        ),
    )
    blind = poet.check(msgspec.structs.replace(plan, costs=without)).peak_bytes
    # How much kernels take is the processor's affair; that it is foreseen is ours.
    assert blind < plan.peak_bytes
    assert abs(plan.peak_bytes - seen) < abs(blind - seen)


@pytest.mark.parametrize(("seconds", "power"), [(0, None), (-1, None), (float("nan"), None)])
def test_nothing_to_measure_is_an_error(program: Any, seconds: float, power: Any) -> None:
    with pytest.raises(poet.PoetError, match="measures nothing"):
        poet.profile(program, seconds=seconds, power=power)


def test_an_unknown_board_for_the_watts(program: Any) -> None:
    with pytest.raises(poet.PoetError, match="toaster"):
        poet.profile(program, power="toaster")


def test_from_profile_to_training_on_the_command_line(poet_command: Poet, tmp_path: Path) -> None:
    file, pages = tmp_path / "p.json", tmp_path / "pages"
    model = "lenet?batch=4"
    done = poet_command(
        "profile", model, "--seconds", "0.2", "--store", pages, "-o", file, "--json",
    )  # fmt: skip
    assert done.code == 0
    summary = msgspec.json.decode(done.out)
    assert summary["ops"] == len(poet.read_json(file, poet.Profile).ops)
    assert summary["step_low_seconds"] <= summary["step_seconds"] <= summary["step_high_seconds"]
    again = poet_command("profile", model, "-o", file)
    assert (again.code, "exists already" in again.err) == (2, True)
    train = ("train", model, "--steps", "3", "--store", pages, "--time-limit", "1")
    made = poet_command(*train, "--costs", file, "--json")
    assert made.code == 0
    outcome = msgspec.json.decode(made.out)
    assert outcome["predicted_paged_bytes"] == outcome["step_paged_bytes"]
    assert outcome["predicted_joules"] > 0
    assert outcome["step_joules"] > 0
    shown = poet_command(*train, "--costs", file)
    for word in ("time", "RAM peak", "paged", "energy", "off by", "costs measured on"):
        assert word in shown.out
    by_rates = msgspec.json.decode(poet_command(*train, "--json").out)
    assert by_rates["step_seconds"] > 0
    assert by_rates["predicted_seconds"] is by_rates["predicted_joules"] is None
    assert by_rates["predicted_peak_bytes"] == by_rates["peak_bytes"]
    shown = poet_command(*train)
    (time,) = [line for line in shown.out.splitlines() if line.startswith("time ")]
    assert "%" not in time
    assert "poet profile" in shown.out
    other = poet_command(*train, "--costs", file, "--optimizer", "sgd")
    assert other.code == 2
    assert "of another graph" in other.err
    for command in ("plan", "compare"):  # they mean the same step, if nobody says another
        asked = (command, model, "--costs", file, "--ram", "90%", "--time-limit", "0.5", "--json")
        more = () if command == "plan" else ("--method", "paging")
        assert poet_command(*asked, *more).code == 0


def test_a_gpu_that_is_not_there(poet_command: Poet) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = poet_command("profile", "mlp", "--device", "cuda")
    assert (done.code, "no GPU" in done.err) == (2, True)
