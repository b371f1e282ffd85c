"""Models by name: every one is there, one way to write it, and what is wrong is named. No torch."""

import re

import pytest

from poet import PoetError
from poet.zoo import MODELS, Spec, parse


def test_every_name_is_there() -> None:
    images = ["mlp", "lenet", "vgg16", "resnet18", "resnet50", "mobilenetv2", "unet"]
    text = ["bert-tiny", "bert-base", "distilbert", "gpt2", "vit-tiny"]
    cifar = [f"{name}-cifar" for name in images]
    assert sorted(MODELS) == sorted([*images, *cifar, *text])
    for name, entry in MODELS.items():
        assert entry.name == name
        assert re.search(r"(19|20)\d\d", entry.title)
        assert all(option.help and option.allowed for option in entry.options.values())
        assert all(option.admits(option.default) for option in entry.options.values())
    for name in cifar:
        defaults = parse(name).options
        assert (defaults["size"], defaults["channels"], defaults["classes"]) == (32, 3, 10)


def test_text_is_canonical() -> None:
    for text in ("lenet", "vgg16?classes=10&classifier=small&size=64", "mobilenetv2?width=0.35"):
        assert parse(text).text == text
    assert parse("resnet18-cifar?size=32&batch=4").text == "resnet18-cifar?batch=4"
    assert parse(" ResNet18?size=224 ").text == "resnet18"
    assert parse("gpt2?dropout=0").text == "gpt2?dropout=0.0"
    assert parse("gpt2?dropout=.1").text == "gpt2"
    assert Spec("gpt2", {"dropout": 0}) == parse("gpt2?dropout=0")
    options = parse("bert-base?seq=64").options
    assert options == {
        "batch": 1, "seq": 64, "vocab": 30522, "layers": 12, "attention": "sdpa", "train": "all",
        "classes": 2, "dropout": 0.1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model is named.*`poet models`"),
        ("?batch=1", "no model is named"),
        ("resnet19", "no model named 'resnet19'. Did you mean resnet18.*`poet models`"),
        ("zzzzzzz", "no model named 'zzzzzzz'. `poet models` lists"),
        ("x" * 5000, r"no model named 'x{80}'\."),
        ("resnet18?", "'' in 'resnet18\\?' is not an option. Write NAME=VALUE"),
        ("resnet18?batch", "'batch' in 'resnet18\\?batch' is not an option"),
        ("resnet18?batch=2&", "'' in .* is not an option"),
        ("resnet18?seq=2", "resnet18 has no option 'seq'. It has batch, channels, classes, norm_"),
        ("bert-base?size=2", "bert-base has no option 'size'. It has attention, batch,"),
        ("resnet18?batch=", "batch of resnet18 is ''; it can be a whole number from 1 to 65536"),
        ("resnet18?batch=1.5", "batch of resnet18 is '1.5'; it can be a whole number"),
        ("resnet18?batch=-1", "batch of resnet18 is '-1'; it can be a whole number"),
        ("resnet18?batch=٣", "batch of resnet18 is '٣'"),
        ("resnet18?batch=0", "batch of resnet18 is '0'; it can be a whole number from 1"),
        ("resnet18?batch=" + "9" * 5000, "batch of resnet18 is '9{80}'; it can be"),
        ("bert-base?seq=513", "seq of bert-base is '513'; it can be a whole number from 2 to 512"),
        ("gpt2?seq=1025", "from 2 to 1024"),
        ("gpt2?dropout=nan", "dropout of gpt2 is 'nan'; it can be a number from 0.0 to 0.9"),
        ("gpt2?dropout=1.0", "dropout of gpt2 is '1.0'; it can be a number from 0.0 to 0.9"),
        ("resnet18?stem=big", "stem of resnet18 is 'big'; it can be imagenet or cifar"),
        ("resnet18?norm_eval=2", "norm_eval of resnet18 is '2'; it can be 0 or 1"),
        ("resnet18?batch=2&batch=3", "batch is given twice in .*: 2 and 3. Write it once"),
        ("unet?size=40", "40, which is not a multiple of 16.*Try size=32 or size=48"),
        ("vit-tiny?size=100", "100, which is not a multiple of 16.*Try size=96 or size=112"),
        ("resnet18-cifar?batch=1", "one value a channel.*Try batch=2, size=64 or norm_eval=1"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(PoetError, match=message):
        parse(text)


def test_a_spec_made_by_hand_is_checked_too() -> None:
    with pytest.raises(PoetError, match="no model named 'vgg'"):
        Spec("vgg")
    with pytest.raises(PoetError, match="has no option 'width'"):
        Spec("vgg16", {"width": 1})
    for value in (True, 2.0, "2", 0):
        with pytest.raises(PoetError, match="batch of vgg16"):
            Spec("vgg16", {"batch": value})
    with pytest.raises(PoetError, match="norm_eval of resnet18"):
        Spec("resnet18", {"norm_eval": True})
    with pytest.raises(PoetError, match="dropout of vgg16 is 'nan'"):
        Spec("vgg16", {"dropout": float("nan")})
