"""What the image models share: how they start, an example batch, the loss, what is held still."""

import torch
from torch import nn

from poet.zoo.spec import Spec
from poet.zoo.task import Task, train_only


def finish(spec: Spec, model: nn.Module, head: nn.Module, *, pixelwise: bool = False) -> Task:
    """The step around a model: random images and classes (one each, or one a pixel)."""
    train_only(spec.word("train"), model, head)
    model.train()
    batch, size = spec.whole("batch"), spec.whole("size")
    images = torch.randn(batch, spec.whole("channels"), size, size)
    labelled = (batch, size, size) if pixelwise else (batch,)
    target = torch.randint(spec.whole("classes"), labelled)
    if spec.options.get("norm_eval"):
        _hold_norms(model, spec.whole("channels"))
    return Task(model, (images, target), nn.functional.cross_entropy)


def _hold_norms(model: nn.Module, channels: int) -> None:
    """BatchNorm into evaluation mode, with the statistics of eight random images of 64×64.

    A network that is fine-tuned brings its statistics. Fresh ones (mean 0, variance 1) would
    normalise nothing, and a deep network's activations would explode. A later `model.train()` of
    the caller ends evaluation mode, as it does in any PyTorch code.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # torch's way to say: the mean of all batches seen, here one
    with torch.no_grad():
        model(torch.randn(8, channels, 64, 64))
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
        norm.eval()


def start_convolutions(model: nn.Module) -> None:
    """He, Zhang, Ren and Sun 2015: variance kept through ReLU. Other layers start as in torch."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def dropout(rate: float) -> nn.Module:
    """No op at all where nothing is dropped, so that none is captured."""
    return nn.Dropout(rate) if rate else nn.Identity()
