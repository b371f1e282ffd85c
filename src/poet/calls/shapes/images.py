"""Convolutions, pools and norms of images."""

from math import prod

from poet.calls.operands import Operand
from poet.calls.shapes.given import Given, Made, Shape, size_of


def _windows(size: int, kernel: int, stride: int, pad: int, dilation: int, is_ceil: bool) -> int:
    """How many windows there are along one side of an image."""
    if min(kernel, stride, dilation) < 1 or pad < 0:
        raise ValueError(f"windows of {kernel}, {stride} apart, with padding {pad}, by {dilation}")
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if is_ceil else room // stride) + 1
    if is_ceil and (count - 1) * stride >= size + pad:
        count -= 1
    if count < 1:
        raise ValueError(f"a window of {kernel} does not fit into {size}")
    return count


def _conv_shape(given: Given) -> Shape:
    image, weight = given["input"].shape, given["weight"].shape
    groups, rank = given.get("groups", 1), len(image)
    if rank not in (3, 4) or len(weight) != rank:
        raise ValueError("only convolutions of images and signals are covered")
    names, pairs = ("stride", "padding", "dilation", "output_padding"), (1, 0, 1, 0)
    each = zip(
        image[2:],
        weight[2:],
        *(given.pair(n, x)[4 - rank :] for n, x in zip(names, pairs, strict=True)),
        strict=True,
    )
    if given.get("transposed"):
        if groups < 1 or image[1] != weight[0] or image[1] % groups:
            raise ValueError(f"{groups} groups of {list(image)} and {list(weight)}")
        given.must("bias", (weight[1] * groups,))
        return (image[0], weight[1] * groups, *(_unfolded(*side) for side in each))
    if groups < 1 or image[1] != weight[1] * groups or weight[0] % groups:
        raise ValueError(f"{groups} groups of {list(image)} and {list(weight)}")
    given.must("bias", weight[:1])
    area = (
        _windows(size, kernel, stride, pad, dilation, is_ceil=False)
        for size, kernel, stride, pad, dilation, _ in each
    )
    return (image[0], weight[0], *area)


