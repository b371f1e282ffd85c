"""What is in an image: convolutional classifiers in small."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.small_networks.network import Network, classes


def _conv(ins: int, outs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, size, stride, size // 2, groups=groups, bias=False)


class _Basic(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            _conv(ins, outs, 3, stride), nn.BatchNorm2d(outs), nn.ReLU(),
            _conv(outs, outs), nn.BatchNorm2d(outs),
        )  # fmt: skip
        self.beside = nn.Identity() if ins == outs else _conv(ins, outs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.beside(x))


def _on_top(width: int, outs: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, outs)]


def image_resnet8() -> tuple[nn.Module, nn.Module]:
    """The image classifier of MLPerf Tiny, with 8 channels for 16."""
    model = nn.Sequential(
        _conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), _Basic(8, 8, 1), _Basic(8, 16, 2),
        _Basic(16, 32, 2), *_on_top(32, 10),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


def digits_lenet() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 3), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


def _separable(ins: int, outs: int, stride: int) -> list[nn.Module]:
    return [_conv(ins, ins, 3, stride, ins), nn.BatchNorm2d(ins), nn.ReLU6(),
            _conv(ins, outs, 1), nn.BatchNorm2d(outs), nn.ReLU6()]  # fmt: skip


def person_mobilenet() -> tuple[nn.Module, nn.Module]:
    """The visual wake words of MLPerf Tiny, for 32×32."""
    model = nn.Sequential(
        _conv(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU6(), *_separable(8, 16, 1),
        *_separable(16, 24, 2), *_separable(24, 32, 2), *_on_top(32, 2),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


class _Inverted(nn.Module):
    """Wide inside, thin outside; with squeeze and excitation where asked for."""

    def __init__(self, width: int, act: type[nn.Module], is_squeezed: bool = False) -> None:
        super().__init__()
        wide = 3 * width
        squeezed = [_Squeeze(wide)] if is_squeezed else []
        self.main = nn.Sequential(
            _conv(width, wide, 1), nn.BatchNorm2d(wide), act(), _conv(wide, wide, 3, 1, wide),
            nn.BatchNorm2d(wide), act(), *squeezed, _conv(wide, width, 1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.main(x)


class _Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = F.relu(self.first(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.second(seen))


def leaf_mobilenetv2() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), _Inverted(8, nn.ReLU6), _Inverted(8, nn.ReLU6), *_on_top(8, 5)
    )
    return model, nn.CrossEntropyLoss(label_smoothing=0.1)


def leaf_mobilenetv3() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish(), _Inverted(8, nn.Hardswish, True), *_on_top(8, 5)
    )
    return model, nn.CrossEntropyLoss()


class _Fire(nn.Module):
    def __init__(self, ins: int, few: int, each: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(ins, few, 1)
        self.small, self.large = nn.Conv2d(few, each, 1), nn.Conv2d(few, each, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.small(x)), F.relu(self.large(x))], 1)


def parts_squeezenet() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), _Fire(8, 4, 8),
        _Fire(16, 4, 8), nn.Dropout(0.3), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


class _Shuffled(nn.Module):
    """Grouped convolutions whose channels change places in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(_conv(width, width, 1, groups=2), nn.BatchNorm2d(width))
        self.middle = nn.Sequential(_conv(width, width, 3, groups=width), nn.BatchNorm2d(width))
        self.last = nn.Sequential(_conv(width, width, 1, groups=2), nn.BatchNorm2d(width))
        self.shuffle = nn.ChannelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.last(self.middle(self.shuffle(F.relu(self.first(x))))))


def parts_shufflenet() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(_conv(1, 12, 3, 2), _Shuffled(12), _Shuffled(12), *_on_top(12, 4))
    return model, nn.CrossEntropyLoss()


class _Dense(nn.Module):
    def __init__(self, ins: int, more: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(ins + n * more), nn.ReLU(), _conv(ins + n * more, more))
            for n in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def textures_densenet() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(_conv(1, 8), _Dense(8, 4), nn.AvgPool2d(2), *_on_top(20, 6))
    return model, nn.CrossEntropyLoss()


