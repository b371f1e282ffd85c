"""Lightning under a byte budget: one callback.

    Trainer(callbacks=[PoetCallback("net", ram="2 GiB")]).fit(module, loader)

A LightningModule computes its loss itself, from a network that it holds: that network is planned
in place while `fit` trains, with the first batch as the example. The module's own code, its
checkpoints and their names, validation and strategies stay as they are.
"""

from typing import Any

from torch import nn

from poet.errors import MissingPackage, PoetError
from poet.integrations.part import PlannedPart, ShowsBudget

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    if error.name not in ("lightning", "lightning.pytorch"):
        raise
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    except ModuleNotFoundError:
        raise MissingPackage("poet.integrations.lightning", "lightning") from None


class PoetCallback(ShowsBudget, Callback):
    """Calls of a LightningModule's network follow a plan within `ram` while it is trained.

    `part` is the network's name in the module, which the only one that has parameters need not
    have. `asked` is what else `poet.wrap` takes: `store`, `time_limit`, ….
    """

    def __init__(
        self, part: str | None = None, *, ram: str | int | None = None, **asked: Any
    ) -> None:
        self._part, self._planned = part, PlannedPart({"ram": ram, **asked})

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._planned.open(pl_module, self._part or _only_network(pl_module))

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._planned.check_used()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._planned.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._planned.close()


def _only_network(module: nn.Module) -> str:
    """The child that has parameters, where one alone does."""
    names = [
        name for name, child in module.named_children() if any(True for _ in child.parameters())
    ]
    if len(names) == 1:
        return names[0]
    has = f"has {', '.join(map(repr, names))}" if names else "has none"
    raise PoetError(
        f"which network of {type(module).__name__} is to be planned? It {has}; name it: "
        'PoetCallback("net")'
    )
