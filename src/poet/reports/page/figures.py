"""The figures of a report: where joules and seconds go, and which ops take most of them.

Everything is added up from the events of the step and the plan's prices; the sums are those of the
referee. Streams of an op count as page-ins and page-outs, since they are that.
"""

from collections import Counter, defaultdict

import msgspec

from poet.referee.verdict import Report
from poet.reports.page.history import StepHistory
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.quantities import bytes_text
from poet.values.schedule import Compute

TOP = 15


class CostShare(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the step's energy and time. Seconds are how long that side is busy."""

    label: str
    joules: float
    seconds: float
    count: int | None = None


def cost_shares(plan: Plan, report: Report, history: StepHistory) -> list[CostShare]:
    """First runs, recomputation, page-ins, page-outs, idle. The joules add up to the report's."""
    sums = {label: [0.0, 0.0, 0] for label in ("first", "again", "in", "out")}

    def add(label: str, joules: float, seconds: float) -> None:
        entry = sums[label]
        entry[0], entry[1], entry[2] = entry[0] + joules, entry[1] + seconds, entry[2] + 1

    for event, instruction in zip(history.events, plan.schedule, strict=False):
        if isinstance(instruction, Compute):
            run = plan.costs.ops[instruction.op][instruction.variant]
            add("again" if event.action == "recompute" else "first", run.joules, run.seconds)
            for stream in run.reads:
                add("in", stream.joules, stream.seconds)
            for stream in run.writes:
                add("out", stream.joules, stream.seconds)
        elif event.action == "page_in":
            price = plan.costs.tensors[event.target]
            add("in", price.in_joules, price.in_seconds)
        elif event.action == "page_out":
            price = plan.costs.tensors[event.target]
            add("out", price.out_joules, price.out_seconds)
    labels = {"first": "first runs", "again": "recomputation", "in": "page-ins", "out": "page-outs"}
    shares = [
        CostShare(label=text, joules=sums[key][0], seconds=sums[key][1], count=int(sums[key][2]))
        for key, text in labels.items()
    ]
    idle = CostShare(label="idle", joules=report.idle_joules, seconds=_idle_seconds(plan, report))
    return [*shares, idle]


def _idle_seconds(plan: Plan, report: Report) -> float:
    """Seconds in which the processor waits for transfers that run beside it."""
    if plan.budget.transfers != "overlap":
        return 0.0
    return max(0.0, report.seconds - report.compute_seconds)


class OpFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one op takes in the whole step."""

    op: int
    name: str
    phase: str
    joules: float
    seconds: float
    runs: int
    calls: str
    workspace_bytes: int
    why: str


def costly_ops(plan: Plan, report: Report, history: StepHistory) -> list[OpFigures]:
    """Every op that ran, in the order of the graph."""
    runs: Counter[int] = Counter()
    joules: dict[int, float] = defaultdict(float)
    seconds: dict[int, float] = defaultdict(float)
    streamed: Counter[int] = Counter()
    for instruction in plan.schedule[: len(history.events)]:
        if isinstance(instruction, Compute):
            k, run = instruction.op, plan.costs.ops[instruction.op][instruction.variant]
            runs[k] += 1
            streams = (*run.reads, *run.writes)
            joules[k] += run.joules + run.stream_joules
            seconds[k] += run.seconds + sum(stream.seconds for stream in streams)
            streamed[k] += sum(stream.nbytes for stream in streams)
    peak = report.peak_instruction
    peak_step = None if peak is None else plan.schedule[peak]
    peak_op = peak_step.op if isinstance(peak_step, Compute) else None
    graph = plan.graph
    return [
        OpFigures(
            op=k,
            name=printable(graph.ops[k].name),
            phase=graph.ops[k].phase,
            joules=joules[k],
            seconds=seconds[k],
            runs=runs[k],
            calls=_calls_text(plan, k),
            workspace_bytes=max(run.workspace_bytes for run in plan.costs.ops[k].values()),
            why=_why(plan, k, runs[k], streamed[k], k == peak_op),
        )
        for k in sorted(runs)
    ]


def _calls_text(plan: Plan, k: int) -> str:
    """`convolution, relu ×2`: the kinds of calls, most frequent first."""
    kinds = Counter(call.kind.removeprefix("aten.") for call in plan.graph.ops[k].calls)
    return ", ".join(
        printable(kind) + (f" ×{count}" if count > 1 else "") for kind, count in kinds.most_common()
    )


def _why(plan: Plan, k: int, runs: int, streamed_bytes: int, is_peak: bool) -> str:
    made = sum(plan.graph.tensors[i].nbytes for i in plan.graph.ops[k].outputs)
    reasons = []
    if runs > 1:
        times = {2: "once", 3: "twice"}.get(runs, f"{runs - 1:,} times")
        reasons.append(f"runs again {times}, so that {bytes_text(made)} need not stay in RAM")
    else:
        reasons.append(f"runs once, as it must; makes {bytes_text(made)}")
    if streamed_bytes:
        reasons.append(f"streams {bytes_text(streamed_bytes)} through the store")
    if is_peak:
        reasons.append("RAM peaks here")
    return "; ".join(reasons)
