"""Words, codes, and whatever is compared with another: embeddings, transformers, pairs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.small_networks.network import Network, classes


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(40, 16, padding_idx=0), nn.Linear(16, 3)

    def forward(self, words: Tensor) -> Tensor:
        there = (words != 0).unsqueeze(2)
        total = (self.table(words) * there).sum(1)
        return self.head(total / there.sum(1).clamp(min=1))


def command_bag() -> tuple[nn.Module, nn.Module]:
    return _Bag(), nn.CrossEntropyLoss()


class _TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 12)
        self.layers = nn.ModuleList(nn.Conv1d(12, 6, size) for size in (2, 3))
        self.head = nn.Linear(12, 4)

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words).transpose(1, 2)
        return self.head(torch.cat([F.relu(layer(x)).amax(2) for layer in self.layers], 1))


def log_textcnn() -> tuple[nn.Module, nn.Module]:
    return _TextCnn(), nn.CrossEntropyLoss()


class _Encoder(nn.Module):
    """PyTorch's own encoder layers, with a mask of what is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(24, 16), nn.Embedding(8, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words) + self.places(torch.arange(words.shape[1]))
        return self.head(self.layers(x).mean(1))


def intent_encoder() -> tuple[nn.Module, nn.Module]:
    return _Encoder(), nn.CrossEntropyLoss()


class _Decoder(nn.Module):
    """A small GPT: the next letter, by attention to what was before; weights of the table twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(28, 16), nn.Parameter(torch.randn(12, 16) / 5)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.made, self.joined = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.table(letters[:, :-1])
        x = x + self.places[: x.shape[1]]
        parts = self.made(self.norms[0](x)).chunk(3, 2)
        q, k, v = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        scores = self.norms[2](x) @ self.table.weight.T
        return F.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())


def letters_gpt() -> tuple[nn.Module, None]:
    return _Decoder(), None


class _TokenLstm(nn.Module):
    """A tag for each word, by an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 10)
        self.layer = nn.LSTM(10, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layer(self.table(words))[0]).transpose(1, 2)


def tags_lstm() -> tuple[nn.Module, nn.Module]:
    return _TokenLstm(), nn.CrossEntropyLoss(ignore_index=0)


class _Factors(nn.Module):
    """Matrix factors with a bias each: what somebody will like."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)
        self.more = nn.Embedding(30, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(1) + self.more(item).squeeze(1)


def songs_factors() -> tuple[nn.Module, nn.Module]:
    return _Factors(), nn.MSELoss()


def _embedder() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 9, 12),
    )  # fmt: skip


class _Siamese(nn.Module):
    """Two images by one network: near if they are the same, apart by a margin if not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _embedder()

    def forward(self, one: Tensor, other: Tensor, same: Tensor) -> Tensor:
        apart = F.pairwise_distance(self.net(one), self.net(other))
        return (same * apart**2 + (1 - same) * F.relu(1 - apart) ** 2).mean()


def faces_siamese() -> tuple[nn.Module, None]:
    return _Siamese(), None


class _Triplet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = _embedder()

    def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
        first, second, third = (F.normalize(self.net(x)) for x in (anchor, near, far))
        return F.triplet_margin_loss(first, second, third, margin=0.5)


def faces_triplet() -> tuple[nn.Module, None]:
    return _Triplet(), None


class _Contrast(nn.Module):
    """InfoNCE: each of a batch finds its own other half by the cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))
        self.second = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        left, right = F.normalize(self.first(one)), F.normalize(self.second(other))
        scores = left @ right.T * self.scale.exp()
        at = torch.arange(len(scores))
        return (F.cross_entropy(scores, at) + F.cross_entropy(scores.T, at)) / 2


def sensors_contrast() -> tuple[nn.Module, None]:
    return _Contrast(), None


class _Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 20), nn.Hardswish(), nn.Linear(20, 8))

    def forward(self, one: Tensor, other: Tensor, same: Tensor) -> Tensor:
        return F.cosine_embedding_loss(self.net(one), self.net(other), same, margin=0.2)


def voices_cosine() -> tuple[nn.Module, None]:
    return _Cosine(), None


class _Student(nn.Module):
    """Distillation: what a teacher said, softened, and what is true."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
        scores = self.net(x)
        soft = F.kl_div(
            F.log_softmax(scores / 2, 1), F.softmax(taught / 2, 1), reduction="batchmean"
        )
        return F.cross_entropy(scores, labels) + 4 * soft


