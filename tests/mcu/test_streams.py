"""Parameters in tiles: the same bits as parameters in RAM, on the host and on boards."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

import poet
from poet.calls.loops import TILE_BYTES, loops
from poet.costs.analytic import analytic
from poet.costs.streams import with_streams
from poet.devices import find_device
from poet.firmware.card.image import read_tensors
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import emulate
from poet.firmware.write.folder import read_folder
from poet.referee.replay import check
from poet.tracer.by_name import capture_named
from poet.values.graph import Graph
from poet.values.optimizers import parse_optimizer
from poet.values.plan import Plan, draft
from poet.values.schedule import Budget, Compute, places
from tests.torch.streamed import Choice, largest_tiles, mixture, never, schedule_of, smallest_tiles

from .conftest import NETS, ROOT, Emitter, Planner
from .test_boards import assert_inside

WORDS = "bert-tiny?seq=4&vocab=40&layers=1"
MOMENTUM = "sgd?momentum=0.9&nesterov=1&weight_decay=0.01"


def graph_of(model: str, optimizer: str) -> Graph:
    name = f"{ROOT}/{model}" if model.startswith("tests/") else model
    return capture_named(name, parse_optimizer(optimizer), fuse_updates=True).graph


def by_hand(model: str, optimizer: str, choose: Choice) -> Plan:
    """Every op once, in the variant that is chosen; what lasts is on the card between ops."""
    graph, board = graph_of(model, optimizer), find_device("nrf52840")
    costs = with_streams(analytic(graph, board), graph, board)
    start, end = places(graph, "streamed")
    budget = Budget(start=start, end=end)
    plan = draft(graph, costs, budget, schedule_of(graph, costs, choose))
    verdict = check(plan)
    assert verdict.violation is None, verdict.violation
    return msgspec.structs.replace(
        plan, peak_bytes=verdict.peak_bytes, joules=verdict.joules, seconds=verdict.seconds
    )


def trained(plan: Plan, emitted: Emitter) -> tuple[Path, dict[int, np.ndarray]]:
    folder = emitted(plan, steps=3)
    assert emulate(folder).differences == ()
    made, plan = read_folder(folder)
    return folder, read_tensors(folder / "card.img", plan.graph, made.card)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("tests/mcu/nets.py:resnet8", "sgd"),
        (f"{NETS}:separable", "adam"),
        ("lenet?size=16&batch=3", MOMENTUM),
        (f"{NETS}:gpt2", "sgd"),
        (WORDS, "sgd"),
        (WORDS, MOMENTUM),
        (WORDS, "adamw?weight_decay=0.1"),
    ],
)
def test_tiles_give_the_same_bits(model: str, optimizer: str, emitted: Emitter) -> None:
    folder, whole = trained(by_hand(model, optimizer, never), emitted)
    against = compare_card(folder)
    assert against is not None
    assert against.is_close, against
    for choose in (largest_tiles, mixture(1)) if model == WORDS else (smallest_tiles, mixture(2)):
        plan = by_hand(model, optimizer, choose)
        assert any(isinstance(s, Compute) and s.variant in TILE_BYTES for s in plan.schedule)
        _, tiles = trained(plan, emitted)
        for i, array in whole.items():
            assert array.tobytes() == tiles[i].tobytes(), plan.graph.tensors[i].name


def test_every_large_parameter_of_the_headlines_can_be_streamed() -> None:
    for model in ("resnet18-cifar?batch=1&norm_eval=1", "bert-tiny?seq=16"):
        graph = graph_of(model, "adam")
        for k, op in enumerate(graph.ops):
            found = {loop.parameter for loop in loops(graph, k)}
            for i in op.inputs:
                tensor = graph.tensors[i]
                if tensor.role == "parameter" and tensor.nbytes > 4096:
                    assert i in found, (op.name, tensor.name)


def test_a_tile_is_all_there_is_of_a_streamed_parameter() -> None:
    """Workspaces are tiles; each row is read once, and written once where it is updated."""
    graph, board = graph_of("resnet18-cifar?batch=1&norm_eval=1", "sgd"), find_device("nrf52840")
    costs = with_streams(analytic(graph, board), graph, board)
    for k, runs in enumerate(costs.ops):
        for name, run in runs.items():
            for stream in (*run.reads, *run.writes):
                tensor = graph.tensors[stream.tensor]
                assert stream.nbytes == tensor.nbytes
                assert stream.seconds >= tensor.nbytes / board.page_in_bytes_per_second
            if name in TILE_BYTES:
                row = max(loop.row_bytes for loop in loops(graph, k))
                kinds = {call.kind for call in graph.ops[k].calls}
                if kinds <= {"aten.convolution", "aten.convolution_backward", "poet.sgd"}:
                    # A tile of the weights and one of their gradient.
                    assert run.workspace_bytes <= 2 * max(row, TILE_BYTES[name])


def test_parameters_are_in_tiles_only_where_ram_is_too_small() -> None:
    model = "mlp?size=16&hidden=64&layers=1"
    roomy = poet.plan(model, "nrf52840", time_limit=2)
    assert "store" not in roomy.budget.start.values()
    tight = poet.plan(model, "nrf52840", "40 KB", time_limit=3)
    assert tight.schedule, tight.reason
    assert check(tight).streamed_bytes > 0
    assert tight.peak_bytes is not None
    assert (
        tight.peak_bytes
        <= 40_000
        < sum(t.nbytes for t in tight.graph.tensors if t.role == "parameter") // 2
    )
    paged = poet.plan(model, "nrf52840", "40 KB", params="paged", time_limit=2)
    assert not paged.schedule  # whole layers do not fit


THIN = f"{NETS}:thin_resnet18"


@pytest.mark.usefixtures("board_tools")
@pytest.mark.parametrize(
    ("model", "ram", "targets"),
    [
        (THIN, "104 KB", ("netduinoplus2", "nrf52840")),
        ("bert-tiny?seq=16", "240 KB", ("mps3-an547", "nrf52840")),
    ],
)
def test_networks_larger_than_ram_train_on_boards(
    model: str, ram: str, targets: tuple[str, ...], emitted: Emitter, streamed: Planner
) -> None:
    plan = streamed(model, ram, "sgd")
    parameters = sum(t.nbytes for t in plan.graph.tensors if t.role == "parameter") // 2
    host = emitted(plan, steps=3)
    assert emulate(host).differences == ()
    against = compare_card(host)
    assert against is not None
    assert against.is_close, against
    assert against.moved > 0.001
    _, plan = read_folder(host)  # the plan that was placed
    for target in targets:
        folder = emitted(plan, target, steps=3)
        run = emulate(folder)
        assert run.differences == ()
        assert_inside(run, target)
        assert run.ram is not None
        assert parameters > 15 * run.ram.used_bytes
        assert run.steps[0].streamed_bytes > parameters / 10
        assert (folder / "card.img").read_bytes() == (host / "card.img").read_bytes()
