"""Several forward passes of a wrapped model before a backward pass, and some without any."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poet
from tests.torch.live_storage import LiveStorage
from tests.torch.wrapping import X, check_same, mlp, pair, same_step, wrapped


class Blocks(nn.Module):
    """Its activations take more than its parameters, and dropout tells its passes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU()) for _ in range(4)]
        )
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.tanh(block(x)) * 2
        made: torch.Tensor = self.last(self.drop(x))
        return made


ROWS = torch.randn(64, 8, generator=torch.Generator().manual_seed(2))


def siamese(net: Any) -> None:
    (net(ROWS) * net(ROWS.flip(0))).sum().backward()


def discriminated(net: Any) -> None:
    made = net(ROWS).square().mean() + net(ROWS[:40].cos()).sum()
    made.backward()


def oldest_first(net: Any) -> None:
    losses = [net(ROWS * k).square().sum() for k in (1, 2, 3)]
    for loss in losses:
        loss.backward()


def newest_first(net: Any) -> None:
    losses = [net(ROWS * k).square().sum() for k in (1, 2, 3)]
    for loss in losses[::-1]:
        loss.backward()


def summed(net: Any) -> None:
    sum(net(ROWS[16 * k :][:16]).square().sum() for k in range(4)).backward()


def one_after_the_other(net: Any) -> None:
    net(net(ROWS)).square().sum().backward()


def skipping(net: Any) -> None:
    for k in (1, 2, 3, 4):
        loss = net(ROWS * k).square().sum()
        if k % 2:
            continue  # `loss` is still there
        loss.backward()


def evaluating_between(net: Any) -> None:
    loss = net(ROWS).square().sum()
    net.eval()
    with torch.no_grad():
        net(ROWS)
    net.train()
    loss.backward()


LOOPS: list[Callable[[Any], None]] = [
    siamese, discriminated, oldest_first, newest_first, summed, one_after_the_other, skipping,
    evaluating_between,
]  # fmt: skip


def left(net: Any, loop: Callable[[Any], None]) -> Any:
    """What a loop leaves behind."""
    net.zero_grad()
    torch.manual_seed(5)
    loop(net)
    return {
        "parameters": [p.grad for p in net.parameters()],
        "buffers": list(net.buffers()),
        "random": [torch.get_rng_state()],
    }


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, nn.Module]:
    """A budget in which one pass fits, and hardly anything beside it; it pages."""
    model = Blocks()
    plain = copy.deepcopy(model)
    store = poet.FileStore(tmp_path_factory.mktemp("pages"), chunk_bytes=4096)
    roomy: Any = poet.wrap(copy.deepcopy(model), example=(ROWS,), time_limit=0.3)
    beside = 3 * 2 * ROWS.nbytes  # inputs and outputs of passes that wait
    ram = int(roomy.plan.floor_bytes * 1.1) + beside + store.buffer_bytes
    small: Any = poet.wrap(model, example=(ROWS,), ram=ram, store=store, time_limit=0.5)
    return small, plain


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_passes_beside_each_other(loop: Callable[[Any], None]) -> None:
    small, plain = pair(Blocks(), ROWS)
    for _ in range(2):
        check_same(left(small, loop), left(plain, loop))
    assert not small._poet.waiting._steps


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_passes_beside_each_other_in_little_ram(
    loop: Callable[[Any], None], tight: tuple[Any, nn.Module]
) -> None:
    small, plain = tight
    plain.load_state_dict(small.state_dict())
    for _ in range(2):
        check_same(left(small, loop), left(plain, loop))
    assert small.peak_bytes <= small.budget_bytes
    assert not small._poet.waiting._steps


def test_the_budget_holds_for_passes_that_wait() -> None:
    """All storages that are alive, counted from outside; gradients of earlier passes are not the
    step's."""
    model = Blocks()
    roomy: Any = poet.wrap(copy.deepcopy(model), example=(ROWS,), time_limit=0.3)
    whole, floor = roomy.plan.peak_bytes, roomy.plan.floor_bytes
    ram = whole + (whole - floor) // 2
    small: Any = poet.wrap(model, example=(ROWS,), ram=ram, time_limit=0.5)
    siamese(small)
    small.zero_grad()
    small.peak_bytes = 0
    gradients = sum(p.nbytes for p in small.parameters())
    with LiveStorage([ROWS, *small.parameters(), *small.buffers()]) as live:
        one, other = small(ROWS), small(ROWS.flip(0))
        (one * other).sum().backward()
    assert whole < live.peak_bytes <= ram + gradients
    assert whole < small.peak_bytes <= ram


def test_what_does_not_fit_beside_a_pass_that_waits_is_refused() -> None:
    small, plain = pair(nn.Linear(8, 32), ROWS, ram="min")
    for net in (small, plain):
        torch.manual_seed(1)
        first = net(ROWS)
        if net is small:
            state = torch.get_rng_state()
            with pytest.raises(
                poet.Infeasible, match=r"a forward pass waits .* takes [\d,]+ bytes"
            ):
                net(ROWS)
            assert torch.equal(state, torch.get_rng_state())
        first.sum().backward()
    check_same(*({"all": [p.grad for p in net.parameters()]} for net in (small, plain)))


