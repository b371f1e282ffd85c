"""Trouble: what went wrong while tracing, said so that the reader knows where and what to do.

torch's own messages are for people who know its insides. Here each kind of failure is matched to a
remedy, and the place is found by walking the traceback: the innermost frame that runs in one of the
model's modules gives the module path and the source line.
"""

import os
import re
import traceback
from collections.abc import Sequence
from types import TracebackType

import torch
from torch import nn

from poet.errors import PoetError
from poet.tracer.effects import LooksAtResult

_DATA_DEPENDENT = (
    "the step depends on the values of its tensors (a Python `if`, `while`, `int()` or `.item()` "
    "on a tensor, or a result whose shape depends on values), so it has no fixed graph. Use "
    "torch.where, masks or fixed shapes there (and layerdrop=0.0 or None in such models)"
)
_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"GuardOnDataDependent|data.dependent|DataDependentOutput|DynamicOutputShape|"
        r"_local_scalar_dense|\.item\(\)|Could not guard|unbacked",
        _DATA_DEPENDENT,
    ),
    (
        r"failed to unpack the object",
        "a size is taken from the values of a tensor, as packed sequences take theirs from "
        "lengths. Pad the batch to one length instead, and mask the padding in the loss",
    ),
    (
        r"no fake impl|fake impl|meta kernel|Meta.*backend|'Meta'|UnsupportedOperator|"
        r"unsupported operator|tried to run .* with the 'Meta'|FakeTensor",
        "an operator has no kernel for tracing shapes. Give it one with "
        "torch.library.register_fake, or write it with torch operations",
    ),
    (
        r"uninitialized parameter",
        "a lazy module has no parameters yet. Run the model on the example once, then capture it",
    ),
    (
        r"[Nn]um[Pp]y",
        "the step leaves torch for NumPy, where it cannot be traced. Use torch operations there",
    ),
    (
        r"modified by an inplace operation",
        "a value that the backward pass needs is changed in place before it, which eager PyTorch "
        "cannot differentiate either. Change a copy instead",
    ),
    (
        r"missing \d+ required|takes \d+ positional|unexpected keyword|got multiple values",
        "the example does not fit the model's forward(). It must be (*inputs, target) with a loss, "
        "and the model's own arguments (tuple, or dict of keywords) without one",
    ),
    (
        r"dtype|scalar type|Float|Long|Half|Double",
        "the dtypes of the example do not fit the model or the loss: check them against a plain "
        "loss(model(*inputs), target)",
    ),
    (
        r"shape|size|dimension|reduction dim|broadcast|to have|out of range|channels|index|expand",
        "the shapes of the example do not fit the model or the loss: check them against a plain "
        "loss(model(*inputs), target)",
    ),
)
_BY_FUNCTION: dict[str, str] = {
    "ctc_loss": (
        "the lengths that ctc_loss is given must come with the batch, or be Python numbers, and "
        "its targets must not depend on values in their shape. Or take the loss in a loop of your "
        "own, around poet.wrap(model, ...)"
    ),
    "pack_padded_sequence": (
        "a packed sequence has a shape that depends on its lengths. Give the recurrent layer the "
        "padded batch instead, and mask the padding in the loss"
    ),
}
"""Functions of torch whose results, or checks, depend on values, and what to do without them."""
_NOT_THE_MODELS = (os.path.dirname(__file__), os.path.dirname(torch.__file__))
"""Where code lies that is neither the model's nor the loss's."""
_OTHERWISE = "check that a plain loss(model(*inputs), target) followed by .backward() runs"


class CustomFunction(Exception):
    """An export came to a custom autograd function, whose backward pass it would lose."""


