"""Results: what can be had of a job that has ended, beside the value itself.

A worker makes them: a page takes seconds, and a folder of C may be planned again with less RAM.
"""

import csv
import io
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from poet.planning.frontier import Frontier
from poet.planning.rows import Row
from poet.referee.replay import check
from poet.server.work import Compared
from poet.values.files import decode_json
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.schedule import Compute, Free, PageIn, PageOut

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would run."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
Words = Mapping[str, str]


def make(kind: str, name: str, result: bytes, words: Words) -> bytes:
    """One of the results of `kinds`."""
    return _MAKERS[kind, name](result, words)


def _plan_csv(result: bytes, words: Words) -> bytes:
    plan = decode_json(result, Plan, "the plan")
    ram = {at.instruction: at.ram_bytes for at in check(plan).timeline}
    level = ram.get(None, 0)
    rows = []
    for n, step in enumerate(plan.schedule):
        level = ram.get(n, level)
        if isinstance(step, Compute):
            op, run = plan.graph.ops[step.op], plan.costs.ops[step.op][step.variant]
            about: tuple[object, ...] = (
                step.op, op.name, step.variant, "", run.seconds, run.joules,
            )  # fmt: skip
        else:
            tensor = plan.graph.tensors[step.tensor]
            about = (step.tensor, tensor.name, "", tensor.nbytes, *_moved(plan, step))
        rows.append((n, msgspec.to_builtins(step)["do"], *about, level))
    heads = ("at", "do", "number", "name", "variant", "nbytes", "seconds", "joules", "ram_bytes")
    return _table(heads, rows)


def _moved(plan: Plan, step: PageIn | PageOut | Free) -> tuple[float | str, float | str]:
    cost = plan.costs.tensors[step.tensor]
    match step:
        case PageIn():
            return cost.in_seconds, cost.in_joules
        case PageOut():
            return cost.out_seconds, cost.out_joules
        case _:
            return "", ""


def _plan_page(result: bytes, words: Words) -> bytes:
    from poet.reports.page.page import page
    from poet.reports.page.view import look_at

    return page(look_at(decode_json(result, Plan, "the plan"))).encode()


def _firmware(result: bytes, words: Words) -> bytes:
    from poet.firmware.emit import emit_source

    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "firmware"
        emit_source(decode_json(result, Plan, "the plan"), folder, words["target"])
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):  # the same plan gives the same archive
                entry = zipfile.ZipInfo(f"firmware/{file.name}", _EPOCH)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
        return packed.getvalue()


def _comparison_csv(result: bytes, words: Words) -> bytes:
    rows = decode_json(result, Compared, "the comparison").rows
    return _table(Row.__struct_fields__, map(msgspec.structs.astuple, rows))


def _frontier_csv(result: bytes, words: Words) -> bytes:
    return _frontier_as(result, ".csv")


def _frontier_page(result: bytes, words: Words) -> bytes:
    return _frontier_as(result, ".html")


def _frontier_as(result: bytes, suffix: str) -> bytes:
    from poet.reports.frontier_files import content_of

    content = content_of(decode_json(result, Frontier, "the frontier"), suffix)
    return content if isinstance(content, bytes) else content.encode()


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(heads)
    table.writerows([_cell(value) for value in row] for row in rows)
    return lines.getvalue().encode()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


_MAKERS: dict[tuple[str, str], Callable[[bytes, Words], bytes]] = {
    ("plans", "plan.csv"): _plan_csv,
    ("plans", "report"): _plan_page,
    ("plans", "firmware.zip"): _firmware,
    ("comparisons", "comparison.csv"): _comparison_csv,
    ("frontiers", "frontier.csv"): _frontier_csv,
    ("frontiers", "report"): _frontier_page,
}
