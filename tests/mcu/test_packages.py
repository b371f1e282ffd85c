"""`poet emit --package`: the folders of ecosystems, by their own tools where they are installed.

Examples for Arduino, Zephyr, ESP-IDF and CMSIS are compiled against stand-ins (`stand_ins/`), which
show that they are C or C++ and use poet.h rightly, and nothing of the ecosystems themselves.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

import poet
from poet.errors import PoetError
from poet.firmware.emit import emit
from poet.firmware.emulate.emulation import emulate
from poet.firmware.packages import WRITERS, package_name
from poet.values.plan import Plan

from .conftest import Emitter, Planner

MLP = "mlp?size=8&hidden=16&layers=1"
NAME = "poet_mlp_size_8_hidden_16_layers_1"
STAND_INS = Path(__file__).parent / "stand_ins"
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wshadow"]
HOSTILE = 'x"; system("id") */ ]]> ${ENV{HOME}} $(id) <a>&\'\n- b: !!python {% \\ é 网'
AROUND = {"main.c", "board.c", "board.h", "start.c", "limit.c", "mpu.h", "clock.h", "bytes.c"}


def target_of(package: str) -> str:
    return "host" if package == "esp-idf" else "nrf52840"


@pytest.fixture
def plan(planned: Planner) -> Plan:
    return planned(MLP, "13 KB")


@pytest.fixture
def hostile(plan: Plan) -> Plan:
    """The same with a name that means something to each of the languages."""
    graph = msgspec.structs.replace(plan.graph, name=HOSTILE)
    return msgspec.structs.replace(plan, graph=graph)


def run(*words: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def need(tool: str) -> None:
    """Tools of ecosystems are not among those that `make setup` installs."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")


def yaml_of(file: Path) -> Any:
    """PyYAML comes with what the tests of transformers need."""
    return pytest.importorskip("yaml").safe_load(file.read_text())


def check_layout(package: str, folder: Path, name: str) -> None:
    """The manifest is well-formed and names what is there; own rules, made of the public ones."""
    sources = {f"src/poet/{file.name}" for file in (folder / "src/poet").glob("*.c")}
    if package == "arduino":
        lines = (folder / "library.properties").read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines)
        assert {"name", "version", "author", "maintainer", "sentence", "paragraph", "category",
                "url", "architectures"} <= found.keys()  # fmt: skip
        assert found["name"] == name
        assert re.fullmatch(r"[A-Za-z0-9][\w .-]{0,62}", found["name"], re.ASCII)
        assert (folder / "src" / found["includes"]).is_file()
        assert (folder / "examples/train/train.ino").is_file()
    elif package == "platformio":
        manifest = json.loads((folder / "library.json").read_text())
        assert manifest["name"] == name
        assert "license" not in manifest
        assert (folder / "src" / manifest["headers"]).is_file()
        for example in manifest["examples"]:
            assert all((folder / example["base"] / file).is_file() for file in example["files"])
    elif package == "zephyr":
        module = yaml_of(folder / "zephyr/module.yml")
        assert module.keys() <= {"name", "build", "samples", "tests", "boards", "blobs"}
        assert module["name"] == name
        assert (folder / module["build"]["cmake"] / "CMakeLists.txt").is_file()
        kconfig = (folder / module["build"]["kconfig"]).read_text()
        assert kconfig.startswith(f"config {name.upper()}\n\tbool ")
        text = (folder / "zephyr/CMakeLists.txt").read_text()
        assert set(re.findall(r"\.\./(src/\S+\.c)", text)) == sources
        assert all((folder / each).is_dir() for each in module["samples"])
    elif package == "esp-idf":
        component = yaml_of(folder / "idf_component.yml")
        assert component["version"] == poet.__version__
        text = (folder / "CMakeLists.txt").read_text()
        assert text.startswith("idf_component_register(")
        assert set(re.findall(r'"(src/\S+\.c)"', text)) == sources
    elif package == "cmsis-pack":
        root = ElementTree.parse(folder / f"POET.{name}.pdsc").getroot()
        assert root.findtext("vendor") == "POET"
        assert root.findtext("name") == name
        files = root.findall("components/component/files/file")
        assert all((folder / file.attrib["name"]).exists() for file in files)
        named = {f.attrib["name"] for f in files if f.attrib["category"] == "source"}
        assert named == sources | {"template/main.c"}
    else:
        text = (folder / "CMakeLists.txt").read_text()
        assert set(re.findall(r"^  (src/\S+\.c)$", text, re.MULTILINE)) == sources


@pytest.mark.parametrize("package", WRITERS)
def test_a_package_is_the_plain_folder_in_other_places(
    package: str, plan: Plan, emitted: Emitter
) -> None:
    target = target_of(package)
    plain, folder = emitted(plan, target), emitted(plan, target, package=package)
    library = {f.name for f in plain.iterdir() if f.suffix in (".c", ".h")} - AROUND
    assert library == {f.name for f in (folder / "src/poet").iterdir()}
    for name in (*library, "card.img", "plan.json", "reference.safetensors"):
        there = folder / "src/poet" / name if name in library else folder / name
        assert there.read_bytes() == (plain / name).read_bytes()
    check_layout(package, folder, NAME)


@pytest.mark.parametrize("package", WRITERS)
def test_no_name_of_a_plan_reaches_a_package(package: str, hostile: Plan, emitted: Emitter) -> None:
    folder = emitted(hostile, target_of(package), package=package)
    name = package_name(HOSTILE)
    assert re.fullmatch(r"poet_[a-z0-9_]{1,40}", name, re.ASCII)
    check_layout(package, folder, name)
    for file in folder.rglob("*"):
        own = file.relative_to(folder).parts[:2] != ("src", "poet")
        if own and file.is_file() and file.suffix not in (".img", ".safetensors"):
            if file.name in ("plan.json", "firmware.json"):
                continue
            text = file.read_text()
            assert text.isascii(), file
            assert "system(" not in text, file
            assert "!!" not in text, file


