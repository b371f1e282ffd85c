"""Which models there are, and what can be chosen about each: tables.

Reading what a person wrote is `spec.py`'s; how a model is built is known to its family's file.
"""

import re

import msgspec

Value = int | float | str


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be chosen. The default's type is the option's type.

    A number lies between `least` and `most`; where there are `choices`, it is one of them.
    """

    default: Value
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[Value, ...] = ()

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        if self.choices:
            return " or ".join(map(str, self.choices))
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} from {self.least} to {self.most}"

    def read(self, text: str) -> Value | None:
        """The value that the text stands for, or None."""
        if isinstance(self.default, str):
            return text
        if isinstance(self.default, int):
            return int(text) if _WHOLE.fullmatch(text) else None
        return float(text) if _DECIMAL.fullmatch(text) else None

    def admits(self, value: Value) -> bool:
        """Whether it is of the right type, and allowed. A whole number is a number too."""
        if self.choices:
            return any(type(value) is type(one) and value == one for one in self.choices)
        if isinstance(value, str) or type(value) not in (int, type(self.default)):
            return False
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the zoo. `parameters` counts those of the default options, shared ones once."""

    name: str
    title: str
    file: str
    parameters: int
    options: dict[str, Option]


_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{0,15}\.?[0-9]{1,15}(e-?[0-9]{1,2})?", re.ASCII)

_TRAIN = Option(
    default="all",
    choices=("all", "head"),
    help="what gets gradients: all of it, or the last layer alone",
)
_NORM_EVAL = Option(
    default=0,
    choices=(0, 1),
    help="1: BatchNorm in evaluation mode, as in fine-tuning on a device",
)
_ATTENTION = Option(
    default="sdpa",
    choices=("sdpa", "eager"),
    help="PyTorch's scaled dot-product attention in one op, or written out",
)


def _whole(default: int, least: int, most: int, help: str) -> Option:
    return Option(default=default, least=least, most=most, help=help)


def _dropout(default: float, help: str = "share of the activations dropped") -> Option:
    return Option(default=default, least=0.0, most=0.9, help=help)


_BATCH = _whole(1, 1, 65_536, "samples in a batch")


def _image(
    size: int, *, least: int, channels: int = 3, classes: int = 1000, **more: Option
) -> dict[str, Option]:
    return {
        "batch": _BATCH,
        "size": _whole(size, least, 4096, "height and width of the images, in pixels"),
        "channels": _whole(channels, 1, 1024, "channels of the images"),
        "classes": _whole(classes, 2, 1_000_000, "classes to tell apart"),
        "train": _TRAIN,
        **more,
    }


def _text(layers: int, seq: int, vocab: int, **more: Option) -> dict[str, Option]:
    return {
        "batch": _BATCH,
        "seq": _whole(128, 2, seq, "tokens in a sample; the position table has the most"),
        "vocab": _whole(vocab, 2, 1_000_000, "rows of the token table"),
        "layers": _whole(layers, 1, 96, "transformer blocks"),
        "attention": _ATTENTION,
        "train": _TRAIN,
        **more,
    }


_LABELS = {"classes": _whole(2, 2, 1_000_000, "classes to tell apart"), "dropout": _dropout(0.1)}
_STEM = Option(
    default="imagenet",
    choices=("imagenet", "cifar"),
    help="7×7 convolution of stride 2 and a max-pool, or one 3×3 convolution of stride 1",
)
_RESNET = _image(224, least=8, stem=_STEM, norm_eval=_NORM_EVAL)

