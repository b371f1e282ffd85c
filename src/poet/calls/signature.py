"""Signature: what is the same about two calls that run the same kernel on the same shapes.

Which tensors they are of makes no difference, nor where those lie: kind, plain arguments, and of
each operand its shape, strides and element type. An op is alike another if its calls are, and a way
to run it piece by piece if it has tiles of the same.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from poet.calls.operands import Operand, Work
from poet.calls.pieces.ways import Way


def signature(work: Work) -> str:
    """A short name for all calls that are like this one."""
    told = [
        work.kind,
        {name: _told(argument) for name, argument in sorted(work.arguments.items())},
        [_told(result) for result in work.results],
    ]
    return _short(told)


def op_signature(works: Sequence[Work]) -> str:
    """A short name for all ops whose calls are like these."""
    return _short([signature(work) for work in works])


def way_signature(works: Sequence[Work], way: Way) -> str:
    """A short name for all ways to run such ops that have tiles of the same, of whatever size."""
    parts = [[signature(part.work), sorted(part.held)] for part in way.parts]
    return _short([op_signature(works), parts])


def shapes_text(work: Work) -> str:
    """The shapes of what a call reads and makes, for people."""
    made = [result for result in work.results if result is not None]
    reads = " ".join(_shape(operand) for operand in work.reads)
    return f"{reads} → {' '.join(map(_shape, made))}"


def _short(told: Any) -> str:
    return sha256(msgspec.json.encode(told)).hexdigest()[:24]


def _told(argument: Any) -> Any:
    if isinstance(argument, Operand):
        return {"operand": [argument.shape, argument.strides, argument.dtype]}
    if isinstance(argument, list | tuple):
        return [_told(each) for each in argument]
    if isinstance(argument, float):
        return {"float": repr(argument)}
    return argument


def _shape(operand: Operand) -> str:
    return "×".join(map(str, operand.shape)) or "1"
