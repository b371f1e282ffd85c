"""Small networks for small boards, as a user would write them: `tests/mcu/nets.py:resnet8`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


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
