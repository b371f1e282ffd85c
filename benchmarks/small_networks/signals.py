"""Sensors: accelerometers, heartbeats, vibration, weather; by layers over time."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.small_networks.network import Network, classes


def _rise(ins: int, outs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(ins, outs, 5, stride, padding=2, bias=False), nn.BatchNorm1d(outs), nn.ReLU()
    )


def activity_cnn() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        _rise(3, 16, 2), _rise(16, 24, 2), nn.MaxPool1d(2), _rise(24, 32), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 6),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss()


class _Beside(nn.Module):
    """A block over time whose input is added to what it makes."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.first = nn.Conv1d(width, width, 3, dilation=dilation)
        self.second = nn.Conv1d(width, width, 3, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(F.pad(x, (self.pad, 0))))
        return F.relu(x + self.second(F.pad(y, (self.pad, 0))))


def activity_tcn() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv1d(6, 16, 1), *(_Beside(16, 2**n) for n in range(3)), nn.AdaptiveMaxPool1d(1),
        nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss(label_smoothing=0.1)


class _Residual(nn.Module):
    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv1d(ins, outs, 7, 2, padding=3), nn.GroupNorm(4, outs), nn.GELU(),
            nn.Conv1d(outs, outs, 3, padding=1), nn.GroupNorm(4, outs),
        )  # fmt: skip
        self.beside = nn.Conv1d(ins, outs, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.main(x) + self.beside(x))


def heartbeat_resnet() -> tuple[nn.Module, nn.Module]:
    """With group norms, for batches of one; rare classes weigh more."""
    model = nn.Sequential(
        _Residual(1, 8), _Residual(8, 16), nn.AvgPool1d(4), nn.Flatten(), nn.Linear(16 * 8, 4)
    )
    return model, nn.CrossEntropyLoss(weight=torch.tensor([0.3, 1.0, 2.0, 1.5]))


def heartbeat_autoencoder() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(
        nn.Conv1d(1, 8, 4, 2, padding=1), nn.ELU(), nn.Conv1d(8, 16, 4, 2, padding=1), nn.ELU(),
        nn.ConvTranspose1d(16, 8, 4, 2, padding=1), nn.ELU(),
        nn.ConvTranspose1d(8, 1, 4, 2, padding=1),
    )  # fmt: skip
    return model, nn.MSELoss()


def machine_autoencoder() -> tuple[nn.Module, nn.Module]:
    """The anomaly detector of MLPerf Tiny, thinner."""
    widths = (160, 48, 48, 8, 48, 48, 160)
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), nn.BatchNorm1d(outs), nn.ReLU()]
    return nn.Sequential(*layers[:-2]), nn.MSELoss()


class _OneClass(nn.Module):
    """Deep SVDD: what is normal lies close to a centre."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, 8, 5, 2, bias=False), nn.LeakyReLU(0.1), nn.MaxPool1d(2), nn.Flatten(),
            nn.Linear(8 * 15, 8, bias=False),
        )  # fmt: skip
        self.register_buffer("centre", torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.net(x) - self.centre) ** 2).sum(1).mean()


def vibration_one_class() -> tuple[nn.Module, None]:
    return _OneClass(), None


class _Recurrent(nn.Module):
    """What a recurrent layer has in the end, or at every moment, and a layer on top."""

    def __init__(self, layer: nn.RNNBase, outs: int, is_every: bool = False) -> None:
        super().__init__()
        self.layer, self.is_every = layer, is_every
        self.head = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), outs)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x)[0]
        return self.head(states if self.is_every else states[:, -1])


def gesture_gru() -> tuple[nn.Module, nn.Module]:
    return _Recurrent(nn.GRU(3, 24, batch_first=True), 5), nn.CrossEntropyLoss()


def gesture_lstm() -> tuple[nn.Module, nn.Module]:
    return _Recurrent(nn.LSTM(3, 20, batch_first=True), 5), nn.CrossEntropyLoss()


def gesture_rnn() -> tuple[nn.Module, nn.Module]:
    return _Recurrent(nn.RNN(3, 24, batch_first=True), 5), nn.NLLLoss()


def gait_bilstm() -> tuple[nn.Module, nn.Module]:
    layer = nn.LSTM(6, 12, bidirectional=True, batch_first=True)
    return _Recurrent(layer, 3), nn.MultiMarginLoss()


def weather_gru() -> tuple[nn.Module, nn.Module]:
    layer = nn.GRU(4, 12, num_layers=2, batch_first=True)
    return _Recurrent(layer, 1, is_every=True), nn.L1Loss()


class _Encoded(nn.Module):
    """An LSTM reads, another one writes what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.writes = nn.LSTM(2, 12, batch_first=True), nn.LSTM(12, 12)
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.reads(x)
        made, _ = self.writes(last.expand(x.shape[1], -1, -1).contiguous())
        return F.huber_loss(self.head(made).transpose(0, 1), x)


def current_lstm_autoencoder() -> tuple[nn.Module, None]:
    return _Encoded(), None


