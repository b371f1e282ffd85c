"""TRL's SFTTrainer within a byte budget: adapters of a small Llama read a book."""

from itertools import islice

from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

import poet.data
from poet.integrations.hugging_face import PoetCallback


def passages(count):
    """Passages of the book that are tokens already: bytes."""
    batches = islice(poet.data.batches("gpt2?batch=1&seq=64&vocab=128"), count)
    return Dataset.from_list([{"input_ids": batch["input_ids"][0].tolist()} for batch in batches])


def tokenizer():
    """Of no use here, since there is nothing to tokenize, but asked for."""
    from tokenizers import Tokenizer, models

    vocabulary = {chr(n): n for n in range(128)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=chr(0)))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=chr(0), eos_token=chr(1))


def trainer(folder, callbacks):
    set_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    args = SFTConfig(
        folder,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        learning_rate=1e-2,
        max_length=64,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=3,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = passages(22)
    return SFTTrainer(
        LlamaForCausalLM(config),
        args,
        train_dataset=data.select(range(4, 22)),  # five batches, the last of two passages
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1),
        callbacks=callbacks,
    )


def main():
    # SFTTrainer computes its loss in pieces from what the Llama without its last layer returns.
    budget = PoetCallback(part="base_model.model.model", ram="60%", store="pages", time_limit=1)
    trained = trainer("run", [budget])
    trained.train()
    print(f"{budget.peak_bytes:,} of {budget.budget_bytes:,} bytes")
    return trained, budget


if __name__ == "__main__":
    main()
