"""Lightning within a byte budget: a small network learns to read digits."""

import lightning
import torch
from digits import digits, network
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from poet.integrations.lightning import PoetCallback


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.losses = []

    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(folder, callbacks, epochs=2, checkpoint=None):
    lightning.seed_everything(0, verbose=False)
    data = digits(60)  # six batches to train, the last of four images, and two to validate
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=0.1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, ModelCheckpoint(folder)],
    )
    module = Digits()
    loaders = (DataLoader(data, 8, sampler=part) for part in (range(16, 60), range(16)))
    trainer.fit(module, *loaders, ckpt_path=checkpoint)
    return module


def main():
    budget = PoetCallback("net", ram="60%", store="pages", time_limit=1)
    module = fit("run", [budget])
    print(f"{budget.peak_bytes:,} of {budget.budget_bytes:,} bytes")
    return module, budget


if __name__ == "__main__":
    main()
