"""Steps whose ops run as they are told to, each in a variant of its own, and what they train."""

import random
import shutil
import subprocess
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import msgspec

from poet.baselines.paging_greedy import _Pager
from poet.calls.pieces.choices import Choice
from poet.calls.pieces.ways import streamable, way_of
from poet.costs.analytic import analytic
from poet.costs.tiles import _Op
from poet.devices import find_device
from poet.firmware.card.commits import Commit, Order
from poet.firmware.card.image import read_tensors, write_image
from poet.firmware.card.layout import CardLayout, InFlash, card_layout
from poet.firmware.emit import _records, _tensors
from poet.firmware.place.arena import placed
from poet.firmware.write.folder import SAVE_EVERY, write_folder
from poet.referee.replay import check
from poet.tracer.by_name import capture_named
from poet.values.device import PLAIN, Costs, Run
from poet.values.graph import Graph
from poet.values.optimizers import parse_optimizer
from poet.values.plan import Plan, draft
from poet.values.schedule import Budget, places

LIMITS = (256, 512, 1024, 2048, 4096, 16_384)
BOARD = find_device("nrf52840")


def graph_in_pieces(model: str, optimizer: str) -> Graph:
    traced = capture_named(model, parse_optimizer(optimizer)).traced
    return traced.rewritten("op", fuse_updates=True).graph


class _Forced(_Pager):
    ways: Mapping[int, str] = {}

    def choose(self, k: int) -> tuple[str, Run]:
        name = self.ways.get(k, PLAIN)
        return name, self.costs.ops[k][name]


def forced_plan(
    graph: Graph, costs: Costs, ways: Mapping[int, str], pinned: tuple[int, ...] = ()
) -> Plan:
    """A plan in which some ops run in these variants, the others whole; RAM has no limit."""
    start, end = places(graph, "streamed")
    budget = Budget(start=start, end=end, pinned=pinned)
    pager = _Forced(graph, costs, budget)
    pager.ways = ways
    for k in range(len(graph.ops)):
        pager.run(k)
    pager.settle()
    plan = draft(graph, costs, budget, tuple(pager.schedule))
    report = check(plan)
    assert report.violation is None, report.violation
    return msgspec.structs.replace(
        plan, peak_bytes=report.peak_bytes, joules=report.joules, seconds=report.seconds
    )


def with_random_ways(
    graph: Graph, chance: random.Random, in_torch: bool = False
) -> tuple[Costs, dict[int, str]]:
    """A way to run piece by piece for every op that has one: any tensors, any size of tiles."""
    costs, ops, ways = analytic(graph, BOARD), [], {}
    for k, runs in enumerate(costs.ops):
        ops.append(dict(runs))
        groups = streamable(graph, k)
        if not groups or (in_torch and graph.ops[k].random_state_bytes):
            continue
        sets = [some for n in range(1, len(groups) + 1) for some in combinations(groups, n)]
        for _ in range(4):
            chosen = frozenset[int]().union(*chance.choice(sets))
            reads, writes = chosen & set(graph.ops[k].inputs), chosen & set(graph.ops[k].outputs)
            for limit in (chance.choice(LIMITS), 4096, 65_536, 1 << 20):
                choice = Choice(reads, writes, limit)
                way = way_of(graph, k, choice)
                if way is not None:
                    ops[-1][choice.name] = _Op(graph, k, runs[PLAIN], BOARD, in_torch).costed(way)
                    ways[k] = choice.name
                    break
            if k in ways:
                break
    return msgspec.structs.replace(costs, ops=tuple(ops)), ways


def written_for_host(
    plan: Plan, folder: Path, steps: int = 2, save_every: int = SAVE_EVERY,
    in_flash: InFlash = "none",
) -> CardLayout:  # fmt: skip
    """The C of a plan and its card, without what PyTorch makes of it."""
    graph = plan.graph
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    records = _records(graph, None, 2, 0)
    card, tensors = card_layout(plan, len(records), in_flash), _tensors(graph, None, 0)
    write_folder(
        folder, plan, None, placed(plan, None), None, card, steps, 0.01, save_every, None,
        in_flash, tensors,
    )  # fmt: skip
    commit = Commit(
        generation=0, steps_done=0, side=0, seed=0, learning_rate=0.01,
        fingerprint=graph.fingerprint,
    )  # fmt: skip
    order = Order(stop_at=steps, samples=len(records))
    write_image(folder / "card.img", graph, card, commit, order, tensors, records)
    return card


def trained_on_host(
    plan: Plan, folder: Path, steps: int = 2, extra: str = ""
) -> tuple[dict[int, bytes], list[str]]:
    """What is on the card after some steps of a plan in C, and what the firmware said of them."""
    card = written_for_host(plan, folder, steps)
    subprocess.run(["make", "-s", "-C", str(folder), f"EXTRA={extra}"], check=True)
    done = subprocess.run(
        [str(folder / "train")], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "said").write_text(done.stdout + done.stderr)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("step")]
    found = read_tensors(folder / "card.img", plan.graph, card)
    return {i: array.tobytes() for i, array in found.items()}, said
