"""What gives a map for an image: segments, boxes, cleaner or larger images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.small_networks.network import Network, classes


def _twice(ins: int, outs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(ins, outs, 3, padding=1), nn.ReLU(), nn.Conv2d(outs, outs, 3, padding=1),
        nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Down twice, up twice, with what was there at each size; `up` makes an image larger."""

    def __init__(self, up: str, outs: int) -> None:
        super().__init__()
        self.first, self.second, self.third = _twice(1, 6), _twice(6, 8), _twice(8, 8)
        if up == "transposed":
            self.up: nn.Module = nn.ConvTranspose2d(8, 8, 2, 2)
        else:
            kind = {} if up == "nearest" else {"align_corners": up == "corners"}
            mode = "nearest" if up == "nearest" else "bilinear"
            self.up = nn.Upsample(scale_factor=2, mode=mode, **kind)
        self.fourth, self.last = _twice(16, 6), nn.Conv2d(6, outs, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        x = self.third(F.max_pool2d(second, 2))
        x = self.fourth(torch.cat([self.up(x), second], 1))
        return self.last(F.interpolate(x, size=first.shape[2:]) + first)


def segments_unet() -> tuple[nn.Module, nn.Module]:
    return UNet("nearest", 3), nn.CrossEntropyLoss(ignore_index=2)


def cells_unet() -> tuple[nn.Module, nn.Module]:
    return UNet("bilinear", 1), nn.BCEWithLogitsLoss()


class _Dice(nn.Module):
    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        made = torch.sigmoid(scores)
        both = (made * target).sum((1, 2, 3))
        total = made.sum((1, 2, 3)) + target.sum((1, 2, 3))
        return (1 - (2 * both + 1) / (total + 1)).mean()


def road_unet() -> tuple[nn.Module, nn.Module]:
    return UNet("transposed", 1), _Dice()


def depth_unet() -> tuple[nn.Module, nn.Module]:
    return UNet("corners", 1), nn.HuberLoss()


def denoise_autoencoder() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 12, 3, 2, 1), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(12, 8, 3, 2, 1, 1), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(8, 1, 3, 2, 1, 1), nn.Sigmoid(),
    )  # fmt: skip
    return model, nn.BCELoss()


def thermal_superresolution() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.PReLU(), nn.Conv2d(12, 4, 3, padding=1),
        nn.PixelShuffle(2),
    )  # fmt: skip
    return model, nn.L1Loss()


class _Detector(nn.Module):
    """Boxes, objectness and classes in one map: three losses."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.1),
            nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1),
            nn.Conv2d(16, 4 + 1 + 3, 1),
        )  # fmt: skip

    def forward(self, x: Tensor, boxes: Tensor, there: Tensor, labels: Tensor) -> Tensor:
        made = self.net(x)
        of_boxes = (F.smooth_l1_loss(made[:, :4], boxes, reduction="none") * there).sum()
        of_classes = F.cross_entropy(made[:, 5:], labels, reduction="none") * there[:, 0]
        objects = F.binary_cross_entropy_with_logits(made[:, 4:5], there)
        return of_boxes / there.sum().clamp(min=1) + of_classes.mean() + objects


def parcels_detector() -> tuple[nn.Module, None]:
    return _Detector(), None


class _Pyramid(nn.Module):
    """Features of two sizes, the small one made larger and added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Conv2d(8, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        large = F.silu(self.first(x))
        small = F.silu(self.second(large))
        small = F.interpolate(small, size=large.shape[2:], mode="bilinear", align_corners=False)
        return self.head(self.norm(small + large)).flatten(2).amax(2)


def fruit_pyramid() -> tuple[nn.Module, nn.Module]:
    return _Pyramid(), nn.CrossEntropyLoss()


def _image(batch: int, channels: int, size: int) -> Tensor:
    return torch.randn(batch, channels, size, size)


def _mask(*shape: int) -> Tensor:
    return (torch.rand(shape) < 0.4).float()


ENTRIES = (
    Network("segments-unet", "a class for each pixel, U-Net, nearest", segments_unet,
            lambda: (_image(1, 1, 16), classes(3, 1, 16, 16)), "adam"),
    Network("cells-unet", "cells, U-Net, bilinear", cells_unet,
            lambda: (_image(1, 1, 16), _mask(1, 1, 16, 16))),
    Network("road-unet", "a road by the Dice loss, U-Net, transposed", road_unet,
            lambda: (_image(1, 1, 16), _mask(1, 1, 16, 16))),
    Network("depth-unet", "depth, U-Net, bilinear at the corners", depth_unet,
            lambda: (_image(1, 1, 16), torch.rand(1, 1, 16, 16)), "adam"),
    Network("denoise-autoencoder", "cleaner images", denoise_autoencoder,
            lambda: (_image(2, 1, 16), torch.rand(2, 1, 16, 16)), "adam"),
    Network("thermal-superresolution", "a larger thermal image", thermal_superresolution,
            lambda: (_image(1, 1, 12), _image(1, 1, 24)), "adam"),
    Network("parcels-detector", "boxes and classes, three losses", parcels_detector,
            lambda: (_image(2, 3, 24), torch.rand(2, 4, 6, 6), _mask(2, 1, 6, 6),
                     classes(3, 2, 6, 6))),
    Network("fruit-pyramid", "fruit of any size, a feature pyramid", fruit_pyramid,
            lambda: (_image(1, 3, 20), classes(5, 1))),
)  # fmt: skip
