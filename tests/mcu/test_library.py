"""The library's own interface: steps, inference, saving, and what it answers to nonsense."""

import ctypes
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from poet.firmware.write.text import LIBRARY
from poet.tracer.by_name import made_by_name
from poet.values.schedule import PageOut

from .conftest import NETS, ROOT, Emitter, Planner
from .forced import forced_plan, graph_in_pieces, with_random_ways, written_for_host
from .library import Library

MLP = "mlp?size=8&hidden=16&layers=1&dropout=0.3"


def evaluated(model: str, library: Library, batch: list[np.ndarray]) -> np.ndarray:
    """What the model returns with these weights, as PyTorch evaluates it."""
    name = f"{ROOT}/{model}" if model.startswith("tests/") else model
    net = made_by_name(name).model.eval()
    found = {name: torch.from_numpy(x) for name, x in library.weights().items()}
    known = net.state_dict()
    net.load_state_dict({name: x for name, x in found.items() if name in known})
    with torch.no_grad():
        made: np.ndarray = net(torch.from_numpy(batch[0].copy())).numpy()
        return made


@pytest.mark.parametrize(
    ("model", "ram", "params", "optimizer"),
    [
        (MLP, "22 KB", "paged", "adam"),
        (MLP, "40 KB", "resident", "sgd?momentum=0.9"),
        (f"{NETS}:resnet8", "120 KB", "paged", "sgd?momentum=0.9"),
        (f"{NETS}:separable", "48 KB", "paged", "sgd?momentum=0.9"),
        (f"{NETS}:thin_resnet18", "104 KB", "streamed", "sgd"),
    ],
)
def test_inference_is_pytorchs_and_changes_nothing(
    model: str, ram: str, params: str, optimizer: str, planned: Planner, emitted: Emitter
) -> None:
    folder = emitted(planned(model, ram, optimizer, params=params))
    library, undisturbed = Library(folder), Library(folder)
    library.check(library.init())
    undisturbed.check(undisturbed.init())
    for step in range(3):
        loss = library.train(library.batch(step))
        assert loss == undisturbed.train(step)
        batch = library.batch(3 - step)
        (made,) = library.infer([batch[0], None])
        exact = evaluated(model, library, batch)
        assert np.abs(made - exact).max() < 1e-5 * max(1, np.abs(exact).max())
    others = undisturbed.weights()
    for name, x in library.weights().items():
        assert x.tobytes() == others[name].tobytes(), name


