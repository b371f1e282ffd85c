"""What `poet.capture` makes, keeps and refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.planning.figures import figures
from poet.tracer import cache
from poet.tracer.keys import key_of
from poet.values.schedule import Compute
from poet.zoo import build
from tests.torch.eager import captured

X, Y = torch.randn(4, 16), torch.randint(0, 5, (4,))


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 5))


# The graph


def test_roles_phases_and_where_things_become() -> None:
    graph = captured(build("resnet18-cifar"), poet.SGD(momentum=0.9), granularity="op").graph
    roles = {graph.tensors[i].role for i in graph.given}
    assert roles == {"input", "parameter", "buffer", "optimizer_state"}
    assert {op.phase for op in graph.ops} == {"forward", "backward", "update"}
    model = build("resnet18-cifar").model
    parameters = dict(model.named_parameters())
    heirs = [tensor for tensor in graph.tensors if tensor.becomes is not None]
    for tensor in heirs:
        old = graph.tensors[tensor.becomes or 0]
        assert (old.name, old.role, old.nbytes) == (tensor.name, tensor.role, tensor.nbytes)
    assert {t.name for t in heirs if t.role == "parameter"} == parameters.keys()
    buffers = {name for name, _ in model.named_buffers()}
    assert {t.name for t in heirs if t.role == "buffer"} == buffers  # statistics, written once
    for op in graph.ops:
        assert op.recomputable == (op.phase != "update")
        assert op.calls
    names = {op.name for op in graph.ops}
    assert {"conv1", "layer1.0.conv1", "layer4.1.bn2", "fc"} <= names


def test_random_ops_say_what_state_they_need() -> None:
    graph = captured(build("bert-tiny?seq=8&vocab=100"), granularity="op").graph
    draws = [op for op in graph.ops if op.random_state_bytes]
    assert {call.kind for op in draws for call in op.calls} == {"poet.dropout_mask"}
    assert len(draws) == 2 * 3 + 2
    assert {op.random_state_bytes for op in draws} == {torch.get_rng_state().numel()}


def test_views_and_bookkeeping_are_folded() -> None:
    graph = captured(build("bert-tiny?seq=8&vocab=100"), granularity="op").graph
    for op in graph.ops:
        made = [result for call in op.calls for result in call.results if result]
        views = [r for r in made if "value" in r and op.values[r["value"]].view_of is not None]
        kernels = [call for call in op.calls if not any(r in views for r in call.results)]
        assert len(kernels) == 1
        assert kernels[0].kind not in ("aten.detach", "aten.view", "aten.t", "aten.permute")


def test_merged_ops_are_fewer_and_as_good() -> None:
    made = build("bert-tiny?seq=64&vocab=500")
    apart = captured(made, poet.SGD(), granularity="op")
    whole = captured(made, poet.SGD())
    assert len(whole.graph.ops) < 0.75 * len(apart.graph.ops)
    plans = [
        poet.plan(program, "rpi4", transfers="serial", time_limit=5) for program in (whole, apart)
    ]
    assert plans[0].joules == pytest.approx(plans[1].joules)
    assert plans[0].peak_bytes is not None
    assert plans[0].floor_bytes is not None
    ram = (plans[0].peak_bytes + 2 * plans[0].floor_bytes) // 3
    plans = [
        poet.plan(each, "rpi4", ram, transfers="serial", gap=0.02, time_limit=120)
        for each in (whole, apart)
    ]
    assert plans[0].joules is not None
    assert plans[1].bound_joules is not None
    assert plans[0].joules < plans[1].bound_joules * 1.05
    assert whole.run(plan=plans[0]).loss.isfinite()


def test_bert_base_has_few_enough_tensors_to_plan() -> None:
    assert figures("bert-base").planning_tensors <= 400


# Running


def test_a_plan_of_another_program_is_refused() -> None:
    def refusal(planned: str, here: str, **options: Any) -> str:
        plan = poet.plan(captured(build(planned), poet.SGD()), "rpi4", time_limit=1)
        program = captured(build(here), **{"optimizer": poet.SGD()} | options)
        with pytest.raises(poet.PoetError) as caught:
            program.run(plan=plan)
        message = str(caught.value)
        assert plan.graph.fingerprint in message
        assert program.fingerprint in message
        return message

    assert "parameter 1.bias of shape [128] is in one" in refusal("mlp", "lenet")
    assert "The inputs differ" in refusal("mlp", "mlp?batch=2")
    assert "optimizers differ" in refusal("mlp", "mlp", optimizer=poet.SGD(momentum=0.9))
    assert "the calls are not" in refusal("mlp?dropout=0.1", "mlp")
    assert "dropout rate" in refusal("mlp?dropout=0.1", "mlp?dropout=0.2")


def test_a_batch_of_another_shape_is_refused() -> None:
    program = poet.capture(nn.Linear(16, 5), F.cross_entropy, example=(X, Y))
    with pytest.raises(poet.PoetError, match=r"torch.float32 \[3, 16\]; the step was captured for"):
        program.run((X[:3], Y[:3]))
    with pytest.raises(
        poet.PoetError, match=r"the batch is \(\[4, 16\]\); the example was \(\[4, 16\], \[4\]\)"
    ):
        program.run((X,))


def test_another_batch_and_another_learning_rate() -> None:
    model, plain = nn.Linear(16, 5), nn.Linear(16, 5)
    plain.load_state_dict(model.state_dict())
    program = poet.capture(model, F.cross_entropy, poet.SGD(lr=0.1), example=(X, Y))
    update = torch.optim.SGD(plain.parameters(), lr=0.1)
    for rate in (0.1, 0.03):
        x = torch.randn(4, 16)
        update.param_groups[0]["lr"] = program.learning_rates[0] = rate
        update.zero_grad()
        F.cross_entropy(plain(x), Y).backward()  # type: ignore[no-untyped-call]
        update.step()
        program.run((x, Y))
        assert torch.equal(model.weight, plain.weight)


def test_torch_optimizers_with_groups() -> None:
    model, plain = two_layers(), two_layers()
    plain.load_state_dict(model.state_dict())

    def grouped(net: Any) -> torch.optim.Optimizer:
        slow: dict[str, Any] = {"params": list(net[0].parameters()), "weight_decay": 0.3}
        return torch.optim.AdamW([slow | {"lr": 0.01}, {"params": net[1].parameters()}], lr=0.1)

    program = poet.capture(model, F.cross_entropy, grouped(model), example=(X, Y))
    assert program.learning_rates == [0.01, 0.1]
    update = grouped(plain)
    for _ in range(3):
        update.zero_grad()
        F.cross_entropy(plain(X), Y).backward()  # type: ignore[no-untyped-call]
        update.step()
        program.run()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_graph_needs_no_torch_to_be_read(tmp_path: Path) -> None:
    graph = captured(build("lenet"), poet.SGD()).graph
    poet.write_json(graph, tmp_path / "lenet.json")
    read = poet.read_json(tmp_path / "lenet.json", poet.Graph)
    assert read == graph
    assert read.fingerprint == graph.fingerprint
    conv = next(call for op in read.ops for call in op.calls if call.kind == "aten.convolution")
    assert conv.arguments["stride"] == [1, 1]


# The cache


def capture_key(model: nn.Module, loss: Any = F.cross_entropy, example: Any = (X, Y)) -> str | None:
    from poet.tracer.step import Step, take_apart

    return key_of(Step(model, loss, take_apart(example), None), "settings")


class Scaled(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 5)
        self.drop = nn.Dropout(0.1)
        self.table = torch.tensor([1.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.drop(self.head(x)) * self.factor * SCALE
        return scores


SCALE = 3.0


def test_the_key_follows_everything_a_graph_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [capture_key(Scaled())]
    assert keys[0] is not None
    assert capture_key(Scaled()) == keys[0]  # weights do not count

    model = Scaled()
    model.drop.p = 0.2
    keys.append(capture_key(model))
    keys.append(capture_key(Scaled().eval()))
    model = Scaled()
    model.drop.eval()
    keys.append(capture_key(model))
    model = Scaled()
    model.head.weight.requires_grad_(False)
    keys.append(capture_key(model))
    model = Scaled()
    model.table = torch.tensor([2.0])
    keys.append(capture_key(model))
    model = Scaled()
    model.head.register_forward_hook(lambda module, inputs, output: output * 2)
    keys.append(capture_key(model))
    keys.append(capture_key(Scaled(), example=(X[:2], Y[:2])))
    keys.append(capture_key(Scaled(), lambda scores, y: F.cross_entropy(scores, y)))
    keys.append(capture_key(Scaled(), lambda scores, y: F.cross_entropy(scores, y) * 2))
    for weight in (1, 2):
        keys.append(capture_key(Scaled(), lambda s, y, w=weight: F.cross_entropy(s, y) * w))
    for weight in (3, 4):

        def closed(scores: torch.Tensor, y: torch.Tensor, by: int = 0) -> torch.Tensor:
            return F.cross_entropy(scores, y) * weight  # noqa: B023

        keys.append(capture_key(Scaled(), closed))
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    keys.append(capture_key(Scaled()))
    monkeypatch.setattr(Scaled, "factor", 5.0)
    keys.append(capture_key(Scaled()))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_what_cannot_be_read_is_not_cached() -> None:
    model: Any = two_layers()
    model.log = open("/dev/null")  # noqa: SIM115
    assert capture_key(model) is None
    model.log.close()
    assert poet.capture(two_layers(), F.cross_entropy, example=(X, Y)).graph.ops


def test_a_kept_capture_is_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POET_CACHE", str(tmp_path / "kept"))
    made = build("lenet")
    first = captured(made, poet.SGD(lr=0.1))
    (file,) = cache.folder().glob("*.capture")
    monkeypatch.setattr("poet.tracer.pipeline.lower", None)  # so that another trace would fail
    again = captured(made, poet.SGD(lr=0.2))
    assert again.layout == first.layout
    assert again.learning_rates == [0.2]
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TypeError):  # a torn file counts as none
        captured(made, poet.SGD(lr=0.1))


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POET_CACHE", str(tmp_path / "file"))
    assert poet.capture(nn.Linear(16, 5), F.cross_entropy, example=(X, Y)).graph.ops


# Bad input


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"gate": Gate()})

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner["gate"](x)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.head(x)
        if scores.sum() > 0:
            scores = scores * 2
        return scores


class Number(Gate):
    def forward(self, x: torch.Tensor) -> Any:
        return self.head(x) * self.head.weight.sum().item()


class Foreign(Gate):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.from_numpy(self.head(x).detach().numpy() * 2.0)


class Opaque(Gate):
    def forward(self, x: torch.Tensor) -> Any:
        return opaque(self.head(x))


@torch.library.custom_op("poet_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Meddling(Gate):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            self.head.weight.clamp_(-1, 1)
        return self.head(x)


def other_weights() -> torch.optim.Optimizer:
    return torch.optim.SGD(two_layers().parameters(), lr=0.1)


BAD: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "control flow": (
        Branch, (X, Y), F.cross_entropy, None,
        r"inner.gate \(test_capture.py:\d+: if scores.sum\(\) > 0:\): .*torch.where",
    ),
    "item": (
        Number, (X, Y), F.cross_entropy, None,
        r"the model \(test_capture.py:\d+: return self.head\(x\) \* .*item\(\)\): .*no fixed graph",
    ),
    "numpy": (Foreign, (X, Y), F.cross_entropy, None, "the model .*numpy"),
    "no fake kernel": (
        Opaque, (X, Y), F.cross_entropy, None, "poet_tests|register_fake",
    ),
    "shapes": (
        lambda: nn.Sequential(nn.Linear(16, 8), nn.Linear(9, 5)), (X, Y), F.cross_entropy, None,
        "1: .*shapes of the example do not fit",
    ),
    "shapes of the loss": (
        two_layers, (X, Y[:3]), F.cross_entropy, None, "the loss.*do not fit",
    ),
    "dtypes": (two_layers, (X.double(), Y), F.cross_entropy, None, "0: .*dtypes"),
    "not scalar": (two_layers, (X, Y), lambda scores, y: scores, None, r"shape \[4, 5\].*scalar"),
    "whole numbers": (two_layers, (X, Y), lambda scores, y: y.sum(), None, "floating-point"),
    "no loss": (two_layers, (X,), None, None, r"shape \[4, 5\]"),
    "detached": (two_layers, (X, Y), lambda s, y: s.detach().sum(), None, "no trainable parameter"),
    "frozen": (
        lambda: two_layers().requires_grad_(False), (X, Y), F.cross_entropy, None,
        "all of them are frozen",
    ),
    "no parameters": (nn.ReLU, (X, Y), F.cross_entropy, None, "it has none at all"),
    "lazy": (lambda: nn.LazyLinear(5), (X, Y), F.cross_entropy, None, "weight belongs to a lazy"),
    "too few inputs": (two_layers, (Y,), F.cross_entropy, None, "example does not fit"),
    "dict with a loss": (two_layers, {"x": X}, F.cross_entropy, None, "give loss_fn=None"),
    "empty": (two_layers, (), F.cross_entropy, None, "is empty"),
    "no example": (two_layers, 3, F.cross_entropy, None, "this one is of type int"),
    "no module": (lambda: F.relu, (X, Y), F.cross_entropy, None, "must be a torch.nn.Module"),
    "writes a parameter": (Meddling, (X, Y), F.cross_entropy, None, "changes its parameter"),
    "unknown optimizer": (
        two_layers, (X, Y), F.cross_entropy, lambda m: torch.optim.Muon([m[0].weight]),
        "arithmetic of torch.optim.Muon, only",
    ),
    "unknown option": (
        two_layers, (X, Y), F.cross_entropy,
        lambda m: torch.optim.Adam(m.parameters(), fused=True), "fused=True",
    ),
    "tensor as rate": (
        two_layers, (X, Y), F.cross_entropy,
        lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.1)), "lr as a tensor",
    ),
    "optimizer of another model": (
        two_layers, (X, Y), F.cross_entropy, lambda m: other_weights(), "does not have",
    ),
    "optimizer of a part": (
        two_layers, (X, Y), F.cross_entropy,
        lambda m: torch.optim.SGD(m[0].parameters(), lr=0.1), "1.weight gets a gradient, but",
    ),
    "class of optimizer": (
        two_layers, (X, Y), F.cross_entropy, lambda m: poet.SGD, r"as in poet.SGD\(lr=0.01\)",
    ),
    "no bytes": (
        two_layers, (X.to("meta"), Y), F.cross_entropy, None, "has no bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", BAD)
def test_bad_input_is_refused(which: str) -> None:
    make, example, loss, optimizer, message = BAD[which]
    model = make()
    with pytest.raises(poet.PoetError, match=message):
        poet.capture(model, loss, optimizer and optimizer(model), example=example, cache=False)


def test_a_failed_capture_leaves_the_model_as_it_was() -> None:
    model = Branch()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(poet.PoetError):
        poet.capture(model, F.cross_entropy, example=(X, Y))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert type(value) is type(before[name])
        assert torch.equal(value, before[name])
    F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poet.SGD(lr=-1), "lr=-1"),
        (lambda: poet.SGD(lr=float("nan")), "lr=nan"),
        (lambda: poet.SGD(nesterov=True), "needs a momentum"),
        (lambda: poet.Adam(betas=(1.0, 0.9)), "betas="),
    ],
)
def test_optimizers_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# The command line


def test_plan_by_name_and_by_file(poet_command: Any, user_file: Path, tmp_path: Path) -> None:
    for model in ("lenet?batch=2", f"{user_file}:make"):
        plan = tmp_path / "plan.json"
        done = poet_command(
            "plan", model, "--device", "rpi4", "--ram", "1MiB", "--optimizer", "adamw",
            "--time-limit", "2", "-o", plan, "--force",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert poet_command("check", plan).code == 0
        read = poet.read_json(plan, poet.Plan)
        assert any(op.phase == "update" for op in read.graph.ops)
        assert "poet.adamw" in {call.kind for op in read.graph.ops for call in op.calls}


def test_models_are_listed(poet_command: Any) -> None:
    done = poet_command("models", "mlp", "lenet?batch=2")
    assert done.code == 0
    assert "118,282" in done.out
    assert "lenet?batch=2" in done.out
    assert poet_command("models", "--options", "lenet").out.count("lenet") >= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "lenett", "--device", "rpi4"), "Did you mean lenet"),
        (("plan", "lenet"), "give a device"),
        (("plan", "lenet", "--device", "rpi4", "--optimizer", "sgdd"), "There are none, sgd"),
        (
            ("plan", "lenet", "--device", "rpi4", "--optimizer", "sgd?lr=x"),
            "'x' is no value for lr",
        ),
        (
            ("plan", "lenet", "--device", "rpi4", "--optimizer", "sgd?speed=1"),
            "none of sgd's options",
        ),
        (("plan", "nowhere.py:make", "--device", "rpi4"), "there is no file nowhere.py"),
    ],
)
def test_wrong_arguments(poet_command: Any, arguments: Any, message: str) -> None:
    done = poet_command(*arguments)
    assert done.code == 2
    assert message in done.err


def test_wrong_user_files(poet_command: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def broken():\n    raise KeyError('oh')\n\ndef two():\n    return 1, 2\n")
    for function, message in (
        ("broken", "failed: KeyError: 'oh'"),
        ("two", "returned a tuple of 2; it must return (model, example, loss)"),
        ("three", "has no function 'three'. It has broken, two"),
    ):
        done = poet_command("plan", f"{file}:{function}", "--device", "rpi4")
        assert done.code == 2
        assert message in done.err


def test_every_op_runs_once_without_a_plan() -> None:
    program = poet.capture(nn.Linear(16, 5), F.cross_entropy, example=(X, Y))
    plain = program.run().gradients
    every = tuple(Compute(op=k) for k in range(len(program.graph.ops)))
    again = program.run(schedule=every).gradients
    assert plain.keys() == {"weight", "bias"}
    assert all(torch.equal(plain[name], again[name]) for name in plain)
