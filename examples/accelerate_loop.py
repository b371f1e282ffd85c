"""A loop with Accelerate within a byte budget: a small network learns to read digits."""

import torch
from accelerate import Accelerator
from digits import digits, network
from torch import nn
from torch.utils.data import DataLoader

import poet


def train(model, folder, done=0):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = digits(76)  # ten batches, the last of four images
    loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(1))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader
    )
    if done:
        accelerator.load_state(folder)
        loader = accelerator.skip_first_batches(loader, done)
    losses = []
    for number, (images, labels) in enumerate(loader, done + 1):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if number == 4:
            accelerator.save_state(folder)
    model.eval()
    with torch.no_grad():
        losses.append(nn.functional.cross_entropy(model(data[:8][0]), data[:8][1]).item())
    return losses, accelerator.unwrap_model(model)


def main():
    example = torch.zeros(8, 1, 16, 16)
    small = poet.wrap(network(), example=(example,), ram="60%", store="pages", time_limit=1)
    losses, _ = train(small, "state")
    print(f"{small.peak_bytes:,} of {small.budget_bytes:,} bytes")
    return losses, small


if __name__ == "__main__":
    main()
