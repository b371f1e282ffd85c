"""Trial: two training steps of a model within 60 % of its RAM, and the same in eager PyTorch.

Losses, weights, buffers and the state of the random generator are compared bit for bit. The second
step has a batch of other values, so that nothing of the first can have become a constant.
"""

import copy
import tempfile
import time
from typing import Any, Literal

import msgspec
import torch
from tests.torch.eager import loss_of, same_bits, torch_optimizer
from torch import nn

import poet
from benchmarks.models.entry import Entry, Task
from poet.errors import PoetError
from poet.planning.figures import keep_all_bytes
from poet.training.planned import problem_here

STEPS = 2
SHARE = "60%"
_OPTIMIZERS = {"adamw": poet.AdamW(lr=1e-3), "sgd": poet.SGD(lr=1e-2, momentum=0.9)}

Verdict = Literal["bit-equal", "refused", "different", "failed"]


class Outcome(msgspec.Struct, frozen=True):
    verdict: Verdict
    said: str = ""
    ops: int | None = None
    keep_all_bytes: int | None = None
    budget_bytes: int | None = None
    peak_bytes: int | None = None
    seconds: float = 0.0


def tried(entry: Entry, time_limit: float) -> Outcome:
    """What becomes of a model."""
    torch.manual_seed(0)
    started = time.monotonic()
    first, *others = (entry.make() for _ in range(STEPS))
    batches = [first[1], *(example for _, example, _ in others)]
    optimizer = _OPTIMIZERS[entry.optimizer]
    plain = copy.deepcopy(first[0])
    outcome = _trained(first, batches, plain, optimizer, time_limit)
    return msgspec.structs.replace(outcome, seconds=time.monotonic() - started)


def _trained(
    task: Task, batches: list[Any], plain: nn.Module, optimizer: Any, time_limit: float
) -> Outcome:
    model, _, loss = task
    expected, state = _eagerly(plain, batches, loss, optimizer)
    with tempfile.TemporaryDirectory() as pages:
        try:
            trainer = poet.Trainer(
                model,
                loss,
                optimizer,
                example=batches[0],
                ram=SHARE,
                store=pages,
                time_limit=time_limit,
                cache=False,
            )
        except PoetError as error:
            return Outcome("refused", str(error))
        with trainer:
            apart = []
            for n, batch in enumerate(batches):
                torch.manual_seed(n)
                made = trainer.run(batch).loss
                if not same_bits(made, expected[n]):
                    apart.append(
                        f"loss of step {n + 1}: {made.item()} instead of {expected[n].item()}"
                    )
            if not torch.equal(torch.get_rng_state(), state):
                apart.append("the random state after the steps")
            with trainer.unpaged() as whole:
                mine, theirs = _tensors(whole), _tensors(plain)
                apart += [name for name in theirs if not same_bits(mine[name], theirs[name])]
            return Outcome(
                "different" if apart else "bit-equal",
                ", ".join(apart[:4]),
                len(trainer.plan.graph.ops),
                keep_all_bytes(problem_here(trainer.program)),
                trainer.budget_bytes,
                trainer.peak_bytes,
            )


def _eagerly(
    plain: nn.Module, batches: list[Any], loss: Any, optimizer: Any
) -> tuple[list[torch.Tensor], torch.Tensor]:
    update = torch_optimizer(optimizer, plain)
    assert update is not None
    losses = []
    for n, batch in enumerate(batches):
        torch.manual_seed(n)
        update.zero_grad(set_to_none=True)
        made = loss_of(plain, batch, loss)
        made.backward()  # type: ignore[no-untyped-call]
        update.step()
        losses.append(made.detach())
    return losses, torch.get_rng_state()


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])
