"""LeNet-5: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document
recognition", 1998; as it is trained today.

The paper's trainable subsampling is max-pooling here, its sigmoids are ReLU, its sparse second
convolution is a full one, and its output is a linear layer. As in the paper, 28×28 digits get a
border of 2; images of 32×32 and more get none. Starts as torch's layers do.
"""

from torch import nn

from poet.zoo.images import finish
from poet.zoo.spec import Spec
from poet.zoo.task import Task


def make(spec: Spec) -> Task:
    border = 2 if spec.whole("size") < 32 else 0
    side = ((spec.whole("size") + 2 * border - 4) // 2 - 4) // 2
    head = nn.Linear(84, spec.whole("classes"))
    model = nn.Sequential(
        nn.Conv2d(spec.whole("channels"), 6, 5, padding=border),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side**2, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        head,
    )
    return finish(spec, model, head)
