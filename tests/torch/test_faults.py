"""Faults inside a step: a clear word, no way on, and a load that repairs all of it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from poet.errors import PageError, PoetError
from tests.torch.surviving import apart, batch, files, go_on, net, page_file, trainer


def corrupted(folder: Path, patch: pytest.MonkeyPatch) -> None:
    with open(page_file(folder), "r+b") as pages:
        content = bytearray(pages.read())
        for at in range(0, len(content), 4096):
            content[at] ^= 1
        pages.seek(0)
        pages.write(content)


def cut_short(folder: Path, patch: pytest.MonkeyPatch) -> None:
    os.truncate(page_file(folder), 4096)


def failing(code: int, call: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def fault(folder: Path, patch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> int:
            raise OSError(code, os.strerror(code))

        patch.setattr(os, call, fail)

    return fault


def short_reads(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """A disk that gives one block at a time, and from some block on says that it cannot."""
    whole, left = os.preadv, [5]

    def read(handle: int, buffers: list[memoryview], offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(handle, [buffers[0][:4096]], offset)

    patch.setattr(os, "preadv", read)


FAULTS: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], None], str]] = {
    "corrupted page": (corrupted, "is not what was written there"),
    "page file cut": (cut_short, "the file was cut to 4,096 bytes"),
    "read error": (failing(errno.EIO, "preadv"), "could not be read .*Input/output error"),
    "write error": (failing(errno.EIO, "pwritev"), "could not be written .*Input/output error"),
    "full": (failing(errno.ENOSPC, "pwritev"), "could not be written .*No space left"),
    "short reads": (short_reads, "could not be read .*Input/output error"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_fails_and_a_load_that_repairs(fault: str, tmp_path: Path) -> None:
    make, message = FAULTS[fault]
    whole = trainer(tmp_path / "a")
    go_on(whole, 5, seed=0)
    mine = trainer(tmp_path / "b")
    go_on(mine, 2, seed=0)
    mine.save(tmp_path / "run")
    go_on(mine, 3)
    with pytest.MonkeyPatch.context() as patch:
        make(tmp_path / "b", patch)
        with pytest.raises(PageError, match=message):
            mine.step(*batch(3))
    refused: list[Callable[[], object]] = [
        lambda: mine.step(*batch(3)), mine.state_dict, lambda: mine.save(tmp_path / "run"),
        lambda: mine.save_weights(tmp_path / "w.safetensors"), lambda: mine.unpaged().__enter__(),
    ]  # fmt: skip
    for call in refused:
        with pytest.raises(PoetError, match=r"failed halfway.*load a checkpoint"):
            call()
    assert files(tmp_path / "run") == ["step-00000002.json", "step-00000002.safetensors"]
    assert mine.load(tmp_path / "run").steps == 2
    go_on(mine, 5)
    assert not apart(whole.state_dict(), mine.state_dict())
    mine.close()
    assert not files(tmp_path / "b")


def test_pages_that_cannot_be_written_the_first_time_leave_all_in_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, mine = trainer(tmp_path / "a"), trainer(tmp_path / "b")
    go_on(whole, 2, seed=0)
    with monkeypatch.context() as patch:
        failing(errno.ENOSPC, "pwritev")(tmp_path / "b", patch)
        with pytest.raises(PageError, match="No space left"):
            mine.step(*batch(0))
    assert not any(p.isnan().any() for p in mine.program.model.parameters())
    go_on(mine, 2, seed=0)
    assert not apart(whole.state_dict(), mine.state_dict())


def test_a_page_that_does_not_come_back_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = trainer(tmp_path / "b")
    go_on(mine, 1, seed=0)
    with monkeypatch.context() as patch:
        failing(errno.EIO, "preadv")(tmp_path / "b", patch)
        for call in (mine.state_dict, lambda: mine.save(tmp_path / "run")):
            with pytest.raises(PageError, match="Input/output error"):
                call()
    assert not files(tmp_path / "run")
    assert all(t.untyped_storage().nbytes() == 0 for t in mine.program.homes().values())
    go_on(mine, 2)


@pytest.mark.parametrize("params", ["resident", "paged"])
@pytest.mark.parametrize("how", ["checkpoint", "state dict"])
def test_an_op_that_raises(params: Any, how: str, tmp_path: Path) -> None:
    whole, mine = trainer(tmp_path / "a", params), trainer(tmp_path / "b", params)
    go_on(whole, 3, seed=0)
    go_on(mine, 1, seed=0)
    mine.save(tmp_path / "one.safetensors")
    kept, drawn = mine.state_dict(), torch.get_rng_state()
    x, y = batch(1)
    with pytest.raises(IndexError, match="out of bounds"):
        mine.step(x, y + 100)  # classes that are not there
    with pytest.raises(PoetError, match="failed halfway"):
        mine.step(x, y)
    if how == "checkpoint":
        mine.load(tmp_path / "one.safetensors")
    else:
        mine.load_state_dict(kept)
        torch.set_rng_state(drawn)
    go_on(mine, 3)
    assert not apart(whole.state_dict(), mine.state_dict())
    mine.close()


def test_closing_after_a_failure_removes_the_pages_and_shows_no_half_step(tmp_path: Path) -> None:
    model = net()
    mine = trainer(tmp_path, model=model)
    go_on(mine, 1, seed=0)
    os.truncate(page_file(tmp_path), 4096)
    with pytest.raises(PageError), mine:
        go_on(mine, 2)
    assert not files(tmp_path)
    assert all(p.isnan().all() for p in model.parameters())
