"""Random small models trained for a few steps, with random changes of the model between them.

Each is trained three ways from the same weights and seeds: by eager PyTorch, by `poet.Trainer`, and
by `poet.wrap` in a loop of its own. Losses, parameters and buffers must be equal bit for bit, or
POET must refuse: never another result.
"""

import contextlib
import copy
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import poet
from tests.torch.eager import same_bits

WIDTH = 8
GAIN = 1.0
"""A global that forward passes name."""


class Scaled(nn.Module):
    """A branch with attributes, a constant tensor, a global, and perhaps a residual."""

    def __init__(self, inner: nn.Module, residual: bool) -> None:
        super().__init__()
        self.inner, self.residual = inner, residual
        self.scale, self.seen = 1.0, [0]
        self.constant = torch.linspace(0.5, 1.5, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.inner(x) * self.scale * GAIN + self.constant
        return made + x if self.residual else torch.Tensor(made)


class Attends(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made, _ = self.attention(x[:, None], x[None].expand(len(x), -1, -1), x[None].expand(
            len(x), -1, -1), need_weights=False)  # fmt: skip
        return torch.Tensor(made[:, 0])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up.weight = self.down.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.up(torch.tanh(self.down(x))))


def layer(rng: Random) -> nn.Module:
    make: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(WIDTH, WIDTH, bias=rng.random() < 0.8),
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.BatchNorm1d(WIDTH, momentum=rng.choice((0.1, 0.2, 0.3, None))),
        lambda: nn.Dropout(rng.choice((0.1, 0.3, 0.5))),
        lambda: rng.choice((nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU))(),
        lambda: nn.ReLU(inplace=True),
        lambda: Scaled(nn.Linear(WIDTH, WIDTH), rng.random() < 0.5),
        lambda: Scaled(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)), True),
        lambda: Attends(rng.choice((0.0, 0.2))),
        Tied,
    ]
    return rng.choice(make)()


class Classes(nn.Module):
    """A head for cross entropy."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.head(self.body(x)))


class Program(NamedTuple):
    """A model, its loss, its optimizer, and what happens before each step."""

    model: nn.Module
    loss: Callable[..., torch.Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: list[tuple[torch.Tensor, torch.Tensor]]
    changes: list["Change"]
    ram: str | None
    paged: bool


class Change(NamedTuple):
    """What happens to a model and its optimizer before a step, and what is around that step."""

    name: str
    do: Callable[[nn.Module, torch.optim.Optimizer], None]
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def program(seed: int) -> Program:
    rng = Random(seed)
    torch.manual_seed(seed)
    first = nn.Linear(WIDTH, WIDTH)  # so that nothing changes the batch in place
    body = nn.Sequential(first, *(layer(rng) for _ in range(rng.randint(1, 5))))
    classes = rng.random() < 0.4
    model: nn.Module = Classes(body) if classes else body
    if rng.random() < 0.15:
        model.eval()
    if rng.random() < 0.2:
        first.requires_grad_(False)
        body.append(nn.Linear(WIDTH, WIDTH))
    size = rng.randint(3, 6)
    sizes = [size if n == 0 or rng.random() < 0.8 else rng.randint(3, size) for n in range(5)]
    batches = [
        (torch.randn(n, WIDTH), torch.randint(0, 3, (n,)) if classes else torch.randn(n, WIDTH))
        for n in sizes
    ]
    changes = [change(rng, i) for i in range(len(batches))]
    return Program(
        model,
        F.cross_entropy if classes else F.mse_loss,
        optimizer(rng),
        batches,
        changes,
        rng.choice((None, None, "100%", "90%")),
        rng.random() < 0.3,
    )


def optimizer(rng: Random) -> Callable[[nn.Module], torch.optim.Optimizer]:
    kind, rate, decay = rng.randrange(4), rng.choice((0.1, 0.01)), rng.choice((0.0, 0.05))

    def made(model: nn.Module) -> torch.optim.Optimizer:
        groups = list(model.parameters())
        if kind == 0:
            return torch.optim.SGD(groups, lr=rate, weight_decay=decay)
        if kind == 1:
            return torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)
        if kind == 2:
            return torch.optim.Adam(groups, lr=rate, weight_decay=decay)
        return torch.optim.AdamW(groups, lr=rate)

    return made


def change(rng: Random, step: int) -> Change:
    """One of the ways in which people change a model between two steps; often none."""
    if step == 0 or rng.random() < 0.35:
        return Change("nothing", lambda m, o: None)
    where, number = rng.randrange(1000), rng.choice((0.0, 0.25, 0.6, 1.0))

    def part(model: nn.Module, kind: Any = nn.Module) -> nn.Module | None:
        found = [each for each in model.modules() if isinstance(each, kind)]
        return found[where % len(found)] if found else None

    def mode(model: nn.Module, _: Any) -> None:
        model.train(number < 0.5)

    def mode_of_part(model: nn.Module, _: Any) -> None:
        found = part(model)
        assert found is not None
        found.train(not found.training)

    def frozen(model: nn.Module, _: Any) -> None:
        each = list(model.parameters())[where % len(list(model.parameters()))]
        each.requires_grad_(not each.requires_grad)
        each.grad = None

    def dropout(model: nn.Module, _: Any) -> None:
        found = part(model, nn.Dropout)
        if found is not None:
            found.p = number if number < 1 else 0.9  # type: ignore[assignment]

    def attribute(model: nn.Module, _: Any) -> None:
        found = part(model, Scaled)
        if found is not None:
            found.scale = 1 + number  # type: ignore[assignment]

    def constant(model: nn.Module, _: Any) -> None:
        found = part(model, Scaled)
        if isinstance(found, Scaled):
            found.constant.mul_(1 + number)

    def layer_replaced(model: nn.Module, _: Any) -> None:
        found = part(model, nn.Sequential)
        if isinstance(found, nn.Sequential):
            for at, each in enumerate(found):
                if isinstance(each, nn.ReLU | nn.GELU | nn.Tanh | nn.SiLU):
                    found[at] = nn.Tanh() if isinstance(each, nn.ReLU) else nn.ReLU()

    def hook(model: nn.Module, _: Any) -> None:
        found = part(model, nn.Linear)
        assert found is not None
        found.register_forward_hook(lambda module, given, made: made * 1.5)

    def gain(_: nn.Module, __: Any) -> None:
        global GAIN
        GAIN = 1 + number

    def rate(_: nn.Module, given: torch.optim.Optimizer) -> None:
        given.param_groups[0]["lr"] *= 0.5

    def decay(_: nn.Module, given: torch.optim.Optimizer) -> None:
        given.param_groups[0]["weight_decay"] = 0.02 * number

    def unrelated(model: nn.Module, _: Any) -> None:
        found = part(model, Scaled)
        if isinstance(found, Scaled):
            found.seen.append(step)
        model.epoch = step  # type: ignore[assignment]

    def values(model: nn.Module, _: Any) -> None:
        with torch.no_grad():
            next(iter(model.parameters())).mul_(0.5)

    if rng.random() < 0.12:
        cast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
        return Change("autocast", lambda m, o: None, cast)
    do = rng.choice(
        (mode, mode, mode_of_part, mode_of_part, frozen, frozen, dropout, dropout, attribute,
         constant, layer_replaced, hook, gain, rate, decay, unrelated, values)
    )  # fmt: skip
    return Change(do.__name__, do)


class Outcome(NamedTuple):
    """How a training ended: `same`, `refused` (with the words), `warned`, or `different`."""

    kind: str
    words: str = ""


def trained(made: Program, way: str) -> Outcome:
    """Train by eager PyTorch and by one of POET's ways, and compare."""
    global GAIN
    folder = tempfile.mkdtemp()
    eager, ours = copy.deepcopy(made.model), copy.deepcopy(made.model)
    start = GAIN
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            expected, failure = _steps(eager, made, lambda m, o: _loop(m, m, o, made))
            GAIN = start
            try:
                found, theirs = _steps(ours, made, lambda m, o: _poet(m, o, made, way, folder))
            except poet.PoetError as error:
                return Outcome("refused", str(error))
        told = [str(each.message) for each in heard if "bits may differ" in str(each.message)]
        same = len(expected) == len(found) and all(map(same_bits, expected, found))
        if failure is not None or theirs is not None:
            same = same and type(failure) is type(theirs)
        same = same and all(
            same_bits(value, ours.state_dict()[name]) for name, value in eager.state_dict().items()
        )
        if same:
            return Outcome("same")
        names = [each.name for each in made.changes]
        return Outcome("warned" if told else "different", f"{names}: {expected} and {found}")
    finally:
        GAIN = start
        shutil.rmtree(folder, ignore_errors=True)


