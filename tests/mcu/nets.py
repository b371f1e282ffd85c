"""Small networks for small boards, as a user would write them: `tests/mcu/nets.py:resnet8`."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    avg_pool2d,
    cross_entropy,
    max_pool2d,
    pad,
    relu,
    scaled_dot_product_attention,
)

from poet.zoo.resnet import Basic


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )
        self.second = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.beside = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, maps: Tensor) -> Tensor:
        result: Tensor = torch.relu(self.second(self.first(maps)) + self.beside(maps))
        return result


def resnet8(width: int = 8, size: int = 32, batch: int = 1) -> Any:
    """Eight layers with three residual blocks, for 32×32 images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Residual(width, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    example = (torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,)))
    return model, example, cross_entropy


def separable() -> Any:
    """Depthwise-separable convolutions with ReLU6, an average pool, dropout."""
    torch.manual_seed(0)

    def pair(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
            nn.BatchNorm2d(inputs),
            nn.ReLU6(),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(),
        ]

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        *pair(8, 12, 1),
        *pair(12, 16, 2),
        nn.AvgPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 10),
    )
    example = (torch.randn(2, 1, 24, 24), torch.randint(0, 10, (2,)))
    return model, example, cross_entropy


class Mixed(nn.Module):
    """What the other networks do not have: tanh, sigmoid, concatenation, dilation, groups."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 4, 3, padding=2, dilation=2)
        self.grouped = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2)
        self.gate = nn.Conv2d(6, 6, 1)
        self.pool = nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)
        self.head = nn.Linear(12, 5)
        self.norm = nn.BatchNorm2d(4)
        self.norm.eval()

    def train(self, mode: bool = True) -> "Mixed":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, maps: Tensor) -> Tensor:
        maps = torch.tanh(self.norm(self.wide(maps)))
        maps = self.grouped(maps)
        maps = maps * torch.sigmoid(self.gate(maps))
        pooled = self.pool(maps)
        both = torch.cat([pooled.mean((2, 3)), maps.sum((2, 3)) / 9], 1)
        result: Tensor = self.head(both)
        return result


def mixed() -> Any:
    torch.manual_seed(0)
    example = (torch.randn(2, 2, 9, 9), torch.randint(0, 5, (2,)))
    return Mixed(), example, cross_entropy


def thin_resnet18(width: int = 20) -> Any:
    """ResNet-18 with a tenth of its work: 32×32 images, the ImageNet stem, fixed statistics."""
    torch.manual_seed(0)
    stages = [
        Basic(inputs, outputs, stride)
        for inputs, outputs, stride in (
            (width, width, 1), (width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1),
            (2 * width, 4 * width, 2), (4 * width, 4 * width, 1), (4 * width, 8 * width, 2),
            (8 * width, 8 * width, 1),
        )
    ]  # fmt: skip
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    ).eval()
    example = (torch.randn(1, 3, 32, 32), torch.randint(0, 10, (1,)))
    return model, example, cross_entropy


class Masked(nn.Module):
    """A decoder for padded sequences: attention twice, with masks made in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(6, 16)
        self.first, self.second = nn.Linear(16, 48), nn.Linear(16, 48)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1])
        x = self.tokens(tokens) + self.places(at)
        # What is padded from the start on sees nothing at all: a row of minus infinities.
        sees = torch.ones(len(at), len(at), dtype=torch.bool).tril() & (mask[:, None, None] != 0)
        q, k, v = _heads(self.first(x))
        x = x + scaled_dot_product_attention(q, k, v, sees).transpose(1, 2).flatten(2)
        q, k, v = _heads(self.second(self.norm(x)))
        scores = q @ k.transpose(-1, -2) / 8**0.5
        lowest = torch.finfo(torch.float32).min
        scores = scores.masked_fill(mask[:, None, None] == 0, lowest)
        scores = torch.where(at <= at[:, None], scores, lowest)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        kept = mask.unsqueeze(-1)
        return cross_entropy(self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1)), labels)


