"""The C library's heap: freed memory stays with a process that trains."""

import os
import subprocess
import sys

import pytest

_STEPS = """
import resource, sys, torch
from poet.runtime.heap import keep_freed_memory
kept = keep_freed_memory()
for _ in range(3):
    torch.ones(2_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2_000_000), torch.ones(1_000_000)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[bool, int]:
    known = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _STEPS], env={**known, **environment}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_what_is_freed_is_not_faulted_in_again() -> None:
    kept, count = faults()
    assert kept
    own, mapped = faults(MALLOC_MMAP_THRESHOLD_="65536")
    assert not own  # the user's setting stays
    assert mapped > 20 * 1000
    assert count < mapped / 5
