"""Sizes and deadlines as people write them."""

import pytest

from poet import PoetError
from poet.values.quantities import (
    amount_text,
    bytes_text,
    goal_text,
    parse_bytes,
    parse_deadline,
    parse_share,
    share_text,
    short_bytes_text,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("300000", 300_000),
        (300_000, 300_000),
        ("0", 0),
        ("500KB", 500_000),
        ("256KiB", 262_144),
        ("256 kib", 262_144),
        ("1.5MB", 1_500_000),
        ("0.1KiB", 102),
        ("2GiB", 2**31),
        ("1TB", 10**12),
        ("737_719", 737_719),
        ("737,719 B", 737_719),
    ],
)
def test_sizes(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "12 bananas",
        "-1",
        "",
        "KB",
        "1e6",
        "nan",
        "inf",
        "1.5.2MB",
        "0x10",
        "٣MB",
        "1 KB KB",
        "10PB ",
    ],
)
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(PoetError) as error:
        parse_bytes(text, "RAM budget")
    assert repr(text) in str(error.value)
    assert "256KiB" in str(error.value)


def test_sizes_beyond_all_bounds() -> None:
    with pytest.raises(PoetError, match="the most POET handles"):
        parse_bytes("9" * 40)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1.5x", 3.0), ("20s", 20.0), ("350ms", 0.35), ("2 min", 120.0), ("1h", 3600.0), (".5X", 1.0)],
)
def test_deadlines(text: str, seconds: float) -> None:
    assert parse_deadline(text, step_seconds=2.0) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("text", ["", "20", "-1s", "soon", "1.5", "nans", "infs", "1e999s", "x"])
def test_wrong_deadlines(text: str) -> None:
    with pytest.raises(PoetError) as error:
        parse_deadline(text, step_seconds=2.0)
    assert repr(text) in str(error.value)


def test_amounts_for_people() -> None:
    assert bytes_text(500) == "500 B"
    assert bytes_text(262_144) == "262,144 B (256.0 KiB)"
    assert bytes_text(3 * 2**50) == "3,377,699,720,527,872 B (3072.0 TiB)"
    assert [short_bytes_text(n) for n in (0, 1023, 1024, 1536 * 1024)] == [
        "0 B",
        "1,023 B",
        "1.0 KiB",
        "1.5 MiB",
    ]
    assert [amount_text(x, "J") for x in (0, 545.7e-3, 9.9e-10, 12.0, 8674.1, 331_500.0)] == [
        "0 J",
        "545.7 mJ",
        "0.9900 nJ",
        "12.00 J",
        "8,674 J",
        "331,500 J",
    ]
    assert goal_text("bytes", 2048.0) == "2,048 B (2.0 KiB)"
    assert (goal_text("joules", 0.5), goal_text("seconds", 2)) == ("500.0 mJ", "2.000 s")
    assert (share_text(0.125), share_text(0.00123, 2)) == ("12.5 %", "0.12 %")


@pytest.mark.parametrize("given", [0.6, "0.6", 0.004])
def test_a_fraction_of_a_byte_is_no_budget(given: float | str) -> None:
    share = f"{100 * float(given):g}%"
    with pytest.raises(PoetError, match=f'less than one byte.* write "{share}"'):
        parse_bytes(given, "RAM budget")  # type: ignore[arg-type]
    assert parse_bytes("0.5 KB") == 500
    assert parse_bytes(0) == 0


@pytest.mark.parametrize(("text", "share"), [("60%", 0.6), (" 7.5 % ", 0.075), ("100%", 1.0)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)
    assert parse_share("60") is None


@pytest.mark.parametrize("text", ["160%", "-1%", "%", "six%", "1e2%"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(PoetError, match="is not from 0% to 100%"):
        parse_share(text)