_ENTRIES = (
    Entry(
        name="mlp",
        title="fully connected layers with ReLU (Rumelhart, Hinton and Williams 1986)",
        file="mlp",
        parameters=118_282,
        options=_image(
            28,
            least=1,
            channels=1,
            classes=10,
            hidden=_whole(128, 1, 65_536, "units of a hidden layer"),
            layers=_whole(2, 1, 96, "hidden layers"),
            dropout=_dropout(0.0),
        ),
    ),
    Entry(
        name="lenet",
        title="LeNet-5, with ReLU and max-pooling (LeCun, Bottou, Bengio and Haffner 1998)",
        file="lenet",
        parameters=61_706,
        options=_image(28, least=12, channels=1, classes=10),
    ),
    Entry(
        name="vgg16",
        title="VGG-16, configuration D, no BatchNorm (Simonyan and Zisserman 2014)",
        file="vgg",
        parameters=138_357_544,
        options=_image(
            224,
            least=32,
            dropout=_dropout(0.5),
            classifier=Option(
                default="large",
                choices=("large", "small"),
                help="two hidden layers of 4096 over 7×7 pixels, or one of 512 over their mean",
            ),
        ),
    ),
    Entry(
        name="resnet18",
        title="ResNet-18 (He, Zhang, Ren and Sun 2015)",
        file="resnet",
        parameters=11_689_512,
        options=_RESNET,
    ),
    Entry(
        name="resnet50",
        title="ResNet-50, stride in the 3×3 convolutions (He, Zhang, Ren and Sun 2015)",
        file="resnet",
        parameters=25_557_032,
        options=_RESNET,
    ),
    Entry(
        name="mobilenetv2",
        title="MobileNetV2 (Sandler, Howard, Zhu, Zhmoginov and Chen 2018)",
        file="mobilenet",
        parameters=3_504_872,
        options=_image(
            224,
            least=8,
            width=Option(default=1.0, least=0.1, most=4.0, help="factor on every layer's channels"),
            dropout=_dropout(0.2),
            norm_eval=_NORM_EVAL,
        ),
    ),
    Entry(
        name="unet",
        title="U-Net, padded and with BatchNorm (Ronneberger, Fischer and Brox 2015)",
        file="unet",
        parameters=31_037_698,
        options=_image(
            224,
            least=16,
            classes=2,
            width=_whole(64, 1, 1024, "channels of the first level; each level below doubles them"),
            norm_eval=_NORM_EVAL,
        ),
    ),
    Entry(
        name="bert-tiny",
        title="BERT, 2 layers of 128, sequence classification (Turc, Chang, Lee, Toutanova 2019)",
        file="hugging_face",
        parameters=4_386_178,
        options=_text(2, 512, 30_522, **_LABELS),
    ),
    Entry(
        name="bert-base",
        title="BERT, sequence classification (Devlin, Chang, Lee and Toutanova 2018)",
        file="hugging_face",
        parameters=109_483_778,
        options=_text(12, 512, 30_522, **_LABELS),
    ),
    Entry(
        name="distilbert",
        title="DistilBERT, sequence classification (Sanh, Debut, Chaumond and Wolf 2019)",
        file="hugging_face",
        parameters=66_955_010,
        options=_text(6, 512, 30_522, **_LABELS)
        | {"dropout": _dropout(0.1, "share of the activations dropped; before the head twice it")},
    ),
    Entry(
        name="gpt2",
        title="GPT-2 small, next-token prediction (Radford, Wu, Child, Luan and others 2019)",
        file="hugging_face",
        parameters=124_439_808,
        options=_text(12, 1024, 50_257, dropout=_dropout(0.1)),
    ),
    Entry(
        name="vit-tiny",
        title="ViT-Ti/16 (Dosovitskiy and others 2020; Touvron and others 2020)",
        file="hugging_face",
        parameters=5_717_416,
        options=_image(
            224,
            least=16,
            layers=_whole(12, 1, 96, "transformer blocks"),
            attention=_ATTENTION,
            dropout=_dropout(0.0),
        ),
    ),
)

# A network that halves 32×32 five times leaves one pixel, and BatchNorm cannot train on the one
# value a channel that a batch of one then has: hence two. VGG's own classifier would be nine tenths
# of the network at this size.
_CIFAR: dict[str, tuple[int, dict[str, Value]]] = {
    # name: parameters, and what differs besides the images
    "mlp": (411_146, {}),
    "lenet": (62_006, {}),
    "vgg16": (14_982_474, {"classifier": "small"}),
    "resnet18": (11_181_642, {"batch": 2}),
    "resnet50": (23_528_522, {"batch": 2}),
    "mobilenetv2": (2_236_682, {"batch": 2}),
    "unet": (31_038_218, {}),
}


def _for_cifar(entry: Entry) -> Entry:
    parameters, defaults = _CIFAR[entry.name]
    changes: dict[str, Value] = {"size": 32, "channels": 3, "classes": 10, **defaults}
    return msgspec.structs.replace(
        entry,
        name=f"{entry.name}-cifar",
        title=f"{entry.title}; 32×32 images, 10 classes",
        parameters=parameters,
        options={
            name: msgspec.structs.replace(option, default=changes.get(name, option.default))
            for name, option in entry.options.items()
        },
    )


MODELS: dict[str, Entry] = {
    entry.name: entry
    for base in _ENTRIES
    for entry in ([base, _for_cifar(base)] if base.name in _CIFAR else [base])
}
