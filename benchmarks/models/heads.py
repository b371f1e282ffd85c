"""Heads that people fine-tune besides classifiers of whole texts.

Chosen by a rule: each head for words, spans, masked words and multiple choice that transformers has
for BERT, RoBERTa, DistilBERT and DeBERTa-v2, and each head of the audio transformers of `audio` for
connectionist temporal classification that is not there already.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.models.audio import STEADY, spoken, waves
from benchmarks.models.entry import Entry, hugging_face, words
from benchmarks.models.text import SMALL, VOCABULARY

_ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {},
    "DistilBert": {},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
}


def _ids(*size: int) -> torch.Tensor:
    """Texts of several lengths, the rest filled up."""
    ids, ends = words(VOCABULARY, *size), torch.randint(4, size[-1] + 1, (*size[:-1], 1))
    return ids.where(torch.arange(size[-1]) < ends, SMALL["pad_token_id"])


def _padded(*size: int) -> dict[str, Any]:
    ids = _ids(*size)
    return {"input_ids": ids, "attention_mask": (ids != SMALL["pad_token_id"]).long()}


def _words() -> dict[str, Any]:
    given = _padded(8, 24)
    return given | {"labels": (words(7, 8, 24) - 5).where(given["attention_mask"] > 0, -100)}


def _spans() -> dict[str, Any]:
    ends = torch.randint(0, 24, (2, 8))
    return _padded(8, 24) | {"start_positions": ends[0], "end_positions": ends[1]}


def _masked() -> dict[str, Any]:
    given = _padded(8, 24)
    return given | {"labels": given["input_ids"].where(torch.rand(8, 24) < 0.15, -100)}


def _choices() -> dict[str, Any]:
    return _padded(4, 3, 24) | {"labels": torch.randint(0, 3, (4,))}


_HEADS: dict[str, Callable[[], dict[str, Any]]] = {
    "TokenClassification": _words,
    "QuestionAnswering": _spans,
    "MaskedLM": _masked,
    "MultipleChoice": _choices,
}

ENTRIES: tuple[Entry, ...] = (
    *(
        hugging_face("head", f"{encoder}For{head}", example, **SMALL | settings)
        for encoder, settings in _ENCODERS.items()
        for head, example in _HEADS.items()
    ),
    waves("UniSpeechForCTC", spoken, **STEADY, num_ctc_classes=32),
    waves("UniSpeechSatForCTC", spoken, **STEADY),
    waves(
        "Data2VecAudioForCTC",
        spoken,
        **STEADY,
        conv_pos_kernel_size=3,
        num_conv_pos_embeddings=2,
    ),
    waves("WavLMForCTC", spoken, **STEADY),
    waves("Wav2Vec2ConformerForCTC", spoken, **STEADY),
    waves("SEWForCTC", spoken, **STEADY, squeeze_factor=1),
)