def explanation(errors: Sequence[Exception], step: nn.Module, prefix: str) -> PoetError:
    """One error for the failures of every way that was tried.

    The last that has a place tells. But an export follows other branches than eager PyTorch, and
    may fail in one of those, or for the sake of a custom function: where the trace of the step as
    it runs has failed on the values of tensors, or the export on such a function, that trace tells,
    and of two such traces the one to which the values of the batch were known.
    """
    placed = [(error, place(error, step, prefix)) for error in reversed(errors)]
    error, where = next((pair for pair in placed if pair[1]), placed[0])
    custom = [each for each in errors if isinstance(each, CustomFunction)]
    as_it_runs = errors[-1 if len(errors) > 2 else 0]
    if custom or depends_on_values(as_it_runs):
        error, where = as_it_runs, place(as_it_runs, step, prefix)
    if isinstance(error, LooksAtResult):
        return PoetError(f"{where}the training step cannot be captured: {error}")
    if isinstance(error, RecursionError):
        return PoetError(
            f"{where}Python's recursion limit was met: the model is nested very deeply, or calls "
            "itself without end. Try sys.setrecursionlimit"
        )
    remedy = remedy_of(error)
    if custom:
        remedy += (
            f". An export, which copes with more, would lose the backward pass of the custom "
            f"autograd function {custom[0]}"
        )
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    cause = f"{type(error).__name__}: {line[:300]}"
    return PoetError(f"{where}the training step cannot be captured: {remedy}. ({cause})")


def remedy_of(error: Exception) -> str:
    """What to do about it."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        in_torch = frame.f_code.co_filename.startswith(os.path.dirname(torch.__file__))
        if in_torch and frame.f_code.co_name in _BY_FUNCTION:
            return _BY_FUNCTION[frame.f_code.co_name]
    said = f"{type(error).__name__}: {error}"
    remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, said)), _OTHERWISE)
    if remedy == _DATA_DEPENDENT:
        remedy += _setting(error)
    return remedy


def depends_on_values(error: Exception) -> bool:
    """Whether a step failed for the sake of values that a trace does not have."""
    return isinstance(error, LooksAtResult) or remedy_of(error).startswith(
        (_DATA_DEPENDENT, *_BY_FUNCTION.values())
    )


def _setting(error: Exception) -> str:
    """What makes the question needless, where the code that asks it is known."""
    ours = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_NOT_THE_MODELS)
    ]
    asking = ours[-1].f_locals if ours else {}
    if "label_index" in asking and hasattr(asking.get("self"), "config"):
        return (
            ". This model guesses from the labels which loss it has: say it, with "
            'model.config.problem_type = "single_label_classification", or "regression"'
        )
    if hasattr(asking.get("self"), "has_gate") and hasattr(asking["self"], "num_experts"):
        return (
            ". A model of experts need not ask which of them have work: "
            'give experts_implementation="grouped_mm" or "batched_mm" in its configuration'
        )
    summary = traceback.extract_tb(error.__traceback__)
    asked = [each.line or "" for each in summary if not each.filename.startswith(_NOT_THE_MODELS)]
    if asked and "labels" in asked[-1]:
        return (
            ". A model that asks its labels something need not have them: leave them out of the "
            "batch, and give a loss_fn of your own"
        )
    return ""


def is_decision(error: Exception) -> bool:
    """Whether a Python number was taken from a tensor."""
    return bool(re.search(_REMEDIES[0][0], f"{type(error).__name__}: {error}"))


def place(error: BaseException, step: nn.Module, prefix: str) -> str:
    """`layer1.0 (net.py:12: x = x.item()): `, or nothing where no module is to blame."""
    paths = {id(module): name for name, module in step.named_modules() if module is not step}
    at: TracebackType | None = error.__traceback__
    path, line, in_step = None, None, False
    while at is not None:
        frame = at.tb_frame
        owner = frame.f_locals.get("self")
        in_step = in_step or owner is step
        if issubclass(type(owner), nn.Module) and id(owner) in paths:
            path, line = paths[id(owner)], None
        file = frame.f_code.co_filename
        if in_step and not file.startswith(_NOT_THE_MODELS):
            line = traceback.extract_tb(at, limit=1)[0]
        at = at.tb_next
    if not in_step:
        return ""
    if path is None or path == "loss":
        found = "the loss" if getattr(step, "in_loss", False) else "the model"
    else:
        found = path.removeprefix(f"{prefix}.") if path != prefix else "the model"
    if line is not None:
        found += f" ({os.path.basename(line.filename)}:{line.lineno}: {line.line})"
    return found + ": "
