"""Models as people have them: what their forward pass does besides computing, and what it asks.

One small model of each family is trained within its RAM here; `python -m benchmarks models` has
many more.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from benchmarks.models import audio, named, text, vision
from benchmarks.models.trial import tried
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import poet
from poet.tracer.certain_draws import CertainDraws
from tests.torch.eager import differences, loss_of, same_bits

X, Y = torch.randn(8, 8), torch.randn(8, 8)
mse = F.mse_loss


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(x)


# One of each family

FAMILIES = {
    entry.name: entry
    for entry in (*text.ENTRIES, *vision.ENTRIES, *audio.ENTRIES, *named.ENTRIES)
    if entry.name
    in (
        "BertForSequenceClassification",  # guesses its loss
        "OPTForCausalLM",  # draws for layers that are never left out
        "MixtralForCausalLM",  # groups rows by expert
        "Wav2Vec2ForSequenceClassification",  # installs hooks when it is first called
        "checkpoint(use_reentrant=False)",
        "BatchNorm in evaluation mode",
        "ctc_loss",  # lengths are others in each step
    )
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore::poet.PoetWarning")
def test_families(name: str) -> None:
    outcome = tried(FAMILIES[name], time_limit=1)
    assert (outcome.verdict, outcome.said) == ("bit-equal", "")
    assert outcome.peak_bytes is not None
    assert outcome.budget_bytes is not None
    assert outcome.peak_bytes <= outcome.budget_bytes


# What only the first pass sets


class Guesses(nn.Module):
    """Settles on a loss when it first sees labels, as classifiers of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.config: dict[str, Any] = {"kind": None, "calls": 0}

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if self.config["kind"] is None:
            self.config["kind"] = "regression"
        return mse(self.fc(x), y)


class Grows(Base):
    """Twice as much at its first call."""

    seen: bool | None = None

    def forward(self, x: torch.Tensor) -> Any:
        made = self.fc(x) if self.seen else self.fc(x) * 2
        self.seen = True
        return made


class Hooks(Base):
    """Installs a hook for itself when it is first called."""

    hooked = False

    def forward(self, x: torch.Tensor) -> Any:
        if not self.hooked:
            self.hooked = True
            self.fc.register_forward_hook(lambda module, inputs, made: made * 3)
        return self.fc(x)


def test_what_the_first_pass_settles_stays_as_that_pass_leaves_it() -> None:
    model = Guesses()
    program = poet.capture(model, example=(X, Y), cache=False)
    assert model.config == {"kind": "regression", "calls": 0}
    again = poet.capture(model, example=(X, Y), cache=False)
    assert again.fingerprint == program.fingerprint
    assert not differences(Guesses(), (X, Y), None, poet.AdamW(lr=0.1))
    assert not differences(Hooks(), (X, Y), mse, poet.SGD(lr=0.1))


def test_a_first_pass_that_computes_something_else_is_refused() -> None:
    model = Grows()
    with pytest.raises(poet.PoetError, match=r"sets seen, and computes something else.*Run the mo"):
        poet.capture(model, mse, example=(X, Y), cache=False)
    assert "seen" not in vars(model)
    model(X)  # the way out
    assert not differences(model, (X, Y), mse, poet.SGD(lr=0.1))


def test_a_capture_that_fails_settles_nothing() -> None:
    class Fails(Guesses):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            loss: torch.Tensor = super().forward(x, y)
            return loss if loss > 0 else -loss

    model = Fails()
    with pytest.raises(poet.PoetError, match="no fixed graph"):
        poet.capture(model, example=(X, Y), cache=False)
    assert model.config["kind"] is None


# Draws


