"""Libraries that come with the package: loaded where they are of the very source, else not."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poet import native

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, native.COMPILERS)), reason="there is no C compiler"
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A source with its library beside it, on a machine that has lost its compilers since."""
    file = tmp_path / "answer.c"
    file.write_text('#include "number.h"\nint answer(void) { return NUMBER; }\n')
    (tmp_path / "number.h").write_text("#define NUMBER 42\n")
    assert native.compile_for_wheel(file, native.carried(file))
    monkeypatch.setattr(native, "COMPILERS", ())
    yield file
    native.built.cache_clear()


def test_it_is_loaded_without_a_compiler(source: Path) -> None:
    library = native.built(source)
    assert library is not None
    assert library.answer() == 42


@pytest.mark.parametrize("name", ["answer.c", "number.h"])
def test_it_is_not_used_for_an_edited_source(source: Path, name: str) -> None:
    with (source.parent / name).open("a") as file:
        file.write("/* edited */\n")
    assert native.built(source) is None


def test_it_is_not_used_for_other_flags(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))
    assert native.built(source) is None


def test_one_that_cannot_be_loaded_is_built_here(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native.carried(source).write_bytes(b"of another machine")
    assert native.built(source) is None
    native.built.cache_clear()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library = native.built(source)
    assert library is not None
    assert library.answer() == 42
    assert len(list((tmp_path / "cache" / "poet").iterdir())) == 1


def writable_folder(library: Path) -> None:
    library.parent.chmod(0o777)


def writable_library(library: Path) -> None:
    library.chmod(0o777)


def linked_library(library: Path) -> None:
    real = library.parent.parent / "elsewhere.so"
    library.rename(real)
    library.symlink_to(real)


@pytest.mark.parametrize("damage", [writable_folder, writable_library, linked_library])
def test_one_that_others_may_have_written_is_not_loaded(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
) -> None:
    native.carried(source).unlink()
    native.built.cache_clear()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:  # the linker knows what it has loaded by its path
        patch.setattr(native, "_loaded", lambda path: path)
        assert native.built(source) is not None
    (library,) = (tmp_path / "cache" / "poet").iterdir()
    evil = tmp_path / "cache" / "evil.c"
    evil.write_text("int answer(void) { return 13; }")
    assert native.compile_for_wheel(evil, library)
    damage(library)
    native.built.cache_clear()
    again = native.built(source)
    assert again is not None
    assert again.answer() == 42
