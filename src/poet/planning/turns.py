"""Turns: which questions may be asked now, for whoever has them answered.

A question's turn comes when those whose answers it needs have ended, in the order in which
questions are given. One that ended without an answer is left out of what others are handed. An
answer that nobody waits for any more is let go.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from poet.errors import PoetError


class Task(NamedTuple):
    """A question, and those whose answers it needs. `what` is for people."""

    key: Any
    asked: Any
    needs: tuple[Any, ...] = ()
    what: str = ""


class Outcome(NamedTuple):
    """What became of a question: an answer, an error for people, why a worker was lost, or the
    trace of a bug."""

    key: Any
    found: Any = None
    error: PoetError | None = None
    lost: str = ""
    trace: str = ""

    @property
    def answer(self) -> Any:
        """The answer, where there must be one."""
        if self.trace:
            raise RuntimeError(f"a worker failed:\n{self.trace}")
        if self.error is not None:
            raise self.error
        if self.lost:
            raise PoetError(f"a worker of this machine was lost: {self.lost}")
        return self.found


class Turns:
    """Questions that wait. `known` are answers to others."""

    def __init__(self, tasks: Iterable[Task], known: Mapping[Any, Any] = {}) -> None:
        self._waiting = {task.key: task for task in tasks}
        self._answers = dict(known)
        self._ended = set(known)
        there = self._waiting.keys() | self._ended
        assert all(there >= set(task.needs) for task in self._waiting.values())
        self._open = {task.key: set(task.needs) - self._ended for task in self._waiting.values()}
        self._followers: dict[Any, list[Any]] = {}
        self._wanted: Counter[Any] = Counter()
        for task in self._waiting.values():
            self._wanted.update(task.needs)
            for key in self._open[task.key]:
                self._followers.setdefault(key, []).append(task.key)
        self._place = {key: at for at, key in enumerate(self._waiting)}
        self._ready = [key for key, needs in self._open.items() if not needs]

    def next(self) -> tuple[Task, list[Any]] | None:
        """A question whose turn it is, and the answers that it needs."""
        if not self._ready:
            return None
        task = self._waiting.pop(self._ready.pop(0))
        before = [self._answers[key] for key in task.needs if key in self._answers]
        self._wanted.subtract(task.needs)
        for key in task.needs:
            if not self._wanted[key]:
                self._answers.pop(key, None)
        return task, before

    def ended(self, outcome: Outcome) -> None:
        """A question has ended, for those that wait for it."""
        if outcome.found is not None and self._wanted[outcome.key]:
            self._answers[outcome.key] = outcome.found
        for key in self._followers.pop(outcome.key, ()):
            self._open[key].discard(outcome.key)
            if not self._open[key]:
                insort(self._ready, key, key=self._place.__getitem__)