class LayerDrop(nn.Module):
    def __init__(self, rate: float, ask: Callable[[torch.Tensor, float], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.drop, self.rate, self.ask = nn.Dropout(0.3), rate, ask

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            if not self.ask(torch.rand([]), self.rate):
                x = self.drop(torch.tanh(layer(x)))
        return x


def test_a_draw_that_cannot_matter_is_made_and_asked_nothing() -> None:
    for ask in (torch.lt, lambda draw, rate: draw < rate, lambda draw, rate: not draw >= rate):
        assert not differences(LayerDrop(0.0, ask), (X, Y), mse, poet.AdamW(lr=0.1))
    with pytest.raises(
        poet.PoetError, match=r"test_coverage.py:\d+: if not self.ask.*layerdrop=0.0"
    ):
        poet.capture(LayerDrop(0.1, torch.lt), mse, example=(X, Y), cache=False)


def test_what_is_certain_of_a_draw_holds_for_every_draw() -> None:
    draws = torch.tensor([0.0, 0.25, 1 - 2**-24])
    certain = 0
    for than in (-1, -0.0, 0, 0.25, 1.0, 1.5):
        for ask in (torch.lt, torch.le, torch.gt, torch.ge):
            true = {bool(ask(draw, than)) for draw in draws}
            with CertainDraws() as known:
                asked = ask(torch.rand([]), than)
            answer = known._answers.get(id(asked))
            if answer is not None:
                certain += 1
                assert true == {answer[1]}
    assert certain == 14


# What cannot be captured, and what can instead


class Part(nn.Module):
    def __init__(self, *layers: nn.Module, reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.part = nn.Linear(8, 8), nn.Sequential(*layers)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.part, self.first(x), use_reentrant=self.reentrant)


class SharedPart(Base):
    """Uses one layer in a checkpoint and outside of it."""

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.fc, self.fc(x), use_reentrant=True)


class KeywordPart(Base):
    """Hands a checkpoint what it does not see."""

    def forward(self, x: torch.Tensor) -> Any:
        made, more = self.fc(x), self.fc(x + 1)
        return checkpoint(lambda given: given * more, made, use_reentrant=True)


class Asks(Base):
    def __init__(self, ask: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.ask = ask

    def forward(self, x: torch.Tensor) -> Any:
        self.ask(x)
        return self.fc(x)


def asking(ask: Callable[[torch.Tensor], None]) -> nn.Module:
    """Asks what it has computed, which no batch answers."""

    class Inside(Asks):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(self.fc(x))

    return Inside(ask)


def caught(x: torch.Tensor) -> None:
    try:
        if (x > 1e6).any():
            raise ValueError
    except ValueError:
        x.mul_(2)


def warned(x: torch.Tensor) -> None:
    if (x > 1e6).any():
        print("large")
        raise ValueError


def compared(x: torch.Tensor) -> None:
    if max((x > 1e6).any(), (x < -1e6).any()):
        raise ValueError


def undecided(x: torch.Tensor) -> None:
    if (x > 1e6).any() and (x < 0).any():
        raise ValueError


def solving(solve: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    class Solves(Base):
        def forward(self, x: torch.Tensor) -> Any:
            made = self.fc(x)
            return solve(made @ made.T + 8 * torch.eye(8))

    return Solves()


def small_deberta() -> nn.Module:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.DebertaV2Config(vocab_size=32, intermediate_size=16, **sizes)
    kind: Any = transformers.DebertaV2ForSequenceClassification
    made: nn.Module = kind(config)
    return made


def nll(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.gaussian_nll_loss(made[:, :4], wanted[:, :4], made[:, 4:].exp())


def ctc(lengths: Any) -> Callable[..., torch.Tensor]:
    targets = torch.randint(1, 8, (2, 3))

    def loss(made: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        told = made.view(4, 2, 8).log_softmax(-1)
        return F.ctc_loss(told, targets, *lengths)

    return loss


class Aligned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor, frames: Any, targets: Any) -> Any:
        made = self.fc(x).log_softmax(-1)
        without = F.ctc_loss(made, y, frames, targets, zero_infinity=True)
        return F.ctc_loss(made, y, frames, targets, reduction="sum") + without


ALIGNED = (
    torch.randn(5, 2, 8), torch.randint(1, 8, (2, 3)), torch.tensor([4, 5]), torch.tensor([2, 2]),
)  # fmt: skip
IDS = {"input_ids": torch.randint(0, 32, (2, 4)), "labels": torch.tensor([0, 1])}
LENGTHS = (torch.tensor([4, 3]), torch.tensor([3, 1]))
REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, Any, str]] = {
    "shared": (SharedPart, (X, Y), mse, r"outside of it as well.*use_reentrant=False"),
    "by keyword": (KeywordPart, (X, Y), mse, r"by position.*use_reentrant=False"),
    "cholesky": (lambda: solving(torch.cholesky), (X, Y), mse, r"looks .*cholesky_ex"),
    "caught": (lambda: asking(caught), (X, Y), mse, "no fixed graph"),
    "more than an error": (lambda: asking(warned), (X, Y), mse, "no fixed graph"),
    "asked by another": (lambda: asking(compared), (X, Y), mse, "no fixed graph"),
    "not the last": (lambda: asking(undecided), (X, Y), mse, "no fixed graph"),
    "ctc": (Base, (X, Y), ctc(LENGTHS), r"test_coverage.*poet.wrap"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("which", REFUSED)
def test_refusals_say_what_to_do(which: str) -> None:
    make, example, loss, message = REFUSED[which]
    with pytest.raises(poet.PoetError, match=message):
        poet.capture(make(), loss, poet.SGD(), example=example, cache=False)


def said_deberta() -> Any:
    model: Any = small_deberta()
    model.config.problem_type = "single_label_classification"
    return model


INSTEAD: dict[str, tuple[Callable[[], nn.Module], Any, Any]] = {
    "reentrant": (
        lambda: Part(nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.2), reentrant=True), (X, Y), mse,
    ),
    "not reentrant": (lambda: Part(nn.Tanh(), nn.Dropout(0.2)), (X, Y), mse),
    "statistics outside": (lambda: nn.Sequential(Part(nn.Tanh()), nn.BatchNorm1d(8)), (X, Y), mse),
    "inv": (lambda: solving(torch.linalg.inv), (X, Y), mse),
    "solve": (lambda: solving(lambda a: torch.linalg.solve(a, a @ a)), (X, Y), mse),
    "cholesky": (lambda: solving(torch.linalg.cholesky), (X, Y), mse),
    "inv_ex": (lambda: solving(lambda a: torch.linalg.inv_ex(a).inverse), (X, Y), mse),
    "solve_ex": (lambda: solving(lambda a: torch.linalg.solve_ex(a, a).result), (X, Y), mse),
    "cholesky_ex": (lambda: solving(lambda a: torch.linalg.cholesky_ex(a).L), (X, Y), mse),
    "labels": (said_deberta, IDS, None),
    "gaussian": (Base, (X, Y), nll),
    "ctc": (Aligned, ALIGNED, None),
    "flat ctc": (Aligned, (ALIGNED[0], ALIGNED[1].flatten()[:4], *ALIGNED[2:]), None),
    "impossible ctc": (Aligned, (*ALIGNED[:2], torch.tensor([1, 4]), ALIGNED[3]), None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script", "ignore::poet.PoetWarning")
@pytest.mark.parametrize("which", INSTEAD)
def test_the_ways_out_are_ways_out(which: str) -> None:
    make, example, loss = INSTEAD[which]
    assert not differences(make(), example, loss, poet.AdamW(lr=0.01), steps=2)


class Experts(nn.Module):
    """Rows sorted by expert, and a matrix for each."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.router, self.matrices = nn.Linear(8, 3), nn.Parameter(torch.randn(3, 8, wide))

    def forward(self, x: torch.Tensor) -> Any:
        share, expert = self.router(x).softmax(-1).max(-1)
        expert, order = expert.sort()
        ends = torch.histc(expert.float(), 3, 0, 2).cumsum(0).int()
        return F.grouped_mm(x[order], self.matrices, offs=ends) * share[order, None]


def test_grouped_products_in_float32(tmp_path: Path) -> None:
    model = Experts(12)
    plain = copy.deepcopy(model)
    batches = [(torch.randn(16, 8), torch.randn(16, 12)) for _ in range(2)]
    assert not differences(copy.deepcopy(model), batches[0], mse, poet.AdamW(lr=0.1))
    update = torch.optim.SGD(plain.parameters(), lr=0.1)
    options: dict[str, Any] = {"ram": "200 KB", "store": tmp_path, "time_limit": 1, "cache": False}
    with poet.Trainer(model, mse, poet.SGD(lr=0.1), example=batches[0], **options) as trainer:
        for batch in batches:  # rows go to other experts in each
            update.zero_grad()
            loss = loss_of(plain, batch, mse)
            loss.backward()  # type: ignore[no-untyped-call]
            update.step()
            assert same_bits(trainer.step(*batch), loss)
    assert same_bits(model.matrices, plain.matrices)


# Checks that only end the step


def asserted(x: torch.Tensor) -> None:
    assert not (x > 100).any().item(), "too large"


def refused(x: torch.Tensor) -> None:
    limit = 100
    if limit is not None and bool((x.abs() > limit).any()):
        raise ValueError(f"not within {limit}")
    if not (x == x).all() or (x > limit).all():
        raise ValueError("not a number")


def asserted_later(x: torch.Tensor) -> None:
    torch._assert_async((x < 100).all(), "too large")


def inverted(x: torch.Tensor) -> None:
    torch.linalg.inv(x)


LARGE, NOT_A_NUMBER = torch.full((8, 8), 101.0), torch.full((8, 8), float("nan"))
CHECKED: dict[str, tuple[nn.Module, Any, torch.Tensor, type[Exception], str]] = {
    "assert": (Asks(asserted), mse, LARGE, poet.PoetError, r"assert not \(x > 100\).*too large"),
    "if": (Asks(refused), mse, LARGE, poet.PoetError, r"test_coverage.py:\d+: a check .*bool"),
    "elif": (Asks(refused), mse, NOT_A_NUMBER, poet.PoetError, "not a number"),
    "async": (Asks(asserted_later), mse, LARGE, poet.PoetError, "too large"),
    "singular": (Asks(inverted), mse, torch.zeros(8, 8), RuntimeError, "linalg.inv"),
}


@pytest.mark.parametrize("which", CHECKED)
def test_a_check_ends_the_step_at_a_bad_batch_and_only_then(which: str, tmp_path: Path) -> None:
    model, loss, bad, kind, message = CHECKED[which]
    assert not differences(copy.deepcopy(model), (X, Y), loss, poet.AdamW(lr=0.1), steps=2)
    options: dict[str, Any] = {"ram": "300 KB", "store": tmp_path, "time_limit": 1, "cache": False}
    with poet.Trainer(model, loss, poet.SGD(lr=0.1), example=(X, Y), **options) as trainer:
        trainer.step(X, Y)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(kind, match=message):
            trainer.step(bad, Y)
        assert all(same_bits(value, before[name]) for name, value in model.state_dict().items())
