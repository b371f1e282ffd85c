"""By values: functions whose results have shapes by the values of their arguments.

Where these values are known for the example (`Known`), a trace has the shapes of the example, and
operators of our own make what eager PyTorch's kernels make. Whether a batch has the same shapes is
asked before its step begins; the operators look again.

Recurrent layers over packed sequences are what PyTorch makes of them: for each time step the cells
of so many sequences as are that long. Their lengths are asked for as a whole.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import _VF
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from poet.errors import AnotherWay
from poet.tracer.packed import packed, padded, steps_of
from poet.tracer.replaced import replaced


class Values(Protocol):
    """What is known of a trace's tensors."""

    def knows(self, tensor: Any) -> bool: ...

    def value(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def numbers(self, tensor: torch.Tensor) -> Any: ...

    def ask(self, function: Callable[..., torch.Tensor], *args: Any) -> Any: ...

    def decide(self, tensor: torch.Tensor, flat: torch.Tensor) -> None: ...

    def learn(self, function: Any, args: Any, kwargs: Any, made: Any) -> None: ...


@torch.library.custom_op("poet::places", mutates_args=())
def _places(where: torch.Tensor, count: int) -> torch.Tensor:
    """Where a tensor is not zero."""
    made = where.nonzero()
    _check_count(made.shape[0], count)
    return made


@_places.register_fake
def _(where: torch.Tensor, count: int) -> torch.Tensor:
    return where.new_empty((count, where.dim()), dtype=torch.long)


@torch.library.custom_op("poet::selected", mutates_args=())
def _selected(given: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
    made = given.masked_select(mask)
    _check_count(made.shape[0], count)
    return made


@_selected.register_fake
def _(given: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
    return given.new_empty(count)


@torch.library.custom_op("poet::selected_backward", mutates_args=())
def _selected_backward(grad: torch.Tensor, given: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.masked_select_backward.default(grad, given, mask)
    return made


@_selected_backward.register_fake
def _(grad: torch.Tensor, given: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(given, dtype=grad.dtype)


def _check_count(have: int, want: int) -> None:
    if have != want:
        raise AnotherWay(f"the batch selects {have} where the captured one selects {want}")


def _keep_selected(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _differentiate_selected(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _selected_backward(grad, *ctx.saved_tensors), None, None


_selected.register_autograd(_differentiate_selected, setup_context=_keep_selected)


@contextlib.contextmanager
def numbers_seen() -> Iterator[None]:
    """While this holds, nothing asks for numbers, or makes them, where nobody sees it.

    Functions of torch.jit.script run as the Python that they were made of.
    """
    call: Any = torch.jit.ScriptFunction.__call__
    tolist = torch.Tensor.tolist

    def inlined(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, "_torchdynamo_inline", partial(call, self))(*args, **kwargs)

    with (
        replaced(torch.jit.ScriptFunction, "__call__", inlined),
        replaced(FunctionalTensor, "tolist", lambda tensor: tolist(tensor)),
    ):
        yield


# What is called instead, or None where it can run as it is


def _nonzero(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    given = {**dict(zip(("input",), args, strict=False)), **kwargs}
    where = given.pop("input", None)
    as_tuple = given.pop("as_tuple", False)
    if given or not known.knows(where):
        return None
    made = _counted(known, where)
    return _columns(known, made) if as_tuple else made


def _columns(known: Values, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = rows.unbind(1)
    known.learn(torch.unbind, (rows, 1), {}, made)
    return made


def _counted(known: Values, where: torch.Tensor) -> torch.Tensor:
    """The places where it is not zero, of which a batch of another way has not as many."""
    made: torch.Tensor = _places(where, known.ask(_count_of, where))
    known.learn(torch.Tensor.nonzero, (where,), {}, made)
    return made


def _count_of(where: torch.Tensor) -> torch.Tensor:
    return (where != 0).sum()


def _iterated(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    (given,) = args
    if not known.knows(given) or not given.dim():
        return None
    made = given.unbind(0)
    known.learn(torch.unbind, (given, 0), {}, made)
    return iter(made)


def _contains(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    given, element = args
    if not known.knows(given) or not isinstance(element, bool | int | float):
        return None
    return bool(known.ask(_has, given, element))


def _has(given: torch.Tensor, element: float) -> torch.Tensor:
    return given.eq(element).any()


def _where(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 1 or kwargs:
        return None
    return _nonzero(known, function, args, {"as_tuple": True})


def _masked_select(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    given = {**dict(zip(("input", "mask"), args, strict=False)), **kwargs}
    if set(given) != {"input", "mask"} or not known.knows(given["mask"]):
        return None
    shapes = (given["input"].shape, given["mask"].shape)
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    whole, mask = given["input"].expand(shape), given["mask"].expand(shape)
    known.learn(torch.Tensor.expand, (given["mask"], shape), {}, mask)
    made = _selected(whole, mask, known.ask(_count_of, mask))
    if known.knows(given["input"]):
        known.learn(torch.masked_select, (given["input"], given["mask"]), {}, made)
    return made


def _item(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    """An index with masks, or with numbers that tensors hold."""
    given, index = args
    items = index if isinstance(index, tuple) else (index,)
    masks = [isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8) for x in items]
    picks = [_is_size(known, x) and not is_mask for x, is_mask in zip(items, masks, strict=True)]
    by_values = [x for x, *is_so in zip(items, masks, picks, strict=True) if any(is_so)]
    if not by_values or not all(map(known.knows, by_values)):
        return None
    spread: list[Any] = []
    for x, is_mask in zip(items, masks, strict=True):
        spread.extend(_columns(known, _counted(known, x)) if is_mask else (_size(known, x),))
    made = given[tuple(spread)]
    if known.knows(given) and isinstance(index, torch.Tensor):
        known.learn(torch.Tensor.__getitem__, (given, index), {}, made)
    return made


def _is_size(known: Values, leaf: Any) -> bool:
    whole = isinstance(leaf, torch.Tensor) and not leaf.dim() and not leaf.is_floating_point()
    return whole and known.knows(leaf)


def _size(known: Values, leaf: Any) -> Any:
    """The number in the place of a tensor that holds one."""
    if not _is_size(known, leaf):
        return leaf
    known.decide(leaf, leaf.reshape(-1))
    return known.numbers(leaf)


def _sized(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    """Sizes that are taken from a tensor, as recurrent layers take theirs from lengths."""
    if not any(_is_size(known, leaf) for leaf in pytree.tree_leaves(args)):
        return None
    return function(*pytree.tree_map(partial(_size, known), args), **kwargs)


def _pack(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    given, lengths, batch_first = args
    if kwargs or not known.knows(lengths):
        return None
    known.decide(lengths, lengths)
    counts = known.numbers(lengths)
    steps = torch.tensor(steps_of(counts))
    known.learn(torch.tensor, (steps_of(counts),), {}, steps)
    return packed(given, counts, batch_first), steps


def _recurrent(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    if len(args) < 2 or not isinstance(args[1], torch.Tensor) or not known.knows(args[1]):
        return None
    known.decide(args[1], args[1])
    return function(args[0], known.value(args[1]), *args[2:], **kwargs)


def _pad(known: Values, function: Any, args: Any, kwargs: Any) -> Any:
    data, steps, batch_first, padding, total = args
    if kwargs or not known.knows(steps):
        return None
    known.decide(steps, steps)
    counts: list[int] = known.numbers(steps)
    made = padded(data, counts, padding, total)
    lengths = [sum(count > n for count in counts) for n in range(counts[0])]
    told = torch.tensor(lengths)
    known.learn(torch.tensor, (lengths,), {}, told)
    return made.transpose(0, 1) if batch_first else made, told


BY_VALUES: dict[Any, Callable[[Values, Any, Any, Any], Any]] = {
    torch.nonzero: _nonzero,
    torch.Tensor.nonzero: _nonzero,
    torch.argwhere: _nonzero,
    torch.Tensor.argwhere: _nonzero,
    torch.where: _where,
    torch.masked_select: _masked_select,
    torch.Tensor.masked_select: _masked_select,
    torch.Tensor.__contains__: _contains,
    torch.Tensor.__getitem__: _item,
    torch.Tensor.__iter__: _iterated,
    torch.zeros: _sized,
    torch.ones: _sized,
    torch.empty: _sized,
    torch.arange: _sized,
    _VF._pack_padded_sequence: _pack,
    _VF._pad_packed_sequence: _pad,
    _VF.lstm: _recurrent,
    _VF.gru: _recurrent,
    _VF.rnn_tanh: _recurrent,
    _VF.rnn_relu: _recurrent,
}
