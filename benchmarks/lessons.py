"""What demonstrations teach a network that it has not seen, and how well it knows it.

Digits are turned by a quarter, as by a camera that was mounted the other way; passages of a book
are in capitals or not, as many of one as of the other. A card gets samples of the training part;
accuracy is that on held-out ones, of the network in PyTorch with the weights given.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from string import ascii_lowercase as lower
from typing import Any

import torch
from safetensors.torch import save_file

from poet.data import batches, evaluation
from poet.firmware.card.image import read_tensors
from poet.firmware.write.folder import Firmware
from poet.values.plan import Plan
from poet.zoo import build, parse
from poet.zoo.spec import Spec

HELD_OUT = 160
_LETTERS = range(ord(lower[0]), ord(lower[-1]) + 1)
_TO_CAPITAL = ord("a") - ord("A")


def question(model: str) -> str:
    return "capitals or not" if "seq" in parse(model).options else "digits turned by a quarter"


def write_samples(model: str, path: Path, count: int) -> None:
    """Samples for a card, stacked, each a batch of the model's."""
    taken = [batch for _, batch in zip(range(count), _asked(model, held_out=False), strict=False)]
    inputs = enumerate(zip(*(one.values() for one in taken), strict=True))
    save_file({f"input {n}": torch.stack(parts) for n, parts in inputs}, path)


def network_of(folder: Path, made: Firmware, plan: Plan) -> dict[str, Any]:
    """Parameters and buffers as the card has them."""
    return {
        plan.graph.tensors[i].name: array
        for i, array in read_tensors(folder / "card.img", plan.graph, made.card).items()
        if plan.graph.tensors[i].role in ("parameter", "buffer")
    }


def accuracy(model: str, weights: Mapping[str, Any]) -> float:
    """The share of held-out samples that a network with these weights answers right."""
    net = build(model).model
    state = net.state_dict()
    assert state.keys() <= weights.keys() | {n for n in state if "num_batches_tracked" in n}
    kept = {name: torch.tensor(value) for name, value in weights.items() if name in state}
    net.load_state_dict(state | kept)
    net.eval()
    right = count = 0
    with torch.no_grad():
        for batch in _asked(model, held_out=True):
            *inputs, labels = batch.values()
            made = net(*inputs)
            scores = made if isinstance(made, torch.Tensor) else made.logits
            right += int((scores.argmax(1) == labels).sum())
            count += len(labels)
    assert count == HELD_OUT
    return right / count


def _asked(model: str, held_out: bool) -> Iterator[dict[str, torch.Tensor]]:
    spec = parse(model)
    if "seq" in spec.options:
        yield from _capitals(spec, held_out)
        return
    given = evaluation(spec, HELD_OUT // spec.whole("batch")) if held_out else batches(spec, seed=1)
    for batch in given:
        images, labels = batch.values() if isinstance(batch, dict) else batch
        yield {"images": images.rot90(1, (2, 3)), "labels": labels}


def _capitals(spec: Spec, held_out: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of which the second half is in capitals."""
    size = spec.whole("batch")
    plain = Spec(spec.name, {**spec.options, "batch": 1})
    passages: list[torch.Tensor] = []
    for one in evaluation(plain, HELD_OUT) if held_out else batches(plain):
        assert isinstance(one, dict)
        tokens = one["input_ids"]
        if one["labels"].item():
            if not held_out:
                continue
            tokens = _deciphered(tokens)
        passages.append(tokens)
        if len(passages) == size:
            tokens, passages = torch.cat(passages), []
            is_letter = (tokens >= _LETTERS.start) & (tokens < _LETTERS.stop)
            is_letter[: size // 2] = False
            tokens = torch.where(is_letter, tokens - _TO_CAPITAL, tokens)
            yield {"input_ids": tokens, "labels": (torch.arange(size) >= size // 2).long()}


def _deciphered(tokens: torch.Tensor) -> torch.Tensor:
    """ROT13 again."""
    for first in (ord("a"), ord("A")):
        is_letter = (tokens >= first) & (tokens < first + 26)
        tokens = torch.where(is_letter, (tokens - first + 13) % 26 + first, tokens)
    return tokens
