"""Readers under fire: whatever the bytes, a value or one clear PoetError, and never half a file."""

import json
import os
import stat
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import poet
from poet import Costs, Device, Graph, Plan, PoetError, read_json, write_json
from poet.values.files import MAX_FILE_BYTES, decode_json, decode_toml
from poet.values.instances import InstanceFile
from poet.values.plan import draft
from tests.conftest import INSTANCES, ROOT
from tests.unit.random_problems import (
    random_budget,
    random_costs,
    random_graph,
    random_schedule,
)


def random_plan(seed: int) -> Plan:
    rng = Random(seed)
    graph = random_graph(rng, ops=6)
    costs = random_costs(rng, graph)
    budget = random_budget(rng, graph)
    return draft(graph, costs, budget, random_schedule(rng, graph, costs, budget))


@pytest.mark.parametrize("seed", range(25))
def test_plans_survive_json_both_ways(seed: int, tmp_path: Path) -> None:
    plan = random_plan(seed)
    path = tmp_path / "plan.json"
    write_json(plan, path)
    again = read_json(path, Plan)
    assert again == plan
    assert again.graph.fingerprint == plan.graph.fingerprint
    assert poet.check(again) == poet.check(plan) == poet.check(path) == poet.check(str(path))


def test_what_is_no_plan_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(PoetError, match="a Graph cannot be checked: give a plan, or its file"):
        poet.check(random_plan(0).graph)  # type: ignore[arg-type]
    with pytest.raises(PoetError, match=r"cannot read .*none\.json"):
        poet.check(tmp_path / "none.json")


def test_the_file_says_what_design_says(tmp_path: Path) -> None:
    plan = poet.plan(
        poet.read_instance(INSTANCES / "linear-m4.json"), ram=4000, method="paging-greedy"
    )
    write_json(plan, tmp_path / "plan.json")
    file = json.loads((tmp_path / "plan.json").read_text())
    assert file["format"] == "poet-plan/1"
    kinds = {json.dumps(sorted(step)) for step in file["schedule"]}
    assert kinds == {'["do", "op"]', '["do", "tensor"]'}
    assert {step["do"] for step in file["schedule"]} == {"compute", "page_out", "page_in", "free"}
    for name in ("status", "joules", "seconds", "peak_bytes", "bound_joules", "gap"):
        assert file[name] == getattr(plan, name)


KINDS: list[type[Any]] = [Plan, Graph, Costs, InstanceFile]
PLAN_TEXT = msgspec.json.encode(random_plan(3))
INSTANCE_TEXT = (INSTANCES / "linear-m0.json").read_bytes()
BOARD_TEXT = (ROOT / "src/poet/devices/nrf52840.toml").read_bytes()


def read_or_refuse(data: bytes, kind: type[Any]) -> None:
    for decode in (decode_json, decode_toml):
        try:
            assert isinstance(decode(data, kind, "some.file"), kind)
        except PoetError as error:
            text = str(error)
            assert text.startswith("some.file")
            assert "\n" not in text.strip()


@given(st.binary(max_size=200), st.sampled_from([*KINDS, Device]))
@example(b"", Plan)
@example(b"\xff\xfe", Device)
@example(b"[" * 100_000, Plan)
@example(b'{"format":"poet-plan/1","graph":' + b'{"name":' * 50_000, Plan)
@example(b"a = " + b"[" * 100_000, Device)
@example(b'{"format": 1}', Plan)
@example(b'{"format": "poet-plan/1"}', Plan)
@example(b"null", InstanceFile)
def test_any_bytes(data: bytes, kind: type[Any]) -> None:
    read_or_refuse(data, kind)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 2**53, 2**64, 10**40, -0.5, 1e308, "", "x", "9", [], {}, [[]]]),
    st.text(max_size=5),
)


