"""Plans, firmware and objects of C for the tests, made once for all processes of a run."""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

import poet
from poet.firmware.emit import emit
from poet.firmware.emulate.comparison import REFERENCE
from poet.firmware.reference import write_reference
from poet.firmware.write.folder import FLAGS, read_folder
from poet.firmware.write.text import SOURCES
from poet.tracer.by_name import capture_named
from poet.values.optimizers import parse_optimizer
from poet.values.plan import Plan
from poet.values.quantities import parse_bytes
from poet.values.schedule import Params

TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm", "make")
NETS = "tests/mcu/nets.py"
ROOT = Path(__file__).parents[2]
COMPILE_ONCE = Path(__file__).parent / "compile_once.py"
SANITIZED = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
ROOM = 1.04
"""Plans leave a little for gaps between tensors, so that few are planned again."""


@pytest.fixture(scope="session")
def board_tools() -> None:
    """The cross compiler and the emulator: skipped without on a laptop, demanded in CI."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{', '.join(missing)} not installed")
    assert not missing, f"{', '.join(missing)} not installed"


@pytest.fixture(autouse=True, scope="package")
def _made_once(shared: Path) -> Iterator[None]:
    """The kernels are the same files in every firmware: compilers keep their objects."""
    tools, kept = shared / f"tools-{os.getpid()}", shared / "objects"
    tools.mkdir(exist_ok=True)
    kept.mkdir(exist_ok=True)
    for name in ("cc", "arm-none-eabi-gcc"):
        compiler = shutil.which(name)
        if compiler is not None:
            words = (sys.executable, "-I", "-S", COMPILE_ONCE, kept, compiler)
            (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
            (tools / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
        yield


Planner = Callable[..., Plan]


@pytest.fixture(scope="session")
def planned(shared: Path) -> Planner:
    """A plan for a network, made once for each question."""
    known: dict[tuple[object, ...], Plan] = {}

    def plan(
        model: str, ram: int | str, optimizer: str = "sgd?momentum=0.9", params: Params = "paged",
        method: str | None = None, within: float | None = None,
    ) -> Plan:  # fmt: skip
        """`within` waits for a plan so near to its bound; else what is there soon will do."""
        key = (model, ram, optimizer, params, method, within)
        file = shared / f"{hashlib.sha256(repr(key).encode()).hexdigest()}.json"
        if key not in known and file.exists():
            known[key] = poet.read_json(file, Plan)
        if key not in known:
            name = f"{ROOT}/{model}" if model.startswith("tests/") else model
            fuse = params == "streamed"
            program = capture_named(name, parse_optimizer(optimizer), fuse_updates=fuse)
            limit = parse_bytes(ram)
            ask = partial(
                poet.plan, program, device="nrf52840", params=params, method=method,
                gap=within or 0.02, time_limit=60 if within else 3,
            )  # fmt: skip
            made = ask(ram=int(limit / ROOM))
            if not made.schedule:  # there is next to no choice
                made = ask(ram=limit)
            assert made.schedule, made.reason
            budget = msgspec.structs.replace(made.budget, ram_bytes=limit)
            known[key] = msgspec.structs.replace(made, budget=budget)
            poet.write_json(known[key], file, force=True)
        return known[key]

    return plan


@pytest.fixture(scope="session")
def streamed(planned: Planner) -> Planner:
    """The same with parameters that may be read in tiles."""
    return partial(planned, params="streamed")


Emitter = Callable[..., Path]


@pytest.fixture
def references(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of one graph on one card are taken once in PyTorch, for whatever schedule."""

    def write(folder: Path) -> None:
        made, plan = read_folder(folder)
        asked = msgspec.json.encode((plan.graph, made.card)) + (folder / "card.img").read_bytes()
        kept = shared / f"{hashlib.sha256(asked).hexdigest()}.safetensors"
        if not kept.exists():
            write_reference(folder)
            new = shutil.copyfile(folder / REFERENCE, f"{kept}.{os.getpid()}")
            os.replace(new, kept)
        shutil.copyfile(kept, folder / REFERENCE)

    monkeypatch.setattr("poet.firmware.reference.write_reference", write)


@pytest.fixture
def emitted(tmp_path: Path, references: None) -> Emitter:
    """A folder of C for a plan and a target."""

    def write(plan: Plan, target: str = "host", **more: object) -> Path:
        folder = tmp_path / f"{target}-{len(list(tmp_path.iterdir()))}"
        emit(plan, folder, target, **{"lr": 0.05, **more})  # type: ignore[arg-type]
        return folder

    return write


def built_kernels(folder: Path, names: tuple[str, ...]) -> ctypes.CDLL:
    """A library of some files of kernels; what poet.c does with a bad index is not in it."""
    stub = folder / "stub.c"
    stub.write_text('#include "kernels.h"\nvoid poet_no_such_index(int64_t i, int32_t n)\n'
                    "{\n    (void)i;\n    (void)n;\n    __builtin_trap();\n}\n"
                    "void poet_check_failed(uint32_t op)\n{\n    (void)op;\n"
                    "    __builtin_trap();\n}\n")  # fmt: skip
    files = [str(stub), *(str(SOURCES / f"{name}.c") for name in names)]
    path = folder / "kernels.so"
    words = [*FLAGS.split(), f"-I{SOURCES}", "-fPIC", "-shared"]
    subprocess.run(["cc", *words, "-o", str(path), *files], check=True)
    return ctypes.CDLL(str(path))


def run_make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-C", str(folder), *words], capture_output=True, text=True, check=False
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Networks with attention masks are captured as they are exported, which is said; what is held
    here is that C does as the captured step does."""
    item.add_marker(pytest.mark.filterwarnings("ignore:.*decides by the values of a tensor"))
