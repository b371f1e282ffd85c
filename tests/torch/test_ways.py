"""Ways: steps that depend on the values of their batch, from batch to batch, beside eager PyTorch.

A batch that answers as the captured one did runs by its plan; another answer is captured anew.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers.loss.loss_ctc import ForCTCLoss

import poet
from poet.errors import AnotherWay
from tests.torch.eager import same_bits
from tests.torch.test_coverage import Aligned

SGD = poet.SGD(lr=0.1, momentum=0.9)
Batch = Any


class Labelled(nn.Module):
    """Takes the rows that have labels, in every way in which people do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head, self.drop = nn.Linear(8, 8), nn.Linear(8, 4), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        made = self.head(self.drop(self.fc(x)))
        there = y >= 0
        index = there.nonzero(as_tuple=True)[0]
        if index.size(0) == 0:
            return 0 * made.sum()
        chosen, labels = made[there], torch.masked_select(y, there)
        loss = F.cross_entropy(chosen, labels) + torch.masked_select(made, there[:, None]).mean()
        return loss + made[index].square().mean() + made[torch.where(there)[0]].sum()


def labelled(seed: int) -> Batch:
    torch.manual_seed(seed)
    y = torch.randint(0, 4, (8,))
    y[torch.randperm(8)[: (2, 2, 5, 8)[seed]]] = -100
    return torch.randn(8, 8), y


