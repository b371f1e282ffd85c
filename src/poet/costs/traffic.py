"""Traffic: the bytes a call moves between memory and the core.

A call reads each of its arguments once and writes each of its results once; a view moves nothing.
Three tables say where that is not so: arguments that are asked only for their shape, arguments of
which only some elements are picked, and results into which other elements are scattered. Caches are
not modelled: what one call leaves in a cache for the next counts again.
"""

from collections.abc import Callable
from typing import Any

from poet.calls.references import is_given
from poet.calls.sizes import SizedCall


def call_bytes(call: SizedCall) -> int:
    """The bytes a call reads and writes."""
    if call.is_view or call.family in _CHECKS:
        return 0
    unread = _unread(call)
    table, count = PICKED.get(call.family, (None, None))
    seen = set()
    moved = 0
    for read in call.reads:
        if read.name in unread or read.reference in seen:
            continue
        seen.add(read.reference)
        nbytes = read.array.nbytes
        if read.name == table:
            like = call.result if count is None else call.array(count)
            nbytes = min(nbytes, like.elements * read.array.item_bytes)
        moved += nbytes
    moved += sum(made.nbytes for made in call.results if made is not None and not made.is_view)
    if (scattered := SCATTERED.get(call.family)) is not None:
        source, adds = scattered
        moved += _scattered_bytes(call, source, adds or is_given(call.arguments.get("accumulate")))
    return moved


def _unread(call: SizedCall) -> frozenset[str]:
    if (rule := UNREAD_BY_RULE.get(call.family)) is not None:
        return rule(call.arguments)
    names = UNREAD.get(call.kind) or UNREAD.get(call.family)
    return names or frozenset()


def _scattered_bytes(call: SizedCall, source: str, adds: bool) -> int:
    """Written over the result after that was filled; read before, where elements are added."""
    nbytes = next((read.array.nbytes for read in call.reads if read.name == source), 0)
    return 2 * nbytes if adds else nbytes


def _convolution_backward(arguments: dict[str, Any]) -> frozenset[str]:
    mask = arguments.get("output_mask") or (True, True, True)
    return frozenset(
        name for name, wanted in zip(("weight", "input"), mask, strict=False) if not wanted
    )


def _batch_norm_backward(arguments: dict[str, Any]) -> frozenset[str]:
    """While training the statistics of this batch are used, otherwise the running ones."""
    training = is_given(arguments.get("train", arguments.get("update", True)))
    pair = ("running_mean", "running_var") if training else ("save_mean", "save_invstd", "save_var")
    return frozenset(pair)


def _named(names: str, *arguments: str) -> dict[str, frozenset[str]]:
    return {f"aten.{name}": frozenset(arguments) for name in names.split()}


_CHECKS = {"aten._assert_async", "aten._assert_scalar", "aten._assert_tensor_metadata"}

UNREAD: dict[str, frozenset[str]] = {
    **_named(
        """
        bernoulli.p copy empty_like fill full_like new_empty new_empty_strided new_full new_ones
        new_zeros normal ones_like rand_like randint_like randn_like uniform zeros_like
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward avg_pool2d_backward
        avg_pool3d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        nll_loss_backward nll_loss2d_backward
        """,
        "self",
    ),
    **_named("type_as", "other"),
}
"""Arguments whose elements the call does not look at, only their shape or type."""

UNREAD_BY_RULE: dict[str, Callable[[dict[str, Any]], frozenset[str]]] = {
    "aten.convolution_backward": _convolution_backward,
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.batch_norm_backward": _batch_norm_backward,
}
"""The same, where it depends on the other arguments."""

PICKED: dict[str, tuple[str, str | None]] = {
    "aten.embedding": ("weight", None),
    "aten.index": ("self", None),
    "aten._unsafe_index": ("self", None),
    "aten.index_select": ("self", None),
    "aten.gather": ("self", None),
    "aten.take": ("self", None),
    "aten.take_along_dim": ("self", None),
    "aten.nll_loss_forward": ("self", "target"),
    "aten.nll_loss2d_forward": ("self", "target"),
}
"""Arguments of which only some elements are read: as many as the result has, or as that argument
has."""

SCATTERED: dict[str, tuple[str, bool]] = {
    "aten.embedding_dense_backward": ("grad_output", True),
    "aten.index_put": ("values", False),
    "aten._unsafe_index_put": ("values", False),
    "aten.index_add": ("source", True),
    "aten.scatter": ("src", False),
    "aten.scatter_add": ("src", True),
    "aten.scatter_reduce": ("src", True),
}
"""The argument whose elements go to scattered places of a result that is filled first, and whether
they are always added to what is there."""