def _heads(made: Tensor) -> list[Tensor]:
    return [part.view(*part.shape[:2], 2, 8).transpose(1, 2) for part in made.chunk(3, -1)]


def masked() -> Any:
    torch.manual_seed(0)
    example = (torch.randint(20, (2, 6)), torch.randint(2, (2, 6)), torch.randint(3, (2,)))
    return Masked(), example, None


class Rules(nn.Module):
    """Many masks and whole numbers, each with a weight whose gradient shows what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.linspace(-1, 1, 48))

    def forward(self, whole: Tensor, flags: Tensor, x: Tensor) -> Tensor:
        at, steps = torch.arange(6), torch.arange(-3, 9, 2)
        longer, square = whole * 3 - at, x[:, :, None] * x[:, None]
        rows, columns = torch.arange(2)[:, None], -1 - at
        found = [
            longer == 1, longer != steps, longer < 0, longer <= at[:2, None], longer > steps,
            longer >= -2, x > 0.3, x < x.mean(), x <= longer.float(), x == x, flags == 0,
            flags != (x > 0), ~flags, flags & (x > 0), flags | (longer > 2), flags ^ (whole == 1),
            whole.logical_not(), x.logical_not(), longer.bool(), x.bool(), (4 * x).long(),
            1 - whole, whole.cumsum(1), flags.cumsum(0), longer + whole, longer - flags.long(),
            longer * whole, longer.T.reshape(2, 6), whole.sum(1, keepdim=True) * steps,
            flags.sum() - steps, flags.any(1, keepdim=True), flags.all(), whole[rows, columns],
            x[rows, columns], flags[rows, columns].clone(), longer[0][whole], square.tril(-1)[:, 2],
            square.triu(1).transpose(1, 2)[:, 1], flags.expand(3, 2, 6).tril()[1],
            torch.where(flags, longer, steps), torch.where(x > 0, flags, whole == 1),
            torch.where(flags, x, 0.5), x.masked_fill(flags, -2), longer.masked_fill(flags, 7),
            pad(whole[:, 1:-1], (2, 0), value=-3), torch.cat([longer[:, :2], whole[:, 2:]], 1),
            flags * x + whole - x / longer.sum().clamp(min=1), -longer.T.T + torch.full_like(x, 2),
        ]  # fmt: skip
        return (torch.stack([(x * each).mean() for each in found]) * self.weights).sum()


def rules() -> Any:
    torch.manual_seed(0)
    return Rules(), (torch.randint(2, (2, 6)), torch.rand(2, 6) < 0.5, torch.randn(2, 6)), None


def pixels() -> Any:
    """A class for each pixel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1))
    return model, (torch.randn(2, 2, 7, 5), torch.randint(0, 4, (2, 7, 5))), cross_entropy


def _hub() -> Any:
    """Hugging Face's models, which take seconds to import: only where they are wanted."""
    return import_module("transformers")


def gpt2(layers: int = 1) -> Any:
    """Hugging Face's decoder in small, for padded sequences."""
    hub = _hub()
    torch.manual_seed(0)
    config = hub.GPT2Config(
        n_embd=16, n_head=2, n_layer=layers, vocab_size=20, n_positions=8, bos_token_id=19,
        eos_token_id=19, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    model = hub.GPT2LMHeadModel(config).train()
    model.loss_type = "ForCausalLM"
    tokens = torch.randint(1, 20, (2, 6))
    example = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    return model, example, None


def bert() -> Any:
    """Hugging Face's encoder in small, with dropout and a mask of attention."""
    hub = _hub()
    torch.manual_seed(0)
    config = hub.BertConfig(
        hidden_size=16, num_attention_heads=2, intermediate_size=32, num_hidden_layers=1,
        num_labels=3, vocab_size=20, max_position_embeddings=8, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1, problem_type="single_label_classification",
    )  # fmt: skip
    tokens = torch.randint(1, 20, (2, 6))
    example = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens),
               "labels": torch.randint(3, (2,))}  # fmt: skip
    return hub.BertForSequenceClassification(config).train(), example, None


