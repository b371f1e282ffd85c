"""Ops that stream their parameters in PyTorch: the same training, in tiles, within the budget."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import poet
from poet.calls.loops import TILE_BYTES, loops
from poet.calls.workspace import workspace_bytes
from poet.errors import PageError
from poet.referee.replay import check
from poet.runtime.stores.page_file import BLOCK_BYTES
from poet.training.trainer import Trainer
from poet.values.device import PLAIN
from poet.values.plan import Plan
from poet.values.schedule import Compute
from tests.conftest import Poet
from tests.torch.eager import loss_of, torch_optimizer
from tests.torch.streamed import (
    MODELS,
    OPTIMIZERS,
    Choice,
    Watch,
    batch,
    go_on,
    largest_tiles,
    made,
    mixture,
    never,
    planned,
    smallest_tiles,
    trainer,
)  # fmt: skip
from tests.torch.surviving import apart, page_file

STEPS = 4
CLOSE = 1e-4
"""How far weights may be from eager ones, as a share of how far these have come."""


# The same training


STILL = ("fifth.weight", "fixed.running_mean", "fixed.running_var", "fixed.num_batches_tracked")
"""What no step changes."""


def too_far(mine: Trainer, name: str, optimizer: Any, losses: list[torch.Tensor]) -> list[str]:
    """What is further from eager PyTorch than rounding explains."""
    plain, before = made(name), made(name).state_dict()
    update = torch_optimizer(optimizer, plain)
    assert update is not None
    found = []
    for step, loss in enumerate(losses):
        plain.zero_grad(set_to_none=True)
        torch.manual_seed(step)
        expected = loss_of(plain, batch(name, step), F.cross_entropy)
        expected.backward()  # type: ignore[no-untyped-call]
        update.step()
        if not torch.isclose(loss, expected, rtol=1e-5, atol=0):
            found.append(f"loss of step {step}: {loss.item()} {expected.item()}")
    state = mine.state_dict()
    named = dict(plain.named_parameters())
    pairs = [
        (n, state["model"][n], value, before[n])
        for n, value in plain.state_dict().items()
        if n not in STILL
    ]
    pairs += [
        (f"{kept} of {n}", value, update.state[named[n]][kept], torch.zeros_like(value))
        for n, held in state["optimizer"].items()
        for kept, value in held.items()
    ]
    for what, value, expected, first in pairs:
        way = (expected - first).abs().max().item()
        off = (value - expected).abs().max().item()
        assert way > 0, what
        ulps = 4 * torch.finfo(torch.float32).eps * expected.abs().max().item()
        if off > CLOSE * way + ulps:
            found.append(f"{what}: off by {off / way:.2g} of the way")
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("choose", [largest_tiles, smallest_tiles, mixture(1), mixture(2)])
def test_streamed_training_is_the_same_within_rounding(
    name: str, optimizer: str, choose: Choice, tmp_path: Path
) -> None:
    update = OPTIMIZERS[optimizer]
    plan = planned(name, update, choose)
    report = check(plan)
    assert report.streamed_bytes > 0
    store = poet.FileStore(tmp_path, chunk_bytes=4 * BLOCK_BYTES)
    moved, planned_bytes = trained_as_planned(name, update, plan, store)
    if name == "words":  # a word that comes twice is read once
        assert 0.5 * planned_bytes < moved <= planned_bytes
    else:
        assert moved == planned_bytes


def trained_as_planned(name: str, update: Any, plan: Plan, store: Any) -> tuple[int, int]:
    """Train by a plan, like eager and in the RAM planned; what a step moved, and should have."""
    report = check(plan)
    with trainer(name, update, plan, store) as mine:
        losses = go_on(mine, name, 1)
        moved = mine.paged_bytes
        losses += go_on(mine, name, STEPS)
        moved = (mine.paged_bytes - moved) // (STEPS - 1)
        assert mine.peak_bytes - store.buffer_bytes == report.peak_bytes
        assert not too_far(mine, name, update, losses)
    store.close()
    return moved, report.streamed_bytes + report.page_in_bytes + report.page_out_bytes


def test_every_kind_of_loop_is_among_them() -> None:
    found = set()
    for name in MODELS:
        for optimizer in ("sgd", "adam"):
            graph = planned(name, OPTIMIZERS[optimizer], never).graph
            for k, op in enumerate(graph.ops):
                for loop in loops(graph, k):
                    kind = op.calls[loop.maker].kind
                    found.add((kind, loop.kind, loop.named_rows is not None))
    both = "sum and gradient"
    assert found == {
        ("aten.addmm", "columns", False),
        ("aten.mm", "columns", False),
        ("aten.mm", "sum", False),
        ("aten.mm", "gradient", False),
        ("aten.convolution", "columns", False),
        ("aten.convolution_backward", "sum", False),
        ("aten.convolution_backward", "gradient", False),
        ("aten.convolution_backward", both, False),
        ("aten.embedding", "columns", True),
        ("aten.embedding_dense_backward", "gradient", False),
        ("aten.embedding_dense_backward", "gradient", True),
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_of_embeddings_have_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    def embeddings(k: int, variants: list[str]) -> str:
        kinds = {call.kind.partition("_")[0] for call in graph.ops[k].calls}
        return variants[-1] if "aten.embedding" in kinds else PLAIN

    update = OPTIMIZERS[optimizer]
    graph = planned("words", update, never).graph
    plan = planned("words", update, embeddings)
    assert check(plan).streamed_bytes > 0
    ends = []
    for each in (plan, planned("words", update, never)):
        with trainer("words", update, each, tmp_path) as mine:
            losses = go_on(mine, "words", STEPS)
            ends.append({**mine.state_dict(), "losses": torch.stack(losses)})
    assert not apart(ends[0], ends[1])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_embedding_moves_the_rows_that_are_named(optimizer: str) -> None:
    update = OPTIMIZERS[optimizer]
    graph = planned("words", update, never).graph
    (at, loop), *_ = [
        (k, loop)
        for k in range(len(graph.ops))
        for loop in loops(graph, k)
        if graph.tensors[loop.parameter].name == "words.weight" and loop.update is not None
    ]
    plan = planned("words", update, lambda k, names: names[-1] if k == at else PLAIN)
    store = poet.MemoryStore()
    with trainer("words", update, plan, store) as mine:
        go_on(mine, "words", 1)
        before = store.read_bytes, store.written_bytes
        x, y = batch("words", 1)
        x[0, 0] = 0
        mine.step(x, y)
        moved = [store.read_bytes - before[0], store.written_bytes - before[1]]
    report = check(plan)
    streamed = [moved[0] - report.page_in_bytes, moved[1] - report.page_out_bytes]
    distinct = len(set(x.flatten().tolist()) - {0})  # padding has no gradient
    if optimizer == "sgd":
        assert loop.named_rows == x.numel() > distinct
        assert streamed == [distinct * loop.row_bytes] * 2
    else:  # momenta change everywhere
        assert streamed == [3 * 500 * loop.row_bytes] * 2
    store.close()


# Memory


@pytest.mark.parametrize("choose", [largest_tiles, smallest_tiles])
@pytest.mark.parametrize("name", MODELS)
def test_no_op_takes_more_than_is_counted(
    name: str, choose: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = OPTIMIZERS["adamw"]
    plan = planned(name, update, choose)
    graph, given = plan.graph, batch(name, 1)
    store = poet.MemoryStore()
    with trainer(name, update, plan, store) as mine:
        go_on(mine, name, 1)
        watch = Watch(monkeypatch, [*mine.program.homes().values(), *given])
        with watch.alive:
            mine.step(*given)
            watch.look()
        assert mine.peak_bytes == plan.budget.ram_bytes
    store.close()
    assert len(watch.seen) == len(graph.ops)
    assert max(watch.seen.values()) > 0.9 * max(watch.counted.values())
    # Without what convolutions take besides, their ops would have been counted short.
    short = set()
    for step in plan.schedule:
        if isinstance(step, Compute):
            k, run = step.op, plan.costs.ops[step.op][step.variant]
            assert watch.seen[k] <= watch.counted[k], graph.op_text(k)
            extra = 0
            if step.variant in TILE_BYTES:
                tile = TILE_BYTES[step.variant]
                tiles = workspace_bytes(graph.ops[k], graph, loops(graph, k), tile)
                extra = run.workspace_bytes - tiles
            if watch.seen[k] > watch.counted[k] - extra:
                short |= {graph.ops[k].calls[loop.maker].kind for loop in loops(graph, k)}
    convolutions = {"aten.convolution", "aten.convolution_backward"}
    assert short == (convolutions if name == "convs" else set())


# Surviving


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    update = OPTIMIZERS["adamw"]
    plan = planned("words", update, mixture(3))
    whole = trainer("words", update, plan, tmp_path / "a")
    go_on(whole, "words", STEPS)
    first = trainer("words", update, plan, tmp_path / "b")
    go_on(first, "words", 2)
    first.save(tmp_path / "run")
    first.save_weights(tmp_path / "w.safetensors")
    go_on(first, "words", 3)
    ends = [whole.state_dict()]
    first.load(tmp_path / "run")  # back to step 2
    other = trainer("words", update, plan, tmp_path / "c", seed=5)
    other.load(tmp_path / "run")
    for each in (first, other):
        assert each.steps == 2
        go_on(each, "words", STEPS)
        ends.append(each.state_dict())
        each.close()
    whole.close()
    assert ends[0]["steps"] == STEPS
    assert not apart(ends[0], ends[1])
    assert not apart(ends[0], ends[2])


def test_state_dicts_and_weights_come_from_the_store(tmp_path: Path) -> None:
    update = OPTIMIZERS["nesterov"]
    plan = planned("convs", update, smallest_tiles)
    with trainer("convs", update, plan, tmp_path / "pages") as mine:
        go_on(mine, "convs", 2)
        assert all(p.isnan().all() for p in mine.program.model.parameters())
        mine.save_weights(tmp_path / "w.safetensors")
        kept = mine.state_dict()
        weights = load_file(tmp_path / "w.safetensors")
        assert not apart(weights, kept["model"])
        go_on(mine, "convs", 3)  # the parameters go back to the store first
        expected = mine.state_dict()
        mine.load_state_dict(kept)
        go_on(mine, "convs", 3)
        assert not apart(mine.state_dict(), expected)


def test_a_corrupted_tile_is_found(tmp_path: Path) -> None:
    update = OPTIMIZERS["adam"]
    plan = planned("mlp", update, smallest_tiles)
    store = poet.FileStore(tmp_path / "pages")
    mine = trainer("mlp", update, plan, store)
    go_on(mine, "mlp", 2)
    mine.save(tmp_path / "run")
    go_on(mine, "mlp", 4)
    expected = mine.state_dict()
    mine.load(tmp_path / "run")
    go_on(mine, "mlp", 3)
    page = mine._planned.session.persistent.tensors()["optimizer/0.weight/exp_avg"].page
    assert page is not None
    last = store._slots[page].offset + 49 * 1200
    with open(page_file(tmp_path / "pages"), "r+b") as pages:
        pages.seek(last)
        (byte,) = pages.read(1)
        pages.seek(last)
        pages.write(bytes([byte ^ 4]))
    with pytest.raises(PageError, match=rf"page {page} .* is not what was written there.*57,344"):
        go_on(mine, "mlp", 4)
    with pytest.raises(poet.PoetError, match="failed halfway"):
        go_on(mine, "mlp", 4)
    mine.load(tmp_path / "run")
    go_on(mine, "mlp", 4)
    assert not apart(mine.state_dict(), expected)
    mine.close()
    store.close()


# Other ways to get there


@pytest.mark.parametrize("transfers", ["serial", "overlap"])
def test_what_is_in_ram_as_well_is_gone_after_its_update(transfers: Any, tmp_path: Path) -> None:
    update = OPTIMIZERS["nesterov"]
    ends = []
    for both in (False, True):
        plan = planned("mlp", update, largest_tiles, transfers, both)
        with trainer("mlp", update, plan, tmp_path) as mine:
            go_on(mine, "mlp", 3)
            assert mine.last is not None
            assert plan.budget.ram_bytes is not None
            assert mine.last.peak_bytes <= plan.budget.ram_bytes
            assert mine.last.live_bytes == sum(x.nbytes for x in batch("mlp")) + 8 + 4
            ends.append(mine.state_dict())
    assert not apart(ends[0], ends[1])


def test_a_variant_that_nobody_knows_is_refused() -> None:
    plan = planned("mlp", OPTIMIZERS["sgd"], largest_tiles)
    for name, reads in (("mirrored", None), ("streamed", ())):
        ops = [dict(runs) for runs in plan.costs.ops]
        run = ops[0]["streamed"]
        ops[0][name] = run if reads is None else msgspec.structs.replace(run, reads=reads)
        changed = msgspec.structs.replace(
            plan,
            costs=msgspec.structs.replace(plan.costs, ops=tuple(ops)),
            schedule=(Compute(op=0, variant=name), *plan.schedule[1:]),
        )
        message = rf"as '{name}', which this version .*plan again|the plan is not valid"
        with pytest.raises(poet.PoetError, match=message):
            trainer("mlp", OPTIMIZERS["sgd"], changed, poet.MemoryStore())


def test_a_trainer_streams_where_nothing_else_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first weight alone has 60,000 bytes, and Adam two momenta of as many."""
    update = OPTIMIZERS["adam"]
    store = poet.FileStore(tmp_path, chunk_bytes=4 * BLOCK_BYTES)
    ram = store.buffer_bytes + 110_000
    with pytest.raises(poet.PoetError, match="no plan within the budget"):
        poet.Trainer(
            made("mlp"),
            F.cross_entropy,
            update,
            example=batch("mlp"),
            ram=ram,
            store=store,
            params="paged",
            time_limit=1,
        )
    caplog.set_level("INFO", "poet.training")
    with poet.Trainer(
        made("mlp"),
        F.cross_entropy,
        update,
        example=batch("mlp"),
        ram=ram,
        store=store,
        time_limit=2,
    ) as mine:
        assert "ops streamed" in caplog.messages[-1]
        assert mine.is_paged
        losses = go_on(mine, "mlp", STEPS)
        assert mine.peak_bytes <= ram
        assert mine.peak_bytes - store.buffer_bytes == mine.plan.peak_bytes
        assert mine.plan.paged_bytes > check(mine.plan).streamed_bytes > 0
        assert not too_far(mine, "mlp", update, losses)
        # Another batch size streams, too.
        x, y = batch("mlp", 7)
        mine.step(x[:2], y[:2])
        assert mine.steps == STEPS + 1
        assert mine.peak_bytes <= ram
    store.close()


@pytest.mark.parametrize("params", ["paged", "streamed"])
def test_without_a_store_nothing_is_there(params: Any) -> None:
    with pytest.raises(poet.PoetError, match=f"{params}.* needs a store"):
        poet.Trainer(made("mlp"), F.cross_entropy, poet.SGD(), example=batch("mlp"), params=params)


def test_the_command_streams_and_predicts_what_it_moves(tmp_path: Path, poet_command: Poet) -> None:
    options = (
        "train", "lenet?batch=2", "--ram", "400KB", "--params", "streamed", "--optimizer",
        "sgd?lr=0.01&momentum=0.9", "--time-limit", "2", "--steps", "3", "--store", tmp_path,
    )  # fmt: skip
    outcome = poet_command(*options, "--json")
    assert outcome.code == 0, outcome.err
    assert "ops streamed" in outcome.err
    told = msgspec.json.decode(outcome.out)
    assert told["step_paged_bytes"] == told["predicted_paged_bytes"] > 0
    assert told["peak_bytes"] <= 400_000