def test_names_are_letters_and_digits() -> None:
    assert package_name(MLP) == NAME
    assert package_name("/home/me/my nets.py:build") == "poet_my_nets_py_build"
    assert package_name("网络") == package_name("") == "poet_network"
    assert len(package_name("x" * 1000)) == 45


def test_what_cannot_be_packed_is_refused(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "fw"
    with pytest.raises(PoetError, match="no package 'mbed'; the packages are arduino, cmake, "):
        emit(plan, out, package="mbed")
    with pytest.raises(PoetError, match=r'ESP-IDF .* microbit has none: .* target "host"'):
        emit(plan, out, "microbit", package="esp-idf")
    assert not out.exists()


def test_writing_over_a_package_is_whole_or_nothing(
    plan: Plan, planned: Planner, emitted: Emitter, tmp_path: Path
) -> None:
    folder = emitted(plan, package="arduino")
    (folder / "examples/train/mine.txt").write_text("mine")
    (folder / "src/poet/conv.c").write_text("of an earlier network")
    (folder / "src/poet/mine.c").write_text("mine")
    with pytest.raises(PoetError, match="is a package for arduino, and a plain folder of C is"):
        emit(plan, folder, force=True)
    with pytest.raises(PoetError, match="is a package for arduino, and a package for cmake is"):
        emit(plan, folder, package="cmake", force=True)
    emit(plan, folder, package="arduino", force=True)
    assert (folder / "examples/train/mine.txt").read_text() == "mine"
    assert (folder / "src/poet/mine.c").read_text() == "mine"
    assert not (folder / "src/poet/conv.c").exists()  # Arduino compiles all that it finds
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "src").write_text("mine")
    with pytest.raises(PoetError, match="src is no folder"):
        emit(plan, taken, package="arduino", force=True)
    assert [file.name for file in taken.iterdir()] == ["src"]
    assert (taken / "src").read_text() == "mine"


def test_emulate_runs_the_library_of_a_package(plan: Plan, emitted: Emitter) -> None:
    folder = emitted(plan, package="zephyr", steps=2)
    assert len(emulate(folder).steps) == 2
    with pytest.raises(PoetError, match="is a package for zephyr, which builds it in its own way"):
        emulate(folder, edited=True)
    source = folder / "src/poet/poet.c"
    source.write_text(source.read_text() + "\n")
    with pytest.raises(PoetError, match=r"src/poet/poet\.c is not what this POET writes"):
        emulate(folder)


@pytest.mark.usefixtures("board_tools")
def test_cmake_builds_what_trains_on_the_board(plan: Plan, emitted: Emitter) -> None:
    need("cmake")
    plain = emitted(plan, "nrf52840", steps=2)
    folder = emitted(plan, "nrf52840", package="cmake", steps=2)
    run("cmake", "-B", "build", "-DCMAKE_TOOLCHAIN_FILE=cmake/board.cmake", cwd=folder)
    run("cmake", "--build", "build", "--target", "run", cwd=folder)
    emulate(plain)
    assert (folder / "card.img").read_bytes() == (plain / "card.img").read_bytes()


def test_platformio_packs_it(plan: Plan, emitted: Emitter, tmp_path: Path) -> None:
    need("pio")
    folder = emitted(plan, "nrf52840", package="platformio")
    out = tmp_path / "packed"
    out.mkdir()
    run("pio", "pkg", "pack", folder, "-o", f"{out}/", cwd=tmp_path)
    assert [file.name for file in out.iterdir()] == [f"{NAME}-{poet.__version__}.tar.gz"]


def test_compote_packs_it(plan: Plan, emitted: Emitter) -> None:
    need("compote")
    folder = emitted(plan, package="esp-idf")
    run("compote", "component", "pack", "--name", NAME, cwd=folder)
    assert (folder / "dist" / f"{NAME}_{poet.__version__}.tgz").is_file()


@pytest.mark.usefixtures("board_tools")
def test_the_sketch_compiles_as_cpp_and_finds_its_library(plan: Plan, emitted: Emitter) -> None:
    """Against our own Arduino.h: a test of the C++ and of what the linker must find, no more."""
    folder = emitted(plan, "nrf52840", package="arduino")
    cpu = ["-mthumb", "-mcpu=cortex-m4", "-Os", "-ffreestanding"]
    run(
        "arm-none-eabi-g++", *cpu, "-std=gnu++11", *STRICT, "-x", "c++", "-include", "Arduino.h",
        f"-I{STAND_INS}/arduino", "-Isrc", "-c", "examples/train/train.ino", "-o", "train.o",
        cwd=folder,
    )  # fmt: skip
    sources = sorted((folder / "src/poet").glob("*.c"))
    run(
        "arm-none-eabi-gcc", *cpu, "-nostdlib", "-r", "-o", "all.o", "train.o", *sources, cwd=folder
    )
    missing = run("arm-none-eabi-nm", "-u", "all.o", cwd=folder)
    assert "poet_" not in missing
    assert "SD" in missing


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("zephyr", "samples/train/src/main.c"),
        ("esp-idf", "examples/train/main/main.c"),
        ("cmsis-pack", "template/main.c"),
    ],
)
def test_examples_in_c_compile(package: str, source: str, plan: Plan, emitted: Emitter) -> None:
    folder = emitted(plan, target_of(package), package=package)
    words = [*STRICT, "-Wno-sign-compare", "-std=gnu11", "-fsyntax-only", "-Isrc"]
    run("cc", *words, f"-I{STAND_INS}/{package}", source, cwd=folder)
