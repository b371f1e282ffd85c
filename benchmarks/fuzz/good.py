"""Good files of every kind, small ones: what mutants are made from. And whom they are used with."""

import contextlib
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import nn

import poet
from poet.devices import find_device
from poet.firmware.card.safetensors import write_safetensors
from poet.firmware.emit import emit
from poet.planning.problem import problem_of
from poet.planning.question import terms
from poet.planning.rows import Ask, Row, Shared, effort_fields, found_row
from poet.runtime.state.generations import Generations
from poet.runtime.stores.file_store import FileStore
from poet.sweeps.folder import Kept
from poet.tracer.program import Program
from poet.tracer.step import Step, take_apart
from poet.training.trainer import Trainer
from poet.values.device import Device
from poet.values.graph import Graph
from poet.values.plan import Plan
from poet.values.profile import Profile, StoreSpeed, Timing
from poet.values.schedule import Effort

ROOT = Path(__file__).parents[2]
KEY = "f" * 40
PAGE = bytes(range(256)) * 24
"""What a page of a store holds."""


class Surroundings(NamedTuple):
    """What a user has besides the file."""

    program: Program
    """A step with Adam, that streams and updates in place."""
    plan: Plan
    trainer: Trainer
    small: Graph
    """A graph that C can be written for."""
    board: Device
    good: dict[str, list[bytes]]
    """Contents of good files, by kind."""
    folders: dict[str, dict[str, bytes]]
    """Good folders: contents by name."""

    def fresh_program(self, traced: Any = None) -> Program:
        """The same step, of a new model."""
        layout = traced or self.program.traced
        return Program(layout, step(), [0.01] * len(layout.learning_rates))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(4 * 6 * 6, 20), nn.ReLU(), nn.Linear(20, 5),
    )  # fmt: skip


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 1, 8, 8), torch.randint(0, 5, (2,))


def step() -> Step:
    return Step(model(), nn.functional.cross_entropy, take_apart(batch()), None)


def surroundings(folder: Path) -> Surroundings:
    """Everything, made anew; files are written to the folder and read from there."""
    random.seed(0)
    np.random.seed(0)
    board = find_device("rpi4")
    program = _captured(poet.Adam(lr=0.01))
    small = _captured(poet.SGD(lr=0.01, momentum=0.9))
    plan = poet.plan(program, board, ram="100%", params="paged", method="paging-greedy")
    streamed = poet.plan(program, board, params="streamed", method="keep-all")
    firmware = poet.plan(small, board, ram="70%", method="paging-greedy")
    pieces = poet.plan(small, board, ram=2500, params="streamed", method="paging-greedy")
    instance = ROOT / "instances" / "linear-m4.json"
    from_instance = poet.plan(str(instance), ram=4000, method="paging-greedy")
    for each in (plan, streamed, firmware, pieces, from_instance):
        assert each.schedule, each.reason
    trainer = Trainer(
        model(), nn.functional.cross_entropy, poet.Adam(lr=0.01), example=batch(), plan=plan,
        store=folder / "pages",
    )  # fmt: skip
    trainer.step(*batch())
    folders = {
        "firmware folder": _firmware(firmware, folder / "firmware"),
        "checkpoint folder": _generations(trainer, folder / "run"),
    }
    trainer.save(folder / "one.safetensors")
    trainer.save_weights(folder / "plain.safetensors")
    samples = {
        small.graph.tensors[i].name: np.stack([array.numpy()] * 2)
        for i, array in zip(small.layout.inputs.values(), batch(), strict=True)
    }
    write_safetensors(samples, folder / "samples.safetensors")
    read = {
        name: (folder / f"{name}.safetensors").read_bytes() for name in ("one", "plain", "samples")
    }
    good = {
        "plan of an instance": [_json(from_instance)],
        "captured plan": [_json(plan), _json(streamed)],
        "plan for C": [_json(firmware), _json(pieces)],
        "graph": [_json(program.graph), _json(small.graph)],
        "instance": [instance.read_bytes()],
        "device": [
            (ROOT / f"src/poet/devices/{x}.toml").read_bytes() for x in ("rpi4", "nrf52840")
        ],
        "costs": [_json(plan.costs)],
        "profile": [_json(_profile(plan, board))],
        "comparison": [_json(_rows(plan))],
        "grid": [_grid(instance)],
        "cell": [_cell(instance)],
        "weights": [read["plain"], read["samples"]],
        "checkpoint": [read["one"]],
        "capture": [_json(program.traced)],
        "page file": [_page_file(folder / "pages")],
    }
    return Surroundings(program, plan, trainer, small.graph, board, good, folders)