class _Next(nn.Module):
    """ConvNeXt: a wide depthwise kernel, then layers at each pixel, behind a scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.wide(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def fruit_convnext() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Conv2d(3, 12, 4, 4), _Next(12), *_on_top(12, 5)), nn.CrossEntropyLoss()


def fruit_groupnorm() -> tuple[nn.Module, nn.Module]:
    """For batches of one, where batch norms do not learn."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1),
        nn.GroupNorm(4, 16), nn.Mish(), nn.Conv2d(16, 16, 3, padding=1, groups=4),
        nn.GroupNorm(1, 16), nn.SELU(), *_on_top(16, 5),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


def weeds_hinge() -> tuple[nn.Module, nn.Module]:
    """Several at once, by a margin; PReLU and a local norm."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.PReLU(8), nn.InstanceNorm2d(8), nn.Conv2d(8, 8, 3, 2),
        nn.PReLU(), *_on_top(8, 4),
    )  # fmt: skip
    return model, nn.MultiLabelSoftMarginLoss()


class _Patches(nn.Module):
    """ViT: patches, a class token, places, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        self.places = nn.Parameter(torch.randn(1, 17, 24) / 5)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(24, 2, 48, 0.0, "gelu", batch_first=True, norm_first=True),
            2, enable_nested_tensor=False,
        )  # fmt: skip
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.layers(x)[:, 0])


def image_vit() -> tuple[nn.Module, nn.Module]:
    return _Patches(), nn.CrossEntropyLoss()


class _Mixer(nn.Module):
    """MLP-Mixer: layers over places, then over channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over = nn.Sequential(nn.Linear(places, 24), nn.GELU(), nn.Linear(24, places))
        self.along = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.second(x))


class _Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.layers = nn.Sequential(_Mixer(16, 16), _Mixer(16, 16), nn.LayerNorm(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def image_mixer() -> tuple[nn.Module, nn.Module]:
    return _Mixed(), nn.CrossEntropyLoss()


def _image(batch: int, channels: int, size: int) -> Tensor:
    return torch.randn(batch, channels, size, size)


ENTRIES = (
    Network("image-resnet8", "images, ResNet-8", image_resnet8,
            lambda: (_image(1, 3, 32), classes(10, 1))),
    Network("digits-lenet", "digits, LeNet", digits_lenet,
            lambda: (_image(2, 1, 18), classes(10, 2)), "sgd", 0.05),
    Network("person-mobilenet", "visual wake words, MobileNet", person_mobilenet,
            lambda: (_image(2, 3, 32), classes(2, 2))),
    Network("leaf-mobilenetv2", "plant diseases, MobileNetV2", leaf_mobilenetv2,
            lambda: (_image(2, 3, 24), classes(5, 2))),
    Network("leaf-mobilenetv3", "plant diseases, MobileNetV3", leaf_mobilenetv3,
            lambda: (_image(2, 3, 24), classes(5, 2)), "adamw"),
    Network("parts-squeezenet", "defects, SqueezeNet", parts_squeezenet,
            lambda: (_image(2, 1, 32), classes(4, 2)), "adam"),
    Network("parts-shufflenet", "defects, ShuffleNet", parts_shufflenet,
            lambda: (_image(2, 1, 20), classes(4, 2))),
    Network("textures-densenet", "textures, DenseNet", textures_densenet,
            lambda: (_image(2, 1, 12), classes(6, 2))),
    Network("fruit-convnext", "fruit, ConvNeXt", fruit_convnext,
            lambda: (_image(1, 3, 32), classes(5, 1)), "adamw"),
    Network("fruit-groupnorm", "fruit, group norms", fruit_groupnorm,
            lambda: (_image(1, 3, 20), classes(5, 1))),
    Network("weeds-hinge", "several weeds at once, instance norm", weeds_hinge,
            lambda: (_image(2, 3, 24), (torch.rand(2, 4) < 0.5).float())),
    Network("image-vit", "images, vision transformer", image_vit,
            lambda: (_image(1, 3, 16), classes(10, 1)), "adamw", 1e-3),
    Network("image-mixer", "images, MLP-Mixer", image_mixer,
            lambda: (_image(2, 3, 16), classes(10, 2)), "adam", 1e-3),
)  # fmt: skip
