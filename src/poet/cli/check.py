"""`poet check`: a plan replayed, and what it claims beside what it does."""

import typer

from poet.cli.console import PAIRS, complain, print_json, show_table
from poet.cli.exit_codes import CHECK_FAILED, DONE
from poet.cli.options import JsonFlag, PlanArgument
from poet.errors import PoetError
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
    wrong = _wrong_addresses(plan) if report.valid else ""
    good = report.valid and report.claims_match and not wrong
    if json:
        told = {field: getattr(report, field) for field in _PRINTED}
        print_json({**told, "claims_match": report.claims_match and not wrong})
    else:
        from poet.reports.explain import complaints, report_rows

        for message in complaints(file, plan, report):
            complain(message)
        if wrong:
            complain(f"{file}: {wrong}")
        if good:
            show_table(PAIRS, report_rows(plan, report))
    raise typer.Exit(DONE if good else CHECK_FAILED)


def _wrong_addresses(plan: Plan) -> str:
    """What is wrong with the addresses that a plan brings along."""
    if plan.arena is None:
        return ""
    from poet.firmware.place.arena import placed

    limit = plan.budget.ram_bytes
    if limit is not None and plan.arena.nbytes > limit:
        return f"the arena takes {plan.arena.nbytes:,} bytes; the budget is {limit:,}"
    try:
        placed(plan, limit)
    except PoetError as error:
        return str(error)
    return ""
