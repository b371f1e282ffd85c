"""The models people ask for by name: `resnet18-cifar?batch=4` → a model, an example, a loss.

1. `parse` reads the name and its options and says what does not fit; it needs no torch.
2. `build` makes the model, in train mode, and an example batch; both random, both from the seed.

One file per family; they import torch, and are themselves imported only when a model is built.
Weights are random: nothing is downloaded. What is built lies on the CPU, so that a seed gives the
same bits whatever device is the default one.
"""

from collections.abc import Callable

from poet.errors import MissingPackage, PoetError
from poet.zoo.catalogue import MODELS, Entry, Option
from poet.zoo.spec import Spec, parse
from poet.zoo.task import Task

__all__ = ["MODELS", "Entry", "Option", "Spec", "Task", "build", "parse"]


def build(spec: Spec | str, seed: int = 0) -> Task:
    """The model of that name with its example and loss; the caller's random state is left alone."""
    spec = parse(spec) if isinstance(spec, str) else spec
    try:
        import torch

        make = maker(spec)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", "transformers"):
            raise
        raise MissingPackage(spec.name, package) from None
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            made = make(spec)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise PoetError(
            f"{spec.text} does not fit into this machine's memory. Try smaller options."
        ) from None
    return made


def maker(spec: Spec) -> Callable[[Spec], Task]:
    """Who makes a model, imported when it is asked for: torch and transformers are extras."""
    match MODELS[spec.name].file:
        case "hugging_face":
            from poet.zoo.hugging_face import make
        case "lenet":
            from poet.zoo.lenet import make
        case "mlp":
            from poet.zoo.mlp import make
        case "mobilenet":
            from poet.zoo.mobilenet import make
        case "resnet":
            from poet.zoo.resnet import make
        case "unet":
            from poet.zoo.unet import make
        case "vgg":
            from poet.zoo.vgg import make
        case unknown:
            raise AssertionError(f"no file of the zoo makes {unknown}")
    return make
