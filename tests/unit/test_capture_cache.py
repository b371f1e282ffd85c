"""The capture cache gives out only what this user kept there, under the very same key."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poet.tracer import cache
from poet.tracer.layout import Layout
from poet.tracer.private_folder import private_folder
from poet.values.graph import Call, Graph, Op, Tensor

KEY, OTHER = "a" * 40, "b" * 40


def layout(decay: float = 0.25) -> Layout:
    call = Call(
        kind="aten.mul.Scalar",
        arguments={"self": {"tensor": 0}, "other": decay},
        results=({"tensor": 1},),
    )
    return Layout(
        graph=Graph(
            name="a step",
            tensors=(
                Tensor(name="w", nbytes=4, role="parameter", shape=(1,), dtype="float32"),
                Tensor(name="loss", nbytes=4, role="output", shape=(1,), dtype="float32"),
            ),
            ops=(Op(name="scale", inputs=(0,), outputs=(1,), calls=(call,)),),
        ),
        parameters={"w": 0},
        buffers={},
        constants={},
        inputs={},
        outputs=(1,),
        gradients={},
    )


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with one entry."""
    monkeypatch.setenv("POET_CACHE", str(tmp_path / "kept"))
    cache.keep(KEY, layout())
    assert cache.find(KEY) == layout()
    return tmp_path / "kept"


def entry(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}{cache.SUFFIX}"


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}


def test_folder_key_and_entries_are_this_users_alone(folder: Path) -> None:
    assert modes(folder) == {"kept": 0o700, "key": 0o600, entry(folder).name: 0o600}


def test_folders_above_are_this_users_alone_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POET_CACHE", str(tmp_path / "a" / "b"))
    cache.keep(KEY, layout())
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert cache.find(KEY) == layout()


def edited(folder: Path) -> None:
    path = entry(folder)
    text = path.read_bytes()
    assert b'"other":0.25' in text
    path.write_bytes(text.replace(b'"other":0.25', b'"other":0.75'))


def without_a_mark(folder: Path) -> None:
    entry(folder).write_bytes(msgspec.json.encode(layout()))


def empty(folder: Path) -> None:
    entry(folder).write_bytes(b"")


def swapped(folder: Path) -> None:
    cache.keep(OTHER, layout(0.5))
    os.replace(entry(folder, OTHER), entry(folder))


def of_another_key(folder: Path) -> None:
    (folder / "key").unlink()


def short_key(folder: Path) -> None:
    (folder / "key").write_bytes(b"0")


def open_key(folder: Path) -> None:
    (folder / "key").chmod(0o644)


def open_folder(folder: Path) -> None:
    folder.chmod(0o755)


def writable_folder(folder: Path) -> None:
    folder.chmod(0o720)


def open_entry(folder: Path) -> None:
    entry(folder).chmod(0o606)


def linked(name: str) -> Callable[[Path], None]:
    def link(folder: Path) -> None:
        path = folder / name if name else folder
        real = folder.parent / "real"
        os.replace(path, real)
        path.symlink_to(real)

    link.__name__ = f"linked_{name[:3] or 'folder'}"
    return link


def pipe(folder: Path) -> None:
    entry(folder).unlink()
    os.mkfifo(entry(folder), 0o600)


def strangers(name: str) -> Callable[[Path], None]:
    def give(folder: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(folder / name if name else folder, 65534, 65534)

    give.__name__ = f"strangers_{name[:3] or 'folder'}"
    return give


@pytest.mark.parametrize(
    "damage",
    [
        edited, without_a_mark, empty, swapped, of_another_key, short_key, open_key, open_folder,
        writable_folder, open_entry, linked(""), linked("key"), linked(f"{KEY}{cache.SUFFIX}"),
        pipe, strangers(""), strangers("key"), strangers(f"{KEY}{cache.SUFFIX}"),
    ],
)  # fmt: skip
def test_what_somebody_else_may_have_written_is_not_taken(
    folder: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(folder)
    assert cache.find(KEY) is None
    assert cache.find(KEY) is None
    said = [record.message for record in caplog.records if record.name == cache.__name__]
    assert len(said) == 1
    assert str(folder) in said[0]


def test_a_missing_entry_is_not_worth_a_word(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert cache.find(OTHER) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("graph", "ops", 0, "calls", 0, "kind"), "os.system('x')", "kind"),
        (("graph", "ops", 0, "calls", 0, "arguments"), {"a=exec('1')": 1}, "no name"),
        (("graph", "ops", 0, "calls", 0, "arguments"), {"self": {"dtype": "x y"}}, "argument"),
        (("graph", "ops", 0, "calls", 0, "arguments"), {"self": {"device": "$(ls)"}}, "argument"),
        (("graph", "ops", 0, "calls", 0, "arguments"), {"self": {"float": "1"}}, "argument"),
        (("graph", "ops", 0, "calls", 0, "arguments"), {"self": {"tensor": 1}}, "before it is"),
        (("parameters",), {"w": 1}, "not one thing"),
        (("parameters",), {"w": 0, "v": 0}, "not one thing"),
        (("parameters",), {}, "not one thing"),
        (("constants",), {"7": ""}, "not one thing"),
        (("outputs",), [9], "not tensors"),
        (("outputs",), [], "not tensors"),
        (("gradients",), {"w": -1}, "not tensors"),
        (("tangents",), {"0": 0}, "no gradient"),
        (("member",), {"w": 3}, "without a learning rate"),
    ],
)
def test_a_layout_checks_itself(place: tuple[Any, ...], value: Any, message: str) -> None:
    file = json.loads(msgspec.json.encode(layout()))
    inner = file
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.json.decode(json.dumps(file), type=Layout)


def test_constants_have_the_bytes_of_their_tensors() -> None:
    good = msgspec.structs.replace(layout(), parameters={}, constants={0: b"1234"})
    with pytest.raises(ValueError, match="has 3 bytes"):
        msgspec.structs.replace(good, constants={0: b"123"})


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_FILES", 2)
    os.utime(entry(folder), (1, 1))
    for key in (OTHER, "c" * 40):
        cache.keep(key, layout())
    assert cache.find(KEY) is None
    assert cache.find(OTHER) is not None


TOGETHER = """
import sys
from pathlib import Path
from poet.tracer.private_folder import private_folder
sys.stdin.read(1)
with private_folder(Path(sys.argv[1]), make=True) as folder:
    folder.write(sys.argv[2], sys.argv[2].encode())
"""


def test_processes_that_make_the_key_at_once_agree(tmp_path: Path) -> None:
    names = [f"{n}.x" for n in range(6)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(tmp_path / "new" / "kept"), name],
            stdin=subprocess.PIPE,
        )
        for name in names
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()  # now
    assert [process.wait() for process in processes] == [0] * len(names)
    with private_folder(tmp_path / "new" / "kept") as folder:
        assert [folder.read(name) for name in names] == [name.encode() for name in names]
    assert {path.name for path in (tmp_path / "new" / "kept").iterdir()} == {"key", *names}
