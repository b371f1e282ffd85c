"""The report: its history is the referee's, sums add up, names stay text, files are whole."""

import json
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from random import Random

import msgspec
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from poet import Compute, Free, Plan, check
from poet.cli.report import report as report_command
from poet.errors import PoetError
from poet.reports.page.history import record
from poet.reports.page.levels import levels
from poet.reports.page.markup import Markup, tag
from poet.reports.page.palette import KINDS, STATES
from poet.reports.page.payload import payload
from poet.reports.page.scales import shortened
from poet.reports.page.view import PlanView, bound_text, look_at
from poet.values.files import write_json
from poet.values.plan import draft
from poet.values.quantities import amount_text, bytes_text, short_bytes_text
from tests.browser.plans import HOSTILE, chain, impossible, small
from tests.unit.random_problems import (
    mutate,
    random_budget,
    random_costs,
    random_graph,
    random_schedule,
)
from tests.unit.simple_replay import Places, simple_replay

pytest.importorskip("plotly", reason="plotly is missing: pip install '.[report]'")
pytest.importorskip("matplotlib", reason="matplotlib is missing: pip install '.[report]'")

from poet.reports.page.charts import plot
from poet.reports.page.page import page
from poet.reports.page.picture import picture


def random_plan(seed: int) -> Plan:
    rng = Random(seed)
    graph = random_graph(rng, rng.randint(1, 9))
    costs, budget = random_costs(rng, graph), random_budget(rng, graph)
    schedule = random_schedule(rng, graph, costs, budget)
    if rng.random() < 0.3:
        schedule = mutate(rng, schedule, graph)
    return draft(graph, costs, budget, schedule)


@pytest.mark.parametrize("seed", range(12))
def test_ram_by_kind_adds_up_to_the_referees_timeline(seed: int) -> None:
    for each in range(150):
        plan = random_plan(1000 * seed + each)
        report, history = record(plan)
        assert report == check(plan)
        total, moments = 0, []
        for change in history.changes_in_time:
            total += sum(delta for _, delta in change.deltas_bytes)
            moments.append((change.seconds, total))
        told = [(moment.seconds, moment.ram_bytes) for moment in report.timeline]
        assert _steps(moments) == _steps(told)
        assert max(total for _, total in moments) == report.peak_bytes
        assert max(levels(history, "seconds").total_bytes) == report.peak_bytes
        assert history.seconds == report.seconds