def student_distilled() -> tuple[nn.Module, None]:
    return _Student(), None


class _Latent(nn.Module):
    """A variational autoencoder whose noise is part of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8))
        self.down = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 24))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.up(x).chunk(2, 1)
        made = self.down(mean + noise * torch.exp(log_variance / 2))
        apart = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(made, x) + 0.1 * apart


def readings_vae() -> tuple[nn.Module, None]:
    return _Latent(), None


class _Tasks(nn.Module):
    """One body, two tasks, weighed by how uncertain each is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 24), nn.GLU(), nn.Linear(12, 12), nn.Tanhshrink())
        self.kind, self.size = nn.Linear(12, 4), nn.Linear(12, 1)
        self.weights = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, kind: Tensor, size: Tensor) -> Tensor:
        x = self.body(x)
        losses = torch.stack([F.cross_entropy(self.kind(x), kind), F.mse_loss(self.size(x), size)])
        return (losses * torch.exp(-self.weights) + self.weights).sum()


def tool_tasks() -> tuple[nn.Module, None]:
    return _Tasks(), None


def _pair(batch: int) -> Tensor:
    return torch.randn(batch, 1, 16, 16)


ENTRIES = (
    Network("command-bag", "commands by a bag of words", command_bag,
            lambda: (classes(40, 2, 9), classes(3, 2)), "adam"),
    Network("log-textcnn", "lines of a log, TextCNN", log_textcnn,
            lambda: (classes(30, 2, 10), classes(4, 2)), "adam"),
    Network("intent-encoder", "intents, transformer encoder", intent_encoder,
            lambda: (classes(24, 2, 8), classes(3, 2)), "adamw", 1e-3),
    Network("letters-gpt", "the next letter, a small GPT", letters_gpt,
            lambda: (classes(28, 2, 11),), "adamw", 1e-3),
    Network("tags-lstm", "a tag for each word", tags_lstm,
            lambda: (classes(30, 2, 7), classes(5, 2, 7)), "adam"),
    Network("songs-factors", "recommendations, matrix factors", songs_factors,
            lambda: (classes(20, 4), classes(30, 4), torch.rand(4))),
    Network("faces-siamese", "two faces, contrastive loss", faces_siamese,
            lambda: (_pair(2), _pair(2), (torch.rand(2) < 0.5).float())),
    Network("faces-triplet", "three faces, triplet loss", faces_triplet,
            lambda: (_pair(2), _pair(2), _pair(2)), "adam", 1e-3),
    Network("sensors-contrast", "two sensors, InfoNCE", sensors_contrast,
            lambda: (torch.randn(4, 10), torch.randn(4, 6)), "adam", 1e-3),
    Network("voices-cosine", "voices by the cosine", voices_cosine,
            lambda: (torch.randn(4, 14), torch.randn(4, 14), torch.rand(4).round() * 2 - 1)),
    Network("student-distilled", "distillation", student_distilled,
            lambda: (torch.randn(4, 12), torch.randn(4, 5), classes(5, 4))),
    Network("readings-vae", "a variational autoencoder", readings_vae,
            lambda: (torch.rand(4, 24), torch.randn(4, 4)), "adam"),
    Network("tool-tasks", "two tasks, uncertain weights", tool_tasks,
            lambda: (torch.randn(4, 16), classes(4, 4), torch.randn(4, 1)), "adam"),
)  # fmt: skip
