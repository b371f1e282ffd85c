"""LoRA within a byte budget: adapters of a small Llama read a book, in a loop of one's own."""

from itertools import islice

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import poet
import poet.data

BATCHES = list(islice(poet.data.batches("gpt2?batch=4&seq=64&vocab=128"), 5))


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        use_cache=False,
    )
    adapters = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM"
    )
    return get_peft_model(LlamaForCausalLM(config), adapters)


def train(model):
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    torch.manual_seed(1)
    losses = []
    for batch in BATCHES:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main():
    small = poet.wrap(llama(), example=BATCHES[0], ram="60%", store="pages", time_limit=1)
    losses = train(small)
    small.save_pretrained("adapters")
    print(f"{small.peak_bytes:,} of {small.budget_bytes:,} bytes")
    return losses, small


if __name__ == "__main__":
    main()
