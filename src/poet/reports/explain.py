"""Explanations: what a plan does with the tensors, and what a little more would save."""

from typing import TYPE_CHECKING

from poet.referee.verdict import Report
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.quantities import amount_text, bytes_text
from poet.values.schedule import Compute, PageIn, PageOut

if TYPE_CHECKING:
    from poet.firmware.card.upkeep import Upkeep


def explanation(plan: Plan, report: Report) -> list[tuple[str, str]]:
    """Rows for people: kept, recomputed, paged; the peak; what more RAM or time is worth."""
    graph, costs = plan.graph, plan.costs
    first = [True] * len(graph.ops)
    again: list[int] = []
    moved: list[int] = []
    streamed: set[int] = set()
    for step in plan.schedule:
        if isinstance(step, Compute):
            run = costs.ops[step.op][step.variant]
            streamed |= {stream.tensor for stream in (*run.reads, *run.writes)}
            if not first[step.op]:
                again.append(step.op)
            first[step.op] = False
        elif isinstance(step, PageIn | PageOut):
            moved.append(step.tensor)
    remade = {i for k in again for i in graph.ops[k].outputs}
    paged = set(moved)
    elsewhere = remade | paged | streamed
    kept = [i for i in range(len(graph.tensors)) if i not in elsewhere]
    page_joules = sum(
        costs.tensors[step.tensor].in_joules
        if isinstance(step, PageIn)
        else costs.tensors[step.tensor].out_joules
        for step in plan.schedule
        if isinstance(step, PageIn | PageOut)
    )
    again_joules = sum(min(run.joules for run in costs.ops[k].values()) for k in again)
    rows = [
        ("kept", f"{len(kept):,} tensors, {_bytes_of(plan, kept)}"),
        (
            "recomputed",
            f"{len(again):,} runs of {len(set(again)):,} ops, {_bytes_of(plan, remade)}, "
            f"{amount_text(again_joules, 'J')}",
        ),
        (
            "paged",
            f"{len(paged):,} tensors, {_bytes_of(plan, paged)}; "
            f"{report.page_outs:,} out and {report.page_ins:,} in, "
            f"{amount_text(page_joules, 'J')}",
        ),
    ]
    if streamed:
        # A parameter and what it becomes are one.
        one = {i for i in streamed if graph.tensors[i].becomes is None}
        rows.append((
            "in tiles",
            f"{len(one):,} tensors, {_bytes_of(plan, one)}; {bytes_text(report.streamed_in_bytes)} "
            f"read and {bytes_text(report.streamed_out_bytes)} written, "
            f"{amount_text(report.transfer_joules - page_joules, 'J')}",
        ))  # fmt: skip
    rows += wear_rows(plan)
    rows.append(("peak at", peak_text(plan, report)))
    if plan.prices is not None and plan.joules:
        for what, saved in (
            ("1 % more RAM", plan.prices.joules_per_byte * (plan.budget.ram_bytes or 0)),
            ("1 % more time", plan.prices.joules_per_second * (plan.budget.deadline_seconds or 0)),
        ):
            if saved:
                share = _share(saved / 100 / plan.joules)
                rows.append((what, f"would save {share} (duals of the relaxation)"))
    return rows


def written_text(plan: Plan) -> str:
    """What a step writes to the store, which wears: in all, and the tensors with the most of it."""
    most = sorted(plan.written.items(), key=lambda item: (-item[1], item[0]))[:3]
    names = (f"{printable(plan.graph.tensors[i].name)} {nbytes:,} B" for i, nbytes in most)
    more = len(plan.written) - len(most)
    rest = f", {more:,} more" if more > 0 else ""
    return f"{bytes_text(sum(plan.written.values()))} a step: {', '.join(names)}{rest}"


def wear_rows(plan: Plan) -> list[tuple[str, str]]:
    """What a step writes to the store, and what C of a plan for it writes beside that."""
    from poet.firmware.card.upkeep import known_upkeep  # numpy: not for `poet --help`

    rows = [("written", written_text(plan))] if plan.written else []
    kept = known_upkeep(plan)
    if kept is not None:
        rows.append(("commit", commit_text(kept)))
        rows.append(("card", f"{bytes_text(kept.card_bytes)}, and the samples"))
    return rows


