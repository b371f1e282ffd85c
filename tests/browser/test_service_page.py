"""The service's page in a real browser, with a real service behind it."""

import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe

import poet
from poet import Plan
from poet.values.files import decode_json
from tests.browser.conftest import Opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

INSTANCE = Path("instances/linear-m0.json")
LARGE = Path("instances/bert-m4.json")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SECONDS = 60_000
Visit = Callable[..., Opened]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("service")
    command = [sys.executable, "-m", "poet", "serve", "--port", "0", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        yield service.stdout.readline().split()[-1]
        service.send_signal(signal.SIGTERM)
        assert service.wait(20) == 0


@pytest.fixture
def visit(browser: "Browser", address: str) -> Iterator[Visit]:
    contexts = []

    def at(path: str = "/", width: int = 1280, scheme: Any = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(SECONDS)
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.goto(address + path)
        opened.page.wait_for_function("() => document.getElementById('model').options.length > 0")
        return opened

    yield at
    for context in contexts:
        context.close()


def upload(opened: Opened, file: Path = INSTANCE, ram: str = "60%", seconds: int = 3) -> None:
    opened.page.set_input_files("#model-file", file)
    opened.page.wait_for_selector("#model-file-off:visible")
    opened.page.fill("#ram", ram)
    opened.page.fill("#time-limit", str(seconds))


def planned(opened: Opened) -> str:
    opened.page.wait_for_selector("#result:not([hidden])")
    return opened.page.inner_text("#result-text")


def test_a_model_of_the_zoo_is_planned_and_the_report_is_the_command_lines(
    visit: Visit, address: str
) -> None:
    opened = visit()
    opened.page.select_option("#model", "mlp")
    opened.page.fill("#model-options", "batch=2")
    opened.page.select_option("#device", "nrf52840")
    opened.page.fill("#time-limit", "2")
    opened.page.keyboard.press("Enter")
    text = planned(opened)
    assert "a step" in text
    frame = opened.page.frame_locator("#report")
    frame.locator("#map .barlayer").wait_for()
    assert "RAM over the step" in frame.locator("main").inner_text()
    assert frame.locator("#theme").is_hidden()
    inside = frame.locator("body").evaluate("body => body.scrollHeight")
    assert opened.run("document.getElementById('report').clientHeight") >= inside > 1000
    opened.page.click("#theme")
    opened.page.wait_for_function("() => document.documentElement.style.colorScheme === 'dark'")
    assert frame.locator("html").get_attribute("style") == "color-scheme: dark;"
    assert opened.said == []
    assert all(url.startswith((address, "data:")) for url in opened.asked)
    way = opened.page.get_attribute("text=The plan (JSON)", "href")
    plan = decode_json(opened.page.request.get(f"{address}{way}").body(), Plan, "the plan")
    assert poet.check(plan).claims_match
    assert plan.graph.name.startswith("mlp")
    with opened.page.expect_download() as packed:
        opened.page.click("#firmware")
    with zipfile.ZipFile(packed.value.path()) as archive:
        assert "firmware/step.c" in archive.namelist()


def test_the_budget_is_dragged_along_the_curve(visit: Visit) -> None:
    opened = visit()
    upload(opened, seconds=20)  # of which a curve takes a few
    opened.page.click("#draw-curve")
    opened.page.wait_for_selector("#curve svg")
    handle = opened.page.get_by_role("slider", name="RAM budget")
    most = int(handle.get_attribute("aria-valuemax") or 0)
    box = opened.page.locator("#curve svg").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + box["width"] - 20, middle)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=4)
    opened.page.mouse.up()
    dragged = int(opened.page.input_value("#ram"))
    assert 0.3 * most < dragged < 0.8 * most
    planned(opened)
    opened.page.frame_locator("#report").locator("#map .barlayer").wait_for()
    first, steps = opened.page.url, opened.run("history.length")
    handle.focus()
    opened.page.keyboard.press("ArrowLeft")
    opened.page.wait_for_function(f"() => location.href !== {json.dumps(first)}")
    planned(opened)
    assert int(opened.page.input_value("#ram")) < dragged
    assert int(handle.get_attribute("aria-valuenow") or 0) < dragged
    opened.page.frame_locator("#report").locator("#map .barlayer").wait_for()
    assert opened.run("history.length") == steps + 1  # a plan is a step, its report none
    opened.page.go_back()
    opened.page.wait_for_function(f"() => document.getElementById('ram').value === '{dragged}'")
    opened.page.click("#curve-table-box summary")
    assert opened.page.locator("#curve-table tbody tr").count() > 3


def test_a_search_is_stopped_with_the_best_so_far(visit: Visit) -> None:
    opened = visit()
    upload(opened, LARGE, "60MB", seconds=300)
    opened.page.click("#plan")
    opened.page.wait_for_function(
        "() => document.getElementById('progress-text').innerText.startsWith('Best so far')"
    )
    opened.page.click("#cancel")
    planned(opened)
    assert opened.page.inner_text("#result-title") == "Stopped: the best so far"


