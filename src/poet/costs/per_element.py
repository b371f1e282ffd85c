"""FLOPs per element of everything that is neither a matrix product nor a convolution.

The weights are those of the Livermore loops (McMahon, 1986), which benchmarks have used since: an
addition, subtraction, multiplication or comparison is 1, a division or square root 4, an
exponential, logarithm, sine or another such function 8; a random number is taken for one of those.
A figure below is the sum over what the operation does with one element; what is done once a row or
once a channel is left out. Work on integers and truth values counts like work on floats: the core
is just as busy. Pure movement of data is 0 and costs only its bytes.
"""


def _by_name(weights: dict[int, str]) -> dict[str, int]:
    return {f"aten.{name}": k for k, names in weights.items() for name in names.split()}


PER_RESULT_ELEMENT = _by_name(
    {
        0: """
        _reshape_alias _to_copy _unsafe_index _unsafe_view _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d alias alias_copy arange as_strided
        as_strided_copy as_strided_scatter cat channel_shuffle clone constant_pad_nd copy detach
        detach_copy diag_embed diagonal diagonal_copy diagonal_scatter embedding empty empty_like
        empty_permuted empty_strided expand expand_copy eye fill flip full full_like gather im2col
        index index_select lift lift_fresh lift_fresh_copy masked_scatter masked_select new_empty
        new_empty_strided new_full new_ones new_zeros ones ones_like permute permute_copy
        pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat
        repeat_interleave replication_pad1d replication_pad2d replication_pad3d roll rot90
        scalar_tensor scatter select select_backward select_copy select_scatter slice
        slice_backward slice_copy slice_scatter split split_copy split_with_sizes
        split_with_sizes_copy squeeze squeeze_copy stack t t_copy take transpose transpose_copy
        tril_indices triu_indices unbind unbind_copy unfold unfold_copy unsafe_split
        unsafe_split_with_sizes unsqueeze unsqueeze_copy upsample_nearest1d upsample_nearest2d
        upsample_nearest3d view view_as_complex view_as_real view_copy zeros zeros_like
        """,
        1: """
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward abs add bitwise_and
        bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bucketize ceil
        clamp_max clamp_min eq floor fmax fmin frac ge gt heaviside isinf isnan le logical_and
        logical_not logical_or logical_xor lt masked_fill maximum minimum mul nan_to_num ne neg
        relu round rsub sgn sign signbit sub threshold threshold_backward tril triu trunc where
        """,
        2: """
        _prelu_kernel _prelu_kernel_backward clamp hardshrink hardtanh hardtanh_backward leaky_relu
        leaky_relu_backward native_dropout_backward softshrink
        """,
        3: "addcmul hardsigmoid_backward lerp sigmoid_backward tanh_backward",
        4: "div floor_divide hardsigmoid reciprocal sqrt",
        5: "fmod hardswish_backward remainder",
        6: "addcdiv hardswish",
        7: "_upsample_bilinear2d_aa upsample_bilinear2d upsample_linear1d",  # 4 × and 3 +
        8: """
        acos acosh asin asinh atan atan2 atanh bernoulli cos cosh digamma erf erfc erfinv exp exp2
        expm1 exponential lgamma log log10 log1p log2 logit normal poisson rand rand_like randint
        randint_like randn randn_like randperm rsqrt sin sinc sinh tan tanh uniform
        """,
        9: "glu_backward",  # the work is done once for two elements
        10: "xlogy",
        11: "celu elu elu_backward native_dropout",  # an exponential or a random number, and 3
        12: "gelu",  # erf of a multiple, + 1, × half, × x
        13: "sigmoid",  # exponential, + 1, divide
        14: "glu silu",
        15: "softplus_backward upsample_trilinear3d",
        17: "log_sigmoid_forward logaddexp logaddexp2 softplus",  # exponential and logarithm
        18: "log_sigmoid_backward silu_backward",
        25: "gelu_backward",  # the distribution (erf) and its density (exponential)
        26: "mish",
        34: "mish_backward",
        35: "_upsample_bicubic2d_aa upsample_bicubic2d",  # 16 × and +, and 3 for the weights
    }
)
"""FLOPs per element of the first result."""

PER_READ_ELEMENT = _by_name(
    {
        0: "_assert_async _assert_scalar _assert_tensor_metadata _local_scalar_dense",
        1: """
        _adaptive_avg_pool2d _adaptive_avg_pool3d _cummax_helper _cummin_helper
        _upsample_nearest_exact2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
        adaptive_max_pool3d adaptive_max_pool3d_backward all amax amin aminmax any argmax argmin
        col2im count_nonzero cummax cummin cumprod cumsum embedding_dense_backward equal histc max
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward mean median min mode
        nansum nonzero prod reflection_pad1d_backward reflection_pad2d_backward
        reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
        replication_pad3d_backward sum trace unfold_backward upsample_nearest1d_backward
        upsample_nearest2d_backward upsample_nearest3d_backward
        """,
        2: "_foreach_norm _native_batch_norm_legit_no_training linalg_vector_norm norm",
        3: "mse_loss mse_loss_backward",
        4: "_softmax_backward_data std std_mean var var_mean",  # mean; subtract, square, add
        5: "huber_loss huber_loss_backward smooth_l1_loss smooth_l1_loss_backward",
        # mean 1, variance 3, scale and shift 2; the same for a root mean square, with a product
        6: """
        _batch_norm_with_update _batch_norm_with_update_functional _fused_rms_norm
        _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm
        native_batch_norm
        """,
        7: """
        _upsample_bilinear2d_aa_backward upsample_bilinear2d_backward upsample_linear1d_backward
        """,
        # mean 1, variance 3, normalise 2, scale and shift 2
        8: "binary_cross_entropy_backward native_group_norm native_layer_norm",
        # two sums 4, the gradient of the input 5
        9: "batch_norm_backward cudnn_batch_norm_backward native_batch_norm_backward",
        11: "_log_softmax_backward_data _logcumsumexp logcumsumexp logsumexp",
        12: "_log_softmax _safe_softmax _softmax",  # maximum, -, exponential, sum, × or -
        # two sums 6, the gradients of the input 4, of the scale 2 and of the shift 1
        13: "_fused_rms_norm_backward native_group_norm_backward native_layer_norm_backward",
        15: "upsample_trilinear3d_backward",
        21: "binary_cross_entropy binary_cross_entropy_with_logits",  # two of 8, and 5
        35: "_upsample_bicubic2d_aa_backward upsample_bicubic2d_backward",
    }
)
"""FLOPs per element of the largest argument: what reduces, or spreads, many elements."""
