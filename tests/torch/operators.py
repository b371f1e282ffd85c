"""Small models of every kind of layer and loss that people train, to watch each operator in."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Task = tuple[nn.Module, Any, Callable[..., torch.Tensor] | None]
"""Model, example and loss."""

_IMAGE = (2, 4, 16, 16)
_ROWS = (32, 16)
_SEQUENCE = (12, 5, 16)


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Recurrent(nn.Module):
    """A recurrent network and a layer that reads all its steps."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.net = getattr(nn, kind)(16, 24, **options)
        width = (options.get("proj_size") or 24) * (1 + bool(options.get("bidirectional")))
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.net(x)[0])
        return made


class Attention(nn.Module):
    """Queries, keys and values of one sequence, and what is made of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.project, self.options = nn.Linear(16, 48), options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).view(12, 5, 4, 12).permute(1, 2, 0, 3).chunk(3, -1)
        return F.scaled_dot_product_attention(*heads, **self.options)


class SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = nn.MultiheadAttention(16, 4, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.net(x, x, x)[0]
        return made


class Words(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(16, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.table(words))
        return made


def weighted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that adds no operators of interest, whatever the output's shape."""
    return (output * output).mean() + 0 * target.sum()


def _recurrent(kind: str, **options: Any) -> Callable[[], Task]:
    def made() -> Task:
        shape = (5, 12) if options.get("batch_first") else (12, 5)
        example = (torch.randn(*shape, 16), torch.randn(*shape, 4))
        return Recurrent(kind, **options), example, F.mse_loss

    return made


def _loss(loss: Callable[..., torch.Tensor], target: str = "rows") -> Callable[[], Task]:
    def made() -> Task:
        targets = {
            "rows": torch.randn(_ROWS),
            "shares": torch.rand(_ROWS),
            "signs": torch.randn(_ROWS).sign(),
            "classes": torch.randint(0, 16, (32,)),
            "labels": torch.randint(0, 16, _ROWS),
        }
        return nn.Linear(16, 16), (torch.randn(_ROWS), targets[target]), loss

    return made


def _image(layer: Callable[[], nn.Module]) -> Callable[[], Task]:
    def made() -> Task:
        model = nn.Sequential(nn.Conv2d(4, 4, 1), layer())
        return model, (torch.randn(_IMAGE), torch.ones(1)), weighted

    return made


def _function(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Task]:
    return _image(lambda: Apply(function))


def _sequence(layer: Callable[[], nn.Module]) -> Callable[[], Task]:
    return lambda: (layer(), (torch.randn(_SEQUENCE), torch.ones(1)), weighted)


def _words(table: Callable[[], nn.Module]) -> Callable[[], Task]:
    return lambda: (
        Words(table()),
        (torch.randint(0, 50, (4, 12)), torch.ones(1)),
        weighted,
    )


