"""Networks trained on emulated boards: the same bits as on the host, and the weights of PyTorch."""

import shutil
from pathlib import Path

import pytest

from poet.errors import PoetError
from poet.firmware.boards import find_board, targets
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import Emulation, emulate
from poet.firmware.write.folder import read_folder
from poet.values.plan import Plan

from .conftest import NETS, Emitter, Planner, run_make

pytestmark = pytest.mark.usefixtures("board_tools")

MLP = "mlp?size=8&hidden=16&layers=1"
CASES = {
    "mlp": (MLP, "13 KB", tuple(targets()[1:])),
    "lenet": ("lenet?size=16", "122 KB", ("netduinoplus2", "nrf52840")),
    "resnet8": (f"{NETS}:resnet8", "120 KB", ("netduinoplus2",)),
    "separable": (f"{NETS}:separable", "48 KB", ("netduinoplus2", "mps3-an547")),
}
WITHIN = {"resnet8": 0.3}
"""A plan that only pages, which is the first there is, has a gap of 0.42."""


@pytest.mark.parametrize("name", CASES)
def test_boards_train_as_the_host_does(name: str, planned: Planner, emitted: Emitter) -> None:
    model, ram, targets = CASES[name]
    plan = planned(model, ram, within=WITHIN.get(name))
    host = emitted(plan)
    _, plan = read_folder(host)  # the plan that was placed
    assert emulate(host).differences == ()
    against = compare_card(host)
    assert against is not None
    assert against.is_close, against
    assert against.moved > 0.01  # a learning rate that moves the weights
    for target in targets:
        folder = emitted(plan, target)
        run = emulate(folder)
        assert run.differences == ()
        assert_inside(run, target)
        assert (folder / "card.img").read_bytes() == (host / "card.img").read_bytes()


def assert_inside(run: Emulation, target: str) -> None:
    board, ram = find_board(target), run.ram
    assert board is not None
    assert ram is not None
    assert ram.used_bytes <= ram.limit_bytes <= board.ram_bytes
    assert 0 < run.steps[-1].stack_bytes < ram.stack_bytes
    assert run.steps[-1].instructions > 10_000


def test_networks_on_boards_really_page_and_recompute(planned: Planner) -> None:
    plan = planned(*CASES["resnet8"][:2], within=WITHIN["resnet8"])
    assert plan.recomputed > 0
    assert plan.paged_bytes > 100_000


@pytest.fixture
def tight(planned: Planner, emitted: Emitter) -> tuple[Plan, Path]:
    plan = planned(MLP, "13 KB")
    return plan, emitted(plan, "microbit")


def test_a_byte_less_of_ram_does_not_link(tight: tuple[Plan, Path]) -> None:
    _, folder = tight
    run = emulate(folder)
    assert run.ram is not None
    _set_ram(folder, run.ram.limit_bytes, run.ram.used_bytes)
    assert run_make(folder, "-B").returncode == 0
    _set_ram(folder, run.ram.used_bytes, run.ram.used_bytes - 1)
    failed = run_make(folder, "-B")
    assert failed.returncode != 0
    assert "RAM" in failed.stderr


@pytest.mark.parametrize("target", targets()[1:])
def test_more_ram_than_the_board_has_faults(
    target: str, planned: Planner, emitted: Emitter
) -> None:
    folder = emitted(planned(MLP, "13 KB"), target)
    emulate(folder, steps=1)
    board = find_board(target)
    assert board is not None
    # A linker script that promises a megabyte, and an arena that begins just below the end.
    script = folder / "link.ld"
    text = script.read_text()
    line = next(line for line in text.splitlines() if "RAM (rwx)" in line)
    text = text.replace(line, f"    RAM (rwx) : ORIGIN = {hex(board.ram_origin)}, LENGTH = 1M")
    end = hex(board.ram_origin + board.ram_bytes - 4096)
    text = text.replace(".arena (NOLOAD) : ALIGN(8) {", f".arena {end} (NOLOAD) : {{")
    script.write_text(text)
    with pytest.raises(PoetError, match="fault"):
        emulate(folder, steps=1, edited=True)


def test_a_damaged_card_is_refused(tight: tuple[Plan, Path]) -> None:
    _, folder = tight
    image = bytearray((folder / "card.img").read_bytes())
    image[100] ^= 1
    (folder / "card.img").write_bytes(image)
    with pytest.raises(PoetError, match="damaged"):
        emulate(folder)


def test_the_firmware_itself_refuses_a_card_of_another_network(
    tight: tuple[Plan, Path], planned: Planner, emitted: Emitter
) -> None:
    _, folder = tight
    other = emitted(planned("mlp?size=8&hidden=8&layers=1", "13 KB"), "microbit")
    shutil.copyfile(other / "card.img", folder / "card.img")
    with pytest.raises(PoetError, match="another network"):
        emulate(folder)


def _set_ram(folder: Path, old: int, new: int) -> None:
    script = folder / "link.ld"
    text = script.read_text()
    assert f"LENGTH = {old}\n" in text
    script.write_text(text.replace(f"LENGTH = {old}\n", f"LENGTH = {new}\n"))


def test_convolutions_fit_the_stack_of_the_smallest_board(
    planned: Planner, emitted: Emitter
) -> None:
    """It has no registers for floats: what tiles keep in them elsewhere lies on the stack there."""
    plan = planned(f"{NETS}:two_convolutions", "13 KB", "sgd", params="paged")
    host, folder = (emitted(plan, target, steps=2) for target in ("host", "microbit"))
    emulate(host)
    run = emulate(folder)
    assert_inside(run, "microbit")
    assert run.ram is not None
    assert max(step.stack_bytes for step in run.steps) <= run.ram.stack_bytes - 64
    assert (folder / "card.img").read_bytes() == (host / "card.img").read_bytes()
