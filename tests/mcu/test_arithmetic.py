"""exp, log, sqrt, tanh and sigmoid against double precision."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poet.firmware.write.text import SOURCES
from poet.native import built

Floats = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = built(Path(SOURCES) / "arithmetic.c")
    assert found is not None
    return found


def applied(library: ctypes.CDLL, name: str, values: Floats) -> Floats:
    function = getattr(library, name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return np.array([function(float(x)) for x in values], dtype=np.float32)


def steps_apart(found: Floats, exact: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The largest distance in units of the last place."""
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(found.astype(np.float64) - exact) / unit))


def floats(low: float, high: float, count: int = 20_000) -> Floats:
    return np.random.default_rng(0).uniform(low, high, count).astype(np.float32)


def single(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def test_square_roots_are_the_nearest(library: ctypes.CDLL) -> None:
    bits = np.random.default_rng(1).integers(0, 0x7F800000, 50_000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), single(0, 1, 4, 1e-45, 3.4e38, 16777217)])
    assert np.array_equal(applied(library, "poet_sqrt", values), np.sqrt(values))


@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "most"),
    [
        ("poet_exp", np.exp, -80, 80, 1.5),
        ("poet_exp", np.exp, -1, 1, 1.5),
        ("poet_log", np.log, 1e-30, 1e-3, 1.5),
        ("poet_log", np.log, 0.5, 100, 1.5),
        ("poet_tanh", np.tanh, -10, 10, 3),
        ("poet_sigmoid", lambda x: 1 / (1 + np.exp(-x)), -20, 20, 3),
    ],
)
def test_functions_are_close(
    library: ctypes.CDLL, name: str, exact: Any, low: float, high: float, most: float
) -> None:
    values = floats(low, high)
    assert steps_apart(applied(library, name, values), exact(values.astype(np.float64))) <= most


def test_sine_and_cosine_of_any_number() -> None:
    """Large ones, too: what is left of 1e30 turns is in the bits of 2 / pi far behind the point."""
    found = built(Path(SOURCES) / "sine.c")
    assert found is not None
    bits = np.random.default_rng(2).integers(0, 0x7F800000, 20_000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), -floats(0, 100), single(0, -0.0, 1e30)])
    for name, exact in (("poet_sine", np.sin), ("poet_cosine", np.cos)):
        function = getattr(found, name)
        function.restype, function.argtypes = (
            ctypes.c_float,
            [ctypes.c_float] * 3 + [ctypes.c_void_p],
        )
        made = np.array([function(float(x), 0, 0, None) for x in values], dtype=np.float32)
        assert steps_apart(made, exact(values.astype(np.float64))) <= 3, name
        assert np.isnan(function(np.inf, 0, 0, None)), name


def test_ends_of_the_range(library: ctypes.CDLL) -> None:
    values = single(-200, -104, 88.8, 0, np.inf, -np.inf)
    assert applied(library, "poet_exp", values).tolist() == [0, 0, np.inf, 1, np.inf, 0]
    assert applied(library, "poet_log", single(0, 1, np.inf)).tolist() == [-np.inf, 0, np.inf]
    assert np.isnan(applied(library, "poet_log", single(-1))).all()
    assert np.isnan(applied(library, "poet_sqrt", single(-1))).all()
    assert applied(library, "poet_tanh", single(-50, 50)).tolist() == [-1, 1]
    tiny = single(1e-40, 1e-45)
    assert np.allclose(applied(library, "poet_log", tiny), np.log(tiny.astype(np.float64)))
