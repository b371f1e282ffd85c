"""A model and its options as people write them: `resnet18?size=64&classes=10`.

`parse` reads that into a `Spec`: the name and every option, defaults filled in. A `Spec` is always
valid, however it was made: options exist, values are allowed, and they fit together. `Spec.text` is
the one way to write it.
"""

import difflib
import math
from collections.abc import Callable

import msgspec

from poet.errors import PoetError
from poet.zoo.catalogue import MODELS, Entry, Option, Value

_LONGEST = 80


class Spec(msgspec.Struct, frozen=True):
    """A model's name and all its options; those not given have their defaults."""

    name: str
    options: dict[str, Value] = {}

    def __post_init__(self) -> None:
        known = _find(self.name).options
        for name, value in self.options.items():
            option = _option(self.name, name)
            if not option.admits(value):
                raise _not_allowed(self.name, name, str(value))
        complete = {
            name: type(option.default)(self.options.get(name, option.default))
            for name, option in known.items()
        }
        msgspec.structs.force_setattr(self, "options", complete)
        check = _CHECKS.get(self.name.removesuffix("-cifar"))
        if check is not None:
            check(self)

    @property
    def text(self) -> str:
        """The shortest way to write it, always the same."""
        known = MODELS[self.name].options
        chosen = [
            f"{name}={value}"
            for name, value in sorted(self.options.items())
            if value != known[name].default
        ]
        return "?".join([self.name, "&".join(chosen)] if chosen else [self.name])

    def whole(self, name: str) -> int:
        """The value of an option that is a whole number."""
        value = self.options[name]
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        """The value of an option that is a number."""
        value = self.options[name]
        assert isinstance(value, float), name
        return value

    def word(self, name: str) -> str:
        """The value of an option that is a word."""
        value = self.options[name]
        assert isinstance(value, str), name
        return value


def parse(spec: str) -> Spec:
    """`'resnet18?size=64'` → the model's name and all its options."""
    name, mark, query = spec.strip().partition("?")
    entry = _find(name.lower())
    given: dict[str, Value] = {}
    for item in query.split("&") if mark else ():
        key, equals, text = item.partition("=")
        if not equals:
            raise PoetError(
                f"{item[:_LONGEST]!r} in {spec[:_LONGEST]!r} is not an option. "
                f"Write NAME=VALUE, with & between two: {entry.name}?batch=4&train=head."
            )
        value = _option(entry.name, key).read(text)
        if value is None:
            raise _not_allowed(entry.name, key, text)
        if key in given:
            raise PoetError(
                f"{key} is given twice in {spec[:_LONGEST]!r}: {given[key]} and {value}. "
                "Write it once."
            )
        given[key] = value
    return Spec(entry.name, given)


def _find(name: str) -> Entry:
    if name in MODELS:
        return MODELS[name]
    if not name:
        raise PoetError("no model is named. Write one, such as resnet18; `poet models` lists all.")
    near = difflib.get_close_matches(name[:_LONGEST].lower(), MODELS, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise PoetError(
        f"there is no model named {name[:_LONGEST]!r}. {hint}`poet models` lists all of them."
    )


def _option(model: str, name: str) -> Option:
    known = MODELS[model].options
    if name not in known:
        raise PoetError(
            f"{model} has no option {name[:_LONGEST]!r}. It has {', '.join(sorted(known))}."
        )
    return known[name]


def _not_allowed(model: str, name: str, text: str) -> PoetError:
    allowed = MODELS[model].options[name].allowed
    return PoetError(f"{name} of {model} is {text[:_LONGEST]!r}; it can be {allowed}.")


def _check_norm(spec: Spec, shrinks: int) -> None:
    """BatchNorm in train mode needs two values a channel, also where maps are `shrinks` smaller."""
    side = math.ceil(spec.whole("size") / shrinks)
    if side * spec.whole("batch") == 1 and not spec.whole("norm_eval"):
        raise PoetError(
            f"{spec.name} cannot train BatchNorm on one value a channel: with "
            f"size={spec.whole('size')} the smallest maps have one pixel, and batch=1 gives one of "
            f"them. Try batch=2, size={2 * shrinks} or norm_eval=1."
        )


def _check_multiple(spec: Spec, of: int, why: str) -> None:
    size = spec.whole("size")
    if size % of:
        below = size - size % of
        raise PoetError(
            f"size of {spec.name} is {size}, which is not a multiple of {of}: images are {why}. "
            f"Try size={below} or size={below + of}."
        )


def _check_resnet(spec: Spec) -> None:
    _check_norm(spec, {"imagenet": 32, "cifar": 8}[spec.word("stem")])


def _check_mobilenet(spec: Spec) -> None:
    _check_norm(spec, 32)


def _check_unet(spec: Spec) -> None:
    _check_multiple(spec, 16, "halved four times")
    _check_norm(spec, 16)


def _check_vit(spec: Spec) -> None:
    _check_multiple(spec, 16, "cut into patches of 16×16 pixels")


_CHECKS: dict[str, Callable[[Spec], None]] = {
    "resnet18": _check_resnet,
    "resnet50": _check_resnet,
    "mobilenetv2": _check_mobilenet,
    "unet": _check_unet,
    "vit-tiny": _check_vit,
}
