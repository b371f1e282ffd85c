"""Audio transformers of transformers: a fraction of a second of sound, two layers each."""

from typing import Any

import torch

from benchmarks.models.entry import Entry, hugging_face, words

_WAVES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 4, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
    "pad_token_id": 0,
}
STEADY = {"layerdrop": 0.0, "apply_spec_augment": False}


def spoken() -> dict[str, Any]:
    labels = words(32, 2, 6)
    ends = torch.randint(2, 7, (2, 1))  # others in each batch
    return {
        "input_values": torch.randn(2, 1600),
        "labels": labels.where(torch.arange(6) < ends, -100),
    }


def _heard() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 1600), "labels": words(7, 2) - 5}


def _spoken_features() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 24, 16), "labels": words(32, 2, 6)}


def waves(architecture: str, example: Any = spoken, **settings: Any) -> Entry:
    return hugging_face("audio", architecture, example, **_WAVES | settings)


def _spectrum() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 32, 16), "labels": words(7, 2) - 5}


def _log_mel() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 64), "labels": words(96, 2, 8)}


def _translated() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 32, 16), "labels": words(96, 2, 8)}


_BOTH: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

ENTRIES = (
    waves("Wav2Vec2ForCTC", **STEADY),
    waves("Wav2Vec2ForCTC", suffix=" (as configured)"),
    waves("Wav2Vec2ForSequenceClassification", _heard, **STEADY),
    waves("HubertForSequenceClassification", _heard, **STEADY),
    waves(
        "UniSpeechForSequenceClassification",
        _heard,
        **STEADY,
        num_ctc_classes=32,
    ),
    waves(
        "Data2VecAudioForSequenceClassification",
        _heard,
        **STEADY,
        conv_pos_kernel_size=3,
        num_conv_pos_embeddings=2,
    ),
    waves("HubertForCTC", **STEADY),
    waves("WavLMForSequenceClassification", _heard, **STEADY),
    waves("UniSpeechSatForSequenceClassification", _heard, **STEADY),
    waves("Wav2Vec2ConformerForSequenceClassification", _heard, **STEADY),
    waves("SEWForSequenceClassification", _heard, **STEADY, squeeze_factor=1),
    hugging_face(
        "audio",
        "ASTForAudioClassification",
        _spectrum,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        patch_size=8,
        time_stride=8,
        frequency_stride=8,
        max_length=32,
        num_mel_bins=16,
        num_labels=5,
    ),
    hugging_face(
        "audio",
        "WhisperForConditionalGeneration",
        _log_mel,
        **_BOTH,
        num_mel_bins=8,
        max_source_positions=32,
        max_target_positions=32,
    ),
    hugging_face(
        "audio",
        "Speech2TextForConditionalGeneration",
        _translated,
        **_BOTH,
        input_feat_per_channel=16,
        max_source_positions=64,
        max_target_positions=32,
        conv_channels=16,
    ),
)