# What a pass finds when it comes to its turn


def test_changes_while_passes_wait() -> None:
    small, plain = pair(mlp())
    for net, error in ((small, poet.PoetError), (plain, RuntimeError)):
        one, other = net(X), net(X)
        with torch.no_grad():
            net.get_parameter("2.weight").add_(1)
        for made in (one, other):
            with pytest.raises(error, match=r"changed in place|modified by an inplace"):
                made.sum().backward()
    small = wrapped(mlp())
    one, other = small(X), small(X)
    one.sum().backward()
    with pytest.raises(poet.PoetError, match="has run already"):
        one.sum().backward()
    other.sum().backward()


class Averaging(nn.Module):
    """Its backward pass reads the average that its forward pass has put in the buffer's place."""

    average: torch.Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(8, 8), in_place
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x)
        now = 0.1 * made.detach().mean(0)
        if self.in_place:
            self.average.mul_(0.9).add_(now)
        else:
            self.average = self.average * 0.9 + now
        return made * self.average


def test_each_pass_has_its_own_buffers() -> None:
    small, plain = pair(Averaging(in_place=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (copy.deepcopy(plain)(X) * plain(X) * plain(2 * X)).sum().backward()
    plain = Averaging(in_place=False)  # what eager PyTorch cannot do otherwise
    plain.load_state_dict(small.state_dict())
    loops: list[Callable[[Any], Any]] = [
        lambda net: (net(X) * net(2 * X)).sum().backward(),
        lambda net: [loss.backward() for loss in [net(k * X).sum() for k in (1, 2, 3)]],
    ]
    for loop in loops:
        for _ in range(2):
            check_same(left(small, loop), left(plain, loop))


def test_autocast_is_that_of_the_call_when_a_pass_runs_again(
    eager_bfloat16: None, tight: tuple[Any, nn.Module]
) -> None:
    def cast(net: Any, rows: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return net(rows)

    def at_once(net: Any) -> None:
        (cast(net, ROWS) * cast(net, ROWS.flip(0))).float().sum().backward()

    def one_by_one(net: Any) -> None:
        for made in [cast(net, ROWS) for _ in range(2)]:
            made.float().sum().backward()

    small, plain = tight
    plain.load_state_dict(small.state_dict())
    check_same(left(small, one_by_one), left(plain, one_by_one))
    with pytest.warns(poet.PoetWarning, match="autocast casts weights once for all calls"):
        check_same(left(small, at_once), left(plain, at_once))


def test_a_weight_that_is_used_twice_is_summed_up_in_another_order() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(torch.tanh(self.layer(x)))
            return made

    small, plain = pair(Tied())
    same_step(small, plain, X)
    with pytest.warns(poet.PoetWarning, match=r"layer.weight is used more than once .* last bits"):
        (small(X) * small(2 * X)).sum().backward()
    for net in (small, plain):
        net.zero_grad()
        for loss in [net(k * X).sum() for k in (1, 2)]:
            loss.backward()  # one by one, as eager adds them
    check_same(*({"all": [p.grad for p in net.parameters()]} for net in (small, plain)))


# Outputs that nobody differentiates


def gradients_handed_in(plan: poet.Plan) -> list[int]:
    graph = plan.graph
    (hands_in,) = [op for op in graph.ops if op.calls[0].kind == "poet.tangent"]
    return [graph.tensors[i].nbytes for i in hands_in.outputs]


class Telling(nn.Module):
    """Returns what it has seen on the way beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        states = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            states.append(x)
        return {"states": states, "logits": x.cumsum(1)}


def test_outputs_without_a_gradient_take_no_place_for_one() -> None:
    small, plain = pair(Telling(), ROWS)
    loss = lambda out: out["logits"].square().sum()  # noqa: E731
    assert gradients_handed_in(small.plan) == 5 * [ROWS.nbytes]
    for rows in (ROWS, ROWS, ROWS[:40]):  # another batch size begins with what it was
        same_step(small, plain, rows, loss=loss)
    plans = list(small._poet.planned.session.plans.values())
    assert [gradients_handed_in(plan) for plan in plans[1:]] == [[ROWS.nbytes], [40 * 8 * 4]]
    small.peak_bytes = 0
    same_step(small, plain, ROWS, loss=loss)
    assert 0 < small.peak_bytes == plans[1].peak_bytes < small.plan.peak_bytes - 3 * ROWS.nbytes


def test_a_language_model_with_labels_has_no_gradient_of_its_logits() -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        vocab_size=500, max_position_embeddings=16,
    )  # fmt: skip
    words = torch.randint(0, 500, (4, 16))
    given = {"input_ids": words, "labels": words}
    model: Any = BertForMaskedLM(config)  # type: ignore[no-untyped-call]
    plain = copy.deepcopy(model)
    small: Any = poet.wrap(model, example=given, time_limit=0.2)
    for net in (small, plain):
        torch.manual_seed(0)
        net(**given).loss.backward()
    check_same(*({"all": [p.grad for p in net.parameters()]} for net in (small, plain)))
    assert gradients_handed_in(small.plan) == [4]
