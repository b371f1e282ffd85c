"""MobileNetV2: Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: inverted residuals and
linear bottlenecks", 2018. Parameters are named as in torchvision.
"""

from torch import Tensor, nn

from poet.zoo.images import dropout, finish, start_convolutions
from poet.zoo.spec import Spec
from poet.zoo.task import Task

_STAGES = (  # table 2 of the paper: expansion, channels, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _scaled(channels: int, width: float) -> int:
    """A multiple of 8 near `channels` × `width`, at most a tenth below it, as published."""
    wanted = channels * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8


def _layer(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Widen by 1×1, filter each channel by 3×3, narrow by 1×1 without activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [_layer(inputs, wide, 1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            _layer(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        result: Tensor = self.conv(maps)
        return maps + result if self.residual else result


class MobileNetV2(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        width = spec.number("width")
        inputs = _scaled(32, width)
        features = [_layer(spec.whole("channels"), inputs, 3, stride=2)]
        for expansion, channels, blocks, stride in _STAGES:
            outputs = _scaled(channels, width)
            for index in range(blocks):
                first = stride if index == 0 else 1
                features.append(InvertedResidual(inputs, outputs, first, expansion))
                inputs = outputs
        last = _scaled(1280, max(1.0, width))
        features.append(_layer(inputs, last, 1))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            dropout(spec.number("dropout")), nn.Linear(last, spec.whole("classes"))
        )
        start_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.avgpool(self.features(images))
        logits: Tensor = self.classifier(maps.flatten(1))
        return logits


def make(spec: Spec) -> Task:
    model = MobileNetV2(spec)
    return finish(spec, model, model.classifier[-1])