class _Cells(nn.Module):
    """A cell that is called for each moment, and forecasts the next."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        total = x.new_zeros(())
        for at in range(x.shape[1] - 1):
            state = self.cell(x[:, at], state)
            total = total + F.smooth_l1_loss(self.head(state), x[:, at + 1])
        return total


def load_gru_cell() -> tuple[nn.Module, None]:
    return _Cells(), None


class _Stack(nn.Module):
    """N-BEATS: each block explains a part of the past and adds to the forecast."""

    def __init__(self, past: int, ahead: int) -> None:
        super().__init__()
        self.past = past
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(past, 32), nn.ReLU(), nn.Linear(32, past + ahead))
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        ahead = torch.zeros(())
        for block in self.blocks:
            made = block(x)
            x = x - made[:, : self.past]
            ahead = ahead + made[:, self.past :]
        return ahead


def energy_nbeats() -> tuple[nn.Module, nn.Module]:
    return _Stack(24, 6), nn.L1Loss()


class _Gated(nn.Module):
    """WaveNet: tanh times sigmoid, further and further back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**n) for n in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        total: Tensor | None = None
        for back, gate, skip in zip((1, 2, 4, 8), self.gates, self.skips, strict=True):
            both = gate(F.pad(x, (back, 0)))
            made = skip(torch.tanh(both[:, :8]) * torch.sigmoid(both[:, 8:]))
            x, total = x + made, made if total is None else total + made
        return self.head(total)


def pressure_wavenet() -> tuple[nn.Module, nn.Module]:
    return _Gated(), nn.MSELoss()


class _Life(nn.Module):
    """Convolutions, then an LSTM over what they found: how long a bearing will last."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(4, 12, 5, 2), nn.InstanceNorm1d(12, affine=True))
        self.layer, self.head = nn.LSTM(12, 10, batch_first=True), nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = F.relu(self.net(x)).transpose(1, 2)
        return F.softplus(self.head(self.layer(found)[0][:, -1]))


def bearing_life() -> tuple[nn.Module, nn.Module]:
    return _Life(), nn.SmoothL1Loss()


def _signal(batch: int, channels: int, size: int) -> Tensor:
    return torch.randn(batch, channels, size)


ENTRIES = (
    Network("activity-cnn", "activity from an accelerometer", activity_cnn,
            lambda: (_signal(2, 3, 96), classes(6, 2))),
    Network("activity-tcn", "activity, dilated convolutions", activity_tcn,
            lambda: (_signal(2, 6, 48), classes(5, 2)), "adamw"),
    Network("heartbeat-resnet", "arrhythmia from an ECG", heartbeat_resnet,
            lambda: (_signal(1, 1, 128), classes(4, 1)), "adam"),
    Network("heartbeat-autoencoder", "anomalies of an ECG", heartbeat_autoencoder,
            lambda: 2 * (_signal(2, 1, 64),), "adam"),
    Network("machine-autoencoder", "anomalies of a machine's sound", machine_autoencoder,
            lambda: 2 * (torch.randn(4, 160),), "adam", 1e-3),
    Network("vibration-one-class", "anomalies by Deep SVDD", vibration_one_class,
            lambda: (_signal(4, 3, 64),), "sgd?weight_decay=0.0001"),
    Network("gesture-gru", "gestures, GRU", gesture_gru,
            lambda: (torch.randn(2, 8, 3), classes(5, 2)), "adam"),
    Network("gesture-lstm", "gestures, LSTM", gesture_lstm,
            lambda: (torch.randn(2, 20, 3), classes(5, 2)), "sgd?momentum=0.9", 0.1),
    Network("gesture-rnn", "gestures, plain RNN", gesture_rnn,
            lambda: (torch.randn(2, 8, 3), classes(5, 2)), "sgd", 0.1),
    Network("gait-bilstm", "gait, LSTM in both directions", gait_bilstm,
            lambda: (torch.randn(2, 12, 6), classes(3, 2)), "sgd?momentum=0.9", 0.1),
    Network("weather-gru", "forecast at every moment, two GRUs", weather_gru,
            lambda: (torch.randn(2, 4, 4), torch.randn(2, 4, 1)), "adam"),
    Network("current-lstm-autoencoder", "anomalies of a current", current_lstm_autoencoder,
            lambda: (torch.randn(2, 10, 2),), "adam"),
    Network("load-gru-cell", "forecast, a cell called by hand", load_gru_cell,
            lambda: (torch.randn(3, 5, 2),), "sgd?momentum=0.9&nesterov=true"),
    Network("energy-nbeats", "forecast, N-BEATS", energy_nbeats,
            lambda: (torch.randn(4, 24), torch.randn(4, 6)), "adam"),
    Network("pressure-wavenet", "forecast, WaveNet", pressure_wavenet,
            lambda: 2 * (_signal(1, 1, 48),)),
    Network("bearing-life", "remaining life, convolution and LSTM", bearing_life,
            lambda: (_signal(2, 4, 40), torch.rand(2, 1)), "adam"),
)  # fmt: skip
