"""Boards: every figure accounted for, the paper's constants exact, names that forgive."""

import math
import shutil
from pathlib import Path

import msgspec
import pytest

from poet import Device, PoetError, find_device
from poet.costs.classes import CLASSES
from poet.devices import device_names
from poet.values.files import decode_toml
from tests.conftest import INSTANCES, ROOT

OF_THE_PAPER = {
    # name: FLOP/s, compute watts, then latency, bytes/s and watts in and out
    "mkr1000-paper": (2000 / 0.012, 0.020 * 3.3, 1.09e-4, 4.61651e6, 0.33, 1.13e-4, 4.44e6, 0.33),
    "nrf52840-paper": (
        1.6283e9 / 255.6237, 0.003328 * 3.3, 1.09e-4, 4.61651e6, 0.33, 1.13e-4, 4.44e6, 0.33,
    ),
    "rpi4": (2e9, 0.6 * 5, 5.09561e-6, 45.5e6, 0.15, 1.85314e-5, 24.5e6, 0.15),
    "rpi4-uncached": (
        1.6283e9 / 13.53, 0.6 * 5, 5.09561e-6, 45.5e6, 0.15, 4.23532e-3, 17.1e6, 0.15,
    ),
    "jetson-tx2": (None, 0.766, 5.4e-4, 108.5e6, 0.309, 2.396e-3, 94.37e6, 0.309),
}  # fmt: skip


@pytest.mark.parametrize("name", device_names())
def test_every_figure_has_a_source_or_a_reason(name: str) -> None:
    board = find_device(name)
    assert board.name == name
    assert board.title
    sourced, estimated = set(board.sources), set(board.estimates)
    assert sourced | estimated == set(board.explained)
    assert not sourced & estimated
    assert all(text.strip() for text in (*board.sources.values(), *board.estimates.values()))


def test_there_are_enough_boards() -> None:
    assert set(OF_THE_PAPER) <= set(device_names())
    assert len(device_names()) >= len(OF_THE_PAPER) + 6


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_constants_of_the_paper(name: str) -> None:
    board = find_device(name)
    flops, *rest = OF_THE_PAPER[name]
    if flops is not None:
        assert math.isclose(board.flops_per_second, flops, rel_tol=1e-12)
    got = (
        board.compute_watts,
        board.page_in_latency_seconds,
        board.page_in_bytes_per_second,
        board.page_in_watts,
        board.page_out_latency_seconds,
        board.page_out_bytes_per_second,
        board.page_out_watts,
    )
    assert got == pytest.approx(rest, rel=1e-12)
    assert board.idle_watts == 0


@pytest.mark.parametrize(
    ("instance", "name"), [("m0", "mkr1000-paper"), ("m4", "nrf52840-paper"), ("a72", "rpi4")]
)
def test_boards_price_transfers_as_the_instances_do(instance: str, name: str) -> None:
    from poet import read_instance

    problem, board = read_instance(INSTANCES / f"vgg16-{instance}.json"), find_device(name)
    for tensor, price in zip(problem.graph.tensors, problem.costs.tensors, strict=True):
        read, write = board.page_in_seconds(tensor.nbytes), board.page_out_seconds(tensor.nbytes)
        assert math.isclose(price.in_seconds, read, rel_tol=1e-9)
        assert math.isclose(price.out_seconds, write, rel_tol=1e-9)
        assert math.isclose(price.in_joules, read * board.page_in_watts, rel_tol=1e-9)
        assert math.isclose(price.out_joules, write * board.page_out_watts, rel_tol=1e-9)
    flops = [run["plain"].seconds * board.flops_per_second for run in problem.costs.ops]
    rate = board.energy_flops_per_second or board.flops_per_second
    joules = sum(flops) / rate * board.compute_watts
    assert math.isclose(joules, problem.costs.keep_all_joules, rel_tol=1e-9)


@pytest.mark.parametrize("name", ["mkr1000", "nrf52840"])
def test_boards_with_counted_rates_are_the_paper_s_in_all_else(name: str) -> None:
    board, paper = find_device(name), find_device(f"{name}-paper")
    assert paper.class_flops_per_second == {}
    assert len(board.class_flops_per_second) > 10
    counted = {"flops_per_second", "class_flops_per_second", "clock_hz", "cycles_per_instruction"}
    told = {"name", "title", "sources", "estimates"}
    ours, theirs = msgspec.structs.asdict(board), msgspec.structs.asdict(paper)
    assert {field for field in ours if ours[field] != theirs[field]} == counted | told
    assert set(board.class_flops_per_second) <= set(CLASSES)
    assert f"{paper.flops_per_second:.3g}" in board.estimates["flops_per_second"]


def test_rates_of_classes_have_a_reason_too() -> None:
    rates = "\n[class_flops_per_second]\nproducts = 1e6\n"
    plain = (ROOT / "src/poet/devices/rp2040.toml").read_text() + rates
    assert "class_flops_per_second" in decode_toml(plain.encode(), Device, "x").explained
    reason = plain.replace("[estimates]", "[estimates]\nclass_flops_per_second = 'measured here'")
    read = decode_toml(reason.encode(), Device, "x")
    assert read.estimates["class_flops_per_second"] == "measured here"
    for wrong in (reason.replace(rates, ""), plain.replace("products = 1e6", "products = 0.0")):
        with pytest.raises(PoetError, match="class_flops_per_second"):
            decode_toml(wrong.encode(), Device, "x")


def test_a_path_works_where_a_name_does(tmp_path: Path) -> None:
    mine = tmp_path / "my-board.toml"
    shutil.copy(ROOT / "src/poet/devices/rp2040.toml", mine)
    assert find_device(str(mine)).ram_bytes == find_device("RP2040").ram_bytes
    assert find_device(str(mine)).name == "my-board"


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(PoetError, match="Did you mean nrf52840"):
        find_device("nrf52480")
    with pytest.raises(PoetError, match="There are esp32-s3, "):
        find_device("zzzzzz")
    with pytest.raises(PoetError, match="No such file"):
        find_device("nowhere/board.toml")


BOARD = (ROOT / "src/poet/devices/nrf52840.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ram_bytes = 262_144", "ram_bytes = -1", "ram_bytes is -1"),
        ("ram_bytes = 262_144", "ram_bytes = 0", "ram_bytes is 0"),
        ("ram_bytes = 262_144", "ram_bytes = '256K'", "ram_bytes: Expected `int`, got `str`"),
        ("ram_bytes = 262_144", "", "missing required field `ram_bytes`"),
        ("ram_bytes = 262_144", "ram_bites = 1", "unknown field `ram_bites`"),
        ("idle_watts = 0.0", "idle_watts = nan", "idle_watts is nan"),
        ("compute_watts = 0.0109824", "compute_watts = inf", "compute_watts is inf"),
        ("reserved_bytes = 16_384", "reserved_bytes = 999999999", "leaves nothing"),
        ("page_in_bytes_per_second = 4616510.0", "page_in_bytes_per_second = 0.0", "more than 0"),
        ('format = "poet-device/1"', 'format = "poet-device/9"', "version '9'"),
        ('format = "poet-device/1"', "", "no field 'format'"),
        ("[sources]", "[sources]\ncolour = 'blue'", "'colour', not a figure"),
        ("[sources]", "[sources", "not valid TOML"),
    ],
)
def test_wrong_boards_say_what_is_wrong(old: str, new: str, message: str) -> None:
    assert old in BOARD
    with pytest.raises(PoetError) as error:
        decode_toml(BOARD.replace(old, new, 1).encode(), Device, "mine.toml")
    assert str(error.value).startswith("mine.toml")
    assert message in str(error.value)
