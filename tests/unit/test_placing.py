"""A plan for C has addresses within its budget; one without any is refused, with a way out."""

from pathlib import Path

import msgspec
import pytest

import poet
from poet.devices import find_device
from poet.errors import Infeasible, PoetError
from poet.firmware.place.arena import check, placed
from poet.planning.advice import advised_bytes
from poet.planning.prompt import prompt
from poet.referee.replay import check as replayed
from poet.values.files import write_json
from poet.values.graph import Call, Graph, Op, Tensor
from poet.values.plan import Arena
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
