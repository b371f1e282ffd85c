"""Encoders, decoders and encoder-decoders of transformers for text, two layers each."""

from typing import Any

from benchmarks.models.entry import Entry, hugging_face, words

VOCABULARY = 96
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_DECODER = SMALL | {"bos_token_id": 1, "eos_token_id": 2}
_BOTH: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_LONG = {name: value for name, value in _BOTH.items() if name != "max_position_embeddings"} | {
    "max_encoder_position_embeddings": 32,
    "max_decoder_position_embeddings": 32,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


def _classified() -> dict[str, Any]:
    return {"input_ids": words(VOCABULARY, 8, 24), "labels": words(7, 8) - 5}


def _filled() -> dict[str, Any]:
    return {"input_ids": words(VOCABULARY, 8, 24), "labels": words(VOCABULARY, 8, 24)}


def _continued() -> dict[str, Any]:
    ids = words(VOCABULARY, 8, 24)
    return {"input_ids": ids, "labels": ids.clone()}


def _encoder(architecture: str, **settings: Any) -> Entry:
    given = {name: value for name, value in (SMALL | settings).items() if value is not None}
    return hugging_face("encoder", architecture, _classified, **given)


def _decoder(architecture: str, **settings: Any) -> Entry:
    return hugging_face("decoder", architecture, _continued, **_DECODER | settings)


def _translator(architecture: str, **settings: Any) -> Entry:
    return hugging_face("encoder-decoder", architecture, _filled, **settings)


ENTRIES = (
    _encoder("BertForSequenceClassification"),
    _encoder("RobertaForSequenceClassification"),
    _encoder("AlbertForSequenceClassification", embedding_size=16),
    _encoder("DistilBertForSequenceClassification"),
    _encoder(
        "DebertaForSequenceClassification", relative_attention=True, pos_att_type=["c2p", "p2c"]
    ),
    _encoder(
        "DebertaV2ForSequenceClassification", relative_attention=True, pos_att_type=["c2p", "p2c"]
    ),
    _encoder("MPNetForSequenceClassification"),
    _encoder("ModernBertForSequenceClassification", cls_token_id=3, sep_token_id=4),
    _encoder("RoFormerForSequenceClassification", embedding_size=32),
    _encoder("ElectraForSequenceClassification", embedding_size=16),
    _encoder("XLMRobertaForSequenceClassification"),
    _encoder("CamembertForSequenceClassification"),
    _encoder("RemBertForSequenceClassification", input_embedding_size=16, output_embedding_size=16),
    _encoder("MegatronBertForSequenceClassification"),
    _encoder("EsmForSequenceClassification", mask_token_id=4, position_embedding_type="absolute"),
    _encoder("SqueezeBertForSequenceClassification", embedding_size=32),
    _encoder("FNetForSequenceClassification"),
    _encoder("NystromformerForSequenceClassification"),
    _decoder("GPT2LMHeadModel", n_positions=32),
    _decoder("GPTNeoXForCausalLM"),
    _decoder("BloomForCausalLM", n_layer=2, n_head=4),
    _decoder("GemmaForCausalLM", num_key_value_heads=2, head_dim=8),
    _decoder("Gemma2ForCausalLM", num_key_value_heads=2, head_dim=8, sliding_window=8),
    _decoder("Qwen2ForCausalLM", num_key_value_heads=2),
    _decoder("Qwen3ForCausalLM", num_key_value_heads=2, head_dim=8),
    _decoder("PhiForCausalLM"),
    _decoder("Phi3ForCausalLM", num_key_value_heads=2),
    _decoder("OlmoForCausalLM"),
    _decoder("SmolLM3ForCausalLM", num_key_value_heads=2),
    _decoder("StableLmForCausalLM", num_key_value_heads=2),
    _decoder("OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32),
    _decoder("FalconForCausalLM"),
    _decoder("LlamaForCausalLM"),
    _decoder("MistralForCausalLM", num_key_value_heads=2, sliding_window=8),
    _decoder("MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4),
    _decoder(
        "MixtralForCausalLM",
        num_key_value_heads=2,
        num_local_experts=4,
        experts_implementation="eager",
        suffix=" (experts one by one)",
    ),
    _decoder(
        "MixtralForCausalLM",
        num_key_value_heads=2,
        num_local_experts=4,
        experts_implementation="batched_mm",
        suffix=" (experts batched)",
    ),
    _decoder(
        "Qwen2MoeForCausalLM",
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
    _translator("BartForConditionalGeneration", **_BOTH),
    _translator("BlenderbotForConditionalGeneration", **_BOTH),
    _translator("PegasusForConditionalGeneration", **_BOTH),
    _translator("MarianMTModel", **_BOTH),
    _translator("MBartForConditionalGeneration", **_BOTH),
    _translator("PLBartForConditionalGeneration", **_BOTH),
    _translator("LEDForConditionalGeneration", **_LONG, attention_window=[8, 8]),
    _translator(
        "M2M100ForConditionalGeneration", **_BOTH, encoder_layerdrop=0.0, decoder_layerdrop=0.0
    ),
    _translator(
        "ProphetNetForConditionalGeneration",
        vocab_size=VOCABULARY,
        hidden_size=32,
        max_position_embeddings=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        decoder_start_token_id=2,
    ),
    _translator("T5ForConditionalGeneration", **_T5),
    _translator("MT5ForConditionalGeneration", **_T5),
    _translator("UMT5ForConditionalGeneration", **_T5),
    _translator("LongT5ForConditionalGeneration", **_T5, local_radius=4),
    _translator("SwitchTransformersForConditionalGeneration", **_T5, num_experts=2),
)
