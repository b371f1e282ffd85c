"""ResNet: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2015.

Where a block changes the shape, its shortcut is a 1×1 convolution (the paper's option B). In
ResNet-50 the 3×3 convolution has the stride, as in torchvision, not the first 1×1. Parameters are
named as in torchvision. The `imagenet` stem makes maps four times smaller, the `cifar` stem none.
"""

from torch import Tensor, nn

from poet.zoo.images import finish, start_convolutions
from poet.zoo.spec import Spec
from poet.zoo.task import Task


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class Basic(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(maps)))
        inner = self.bn2(self.conv2(inner))
        result: Tensor = self.relu(inner + self.downsample(maps))
        return result


class Bottleneck(nn.Module):
    """A 3×3 convolution on a quarter of the channels, between two of 1×1."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(maps)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        inner = self.bn3(self.conv3(inner))
        result: Tensor = self.relu(inner + self.downsample(maps))
        return result


_BLOCKS: dict[str, tuple[type[Basic] | type[Bottleneck], tuple[int, int, int, int]]] = {
    "resnet18": (Basic, (2, 2, 2, 2)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        block, counts = _BLOCKS[spec.name.removesuffix("-cifar")]
        channels = spec.whole("channels")
        self.maxpool: nn.Module
        if spec.word("stem") == "imagenet":
            self.conv1 = _convolution(channels, 64, 7, stride=2)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = _convolution(channels, 64, 3)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()

        def stage(inputs: int, width: int, stride: int, count: int) -> nn.Sequential:
            outputs = width * block.expansion
            rest = [block(outputs, width, 1) for _ in range(count - 1)]
            return nn.Sequential(block(inputs, width, stride), *rest)

        self.layer1 = stage(64, 64, 1, counts[0])
        self.layer2 = stage(64 * block.expansion, 128, 2, counts[1])
        self.layer3 = stage(128 * block.expansion, 256, 2, counts[2])
        self.layer4 = stage(256 * block.expansion, 512, 2, counts[3])
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, spec.whole("classes"))
        start_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        logits: Tensor = self.fc(self.avgpool(maps).flatten(1))
        return logits


def make(spec: Spec) -> Task:
    model = ResNet(spec)
    return finish(spec, model, model.fc)
