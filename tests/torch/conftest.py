"""What the tests with torch share: one thread, so that bits repeat, and a cache of their own."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None and not os.environ.get("CI"):
    collect_ignore_glob = ["test_*.py"]  # pip install '.[transformers]' for these


@pytest.fixture(autouse=True, scope="session")
def _torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POET_CACHE", str(tmp_path_factory.mktemp("captures")))
        yield
    torch.set_num_threads(before)


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
