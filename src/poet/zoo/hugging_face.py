"""BERT, DistilBERT, GPT-2 and ViT: Hugging Face's models from their configurations.

Weights are random, drawn as the configurations say; nothing is downloaded. A sample is random
tokens without padding, so that no attention mask is needed, or a random image.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from poet.zoo.spec import Spec
from poet.zoo.task import Task, train_only


def make(spec: Spec) -> Task:
    config, architecture, settings = _FAMILIES[spec.name]
    model = architecture(config(attn_implementation=spec.word("attention"), **settings(spec)))
    # The kind of loss is said here: else the model guesses it as it runs, and says so.
    if "classes" in spec.options:
        model.config.problem_type = "single_label_classification"
    else:
        model.loss_type = "ForCausalLM"
    train_only(spec.word("train"), model, _head(spec, model))
    return Task(model.train(), _example(spec), None)


def _bert(spec: Spec) -> dict[str, Any]:
    hidden, heads = {"bert-tiny": (128, 2), "bert-base": (768, 12)}[spec.name]
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": spec.whole("layers"),
        "num_labels": spec.whole("classes"),
        "vocab_size": spec.whole("vocab"),
        "hidden_dropout_prob": spec.number("dropout"),
        "attention_probs_dropout_prob": spec.number("dropout"),
    }


def _distilbert(spec: Spec) -> dict[str, Any]:
    return {
        "n_layers": spec.whole("layers"),
        "num_labels": spec.whole("classes"),
        "vocab_size": spec.whole("vocab"),
        "dropout": spec.number("dropout"),
        "attention_dropout": spec.number("dropout"),
        "seq_classif_dropout": min(2 * spec.number("dropout"), 0.9),
    }


def _gpt2(spec: Spec) -> dict[str, Any]:
    return {
        "n_layer": spec.whole("layers"),
        "vocab_size": spec.whole("vocab"),
        "bos_token_id": spec.whole("vocab") - 1,
        "eos_token_id": spec.whole("vocab") - 1,
        "resid_pdrop": spec.number("dropout"),
        "embd_pdrop": spec.number("dropout"),
        "attn_pdrop": spec.number("dropout"),
        "use_cache": False,
    }


def _vit(spec: Spec) -> dict[str, Any]:
    return {
        "hidden_size": 192,
        "num_attention_heads": 3,
        "intermediate_size": 768,
        "num_hidden_layers": spec.whole("layers"),
        "num_labels": spec.whole("classes"),
        "image_size": spec.whole("size"),
        "num_channels": spec.whole("channels"),
        "hidden_dropout_prob": spec.number("dropout"),
        "attention_probs_dropout_prob": spec.number("dropout"),
    }


class _Family(NamedTuple):
    """Hugging Face's two classes, untyped as they are, and what to put into the first."""

    config: Any
    architecture: Any
    settings: Callable[[Spec], dict[str, Any]]


_FAMILIES = {
    "bert-tiny": _Family(BertConfig, BertForSequenceClassification, _bert),
    "bert-base": _Family(BertConfig, BertForSequenceClassification, _bert),
    "distilbert": _Family(DistilBertConfig, DistilBertForSequenceClassification, _distilbert),
    "gpt2": _Family(GPT2Config, GPT2LMHeadModel, _gpt2),
    "vit-tiny": _Family(ViTConfig, ViTForImageClassification, _vit),
}


def _head(spec: Spec, model: Any) -> nn.Module:
    """The last layer. GPT-2's shares the token table; trained alone it gets a copy of it, for the
    table's own gradient would need the whole way back to the tokens.
    """
    if spec.name == "gpt2" and spec.word("train") == "head":
        model.config.tie_word_embeddings = False
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    head: nn.Module = model.lm_head if spec.name == "gpt2" else model.classifier
    return head


def _example(spec: Spec) -> dict[str, Tensor]:
    batch = spec.whole("batch")
    if "seq" in spec.options:  # any token but 0, which is BERT's padding
        tokens = torch.randint(1, spec.whole("vocab"), (batch, spec.whole("seq")))
        inputs = {"input_ids": tokens}
    else:
        shape = (batch, spec.whole("channels"), spec.whole("size"), spec.whole("size"))
        inputs = {"pixel_values": torch.randn(shape)}
    if "classes" in spec.options:
        return inputs | {"labels": torch.randint(spec.whole("classes"), (batch,))}
    return inputs | {"labels": inputs["input_ids"].clone()}
