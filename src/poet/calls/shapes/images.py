"""Convolutions, pools and norms of images."""

from poet.calls.operands import Operand
from poet.calls.shapes.given import Given, Made, Shape


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
    groups = given.get("groups", 1)
    if len(image) != 4 or len(weight) != 4 or given.get("transposed"):
        raise ValueError("only convolutions of images that are not transposed are covered")
    if groups < 1 or image[1] != weight[1] * groups or weight[0] % groups:
        raise ValueError(f"{groups} groups of {list(image)} and {list(weight)}")
    stride, pad = given.pair("stride", 1), given.pair("padding", 0)
    dilation = given.pair("dilation", 1)
    area = (
        _windows(image[2 + n], weight[2 + n], stride[n], pad[n], dilation[n], False) for n in (0, 1)
    )
    given.must("bias", weight[:1])
    return (image[0], weight[0], *area)


def conv(given: Given) -> list[Made]:
    return [Made(_conv_shape(given))]


def conv_gradients(given: Given) -> list[Made]:
    given.must("grad_output", _conv_shape(given))
    image, weight = given["input"].shape, given["weight"].shape
    return [Made(image), Made(weight), Made(weight[:1])]


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
