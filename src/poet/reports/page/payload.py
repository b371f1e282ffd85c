"""The payload: what the page's script draws from, as small JSON.

Tensors come in the order of the map's rows and are named by that row everywhere. Seconds are cut to
seven digits, more than a screen can show; the exact figures stand in the page's own text.
"""

from typing import Any

import msgspec

from poet.reports.page.history import Span
from poet.reports.page.palette import KINDS, STATES
from poet.reports.page.view import PlanView
from poet.values.graph import printable

ACTIONS = {
    "compute": "compute",
    "recompute": "recompute",
    "page_out": "page out",
    "page_in": "page in",
    "free": "free",
}
_KIND_AT = {kind: n for n, kind in enumerate(KINDS)}
_STATE_AT = {state: n for n, state in enumerate(STATES)}
_ACTION_AT = {action: n for n, action in enumerate(ACTIONS)}


def payload(view: PlanView) -> dict[str, Any]:
    plan, history, report = view.plan, view.history, view.report
    in_list = list(history.changes)
    place = {id(change): n for n, change in enumerate(in_list)}
    # An event that targets a tensor names it by id: a tensor that is nowhere has no row.
    return {
        "kinds": list(KINDS.values()),
        "states": list(STATES.values()),
        "actions": list(ACTIONS.values()),
        "names": [printable(tensor.name) for tensor in plan.graph.tensors],
        "ops": [[printable(op.name), op.phase] for op in plan.graph.ops],
        "rows": [
            {
                "tensor": i,
                "kind": _KIND_AT[plan.graph.tensors[i].role],
                "nbytes": plan.graph.tensors[i].nbytes,
                "slots": _flat(history.slot_spans[i]),
                "seconds": _flat(history.second_spans[i]),
            }
            for i in view.rows
        ],
        "steps": [
            [_ACTION_AT[action], target, _cut(start), _cut(end)]
            for action, target, start, end in history.events
        ],
        "changes": [
            [
                change.slot,
                _cut(change.seconds),
                change.instruction,
                [
                    number
                    for kind, delta in change.deltas_bytes
                    for number in (_KIND_AT[kind], delta)
                ],
            ]
            for change in in_list
        ],
        "in_time": [place[id(change)] for change in history.changes_in_time],
        "seconds": history.seconds,
        "ram_bytes": plan.budget.ram_bytes,
        "peak_bytes": report.peak_bytes,
        "peak_instruction": report.peak_instruction,
        "fold_bytes": view.fold_bytes,
        "overlap": plan.budget.transfers == "overlap",
    }


def encoded(view: PlanView) -> str:
    """The payload as JSON that can stand inside a script element: no `<` at all."""
    text = msgspec.json.encode(payload(view)).decode()
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _flat(spans: tuple[Span, ...]) -> list[float]:
    return [
        number
        for span in spans
        for number in (_STATE_AT[span.state], _cut(span.start), _cut(span.end))
    ]


def _cut(number: float) -> float:
    cut = float(f"{number:.7g}")
    return int(cut) if cut.is_integer() else cut
