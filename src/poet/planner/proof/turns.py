"""Turns: which of several trees grows next.

The bound is that of the best tree, so the one that will be highest matters, not the one that is:
where a tree stands, and what its last steps raised it by, many steps ahead. Each has some steps
before it is judged, and every so often the one with fewest has another, since a tree may rest on a
plateau.
"""

from math import inf

FIRST_STEPS = 1
"""The first of them solves the root and learns what to branch on. By hand."""
AHEAD = 20.0
"""Steps, about ten seconds. By hand."""
MEMORY = 0.6
"""Of a rise, so much is kept when a new one is seen; as for the shares of a worker's time."""
OTHERS_EVERY = 6


class Turns:
    def __init__(self, count: int) -> None:
        self.made = [0] * count
        self.bound = [-inf] * count
        self.rise = [0.0] * count

    def next(self, growing: list[int]) -> int:
        """One of those that still grow."""
        fewest = min(growing, key=self.made.__getitem__)
        if self.made[fewest] < FIRST_STEPS or sum(self.made) % OTHERS_EVERY == 0:
            return fewest
        return max(growing, key=lambda at: self.bound[at] + AHEAD * self.rise[at])

    def note(self, at: int, before: float, after: float) -> None:
        """The first bound of a step and its last."""
        if max(before, after) < inf:
            kept = MEMORY if self.made[at] else 0.0
            self.rise[at] = kept * self.rise[at] + (1 - kept) * max(0.0, after - before)
        self.made[at] += 1
        self.bound[at] = after
