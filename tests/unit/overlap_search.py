"""Is there a schedule below a bound where transfers run beside compute? A search of small ones.

Every list of instructions that could be of use, first runs in the graph's order, is tried as far as
the referee's joules of its beginning stay below the bound; nothing is known here of how good
schedules look. Nothing found on thousands of small problems is what the bound can be tested by.
"""

from collections.abc import Iterator

from poet import Budget, Compute, Costs, Free, Graph, PageIn, PageOut, Schedule, check, draft
from poet.values.schedule import Instruction


class Gave(Exception):
    """The search is too long."""


def schedule_below(
    graph: Graph, costs: Costs, budget: Budget, joules: float, most: int = 20_000
) -> Schedule | None:
    """A valid schedule with fewer joules, or None if there is none (`Gave` up after `most` lists).

    A tensor is written once, and read from the store twice at most; an op runs three times at most.
    """
    least = [min(run.joules for run in runs.values()) for runs in costs.ops]
    tried = 0

    def grow(done: tuple[Instruction, ...]) -> Schedule | None:
        nonlocal tried
        tried += 1
        if tried > most:
            raise Gave
        report = check(draft(graph, costs, budget, done))
        ran = {step.op for step in done if isinstance(step, Compute)}
        found = report.violation
        if found is None and report.joules < joules:
            return done
        if found is not None and (found.instruction is not None or found.rule == "deadline"):
            return None
        rest = sum(least[k] for k in range(len(graph.ops)) if k not in ran)
        if report.joules + rest >= joules:
            return None
        for step in _useful(graph, costs, budget, done, len(ran)):
            better = grow((*done, step))
            if better is not None:
                return better
        return None

    return grow(())


def _useful(
    graph: Graph, costs: Costs, budget: Budget, done: tuple[Instruction, ...], ran: int
) -> Iterator[Instruction]:
    ram = {i for i, place in budget.start.items() if place != "store"}
    stored = {i for i, place in budget.start.items() if place != "ram"}
    for step in done:
        if isinstance(step, Compute):
            op, run = graph.ops[step.op], costs.ops[step.op][step.variant]
            streamed = {stream.tensor for stream in run.writes}
            ram -= set(op.consumed)
            stored -= set(op.consumed)
            ram |= set(op.outputs) - streamed
            stored |= streamed
        elif isinstance(step, PageIn):
            ram.add(step.tensor)
        elif isinstance(step, PageOut):
            stored.add(step.tensor)
        else:
            ram.discard(step.tensor)
    last = done[-1] if done else None
    for k, op in enumerate(graph.ops[: ran + 1]):
        if sum(isinstance(step, Compute) and step.op == k for step in done) < 3:
            for name, run in costs.ops[k].items():
                reads = {stream.tensor for stream in run.reads}
                if set(op.inputs) - reads <= ram and reads <= stored:
                    yield Compute(k, name)
    if budget.paging:
        for i in sorted(ram - stored):
            if PageOut(i) not in done:
                yield PageOut(i)
        for i in sorted(stored - ram):
            if done.count(PageIn(i)) < 2:
                yield PageIn(i)
    for i in sorted(ram):
        if not isinstance(last, Free) or last.tensor < i:  # frees in a row: in one order
            yield Free(i)
