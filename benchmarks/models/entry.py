"""Entry: a model of the survey, and how it is made from its configuration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Task = tuple[torch.nn.Module, Any, Callable[..., torch.Tensor] | None]
"""Model, example and loss."""


class Entry(NamedTuple):
    name: str
    family: str
    library: str
    make: Callable[[], Task]
    optimizer: str = "adamw"


def hugging_face(
    family: str, architecture: str, example: Callable[[], dict[str, Any]], **settings: Any
) -> Entry:
    """A class of transformers by its name, small by these settings of its configuration.

    `prepare`, where it is given, gets the model before it is trained.
    """
    prepare: Callable[[Any], None] | None = settings.pop("prepare", None)
    suffix = settings.pop("suffix", "")
    optimizer = settings.pop("optimizer", "adamw")

    def make() -> Task:
        import transformers

        kind: Any = getattr(transformers, architecture)
        model = kind(kind.config_class(**settings)).train()
        if prepare is not None:
            prepare(model)
        return model, example(), None

    return Entry(architecture + suffix, family, "transformers", make, optimizer)


def words(count: int, *size: int) -> torch.Tensor:
    return torch.randint(5, count, size)
