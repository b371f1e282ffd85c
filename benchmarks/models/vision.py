"""Vision and audio transformers, and CNNs, of transformers."""

from typing import Any

import torch

from benchmarks.models.entry import Entry, hugging_face, words

_SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_labels": 5,
}
_STAGES: dict[str, Any] = {"num_labels": 5}


def _classified() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": words(10, 2) - 5}


def _seen_larger() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 64, 64), "labels": words(10, 2) - 5}


def _segmented() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 64, 64), "labels": words(10, 2, 64, 64) - 5}


def _pictured() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _paired() -> dict[str, Any]:
    return {
        "input_ids": words(96, 2, 8),
        "pixel_values": torch.randn(2, 3, 32, 32),
        "return_loss": True,
    }


def _seen_often() -> dict[str, Any]:
    return {"pixel_values": torch.randn(16, 3, 64, 64), "labels": words(10, 16) - 5}


def _vision(architecture: str, example: Any = _classified, **settings: Any) -> Entry:
    return hugging_face("vision", architecture, example, **_SMALL | settings)


def _staged(architecture: str, example: Any = _seen_larger, **settings: Any) -> Entry:
    return hugging_face("vision", architecture, example, **_STAGES | settings)


_TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}

ENTRIES = (
    _vision("ViTForImageClassification"),
    _vision("DeiTForImageClassification"),
    _vision("ViTMSNForImageClassification"),
    hugging_face(
        "vision",
        "ViTMAEForPreTraining",
        _pictured,
        **_SMALL,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=64,
    ),
    _vision("SiglipForImageClassification", vision_config=_IMAGE),
    _vision("BeitForImageClassification", drop_path_rate=0.1),
    _vision("Dinov2ForImageClassification"),
    _staged(
        "SwinForImageClassification",
        _classified,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    _staged(
        "Swinv2ForImageClassification",
        _classified,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    _staged(
        "PvtForImageClassification",
        image_size=64,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
    ),
    _staged(
        "PoolFormerForImageClassification",
        _seen_often,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
    ),
    _staged(
        "SegformerForSemanticSegmentation",
        _segmented,
        hidden_sizes=[8, 16, 24, 32],
        decoder_hidden_size=16,
    ),
    _staged(
        "LevitForImageClassification",
        image_size=64,
        hidden_sizes=[16, 32, 48],
        depths=[1, 1, 1],
        num_attention_heads=[2, 2, 4],
        key_dim=[8, 8, 8],
    ),
    _staged(
        "ConvNextForImageClassification",
        _seen_often,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
    ),
    _staged(
        "ConvNextV2ForImageClassification",
        _seen_often,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
    ),
    _staged(
        "RegNetForImageClassification",
        embedding_size=16,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        groups_width=8,
        optimizer="sgd",
    ),
    _staged(
        "ResNetForImageClassification",
        embedding_size=16,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        optimizer="sgd",
    ),
    _staged(
        "MobileNetV2ForImageClassification", image_size=64, depth_multiplier=0.25, optimizer="sgd"
    ),
    hugging_face(
        "vision", "CLIPModel", _paired, text_config=_TEXT, vision_config=_IMAGE, projection_dim=16
    ),
    hugging_face("vision", "SiglipModel", _paired, text_config=_TEXT, vision_config=_IMAGE),
)
