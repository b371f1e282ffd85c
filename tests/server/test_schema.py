"""The schema: what it promises is what comes, of requests that nobody thought of.

One of each, good and bad; the benchmark `service-fuzz` tries thousands.
"""

import pytest
from starlette.testclient import TestClient

CASES = 1


def test_no_answer_is_a_fault_and_each_is_as_declared() -> None:
    pytest.importorskip("schemathesis")
    from benchmarks.service_fuzz import main

    tally = main(CASES)
    assert tally.statuses[200] > 10
    assert tally.statuses[202] > 0
    assert tally.statuses[422] > 10


def test_503_is_declared_everywhere_and_429_says_when_to_come_back(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    for methods in paths.values():
        for about in methods.values():
            assert {"401", "403", "429", "503"} <= about["responses"].keys()
            for status in ("429", "503"):
                assert "Retry-After" in about["responses"][status]["headers"]