_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"batch_first": True},
    {"bidirectional": True, "num_layers": 2},
    {"dropout": 0.5, "num_layers": 2},
)
RECURRENT = {
    " ".join([kind, *options]): _recurrent(kind, **options)
    for kind in ("RNN", "GRU", "LSTM")
    for options in _OPTIONS
} | {"LSTM proj_size": _recurrent("LSTM", proj_size=6)}
LOSSES = {
    "mse": _loss(F.mse_loss),
    "mse sum": _loss(nn.MSELoss(reduction="sum")),
    "l1": _loss(F.l1_loss),
    "smooth l1": _loss(F.smooth_l1_loss),
    "huber": _loss(F.huber_loss),
    "bce": _loss(lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), "shares"),
    "bce of logits": _loss(F.binary_cross_entropy_with_logits, "shares"),
    "kl": _loss(lambda x, y: F.kl_div(x.log_softmax(1), y, reduction="batchmean"), "shares"),
    "cross entropy": _loss(F.cross_entropy, "classes"),
    "smoothed cross entropy": _loss(nn.CrossEntropyLoss(label_smoothing=0.1), "classes"),
    "soft margin": _loss(F.soft_margin_loss, "signs"),
    "hinge": _loss(F.hinge_embedding_loss, "signs"),
    "multi margin": _loss(F.multi_margin_loss, "classes"),
    "multi-label margin": _loss(F.multilabel_margin_loss, "labels"),
    "multi-label soft margin": _loss(F.multilabel_soft_margin_loss, "shares"),
    "poisson": _loss(F.poisson_nll_loss, "shares"),
    "triplet": _loss(lambda x, y: F.triplet_margin_loss(x, y, -y)),
}
WORDS = {
    "embedding": _words(lambda: nn.Embedding(50, 16)),
    "embedding with padding": _words(lambda: nn.Embedding(50, 16, padding_idx=0)),
    "embedding by frequency": _words(lambda: nn.Embedding(50, 16, scale_grad_by_freq=True)),
    "bag sum": _words(lambda: nn.EmbeddingBag(50, 16, mode="sum")),
    "bag mean": _words(lambda: nn.EmbeddingBag(50, 16, mode="mean")),
    "bag max": _words(lambda: nn.EmbeddingBag(50, 16, mode="max")),
}
ATTENTION = {
    "attention": _sequence(Attention),
    "causal attention": _sequence(lambda: Attention(is_causal=True)),
    "masked attention": _sequence(lambda: Attention(attn_mask=torch.zeros(12, 12))),
    "attention with dropout": _sequence(lambda: Attention(dropout_p=0.1)),
    "multi-head attention": _sequence(SelfAttention),
    "multi-head attention with dropout": _sequence(lambda: SelfAttention(dropout=0.1)),
    "encoder": _sequence(lambda: nn.TransformerEncoderLayer(16, 4, 32)),
}
IMAGES = {
    "max pool": _image(lambda: nn.MaxPool2d(3, 2, 1)),
    "average pool": _image(lambda: nn.AvgPool2d(2)),
    "adaptive average pool": _image(lambda: nn.AdaptiveAvgPool2d(3)),
    "adaptive max pool": _image(lambda: nn.AdaptiveMaxPool2d(3)),
    "power pool": _image(lambda: nn.LPPool2d(2, 2)),
    "fractional pool": _image(lambda: nn.FractionalMaxPool2d(2, output_size=8)),
    "nearest": _image(lambda: nn.Upsample(scale_factor=2)),
    "bilinear": _image(lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    "bicubic": _image(lambda: nn.Upsample(scale_factor=2, mode="bicubic")),
    "unfold": _image(lambda: nn.Unfold(3)),
    "fold": _image(lambda: nn.Sequential(nn.Unfold(2, stride=2), nn.Fold((16, 16), 2, stride=2))),
    "reflection": _image(lambda: nn.ReflectionPad2d(2)),
    "circular": _image(lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
    "batch norm": _image(lambda: nn.BatchNorm2d(4)),
    "group norm": _image(lambda: nn.GroupNorm(2, 4)),
    "instance norm": _image(lambda: nn.InstanceNorm2d(4, affine=True)),
    "layer norm": _image(lambda: nn.LayerNorm([4, 16, 16])),
    "rms norm": _image(lambda: nn.RMSNorm([16])),
    "local response": _image(lambda: nn.LocalResponseNorm(2)),
    "transposed convolution": _image(lambda: nn.ConvTranspose2d(4, 6, 3, 2)),
    "depthwise convolution": _image(lambda: nn.Conv2d(4, 8, 3, groups=4)),
    "dilated convolution": _image(lambda: nn.Conv2d(4, 8, 3, dilation=2, padding="same")),
    "strided convolution": _image(lambda: nn.Conv2d(4, 8, 5, stride=2)),
    "1d convolution": _image(lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 4, 3))),
    "3d convolution": _image(
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv3d(1, 2, 3, padding=1))
    ),
    "dropout": _image(lambda: nn.Dropout(0.3)),
    "channel dropout": _image(lambda: nn.Dropout2d(0.3)),
    "alpha dropout": _image(lambda: nn.AlphaDropout(0.3)),
    "gated": _image(lambda: nn.GLU(1)),
    "prelu": _image(nn.PReLU),
    "rrelu": _image(nn.RReLU),
    "gelu": _image(nn.GELU),
    "log-sigmoid": _image(nn.LogSigmoid),
    "softmax": _image(lambda: nn.Softmax(1)),
}
FUNCTIONS = {
    "cumsum": _function(lambda x: x.cumsum(-1)),
    "cumprod": _function(lambda x: x.cumprod(1)),
    "sort": _function(lambda x: x.sort(-1)[0]),
    "topk": _function(lambda x: x.topk(3, -1)[0]),
    "median": _function(lambda x: x.median(1)[0]),
    "kthvalue": _function(lambda x: x.kthvalue(2, 1)[0]),
    "prod": _function(lambda x: x.prod(1)),
    "var": _function(lambda x: x.var((2, 3))),
    "logsumexp": _function(lambda x: x.logsumexp(1)),
    "einsum": _function(lambda x: torch.einsum("bchw,bcwk->bchk", x, x)),
    "cdist": _function(lambda x: torch.cdist(x, x)),
    "cat": _function(lambda x: torch.cat([x, x], 1)),
    "where": _function(lambda x: torch.where(x > 0, x, -x)),
    "roll": _function(lambda x: x.roll(1, 2)),
    "flip": _function(lambda x: x.flip(2)),
    "index": _function(lambda x: x[:, torch.tensor([0, 2])]),
    "gather": _function(lambda x: x.gather(1, torch.zeros(2, 2, 16, 16, dtype=torch.long))),
    "repeat": _function(lambda x: x.repeat_interleave(2, 1)),
    "scatter": _function(
        lambda x: torch.zeros(_IMAGE).scatter_add(1, torch.zeros(_IMAGE, dtype=torch.long), x)
    ),
    "index add": _function(lambda x: torch.zeros(_IMAGE).index_add(1, torch.arange(4), x)),
    "singular values": _function(torch.linalg.svdvals),
    "qr": _function(lambda x: torch.linalg.qr(x)[0]),
    "fourier": _function(lambda x: torch.fft.rfft(x).abs()),
    "grid": _function(lambda x: F.grid_sample(x, torch.zeros(2, 8, 8, 2), align_corners=False)),
    "gumbel": _function(F.gumbel_softmax),
    "norm": _function(F.normalize),
}
ALL = RECURRENT | LOSSES | WORDS | ATTENTION | IMAGES | FUNCTIONS
VALUES_MATTER = {"bag max"}
"""Where a kernel takes more for some values than for others, which no plan can know."""
