"""What the API promises of plans: the library's values, events, cancelling, refusals."""

import io
import zipfile
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

import poet
from poet.values.plan import Plan
from tests.conftest import INSTANCES
from tests.server.conftest import asked, ended, endless, running, small

FILE = str(INSTANCES / "linear-m4.json")


def test_a_plan_is_the_librarys(client: TestClient) -> None:
    job = asked(client, small(ram="60%"))
    answer = ended(client, job)
    assert answer["status"] == "done"
    found = msgspec.convert(answer["plan"], Plan)
    wanted = poet.plan(FILE, ram="60%", work_limit=1)
    assert found.schedule == wanted.schedule
    assert (found.status, found.joules, found.bound_joules, found.budget) == (
        wanted.status, wanted.joules, wanted.bound_joules, wanted.budget,
    )  # fmt: skip
    assert {each: answer[each] for each in ("joules", "bound_joules", "gap", "peak_bytes")} == {
        "joules": wanted.joules, "bound_joules": wanted.bound_joules, "gap": wanted.gap,
        "peak_bytes": wanted.peak_bytes,
    }  # fmt: skip
    assert client.get(f"{job}/plan.json").json() == answer["plan"]
    assert poet.check(found).valid


def test_what_was_asked_is_not_asked_again(client: TestClient) -> None:
    first = asked(client, small(ram="61%"))
    ended(client, first)
    spelled_out = small(ram="61%", params="auto", recompute=True, time_limit=60, gap=1e-4, seed=0)
    assert asked(client, spelled_out) == first
    assert asked(client, small(ram="61%", seed=1)) != first


def test_events_tell_everything_and_go_on_where_one_left(client: TestClient) -> None:
    job = asked(client, small(ram="62%"))
    ended(client, job)
    whole = client.get(f"{job}/events").text.split("\n\n")
    kinds = [part.split("\n")[0] for part in whole]
    assert kinds[1:3] == ["event: status", "event: status"]
    assert "event: progress" in kinds
    assert kinds[-2] == "event: end"
    rest = client.get(f"{job}/events", headers={"Last-Event-ID": "2"}).text.split("\n\n")
    assert rest[1:] == whole[3:]
    log = client.get(f"{job}/log", params={"from": 1}).json()
    assert log["lines"][0] == "running"
    assert log["lines"][-1] == "done"
    assert client.get(f"{job}/log", params={"from": log["next"]}).json()["lines"] == []


def test_cancelling_keeps_the_best_so_far_and_may_be_said_twice(client: TestClient) -> None:
    job = asked(client, endless())
    running(client, job)
    for _ in range(2):
        assert client.delete(job).status_code == 200
    answer = ended(client, job, 30)
    assert answer["status"] == "cancelled"
    assert answer["plan"]["schedule"]
    assert client.delete(job).json() == answer
    assert asked(client, endless()) != job
    assert client.delete(f"{asked(client, endless())}").json()["status"] in ("cancelled", "running")


def test_infeasible_is_a_result_with_the_way_out(client: TestClient) -> None:
    answer = ended(client, asked(client, small(ram=1000)))
    assert (answer["status"], answer["outcome"]) == ("done", "infeasible")
    enough = answer["enough_bytes"]
    assert (
        f"{enough}" in answer["plan"]["reason"]
        or f"{enough // 1024}KiB" in answer["plan"]["reason"]
    )
    again = ended(client, asked(client, small(ram=enough)))
    assert again["plan"]["schedule"]


def test_results(client: TestClient) -> None:
    job = asked(client, small(ram="60%"))
    plan = ended(client, job)["plan"]
    table = client.get(f"{job}/plan.csv")
    assert table.headers["content-type"].startswith("text/csv")
    assert len(table.text.splitlines()) == 1 + len(plan["schedule"])
    report = client.get(f"{job}/report")
    assert report.text.startswith("<!doctype html>")
    assert "sandbox" in report.headers["content-security-policy"]
    assert client.get(f"{job}/question.json").json()["ram"] == "60%"
    refused = client.get(f"{job}/firmware.zip")
    assert refused.status_code == 422
    assert "calls" in refused.json()["error"]


def test_c_of_a_plan(client: TestClient) -> None:
    question = {"model": "mlp?hidden=8", "device": "nrf52840", "work_limit": 1}
    job = asked(client, question)
    assert ended(client, job)["status"] == "done"
    packed = client.get(f"{job}/firmware.zip", params={"target": "nrf52840"})
    assert packed.status_code == 200, packed.text
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert {"firmware/step.c", "firmware/Makefile"} <= set(archive.namelist())
    assert client.get(f"{job}/firmware.zip", params={"target": "../x"}).status_code == 422


def test_comparisons_and_frontiers(client: TestClient) -> None:
    del (question := small())["work_limit"]
    methods = {"methods": ["poet", "chen-sqrt"], "time_limit": 0.2}
    comparison = asked(client, {**question, **methods, "ram": "60%"}, "comparisons")
    frontier = asked(client, {**question, **methods, "points": 3}, "frontiers")
    rows = ended(client, comparison)["comparison"]["rows"]
    assert [row["method"] for row in rows] == ["poet", "chen-sqrt"]
    assert len(client.get(f"{comparison}/comparison.csv").text.splitlines()) == 3
    answer = ended(client, frontier)
    points = answer["frontier"]["points"]
    assert points[-1]["ram_bytes"] == answer["frontier"]["keep_all_bytes"]
    assert (answer["done"], answer["status"]) == (answer["count"], "done")
    assert len(client.get(f"{frontier}/frontier.csv").text.splitlines()) == 1 + 2 * len(points)
    assert client.get(f"{frontier}/frontier.json").json() == answer["frontier"]
    assert client.get(frontier.replace("frontiers", "plans")).status_code == 404


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": "own.py:make"}, "instance"),
        ({"instance": None, "model": "own.py:make", "device": "rpi4"}, "no model named"),
        ({"instance": None, "model": "/etc/passwd.json", "device": "rpi4"}, "no model named"),
        ({"instance": None, "model": "lenet"}, "device"),
        ({"device": "/etc/board.toml"}, "there is no board"),
        ({"device": "nowhere"}, "there is no board"),
        ({"ram": "lots"}, "is not a size"),
        ({"ram": True}, "ram"),
        ({"deadline": "soon"}, "is not a time"),
        ({"time_limit": 1e6}, "at most"),
        ({"method": "magic"}, "no method"),
        ({"costs": {"format": "poet-costs/1"}}, "costs"),
        ({"treads": 3}, "treads"),
        ({"instance": {"name": "x", "nodes": [{}]}}, "nodes"),
    ],
)
def test_refusals(client: TestClient, changed: dict[str, Any], told: str) -> None:
    answer = client.post("/api/plans", json={**small(), **changed}, params={"validate": True})
    assert answer.status_code == 422
    assert told in answer.json()["error"]
    assert list(answer.json()) == ["error"]


def test_a_question_that_can_be_asked(client: TestClient) -> None:
    waiting = client.get("/api/health").json()["unfinished"]
    answer = client.post("/api/plans", json=small(ram="63%"), params={"validate": True})
    assert (answer.status_code, answer.json()) == (200, {"valid": True})
    assert client.get("/api/health").json()["unfinished"] <= waiting


def test_models_and_devices(client: TestClient) -> None:
    models = {each["name"]: each for each in client.get("/api/models").json()["models"]}
    assert "batch" in {option["name"] for option in models["lenet"]["options"]}
    names = {each["name"] for each in client.get("/api/devices").json()["devices"]}
    assert "nrf52840" in names
