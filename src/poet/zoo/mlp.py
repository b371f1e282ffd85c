"""Multilayer perceptron: Rumelhart, Hinton and Williams, "Learning representations by
back-propagating errors", 1986; with ReLU. Starts as torch's layers do.
"""

from torch import nn

from poet.zoo.images import dropout, finish
from poet.zoo.spec import Spec
from poet.zoo.task import Task


def make(spec: Spec) -> Task:
    hidden = spec.whole("hidden")
    width = spec.whole("channels") * spec.whole("size") ** 2
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(spec.whole("layers")):
        layers += [nn.Linear(width, hidden), nn.ReLU(), dropout(spec.number("dropout"))]
        width = hidden
    head = nn.Linear(width, spec.whole("classes"))
    return finish(spec, nn.Sequential(*layers, head), head)
