"""Handwritten digits: 1,797 images of 8×8 pixels, each with 0 to 16 of ink, and which digit it is.

1. Images are scaled to the model's size, bilinear.
2. A classifier gets the digit, modulo its classes where they are fewer than ten. A segmenter gets
   a class for each pixel: 1 where it is more than half inked, else 0.
3. Ink is standardised (mean 0, variance 1 over the training images) and repeated for each channel.

No augmentation: a model that is large enough will come to know the images by heart.
"""

import gzip
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean

from torch import nn

from poet.data.parts import Example, numbers, part, shuffled
from poet.zoo import MODELS, Spec

_FILE = Path(__file__).with_name("digits.gz")
_SIDE = 8
_PIXELS = _SIDE**2
_FULL_INK = 16


def epoch(spec: Spec, held_out: bool, draw: Random) -> list[int]:
    """The positions of the images, in the order in which they are taken."""
    labels, _ = _read()
    return shuffled(part(len(labels), held_out), draw)


def collate(spec: Spec, samples: list[int]) -> Example:
    labels, pixels = _read()
    chosen = b"".join(pixels[_PIXELS * one : _PIXELS * (one + 1)] for one in samples)
    ink = numbers(chosen).view(-1, 1, _SIDE, _SIDE).float()
    size = (spec.whole("size"), spec.whole("size"))
    ink = nn.functional.interpolate(ink, size, mode="bilinear", antialias=True)
    mean, deviation = _statistics()
    images = ((ink - mean) / deviation).repeat(1, spec.whole("channels"), 1, 1)
    file = MODELS[spec.name].file
    if file == "unet":
        return images, (ink.squeeze(1) > _FULL_INK / 2).long()
    target = numbers(bytes(labels[one] for one in samples)) % spec.whole("classes")
    return (
        {"pixel_values": images, "labels": target} if file == "hugging_face" else (images, target)
    )


@cache
def _read() -> tuple[bytes, bytes]:
    """The digits, one byte each, and their pixels, row by row."""
    raw = gzip.decompress(_FILE.read_bytes())
    count = len(raw) // (1 + _PIXELS)
    return raw[:count], raw[count:]


@cache
def _statistics() -> tuple[float, float]:
    """Mean and standard deviation of the training images' ink."""
    labels, pixels = _read()
    seen = pixels[: _PIXELS * len(part(len(labels), held_out=False))]
    mean = fmean(seen)
    return mean, fmean((ink - mean) ** 2 for ink in seen) ** 0.5