def commit_text(kept: "Upkeep", save_every: int | None = None) -> str:
    """What C writes and reads that no schedule does: `1 sector written, 1 read a step: …`."""
    written = f"{kept.sectors_written:,} sector{'s' * (kept.sectors_written != 1)} written"
    often = "a step" if kept.each_step else "at each save"
    if save_every is not None and not kept.each_step:
        often = f"every {save_every:,} steps" if save_every else "when all is done"
    most = " at most" if kept.journal_entries else ""
    text = f"{written}, {kept.sectors_read:,} read {often}{most}"
    if kept.journal_entries:
        text += f", {3 * kept.journal_entries:,} of them for the journal"
    if kept.seconds is not None and kept.joules is not None:
        price = f"{amount_text(kept.seconds, 's')} and {amount_text(kept.joules, 'J')}"
        text += f": {price} beside the plan's"
    return text


def _share(share: float) -> str:
    return "next to nothing" if share < 5e-5 else f"about {min(share, 1.0):.2%}"


def _bytes_of(plan: Plan, tensors: "set[int] | list[int]") -> str:
    return bytes_text(sum(plan.graph.tensors[i].nbytes for i in tensors))


def peak_text(plan: Plan, report: Report) -> str:
    """Where RAM is highest: `instruction 128, op 71 (…)`."""
    at = report.peak_instruction
    if at is None:
        return "the start"
    step = plan.schedule[at]
    where = (
        plan.graph.op_text(step.op)
        if isinstance(step, Compute)
        else plan.graph.tensor_text(step.tensor)
    )
    return f"instruction {at}, {where}"


def complaints(file: object, plan: Plan, report: Report) -> list[str]:
    """What a replay found wrong with a plan, a sentence each."""
    found = []
    if report.violation is not None:
        where = report.violation.instruction
        edge = "start" if report.violation.rule in ("ram", "store") else "end"
        at = f"at the step's {edge}" if where is None else f"at instruction {where}"
        rule, message = report.violation.rule, report.violation.message
        found.append(f"{file} is not valid {at} ({rule}): {message}")
    return found + [
        f"{file} claims {mismatch.field} {_exact(mismatch.claimed)}; "
        f"its replay gives {_exact(mismatch.replayed)}"
        for mismatch in report.mismatches
    ]


def report_rows(plan: Plan, report: Report) -> list[tuple[str, str]]:
    """What a replay measured: labels and texts, in reading order."""
    return [
        ("plan", f"valid, and its claims hold: {len(plan.schedule):,} instructions replayed"),
        ("energy", f"{amount_text(report.joules, 'J')}: "
                   f"{amount_text(report.compute_joules, 'J')} compute, "
                   f"{amount_text(report.transfer_joules, 'J')} transfers, "
                   f"{amount_text(report.idle_joules, 'J')} idle"),
        ("time", f"{amount_text(report.seconds, 's')}: "
                 f"{amount_text(report.compute_seconds, 's')} compute, "
                 f"{amount_text(report.transfer_seconds, 's')} transfers "
                 f"({plan.budget.transfers})"),
        ("RAM peak", f"{bytes_text(report.peak_bytes)} at {peak_text(plan, report)}"),
        ("store", bytes_text(report.store_peak_bytes)),
        ("moved", f"{report.page_outs:,} page-outs ({bytes_text(report.page_out_bytes)}), "
                  f"{report.page_ins:,} page-ins ({bytes_text(report.page_in_bytes)})"
                  + (f", in tiles {bytes_text(report.streamed_in_bytes)} read and "
                     f"{bytes_text(report.streamed_out_bytes)} written"
                     if report.streamed else "")),
        ("recomputed", f"{report.recomputed_ops:,} ops"),
        *wear_rows(plan),
    ]  # fmt: skip


def _exact(value: float | str | None) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
