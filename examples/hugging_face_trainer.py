"""Hugging Face's Trainer within a byte budget: a small GPT-2 reads a book, byte by byte."""

from itertools import islice

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import poet.data
from poet.integrations.hugging_face import PoetCallback


def passages(count):
    for batch in islice(poet.data.batches("gpt2?batch=1&seq=64&vocab=128"), count):
        yield {name: tensor[0] for name, tensor in batch.items()}


def trainer(folder, callbacks):
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    )
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        max_grad_norm=0.1,
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=2,
        save_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = list(passages(46))  # ten batches, the last of two passages
    return Trainer(model, args, train_dataset=data[8:], eval_dataset=data[:8], callbacks=callbacks)


def main():
    budget = PoetCallback(ram="60%", store="pages", time_limit=1)
    trained = trainer("run", [budget])
    trained.train()
    print(f"{budget.peak_bytes:,} of {budget.budget_bytes:,} bytes")
    return trained, budget


if __name__ == "__main__":
    main()
