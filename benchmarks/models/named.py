"""What people asked for by name: checkpoints, frozen statistics, packed sequences, odd losses."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.models.entry import Entry, Task, hugging_face, words

_BERT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}


def _classified() -> dict[str, Any]:
    return {"input_ids": words(96, 8, 24), "labels": words(7, 8) - 5}


def _checkpointed(model: Any) -> None:
    model.gradient_checkpointing_enable()


def _reentrantly(model: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})


def _with_problem_type(model: Any) -> None:
    model.config.problem_type = "single_label_classification"


class _FrozenStatistics(nn.Module):
    """A backbone whose BatchNorm layers stay in evaluation mode, as detectors are fine-tuned."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            layer
            for _ in range(4)
            for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        ]
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), *blocks)
        self.head = nn.Linear(16, 10)

    def train(self, mode: bool = True) -> "_FrozenStatistics":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x).mean((2, 3)))


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, norm: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 64), nn.Linear(64, 10)
        middle = nn.BatchNorm1d(64) if norm else nn.LayerNorm(64)
        self.part = nn.Sequential(nn.Linear(64, 64), middle, nn.GELU(), nn.Dropout(0.1))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(checkpoint(self.part, self.first(x), use_reentrant=self.reentrant))


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.net(packed)[1][0][-1])


class _Solved(nn.Module):
    """Ridge regression inside the network."""

    def __init__(self, solve: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.features, self.solve = nn.Linear(16, 16), solve

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        made = torch.tanh(self.features(x))
        weights = self.solve(made.T @ made + torch.eye(16), made.T @ y)
        return F.mse_loss(made @ weights, y)


def _rows(model: Callable[[], nn.Module], count: int = 64) -> Callable[[], Task]:
    return lambda: (model(), (torch.randn(count, 16), words(15, count) - 5), F.cross_entropy)


def _frozen() -> Task:
    example = (torch.randn(8, 3, 24, 24), words(15, 8) - 5)
    return _FrozenStatistics(), example, F.cross_entropy


def _packed() -> Task:
    lengths = (torch.randperm(12)[:8] + 1).sort(descending=True).values  # others in each batch
    return _Packed(), (torch.randn(8, 12, 16), lengths, words(15, 8) - 5), F.cross_entropy


def _solved(solve: Callable[..., torch.Tensor]) -> Callable[[], Task]:
    return lambda: (_Solved(solve), (torch.randn(2048, 16), torch.randn(2048, 4)), None)


class _Aligned(nn.Module):
    """Frames and targets of lengths that come with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 12))

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, frames: torch.Tensor, targets: torch.Tensor
    ) -> Any:
        return F.ctc_loss(self.net(x).log_softmax(-1), y, frames, targets)


def _aligned() -> Task:
    lengths = (words(29, 32) - 5 + 24, words(11, 32) - 4)
    return _Aligned(), (torch.randn(48, 32, 16), words(16, 32, 6) - 4, *lengths), None


def _uncertain() -> Task:
    def loss(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(made[:, :4], wanted, F.softplus(made[:, 4:]))

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    return model, (torch.randn(2048, 16), torch.randn(2048, 4)), loss


def _own(name: str, make: Callable[[], Task]) -> Entry:
    return Entry(name, "by name", "torch", make)


ENTRIES = (
    hugging_face(
        "by name",
        "BertForSequenceClassification",
        _classified,
        **_BERT,
        prepare=_checkpointed,
        suffix=" (gradient checkpointing)",
    ),
    hugging_face(
        "by name",
        "BertForSequenceClassification",
        _classified,
        **_BERT,
        prepare=_reentrantly,
        suffix=" (reentrant checkpointing)",
    ),
    hugging_face(
        "by name",
        "DebertaForSequenceClassification",
        _classified,
        **_BERT,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        prepare=_with_problem_type,
        suffix=" (problem_type said)",
    ),
    _own("BatchNorm in evaluation mode", _frozen),
    _own("checkpoint(use_reentrant=False)", _rows(lambda: _Checkpointed(False, False))),
    _own("checkpoint(use_reentrant=True)", _rows(lambda: _Checkpointed(True, False))),
    _own("checkpoint around BatchNorm", _rows(lambda: _Checkpointed(False, True), 512)),
    _own("packed LSTM", _packed),
    _own("linalg.solve", _solved(torch.linalg.solve)),
    _own("linalg.solve_ex", _solved(lambda a, b: torch.linalg.solve_ex(a, b).result)),
    _own("ctc_loss", _aligned),
    _own("gaussian_nll_loss", _uncertain),
)
