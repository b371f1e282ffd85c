"""`poet train my.py:make` on batches of its own, from its first step on and after a resume."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from poet import PoetError
from poet.training.own_data import OwnData, digest_of
from tests.conftest import Poet

EXAMPLE = (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
FILE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def parts():
    generator = torch.Generator().manual_seed({seed})
    x = torch.randn(22, 16, generator=generator)
    y = torch.randint(0, 4, (22,), generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 4))
    return model, x, y

def loader():
    model, x, y = parts()
    data = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    return model, (x[:8], y[:8]), nn.functional.cross_entropy, data

def plain():
    model, x, y = parts()
    return model, (x[:8], y[:8]), nn.functional.cross_entropy
"""


def batch(n: int, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((rows, 3), float(n)), torch.full((rows,), n)


def first(data: Any, count: int, **more: Any) -> list[Any]:
    stream = OwnData(data, EXAMPLE, "my.py:make", seed=0).batches(**more)
    return [next(stream) for _ in range(count)]


@pytest.mark.parametrize("rows", [4, 1])
def test_batches_come_again_when_they_end(rows: int) -> None:
    given = [batch(0), list(batch(1)), batch(2, rows)]
    for data in (given, lambda: iter(given)):
        numbers = [int(y[0]) for _, y in first(data, 7)]
        assert numbers == [0, 1, 2, 0, 1, 2, 0]
        assert [int(y[0]) for _, y in first(data, 2, start=4)] == [1, 2]
    assert first(given, 3)[2][0].shape == (rows, 3)


def test_what_data_draws_is_theirs_alone() -> None:
    """The order after a resume is the same, and dropout draws as if nobody else did."""

    def shuffled() -> Any:
        order = torch.randperm(8).tolist()
        return map(batch, order)

    whole = first(shuffled, 20)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    rest = first(shuffled, 7, start=13, digest=digest_of(whole[12]))
    assert torch.equal(torch.rand(3), expected)
    assert [digest_of(x) for x in rest] == [digest_of(x) for x in whole[13:]]
    assert len({digest_of(x) for x in whole[:8]}) == 8
    with pytest.raises(PoetError, match=r"batch 13 of my\.py:make is not the one that the run had"):
        first(shuffled, 1, start=13, digest=digest_of(whole[11]))


def failing() -> Any:
    yield batch(0)
    raise KeyError("label")


@pytest.mark.parametrize(
    ("data", "count", "said"),
    [
        (iter([batch(0), batch(1)]), 3, "end after 2 batches and cannot be gone through again"),
        ([], 1, "has no batch at all"),
        (list, 1, "has no batch at all"),
        (failing, 2, "failed after 1 batches: KeyError: 'label'"),
        (lambda: 3, 1, "failed after 0 batches: TypeError: 'int' object is not iterable"),
        (3, 1, "neither an iterable of batches nor a function"),
        ({"x": batch(0)}, 1, "is no iterable of batches"),
        (torch.zeros(8, 3), 1, "is no iterable of batches"),
        (torch.utils.data.TensorDataset(torch.zeros(3)), 1, r"DataLoader\(data, batch_size=…\)"),
        (EXAMPLE, 1, r"batch 1 .* is \(float32 \[4, 3\],\); the example is"),
        ([(batch(0)[0],)], 1, "the example is .float32 .4, 3., int64 .4.."),
        ([(batch(0)[0].double(), batch(0)[1])], 1, r"is \(float64 \[4, 3\], int64 \[4\]\)"),
        ([(torch.zeros(4, 5), batch(0)[1])], 1, r"is \(float32 \[4, 5\], int64 \[4\]\)"),
        ([torch.zeros(4, 3).numpy()], 1, "batch 1 of my.py:make: the example must be a tuple"),
        ([(torch.zeros(4, 3).numpy(), batch(0)[1])], 1, r"Give torch.from_numpy\(x\)"),
    ],
)
def test_data_that_cannot_be_trained_on(data: Any, count: int, said: str) -> None:
    with pytest.raises(PoetError, match=said):
        first(data, count)


def test_a_loader_trains_and_resumes_at_the_right_place(poet_command: Poet, tmp_path: Path) -> None:
    """Three batches an epoch, the last of six: 8 steps at once are 4, and 4 more."""
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(seed=1))

    def trained(steps: int, run: str, *more: str, make: str = "loader") -> Any:
        return poet_command(
            "train", f"{file}:{make}", "--steps", str(steps), "--time-limit", "0.5", "--checkpoint",
            tmp_path / run, "--save", tmp_path / f"{run}.safetensors", "--force", "--json", *more,
        )  # fmt: skip

    whole = trained(8, "whole")
    assert whole.code == 0, whole.err
    about = msgspec.json.decode(whole.out)
    assert about["data"] == f"the data of {file}:loader"
    assert trained(4, "halves").code == 0
    again = trained(8, "halves", "--resume")
    assert (again.code, "going through the 4 batches of before" in again.err) == (0, True)
    one, two = ((tmp_path / f"{run}.safetensors").read_bytes() for run in ("whole", "halves"))
    assert one == two
    file.write_text(FILE.format(seed=2))
    changed = trained(10, "halves", "--resume")
    assert changed.code == 2
    assert re.search(r"batch 8 of .* is not the one that the run had.*--resume", changed.err)
    without = trained(10, "halves", "--resume", make="plain")
    assert without.code == 2
    assert "the run was trained" in without.err or "has the model mine.py:loader" in without.err


def test_a_file_that_returns_something_else(poet_command: Poet, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def make():\n    return 1, 2\n")
    done = poet_command("train", f"{file}:make")
    assert (done.code, "(model, example, loss, data)" in done.err) == (2, True)
