"""The data: shaped as each model wants it, real, repeatable, held out, and models learn from it."""

import codecs
import gzip
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import Tensor

import poet.data
from poet import PoetError
from poet.data import batches, describe, evaluation
from poet.errors import REQUIREMENTS
from poet.zoo import MODELS, Spec, Task, build, parse

Example = tuple[Tensor, ...] | dict[str, Tensor]

FOLDER = Path(poet.data.__file__).parent
DIGITS = gzip.decompress((FOLDER / "digits.gz").read_bytes())
BOOK = gzip.decompress((FOLDER / "alice.txt.gz").read_bytes()).decode("ascii")
IMAGES = 1797
SEEN = 1438  # four fifths of them

SMALL: dict[str, int | str] = {
    "batch": 3,
    "size": 32,
    "seq": 8,
    "vocab": 100,
    "layers": 1,
    "classifier": "small",
}

ODD = [
    "mlp?size=1",
    "lenet?size=12&channels=5&classes=2",
    "mobilenetv2-cifar?batch=1&norm_eval=1&width=0.35",
    "unet-cifar?batch=5&channels=1&size=48&width=1",
    "bert-tiny?classes=7&layers=1&seq=512&vocab=2",
    "gpt2?batch=2&layers=1&seq=1024&vocab=300",
    "vit-tiny?channels=1&layers=1&size=16",
]


def small(name: str) -> str:
    known = MODELS[name].options
    return Spec(name, {key: value for key, value in SMALL.items() if key in known}).text


def named(example: Example) -> dict[str, Tensor]:
    if isinstance(example, dict):
        return example
    return {str(position): tensor for position, tensor in enumerate(example)}


def same(first: Example, second: Example) -> bool:
    assert type(first) is type(second)
    assert list(named(first)) == list(named(second))
    return all(map(torch.equal, named(first).values(), named(second).values()))


def pair(example: Example) -> tuple[Tensor, Tensor]:
    """What goes in, and what should come out."""
    inputs, target = named(example).values()
    return inputs, target


def take(text: str, count: int, seed: int = 0, start: int = 0) -> list[Example]:
    return list(itertools.islice(batches(text, seed, start=start), count))


@pytest.mark.parametrize("text", [*map(small, MODELS), *ODD])
def test_a_batch_is_as_the_example(text: str) -> None:
    spec = parse(text)
    example = build(spec).example
    for batch in (next(batches(text)), next(batches(spec)), *evaluation(text, 1)):
        assert type(batch) is type(example)
        assert list(named(batch)) == list(named(example))
        for name, tensor in named(example).items():
            given = named(batch)[name]
            assert given.shape == tensor.shape
            assert given.dtype == tensor.dtype
            assert given.device == tensor.device
            assert given.stride() == tensor.stride()
            assert given.isfinite().all()
        _, target = pair(batch)
        assert int(target.min()) >= 0
        assert int(target.max()) < spec.whole("classes" if "classes" in spec.options else "vocab")
        if "seq" in spec.options:
            tokens, _ = pair(batch)
            assert int(tokens.min()) >= 1  # 0 is padding
            assert int(tokens.max()) < spec.whole("vocab")


def images_of(made: list[Example]) -> list[tuple[bytes, int]]:
    """Standardised images of 8×8 pixels back to ink, with their labels."""
    images = torch.cat([pair(example)[0] for example in made]).double()
    lowest, highest = images.min(), images.max()
    ink = ((images - lowest) / (highest - lowest) * 16).round().to(torch.uint8)
    labels = torch.cat([pair(example)[1] for example in made]).tolist()
    return [(bytes(one.flatten().tolist()), label) for one, label in zip(ink, labels, strict=True)]


def test_every_digit_is_seen_once_an_epoch_or_held_out() -> None:
    labels, pixels = DIGITS[:IMAGES], DIGITS[IMAGES:]
    assert len(pixels) == 64 * IMAGES
    stored = [(pixels[64 * n : 64 * n + 64], labels[n]) for n in range(IMAGES)]
    assert len(set(stored)) == IMAGES
    assert max(labels) == 9
    assert max(pixels) == 16
    epoch = images_of(take("mlp?batch=1438&size=8", 1))
    held_out = images_of(list(evaluation("mlp?batch=359&size=8", 1)))
    assert sorted(epoch) == sorted(stored[:SEEN])
    assert sorted(held_out) == sorted(stored[SEEN:])
    assert epoch != stored[:SEEN]


def test_digits_are_standardised_in_every_channel() -> None:
    images, _ = pair(next(batches("mlp?batch=1438&channels=3&size=8")))
    assert abs(float(images.mean())) < 1e-5
    assert abs(float(images.std()) - 1) < 1e-3
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    larger, _ = pair(next(batches("mlp?batch=1438&size=28")))
    assert abs(float(larger.mean())) < 0.05
    assert 0.8 < float(larger.std()) < 1.1


