"""A plan for C has addresses within its budget; one without any is refused, with a way out."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import poet
from poet.costs.analytic import analytic
from poet.devices import find_device
from poet.errors import Infeasible, PoetError
from poet.firmware.card.upkeep import upkeep
from poet.firmware.place.arena import check, placed
from poet.planning.advice import advised_bytes
from poet.planning.prompt import prompt
from poet.referee.replay import check as replayed
from poet.values.files import write_json
from poet.values.graph import Call, Graph, Op, Tensor
from poet.values.plan import Arena, Plan
from poet.values.schedule import Params
from tests.conftest import Poet


def masks(count: int, nbytes: int) -> Graph:
    """A chain of ops on tensors of so many bytes, the first of which is read again at the end."""

    def tensor(name: str, role: str) -> Tensor:
        return Tensor(name=name, nbytes=nbytes, role=role, shape=(nbytes,), dtype="bool")  # type: ignore[arg-type]

    def op(k: int, *reads: int) -> Op:
        kind = "aten.bitwise_not" if len(reads) == 1 else "aten.bitwise_and.Tensor"
        names = ("self", "other")
        arguments = {name: {"tensor": i} for name, i in zip(names, reads, strict=False)}
        call = Call(kind=kind, arguments=arguments, results=({"tensor": k + 1},))
        return Op(name=f"op {k}", phase="forward", inputs=reads, outputs=(k + 1,), calls=(call,))

    ops = [op(k, k) for k in range(count)] + [op(count, 0, count)]
    roles = ["input"] + ["activation"] * count + ["output"]
    tensors = tuple(tensor(f"t{n}", role) for n, role in enumerate(roles))
    return Graph(name="masks", tensors=tensors, ops=tuple(ops))


def test_a_plan_for_a_board_has_addresses_within_its_budget(
    tmp_path: Path, poet_command: Poet
) -> None:
    plan = poet.plan(masks(6, 64), device="mkr1000", ram=192, time_limit=2)
    assert plan.arena is not None
    assert plan.arena.nbytes <= 192
    assert prompt(plan.graph, plan.costs, plan.schedule) == plan.schedule
    assert replayed(plan).claims_match
    found = placed(plan, None)
    assert found.placement.offsets == plan.arena.offsets
    check(found.lives.blocks, found.placement, 192)
    write_json(plan, tmp_path / "plan.json")
    assert poet_command("check", tmp_path / "plan.json").code == 0


def test_other_plans_have_none() -> None:
    assert poet.plan(masks(6, 64), device="rpi4", ram=192, time_limit=2).arena is None
    assert poet.plan(masks(6, 64), device="rpi4", ram=192, target="host", time_limit=2).arena
    assert poet.plan(masks(6, 64), device="mkr1000", method="keep-all", time_limit=2).arena is None


def test_what_finds_no_addresses_is_planned_in_less_ram_or_refused_with_a_way_out() -> None:
    graph = masks(6, 5)  # each takes eight bytes of an arena
    refused = poet.plan(graph, device="mkr1000", ram=15, time_limit=2)
    assert refused.status == "unknown"
    assert "found no addresses in 15 bytes: with gaps they take 24" in refused.reason
    assert not refused.schedule
    enough = advised_bytes(refused.reason)
    assert enough is not None
    less = poet.plan(graph, device="mkr1000", ram=max(enough, 24), time_limit=2)
    assert less.arena is not None
    report = replayed(less)
    assert report.valid
    assert report.claims_match


def test_the_smallest_ram_has_room_for_the_gaps() -> None:
    plan = poet.plan(masks(6, 5), device="mkr1000", ram="min", time_limit=2)
    assert plan.arena is not None
    assert plan.budget.ram_bytes is not None
    assert plan.peak_bytes is not None
    assert plan.peak_bytes <= plan.arena.nbytes <= plan.budget.ram_bytes <= 24
    assert replayed(plan).claims_match


def with_two_uses() -> Graph:
    """A chain whose first two tensors are read again at the end; the second costs much to make."""
    graph = masks(5, 5000)
    ops, tensors = list(graph.ops), list(graph.tensors)
    last = msgspec.structs.replace(ops[-1], name="last", inputs=(1, 6), outputs=(7,), calls=(
        msgspec.structs.replace(ops[-1].calls[0], results=({"tensor": 7},), arguments={
            "self": {"tensor": 1}, "other": {"tensor": 6}}),))  # fmt: skip
    tensors[-1] = msgspec.structs.replace(tensors[-1], role="activation")
    tensors.append(msgspec.structs.replace(tensors[-1], name="end", role="output"))
    return Graph(name="two uses", tensors=tuple(tensors), ops=(*ops, last))


def test_a_card_that_does_not_fit_is_planned_with_fewer_pages_or_refused() -> None:
    """A page of 5,000 bytes is ten sectors beside three that every card has."""
    graph, board = with_two_uses(), find_device("mkr1000")
    rates = analytic(graph, board)
    ops = [{"plain": msgspec.structs.replace(runs["plain"], joules=1.0)} for runs in rates.ops]
    costs = msgspec.structs.replace(rates, ops=tuple(ops))

    def plan(store_bytes: int, recompute: bool = True) -> Plan:
        small = msgspec.structs.replace(board, store_bytes=store_bytes)
        return poet.plan(
            graph, device=small, costs=costs, ram=15_000, time_limit=2, recompute=recompute
        )

    roomy = plan(13 * 512)
    assert upkeep(roomy).card_bytes == 13 * 512
    assert roomy.recomputed == 0
    for store_bytes in (5000, 13 * 512 - 1):  # 5,000: the pages alone would fit
        tight = plan(store_bytes)
        assert (tight.recomputed, tight.written) == (1, {})
        assert upkeep(tight).card_bytes == 3 * 512
        assert tight.budget.store_bytes == store_bytes
        assert tight.gap is not None
        assert tight.gap < 1
        assert replayed(tight).claims_match
    refused = plan(13 * 512 - 1, recompute=False)
    assert refused.status == "unknown"
    assert refused.reason == (
        "its card takes 6,656 bytes, 5,120 of them pages, the others two copies of what a step "
        "changes, and a journal; the store has 6,655."
    )
    assert plan(13 * 512, recompute=False).schedule


def test_two_copies_that_do_not_fit_are_refused_before_anything_is_planned() -> None:
    weight = Tensor(name="w", nbytes=4000, role="parameter", shape=(1000,), dtype="float32")
    table = Tensor(name="t", nbytes=4000, role="buffer", shape=(1000,), dtype="float32")
    new = msgspec.structs.replace(weight, name="w'", becomes=0)
    call = Call(kind="aten.neg", arguments={"self": {"tensor": 0}}, results=({"tensor": 2},))
    op = Op(name="op", phase="forward", inputs=(0, 1), outputs=(2,), calls=(call,))
    graph = Graph(name="one", tensors=(weight, table, new), ops=(op,))
    board = msgspec.structs.replace(find_device("mkr1000"), store_bytes=11_999)
    for params in get_args(Params):
        refused = poet.plan(graph, device=board, params=params, time_limit=2)
        assert refused.status == "infeasible"
        assert refused.reason == (
            "its card takes at least 12,000 bytes, with two copies of what a step changes; the "
            "store has 11,999."
        )
    one_maker = poet.plan(graph, device=board, method="keep-all", time_limit=2)
    assert one_maker.schedule  # has no addresses, and poet emit says the same of it


def test_the_command_tells_wear_and_commits_and_refuses_a_small_store(
    tmp_path: Path, poet_command: Poet
) -> None:
    write_json(with_two_uses(), tmp_path / "graph.json")
    asked = ("plan", tmp_path / "graph.json", "--ram", "15000", "--no-remat", "--time-limit", "2")
    done = poet_command(*asked, "--device", "mkr1000", "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert list(said["written_bytes"].values()) == [5000]
    assert said["commit"]["card_bytes"] == 13 * 512
    assert said["commit"]["seconds"] > 0
    shown = poet_command(*asked, "--device", "mkr1000").out
    assert "written         5,000 B (4.9 KiB) a step: " in shown
    assert "commit          1 sector written, 0 read at each save: " in shown
    assert "card            6,656 B (6.5 KiB), and the samples" in shown
    board = (files("poet.devices") / "mkr1000.toml").read_text()
    found = re.sub("store_bytes = 32_000_000_000", "store_bytes = 6_655", board)
    (tmp_path / "small.toml").write_text(found)
    refused = poet_command(*asked, "--device", tmp_path / "small.toml")
    assert refused.code == 4
    assert "unknown: its card takes 6,656 bytes, " in refused.err
    assert "Try" not in refused.err  # neither RAM nor time is what is missing


def test_wrong_addresses_are_refused(tmp_path: Path, poet_command: Poet) -> None:
    plan = poet.plan(masks(6, 64), device="mkr1000", ram=192, time_limit=2)
    assert plan.arena is not None
    for arena in (
        Arena(nbytes=192, offsets=(0,) * len(plan.arena.offsets)),
        Arena(nbytes=192, offsets=plan.arena.offsets[1:]),
        Arena(nbytes=128, offsets=plan.arena.offsets),
    ):
        wrong = msgspec.structs.replace(plan, arena=arena)
        with pytest.raises(PoetError, match="Plan again"):
            placed(wrong, None)
        write_json(wrong, tmp_path / "wrong.json", force=True)
        said = poet_command("check", tmp_path / "wrong.json")
        assert said.code == 5
        assert "addresses" in said.err


def test_a_target_with_less_ram_is_a_limit() -> None:
    board = find_device("nrf52840")
    with pytest.raises(PoetError, match="microbit has 13,824"):
        poet.plan(masks(6, 64), device=board, ram="20KB", target="microbit")
    plan = poet.plan(masks(6, 64), device=board, target="microbit", time_limit=2)
    assert plan.budget.ram_bytes == 13_824


def test_emit_places_what_nobody_has_placed_and_plans_nothing(tmp_path: Path) -> None:
    plan = poet.plan(masks(6, 5), device="rpi4", ram=15, time_limit=2)
    assert plan.schedule
    with pytest.raises(Infeasible, match=r'24 with the gaps.*Plan with target="host"'):
        poet.emit(plan, tmp_path / "firmware")
