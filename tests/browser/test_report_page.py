"""The report's page in a real browser: it draws, answers, fits its width and asks nobody."""

import pytest

from poet import Plan, check
from poet.reports.page.rows import fold_bytes
from poet.values.quantities import amount_text
from tests.browser.conftest import Open, Opened
from tests.browser.plans import HOSTILE, chain, impossible, small

BARS = "document.querySelectorAll('#map .barlayer .point').length"
ROWS = "new Set(document.getElementById('map').data.flatMap((trace) => trace.y)).size"
TRACES = "document.getElementById('ram').data.map((trace) => trace.name)"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return chain(60)


@pytest.fixture(scope="module")
def page(open_plan: Open, plan: Plan) -> Opened:
    return open_plan(plan)


def shown(page: Opened, selector: str) -> str:
    return page.page.inner_text(selector)


def unfolded(plan: Plan) -> int:
    least = fold_bytes(check(plan).peak_bytes)
    return sum(tensor.nbytes >= least for tensor in plan.graph.tensors)


def test_the_page_opens_in_silence(page: Opened) -> None:
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("file:")] == []
    assert len(page.asked) == 1
    assert page.page.title() == "a chain: a plan by POET"
    assert page.run("document.documentElement.lang") == "en"


def test_figures_are_the_referees(page: Opened, plan: Plan) -> None:
    report = check(plan)
    text = shown(page, "main")
    for each in (
        amount_text(report.joules, "J"),
        amount_text(report.seconds, "s"),
        f"{report.peak_bytes:,} B",
    ):
        number, _, unit = each.partition(" ")
        assert number in text, each
        assert unit in text
    split = page.run(
        "[...document.querySelectorAll('.split tbody tr')].map((row) => row.cells[2].innerText)"
    )
    assert split[-1] == amount_text(report.joules, "J")
    assert len(split) == 6
    highest = page.run("Math.max(...document.getElementById('ram').data.at(-1).y)")
    assert highest * 2**10 == pytest.approx(report.peak_bytes, rel=1e-9)


def test_charts_have_a_trace_for_each_role_and_a_row_for_each_tensor(
    page: Opened, plan: Plan
) -> None:
    assert page.run(TRACES) == ["activations", "gradients", "workspace", "total"]
    assert page.run(ROWS) == unfolded(plan) == 120
    states = page.run("document.getElementById('map').data.map((trace) => trace.name)")
    assert states == [
        "in RAM", "in the store", "in both", "being computed", "being recomputed", "being paged",
    ]  # fmt: skip
    axes = page.run("['ram', 'map'].map((id) => document.getElementById(id).layout)")
    assert axes[0]["xaxis"]["title"]["text"] == "time in ms"
    assert axes[0]["yaxis"]["title"]["text"] == "RAM in KiB"
    assert axes[1]["xaxis"]["title"]["text"] == "instruction"


def test_the_axis_can_be_switched_by_keyboard(page: Opened, plan: Plan) -> None:
    button = page.page.locator("[data-chart=ram][data-axis=slots]")
    button.focus()
    page.page.keyboard.press("Enter")
    title = "document.getElementById('ram').layout.xaxis.title.text"
    assert page.run(title) == "instruction"
    assert button.get_attribute("aria-pressed") == "true"
    ends = page.run("document.getElementById('ram').data.at(-1).x.at(-1)")
    assert ends == len(plan.schedule)
    page.page.locator("[data-chart=ram][data-axis=seconds]").click()
    assert page.run(title) == "time in ms"


def test_hovering_tells_the_instruction_and_what_is_live(page: Opened) -> None:
    box = page.page.locator("#ram .nsewdrag").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.8)
    page.page.mouse.move(box["x"] + box["width"] * 0.31, box["y"] + box["height"] * 0.8)
    label = page.page.locator("#ram .hoverlayer .hovertext")
    label.wait_for(timeout=5000)
    assert "in RAM" in (label.text_content() or "")
    assert "op " in (label.text_content() or "") or "tensor " in (label.text_content() or "")
    page.page.wait_for_timeout(100)
    at = page.run("document.getElementById('cursor').value")
    assert shown(page, "#readout").startswith(f"instruction {at}:")
    assert "tensors live" in shown(page, "#readout")


def test_hovering_the_map_names_the_tensor(page: Opened) -> None:
    bar = page.page.locator("#map .barlayer .trace").first.locator(".point").nth(30)
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2)
    page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.page.locator("#map .hoverlayer .hovertext")
    label.wait_for(timeout=5000)
    assert "block" in (label.text_content() or "")
    assert "in RAM" in (label.text_content() or "")


def test_the_cursor_steps_by_keyboard(page: Opened, plan: Plan) -> None:
    page.page.mouse.move(0, 0)
    page.page.locator("#cursor").focus()
    page.page.keyboard.press("Home")
    page.page.wait_for_timeout(100)
    assert shown(page, "#readout").startswith("instruction 0: compute op 0 (block0, forward)")
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_timeout(100)
    assert shown(page, "#readout").startswith("instruction 1: ")
    lines = page.run("['ram', 'map'].map((id) => document.getElementById(id).layout.shapes[0].x0)")
    assert lines[1] == 1.5