@pytest.mark.parametrize("seed", [0, 1])
def test_inference_writes_what_it_reads_in_tiles(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An activation that is paged out, and read by the next op from the card."""
    monkeypatch.setattr("poet.calls.pieces.ways.LEAST_BYTES", 64)
    graph = graph_in_pieces(f"{ROOT}/{NETS}:mixed", "sgd")
    plan = forced_plan(graph, *with_random_ways(graph, random.Random(seed)))
    outs = {s.tensor for s in plan.schedule if isinstance(s, PageOut)}
    assert any(
        stream.tensor in outs and graph.ops[run.op].phase == "forward"
        for run in plan.streamed_runs
        for stream in plan.costs.ops[run.op][run.variant].reads
    )
    written_for_host(plan, tmp_path / "c")
    library = Library(tmp_path / "c")
    library.check(library.init())
    for step in range(2):
        library.train(step)
        batch = library.batch(1 - step)
        (made,) = library.infer([batch[0], None])
        exact = evaluated(f"{NETS}:mixed", library, batch)
        assert np.abs(made - exact).max() < 1e-5 * max(1, np.abs(exact).max())


def test_a_stream_of_samples_trains_as_the_card_does(planned: Planner, emitted: Emitter) -> None:
    folder = emitted(planned(MLP, "13 KB"))
    stream, stored = Library(folder), Library(folder)
    stream.samples = [stream.batch(n) for n in range(3)]
    for each in (stream, stored):
        each.check(each.init())
    assert [stream.train(None) for _ in range(3)] == [stored.train(n) for n in range(3)]
    loss = ctypes.c_float()
    assert stream.c.poet_train_next(stream.context, ctypes.byref(loss)) == 10  # no more samples
    assert stream.train(0) == stored.train(0)  # and none is missed


def test_nonsense_is_answered(planned: Planner, emitted: Emitter) -> None:
    library = Library(emitted(planned(MLP, "40 KB", params="resident")))
    c, net = library.c, library.context
    loss, batch = ctypes.c_float(), library.batch(0)
    argument, not_ready, no_index = 1, 2, 9
    assert c.poet_init(None, ctypes.byref(library.io)) == argument
    assert c.poet_init(net, None) == argument
    assert c.poet_train_step(net, None, None) == not_ready
    library.check(library.init())
    assert c.poet_train_step(net, None, ctypes.byref(loss)) == argument
    assert c.poet_infer(net, None, None) == argument
    assert c.poet_get_weights(net, 99, 0, net, 1) == argument
    assert c.poet_get_weights(net, 0, 4000, net, 4000) == argument
    for rate in (-1.0, float("nan"), float("inf")):
        assert c.poet_set_learning_rate(net, ctypes.c_double(rate)) == argument
    assert c.poet_error_text(99) == b"no error code of POET"
    before = library.weights()
    with pytest.raises(AssertionError, match="index or a label"):
        library.train([batch[0], np.array([10])])
    index, extent = ctypes.c_int64(), ctypes.c_int32()
    assert c.poet_bad_index(net, ctypes.byref(index), ctypes.byref(extent)) == 0
    assert (index.value, extent.value) == (10, 10)
    assert c.poet_train_stored(net, 0, None) == not_ready
    library.check(library.load())
    assert all((x == before[name]).all() for name, x in library.weights().items())
    library.train(0)
    library.is_worn_out = True
    with pytest.raises(AssertionError, match="cannot be written"):
        library.check(library.save())
    assert c.poet_save(net) == not_ready
    assert no_index == 9


def test_a_check_of_the_models_own_ends_the_step(planned: Planner, emitted: Emitter) -> None:
    library = Library(emitted(planned(f"{NETS}:watched", "2 KB", "sgd", params="resident")))
    op, (x, target) = ctypes.c_uint32(), library.batch(0)
    library.check(library.init())
    library.train([x, target])
    library.check(library.save())
    before = library.weights()
    assert library.c.poet_failed_check(library.context, ctypes.byref(op)) == 0
    assert op.value == 2**32 - 1
    with pytest.raises(AssertionError, match="a check in the model or its loss fails"):
        library.train([x - 200, target])
    assert library.c.poet_failed_check(library.context, ctypes.byref(op)) == 0
    assert any(call.kind == "poet.required" for call in library.graph.ops[op.value].calls)
    assert library.c.poet_train_stored(library.context, 0, None) == 2  # it is not whole any more
    library.check(library.load())
    assert all((found == before[name]).all() for name, found in library.weights().items())
    library.train([x, target])


def test_the_learning_rate_is_saved(planned: Planner, emitted: Emitter) -> None:
    folder = emitted(planned(MLP, "40 KB", "sgd", params="resident"))
    library = Library(folder)
    library.check(library.init())
    library.check(library.c.poet_set_learning_rate(library.context, ctypes.c_double(0.0)))
    before = library.weights()
    library.train(0)
    assert all((x == before[name]).all() for name, x in library.weights().items())
    library.check(library.save())
    again = Library(folder)
    again.card = library.card
    again.check(again.init())
    again.train(1)
    assert all((x == before[name]).all() for name, x in again.weights().items())


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_stands_alone(language: str, tmp_path: Path) -> None:
    source = tmp_path / "x.txt"
    source.write_text('#include "poet.h"\nstatic struct poet net;\nint main(void)\n{\n'
                      "    return poet_save(&net) == POET_OK;\n}\n")  # fmt: skip
    standard = {"c": "c11", "c++": "c++11"}[language]
    words = ["gcc", "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([*words, f"-I{LIBRARY}", "-fsyntax-only", str(source)], check=True)
