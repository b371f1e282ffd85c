"""One network: captured, planned, written as C, trained on an emulated board, and compared."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

import poet
from benchmarks.small_networks.network import Network
from poet.errors import PoetError
from poet.firmware.boards import find_board
from poet.firmware.card.layout import inputs_of
from poet.firmware.card.safetensors import write_safetensors
from poet.firmware.emit import emit
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import emulate
from poet.values.graph import Graph
from poet.values.optimizers import parse_optimizer
from poet.values.plan import Plan

TARGET = "nrf52840"
SHARE = "75%"
STEPS = 5
BATCHES = 3
WORK = 2
"""Rounds of the search, counted and not timed: the same plan on every machine."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a network. `verdict`: trained, different, or refused with the reason."""

    verdict: str
    why: str = ""
    ops: int = 0
    parameters: int = 0
    peak_bytes: int = 0
    moved_bytes: int = 0
    recomputed: int = 0
    instructions: int = 0
    first_loss: float = 0.0
    last_loss: float = 0.0
    apart: float = 0.0
    worst_ratio: float = 0.0


def tried(network: Network) -> Outcome:
    try:
        with tempfile.TemporaryDirectory(prefix="poet-network-") as name:
            return _trained(network, Path(name))
    except PoetError as error:
        return Outcome(verdict="refused", why=str(error))


def _trained(network: Network, folder: Path) -> Outcome:
    torch.manual_seed(0)
    model, loss = network.make()
    batches = [network.batch() for _ in range(BATCHES)]
    program = poet.capture(
        model, loss, parse_optimizer(network.optimizer), example=batches[0], name=network.name
    )
    known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if isinstance(loss, torch.nn.Module):
        known |= {f"loss_fn.{name}": x for name, x in loss.named_buffers()}
    arrays = {name: x.detach().numpy() for name, x in known.items()}
    write_safetensors(arrays, folder / "weights.safetensors")
    _write_data(program.graph, batches, folder / "data.safetensors")
    plan = _planned(program)
    home = folder / "firmware"
    emit(
        plan, home, TARGET, weights=folder / "weights.safetensors",
        data=folder / "data.safetensors", steps=STEPS, lr=network.lr,
    )  # fmt: skip
    run = emulate(home)
    against = compare_card(home)
    assert against is not None
    is_trained = against.is_close and against.moved > 0 and not run.differences
    return Outcome(
        verdict="trained" if is_trained else "different",
        why="; ".join(run.differences) or ("" if is_trained else f"worst: {against.worst}"),
        ops=len(plan.graph.ops),
        parameters=sum(x.numel() for x in model.parameters()),
        peak_bytes=plan.peak_bytes or 0,
        moved_bytes=plan.paged_bytes,
        recomputed=plan.recomputed,
        instructions=run.steps[-1].instructions,
        first_loss=run.steps[0].loss,
        last_loss=run.steps[-1].loss,
        apart=against.difference,
        worst_ratio=against.worst_ratio,
    )


def _planned(program: "poet.Program") -> Plan:
    """In less RAM than keeping everything takes, and no more than the board has."""
    board = find_board(TARGET)
    assert board is not None
    room = board.ram_bytes - board.reserved_bytes
    ask = {"device": TARGET, "work_limit": WORK, "threads": 1}
    plan = poet.plan(program, ram=SHARE, **ask)  # type: ignore[arg-type]
    if not plan.schedule or (plan.budget.ram_bytes or 0) > room:
        plan = poet.plan(program, ram=room, **ask)  # type: ignore[arg-type]
    return plan


def _write_data(graph: Graph, batches: Sequence[tuple[torch.Tensor, ...]], path: Path) -> None:
    wanted = inputs_of(graph)
    stacked = {
        graph.tensors[i].name: np.stack([batch[n].numpy() for batch in batches])
        for n, i in enumerate(wanted)
    }
    write_safetensors(stacked, path)
