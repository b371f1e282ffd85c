"""Decisions of a forward pass by tensors that are made of numbers alone, and by others."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poet
from tests.torch.wrapping import X, check_same, run, total, wrapped


class Deciding(nn.Module):
    """One of two layers, by what a function decides."""

    def __init__(self, decide: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(8, 8), nn.Linear(8, 8)
        self.decide = decide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = (self.yes if self.decide(x) else self.no)(x)
        return made


def changed(x: torch.Tensor, how: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    flags = torch.zeros(4)
    view = flags[1:]
    how(view)
    return flags.sum() > 2


def shortened(x: torch.Tensor) -> torch.Tensor:
    """The function's name does not say that it changes its second argument."""
    rows = torch.full((4, 2), 10.0)
    nn.functional.embedding((x[0, :2] > 0).long(), rows, max_norm=1.0)
    return rows


DECISIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "positions": lambda x: (torch.arange(x.shape[1]).diff() == 1).all(),
    "packed": lambda x: (torch.tensor([[0, 1, 0, 1]]).diff() != 1).any(),
    "a number": lambda x: int(torch.full((3,), 2.0).sum()) == 6,
    "an item": lambda x: torch.ones(2, 2).trace().item() > 3,
}
NOT_KNOWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "an input changed by a draw": lambda x: (x + torch.rand_like(x)).sum() > 0,
    "a draw": lambda x: torch.rand_like(torch.zeros(4)).sum() > 2,
    "a draw in place": lambda x: torch.zeros(4).bernoulli_(0.5).sum() > 2,
    "a view filled with an input": lambda x: changed(x, lambda view: view.copy_(x[0, :3])),
    "an item set to an input": lambda x: changed(x, lambda view: view.__setitem__(0, x[0, 0])),
    "an input added": lambda x: changed(x, lambda view: view.__iadd__(x[0, :3])),
    "an operator below": lambda x: changed(x, lambda v: torch.ops.aten.add_(v, x[0, :3])),
    "rows cut short by an input": lambda x: shortened(x).sum() > 20,
    "a result put there": lambda x: changed(x, lambda v: torch.add(v, x[0, :3], out=v)),
}


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_what_is_made_of_numbers_is_known(decide: Callable[..., Any]) -> None:
    model = Deciding(decide)
    plain = copy.deepcopy(model)
    small = wrapped(model)
    for seed in range(2):
        check_same(run(small, total, (X,), {}, seed), run(plain, total, (X,), {}, seed))
    assert (plain.yes.weight.grad is None) != (plain.no.weight.grad is None)


@pytest.mark.parametrize("decide", NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_what_is_not_the_same_each_time_is_refused(decide: Callable[..., Any]) -> None:
    model = Deciding(decide)
    before = torch.get_rng_state()
    with pytest.raises(poet.PoetError, match="depends on the values of its tensors"):
        wrapped(model)
    assert torch.equal(before, torch.get_rng_state())


def test_grouped_attention_is_captured_as_it_runs() -> None:
    """Exported, transformers repeats keys instead, and gradients have other last bits."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, use_cache=False,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    plain = copy.deepcopy(model)
    tokens = torch.randint(1, 64, (4, 32))
    call = {"input_ids": tokens, "labels": tokens}
    small = poet.wrap(model, example=call, time_limit=0.2)
    check_same(*(run(net, lambda out: out.loss, (), call, 0) for net in (small, plain)))
    with pytest.warns(poet.PoetWarning, match="the model decides by the values of a tensor"):
        poet.wrap(
            model, example={**call, "attention_mask": torch.ones_like(tokens)}, time_limit=0.2
        )
