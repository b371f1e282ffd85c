"""What examples share: handwritten digits, and a small network that learns to read them."""

from itertools import islice

import torch
from torch import nn
from torch.utils.data import TensorDataset

import poet.data


def digits(count):
    images, labels = zip(*islice(poet.data.batches("lenet?batch=1&size=16"), count), strict=True)
    return TensorDataset(torch.cat(images), torch.cat(labels))


def network():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6)]
    first = (nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))
    return nn.Sequential(*first, *layers, nn.Flatten(), nn.Dropout(), nn.Linear(8 * 14 * 14, 10))
