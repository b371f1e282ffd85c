"""Tests of this folder do without torch: importing it takes longer than most of them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def alone(request: pytest.FixtureRequest) -> bool:
    """Whether no tests from elsewhere, which may need torch, run in this process."""
    return all(HERE in item.path.parents for item in request.session.items)


@pytest.fixture(autouse=True)
def _torch_stays_out(alone: bool) -> Iterator[None]:
    yield
    assert not (alone and "torch" in sys.modules), "something in tests/unit has imported torch"
