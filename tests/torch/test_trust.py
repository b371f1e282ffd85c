"""No file runs anything: forged captures, operators that reach files, states that cannot be."""

import json
from contextlib import nullcontext, suppress
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.fuzz.files import with_checksum
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import poet
from poet.runtime.state.checkpoints import read_checkpoint, write_checkpoint
from poet.runtime.state.tensor_file import Item, kind_of
from poet.runtime.step.source import literal, written
from poet.runtime.step.streams import Way
from poet.runtime.step.tape import tape_of
from poet.tracer import cache
from poet.tracer.arguments import constant, dtype_named, function_of, target_of
from poet.tracer.private_folder import private_folder
from poet.tracer.program import Program
from poet.values.graph import Call, Graph, Op, Tensor
from poet.values.schedule import Budget, Compute, Free

X, Y = torch.randn(4, 16), torch.randint(0, 5, (4,))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))


def capture() -> Program:
    rates = poet.SGD(lr=0.1, weight_decay=0.25)
    return poet.capture(model(), F.cross_entropy, rates, example=(X, Y))


def trained() -> list[torch.Tensor]:
    program = capture()
    program.run()
    return [value.detach().clone() for value in program.model.parameters()]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("POET_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def forge(folder: Path, change: Any) -> None:
    """Change the one entry as somebody would who has the key."""
    (path,) = folder.glob(f"*{cache.SUFFIX}")
    with private_folder(folder) as kept:
        file = json.loads(kept.read(path.name))
        change(file)
        kept.write(path.name, json.dumps(file).encode())


def test_an_edited_constant_does_not_train(folder: Path) -> None:
    before = trained()
    (path,) = folder.glob(f"*{cache.SUFFIX}")
    text = path.read_bytes()
    assert b'"weight_decay":0.25' in text
    path.write_bytes(text.replace(b'"weight_decay":0.25', b'"weight_decay":0.75'))
    after = trained()
    assert all(map(torch.equal, before, after))


def calls(file: Any) -> Any:
    return [call for op in file["graph"]["ops"] for call in op["calls"]]


def unknown_operator(file: Any) -> None:
    calls(file)[0]["kind"] = "aten.never_heard_of"


def operator_on_files(file: Any) -> None:
    calls(file)[0].update(kind="aten.from_file", arguments={"filename": "x", "shared": True})


def operator_of_a_library(file: Any) -> None:
    calls(file)[0]["kind"] = "prims.add"


def unknown_argument(file: Any) -> None:
    calls(file)[0]["arguments"]["made_up"] = 1


def argument_of_nobody(file: Any) -> None:
    next(c for c in calls(file) if c["kind"] == "poet.sgd")["arguments"]["__class__"] = 1


def more_results(file: Any) -> None:
    calls(file)[-1]["results"] += [None]
    calls(file)[0]["results"] += [None]


def no_calls(file: Any) -> None:
    file["graph"]["ops"][0].update(calls=[], values=[])


def unknown_parameter(file: Any) -> None:
    file["parameters"]["somebody"] = file["parameters"].pop("0.weight")


def another_shape(file: Any) -> None:
    file["graph"]["tensors"][file["parameters"]["0.weight"]]["shape"] = [8, 8]


def larger_than_its_bytes(file: Any) -> None:
    inner = next(t for t in file["graph"]["tensors"] if t.get("role", "activation") == "activation")
    inner["shape"] = [2**40]


def element_of_no_type(file: Any) -> None:
    inner = next(t for t in file["graph"]["tensors"] if t.get("role", "activation") == "activation")
    inner["dtype"] = "save"


def no_such_input(file: Any) -> None:
    file["inputs"] = {str(int(place) + 7): i for place, i in file["inputs"].items()}


@pytest.mark.parametrize(
    "change",
    [
        unknown_operator, operator_on_files, operator_of_a_library, unknown_argument,
        argument_of_nobody, more_results, no_calls, unknown_parameter, another_shape,
        larger_than_its_bytes, element_of_no_type, no_such_input,
    ],
)  # fmt: skip
def test_a_forged_layout_is_traced_anew(
    folder: Path, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = trained()
    forge(folder, change)
    after = trained()
    assert all(map(torch.equal, before, after))
    assert any("traced anew" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    "part", ["x=1", "a b", "import", "x\n", "é", "t1;y", "", "1x", -1, True, 1.5, None, [1], b"x"]
)
def test_only_names_and_numbers_stand_in_source(part: Any) -> None:
    with pytest.raises(poet.PoetError, match="cannot stand"):
        written("f({})", part)
    assert written("{}({}, {})", "f", 7, literal("a'b\n")) == 'f(7, "a\'b\\n")'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1], {"a": 1}, b"x", print])
def test_constants_are_plain(value: Any) -> None:
    with pytest.raises(poet.PoetError, match="not a constant"):
        literal(value)


@pytest.mark.parametrize(
    "kind",
    ["aten.from_file", "aten.from_file.out", "aten.equal", "aten.item", "aten.size",
     "debugprims.load_tensor", "profiler._record_function_enter", "prim.device", "aten", "a.b.c.d",
     "aten.add.__class__", "aten.__class__.__base__"],
)  # fmt: skip
def test_only_operators_that_make_tensors_are_called(kind: str) -> None:
    with pytest.raises(poet.PoetError):
        target_of(kind)


def test_arguments_are_those_of_the_schema() -> None:
    call = Call(kind="aten.relu", arguments={"self": {"tensor": 0}, "other": 1})
    with pytest.raises(poet.PoetError, match="has no argument 'other': it has self"):
        function_of(call)


