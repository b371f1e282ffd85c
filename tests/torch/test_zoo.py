"""The zoo: networks as published, steps that run and can be captured, seeds that decide."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from poet import PoetError
from poet.errors import REQUIREMENTS
from poet.zoo import MODELS, Spec, Task, build, maker, parse

PUBLISHED = {
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet18-cifar": 11_181_642,
    "resnet18-cifar?stem=cifar": 11_173_962,
    "resnet50": 25_557_032,
    "mobilenetv2": 3_504_872,
    "mobilenetv2?width=0.35": 1_677_128,
    "mobilenetv2?width=0.5": 1_968_680,
    "lenet": 61_706,
    "bert-tiny": 4_385_920 + 2 * 128 + 2,
    "bert-base": 109_483_778,
    "distilbert": 66_955_010,
    "gpt2": 124_439_808,
    "vit-tiny": 5_717_416,
}
"""Of the papers' and libraries' own models; a tied table counts once."""

SMALL = [
    "mlp?dropout=0.1",
    "mlp-cifar?layers=1",
    "lenet",
    "lenet-cifar",
    "vgg16?classes=10&classifier=small&size=64",
    "vgg16-cifar",
    "resnet18?classes=10&size=64",
    "resnet18-cifar",
    "resnet50?classes=10&size=64",
    "resnet50-cifar?norm_eval=1",
    "mobilenetv2?classes=10&size=64",
    "mobilenetv2-cifar?width=0.35",
    "unet?size=32&width=4",
    "unet-cifar?width=4",
    "bert-tiny?seq=8&vocab=100",
    "bert-base?layers=1&seq=8&vocab=100",
    "distilbert?layers=1&seq=8&vocab=100",
    "gpt2?layers=2&seq=8&vocab=100",
    "vit-tiny?classes=10&dropout=0.1&layers=2&size=32",
]
"""Every model, at a size that runs in a blink."""

ONCE = [text for text in SMALL if "-cifar" not in text or "norm_eval" in text]
"""Without those that are the same networks for images of another size."""

VARIANTS = [
    "resnet18-cifar?batch=1&stem=cifar",
    "mobilenetv2-cifar?batch=1&norm_eval=1",
    "unet-cifar?norm_eval=1&width=4",
    "bert-tiny?attention=eager&batch=2&seq=8&vocab=100",
    "distilbert?attention=eager&layers=1&seq=8&vocab=100",
    "gpt2?attention=eager&layers=1&seq=8&vocab=100",
    "vit-tiny?attention=eager&dropout=0.1&layers=1&size=32",
]

HEADS = {
    "mlp": ["7.weight", "7.bias"],
    "lenet": ["11.weight", "11.bias"],
    "vgg16-cifar": ["classifier.3.weight", "classifier.3.bias"],
    "resnet18-cifar": ["fc.weight", "fc.bias"],
    "mobilenetv2-cifar": ["classifier.1.weight", "classifier.1.bias"],
    "unet-cifar?width=4": ["head.weight", "head.bias"],
    "bert-tiny?seq=8&vocab=100": ["classifier.weight", "classifier.bias"],
    "distilbert?layers=1&seq=8&vocab=100": ["classifier.weight", "classifier.bias"],
    "gpt2?layers=1&seq=8&vocab=100": ["lm_head.weight"],
    "vit-tiny?layers=1&size=32": ["classifier.weight", "classifier.bias"],
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads of small steps wait for each other for longer than they work."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


class Step(nn.Module):
    """A training step's forward half: what is captured."""

    def __init__(self, made: Task) -> None:
        super().__init__()
        self.model, self.loss = made.model, made.loss

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        if self.loss is None:
            loss: Tensor = self.model(**kwargs).loss
            return loss
        *inputs, target = args
        return self.loss(self.model(*inputs), target)


def arguments(made: Task) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    return ((), made.example) if isinstance(made.example, dict) else (made.example, {})


def run(made: Task) -> Tensor:
    args, kwargs = arguments(made)
    loss: Tensor = Step(made)(*args, **kwargs)
    return loss


def shapes_only(spec: Spec) -> Task:
    """The model without its numbers, which is quick at any size."""
    with torch.device("meta"):
        return maker(spec)(spec)


def test_every_model_is_tried() -> None:
    assert [parse(text).name for text in SMALL] == list(MODELS)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("text", PUBLISHED)
def test_parameters_as_published(text: str) -> None:
    assert parameters(shapes_only(parse(text)).model) == PUBLISHED[text]


@pytest.mark.parametrize("name", MODELS)
def test_default_step_has_the_right_shapes(name: str) -> None:
    # GPT-2 looks into its numbers as it runs
    made = build(name) if name == "gpt2" else shapes_only(parse(name))
    assert parameters(made.model) == MODELS[name].parameters
    assert run(made).shape == ()
    assert made.model.training


