"""`poet train` survives signals, kills and failing ops, and what follows has the same bits."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch

from poet.runtime.state.checkpoints import Checkpoint
from poet.runtime.state.generations import steps_in
from tests.conftest import ROOT
from tests.torch.surviving import apart, files, page_file

WAITS_SECONDS = 60

USER_FILE = """
import os, sys, time
import torch
from torch import nn

@torch.library.custom_op("poet_survival::pass_on", mutates_args=())
def pass_on(x: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    print(f"step {calls}", flush=True)
    if calls == int(os.environ.get("FAILS_AT", 0)):
        raise ValueError("the sensor is gone")
    if calls == int(os.environ.get("SLEEPS_AT", 0)):
        time.sleep(60)
    return x.clone()

calls = 0
pass_on.register_fake(lambda x: torch.empty_like(x))
torch.library.register_autograd("poet_survival::pass_on", lambda ctx, grad: grad)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.second(self.drop(pass_on(self.first(x).relu())))

def make():
    torch.manual_seed(3)
    return Model(), (torch.randn(8, 16), torch.randint(0, 4, (8,))), nn.functional.cross_entropy
"""
WRAPPER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs have it ignored
import torch
torch.set_num_threads(1)
from poet.cli.main import main
main()
"""


class Running:
    """A real `poet train`."""

    def __init__(self, *args: str | Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRAPPER, "train", *map(str, args), "--time-limit", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip

    def until(self, condition: Callable[[], object]) -> None:
        started = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() - started < WAITS_SECONDS
            time.sleep(0.005)

    def line(self, stream: Any, wanted: str) -> None:
        for line in iter(stream.readline, ""):
            if wanted in line:
                return
        raise AssertionError(f"{wanted} was not said")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=WAITS_SECONDS)
        return self.process.returncode, out, err


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "sensor.py").write_text(USER_FILE)
    return f"{tmp_path / 'sensor.py'}:make"


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    """Processes that do not outlive their test."""
    started: list[Running] = []

    def start(*args: Any, **environment: str) -> Running:
        started.append(Running(*args, **environment))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def end_of(run: Path) -> Checkpoint:
    """The last checkpoint of a run."""
    path = run / f"step-{steps_in(run)[-1]:08}.json"
    return msgspec.json.decode(path.read_bytes(), type=Checkpoint)


