"""Ways: what a step does because of the values of its batch, and for which batches it is the same.

    index = (labels >= 0).nonzero()           # as many rows as there are labels
    if mask.all(): …                          # a branch
    pack_padded_sequence(x, lengths)          # a time step for each of the longest

Such a step has no graph for all batches, but one for all those that answer alike. What is asked is
computed from the batch alone, by calls that are remembered while the step is traced for an example
(`Asked`). They are made again for each batch before its step begins: a batch that answers otherwise
goes another way, and has a capture and a plan of its own.
"""

import linecache
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from poet.errors import AnotherWay

_NOT_THE_MODELS = (os.path.dirname(__file__), os.path.dirname(torch.__file__))


class Made(NamedTuple):
    """A tensor of the batch, or one that a call has made: which of them."""

    number: int


class _Call(NamedTuple):
    function: Callable[..., Any]
    given: Any
    """Arguments, with `Made` in the place of tensors."""
    made: int
    """The number of its first result."""


class _Answer(NamedTuple):
    asked: int
    answer: Any
    where: str


class Asked:
    """What a step has asked its batch, and how that is computed from its tensors."""

    def __init__(self, inputs: int) -> None:
        self._inputs = self._count = inputs
        self._calls: list[_Call] = []
        self._answers: list[_Answer] = []

    def __bool__(self) -> bool:
        return bool(self._answers)

    @property
    def places(self) -> list[str]:
        """The lines that ask."""
        return list(dict.fromkeys(each.where for each in self._answers))

    def remember(self, function: Callable[..., Any], given: Any, results: int) -> int:
        """A call whose result may matter. Gives the number of its first result."""
        self._calls.append(_Call(function, given, self._count))
        self._count += results
        return self._calls[-1].made

    def answered(self, asked: int, answer: Any, where: str) -> None:
        """The step goes on as it does because this was the answer."""
        self._answers.append(_Answer(asked, answer, where))

    def pruned(self) -> "Asked":
        """The same without calls that no answer depends on."""
        needed = {each.asked for each in self._answers}
        calls: list[_Call] = []
        for call, after in zip(
            reversed(self._calls),
            [self._count, *(each.made for each in reversed(self._calls))],
            strict=False,
        ):
            if not needed.isdisjoint(range(call.made, after)):
                calls.insert(0, call)
                needed |= {
                    x.number for x in pytree.tree_leaves(call.given, _is_made) if _is_made(x)
                }
        made = Asked(self._inputs)
        made._count, made._calls, made._answers = self._count, calls, self._answers
        return made

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a batch answers as the example did."""
        try:
            self.check(tensors)
        except AnotherWay:
            return False
        return True

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise AnotherWay where a batch answers otherwise than the example did."""
        known: dict[int, Any] = dict(enumerate(tensors))

        def given(made: Made) -> Any:
            return known[made.number]

        calls = iter(self._calls)
        for expected in self._answers:
            try:
                with torch.no_grad():
                    while expected.asked not in known:
                        call = next(calls)
                        args, kwargs = pytree.tree_map_only(
                            Made, given, call.given, is_leaf=_is_made
                        )
                        results = pytree.tree_leaves(call.function(*args, **kwargs))
                        known |= dict(enumerate(results, call.made))
            except Exception as error:  # it would be the model's own error, in its own step
                raise AnotherWay(
                    f"{expected.where}: the batch cannot answer as that did which the step was "
                    f"captured for: {type(error).__name__}: {error}"
                ) from error
            if not _same(known[expected.asked], expected.answer):
                self._refuse(expected, known[expected.asked])

    def _refuse(self, expected: _Answer, have: Any) -> None:
        raise AnotherWay(
            f"{expected.where}: this depends on values of the batch, and the step was captured for "
            f"one with {_text(expected.answer)}; for this batch it is {_text(have)}. Capture it "
            "again for this batch"
        )


def _is_made(thing: Any) -> bool:
    return isinstance(thing, Made)


def _same(have: Any, want: Any) -> bool:
    """Whether an answer is the same number, or list of numbers, in kind as well."""
    return repr(_plain(have)) == repr(want)


def _plain(thing: Any) -> Any:
    return thing.tolist() if isinstance(thing, torch.Tensor) else thing


def _text(answer: Any) -> str:
    text = repr(_plain(answer))
    return text if len(text) < 80 else f"{text[:76]} …"


def asking_line() -> str:
    """The line of the model that runs: `net.py:12: if x.all():`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_MODELS):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{os.path.basename(file)}:{line}: {linecache.getline(file, line).strip()}"