def _steps(moments: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Without moments that change nothing, some of which the referee leaves out."""
    return [m for n, m in enumerate(moments) if n == 0 or m[1] != moments[n - 1][1]]


@pytest.mark.parametrize("seed", range(40))
def test_spans_say_where_each_tensor_is(seed: int) -> None:
    """The second referee agrees, wherever nothing is under way."""
    doings = {"computing", "recomputing", "paging"}
    for each in range(50):
        plan = random_plan(77_000 + 50 * seed + each)
        _, history = record(plan)
        told: list[Places] = []
        simple_replay(plan, told)
        assert len(history.events) == len(told) - 1
        for at, step in enumerate(plan.schedule[: len(history.events)]):
            if isinstance(step, Compute):
                op, run = plan.graph.ops[step.op], plan.costs.ops[step.op][step.variant]
                busy = {*op.outputs, *(stream.tensor for stream in run.reads)}
            else:
                busy = set() if isinstance(step, Free) else {step.tensor}
            # A free is done at once; whatever else an instruction does is done at its end.
            settled = told[at + 1] if isinstance(step, Free) else told[at]
            for i, spans in enumerate(history.slot_spans):
                states = {span.state for span in spans if span.start <= at < span.end}
                if i not in busy or not states <= doings:
                    assert states == ({settled[i]} if i in settled else set()), (at, i)
                if i in busy and settled.get(i) != told[at + 1].get(i):
                    assert states, (at, i)
                    assert states <= doings, (at, i)


def test_spans_never_overlap_and_end_with_the_step() -> None:
    followed = 0
    for seed in range(200):
        plan = random_plan(seed)
        _, history = record(plan)
        for all_spans, end in (
            (history.slot_spans, len(history.events)),
            (history.second_spans, history.seconds),
        ):
            for spans in all_spans:
                places = [place for span in spans for place in (span.start, span.end)]
                assert places == sorted(places)
                assert all(span.start < span.end for span in spans)
                assert not places or places[-1] <= end
                followed += len(spans) > 1
    assert followed > 1000


def test_the_small_plan_is_told_as_it_is() -> None:
    plan = small(transfers="serial")
    _, history = record(plan)
    assert [span.state for span in history.slot_spans[1]] == [
        "computing", "ram", "recomputing", "ram",
    ]  # fmt: skip
    assert [span.state for span in history.slot_spans[2]] == [
        "computing", "paging", "both", "store", "paging", "both", "store",
    ]  # fmt: skip
    assert [span.state for span in history.slot_spans[0]] == ["paging", "both", "store"]
    assert [event.action for event in history.events].count("recompute") == 1


@pytest.mark.parametrize("transfers", ["serial", "overlap", "free"])
def test_the_split_adds_up_to_the_report(transfers: str) -> None:
    view = look_at(small(transfers=transfers))  # type: ignore[arg-type]
    report = view.report
    assert sum(share.joules for share in view.shares) == pytest.approx(report.joules, rel=1e-12)
    seconds = {share.label: share.seconds for share in view.shares}
    assert seconds["first runs"] + seconds["recomputation"] == pytest.approx(report.compute_seconds)
    assert seconds["page-ins"] + seconds["page-outs"] == pytest.approx(report.transfer_seconds)
    if transfers == "serial":
        assert sum(seconds.values()) == pytest.approx(report.seconds)


def test_the_split_of_random_plans_adds_up_too() -> None:
    for seed in range(150):
        view = look_at(random_plan(seed))
        joules = sum(share.joules for share in view.shares)
        assert joules == pytest.approx(view.report.joules, rel=1e-9, abs=1e-9)
        ops = sum(op.joules for op in view.ops)
        paged = sum(share.joules for share in view.shares if share.label.startswith("page"))
        assert ops <= joules + 1e-9
        assert ops >= joules - paged - view.report.idle_joules - 1e-9


def test_the_bound_is_told_in_words() -> None:
    plan = small()
    text = bound_text(look_at(plan))
    assert plan.bound_joules is not None
    assert f"less than {amount_text(plan.bound_joules, 'J')}; this one is within 1.0 %" in text
    assert "certified" in text
    said = msgspec.structs.replace(plan, bound_source="solver")
    assert "has not checked" in bound_text(look_at(said))
    none = msgspec.structs.replace(plan, bound_joules=None, bound_source=None, gap=None)
    assert "Nothing is proven" in bound_text(look_at(none))


class Tags(HTMLParser):
    """Every element, every word outside scripts and styles, and the data of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = self.data = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = "data" if ("id", "data") in attrs else tag

    def handle_data(self, data: str) -> None:
        if self.inside == "data":
            self.data += data
        elif self.inside not in ("script", "style"):
            self.words += data + " "


def test_the_page_shows_what_the_referee_found() -> None:
    plan = chain(40)
    report = check(plan)
    parsed = Tags(page(look_at(plan)))
    for text in (
        amount_text(report.joules, "J"),
        amount_text(report.seconds, "s"),
        bytes_text(report.peak_bytes),
        f"{report.recomputed_ops:,} recomputed",
        f"{report.page_ins:,} page-ins",
    ):
        assert text in parsed.words
    data = json.loads(parsed.data)
    assert (data["peak_bytes"], len(data["rows"])) == (report.peak_bytes, 80)
    assert len(data["steps"]) == len(plan.schedule)


def test_the_page_says_what_a_step_writes() -> None:
    plan = chain(40)
    words = Tags(page(look_at(plan))).words
    most = max(plan.written.values())
    assert f"{bytes_text(sum(plan.written.values()))} a step" in words
    assert len(plan.written) > 10
    assert f"{len(plan.written) - 10:,} more" in words
    assert short_bytes_text(most) in words
    dry = msgspec.structs.replace(plan, schedule=())
    assert "What a step writes" not in Tags(page(look_at(dry))).words


def test_hostile_names_are_text() -> None:
    parsed = Tags(page(look_at(small(HOSTILE))))
    honest = Tags(page(look_at(small("layer"))))
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in honest.tags]
    assert not any(key.startswith("on") for _, attrs in parsed.tags for key in attrs)
    assert "<" not in parsed.data
    assert json.loads(parsed.data)["names"] == [HOSTILE] * 5
    assert HOSTILE in parsed.words


def test_nothing_on_the_page_points_elsewhere() -> None:
    parsed = Tags(page(look_at(small(HOSTILE))))
    assert not any({"src", "href"} & attrs.keys() for _, attrs in parsed.tags)
    policy = next(a["content"] for t, a in parsed.tags if "http-equiv" in a and t == "meta")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy


def test_markup_escapes_by_type() -> None:
    assert tag("p", "a<b", Markup("<br>")) == "<p>a&lt;b<br></p>"
    assert tag("td", "x", class_='"q"', hidden=False) == '<td class="&quot;q&quot;">x</td>'
    assert tag("input", checked=True, data_axis="y") == '<input checked data-axis="y">'


def test_a_plan_without_a_schedule_gets_a_clear_page() -> None:
    plan = impossible()
    text = Tags(page(look_at(plan))).words
    assert plan.reason in text
    assert "There is no schedule" in text
    assert "proven impossible" in text
    assert bytes_text(12288) in text
    assert "keep-all" in text
    with pytest.raises(PoetError, match="nothing to draw: the plan is infeasible"):
        picture(look_at(plan))
    with pytest.raises(PoetError, match="nothing to plot: the plan is infeasible"):
        plot(plan)


