"""What the tests of other libraries share: one thread, so that bits repeat, and the examples."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

LIBRARIES = ("accelerate", "datasets", "lightning", "peft", "torch", "transformers", "trl")
MISSING = [each for each in LIBRARIES if importlib.util.find_spec(each) is None]
if "torch" in MISSING and not os.environ.get("CI"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def _libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Skipped without them on a laptop, demanded in CI."""
    if MISSING and not os.environ.get("CI"):
        pytest.skip(f"{', '.join(MISSING)} not installed: pip install '.[integrations]'")
    assert not MISSING, f"{', '.join(MISSING)} not installed"
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POET_CACHE", str(tmp_path_factory.mktemp("captures")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """An example script, as a module, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # where a script would be run

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