def same_ends(one: Path, other: Path) -> bool:
    """What NumPy and Python would draw does not count: no step uses it."""
    ends = [end_of(run) for run in (one, other)]
    tensors = [
        safetensors.torch.load_file(run / f"step-{end.steps:08}.safetensors")
        for run, end in zip((one, other), ends, strict=True)
    ]
    one_end, other_end = tensors
    drawn = [(end.steps, end.random.torch_cpu, end.origin.data_position) for end in ends]
    return drawn[0] == drawn[1] and not apart(one_end, other_end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_a_whole_step(
    number: signal.Signals, running: Any, poet_command: Any, tmp_path: Path
) -> None:
    spec = "lenet?batch=2"
    options = [spec, "--params", "paged", "--every", "3", "--steps"]
    run, weights = tmp_path / "run", tmp_path / "w.safetensors"
    mine = running(
        *options, "1000000", "--store", tmp_path / "pages", "--checkpoint", run, "--save", weights
    )
    mine.until(lambda: steps_in(run))
    mine.process.send_signal(number)
    code, out, err = mine.end()
    assert code == 0, err
    assert "loss" in out
    assert not files(tmp_path / "pages")
    done = end_of(run).steps
    assert f"interrupted after step {done:,} of 1,000,000; go on with: poet train" in err
    again = shlex.split(err.rpartition("go on with: ")[2])
    assert again[-2:] == ["--resume", "--force"]
    assert safetensors.torch.load_file(weights).keys() == {
        name.removeprefix("model/")
        for name in safetensors.torch.load_file(run / f"step-{done:08}.safetensors")
        if name.startswith("model/")
    }
    again[again.index("--steps") + 1] = str(done + 2)
    resumed = poet_command(*again[1:])
    assert resumed.code == 0, resumed.err
    assert "using the plan of before" in resumed.err
    whole = poet_command(
        "train", *options, done + 2, "--store", tmp_path / "b", "--checkpoint", tmp_path / "whole",
        "--time-limit", "1",
    )  # fmt: skip
    assert whole.code == 0, whole.err
    assert same_ends(run, tmp_path / "whole")


def test_a_signal_with_nowhere_to_save(running: Any, file: str) -> None:
    mine = running(file, "--steps", "1000000")
    mine.line(mine.process.stdout, "step 3")
    mine.process.send_signal(signal.SIGINT)
    code, out, err = mine.end()
    assert code == 130, err
    assert "RAM peak" in out
    assert "give --checkpoint DIR" in err


def test_a_second_ctrl_c_does_not_wait(running: Any, file: str, tmp_path: Path) -> None:
    mine = running(
        file, "--steps", "1000000", "--checkpoint", tmp_path / "run", "--every", "2", SLEEPS_AT="6"
    )
    mine.line(mine.process.stdout, "step 6")
    mine.process.send_signal(signal.SIGINT)
    mine.line(mine.process.stderr, "SIGINT: finishing this step")
    mine.process.send_signal(signal.SIGINT)
    code, _, err = mine.end()
    assert code == 130, err
    assert steps_in(tmp_path / "run") == [2, 4]


def test_a_failing_op_and_a_resume(
    running: Any, file: str, poet_command: Any, tmp_path: Path
) -> None:
    options = [file, "--steps", "6", "--every", "2", "--checkpoint"]
    failed = running(*options, tmp_path / "run", FAILS_AT="6").end()
    assert failed[0] == 2
    assert (
        "step 6 failed: ValueError: the sensor is gone. The last checkpoint is of step 4; go on"
        in (failed[2])
    )
    for run, more in ((tmp_path / "run", ["--resume"]), (tmp_path / "whole", [])):
        done = poet_command("train", *options, run, *more, "--time-limit", "1")
        assert done.code == 0, done.err
    assert same_ends(tmp_path / "run", tmp_path / "whole")


def test_kill_9_and_a_resume(running: Any, poet_command: Any, tmp_path: Path) -> None:
    """The real command, whose pages and half-written files the next one removes."""
    options = ["lenet?batch=2", "--params", "paged", "--every", "1", "--steps"]
    pages, run = tmp_path / "pages", tmp_path / "run"
    mine = running(*options, "1000000", "--store", pages, "--checkpoint", run)
    mine.until(lambda: len(steps_in(run)) == 2)
    mine.process.kill()
    mine.end()
    (run / "step-00000009.safetensors.1234-00ff.part").touch()
    stale = page_file(pages)
    done = steps_in(run)[-1]
    arguments = ("train", *options, done + 2, "--time-limit", "1")
    resumed = poet_command(*arguments, "--store", pages, "--checkpoint", run, "--resume")
    assert resumed.code == 0, resumed.err
    assert f"removed {stale}: pages of a process that was killed" in resumed.err
    assert f"going on from step {done}" in resumed.err
    assert not [*files(pages), *run.glob("*.part")]
    whole = poet_command(*arguments, "--store", pages, "--checkpoint", tmp_path / "whole")
    assert whole.code == 0, whole.err
    assert same_ends(run, tmp_path / "whole")


def test_kills_at_random_moments() -> None:
    """Five of the benchmark's hundred: in steps, in checkpoints, and while they start."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kills", "5", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * WAITS_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_command_refuses_and_says(poet_command: Any, tmp_path: Path) -> None:
    def train(*more: Any, steps: int = 2, run: str = "run") -> Any:
        return poet_command(
            "train", "lenet?batch=2", "--steps", steps, "--time-limit", "1",
            "--checkpoint", tmp_path / run, *more,
        )  # fmt: skip

    def refused(done: Any, message: str) -> None:
        assert done.code == 2, done
        assert message in done.err

    refused(poet_command("train", "lenet", "--resume"), "--resume needs the folder")
    refused(poet_command("train", "lenet", "--every", "3"), "--every needs the folder")
    refused(train(run="no/such/folder"), "cannot write the checkpoint")
    taken = tmp_path / "w.safetensors"
    taken.touch()
    refused(train("--save", taken), "exists already")
    first = train("--resume", "--save", taken, "--force")
    assert first.code == 0, first.err
    assert "no checkpoint in" in first.err
    assert "starting from the beginning" in first.err
    net_weights = safetensors.torch.load_file(taken)
    assert torch.isfinite(net_weights["0.weight"]).all()
    assert files(tmp_path / "run") == [
        "plan.json",
        "step-00000002.json",
        "step-00000002.safetensors",
    ]
    refused(train(), "has checkpoints of a run, up to step 2: go on from there with --resume")
    refused(train("--resume", "--seed", "1"), "has the seed 0; here it is 1. Give --seed 0")
    refused(train("--resume", "--optimizer", "sgd"), "another optimizer")
    refused(train("--resume", "--optimizer", "adam?lr=0.1"), "the learning rate 0.001; here it is")
    refused(
        poet_command("train", "lenet?batch=3", "--checkpoint", tmp_path / "run", "--resume"),
        "has the model lenet?batch=2; here it is lenet?batch=3",
    )
    nothing = train("--resume", "--json")
    assert nothing.code == 0
    assert msgspec.json.decode(nothing.out)["first_loss"] is None
    assert "is at step 2 already" in nothing.err
    other = train("--resume", "--ram", "3MB", "--json", steps=3)  # another budget, another plan
    assert "using the plan of before" not in other.err
    assert msgspec.json.decode(other.out)["resumed_from"] == 2
    again = train("--resume", "--ram", "3MB", steps=4)
    assert "using the plan of before" in again.err
    assert "4 steps, 3 of them before" in again.out
    (tmp_path / "run" / "plan.json").write_text("{}")
    (tmp_path / "run" / "step-00000004.safetensors").write_bytes(b"torn")
    torn = train("--resume", "--ram", "3MB", steps=4)
    assert torn.code == 0
    assert "step-00000004.safetensors" in torn.err
    assert "going on from step 3" in torn.err
    assert len([line for line in torn.err.splitlines() if "step-00000004" in line]) == 1
    whole = train(run="whole", steps=4)
    assert whole.code == 0
    assert same_ends(tmp_path / "run", tmp_path / "whole")
    for path in (tmp_path / "run").glob("step-*.safetensors"):
        path.write_bytes(b"torn")
    refused(train("--resume", steps=9), "all in this folder are damaged")


def test_a_disk_without_room_for_pages(poet_command: Any, tmp_path: Path) -> None:
    mounted = ["mount", "-t", "tmpfs", "-o", "size=300k", "poet-test", str(tmp_path)]
    if os.geteuid() or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk, where mounting is allowed")
    try:
        done = poet_command(
            "train", "lenet?batch=2", "--params", "paged", "--store", tmp_path, "--time-limit", "1"
        )
        assert done.code == 2
        assert "Free" in done.err
        assert not files(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
