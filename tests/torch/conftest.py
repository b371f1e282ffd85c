"""What the tests with torch share: one thread, so that bits repeat, and a model of a user's."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None and not os.environ.get("CI"):
    collect_ignore_glob = ["test_*.py"]  # pip install '.[transformers]' for these


@pytest.fixture(autouse=True, scope="session")
def _torch() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


EAGER_STEP = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(384, 10))
with torch.autocast("cpu", torch.bfloat16):
    loss = nn.functional.cross_entropy(model(torch.randn(3, 1, 8, 8)), torch.tensor([1, 2, 3]))
loss.backward()
assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
"""


@pytest.fixture(scope="session")
def eager_bfloat16() -> None:
    """Skips where PyTorch itself cannot take a step in bfloat16.

    On some processors oneDNN offers it and then fails, with every later op of the process: so it
    is asked in a process of its own.
    """
    asked = [sys.executable, "-c", EAGER_STEP]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        pytest.skip(f"eager PyTorch cannot train in bfloat16 on this processor: {said[-1]}")


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    """A small model in a file of its own, as a user would write it."""
    file = tmp_path / "my_model.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n\n\n"
        "def make():\n"
        "    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))\n"
        "    example = (torch.randn(8, 16), torch.randint(0, 4, (8,)))\n"
        "    return model, example, nn.functional.cross_entropy\n"
    )
    return file