def test_fewer_classes_than_digits() -> None:
    _, digits = pair(next(batches("lenet?batch=99")))
    assert set(digits.tolist()) == set(range(10))
    _, fewer = pair(next(batches("lenet?batch=99&classes=4")))
    assert torch.equal(fewer, digits % 4)
    _, more = pair(next(batches("resnet18?batch=99&size=8&stem=cifar")))
    assert torch.equal(more, digits)


def test_unet_is_asked_for_the_ink() -> None:
    for text in ("unet?batch=20&size=32", "unet-cifar?batch=20"):
        images, mask = pair(next(batches(text)))
        assert set(mask.flatten().tolist()) == {0, 1}
        assert 0.1 < float(mask.float().mean()) < 0.5
        ink = images[:, 0]
        assert float(ink[mask == 1].min()) > float(ink[mask == 0].max())


def passages_of(made: list[Example]) -> list[str]:
    return [bytes(row).decode("ascii") for batch in made for row in pair(batch)[0].tolist()]


BORDER = len(BOOK) - len(BOOK) // 5


def test_gpt2_reads_the_book() -> None:
    made = take("gpt2?batch=4&seq=64&vocab=256", 300)
    assert all(torch.equal(*pair(batch)) for batch in made)
    tokens, labels = pair(made[0])
    assert tokens.data_ptr() != labels.data_ptr()
    seen = passages_of(made)
    assert all(passage in BOOK[:BORDER] for passage in seen)
    held_out = passages_of(list(evaluation("gpt2?batch=4&seq=64&vocab=256", 50)))
    assert all(passage in BOOK[BORDER:] for passage in held_out)
    assert not set(seen) & set(held_out)
    epoch = (BORDER + 1) // 64 - 1
    starts = sorted(BOOK.index(passage) for passage in seen[:epoch])
    assert {later - earlier for earlier, later in itertools.pairwise(starts)} == {64}
    assert starts[0] < 64
    assert starts[-1] + 2 * 64 > BORDER - 64
    again = {BOOK.index(passage) % 64 for passage in seen[epoch : 2 * epoch]}
    assert len(again) == 1  # cut elsewhere
    assert again != {starts[0] % 64}


@pytest.mark.parametrize("name", ["bert-tiny", "distilbert"])
def test_half_of_the_passages_are_enciphered(name: str) -> None:
    text = f"{name}?batch=8&classes=3&seq=64&vocab=256"
    for made, part in ((take(text, 60), BOOK[:BORDER]), (evaluation(text, 20), BOOK[BORDER:])):
        kept = list(made)
        labels = [label for batch in kept for label in pair(batch)[1].tolist()]
        for passage, label in zip(passages_of(kept), labels, strict=True):
            assert (codecs.encode(passage, "rot13") if label else passage) in part
        assert set(labels) == {0, 1}
        assert 0.4 < fmean(labels) < 0.6


def test_bytes_go_round_a_small_vocabulary() -> None:
    wide, _ = pair(next(batches("gpt2?batch=50&seq=64&vocab=123")))
    assert torch.equal(wide, pair(next(batches("gpt2?batch=50&seq=64")))[0])
    narrow, _ = pair(next(batches("gpt2?batch=50&seq=64&vocab=100")))
    assert torch.equal(narrow[wide < 100], wide[wide < 100])
    assert torch.equal(narrow[wide >= 100], wide[wide >= 100] - 99)
    assert (wide >= 100).any()


SHORT_EPOCHS = ["mlp?batch=500&size=8", "gpt2?batch=7&seq=1024", "bert-tiny?batch=11&seq=512"]
"""Batches that straddle the border of two epochs."""


