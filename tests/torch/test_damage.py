"""Damaged checkpoints are found, and the one before is used; a full disk takes nothing away."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poet.errors import PoetError, PoetWarning
from poet.runtime.state.checkpoints import read_checkpoint
from poet.runtime.state.tensor_file import (
    TornFile,
)
from tests.torch.surviving import apart, files, go_on, trainer


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path, at: int, bit: int = 2) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def replaced(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "tensors cut": lambda run: cut(run / "step-00000002.safetensors"),
    "tensors empty": lambda run: empty(run / "step-00000002.safetensors"),
    "tensors missing": lambda run: (run / "step-00000002.safetensors").unlink(),
    "tensors longer": lambda run: os.truncate(run / "step-00000002.safetensors", 10**6),
    "a folder": lambda run: made_a_folder(run / "step-00000002.safetensors"),
    "first byte": lambda run: flip(run / "step-00000002.safetensors", 0),
    "header": lambda run: flip(run / "step-00000002.safetensors", 200),
    "a tensor": lambda run: flip(run / "step-00000002.safetensors", -5000),
    "last byte": lambda run: flip(run / "step-00000002.safetensors", -1),
    "JSON cut": lambda run: cut(run / "step-00000002.json"),
    "JSON empty": lambda run: empty(run / "step-00000002.json"),
    "JSON not text": lambda run: flip(run / "step-00000002.json", 30, 128),
    "JSON of another": lambda run: replaced(
        run / "step-00000002.json",
        (run / "step-00000002.json").read_bytes().replace(b'"steps": 2', b'"steps": 3')),
    "another's tensors": lambda run: replaced(
        run / "step-00000002.safetensors", (run / "step-00000001.safetensors").read_bytes()),
}  # fmt: skip


@pytest.fixture(scope="module")
def two_generations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    with trainer(folder / "pages") as mine:
        for step in (1, 2):
            go_on(mine, step, seed=0)
            mine.save(folder / "run")
    return folder / "run"


def copied(run: Path, to: Path) -> Path:
    to.mkdir()
    for path in run.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_the_generation_before_is_used(
    what: str, two_generations: Path, tmp_path: Path
) -> None:
    run = copied(two_generations, tmp_path / "run")
    DAMAGE[what](run)
    mine = trainer(tmp_path / "pages", "resident", seed=3)
    with pytest.warns(PoetWarning, match=r"step-00000002.*going on from step 1$") as said:
        assert mine.load(run).steps == 1
    assert said[0].filename == __file__
    whole = trainer(tmp_path / "pages", "resident")
    go_on(whole, 1, seed=0)
    assert not apart(mine.state_dict(), whole.state_dict())
    for path in run.glob("step-00000001*"):
        flip(path, -20)
    before = mine.state_dict()
    with pytest.raises(PoetError, match=r"all .* damaged.*step-00000002.*step-00000001"):
        mine.load(run)
    assert not apart(before, mine.state_dict())


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_any_flipped_bit_of_a_file_is_found(
    two_generations: Path, tmp_path_factory: pytest.TempPathFactory, at: float, bit: int
) -> None:
    data = bytearray((two_generations / "step-00000002.safetensors").read_bytes())
    # Half of the examples in the header, which is small.
    place = int(at * 2 * len(data)) if at < 0.5 else int((at - 0.5) * 2 * 16_000)
    data[place] ^= 1 << bit
    path = tmp_path_factory.mktemp("flipped") / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(TornFile):
        read_checkpoint(path)


def test_a_second_save_of_a_step_that_was_killed_halfway(
    two_generations: Path, tmp_path: Path
) -> None:
    """New tensors beside an old JSON: they are whole, and all there is."""
    run = copied(two_generations, tmp_path / "run")
    mine = trainer(tmp_path / "pages", "resident")
    mine.load(run)
    mine.learning_rates[0] = 0.5
    mine.save(tmp_path / "new.safetensors")
    os.replace(tmp_path / "new.safetensors", run / "step-00000002.safetensors")
    assert mine.load(run).learning_rates == (0.5,)


def test_a_full_disk_leaves_what_was_saved_before(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=200k", "poet-test", str(disk)]
    if os.geteuid() or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk, where mounting is allowed")
    try:
        mine = trainer(tmp_path / "pages")
        go_on(mine, 1, seed=0)
        mine.save(disk / "run")
        (disk / "ballast").write_bytes(bytes(shutil_free(disk) - 20_000))
        go_on(mine, 2)
        for path in (disk / "run", disk / "one.safetensors"):
            with pytest.raises(PoetError, match=r"cannot write the checkpoint .*No space left"):
                mine.save(path)
        assert files(disk) == ["ballast", "run"]
        assert files(disk / "run") == ["step-00000001.json", "step-00000001.safetensors"]
        go_on(mine, 3)  # the trainer itself is well
        (disk / "ballast").unlink()
        mine.save(disk / "run")
        assert mine.load(disk / "run").steps == 3
        mine.close()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def shutil_free(folder: Path) -> int:
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize
