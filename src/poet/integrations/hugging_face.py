"""Hugging Face's Trainer under a byte budget: one callback, for any of its kin.

    Trainer(model, args, train_dataset=data, callbacks=[PoetCallback(ram="2 GiB")]).train()

A callback, since every subclass takes callbacks, however it computes its loss: Seq2SeqTrainer,
TRL's trainers, one's own. While it trains, the model is planned in place: the first batch is the
example, and the trainer goes on with its own model, loop, optimizer, checkpoints and evaluation.
"""

from typing import Any

from poet.errors import MissingPackage, PoetError
from poet.integrations.part import PlannedPart, ShowsBudget

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise MissingPackage("poet.integrations.hugging_face", "transformers") from None


class PoetCallback(ShowsBudget, TrainerCallback):
    """The training steps of a Trainer's model follow a plan within `ram`.

    `part` is the name of a submodule, where the loss is computed from that one's outputs and not by
    the model as a whole. `asked` is what else `poet.wrap` takes: `store`, `time_limit`, ….
    """

    def __init__(self, ram: str | int | None = None, *, part: str = "", **asked: Any) -> None:
        self._part, self._planned = part, PlannedPart({"ram": ram, **asked})

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        _check(args)
        self._planned.open(kwargs["model"], self._part)

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._planned.check_used()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._planned.check_used()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._planned.close()


def _check(args: TrainingArguments) -> None:
    """Refuse what changes a model in ways that a plan does not know."""
    for option, why in (
        ("gradient_checkpointing", "the plan decides what is computed again"),
        ("torch_compile", "a compiled model is not called as the plan calls it"),
        ("fsdp", "a plan needs each parameter whole, and FSDP shards them"),
        ("deepspeed", "a plan needs each parameter where it is, and DeepSpeed moves them"),
    ):
        if getattr(args, option, None):
            raise PoetError(f"{option} is on, but {why}. Leave it off beside PoetCallback")
    if args.n_gpu > 1:
        raise PoetError(
            f"one process has {args.n_gpu} GPUs here, and nn.DataParallel cannot run a planned "
            "model. Start a process for each GPU (torchrun), or set CUDA_VISIBLE_DEVICES"
        )