class Packed(nn.Module):
    """Pads what it has packed, by lengths that are not sorted."""

    def __init__(self, kind: Callable[..., Any], **settings: Any) -> None:
        super().__init__()
        self.net = kind(8, 4, batch_first=True, **settings)
        self.head = nn.Linear(4 * (1 + self.net.bidirectional), 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        made, _ = pad_packed_sequence(self.net(packed)[0], True, 0.5, total_length=6)
        return self.head(made).square().mean()


def sequences(seed: int) -> Batch:
    torch.manual_seed(seed)
    return torch.randn(3, 5, 8), torch.tensor([[5, 2, 3], [5, 2, 3], [1, 4, 4], [2, 2, 1]][seed])


class Decides(nn.Module):
    """Branches, sizes and numbers of its batch; an error that it catches itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        made = self.fc(x)
        try:
            if (n > 6).any():
                raise ValueError
        except ValueError:
            made = made * 2
        if 3 in n:
            made = torch.relu(made)
        width = int(n.max())
        scale = torch.ones(n.min()).sum()  # type: ignore[call-overload]
        scale = scale / width
        return made[:, :width].square().mean() * scale * n.tolist()[0]


def numbers(seed: int) -> Batch:
    torch.manual_seed(seed)
    return torch.randn(4, 8), torch.tensor([[4, 3], [4, 3], [7, 2], [5, 5]][seed])


def aligned(seed: int) -> Batch:
    torch.manual_seed(seed)
    lengths = (torch.randint(4, 6, (2,)), torch.randint(1, 3, (2,)))
    return torch.randn(5, 2, 8), torch.randint(1, 8, (2, 3)), *lengths


WAYS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch], int]] = {
    "labels": (Labelled, labelled, 3),
    "packed LSTM": (lambda: Packed(nn.LSTM, bidirectional=True), sequences, 3),
    "decisions": (Decides, numbers, 3),
    "lengths of CTC": (Aligned, aligned, 1),  # which depend on no values
}


def eagerly(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(*batch)
    return loss


@pytest.mark.filterwarnings("ignore:.*torch.jit.script", "ignore::poet.PoetWarning")
@pytest.mark.parametrize("which", WAYS)
def test_each_batch_goes_its_own_way(which: str) -> None:
    make, batch_of, ways = WAYS[which]
    model = make()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    with poet.Trainer(model, None, SGD, example=batch_of(0), time_limit=0.1) as trainer:
        for seed in (0, 1, 2, 3, 0):
            batch = batch_of(seed)
            torch.manual_seed(seed)
            made = trainer.run(batch).loss
            torch.manual_seed(seed)
            optimizer.zero_grad()
            loss = eagerly(plain, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert same_bits(made, loss.detach())
        assert len(trainer._session.plans) == ways
        tensors = zip(model.parameters(), plain.parameters(), strict=True)
        assert all(same_bits(mine, theirs) for mine, theirs in tensors)


@pytest.mark.filterwarnings("ignore::poet.PoetWarning")
def test_passes_that_wait_go_their_ways_in_one_budget() -> None:
    model = Labelled()
    plain = copy.deepcopy(model)
    small = poet.wrap(model, example=labelled(0), time_limit=0.1)
    for each in (small, plain):
        torch.manual_seed(0)
        (each(*labelled(2)) + each(*labelled(0)) * each(*labelled(3))).backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(mine.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore::poet.PoetWarning")
def test_a_program_refuses_batches_of_another_way() -> None:
    with pytest.warns(poet.PoetWarning, match="test_ways.*depends on values of its batch"):
        program = poet.capture(Labelled(), None, SGD, example=labelled(0))
    before = copy.deepcopy(program.model.state_dict())
    with pytest.raises(AnotherWay, match=r"test_ways.*with 6; for this batch it is 3"):
        program.run(labelled(2))
    assert all(map(torch.equal, before.values(), program.model.state_dict().values()))
    program.run(labelled(1))


@pytest.mark.filterwarnings("ignore::poet.PoetWarning")
def test_the_step_looks_again() -> None:
    """What is asked before a step is asked by the step itself, too."""
    program = poet.capture(Decides(), None, SGD, example=numbers(0), cache=False)
    program._step.asked = None
    program.run(numbers(1))
    with pytest.raises(AnotherWay, match="test_ways"):
        program.run(numbers(3))


@pytest.mark.filterwarnings("ignore::poet.PoetWarning")
def test_no_capture_for_one_batch_is_kept_for_another() -> None:
    torch.manual_seed(0)
    model = Decides()
    for seed in (0, 2, 3):
        program = poet.capture(model, None, example=numbers(seed))
        assert same_bits(program.run().loss, eagerly(model, numbers(seed)).detach())


@pytest.mark.filterwarnings("ignore::poet.PoetWarning")
def test_only_so_many_ways_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet.training.planned._MOST_WAYS", 2)
    model = Labelled()
    with poet.Trainer(model, None, SGD, example=labelled(0), time_limit=0.1) as trainer:
        for seed in (0, 2, 3, 0, 1):
            trainer.run(labelled(seed))
        assert len(trainer._session.plans) == 2


class Speech(nn.Module):
    """The head of transformers, whose labels are selected by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if y.max() >= 8:
            raise ValueError("a label is too large")
        lengths = torch.full((len(x),), x.shape[1])
        loss: Any = ForCTCLoss(self.fc(x), y, lengths, blank_token_id=0)
        return loss


def test_labels_of_speech_are_selected_in_one_way() -> None:
    def spoken(seed: int) -> Batch:
        torch.manual_seed(seed)
        y = torch.randint(1, 8, (3, 4))
        return torch.randn(3, 9, 8), y.where(torch.rand(3, 4) > 0.3, -100)

    model = Speech()
    plain = copy.deepcopy(model)
    program = poet.capture(model, None, example=spoken(0), cache=False)
    for seed in range(4):
        plain.zero_grad()
        loss = eagerly(plain, spoken(seed))
        loss.backward()  # type: ignore[no-untyped-call]
        made = program.run(spoken(seed))
        assert same_bits(made.loss, loss.detach())
        assert plain.fc.weight.grad is not None
        assert same_bits(made.gradients["fc.weight"], plain.fc.weight.grad)
    x, y = spoken(0)
    with pytest.raises(poet.PoetError, match=r"test_ways.*a check of the model"):
        program.run((x, y + 100))


SELECTIONS: dict[str, Callable[..., Any]] = {
    "counted": len,
    "its shape": lambda chosen: chosen.shape[0],
    "a sum": lambda chosen: chosen.sum(),
    "added": lambda chosen: chosen + 1,
    "a kind": lambda chosen: isinstance(chosen, torch.Tensor),
    "in a function": torch.unsqueeze,
}


@pytest.mark.parametrize("how", SELECTIONS)
def test_a_selection_is_not_looked_at(how: str) -> None:
    class Looks(Speech):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            made = self.fc(x)
            chosen = (made > 0).long().masked_select(made > 0)  # of what is computed
            args = (0,) if how == "in a function" else ()
            return made.sum() * float(SELECTIONS[how](chosen, *args) is not None)

    with pytest.raises(poet.PoetError, match="depends on the values"):
        poet.capture(Looks(), None, example=(torch.randn(3, 9, 8), torch.ones(3, 4)), cache=False)


def test_fit_says_what_it_cannot_know() -> None:
    asked: dict[str, Any] = {"example": labelled(0), "ram": "60%", "time_limit": 0}
    with pytest.warns(poet.PoetWarning, match="largest batch is not known"):
        assert poet.fit(Labelled(), None, SGD, **asked).largest == ()
    with pytest.raises(poet.PoetError, match="depends on values of its batch"):
        poet.fit(Labelled(), None, SGD, **asked, largest_batch=True)