def test_a_plan_that_lies_is_told_off() -> None:
    lying = msgspec.structs.replace(small(), joules=1e-9, gap=None)
    view = look_at(lying)
    text = Tags(page(view)).words
    assert "This plan does not hold" in text
    assert "claims joules 1e-09" in text
    assert amount_text(view.report.joules, "J") in text


def test_a_broken_schedule_is_shown_as_far_as_it_went() -> None:
    plan = small()
    # Op 2 where tensor 2 has been freed: nothing after it counts.
    steps = (*plan.schedule[:7], *plan.schedule[8:])
    broken = msgspec.structs.replace(plan, schedule=steps)
    view = look_at(broken)
    assert view.report.violation is not None
    assert len(view.history.events) == view.report.violation.instruction == 7
    assert "not valid" in Tags(page(view)).words


@pytest.mark.parametrize("seed", range(60))
def test_any_plan_has_a_page_and_a_payload(seed: int) -> None:
    view = look_at(random_plan(5000 + seed))
    assert len(page(view)) > 1000
    assert msgspec.json.encode(payload(view))


def test_the_figure_has_a_trace_for_each_kind_and_state() -> None:
    plan = small(HOSTILE)
    figure = plot(plan)
    view = look_at(plan)
    kinds = [paint.label for kind, paint in KINDS.items() if _is_used(view, kind)]
    states = [paint.label for state, paint in STATES.items() if _occurs(view, state)]
    assert [trace.name for trace in figure.data] == [*kinds, "total", *states]
    assert max(figure.data[len(kinds)].y) * 1024 == view.report.peak_bytes
    shown = {y for trace in figure.data[len(kinds) + 1 :] for y in trace.y}
    assert len(shown) == sum(bool(spans) for spans in view.history.slot_spans)
    assert "<img" not in figure.to_json().replace("\\u003c", "<")


def _is_used(view: PlanView, kind: str) -> bool:
    return any(k == kind and d for c in view.history.changes for k, d in c.deltas_bytes)


def _occurs(view: PlanView, state: str) -> bool:
    return any(span.state == state for spans in view.history.slot_spans for span in spans)


def test_the_picture_shows_something() -> None:
    from matplotlib.image import imread

    pixels = imread(BytesIO(picture(look_at(small(HOSTILE + "☃層")))), format="png")
    assert min(pixels.shape[:2]) > 800
    height = pixels.shape[0]
    for part in (pixels[: height // 3], pixels[height // 2 :]):
        assert float(part[..., :3].std()) > 0.1
        assert float((part[..., :3].max(axis=2) - part[..., :3].min(axis=2)).max()) > 0.5


def test_long_names_lose_their_middle() -> None:
    assert shortened("a.very.long.name", 9) == "a.ve…name"
    assert shortened("short", 9) == "short"


# The command

app = typer.Typer()
app.command()(report_command)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    file, target, png = (tmp_path / name for name in ("plan.json", "r.html", "r.png"))
    write_json(small(), file)
    done = run(file, "-o", target, "--png", png)
    assert done.exit_code == 0, done.output
    assert target.read_text().startswith('<!doctype html>\n<html lang="en">')
    assert target.stat().st_size < 6_000_000
    assert png.read_bytes().startswith(b"\x89PNG")
    assert bytes_text(png.stat().st_size) in done.output
    again = run(file, "-o", target)
    assert "exists already" in str(again.exception)
    assert run(file, "-o", target, "--force").exit_code == 0


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    write_json(msgspec.structs.replace(small(), joules=1e-9, gap=None), file)
    assert "say where" in str(run(file).exception)
    done = run(file, "-o", tmp_path / "r.html")
    assert done.exit_code == 5
    assert (tmp_path / "r.html").exists()
    same = run(file, "-o", tmp_path / "x", "--png", tmp_path / "x")
    assert "give each its own name" in str(same.exception)
    bad = tmp_path / "rows.json"
    bad.write_text('{"rows": [{"status": "feasible"}]}')
    wrong = run(file, "-o", tmp_path / "y.html", "--compare", bad)
    assert "missing required field `method`" in str(wrong.exception)
    assert not (tmp_path / "y.html").exists()


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_comparison_becomes_a_table(tmp_path: Path, wrapped: bool) -> None:
    rows = [
        {"method": "poet", "status": "feasible", "joules": 0.5, "peak_bytes": 2048, "seconds": 1.5},
        {"method": "dtr", "status": "unknown", "reason": "<b>does not fit</b>", "extra": 1},
    ]
    file, compared = tmp_path / "plan.json", tmp_path / "rows.json"
    write_json(small(), file)
    compared.write_text(json.dumps({"rows": rows} if wrapped else rows))
    assert run(file, "-o", tmp_path / "r.html", "--compare", compared).exit_code == 0
    parsed = Tags((tmp_path / "r.html").read_text())
    for text in ("Against other methods", "500.0 mJ", "2.0 KiB", "<b>does not fit</b>"):
        assert text in parsed.words