def test_parameters_by_hand() -> None:
    assert MODELS["mlp"].parameters == 785 * 128 + 129 * 128 + 129 * 10
    assert MODELS["mlp-cifar"].parameters == (3072 + 1) * 128 + 129 * 128 + 129 * 10
    assert MODELS["lenet"].parameters == 26 * 6 + 151 * 16 + 401 * 120 + 121 * 84 + 85 * 10
    assert MODELS["lenet-cifar"].parameters == MODELS["lenet"].parameters + 2 * 25 * 6
    imagenet_head = 25089 * 4096 + 4097 * 4096 + 4097 * 1000
    features = MODELS["vgg16"].parameters - imagenet_head
    assert MODELS["vgg16-cifar"].parameters == features + 513 * 512 + 513 * 10
    for name, width in (("resnet50", 2048), ("mobilenetv2", 1280)):
        fewer = MODELS[name].parameters - MODELS[f"{name}-cifar"].parameters
        assert fewer == (width + 1) * 990

    def twice(inputs: int, outputs: int) -> int:
        return 9 * (inputs + outputs) * outputs + 4 * outputs

    down = sum(twice(64 << level, 128 << level) for level in range(4)) + twice(3, 64)
    up = sum(twice(2 * w, w) + 4 * 2 * w * w + w for w in (512, 256, 128, 64))
    assert MODELS["unet"].parameters == down + up + 65 * 2
    assert MODELS["unet-cifar"].parameters == down + up + 65 * 10


@pytest.mark.parametrize("text", [*SMALL, *VARIANTS])
def test_every_trained_parameter_gets_a_gradient(text: str) -> None:
    made = build(text)
    run(made).backward()  # type: ignore[no-untyped-call]
    for name, parameter in made.model.named_parameters():
        assert parameter.requires_grad, name
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(parameter.grad.any() for parameter in made.model.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [*ONCE, *VARIANTS])
def test_the_step_can_be_captured(text: str) -> None:
    spec = parse(text)
    made = build(spec)
    args, kwargs = arguments(made)
    captured = torch.export.export(Step(made), args, kwargs, strict=False)
    kinds = {str(node.target) for node in captured.graph.nodes}
    dropout = {"aten.dropout.default"} if spec.options.get("dropout") else set()
    assert dropout <= kinds
    if "attention" in spec.options:
        fused = "aten.scaled_dot_product_attention.default" in kinds
        assert fused == (spec.options["attention"] == "sdpa")
    norms = [one for one in captured.graph.nodes if one.target is torch.ops.aten.batch_norm.default]
    assert bool(norms) == ("norm_eval" in spec.options)
    assert all(norm.args[5] == (not spec.options["norm_eval"]) for norm in norms)
    torch.manual_seed(7)
    again = captured.module()(*args, **kwargs)
    torch.manual_seed(7)
    assert torch.equal(run(made), again)


@pytest.mark.parametrize("text", HEADS)
def test_head_alone(text: str) -> None:
    spec = parse(text)
    made = build(Spec(spec.name, spec.options | {"train": "head"}))
    run(made).backward()  # type: ignore[no-untyped-call]
    reached = [name for name, value in made.model.named_parameters() if value.grad is not None]
    trained = [name for name, value in made.model.named_parameters() if value.requires_grad]
    assert reached == trained == HEADS[text]
    torch.manual_seed(3)
    alone = run(made)
    torch.manual_seed(3)
    assert torch.equal(alone, run(build(spec)))


@pytest.mark.parametrize("name", ["resnet18-cifar", "mobilenetv2-cifar", "unet-cifar"])
def test_norm_eval_holds_the_statistics(name: str) -> None:
    for held in (0, 1):
        made = build(Spec(name, {"norm_eval": held}))
        norms = [one for one in made.model.modules() if isinstance(one, nn.BatchNorm2d)]
        assert len(norms) > 10
        assert made.model.training
        assert {one.training for one in norms} == {not held}
        assert {one.momentum for one in norms} == {0.1}
        before = norms[-1].state_dict()["running_mean"].clone()
        assert bool(before.any()) == bool(held)  # of real maps, not the 0 it starts from
        run(made)
        assert torch.equal(norms[-1].state_dict()["running_mean"], before) == bool(held)


def state(made: Task) -> dict[str, Tensor]:
    example = made.example if isinstance(made.example, dict) else dict(enumerate(made.example))
    return made.model.state_dict() | {f"example {name}": value for name, value in example.items()}


