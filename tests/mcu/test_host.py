"""C on the host: plans that page and recompute give the bits of plans that keep all."""

import errno
import subprocess
from pathlib import Path

import numpy as np
import pytest

import poet
from poet.errors import PoetError
from poet.firmware.card.commits import commit_of
from poet.firmware.card.image import read_tensors
from poet.firmware.card.safetensors import read_safetensors, write_safetensors
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import build, emulate
from poet.firmware.reference_steps import dropout_mask
from poet.firmware.write.folder import read_folder
from poet.tracer.by_name import capture_named
from poet.values.optimizers import parse_optimizer

from .conftest import NETS, SANITIZED, Emitter, Planner, run_make

TIGHT = {
    "mlp?size=8&hidden=16&layers=1&dropout=0.3": "13 KB",
    "lenet?size=16": "122 KB",
    f"{NETS}:resnet8": "120 KB",
    f"{NETS}:separable": "48 KB",
    f"{NETS}:mixed": "10 KB",
}


@pytest.mark.parametrize("model", TIGHT)
def test_any_plan_gives_the_same_bits(model: str, planned: Planner, emitted: Emitter) -> None:
    keep = emitted(planned(model, "64 MB", params="resident", method="keep-all"))
    tight = emitted(planned(model, TIGHT[model]))
    for folder in (keep, tight):
        assert emulate(folder).differences == ()
    made, plan = read_folder(tight)
    other, whole = read_folder(keep)
    ours = read_tensors(tight / "card.img", plan.graph, made.card)
    theirs = read_tensors(keep / "card.img", whole.graph, other.card)
    assert ours.keys() == theirs.keys()
    for i in ours:
        assert ours[i].tobytes() == theirs[i].tobytes(), plan.graph.tensors[i].name
    against = compare_card(tight)
    assert against is not None
    assert against.is_close, against


@pytest.mark.parametrize("optimizer", ["sgd", "sgd?momentum=0.9&nesterov=1&weight_decay=0.1",
                                       "sgd?momentum=0.5&dampening=0.3"])  # fmt: skip
def test_every_kind_of_sgd(optimizer: str, planned: Planner, emitted: Emitter) -> None:
    folder = emitted(planned(f"{NETS}:mixed", "20 KB", optimizer))
    emulate(folder)
    against = compare_card(folder)
    assert against is not None
    assert against.is_close, against


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw?weight_decay=0.1"])
def test_a_transformer_trains(optimizer: str, planned: Planner, emitted: Emitter) -> None:
    folder = emitted(planned("bert-tiny?seq=8&vocab=30&layers=1", "3 MB", optimizer), steps=4)
    emulate(folder)
    against = compare_card(folder)
    assert against is not None
    # Adam's first steps are signs of gradients, and that of the keys' bias is truly 0: rounding
    # decides, here and in PyTorch.
    assert against.is_close, against


