"""Rows of numbers and categories: regression, control, sets."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.small_networks.network import Network, classes


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), act()]
    return nn.Sequential(*layers[:-1])


def battery_mlp() -> tuple[nn.Module, nn.Module]:
    return _mlp(12, 32, 16, 1), nn.MSELoss()


def soil_selu() -> tuple[nn.Module, nn.Module]:
    return _mlp(9, 24, 24, 4, act=nn.SELU), nn.SmoothL1Loss(beta=0.5)


class _Quantiles(nn.Module):
    """The pinball loss: what a value will not exceed, in so many of a hundred cases."""

    levels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = _mlp(8, 24, 3, act=nn.Softplus)
        self.register_buffer("levels", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        over = y - self.net(x)
        return torch.maximum(self.levels * over, (self.levels - 1) * over).mean()


def demand_quantiles() -> tuple[nn.Module, None]:
    return _Quantiles(), None


class _Uncertain(nn.Module):
    """A mean and how sure it is: the likelihood of a normal distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _mlp(6, 20, 2, act=nn.Tanh)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = self.net(x).chunk(2, 1)
        return F.gaussian_nll_loss(mean, y, log_variance.exp())


def flow_uncertain() -> tuple[nn.Module, None]:
    return _Uncertain(), None


def visitors_poisson() -> tuple[nn.Module, nn.Module]:
    return _mlp(7, 16, 1, act=nn.CELU), nn.PoissonNLLLoss()


class _Columns(nn.Module):
    """Categories by tables, numbers by a norm, together by layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(12, 4), nn.Embedding(7, 3)
        self.norm, self.net = nn.BatchNorm1d(5), _mlp(12, 24, 1)

    def forward(self, names: Tensor, kinds: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self.first(names), self.second(kinds), self.norm(numbers)], 1)
        return self.net(F.dropout(x, 0.1, self.training)).squeeze(1)


def churn_columns() -> tuple[nn.Module, nn.Module]:
    return _Columns(), nn.BCEWithLogitsLoss()


class _Wide(nn.Module):
    """What crossed features say, and what layers say."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(10, 1, bias=False), _mlp(10, 16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.wide(x * x.roll(1, 1)) + self.deep(x))


def click_wide_deep() -> tuple[nn.Module, nn.Module]:
    return _Wide(), nn.BCELoss()


class _Values(nn.Module):
    """Q-learning: the value of the action that was taken, dueling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp(6, 24, 24)
        self.value, self.gain = nn.Linear(24, 1), nn.Linear(24, 4)

    def forward(self, x: Tensor, action: Tensor, wanted: Tensor) -> Tensor:
        x = F.relu(self.body(x))
        gain = self.gain(x)
        values = self.value(x) + gain - gain.mean(1, keepdim=True)
        return F.smooth_l1_loss(values.gather(1, action), wanted)


def valve_dqn() -> tuple[nn.Module, None]:
    return _Values(), None


class _Policy(nn.Module):
    """Actor and critic: what was done, by what it was worth, and some entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.act, self.value = _mlp(5, 20, 20), nn.Linear(20, 3), nn.Linear(20, 1)

    def forward(self, x: Tensor, action: Tensor, worth: Tensor) -> Tensor:
        x = torch.tanh(self.body(x))
        logs, value = F.log_softmax(self.act(x), 1), self.value(x)
        gain = (worth - value).detach()
        entropy = -(logs.exp() * logs).sum(1).mean()
        return -(logs.gather(1, action) * gain).mean() + F.mse_loss(value, worth) - 0.01 * entropy


def arm_actor_critic() -> tuple[nn.Module, None]:
    return _Policy(), None


class _Experts(nn.Module):
    """A gate that weighs what four small networks say."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(_mlp(8, 12, 2) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.gate(x), 1)
        said = torch.stack([expert(x) for expert in self.experts], 1)
        return (weights[:, :, None] * said).sum(1)


def motor_experts() -> tuple[nn.Module, nn.Module]:
    return _Experts(), nn.MSELoss()


class _Sines(nn.Module):
    """SIREN: a field as a network of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 24), nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sin(self.second(torch.sin(6 * self.first(x)))))


def field_siren() -> tuple[nn.Module, nn.Module]:
    return _Sines(), nn.MSELoss()


class _Set(nn.Module):
    """PointNet: a layer for each point, the most of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(),
                                  nn.Conv1d(16, 24, 1))  # fmt: skip
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x).max(2).values)


def lidar_pointnet() -> tuple[nn.Module, nn.Module]:
    return _Set(), nn.CrossEntropyLoss()


class _Graph(nn.Module):
    """Two layers over the neighbours in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, near: Tensor, x: Tensor) -> Tensor:
        near = near / near.sum(2, keepdim=True).clamp(min=1)
        return self.second(near @ F.relu(self.first(near @ x))).transpose(1, 2)


def grid_graph() -> tuple[nn.Module, nn.Module]:
    return _Graph(), nn.CrossEntropyLoss()


ENTRIES = (
    Network("battery-mlp", "charge of a battery", battery_mlp,
            lambda: (torch.randn(4, 12), torch.randn(4, 1)), "adam"),
    Network("soil-selu", "moisture of soil", soil_selu,
            lambda: (torch.randn(4, 9), torch.randn(4, 4))),
    Network("demand-quantiles", "demand, three quantiles", demand_quantiles,
            lambda: (torch.randn(4, 8), torch.randn(4, 1)), "adam"),
    Network("flow-uncertain", "flow, and how sure", flow_uncertain,
            lambda: (torch.randn(4, 6), torch.randn(4, 1)), "adam"),
    Network("visitors-poisson", "how many will come", visitors_poisson,
            lambda: (torch.randn(4, 7), torch.poisson(torch.full((4, 1), 3.0))), "adam"),
    Network("churn-columns", "categories and numbers", churn_columns,
            lambda: (classes(12, 4), classes(7, 4), torch.randn(4, 5),
                     (torch.rand(4) < 0.5).float()), "adamw"),
    Network("click-wide-deep", "wide and deep", click_wide_deep,
            lambda: (torch.randn(4, 10), torch.rand(4, 1)), "adam"),
    Network("valve-dqn", "Q-learning, dueling", valve_dqn,
            lambda: (torch.randn(4, 6), classes(4, 4, 1), torch.randn(4, 1)), "adam"),
    Network("arm-actor-critic", "actor and critic", arm_actor_critic,
            lambda: (torch.randn(4, 5), classes(3, 4, 1), torch.randn(4, 1)), "adam"),
    Network("motor-experts", "a mixture of experts", motor_experts,
            lambda: (torch.randn(4, 8), torch.randn(4, 2)), "sgd?momentum=0.9&dampening=0.1"),
    Network("field-siren", "a field by sines", field_siren,
            lambda: (torch.rand(8, 2), torch.rand(8, 1)), "adam", 1e-3),
    Network("lidar-pointnet", "shapes of points", lidar_pointnet,
            lambda: (torch.randn(2, 3, 32), classes(4, 2))),
    Network("grid-graph", "faults in a grid", grid_graph,
            lambda: ((torch.rand(2, 8, 8) < 0.4).float(), torch.randn(2, 8, 5),
                     classes(3, 2, 8)), "adam"),
)  # fmt: skip
