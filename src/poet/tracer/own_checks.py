"""Own checks: questions of a forward pass that can only end it.

    if torch.any(var < 0):
        raise ValueError("var has negative entry/entries")
    assert (ids >= 0).all(), "no id may be negative"

A trace has no values to answer with. But an answer that leads to an error ends eager PyTorch's step
too, so a step that goes on had the other one. That is the answer here, and an operator goes into
the step that raises the error when a batch calls for it.

Which questions are of that kind is read from the source of the line that asks. One that is not
understood for sure stays a decision by values, which is refused: what is asked must be the test of
an `assert`, or of an `if` with nothing in it but a `raise`, and no `try` around it in its function.
"""

import ast
import builtins
import contextlib
import dis
import linecache
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from poet.tracer.operators import required
from poet.tracer.replaced import replaced

_SKIPPED = (__file__, torch.overrides.__file__)
_Place = tuple[int, int, int, int]
"""Line and column of the start, and of the end."""


class _Check(NamedTuple):
    wanted: bool
    """The answer that does not end the step."""
    text: str


@contextlib.contextmanager
def own_checks_kept() -> Iterator[None]:
    """While this holds, a trace's tensors answer a check as it must be, and the step checks it."""
    asks_bool, asks_item = FunctionalTensor.__bool__, FunctionalTensor.item

    def is_true(self: FunctionalTensor) -> bool:
        answer = _answer(self, "bool")
        return asks_bool(self) if answer is None else answer

    def item(self: FunctionalTensor) -> Any:
        answer = _answer(self, "item") if self.dtype is torch.bool else None
        return asks_item(self) if answer is None else answer

    with (
        replaced(FunctionalTensor, "__bool__", is_true),
        replaced(FunctionalTensor, "item", item),
    ):
        yield


def _answer(asked: torch.Tensor, by: str) -> bool | None:
    """What a check must have for an answer; None for other questions."""
    if asked.numel() != 1:
        return None
    frame = _asking(sys._getframe(2))
    check = None if frame is None else _check_at(frame, by)
    if check is None:
        return None
    required(asked.detach(), check.wanted, check.text)
    return check.wanted


def _asking(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        frame.f_code.co_name == "__torch_function__" or frame.f_code.co_filename in _SKIPPED
    ):
        frame = frame.f_back
    return frame


def _check_at(frame: FrameType, by: str) -> _Check | None:
    done = [each for each in dis.get_instructions(frame.f_code) if each.offset <= frame.f_lasti]
    name = done[-1].opname
    asked_by_call = name.startswith(("CALL", "PRECALL"))
    if not asked_by_call:
        if by != "bool" or not ("JUMP" in name or name == "TO_BOOL"):
            return None
        done.pop()  # the one before has made what is asked
    place = done[-1].positions if done else None
    if place is None or None in place:
        return None
    found = _found(
        frame.f_code, (place.lineno, place.col_offset, place.end_lineno, place.end_col_offset)
    )
    if found is None:
        return None
    asked, check = found
    if asked_by_call:
        return check if _is_conversion(asked, by, frame) else None
    return None if isinstance(asked, ast.Compare) and len(asked.ops) > 1 else check


def _is_conversion(asked: ast.expr, by: str, frame: FrameType) -> bool:
    """Whether an expression is `bool(…)` or `….item()`, so that its value is what was asked."""
    if not isinstance(asked, ast.Call):
        return False
    if by == "item":
        is_item = isinstance(asked.func, ast.Attribute) and asked.func.attr == "item"
        return is_item and not asked.args
    is_bool = isinstance(asked.func, ast.Name) and asked.func.id == "bool" and len(asked.args) == 1
    shadowed = "bool" in frame.f_locals or "bool" in frame.f_globals
    return is_bool and not shadowed and frame.f_builtins.get("bool") is builtins.bool


@lru_cache(maxsize=256)
def _found(code: CodeType, place: _Place) -> tuple[ast.expr, _Check] | None:
    """The check that an expression at this place decides, and the expression."""
    tree = _tree(code.co_filename)
    if tree is None:
        return None
    statement = _statement(tree, place)
    if statement is None:
        return None
    if isinstance(statement, ast.Assert):
        test, wanted = statement.test, True
    else:
        test, wanted = statement.test, False
    asked = _decisive(test, wanted, place)
    if asked is None:
        return None
    lines = linecache.getlines(code.co_filename)[statement.lineno - 1 : statement.end_lineno]
    said = " ".join(line.strip() for line in lines)
    where = f"{os.path.basename(code.co_filename)}:{statement.lineno}"
    text = f"{where}: a check of the model or the loss fails for this batch: {said[:300]}"
    return asked[0], _Check(asked[1], text)


@lru_cache(maxsize=32)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _statement(node: ast.AST, place: _Place) -> ast.Assert | ast.If | None:
    """The innermost statement around a place, if it is a check that nothing catches."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Try | ast.TryStar) and _holds(child, place):
            return None
        if isinstance(child, ast.stmt) and not _holds(child, place):
            continue
        if isinstance(child, ast.Assert):
            return child
        if isinstance(child, ast.If) and _holds(child.test, place):
            only_raises = len(child.body) == 1 and isinstance(child.body[0], ast.Raise)
            return child if only_raises else None
        if isinstance(child, ast.stmt | ast.match_case):
            found = _statement(child, place)
            if found is not None:
                return found
    return None


def _decisive(test: ast.expr, wanted: bool, place: _Place) -> tuple[ast.expr, bool] | None:
    """The operand at a place and the answer it must have, where that alone decides the test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        at_all = _place(test) == place  # where Python asks for what is negated
        return _decisive(test.operand, not wanted, _place(test.operand) if at_all else place)
    if isinstance(test, ast.BoolOp):
        every = isinstance(test.op, ast.And) is wanted  # each operand must be as wanted
        for operand in test.values if every else test.values[-1:]:
            if _holds(operand, place):
                return _decisive(operand, wanted, place)
        return None
    return (test, wanted) if _place(test) == place else None


def _place(node: ast.expr) -> _Place:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _holds(node: ast.stmt | ast.expr, place: _Place) -> bool:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return start <= place[:2] and place[2:] <= end