@pytest.mark.parametrize("text", ["lenet", "mobilenetv2-cifar", "gpt2?layers=1&seq=8&vocab=100"])
def test_a_seed_decides_everything_and_the_callers_state_nothing(text: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = state(build(text, seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    with torch.device("meta"):
        second = state(build(text, seed=5))
    other = state(build(text, seed=6))
    assert first.keys() == second.keys() == other.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    drawn = [name for name in first if first[name].ndim > 1]
    assert len(drawn) > 5
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_options_reach_the_model() -> None:
    images, target = build("resnet18-cifar?batch=3&channels=1&classes=7&size=40").example
    assert isinstance(images, Tensor)
    assert isinstance(target, Tensor)
    assert images.shape == (3, 1, 40, 40)
    assert target.shape == (3,)
    words = build("bert-tiny?batch=3&classes=5&layers=1&seq=9&vocab=3&dropout=0.3")
    assert isinstance(words.example, dict)
    assert words.example["input_ids"].shape == (3, 9)
    assert set(words.example["input_ids"].flatten().tolist()) == {1, 2}  # 0 is padding
    assert set(words.example) == {"input_ids", "labels"}
    rates = {one.p for one in words.model.modules() if isinstance(one, nn.Dropout)}
    assert rates == {0.3}
    pixels = shapes_only(parse("unet?batch=2&classes=5&size=48&width=4"))
    assert isinstance(pixels.example, tuple)
    assert pixels.model(pixels.example[0]).shape == (2, 5, 48, 48)
    assert pixels.example[1].shape == (2, 48, 48)


@pytest.mark.parametrize("text", [text for text in SMALL if "dropout" in parse(text).options])
def test_dropout_is_all_the_randomness(text: str) -> None:
    spec = parse(text)
    none = build(Spec(spec.name, spec.options | {"dropout": 0}))
    assert torch.equal(run(none), run(none))
    some = build(Spec(spec.name, spec.options | {"dropout": 0.4}))
    assert not torch.equal(run(some), run(some))


@pytest.mark.parametrize("name", [name for name in MODELS if "size" in MODELS[name].options])
def test_the_least_size_works_and_less_is_refused(name: str) -> None:
    least = MODELS[name].options["size"].least
    assert least is not None
    assert run(shapes_only(Spec(name, {"size": int(least), "batch": 2}))).shape == ()
    with pytest.raises(PoetError, match=f"size of {name} is '{int(least) - 1}'"):
        Spec(name, {"size": int(least) - 1})


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("resnet18", (8, 16, 32, 33, 64)),
        ("mobilenetv2", (8, 16, 32, 33, 64)),
        ("resnet50-cifar?stem=cifar", (8, 9, 16)),
        ("unet?width=4", (16, 32)),
    ],
)
def test_one_value_a_channel_is_refused_exactly_where_torch_refuses_it(
    text: str, sizes: tuple[int, ...]
) -> None:
    spec = parse(text)
    refused = []
    for size in sizes:
        made = shapes_only(Spec(spec.name, spec.options | {"size": size, "batch": 2}))
        alone = spec.options | {"size": size, "batch": 1}
        try:
            made.model(torch.empty(1, 3, size, size, device="meta"))
        except ValueError:
            refused.append(size)
        else:
            assert Spec(spec.name, alone)
            continue
        with pytest.raises(PoetError, match="one value a channel") as caught:
            Spec(spec.name, alone)
        way_out = re.search(r"Try batch=2, size=(\d+) or norm_eval=1", str(caught.value))
        assert way_out
        for option, value in (("batch", 2), ("size", int(way_out[1])), ("norm_eval", 1)):
            assert Spec(spec.name, alone | {option: value})
    assert 0 < len(refused) < len(sizes)


def test_more_than_the_machine_has() -> None:
    with pytest.raises(PoetError, match="size=4096 does not fit into this machine's memory"):
        build("resnet18?batch=65536&channels=1024&size=4096")


def test_a_step_says_nothing() -> None:
    """In a fresh interpreter, for some things Hugging Face says only once."""
    program = f"""
from poet.zoo import build
for text in {[text for text in SMALL if MODELS[parse(text).name].file == "hugging_face"]}:
    model, example, _ = build(text)
    model(**example).loss.backward()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("missing", "model"), [("torch", "lenet"), ("torch", "gpt2"), ("transformers", "gpt2")]
)
def test_a_missing_package_is_named(missing: str, model: str) -> None:
    """In a fresh interpreter, where the package cannot be imported; the catalogue still works."""
    program = f"""
import sys
sys.modules[{missing!r}] = None
import poet, poet.zoo
assert poet.zoo.parse("gpt2?layers=2").text == "gpt2?layers=2"
assert not {{"torch", "transformers"}} & {{name for name, module in sys.modules.items() if module}}
try:
    poet.zoo.build({model!r})
except poet.PoetError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == (
        f"{model} needs {missing}, which is not installed: pip install '{REQUIREMENTS[missing]}'\n"
    )
