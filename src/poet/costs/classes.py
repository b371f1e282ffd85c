"""Classes of work: kinds of calls that reach about the same rate on a machine.

A device may give FLOPs a second, bytes a second and the time to start a call by class; what it does
not name goes at its one rate. A matrix product keeps every multiplier of a core busy, picking the
largest of nine neighbours hardly one; so the rates of one machine lie a hundredfold apart. And a
convolution has more to prepare than an addition.
"""

from poet.calls.sizes import SizedCall
from poet.calls.updates import ALL_UPDATES, CLEAR, GATHER
from poet.costs.flops import ATTENTIONS, CONVOLUTIONS, TRANSPOSED

CLASSES = (
    "products",
    "convolutions",
    "convolution_gradients",
    "depthwise",
    "depthwise_gradients",
    "pooling",
    "random",
    "attention",
    "attention_gradients",
    "transcendental",
    "transcendental_gradients",
    "normalization",
    "reductions",
    "tables",
    "updates",
    "elementwise",
)
_MOST_CHANNELS = 2
"""A filter over no more input channels than this has no long sums to be fast with."""


def class_of(call: SizedCall) -> str:
    """The class of a call's work."""
    found = _CLASS.get(call.family, "elementwise")
    if found.startswith("convolution") and call.array("weight").shape[1] <= _MOST_CHANNELS:
        return found.replace("convolutions", "depthwise").replace("convolution", "depthwise")
    return found


def _named(found: str, names: str) -> dict[str, str]:
    return {f"aten.{name}": found for name in names.split()}


_CLASS = {
    **_named(
        "products",
        """
        mm bmm mv dot matmul linear addmm _addmm_activation addmv baddbmm _grouped_mm
        linear_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward
        """,
    ),
    **_named("attention", f"{ATTENTIONS} scaled_dot_product_attention"),
    **_named("attention_gradients", " ".join(f"{name}_backward" for name in ATTENTIONS.split())),
    **_named("convolutions", f"{CONVOLUTIONS} {TRANSPOSED}"),
    "aten.convolution_backward": "convolution_gradients",
    **_named(
        "pooling",
        """
        max_pool2d max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d
        """,
    ),
    **_named(
        "random",
        """
        bernoulli exponential native_dropout normal poisson rand rand_like randint randint_like
        randn randn_like randperm uniform
        """,
    ),
    "poet.dropout_mask": "random",
    **_named(
        "transcendental",
        """
        elu erf exp gelu log mish sigmoid silu softplus tanh _log_softmax _safe_softmax _softmax
        """,
    ),
    **_named(
        "normalization",
        """
        _native_batch_norm_legit_functional _native_batch_norm_legit native_batch_norm
        native_batch_norm_backward native_layer_norm native_layer_norm_backward native_group_norm
        native_group_norm_backward
        """,
    ),
    **_named(
        "transcendental_gradients",
        """
        elu_backward gelu_backward mish_backward silu_backward softplus_backward
        _log_softmax_backward_data _softmax_backward_data
        """,
    ),
    **_named("reductions", "amax amin any all mean prod std sum var"),
    **_named("tables", "embedding_dense_backward"),
    **dict.fromkeys((*ALL_UPDATES, GATHER, CLEAR), "updates"),
}