Runs = Iterator[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]


def _steps(
    model: nn.Module, made: Program, ways: Callable[[nn.Module, torch.optim.Optimizer], Any]
) -> tuple[list[torch.Tensor], Exception | None]:
    """The losses of all steps, up to one that fails otherwise than by our refusal."""
    given = made.optimizer(model)
    losses: list[torch.Tensor] = []
    with ways(model, given) as run:
        for n, ((x, y), each) in enumerate(zip(made.batches, made.changes, strict=True)):
            with getattr(run, "unpaged", contextlib.nullcontext)():
                each.do(model, given)
            torch.manual_seed(n)
            try:
                with each.around():
                    losses.append(run(x, y).detach().clone())
            except poet.PoetError:
                raise
            except Exception as error:
                return losses, error
    return losses, None


@contextlib.contextmanager
def _loop(
    called: Any, model: nn.Module, given: torch.optim.Optimizer, made: Program
) -> Iterator[Any]:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        given.zero_grad()
        loss = made.loss(called(x), y)
        with torch.autocast("cpu", enabled=False):
            loss.backward()  # type: ignore[no-untyped-call]
        given.step()
        return loss

    yield run


@contextlib.contextmanager
def _poet(
    model: nn.Module, given: torch.optim.Optimizer, made: Program, way: str, folder: str
) -> Iterator[Any]:
    if way == "wrap":
        small = poet.wrap(model, example=(made.batches[0][0],), ram=made.ram, time_limit=0.5)
        with _loop(small, model, given, made) as run:
            yield run
        return
    paged: dict[str, Any] = {"store": folder, "params": "paged"} if made.paged else {}
    trainer = poet.Trainer(
        model,
        made.loss,
        given,
        example=made.batches[0],
        ram=None if made.paged else made.ram,
        time_limit=0.5,
        cache=False,
        **paged,
    )
    with trainer:
        run = lambda x, y: trainer.step(x, y)  # noqa: E731
        run.unpaged = trainer.unpaged  # type: ignore[attr-defined]
        yield run
