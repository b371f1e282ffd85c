"""The same training in plain PyTorch, and a comparison bit for bit."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import poet
from poet.tracer.program import Program
from poet.values.schedule import Schedule

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Loss = Callable[..., torch.Tensor] | None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in shape, dtype and every bit: the sign of zero counts, and NaN equals itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    flat = [t.detach().contiguous().reshape(-1).view(_WHOLE[t.element_size()]) for t in (a, b)]
    return torch.equal(*flat)


def loss_of(model: nn.Module, example: Any, loss: Loss) -> torch.Tensor:
    if loss is not None:
        return loss(model(*example[:-1]), example[-1])
    made = model(**example) if isinstance(example, dict) else model(*example)
    if isinstance(made, torch.Tensor):
        return made
    found: torch.Tensor = made["loss"] if isinstance(made, dict) else made.loss
    return found


def captured(task: Any, optimizer: Any = None, **options: Any) -> Program:
    """The step of a task of the zoo, or of any (model, example, loss)."""
    model, example, loss = task
    return poet.capture(model, loss, optimizer, example=example, **options)


def differences(
    model: nn.Module,
    example: Any,
    loss: Loss,
    optimizer: "poet.SGD | poet.Adam | poet.AdamW | None" = None,
    *,
    steps: int = 3,
    schedule: Callable[[Program, int], Schedule] | None = None,
    autocast: torch.dtype | None = None,
    **options: Any,
) -> list[str]:
    """Train by a captured program and by eager PyTorch; name all that is not bit-equal."""
    plain = copy.deepcopy(model)
    program = poet.capture(
        model, loss, optimizer, example=example, autocast=autocast, cache=False, **options
    )
    update = torch_optimizer(optimizer, plain)
    found = []
    for step in range(steps):
        plain.zero_grad(set_to_none=True)
        torch.manual_seed(step)
        context = torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext()
        with context:
            expected = loss_of(plain, example, loss)
        expected.backward()  # type: ignore[no-untyped-call]
        grads = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
        if update is not None:
            update.step()
        torch.manual_seed(step)
        result = program.run(schedule=schedule(program, step) if schedule else None)
        found += [
            f"step {step}: {each}" for each in _apart(program, plain, grads, expected, result)
        ]
        if update is not None:
            found += [f"step {step}: {each}" for each in _states_apart(program, plain, update)]
    return found


def _apart(
    program: Program, plain: nn.Module, grads: dict[str, torch.Tensor], loss: Any, result: Any
) -> list[str]:
    found = [] if same_bits(loss, result.loss) else [f"loss {loss.item()} {result.loss.item()}"]
    for name, gradient in result.gradients.items():
        if not same_bits(grads[name], gradient):
            found.append(f"gradient of {name}")
    if not program.layout.state and not program.layout.learning_rates:
        assert result.gradients.keys() == grads.keys()
    mine = program.model.state_dict()
    return found + [n for n, value in plain.state_dict().items() if not same_bits(value, mine[n])]


def _states_apart(program: Program, plain: nn.Module, update: torch.optim.Optimizer) -> list[str]:
    named = dict(plain.named_parameters())
    return [
        f"{kept} of {name}"
        for name, held in program.state.items()
        for kept, value in held.items()
        if not same_bits(value, update.state[named[name]][kept])
    ]


def torch_optimizer(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer | None:
    """The namesake in torch.optim."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if optimizer is None:
        return None
    if isinstance(optimizer, poet.SGD):
        return torch.optim.SGD(
            trained,
            optimizer.lr,
            optimizer.momentum,
            optimizer.dampening,
            optimizer.weight_decay,
            optimizer.nesterov,
        )
    kind = torch.optim.AdamW if isinstance(optimizer, poet.AdamW) else torch.optim.Adam
    return kind(trained, optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay)