def wide() -> Any:
    """A layer whose weight has rows of 100 KB, as VGG-16's classifier has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(25_088, 12), nn.ReLU(), nn.Linear(12, 10))
    return model, (torch.randn(1, 25_088), torch.tensor([3])), cross_entropy


class Planes(nn.Module):
    """Planes that tiles cut: convolutions with columns to spare, more padding than they reach over,
    and padding of one kind of row; norms, pools with and without padding, a causal attention over
    many queries, a loss of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.every_other = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.far, self.norm = nn.Conv2d(4, 4, 3, padding=4, bias=False), nn.BatchNorm2d(4)
        self.thin = nn.Conv2d(4, 4, 1, padding=(1, 0))
        self.second, self.fixed = nn.Conv2d(4, 6, 5, stride=2, padding=2), nn.BatchNorm2d(6)
        self.plain = nn.BatchNorm2d(4, affine=False)
        self.pixels, self.head = nn.Conv2d(4, 3, 1), nn.Linear(6, 24)
        self.train()

    def train(self, mode: bool = True) -> "Planes":
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, image: Tensor) -> Tensor:
        maps = relu(self.norm(self.far(relu(self.every_other(relu(self.first(image)))))))
        maps = self.thin(maps)
        scores: Tensor = self.pixels(maps)
        most = max_pool2d(maps, 3, 2, padding=1, ceil_mode=True)
        maps = self.plain(most + avg_pool2d(maps, 3, 2, padding=1, ceil_mode=True))
        maps = avg_pool2d(max_pool2d(maps, (2, 1), stride=1), 2, 1, ceil_mode=True)
        maps = self.fixed(self.second(maps))
        tokens = self.head(maps.reshape(len(maps), -1, 6))
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in tokens.chunk(3, -1))
        sees = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        seen = scaled_dot_product_attention(seen, k, v, sees)
        return scores * (seen * seen).mean()


def planes() -> Any:
    torch.manual_seed(0)
    example = (torch.randn(2, 2, 32, 36), torch.randint(0, 3, (2, 24, 24)))
    return Planes(), example, cross_entropy


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 8)
        self.layers = nn.Sequential(
            nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 5)
        )

    def forward(self, words: Tensor) -> Tensor:
        made: Tensor = self.layers(self.table(words).mean(1))
        return made


class Watched(nn.Module):
    """A model that looks at its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if (x.abs() > 100).any():
            raise ValueError("what was measured is out of range")
        made: Tensor = self.head(relu(self.inner(x)))
        return made


def watched() -> Any:
    torch.manual_seed(0)
    return Watched(), (torch.randn(2, 4), torch.randint(0, 3, (2,))), cross_entropy


def words() -> Any:
    """A table of words, of which a step looks up six."""
    torch.manual_seed(0)
    example = (torch.randint(0, 40, (2, 3)), torch.randint(0, 5, (2,)))
    return Words(), example, cross_entropy


class Adapted(nn.Module):
    """A backbone that nothing changes, with statistics of its own, and a head that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3)
        )
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8).view(8, 1, 1))
        self.head = nn.Linear(8 * 36, 10)
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Adapted":
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, image: Tensor) -> Tensor:
        assert isinstance(self.scale, Tensor)
        made: Tensor = self.head((self.backbone(image) * self.scale).flatten(1))
        return made


def adapted() -> Any:
    torch.manual_seed(0)
    model = Adapted()
    for name, buffer in model.backbone.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            nn.init.uniform_(buffer, 0.5, 2)
    example = (torch.randn(2, 1, 8, 8), torch.randint(0, 10, (2,)))
    return model, example, cross_entropy


def two_convolutions() -> Any:
    """Four channels and more, which kernels take four at a time."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(),
        nn.Conv2d(6, 8, 1), nn.Flatten(), nn.Linear(8 * 36, 4),
    )  # fmt: skip
    example = (torch.randn(1, 4, 8, 8), torch.randint(0, 4, (1,)))
    return model, example, cross_entropy
