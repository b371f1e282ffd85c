"""Weights in flash: what never changes is read there, and a device makes its own card."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

import poet
from poet.errors import Infeasible, PoetError
from poet.firmware.card.image import read_tensors
from poet.firmware.card.layout import InFlash, card_layout, check_room
from poet.firmware.card.safetensors import read_safetensors, write_safetensors
from poet.firmware.emulate.emulation import emulate
from poet.firmware.write.flash import Flash, flash_c
from poet.firmware.write.folder import read_folder
from poet.values.plan import Plan

from . import nets
from .conftest import NETS, Emitter, Planner
from .cutting import cut_everywhere, cut_formats
from .forced import written_for_host
from .library import Library
from .test_cuts import plan_of

STORES, WAYS = 6, 8
TARGETS = ("host", "netduinoplus2")


@pytest.mark.parametrize(
    ("kind", "optimizer", "in_flash"),
    [
        ("resident", "adam", "none"),
        ("paged", "sgd?momentum=0.9", "none"),
        ("in tiles", "sgd", "none"),
        ("in pieces", "sgd", "none"),
        ("paged", "adam", "all"),
        ("in tiles", "adam", "all"),
    ],
)
def test_a_new_card_is_whole_or_none(
    kind: str, optimizer: str, in_flash: InFlash, planned: Planner, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan = plan_of(kind, optimizer, planned, monkeypatch)
    folder = tmp_path / "c"
    written_for_host(plan, folder, save_every=1, in_flash=in_flash)
    came = cut_formats(folder, "new.img", is_from_flash=in_flash == "all")
    assert came.old + came.none + came.new == STORES * WAYS * came.writes
    assert came.old >= 3 * WAYS  # a card that was trained lasts until the first write
    assert came.none > came.new > 0
    if kind in ("in tiles", "in pieces") and optimizer == "sgd":
        assert card_layout(plan, 2).journal_entries > 0
    # The journal of what was there before is not that of the new network.
    assert cut_everywhere(folder, card="new.img").cuts > 0


ADAPTED = f"{NETS}:adapted"
FROZEN = {
    "backbone.0.weight", "backbone.0.bias", "backbone.1.weight", "backbone.1.bias",
    "backbone.1.running_mean", "backbone.1.running_var", "backbone.3.weight", "backbone.3.bias",
    "scale",
}  # fmt: skip


def adapted(planned: Planner, params: str) -> Plan:
    return planned(ADAPTED, "40 KB", "sgd?momentum=0.9", params=params)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Those of the network, buffers and all."""
    arrays = {name: x.numpy() for name, x in nets.adapted()[0].state_dict().items()}
    write_safetensors(arrays, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.mark.parametrize("params", ["resident", "paged", "streamed"])
def test_what_never_changes_is_read_in_flash(
    params: str, planned: Planner, emitted: Emitter, weights: Path
) -> None:
    plan = adapted(planned, params)
    on_card = emitted(plan, weights=weights)
    in_flash = emitted(plan, weights=weights, flash="frozen")
    made, other = read_folder(in_flash)[0], read_folder(on_card)[0]
    names = {plan.graph.tensors[i].name for i in made.card.flash}
    assert names >= FROZEN
    assert not other.card.flash
    assert not made.card.fixed
    assert made.card.image_bytes < other.card.image_bytes
    with_card, with_flash = Library(on_card), Library(in_flash)
    for library in (with_card, with_flash):
        library.check(library.init())
        for n in range(3):
            library.train(n % 2)
    ours, theirs = with_flash.weights(), with_card.weights()
    assert ours.keys() == theirs.keys()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
    assert with_flash.infer([with_flash.batch(0)[0], None])[0].tobytes() == (
        with_card.infer([with_card.batch(0)[0], None])[0].tobytes()
    )


def test_a_host_and_a_board_train_with_a_frozen_backbone_in_flash(
    planned: Planner, emitted: Emitter, weights: Path, board_tools: None
) -> None:
    plan = adapted(planned, "paged")
    plan = msgspec.structs.replace(
        plan, budget=msgspec.structs.replace(plan.budget, ram_bytes=None), arena=None
    )
    folders = [emitted(plan, target, weights=weights, flash="frozen") for target in TARGETS]
    for folder in folders:
        assert emulate(folder).differences == ()
    cards = [read_tensors(f / "card.img", plan.graph, read_folder(f)[0].card) for f in folders]
    assert {plan.graph.tensors[i].name for i in cards[0]} >= FROZEN
    assert all(cards[0][i].tobytes() == cards[1][i].tobytes() for i in cards[0])


def test_a_folder_is_held_to_its_flash(planned: Planner, emitted: Emitter, weights: Path) -> None:
    folder = emitted(adapted(planned, "paged"), weights=weights, flash="frozen")
    text = (folder / "flash.c").read_text()
    (folder / "flash.c").write_text(text.replace("u,", "u + 1,", 1))
    with pytest.raises(PoetError, match=r"flash\.c is not what this POET writes"):
        emulate(folder)
    (folder / "flash.c").write_text(text)
    kept = folder / "kept"
    shutil.move(folder / "flash.safetensors", kept)
    with pytest.raises(PoetError, match="does not have"):
        emulate(folder)
    other = read_safetensors(kept)
    other["scale"] = np.ascontiguousarray(other["scale"] + 1)
    write_safetensors(other, folder / "flash.safetensors")
    with pytest.raises(PoetError, match=r"flash\.(c|safetensors) is not what this POET writes"):
        emulate(folder)


def test_flash_that_is_too_small_is_refused(planned: Planner, tmp_path: Path) -> None:
    plan = planned("mlp?size=16&hidden=260&layers=1", "14 KB", "sgd", params="streamed")
    plan = msgspec.structs.replace(
        plan, budget=msgspec.structs.replace(plan.budget, ram_bytes=None), arena=None
    )
    nbytes = sum(plan.graph.tensors[i].nbytes for i in plan.graph.given)
    assert nbytes > 262_144
    with pytest.raises(Infeasible, match=r"of flash.*microbit has 262,144"):
        poet.emit(plan, tmp_path / "c", "microbit", flash="all")
    assert not (tmp_path / "c").exists()
    with pytest.raises(PoetError, match="flash is 'much'"):
        poet.emit(plan, tmp_path / "c", flash="much")  # type: ignore[arg-type]


def test_more_than_there_are_addresses_for_is_refused() -> None:
    check_room(2**25 - 2)
    with pytest.raises(PoetError, match=r"33,554,431 bytes would be in flash"):
        check_room(2**25 - 1)


def test_no_bytes_are_an_array_too() -> None:
    text = flash_c(Flash(b"", {}, {}))
    assert text.endswith("{\n    0,\n};\n")
    assert "0x04030201u, 0x00000005u," in flash_c(Flash(bytes([1, 2, 3, 4, 5]), {}, {}))