def test_no_complaints_from_the_sanitizers(planned: Planner, emitted: Emitter) -> None:
    for model in (f"{NETS}:mixed", "lenet?size=16"):
        folder = emitted(planned(model, TIGHT[model]))
        made, _ = read_folder(folder)
        build(folder, made, f"EXTRA={SANITIZED}")
        done = subprocess.run(["./train"], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr.endswith("done\n")


def test_the_same_plan_gives_the_same_files(planned: Planner, tmp_path: Path) -> None:
    plan = planned("lenet?size=16", "122 KB")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        poet.emit(plan, folder)
    for file in sorted(first.iterdir()):
        assert (second / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_second_compiler_agrees_on_no_optimization(planned: Planner, emitted: Emitter) -> None:
    plan = planned(f"{NETS}:separable", TIGHT[f"{NETS}:separable"])
    fast, slow = emitted(plan), emitted(plan)
    emulate(fast)
    assert run_make(slow, "EXTRA=-O0").returncode == 0
    subprocess.run(["./train"], cwd=slow, capture_output=True, check=True)
    assert (fast / "card.img").read_bytes() == (slow / "card.img").read_bytes()


def test_weights_go_to_the_card_and_come_back(
    planned: Planner, emitted: Emitter, tmp_path: Path
) -> None:
    plan = planned("lenet?size=16", "122 KB")
    first = emitted(plan, seed=3)
    made, _ = read_folder(first)
    values = read_tensors(first / "card.img", plan.graph, made.card)
    named = {plan.graph.tensors[i].name: x for i, x in values.items()
             if plan.graph.tensors[i].role != "optimizer_state"}  # fmt: skip
    write_safetensors(named, tmp_path / "w.safetensors")
    second = emitted(plan, weights=tmp_path / "w.safetensors", seed=3)
    assert (second / "card.img").read_bytes() == (first / "card.img").read_bytes()
    found = read_safetensors(tmp_path / "w.safetensors")
    assert all((found[name] == array).all() for name, array in named.items())


def test_a_trained_card_returns_to_pytorch(
    planned: Planner, emitted: Emitter, tmp_path: Path, poet_command: object
) -> None:
    from safetensors.torch import load_file

    from poet.zoo import build as build_model

    folder = emitted(planned("lenet?size=16", "122 KB"))
    emulate(folder)
    code, _, _ = poet_command("card", "export", folder, "-o", tmp_path / "x.safetensors")  # type: ignore[operator]
    assert code == 0
    model = build_model("lenet?size=16").model
    model.load_state_dict(load_file(tmp_path / "x.safetensors"))
    made, plan = read_folder(folder)
    values = read_tensors(folder / "card.img", plan.graph, made.card)
    parameters = dict(model.named_parameters())
    for i, array in values.items():
        tensor = plan.graph.tensors[i]
        if tensor.role == "parameter":
            assert np.array_equal(parameters[tensor.name].detach().numpy(), array)


def test_training_goes_on_where_the_card_stands(planned: Planner, emitted: Emitter) -> None:
    plan = planned("lenet?size=16", "122 KB")
    once, twice = emitted(plan), emitted(plan)
    emulate(once, steps=4)
    emulate(twice, steps=1)
    emulate(twice, steps=3)
    made, plan = read_folder(once)
    first, second = (read_tensors(f / "card.img", plan.graph, made.card) for f in (once, twice))
    assert all(x.tobytes() == second[i].tobytes() for i, x in first.items())
    assert commit_of(once / "card.img").steps_done == commit_of(twice / "card.img").steps_done == 4


def test_a_plan_with_overlapping_transfers_runs_one_at_a_time(emitted: Emitter) -> None:
    program = capture_named("lenet?size=16", parse_optimizer("sgd"))
    plan = poet.plan(
        program, device="rpi4", ram=150_000, transfers="overlap", params="paged", time_limit=3
    )
    assert plan.paged_bytes > 0
    folder = emitted(plan)
    assert emulate(folder).differences == ()
    against = compare_card(folder)
    assert against is not None
    assert against.is_close


def test_own_data(planned: Planner, emitted: Emitter, tmp_path: Path) -> None:
    plan = planned("lenet?size=16", "122 KB")
    images = np.random.default_rng(5).standard_normal((3, 1, 1, 16, 16)).astype("float32")
    labels = np.array([[1], [2], [3]])
    write_safetensors({"input 0": images, "input 1": labels}, tmp_path / "d.safetensors")
    folder = emitted(plan, data=tmp_path / "d.safetensors", lr=0.01)
    losses = [step.loss for step in emulate(folder, steps=30).steps]
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    write_safetensors({"input 0": images}, tmp_path / "e.safetensors")
    with pytest.raises(PoetError, match="input 1"):
        emitted(plan, data=tmp_path / "e.safetensors")


def test_dropout_draws_as_the_kernel_does() -> None:
    mask = dropout_mask((1000,), 0.25, seed=7, step=3, op=2)
    kept = mask > 0
    assert 0.7 < kept.mean() < 0.8
    assert np.allclose(mask[kept], 1 / 0.75)
    assert (dropout_mask((1000,), 0.25, seed=7, step=4, op=2) != mask).any()


def test_what_cannot_be_emitted_says_why(
    planned: Planner, emitted: Emitter, tmp_path: Path
) -> None:
    plan = planned("lenet?size=16", "122 KB")
    with pytest.raises(PoetError, match="13,824"):
        emitted(plan, "microbit")
    with pytest.raises(PoetError, match="no target 'arduino'"):
        emitted(plan, "arduino")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(PoetError, match="not empty"):
        poet.emit(plan, tmp_path / "full")
    assert (tmp_path / "full" / "file").read_text() == "mine"
    with pytest.raises(PoetError, match="not a folder that poet emit wrote"):
        emulate(tmp_path)


def test_labels_that_the_network_does_not_know_are_refused(
    planned: Planner, emitted: Emitter, tmp_path: Path
) -> None:
    plan = planned("lenet?size=16", "122 KB")
    images = np.zeros((2, 1, 1, 16, 16), "float32")
    for label in (10, -1):
        labels = np.array([[-100], [label]])  # the first is ignored by cross-entropy
        write_safetensors({"input 0": images, "input 1": labels}, tmp_path / "d.safetensors")
        with pytest.raises(PoetError, match=rf"input 1 of .* has a {label}; .* knows 0 to 9"):
            emitted(plan, data=tmp_path / "d.safetensors")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"steps": 0}, "steps is 0; it must be from 1 to 4,294,967,295"),
        ({"samples": 0}, "samples is 0"),
        ({"seed": -1}, "seed is -1; it must be from 0"),
        ({"lr": float("nan")}, "lr is nan"),
    ],
)
def test_numbers_that_no_card_holds_are_refused(
    numbers: dict[str, float], text: str, planned: Planner, emitted: Emitter
) -> None:
    with pytest.raises(PoetError, match=text):
        emitted(planned("lenet?size=16", "122 KB"), **numbers)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.fixture
