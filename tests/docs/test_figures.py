"""What the comparison of printed text with the pages accepts, and what it refuses."""

import pytest

from tests.docs.figures import far_apart, figures, words

PAGE = """\
loss of step 1            2.050646
paged in                  4 times, 4,840 B (4.7 KiB)
time a step, predicted    49.64 ms
weights against PyTorch   1.6e-07 of their change apart
error against float64     1.10 times PyTorch's
poet          456.0 µJ      100.05%
energy        1,284.6 mJ: 565.2 mJ compute, 0 J idle
"""


def same(found: str, told: str = PAGE) -> bool:
    return words(found) == words(told) and not far_apart(found, told)


def test_every_figure_that_rounding_touches_is_found() -> None:
    assert [(figure.kind.name, figure.text) for figure in figures(PAGE)] == [
        ("a loss", "2.050646"),
        ("joules or seconds", "49.64"),
        ("a distance from PyTorch", "1.6e-07"),
        ("rounding by rounding", "1.10"),
        ("joules or seconds", "456.0"),
        ("a share of keep-all's", "100.05"),
        ("joules or seconds", "1,284.6"),
        ("joules or seconds", "565.2"),
    ]
    assert "4 times, 4,840 B (4.7 KiB)\n" in words(PAGE)
    assert same(PAGE)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("2.050646", "2.050651"),
        ("49.64 ms", "49.65 ms"),
        ("1.6e-07", "1.7e-07"),
        ("1.6e-07", "9.4e-08"),
        ("1.10 times", "0.83 times"),
        ("456.0 µJ      100.05%", "456.1 µJ      100.07%"),
        ("1,284.6 mJ", "1,285.0 mJ"),
    ],
)
def test_the_same_but_for_rounding(told: str, found: str) -> None:
    assert PAGE.count(told) == 1
    assert same(PAGE.replace(told, found))


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("2.050646", "2.060646"),
        ("2.050646", "20.50646"),
        ("2.050646", "nan"),
        ("2.050646", "-2.050646"),
        ("step 1", "step 2"),
        ("4 times", "5 times"),
        ("4,840 B", "4,841 B"),
        ("4.7 KiB", "4.8 KiB"),
        ("49.64 ms", "49.64 s"),
        ("49.64 ms", "50.64 ms"),
        ("1.6e-07", "1.6e-06"),
        ("1.6e-07", "1.6e-08"),
        ("1.6e-07", "0.0e+00"),
        ("1.6e-07", "inf"),
        ("1.10 times", "2.50 times"),
        ("PyTorch's", "NumPy's"),
        ("100.05%", "101.05%"),
        ("1,284.6 mJ", "1,294.6 mJ"),
        ("0 J idle", "1 J idle"),
        ("0 J idle", "0.1 J idle"),
        ("energy", "power"),
        ("energy", ""),
    ],
)
def test_another_meaning(told: str, found: str) -> None:
    assert PAGE.count(told) == 1
    assert not same(PAGE.replace(told, found))
