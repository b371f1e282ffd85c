"""The wheel in an empty environment: it plans with the search that it carries.

Dependencies come from the package index, as they would for anybody, in the versions of
constraints.txt. There is no compiler on the PATH of what runs there, and its cache is empty, so a
compiled search can only have come with the wheel.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from poet.native import COMPILERS
from tests.conftest import INSTANCES, ROOT
from tests.packaging.conftest import Demand

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARIES = {"planner/search/csrc": "anneal", "firmware/place/csrc": "place"}


def build(target: str, folder: Path, root: Path = ROOT, **environment: str) -> tuple[Path, str]:
    """A wheel or an sdist, and what was said on the way."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=root, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made, done.stdout + done.stderr


def libraries(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.fixture(scope="module")
def _tools(demand: Demand) -> None:
    missing = [] if importlib.util.find_spec("hatchling") else ["hatchling"]
    if not any(map(shutil.which, COMPILERS)):
        missing.append("a C compiler")
    demand(missing)


@pytest.fixture(scope="module")
def wheel(_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))[0]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel and what it depends on, nothing else."""
    home = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home)]
    # Most of what comes with the dependencies is never imported: only what is need be compiled.
    needs = [
        "install",
        "-q",
        "--no-compile",
        "-c",
        str(ROOT / "constraints.txt"),
        *PROJECT["dependencies"],
    ]
    done = subprocess.run([*pip, *needs], capture_output=True, text=True, check=False)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"the dependencies cannot be installed here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    subprocess.run([*pip, "install", "-q", "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
    return home / "bin"


def run(where: Path, home: Path, *words: str | Path) -> str:
    """A command of that environment, which finds no other, and no cache."""
    done = subprocess.run(
        [where / words[0], *words[1:]], cwd=home, capture_output=True, text=True, check=False,
        env={"PATH": str(where), "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_its_searches_for_one_platform(wheel: Path) -> None:
    assert wheel.name.startswith("poet_training-")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    found = {Path(name).parent.as_posix(): Path(name).stem for name in libraries(wheel)}
    assert found.keys() == {f"poet/{folder}" for folder in LIBRARIES}
    assert all(found[f"poet/{folder}"].startswith(name) for folder, name in LIBRARIES.items())


def test_a_plan_is_made_with_the_search_that_came_with_it(installed: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    said = run(
        installed, tmp_path, "poet", "plan", INSTANCES / "resnet18_cifar-m4.json",
        "--ram", "500KB", "--deadline", "1.5x", "--work-limit", "2", "--json", "-o", plan,
    )  # fmt: skip
    made = json.loads(said)
    assert made["status"] == "feasible"
    assert made["gap"] < 0.05  # without the compiled search it is 0.26
    checked = json.loads(run(installed, tmp_path, "poet", "check", plan, "--json"))
    assert checked["valid"]
    assert checked["claims_match"]
    assert checked["joules"] == made["joules"]
    assert not (tmp_path / "cache").exists()


def test_both_searches_are_loaded_from_the_environment(installed: Path, tmp_path: Path) -> None:
    program = """
import poet
from poet.firmware.place import arena
from poet.native import built
from poet.planner.search import compiled
print(poet.__file__, compiled.load()._name, built(arena._SOURCE)._name, sep="\\n")
"""
    told = run(installed, tmp_path, "python", "-c", program).splitlines()
    assert len(told) == 3
    assert all(Path(line).is_relative_to(installed.parent) for line in told)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("_tools")
def test_without_a_compiler_the_wheel_is_pure_and_says_so(tmp_path: Path) -> None:
    wheel, said = build("wheel", tmp_path, PATH=str(tmp_path / "nowhere"))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert libraries(wheel) == []
    assert "this is a pure wheel" in said


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive, _ = build("sdist", tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (root,) = (tmp_path / "unpacked").iterdir()
    again, _ = build("wheel", tmp_path / "wheel", root)
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()
