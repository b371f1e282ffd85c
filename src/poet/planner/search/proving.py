"""Strategies that raise the bound, and when it is their turn."""

from typing import ClassVar

from poet.planner.search.worker import Side, Worker

PATIENCE_ROUNDS = 3
"""So long a first schedule is looked for before the bound, which may prove that there is none. By
hand: without either there is no answer, and both come within seconds where they come at all."""
CLIMB_SHARE = 0.4
"""Of the time so far, for a worker who is alone: the climb's larger models can take most of a short
limit (formulation §8: 2.5 s with windows of 40 for bert-m4). By hand, tried at 0.2 and 0.8
(docs/decisions/006)."""
PROOF_SHARE_ALONE, PROOF_SHARE = 0.5, 1.0
"""Seconds of proof for each of search, at least: a tree may rest on a plateau long before it rises,
and a rule that looks at rates alone would not come back to it. The first tried at 0.25 and 1."""
MOST_HELPERS = 3
"""Workers who grow trees beside the one who raises the bound. Each has a solver process a tree."""

WORTH_HELPING = 0.1
"""Of the gap, so much must close by the end at the present rate. Where neither side moves, a search
may still be lucky, and a tree is not. By hand."""


class ProofByRate:
    """Raise the bound, by the clock: its climb first, then while it narrows the gap faster.

    A worker who is not alone gives the climb all it asks for, and then at least every other second.
    """

    side: ClassVar[Side | None] = "bound"

    def __init__(self, worker: Worker) -> None:
        self.worker, self.bounds = worker, worker.team.bounds

    def is_due(self) -> bool:
        worker, bounds, inc = self.worker, self.bounds, self.worker.incumbent
        if not worker.proves or bounds.done or bounds.waits:
            return False
        if inc.best is None and worker.round <= PATIENCE_ROUNDS:
            return False
        alone = worker.leads
        if bounds.climbing:
            expected = bounds.spent_seconds + bounds.last_seconds
            return not alone or expected < CLIMB_SHARE * inc.elapsed
        least = PROOF_SHARE_ALONE if alone else PROOF_SHARE
        seconds, rates = worker.ledger.seconds, worker.ledger.rates
        return seconds["bound"] < least * seconds["schedule"] or rates["bound"] > rates["schedule"]

    def step(self) -> None:
        self.bounds.step()


class Helping:
    """Grow the trees beside the worker who raises the bound, while that narrows the gap faster.

    How fast it does is that worker's experience; how fast the search does is one's own.
    """

    side: ClassVar[Side | None] = "bound"

    def __init__(self, worker: Worker) -> None:
        self.worker, self.bounds = worker, worker.team.bounds
        self.can_help = not worker.proves and worker.number < MOST_HELPERS

    def is_due(self) -> bool:
        worker, prover = self.worker, self.worker.team.prover
        if not self.can_help or prover is None or worker.round <= PATIENCE_ROUNDS:
            return False
        rate, inc = prover.ledger.rates["bound"], worker.incumbent
        rising = rate > worker.ledger.rates["schedule"]
        gap = worker.standing("schedule") - worker.standing("bound")
        pays = prover.ledger.seen("bound") * inc.remaining > WORTH_HELPING * gap
        return rising and pays and self.bounds.can_be_helped

    def step(self) -> None:
        self.bounds.help(1 + self.worker.number)


class ProofInTurn:
    """Raise the bound, counted: the whole climb first, then one step after each round."""

    side: ClassVar[Side | None] = "bound"

    def __init__(self, worker: Worker) -> None:
        self.worker, self.bounds = worker, worker.team.bounds
        self.steps = 0

    def is_due(self) -> bool:
        rounds_done = self.worker.round - 1
        return not self.bounds.done and (self.bounds.climbing or self.steps < rounds_done)

    def step(self) -> None:
        self.steps += not self.bounds.climbing
        self.bounds.step()
