"""timm's convolutional networks and vision transformers, at small images."""

from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.models.entry import Entry, Task, words
from benchmarks.models.torchvision_absent import stand_in


def imported() -> Any:
    """timm itself, on nothing of torchvision."""
    import transformers.utils  # noqa: F401  first, so that it finds out by itself what is there

    with stand_in():
        import timm
    return timm


def _make(name: str, size: int, settings: dict[str, Any]) -> Task:
    model = imported().create_model(name, num_classes=10, **settings).train()
    example = (torch.randn(2, 3, size, size), words(15, 2) - 5)
    return model, example, nn.functional.cross_entropy


def _cnn(name: str, size: int = 64, **settings: Any) -> Entry:
    return Entry(name, "timm CNN", "timm", partial(_make, name, size, settings), "sgd")


def _vit(name: str, size: int = 64, suffix: str = "", **settings: Any) -> Entry:
    return Entry(name + suffix, "timm ViT", "timm", partial(_make, name, size, settings))


_NARROW: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 4, "img_size": 64}

ENTRIES = (
    _cnn("resnet18"),
    _cnn("resnext26ts"),
    _cnn("resnetblur18"),
    _cnn("seresnet18"),
    _cnn("repvgg_a0"),
    _cnn("mobilenetv3_small_050"),
    _cnn("ghostnet_050"),
    _cnn("regnetx_002"),
    _cnn("convnext_atto"),
    _vit("vit_tiny_patch16_224", **_NARROW, patch_size=8),
    _vit(
        "vit_tiny_patch16_224",
        **_NARROW,
        patch_size=8,
        drop_path_rate=0.2,
        proj_drop_rate=0.1,
        suffix=" (stochastic depth)",
    ),
    _vit("deit3_small_patch16_224", **_NARROW, patch_size=8),
    _vit("deit_tiny_distilled_patch16_224", **_NARROW, patch_size=8),
    _vit("beit_base_patch16_224", **_NARROW, patch_size=8),
    _vit("eva02_tiny_patch14_224", **_NARROW, patch_size=8),
    _vit("pvt_v2_b0"),
    _vit("vit_base_patch16_224", **_NARROW, patch_size=8, class_token=False, global_pool="avg"),
)
