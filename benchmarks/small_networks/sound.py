"""Keywords in spectrograms of [time][frequency]."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.small_networks.network import Network, classes


def _normed(layer: nn.Module, outs: int) -> list[nn.Module]:
    return [layer, nn.BatchNorm2d(outs), nn.ReLU()]


def keyword_dscnn() -> tuple[nn.Module, nn.Module]:
    """The keyword spotter of MLPerf Tiny, with 16 channels for 64."""
    layers = _normed(nn.Conv2d(1, 16, (10, 4), 2, padding=(5, 1), bias=False), 16)
    for _ in range(3):
        layers += _normed(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), 16)
        layers += _normed(nn.Conv2d(16, 16, 1, bias=False), 16)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 12))
    return model, nn.CrossEntropyLoss()


def keyword_cnn() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, (8, 4)), nn.ReLU(), nn.MaxPool2d((3, 2)), nn.Conv2d(8, 8, (4, 3)),
        nn.ReLU(), nn.Flatten(), nn.Linear(8 * 11, 16), nn.Linear(16, 10),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


class _Crnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(1, 6, (5, 4), (5, 2))
        self.layer = nn.GRU(6 * 4, 12, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        found = F.relu(self.net(x)).permute(0, 2, 1, 3).flatten(2)
        states: Tensor = self.layer(found)[0]
        return self.head(states.mean(1))


def keyword_crnn() -> tuple[nn.Module, nn.Module]:
    return _Crnn(), nn.CrossEntropyLoss()


class _Broadcast(nn.Module):
    """BC-ResNet: what is found over all frequencies is added to each of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = nn.Conv2d(width, width, (1, 3), padding=(0, 1), groups=width)
        self.norm = nn.InstanceNorm2d(width, affine=True)
        self.columns = nn.Conv2d(width, width, (3, 1), padding=(1, 0), groups=width)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        bands = self.norm(self.rows(x))
        over_all = F.silu(self.columns(bands.mean(3, keepdim=True)))
        return F.relu(x + bands + self.mix(over_all))


def keyword_bcresnet() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, (1, 2), padding=2), _Broadcast(8), _Broadcast(8),
        nn.Conv2d(8, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


class _Attended(nn.Module):
    """Moments are weighed before they are summed, for sounds of which several are there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weigh = nn.Linear(10, 24), nn.Linear(24, 1)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        states = torch.tanh(self.layer(x))
        return self.head((F.softmax(self.weigh(states), 1) * states).sum(1))


def sounds_attention() -> tuple[nn.Module, nn.Module]:
    return _Attended(), nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0, 1.0, 5.0]))


def _spectrum(batch: int, times: int = 25, bands: int = 10) -> Tensor:
    return torch.randn(batch, 1, times, bands)


ENTRIES = (
    Network("keyword-dscnn", "keyword spotting, depthwise", keyword_dscnn,
            lambda: (_spectrum(1, 49), classes(12, 1))),
    Network("keyword-cnn", "keyword spotting", keyword_cnn,
            lambda: (_spectrum(2, 49), classes(10, 2)), "sgd?momentum=0.9&weight_decay=0.0005"),
    Network("keyword-crnn", "keyword spotting, GRU on top", keyword_crnn,
            lambda: (_spectrum(2), classes(8, 2)), "adam"),
    Network("keyword-bcresnet", "keyword spotting, BC-ResNet", keyword_bcresnet,
            lambda: (_spectrum(2, 20, 16), classes(12, 2))),
    Network("sounds-attention", "several sounds at once", sounds_attention,
            lambda: (torch.randn(2, 24, 10), (torch.rand(2, 5) < 0.4).float()), "adam"),
)  # fmt: skip
