"""VGG-16: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
recognition", 2014, configuration D. Parameters are named as in torchvision.

The `large` classifier is the paper's: 7×7 pixels, two hidden layers of 4096; images of another size
than 224 are averaged to 7×7 as torchvision does. The `small` one is what is usual at 32×32: the
mean of the pixels, and one hidden layer of 512.
"""

from torch import Tensor, nn

from poet.zoo.images import dropout, finish, start_convolutions
from poet.zoo.spec import Spec
from poet.zoo.task import Task

_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and how many convolutions
_CLASSIFIERS = {"large": (7, (4096, 4096)), "small": (1, (512,))}  # pixels a side, hidden layers


class VGG(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        features: list[nn.Module] = []
        width = spec.whole("channels")
        for channels, convolutions in _BLOCKS:
            for _ in range(convolutions):
                features += [nn.Conv2d(width, channels, 3, padding=1), nn.ReLU()]
                width = channels
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)

        side, hidden_layers = _CLASSIFIERS[spec.word("classifier")]
        fits = spec.whole("size") // 2 ** len(_BLOCKS) == side
        self.avgpool = nn.Identity() if fits else nn.AdaptiveAvgPool2d(side)
        layers: list[nn.Module] = []
        width *= side**2
        for hidden in hidden_layers:
            layers += [nn.Linear(width, hidden), nn.ReLU(), dropout(spec.number("dropout"))]
            width = hidden
        self.classifier = nn.Sequential(*layers, nn.Linear(width, spec.whole("classes")))
        start_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.avgpool(self.features(images))
        logits: Tensor = self.classifier(maps.flatten(1))
        return logits


def make(spec: Spec) -> Task:
    model = VGG(spec)
    return finish(spec, model, model.classifier[-1])