def _unfolded(size: int, kernel: int, stride: int, pad: int, dilation: int, more: int) -> int:
    """How long a side becomes whose windows are so many."""
    if min(kernel, stride, dilation) < 1 or pad < 0 or not 0 <= more < max(stride, dilation):
        raise ValueError(f"windows of {kernel}, {stride} apart, with padding {pad} and {more} more")
    found = (size - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1 + more
    if found < 1:
        raise ValueError(f"{size} windows with padding {pad} are of nothing")
    return found


def conv(given: Given) -> list[Made]:
    return [Made(_conv_shape(given))]


def conv_gradients(given: Given) -> list[Made]:
    given.must("grad_output", _conv_shape(given))
    shape = given["grad_output"].shape
    return [Made(given["input"].shape), Made(given["weight"].shape), Made(shape[1:2])]


def _pool_shape(given: Given, image: Shape) -> Shape:
    if len(image) not in (3, 4):
        raise ValueError(f"a pool of {list(image)}")
    kernel = given.pair("kernel_size")
    stride, pad = given.pair("stride", list(kernel)), given.pair("padding", 0)
    dilation, is_ceil = given.pair("dilation", 1), given.get("ceil_mode", False)
    area = []
    for n in (0, 1):
        size = image[n - 2]
        count = _windows(size, kernel[n], stride[n], pad[n], dilation[n], is_ceil)
        for at in range(count):
            first = at * stride[n] - pad[n]
            if not any(0 <= first + tap * dilation[n] < size for tap in range(kernel[n])):
                raise ValueError(f"window {at} lies outside of the image")
        area.append(count)
    if given.arguments.get("divisor_override") == 0:
        raise ValueError("its divisor is 0")
    return (*image[:-2], *area)


def max_pool(given: Given) -> list[Made]:
    shape = _pool_shape(given, given["self"].shape)
    return [Made(shape), Made(shape, "int64")]


def pool(given: Given) -> list[Made]:
    return [Made(_pool_shape(given, given["self"].shape))]


def pool_gradient(given: Given) -> list[Made]:
    shape = _pool_shape(given, given["self"].shape)
    given.must("grad_output", shape)
    given.must("indices", shape)
    return [Made(given["self"].shape)]


def adaptive(given: Given) -> list[Made]:
    image, area = given["self"].shape, given.pair("output_size")
    if len(image) not in (3, 4) or min(area) < 1:
        raise ValueError(f"a pool of {list(image)} to {list(area)}")
    return [Made((*image[:-2], *area))]


def adaptive_gradient(given: Given) -> list[Made]:
    image, gradient = given["self"].shape, given["grad_output"].shape
    if len(image) not in (3, 4) or len(gradient) != len(image) or gradient[:-2] != image[:-2]:
        raise ValueError(f"a gradient of {list(gradient)} for {list(image)}")
    return [Made(image)]


def batch_norm(given: Given) -> list[Made]:
    image = given["input"].shape
    channels = image[1:2]
    for name in ("weight", "bias", "running_mean", "running_var"):
        given.must(name, channels)
    is_training = given.get("training", not given.work.kind.endswith("no_training"))
    if not is_training:
        operands = given.operands("running_mean", "running_var")
        if len(operands) != 2:
            raise ValueError("it has no statistics")
        return [Made(image), Made((0,)), Made((0,)), *[Made(channels)] * (len(_made(given)) - 3)]
    return [Made(image), *[Made(channels)] * (len(_made(given)) - 1)]


def _made(given: Given) -> tuple[Operand | None, ...]:
    return given.work.results


def batch_norm_gradient(given: Given) -> list[Made]:
    image = given["input"].shape
    given.must("grad_out", image)
    used = ("save_mean", "save_invstd") if given.get("train") else ("running_mean", "running_var")
    for name in ("weight", *used):
        given.must(name, image[1:2])
    if len(given.operands(*used)) != 2:
        raise ValueError("it has no statistics")
    return [Made(image), Made(image[1:2]), Made(image[1:2])]


def adaptive_max(given: Given) -> list[Made]:
    (made,) = adaptive(given)
    return [made, Made(made.shape, "int64")]


def adaptive_max_gradient(given: Given) -> list[Made]:
    given.must("indices", given["grad_output"].shape)
    return adaptive_gradient(given)


def _groups(given: Given, image: Shape) -> Shape:
    """What a norm of groups has one mean for."""
    batch, channels, area, groups = (given.arguments[name] for name in ("N", "C", "HxW", "group"))
    if groups < 1 or min(batch, channels, area) < 1 or channels % groups:
        raise ValueError(f"{groups} groups of {channels} channels")
    if image[:2] != (batch, channels) or prod(image[2:]) != area:
        raise ValueError(f"{batch} times {channels} times {area} in {list(image)}")
    given.must("weight", (channels,))
    given.must("bias", (channels,))
    return (batch, groups)


def group_norm(given: Given) -> list[Made]:
    image = given["input"].shape
    means = _groups(given, image)
    return [Made(image), Made(means), Made(means)]


def group_norm_gradient(given: Given) -> list[Made]:
    image = given["input"].shape
    means = _groups(given, image)
    given.must("grad_out", image)
    given.must("mean", means)
    given.must("rstd", means)
    return [Made(image), Made(image[1:2]), Made(image[1:2])]


def _resized(given: Given, image: Shape) -> Shape:
    out = size_of(given, "output_size")
    if len(image) not in (3, 4) or len(out) != len(image) - 2 or min((*image[2:], *out)) < 1:
        raise ValueError(f"{list(image)} as large as {list(out)}")
    return (*image[:2], *out)


def resized(given: Given) -> list[Made]:
    return [Made(_resized(given, given["self"].shape))]


def resized_gradient(given: Given) -> list[Made]:
    image = size_of(given, "input_size")
    given.must("grad_output", _resized(given, image))
    return [Made(image)]


def channel_shuffle(given: Given) -> list[Made]:
    image, groups = given["self"].shape, given.arguments["groups"]
    if len(image) < 3 or groups < 1 or image[1] % groups:
        raise ValueError(f"{groups} groups of {list(image)}")
    return [Made(image, given["self"].dtype)]


def pixel_shuffle(given: Given) -> list[Made]:
    image, factor = given["self"].shape, given.arguments["upscale_factor"]
    if len(image) < 3 or factor < 1 or image[-3] % factor**2:
        raise ValueError(f"{list(image)} by {factor}")
    channels, height, width = image[-3:]
    area = (channels // factor**2, height * factor, width * factor)
    return [Made((*image[:-3], *area), given["self"].dtype)]


def pixel_unshuffle(given: Given) -> list[Made]:
    image, factor = given["self"].shape, given.arguments["downscale_factor"]
    if len(image) < 3 or factor < 1 or image[-1] % factor or image[-2] % factor:
        raise ValueError(f"{list(image)} by {factor}")
    channels, height, width = image[-3:]
    area = (channels * factor**2, height // factor, width // factor)
    return [Made((*image[:-3], *area), given["self"].dtype)]