def test_filters_take_rows_away_and_bring_them_back(page: Opened) -> None:
    before = page.run(ROWS)
    page.page.get_by_label("gradients").uncheck()
    assert page.run(ROWS) == before - 60
    assert "60 do not match" in shown(page, "#folded")
    page.page.get_by_label("gradients").check()
    page.page.select_option("#sizes", index=2)
    fewer = page.run(ROWS)
    assert 0 < fewer < before
    assert f"{before - fewer} smaller than" in shown(page, "#folded")
    page.page.select_option("#sizes", index=1)
    page.page.fill("#name", "BLOCK7.")
    assert page.run(ROWS) == 2
    page.page.fill("#name", "no such tensor")
    assert page.run("document.getElementById('map').data.length") == 0
    page.page.fill("#name", "")
    assert page.run(ROWS) == before


def test_zooming_one_chart_takes_the_other_along(page: Opened) -> None:
    page.run("Plotly.relayout('map', {'xaxis.range': [50, 100]})")
    page.page.wait_for_timeout(200)
    low, high = page.run("document.getElementById('ram').layout.xaxis.range")
    steps = page.run("[data.steps[50][2], data.steps[100][2]]")
    assert [low, high] == pytest.approx([1000 * second for second in steps], rel=1e-6)
    ticks = "document.getElementById('map').layout.yaxis.tickvals.length"
    rows = "Math.abs(document.getElementById('map').layout.yaxis.range.reduce((a, b) => a - b))"
    assert page.run(ticks) < page.run(rows)
    for _ in range(3):
        page.page.click("[data-zoom='0.5']")
    page.page.wait_for_timeout(200)
    assert page.run(rows) == pytest.approx(120 / 8)
    assert page.run(ticks) in (15, 16), "thick rows all have their names"
    page.page.locator("[data-reset]").first.click()
    assert page.run(rows) == 120


def test_ops_can_be_ordered_by_time(page: Opened) -> None:
    assert page.page.is_visible("#top-joules")
    page.page.click("[data-show=top-seconds]")
    assert page.page.is_visible("#top-seconds")
    assert not page.page.is_visible("#top-joules")
    assert page.run("document.querySelectorAll('#top-seconds tbody tr').length") == 15


def test_light_and_dark(page: Opened) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "document.getElementById('ram').layout.font.color"
    light = page.run(ground), page.run(ink)
    page.page.click("#theme")
    dark = page.run(ground), page.run(ink)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert shown(page, "#theme") == "Light"
    page.page.click("#theme")
    assert (page.run(ground), page.run(ink)) == light


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out(open_plan: Open, width: int) -> None:
    opened = open_plan(small("a.very.long.name." * 8), width=width, scheme="dark")
    assert opened.run(OVERFLOW) <= 0
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(14, 20, 26)"
    wide = "[...document.querySelectorAll('main > *')].filter((e) => e.scrollWidth > innerWidth)"
    assert opened.run(f"{wide}.length") == 0
    boxes = "[...document.querySelectorAll('.scroll')].map((e) => getComputedStyle(e).overflowX)"
    assert set(opened.run(boxes)) == {"auto"}
    assert opened.said == []


def test_hostile_names_do_nothing(open_plan: Open) -> None:
    opened = open_plan(small(HOSTILE))
    assert opened.run("typeof hacked") == "undefined"
    assert opened.run("document.images.length") == 0
    assert opened.run("document.querySelectorAll('main a, main svg a').length") == 0
    assert shown(opened, "h1") == HOSTILE
    bar = opened.page.locator("#map .barlayer .point").first
    bar.scroll_into_view_if_needed()
    bar.hover(force=True)
    label = opened.page.locator("#map .hoverlayer .hovertext")
    label.wait_for(timeout=5000)
    assert HOSTILE in (label.text_content() or "")
    assert opened.run("document.querySelectorAll('.hoverlayer a').length") == 0
    assert opened.said == []
    assert len(opened.asked) == 1


def test_every_role_of_a_small_plan_is_drawn(open_plan: Open) -> None:
    opened = open_plan(small())
    assert opened.run(TRACES) == ["parameters", "activations", "gradients", "workspace", "total"]
    assert opened.run(ROWS) == 5
    assert opened.run(BARS) > 5


def test_a_plan_without_a_schedule_opens_too(open_plan: Open) -> None:
    opened = open_plan(impossible(), width=390)
    assert "needs 12,288 bytes at once" in shown(opened, "main")
    assert opened.run(OVERFLOW) <= 0
    before = opened.run("getComputedStyle(document.body).backgroundColor")
    opened.page.click("#theme")
    assert opened.run("getComputedStyle(document.body).backgroundColor") != before
    assert opened.said == []


def test_seven_hundred_tensors_are_folded_until_asked_for(open_plan: Open) -> None:
    plan = chain(350)
    opened = open_plan(plan)
    assert opened.run(ROWS) == unfolded(plan) < 700
    assert f"of 700 tensors shown. {700 - unfolded(plan)} smaller" in shown(opened, "#folded")
    opened.page.select_option("#sizes", "0")
    assert opened.run(ROWS) == 700
    assert opened.said == []
