"""The count of live bytes of a running step."""

import threading

import pytest
import torch
from torch._subclasses import FakeTensorMode

import poet
from poet.runtime.step.machine import Machine
from poet.runtime.stores.queued import Order
from poet.values.graph import Graph, Op, Tensor


class HeldStore(poet.MemoryStore):
    """Moves nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def _move(self, order: Order) -> None:
        assert self.go.wait(60)
        super()._move(order)


def test_bytes_that_wait_for_a_page_out_are_given_back_once() -> None:
    # Out, freed while still on its way, in again, freed again: nothing is left.
    x = torch.arange(100.0)
    store = HeldStore()
    store.reserve({0: 400})
    tensors = (
        Tensor(name="x", nbytes=400, role="input", shape=(100,), dtype="float32"),
        Tensor(name="y", nbytes=400),
    )
    graph = Graph(name="one", tensors=tensors, ops=(Op(name="f", inputs=(0,), outputs=(1,)),))
    machine = Machine(
        graph, store, 1000, {}, {0: 0}, wait=False, device=x.device
    )  # fmt: skip
    machine.start({0: x})
    machine.page_out(0, x)
    machine.free(0, x)
    assert machine.live_bytes == 400  # its page-out is under way
    store.go.set()
    machine.page_in(0)
    again = machine.arrive(0)
    assert torch.equal(again, x)
    machine.free(0, again)
    assert machine.live_bytes == 0
    machine.finish()
    store.close()


def test_a_forgotten_store_goes_away_while_a_model_is_traced() -> None:
    """Whenever the collector comes: nothing of torch may run then."""
    store = poet.MemoryStore()
    store.reserve({0: 4096})
    with FakeTensorMode():
        store.close()
        poet.MemoryStore().close()


@pytest.mark.parametrize("budget_bytes", [None, 400, 1 << 30], ids=str)
@pytest.mark.parametrize("make", ["small", "large", "transposed", "inference"])
def test_an_exchange_swaps_values_in_place(make: str, budget_bytes: int | None) -> None:
    rows = 20_000 if make == "large" else 10
    with torch.inference_mode(make == "inference"):
        old, new = torch.randn(rows, 2), torch.randn(rows, 2)
        if make == "transposed":
            old, new = old.t(), new.t()
    shown, values = old.detach(), (old.clone(), new.clone())
    graph = Graph(
        name="one", tensors=(Tensor(name="x", nbytes=400),), ops=(Op(name="f", outputs=(0,)),)
    )
    machine = Machine(graph, None, budget_bytes, {}, {}, wait=True, device=old.device)
    machine.hold(400)  # all of the smallest budget
    version = 0 if make == "inference" else old._version
    made, before = machine.exchange(old, new)
    assert torch.equal(shown, values[1])
    assert torch.equal(made, values[0])
    assert torch.equal(before, values[1])
    assert make == "inference" or old._version > version
    assert budget_bytes is None or machine.peak_bytes <= budget_bytes