def _captured(optimizer: Any) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return poet.capture(
            model(), nn.functional.cross_entropy, optimizer, example=batch(), cache=False
        )


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _profile(plan: Plan, board: Device) -> Profile:
    timing = Timing(seconds=1e-3, low_seconds=9e-4, high_seconds=2e-3, outliers=1)
    return Profile(
        machine="here", threads=1, torch="2", energy="guessed", repeats=3, device=board,
        step=timing, ops=(timing,) * len(plan.graph.ops),
        store=StoreSpeed(
            where="disk", sizes_bytes=(4096, 65536), page_ins=(timing,) * 2, page_outs=(timing,) * 2
        ),
        costs=plan.costs,
    )  # fmt: skip


def _rows(plan: Plan) -> dict[str, Any]:
    ours = Row(
        method="poet", status="feasible", joules=plan.joules, seconds=plan.seconds,
        peak_bytes=plan.peak_bytes, recomputed=1, paged_bytes=8, gap=0.1,
    )  # fmt: skip
    return {"rows": [ours, Row(method="keep-all", status="unknown", reason="too large")]}


def _grid(instance: Path) -> bytes:
    return (
        f'models = ["{instance}", {{ name = "lenet", budgets = ["60%", 90000, "min"] }}]\n'
        'devices = ["rpi4", "nrf52840"]\nbudgets = "3 points"\nmethods = ["poet", "paging"]\n'
        'optimizer = "sgd"\ndeadline = "2x"\ntransfers = "serial"\nparams = "auto"\n'
        "time_limit = 1.0\nwork_limit = 1\nseed = 0\nthreads = 1\n"
    ).encode()


def _cell(instance: Path) -> bytes:
    """What became of a question of the instance in 4,000 bytes."""
    found = found_row(*asked_of_instance(instance), [], lambda value: None)
    return _json(Kept(asked="an instance", found=found))


def asked_of_instance(instance: Path, ram_bytes: int = 4000) -> tuple[Shared, Ask]:
    problem = problem_of(str(instance))
    effort = effort_fields(Effort(work_limit=0, time_limit_seconds=1.0))
    asked = Ask(method="dtr", ram_bytes=ram_bytes, effort=effort, keeps=True)
    return Shared.of(problem, terms()), asked


def _firmware(plan: Plan, folder: Path) -> dict[str, bytes]:
    emit(plan, folder, samples=1, steps=1)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextlib.contextmanager
def written_page(folder: Path) -> Iterator[FileStore]:
    """A store with one page in it."""
    with contextlib.closing(FileStore(folder, chunk_bytes=4096)) as store:
        store.reserve({0: len(PAGE)})
        page = torch.frombuffer(bytearray(PAGE), dtype=torch.uint8)
        store.write(0, page.untyped_storage()).wait()
        store.flush()
        yield store


def _page_file(folder: Path) -> bytes:
    with written_page(folder) as store:
        return store.path.read_bytes()


def _generations(trainer: Trainer, folder: Path) -> dict[str, bytes]:
    with Generations(folder) as run:
        trainer.save(run)
        trainer.step(*batch())
        trainer.save(run)
        run.write_plan(trainer.plan)
    return {path.name: path.read_bytes() for path in folder.iterdir()}