def damage(value: Any, rng: Random, leaf: Any) -> Any:
    """The same JSON with one place replaced, removed, renamed or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = dict(value)
        kind = rng.randrange(8)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed["surprise"] = leaf
        else:
            changed[key] = damage(value[key], rng, leaf)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], damage(value[at], rng, leaf), *value[at + 1 :]]
    return leaf


@pytest.mark.slow
@settings(max_examples=400)
@given(st.integers(), LEAVES, st.sampled_from([(PLAN_TEXT, Plan), (INSTANCE_TEXT, InstanceFile)]))
def test_damaged_files(seed: int, leaf: Any, original: tuple[bytes, type[Any]]) -> None:
    text, kind = original
    read_or_refuse(json.dumps(damage(json.loads(text), Random(seed), leaf)).encode(), kind)


@given(st.integers(0, len(PLAN_TEXT) - 1))
def test_truncated_plans_are_refused(length: int) -> None:
    with pytest.raises(PoetError, match=r"some\.file"):
        decode_json(PLAN_TEXT[:length], Plan, "some.file")


@given(st.integers(0, len(BOARD_TEXT)), st.binary(max_size=3))
def test_damaged_boards(at: int, insert: bytes) -> None:
    read_or_refuse(BOARD_TEXT[:at] + insert + BOARD_TEXT[at:], Device)


def changed_instance(**node: Any) -> bytes:
    file = json.loads(INSTANCE_TEXT)
    file["nodes"][2].update(node)
    return json.dumps(file).encode()


NODE = "some.file: nodes[2]"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed_instance(output_bytes=-5), f"{NODE}: output_bytes is -5"),
        (changed_instance(output_bytes="5"), "nodes[2].output_bytes: Expected `int`, got `str`"),
        (changed_instance(output_bytes="5x"), "the value is '5x'"),
        (changed_instance(output_bytes=10**30), f"{NODE}: output_bytes is 10000"),
        (changed_instance(compute_joules=float("nan")), "not valid JSON"),
        (changed_instance(compute_joules=float("inf")), "not valid JSON"),
        (changed_instance(deps=[99]), "depends on node 99; there are nodes 0 to 26"),
        (changed_instance(deps=[-1]), "depends on node -1"),
        (changed_instance(deps=[2]), "cycle: op 2 -> op 2"),
        (changed_instance(deps=[5]), "cycle"),
        (changed_instance(surprise=1), "nodes[2]: Object contains unknown field `surprise`"),
        (INSTANCE_TEXT.replace(b"0.0", b"1e999", 1), "Number out of range"),
        (b'{"name": "x", "nodes": []}', "no ops"),
    ],
)
def test_wrong_instances_say_where_and_what(data: bytes, message: str) -> None:
    with pytest.raises(PoetError) as error:
        decode_json(data, InstanceFile, "some.file")
    assert message in str(error.value)


def changed_plan(**fields: Any) -> bytes:
    return json.dumps({**json.loads(PLAN_TEXT), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed_plan(format="poet-plan/2"), "version '2'; this POET reads 'poet-plan/1'"),
        (changed_plan(format="poet-graph/1"), "is a 'poet-graph/1' file"),
        (INSTANCE_TEXT, "has no field 'format'; POET expects 'poet-plan/1'"),
        (changed_plan(surprise=0), "unknown field `surprise`"),
        (changed_plan(schedule=[{"do": "compute", "op": 99}]), "schedule[0] runs op 99"),
        (changed_plan(schedule=[{"do": "free", "tensor": -1}]), "schedule[0] names tensor -1"),
        (
            changed_plan(schedule=[{"do": "compute", "op": 0, "variant": "magic"}]),
            "schedule[0] runs op 0 as 'magic'; its variants are",
        ),
        (changed_plan(schedule=[{"do": "wait"}]), "schedule[0].do: Invalid value 'wait'"),
        (changed_plan(status="great"), "status: Invalid enum value 'great'"),
    ],
)
def test_wrong_plans_say_where_and_what(data: bytes, message: str) -> None:
    with pytest.raises(PoetError) as error:
        decode_json(data, Plan, "some.file")
    assert message in str(error.value)


def test_costs_of_another_graph_are_refused_with_both_fingerprints() -> None:
    file = json.loads(PLAN_TEXT)
    mine = file["costs"]["graph"]
    file["costs"]["graph"] = "0" * 32
    with pytest.raises(PoetError) as error:
        decode_json(json.dumps(file).encode(), Plan, "some.file")
    assert mine in str(error.value)
    assert "0" * 32 in str(error.value)


def test_unreadable_paths(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none.json", "No such file"),
        (tmp_path, "Is a directory"),
        (Path("bad\0name"), "cannot read"),
    ):
        with pytest.raises(PoetError, match=message):
            read_json(path, Plan)


def test_huge_files_are_refused_without_reading_them_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # sparse
    with pytest.raises(PoetError, match="larger than"):
        read_json(path, Plan)


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_json(random_plan(1), path)
    before = path.read_bytes()
    with pytest.raises(PoetError, match=r"exists already.*force=True"):
        write_json(random_plan(2), path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PoetError, match="No space left"):
        write_json(random_plan(2), path, force=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    monkeypatch.undo()
    write_json(random_plan(2), path, force=True)
    assert read_json(path, Plan) == random_plan(2)


def test_written_files_have_ordinary_permissions(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_json(random_plan(1), tmp_path / "plan.json")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o644


def test_unwritable_targets(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "plan.json", "there is no folder"),
        (Path("/proc/plan.json"), "cannot write"),
        (Path("bad\0name"), "cannot write"),
    ):
        with pytest.raises(PoetError, match=message):
            write_json(random_plan(1), path)
