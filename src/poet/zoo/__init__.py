"""The models people ask for by name: `resnet18-cifar?batch=4` → a model, an example, a loss.

1. `parse` reads the name and its options and says what does not fit; it needs no torch.
2. `build` makes the model, in train mode, and an example batch; both random, both from the seed.

One file per family; they import torch, and are themselves imported only when a model is built.
Weights are random: nothing is downloaded. What is built lies on the CPU, so that a seed gives the
same bits whatever device is the default one.
"""

import importlib

from poet.errors import MissingPackage, PoetError
from poet.zoo.catalogue import MODELS, Entry, Option
from poet.zoo.spec import Spec, parse
from poet.zoo.task import Made

__all__ = ["MODELS", "Entry", "Made", "Option", "Spec", "build", "parse"]


def build(spec: Spec | str, seed: int = 0) -> Made:
    """The model of that name with its example and loss; the caller's random state is left alone."""
    spec = parse(spec) if isinstance(spec, str) else spec
    try:
        import torch

        family = importlib.import_module(f"poet.zoo.{MODELS[spec.name].file}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", "transformers"):
            raise
        raise MissingPackage(spec.name, package) from None
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            made: Made = family.make(spec)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise PoetError(
            f"{spec.text} does not fit into this machine's memory. Try smaller options."
        ) from None
    return made