def test_what_is_infeasible_has_a_way_out_as_a_button(visit: Visit) -> None:
    opened = visit()
    upload(opened, ram="1000")
    opened.page.click("#plan")
    planned(opened)
    assert opened.page.inner_text("#result-title") == "Nothing fits these limits"
    opened.page.click("#enough")
    opened.page.wait_for_selector("#compare-section:visible")
    assert int(opened.page.input_value("#ram")) > 1000
    assert "a step" in planned(opened)


def test_bad_files_and_fields_are_told_and_lose_nothing(visit: Visit, tmp_path: Path) -> None:
    opened = visit()
    opened.page.fill("#ram", "60%")
    bad = tmp_path / "<b>bad.json"
    bad.write_text("{")
    opened.page.set_input_files("#model-file", bad)
    refusal = opened.page.locator("#refusal")
    refusal.get_by_text("is not JSON").wait_for()
    assert opened.run("document.querySelectorAll('#refusal b').length") == 0
    bad.write_text('{"name": "<img src=x onerror=alert(1)>", "nodes": [{}]}')
    upload(opened, bad)
    opened.page.click("#plan")
    refusal.get_by_text("nodes").wait_for()
    opened.page.click("#model-file-off")
    opened.page.fill("#ram", "lots")
    opened.page.click("#plan")
    refusal.get_by_text("lots").wait_for()
    assert opened.page.input_value("#ram") == "lots"
    assert opened.page.locator("#result").is_hidden()


def test_a_reload_in_the_middle_and_a_second_tab_show_the_same(visit: Visit) -> None:
    opened = visit()
    upload(opened, LARGE, "61MB", seconds=6)
    opened.page.click("#plan")
    opened.page.wait_for_function("() => location.search.includes('plan=')")
    opened.page.reload()
    other = visit("/" + opened.page.url.rpartition("/")[2])
    assert planned(opened) == planned(other)
    assert opened.page.input_value("#ram") == other.page.input_value("#ram") == "61MB"
    assert other.page.inner_text("#model-file-note") == "Planning bert-m4."
    assert other.page.input_value("#device") == ""
    lost = visit("/?plan=nothing")
    lost.page.get_by_text("There is no such plan here").wait_for()


def test_what_a_program_asked_is_asked_again_as_it_was(visit: Visit, address: str) -> None:
    step = poet.read_instance(INSTANCE)
    costs = msgspec.structs.replace(step.costs, device="my own")
    board = msgspec.structs.replace(poet.find_device("rpi4"), name="mine")
    terms = {"graph": step.graph, "costs": costs, "device": board, "ram": "70%", "seed": 3,
             "work_limit": 1, "paging": False, "transfers": "free"}  # fmt: skip
    kind = {"Content-Type": "application/json"}
    asked = Request(f"{address}/api/plans", msgspec.json.encode(terms), kind)
    id = json.load(urlopen(asked))["id"]
    opened = visit(f"/?plan={id}")
    planned(opened)
    assert "costs, seed, paging, work limit of its own" in opened.page.inner_text(
        "#model-file-note"
    )
    assert opened.page.locator("#more-limits").get_attribute("open") is not None
    with opened.page.expect_response("**/api/plans") as again:
        opened.page.click("#plan")
    body = json.loads(again.value.request.post_data or "")
    wanted = json.loads(msgspec.json.encode({**terms, "time_limit": 60, "params": "auto"}))
    assert body == {**wanted, "minimize": "joules"}
    assert again.value.json()["id"] == id


def test_the_keyboard_is_enough(visit: Visit) -> None:
    opened = visit()
    opened.page.keyboard.press("Tab")
    assert opened.run("document.activeElement.className") == "skip"
    for _ in range(4):
        opened.page.keyboard.press("Tab")
        if opened.run("document.activeElement.id") == "model":
            break
    opened.page.keyboard.type("mlp")
    for target, text in (("ram", "60%"), ("time-limit", "1")):
        while opened.run("document.activeElement.id") != target:
            opened.page.keyboard.press("Tab")
        opened.page.keyboard.press("Control+a")
        opened.page.keyboard.type(text)
    opened.page.keyboard.press("Enter")
    planned(opened)
    assert opened.page.input_value("#model") == "mlp"


def test_other_methods_stand_beside_it(visit: Visit) -> None:
    opened = visit()
    upload(opened, seconds=1)
    opened.page.click("#plan")
    planned(opened)
    opened.page.click("#compare")
    opened.page.wait_for_selector("#compare-table table")
    methods = opened.page.locator("#compare-table tbody td:first-child").all_inner_texts()
    assert {"poet", "keep-all", "checkmate", "revolve"} <= set(methods)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_is_accessible_and_fits_its_width(visit: Visit, width: int, scheme: str) -> None:
    opened = visit(width=width, scheme=scheme)
    upload(opened, seconds=20)
    opened.page.click("#draw-curve")
    opened.page.wait_for_selector("#curve svg")
    opened.page.click("#plan")
    planned(opened)
    opened.page.frame_locator("#report").locator("#map .barlayer").wait_for()
    assert opened.run(OVERFLOW) == 0
    faults = Axe().run(opened.page).response["violations"]
    serious = [each for each in faults if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
