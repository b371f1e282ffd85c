"""`poet check`: a plan replayed, and what it claims beside what it does."""

import typer

from poet.cli.console import PAIRS, complain, print_json, show_table
from poet.cli.exit_codes import CHECK_FAILED, DONE
from poet.cli.options import JsonFlag, PlanArgument
from poet.referee.replay import check as replayed
from poet.values.files import read_json
from poet.values.plan import Plan

_PRINTED = (
    "valid", "violation", "joules", "seconds", "peak_bytes", "claims_match", "mismatches",
)  # fmt: skip


def check(file: PlanArgument, json: JsonFlag = False) -> None:
    """Replay a plan and compare what it does with what it claims."""
    plan = read_json(file, Plan)
    report = replayed(plan)
    good = report.valid and report.claims_match
    if json:
        print_json({field: getattr(report, field) for field in _PRINTED})
    else:
        from poet.reports.explain import complaints, report_rows

        for message in complaints(file, plan, report):
            complain(message)
        if good:
            show_table(PAIRS, report_rows(plan, report))
    raise typer.Exit(DONE if good else CHECK_FAILED)