def full_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when half of the card is written."""

    def write(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("poet.firmware.emit.write_image", write)


@pytest.mark.usefixtures("full_card")
def test_an_emit_that_fails_leaves_nothing(planned: Planner, tmp_path: Path) -> None:
    plan = planned("lenet?size=16", "122 KB")
    for folder in (tmp_path / "fw", tmp_path / "new" / "fw"):
        with pytest.raises(PoetError, match=f"cannot write {folder}: No space left on device"):
            poet.emit(plan, folder)
        assert list(tmp_path.iterdir()) == []


def test_an_emit_that_fails_leaves_the_folder_it_was_to_write_over(
    planned: Planner, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan, folder = planned("lenet?size=16", "122 KB"), tmp_path / "fw"
    poet.emit(plan, folder)
    (folder / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    request.getfixturevalue("full_card")
    with pytest.raises(PoetError, match="No space left"):
        poet.emit(plan, folder, lr=0.5, force=True)
    assert contents(tmp_path) == before


def test_an_emit_over_a_folder_replaces_its_own_files_alone(
    planned: Planner, tmp_path: Path
) -> None:
    plan, folder = planned("lenet?size=16", "122 KB"), tmp_path / "fw"
    poet.emit(plan, folder, lr=0.5)
    before = contents(folder)
    (folder / "notes.txt").write_text("mine")
    poet.emit(plan, folder, lr=0.25, force=True)
    after = contents(folder)
    assert after.pop("notes.txt") == b"mine"
    assert after.keys() == before.keys()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"card.img", "firmware.json", "reference.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["fw"]


def test_steps_that_pytorch_cannot_take_are_an_error_of_poet(
    planned: Planner, tmp_path: Path
) -> None:
    data = {"input 0": np.full((1, 2, 6), 9), "input 1": np.zeros((1, 2, 6), "bool"),
            "input 2": np.zeros((1, 2, 6), "float32")}  # fmt: skip
    write_safetensors(data, tmp_path / "d.safetensors")
    plan = planned(f"{NETS}:rules", "40 KB")
    with pytest.raises(PoetError, match=r"PyTorch cannot take step 1 of .*:rules: index 9 is out"):
        poet.emit(plan, tmp_path / "fw", data=tmp_path / "d.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["d.safetensors"]