@pytest.mark.parametrize(
    ("tag", "content"), [("dtype", "save"), ("dtype", "os"), ("layout", "float32"), ("dtype", "")]
)
def test_what_stands_for_a_type_is_one(tag: str, content: str) -> None:
    with pytest.raises(poet.PoetError, match="torch has no"):
        constant(tag, content)
    with pytest.raises(poet.PoetError, match="torch has no"):
        dtype_named("save")


def tape(call: Call) -> Any:
    """The tape of one op, whatever its call is."""
    tensors = (Tensor(name="x", nbytes=4, role="input"), Tensor(name="y", nbytes=4))
    graph = Graph(
        name="g", tensors=tensors, ops=(Op(name="o", inputs=(0,), outputs=(1,), calls=(call,)),)
    )
    return tape_of(graph, (Compute(op=0),), Budget(start={0: "ram"}), {(0, "plain"): Way(0)}, (1,))


def test_a_tape_takes_no_names_from_a_graph_unseen(tmp_path: Path) -> None:
    evil = f"self=open({str(tmp_path / 'canary')!r}, 'w')) or (0"
    call = Call(kind="aten.relu", arguments={"self": {"tensor": 0}}, results=({"tensor": 1},))
    tape(call)
    call.arguments[evil] = 1  # past the checks of the value
    with pytest.raises(poet.PoetError, match="has no argument"):
        tape(call)
    assert not list(tmp_path.iterdir())


def test_a_tape_needs_calls_that_make_the_outputs() -> None:
    with pytest.raises(poet.PoetError, match="no call of op 0"):
        tape(Call(kind="aten.relu", arguments={"self": {"tensor": 0}}, results=(None,)))


def test_an_argument_may_be_a_word_of_python() -> None:
    call = Call(
        kind="aten.uniform",
        arguments={"self": {"tensor": 0}, "from": 2.0, "to": 3.0},
        results=({"tensor": 1},),
    )
    assert "(t0, 2.0, 3.0)" in tape(call).source


def rewritten(path: Path, **changes: Any) -> None:
    """A checkpoint with other words, its checksum right."""
    about, content = read_checkpoint(path)
    tensors = load_file(path)
    items = {
        name: Item(kind_of(tensors[name]), lambda name=name: nullcontext(tensors[name]))  # type: ignore[misc]
        for name in content.places
    }
    for name, value in changes.items():
        msgspec.structs.force_setattr(about, name, value)
    with suppress(ValueError):  # what is written is no longer a checkpoint
        write_checkpoint(path, about, items)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("torch_cpu", b"short"),
        ("torch_cpu", b"\xff" * 5056),
        ("python_words", (1, 2, 3)),
        ("python_words", (-1,) * 625),
        ("python_version", 99),
        ("numpy", {"name": "PCG64"}),
        ("numpy", {"keys": b"123"}),
        ("numpy", {"position": 625}),
        ("numpy", {"position": -1}),
    ],
)
def test_a_random_state_that_cannot_be_changes_nothing(
    tmp_path: Path, field: str, value: Any
) -> None:
    np.random.seed(0)
    path = tmp_path / "a.safetensors"
    with poet.Trainer(model(), F.cross_entropy, poet.SGD(lr=0.1), example=(X, Y)) as trainer:
        trainer.step(X, Y)
        trainer.save(path)
        about, _ = read_checkpoint(path)
        if isinstance(value, dict):
            numpy, value = value, copy(about.random.numpy)
            for name, each in numpy.items():
                msgspec.structs.force_setattr(value, name, each)
        rewritten(path, random=msgspec.structs.replace(about.random, **{field: value}))
        trainer.step(X, Y)
        before = trainer.state_dict()
        drawn = torch.get_rng_state()
        with pytest.raises(poet.PoetError, match="random state"):
            trainer.load(path)
        assert torch.equal(torch.get_rng_state(), drawn)
        after = trainer.state_dict()
        assert after["steps"] == 2
        assert all(torch.equal(after["model"][n], x) for n, x in before["model"].items())


def test_a_checkpoint_of_a_negative_step(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with poet.Trainer(model(), F.cross_entropy, poet.SGD(lr=0.1), example=(X, Y)) as trainer:
        trainer.save(path)
        rewritten(path, steps=-1)
        with pytest.raises(poet.PoetError, match="steps is -1"):
            trainer.load(path)


def test_a_plan_that_frees_what_it_needs_is_refused() -> None:
    """It fits the program by its fingerprint; only its schedule is none."""
    program = capture()
    plan = poet.plan(program, "rpi4", method="keep-all")
    used = program.layout.parameters["0.weight"]
    broken = msgspec.structs.replace(plan, schedule=(Free(tensor=used), *plan.schedule))
    with pytest.raises(poet.PoetError, match="the plan is not valid: op 0"):
        poet.Trainer(
            model(), F.cross_entropy, poet.SGD(lr=0.1, weight_decay=0.25), example=(X, Y),
            plan=broken,
        )  # fmt: skip


def test_a_checkpoint_that_is_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with poet.Trainer(model(), F.cross_entropy, poet.SGD(lr=0.1), example=(X, Y)) as trainer:
        trainer.save(path)
        raw = path.read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        header["__metadata__"]["checkpoint"] = "[" * 9000 + "]" * 9000
        path.write_bytes(with_checksum(header, raw[8 + int.from_bytes(raw[:8], "little") :]))
        with pytest.raises(poet.PoetError, match="cannot read the checkpoint"):
            trainer.load(path)
