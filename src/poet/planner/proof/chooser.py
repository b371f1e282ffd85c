"""Which ops to choose for a program of crossings: one after the other, each the best to add.

Peaks of excess (scarce.py) are a guess that takes no time; where RAM is scarce for a long while
there are few. So ops are also tried: what does the bound become with this one, too? Ops that lie
evenly spread are tried first, then nearer and nearer to the best of them, and what an op gained
when fewer were chosen stands for what it may gain now, so that most need not be tried again. The
program stays small, since nothing is in it but what crosses the ops that pay
(docs/decisions/030).
"""

from collections.abc import Callable, Sequence

COARSE = 32
"""Ops tried at first. By hand: at 133 to 200 ops every fourth to sixth."""
MOST_TRIALS = 200
"""resnet18_cifar-m4 took 98 at 330,000 B and 107 at 270,000 B, bert-m4 45 to 65."""
MOST_CHOSEN = 20
HELPS = 0.003
"""Of the gap: an op that takes less off it is not added. By hand: at a hundredth the choice for
resnet18_cifar-m4 ended two ops early, at 113.9 for 114.3."""


class Chooser:
    """Adds ops to `chosen`; each `step` tries one more, until `done`.

    `bound_of(ops)` is the bound with those ops chosen; nan where the program would be too large.
    """

    def __init__(
        self,
        candidates: Sequence[int],
        chosen: tuple[int, ...],
        bound: float,
        bound_of: Callable[[tuple[int, ...]], float],
        most: Callable[[], float],
    ) -> None:
        self.candidates, self.chosen, self.bound = list(candidates), chosen, bound
        self.bound_of, self.most = bound_of, most
        self.place = {op: at for at, op in enumerate(self.candidates)}
        apart = max(1, len(self.candidates) // COARSE)
        self.gain = dict.fromkeys(self.candidates[::apart], float("inf"))
        """For an op what it gained when it was last tried."""
        self.widest = apart // 2 + 1
        self.trials, self.done = 0, False
        self._begin()

    def _begin(self) -> None:
        """Another op is to be found."""
        for op in self.chosen:
            self.gain.pop(op, None)
        self.tried: set[int] = set()
        self.apart, self.near = self.widest, list[int]()
        self.done |= not self.gain or len(self.chosen) >= MOST_CHOSEN

    def step(self) -> None:
        op = self._next()
        if op is None:
            self._add()
            return
        self.trials += 1
        self.tried.add(op)
        gained = self.bound_of(tuple(sorted((*self.chosen, op)))) - self.bound
        if gained != gained or self.trials >= MOST_TRIALS:  # too large, or enough
            self.done = True
        else:
            self.gain[op] = gained

    def _next(self) -> int | None:
        """The op that may gain most, until it is known; then its neighbours, nearer and nearer."""
        if self.apart == self.widest and not self.near:
            best = max(self.gain, key=self.gain.__getitem__)
            if best not in self.tried:
                return best
        while not self.near and self.apart:
            at = self.place[self._best()]
            beside = [at + side for side in (-self.apart, self.apart)]
            found = [self.candidates[n] for n in beside if 0 <= n < len(self.candidates)]
            self.near = [op for op in found if op not in self.tried and op not in self.chosen]
            self.apart //= 2
        return self.near.pop() if self.near else None

    def _best(self) -> int:
        return max(self.tried, key=self.gain.__getitem__)

    def _add(self) -> None:
        best = self._best()
        if self.gain[best] <= HELPS * max(0.0, self.most() - self.bound):
            self.done = True
            return
        self.chosen = tuple(sorted((*self.chosen, best)))
        self.bound += self.gain[best]
        self._begin()
