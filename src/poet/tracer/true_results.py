"""True results: what a kernel makes where its stand-in in the trace says something else.

A trace runs no kernel: it asks torch what each would make. For a few the answer is wrong. Recurrent
layers hand a workspace from the forward to the backward pass whose size only the library knows, and
the trace has it empty. Some losses are reduced in the memory of all the single losses, so that one
number keeps megabytes. A copy of a view may bring along all that the view looked into. Statistics
of normalization stay float32 beside inputs of half precision, and gradients of groups do not. Those
kernels run once here, on zeros of the traced shapes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from poet.tracer.nodes import GETITEM, Node

_HAVE_WORKSPACES = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
_KEEP_MORE = (
    "mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss", "col2im",
    "_embedding_bag",
)  # fmt: skip
_STATISTICS = (
    "native_batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit",
    "native_layer_norm", "native_group_norm", "native_group_norm_backward",
)  # fmt: skip
_TRUE_DTYPES = "poet_true_dtypes"
_HALF = (torch.bfloat16, torch.float16)


def true_results(node: Node) -> list[Any]:
    """The results of a call: as traced, or real ones where a trace cannot be believed.

    Their content means nothing, but shapes and storages are those that the kernel gives.
    """
    made = node.meta["val"]
    traced = list(made) if isinstance(made, list | tuple) else [made]
    gaps = any(isinstance(x, torch.Tensor) and not _is_dense(x) for x in traced)
    name = getattr(node.target, "_opname", "")
    halved = name in _STATISTICS and any(
        made.dtype in _HALF for made in _tensors((*node.all_input_nodes, node))
    )
    if gaps or halved or name in (*_HAVE_WORKSPACES, *_KEEP_MORE):
        made = _really(node)
        real = list(made) if isinstance(made, list | tuple) else [made]
        node.meta[_TRUE_DTYPES] = [getattr(x, "dtype", None) for x in real]
        return real
    return traced


def _true_dtype(node: Node, traced: torch.dtype) -> torch.dtype:
    """What a kernel was seen to give, for a result of it that another one is given."""
    made: Any = node
    while getattr(made.target, "_opname", "") == "detach":
        made = made.args[0]
    maker, place = made.args if made.target is GETITEM else (made, 0)
    found: list[torch.dtype | None] = maker.meta.get(_TRUE_DTYPES, [])
    return (found[place] if found else None) or traced


def _tensors(nodes: Iterable[Node]) -> Iterator[torch.Tensor]:
    for node in nodes:
        made = node.meta.get("val")
        for item in made if isinstance(made, list | tuple) else (made,):
            if isinstance(item, torch.Tensor):
                yield item


def exactly(made: torch.Tensor) -> torch.Tensor:
    """The same shape and strides in a storage of its own, and not a byte more."""
    blank = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
    same_bytes = made.untyped_storage().nbytes() == blank.untyped_storage().nbytes()
    return made if same_bytes and not made.storage_offset() else blank


def _is_dense(made: torch.Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    blank = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
    return blank.untyped_storage().nbytes() == made.numel() * made.element_size()


def _really(node: Node) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)

    def given(source: Node) -> Any:
        like = source.meta["val"]
        if not isinstance(like, torch.Tensor):
            return like
        nbytes, at = like.untyped_storage().nbytes(), int(like.storage_offset())
        dtype = _true_dtype(source, like.dtype)
        nbytes = nbytes // like.element_size() * dtype.itemsize
        return zeros(like.shape, like.stride(), dtype, like.device, nbytes, at)

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), given)
    with torch.enable_grad():  # recurrent kernels ask whether a backward pass will follow
        return node.target(*args, **kwargs)


def zeros(
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    storage_bytes: int,
    offset: int = 0,
) -> torch.Tensor:
    """A tensor to try a kernel on: zeros, which will do as indices, too, in so large a storage."""
    storage = torch.zeros(storage_bytes, dtype=torch.uint8, device=device).untyped_storage()
    return torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, strides)
