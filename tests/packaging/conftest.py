"""What the tests of packages need from the machine."""

import os
from collections.abc import Callable

import pytest

Demand = Callable[[list[str]], None]


@pytest.fixture(scope="session")
def demand() -> Demand:
    """Tools that are missing skip a test on a laptop, and fail it in CI."""

    def check(missing: list[str]) -> None:
        told = f"{', '.join(missing)} not installed"
        if missing and not os.environ.get("CI"):
            pytest.skip(told)
        assert not missing, told

    return check