@pytest.mark.parametrize("text", SHORT_EPOCHS)
def test_the_seed_decides_and_each_epoch_has_its_own_order(text: str) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = take(text, 12, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    with torch.device("meta"):
        second = take(text, 12, seed=5)
    assert all(map(same, first, second))
    assert not any(map(same, first, take(text, 12, seed=6)))
    for one, other in itertools.combinations(first, 2):
        assert not same(one, other)
    assert all(map(same, evaluation(text, 3), evaluation(text, 3)))


def test_epochs_hold_the_same_images() -> None:
    first, second = take("mlp?batch=1438&size=8", 2)
    assert not same(first, second)
    assert sorted(images_of([first])) == sorted(images_of([second]))


@pytest.mark.parametrize("text", [*SHORT_EPOCHS, "lenet", "unet?size=32&width=4"])
def test_beginning_later_is_skipping(text: str) -> None:
    whole = take(text, 12, seed=3)
    for start in (0, 1, 2, 3, 5, 9):
        later = take(text, 12 - start, seed=3, start=start)
        assert all(map(same, later, whole[start:]))


def test_beginning_far_out_is_as_quick() -> None:
    """A trillion samples are not drawn to be skipped; and where a sample is, is plain to see."""
    far = take("mlp?batch=4&size=8", 1, start=10**12)
    alone = take("mlp?batch=1&size=8", 4, start=4 * 10**12)
    assert images_of(far) == images_of(alone)


def test_a_batch_larger_than_the_data() -> None:
    images, target = pair(next(batches("mlp?batch=2000&size=8")))
    assert images.shape[0] == target.shape[0] == 2000


def test_changing_a_batch_changes_no_other() -> None:
    first = take("gpt2?seq=16", 1)
    for tensor in named(first[0]).values():
        tensor.zero_()
    assert named(take("gpt2?seq=16", 1)[0])["input_ids"].min() > 0


def step(made: Task, batch: Example) -> Tensor:
    if isinstance(batch, dict):
        loss: Tensor = made.model(**batch).loss
        return loss
    assert made.loss is not None
    *inputs, target = batch
    return made.loss(made.model(*inputs), target)


def adam(lr: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, lr=lr)


LEARNERS = [
    # model, steps, optimizer, what must be left of the loss in training and on held-out data
    ("mlp?batch=16", 60, adam(1e-3), 0.4, 0.4),
    ("lenet?batch=16", 80, adam(1e-3), 0.4, 0.4),
    ("resnet18-cifar?batch=16", 25, adam(3e-4), 0.4, 0.7),
    ("unet?batch=4&size=32&width=8", 40, adam(3e-3), 0.6, 0.6),
    ("vit-tiny?batch=16&classes=10&layers=2&size=32", 60, adam(3e-4), 0.5, 0.6),
    ("bert-tiny?batch=8&seq=32&vocab=256", 100, adam(5e-4), 0.5, 0.6),
    ("distilbert?batch=8&layers=1&seq=32&vocab=256", 40, adam(1e-4), 0.7, 0.7),
    ("gpt2?batch=4&layers=1&seq=32&vocab=256", 25, adam(5e-4), 0.8, 0.8),
]


@pytest.mark.parametrize(
    ("text", "steps", "optimizer", "left", "left_held_out"),
    LEARNERS,
    ids=[text for text, *_ in LEARNERS],
)
def test_plain_training_makes_the_loss_fall(
    text: str,
    steps: int,
    optimizer: Callable[..., torch.optim.Optimizer],
    left: float,
    left_held_out: float,
) -> None:
    torch.manual_seed(0)
    made = build(text)
    update = optimizer(made.model.parameters())

    def held_out() -> float:
        made.model.eval()
        with torch.no_grad():
            mean = fmean(float(step(made, batch)) for batch in evaluation(text, 4))
        made.model.train()
        return mean

    before, losses = held_out(), []
    for batch in itertools.islice(batches(text), steps):
        loss = step(made, batch)
        update.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()
        losses.append(float(loss.detach()))
    first, last, after = fmean(losses[:5]), fmean(losses[-5:]), held_out()
    print(f"{text}: {steps} steps, {first:.3f} -> {last:.3f}, held out {before:.3f} -> {after:.3f}")
    assert last < left * first
    assert after < left_held_out * before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lenet", "handwritten digits (UCI) at 28×28 pixels: which digit"),
        ("lenet?classes=4", "handwritten digits (UCI) at 28×28 pixels: which digit, modulo 4"),
        ("vit-tiny", "handwritten digits (UCI) at 224×224 pixels: which digit"),
        ("unet-cifar", "handwritten digits (UCI) at 32×32 pixels: which pixels are ink"),
        ("gpt2", "Alice's Adventures in Wonderland, 128 bytes a sample: the next byte"),
        (
            "bert-tiny?seq=32&vocab=100",
            "Alice's Adventures in Wonderland, 32 bytes a sample folded into 99 tokens: "
            "plain or in ROT13",
        ),
    ],
)
def test_one_line_says_what_it_is(text: str, line: str) -> None:
    assert describe(text) == describe(parse(text)) == line


def test_wrong_numbers_are_refused_at_once() -> None:
    with pytest.raises(PoetError, match="start is -1"):
        batches("lenet", start=-1)
    with pytest.raises(PoetError, match="count is -2"):
        evaluation("lenet", -2)
    with pytest.raises(PoetError, match="no model named 'lenot'"):
        batches("lenot")
    assert list(evaluation("lenet", 0)) == []


def test_torch_comes_late_and_its_lack_is_named() -> None:
    """In a fresh interpreter, where torch cannot be imported."""
    program = """
import sys
sys.modules["torch"] = None
import poet.data
print(poet.data.describe("mlp"))
try:
    poet.data.batches("mlp")
except poet.PoetError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == (
        "handwritten digits (UCI) at 28×28 pixels: which digit\n"
        "data for mlp needs torch, which is not installed: "
        f"pip install '{REQUIREMENTS['torch']}'\n"
    )
