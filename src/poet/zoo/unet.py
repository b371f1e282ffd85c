"""U-Net: Ronneberger, Fischer and Brox, "U-Net: convolutional networks for biomedical image
segmentation", 2015.

As it is used today: convolutions are padded, so that the classes have the size of the image, and
each is followed by BatchNorm. Going down is max-pooling, going up a transposed convolution whose
result is joined with the maps of the same size from the way down.
"""

import torch
from torch import Tensor, nn

from poet.zoo.images import finish, start_convolutions
from poet.zoo.spec import Spec
from poet.zoo.task import Task

_HALVINGS = 4


def _twice(inputs: int, outputs: int) -> nn.Module:
    """Two 3×3 convolutions."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        widths = [spec.whole("width") * 2**level for level in range(_HALVINGS + 1)]
        inputs = [spec.whole("channels"), *widths[:-1]]
        self.down = nn.ModuleList(map(_twice, inputs, widths))
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(_twice(2 * width, width) for width in reversed(widths[:-1]))
        start_convolutions(self)
        self.head = nn.Conv2d(widths[0], spec.whole("classes"), 1)  # no ReLU after: torch's start

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.down[0](images)
        passed = []
        for level in self.down[1:]:
            passed.append(maps)
            maps = level(self.pool(maps))
        for grow, level in zip(self.grow, self.up, strict=True):
            maps = level(torch.cat((passed.pop(), grow(maps)), dim=1))
        logits: Tensor = self.head(maps)
        return logits


def make(spec: Spec) -> Task:
    model = UNet(spec)
    return finish(spec, model, model.head, pixelwise=True)
