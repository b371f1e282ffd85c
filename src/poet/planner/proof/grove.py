"""A grove: trees of branches on several relaxations, grown by whoever comes.

The bound is that of the best tree, so the tree that will be highest has most turns (turns.py). The
worker who raises the bound grows them all the time, others while that narrows the gap faster than
what they do themselves; two may be at one tree.
"""

import math
import threading
import time
from collections.abc import Sequence

from poet.planner.backends import Backend, Limits
from poet.planner.incumbent import Incumbent
from poet.planner.model.relaxed import Relaxation
from poet.planner.proof.branching import Tree
from poet.planner.proof.leaning import leaning
from poet.planner.proof.turns import Turns

STEP_SECONDS, STEP_NODES = 0.5, 20
"""How much of the tree a step grows: by the clock, often enough to share a worker fairly; counted,
what follows each round. By hand, the seconds tried at 0.25 and 1."""


class Grove:
    """Trees that grow; `done` when no open leaf is left."""

    def __init__(
        self,
        incumbent: Incumbent,
        backend: Backend,
        models: Sequence[Relaxation],
        limits: Limits,
    ) -> None:
        self.incumbent, self.models = incumbent, models
        self.counted = incumbent.effort.work_limit is not None
        self.trees = [Tree(model, backend, limits) for model in models]
        self.turns = Turns(len(self.trees))
        self.lock = threading.Lock()

    @property
    def done(self) -> bool:
        return all(tree.done for tree in self.trees)

    @property
    def has_room(self) -> bool:
        """Whether somebody more would find a leaf to branch."""
        return any(tree.is_free for tree in self.trees)

    def step(self, who: int = 0) -> None:
        """About half a second of one tree, or some nodes."""
        inc = self.incumbent
        with self.lock:
            growing = [at for at, tree in enumerate(self.trees) if tree.is_free]
            if not growing:
                return
            at = self.turns.next(growing)
        tree, model = self.trees[at], self.models[at]
        before = tree.bound / model.scale
        pause, nodes = time.monotonic() + STEP_SECONDS, 0
        while tree.is_free and not inc.finished:
            cutoff = math.inf
            if inc.best is not None:
                cutoff = inc.best.joules * model.scale * (1 - inc.effort.relative_gap / 2)
            tree.step(cutoff, inc.remaining, who)
            bound = tree.bound / model.scale
            inc.raise_bound(min(bound, model.time.most_joules), "certified")
            before = bound if math.isinf(before) else before
            nodes += 1
            if nodes % STEP_NODES == 0 if self.counted else time.monotonic() > pause:
                break
        with self.lock:
            self.turns.note(at, before, tree.bound / model.scale)
        values = tree.lowest
        if model.keep and values is not None:
            inc.deeper = leaning(inc, model, values)
