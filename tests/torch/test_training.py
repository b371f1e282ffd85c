"""Training under plans: the same bits as eager PyTorch, and never above the budget."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.errors import OutOfBudget
from poet.planning.figures import keep_all_bytes
from poet.planning.plan import plan_for
from poet.planning.question import terms
from poet.training.planned import problem_here
from poet.training.trainer import Trainer
from poet.values.schedule import Effort
from poet.zoo import build
from tests.torch.eager import loss_of, same_bits, torch_optimizer
from tests.torch.live_storage import LiveStorage

ADAMW = poet.AdamW(lr=0.01, weight_decay=0.1)
MODELS = (
    "resnet18-cifar",
    "mobilenetv2-cifar",
    "bert-tiny?seq=32&vocab=500",
    "gpt2?layers=2&seq=16&vocab=500",
    "unet?size=32&width=8",
)


def train(trainer: Trainer, example: Any) -> torch.Tensor:
    return trainer.step(**example) if isinstance(example, dict) else trainer.step(*example)


def apart(
    trainer: Trainer, plain: nn.Module, example: Any, loss: Any, optimizer: Any, steps: int
) -> list[str]:
    """What is not bit-equal to eager after each of some steps."""
    update = torch_optimizer(optimizer, plain)
    assert update is not None
    found = []
    for step in range(steps):
        plain.zero_grad(set_to_none=True)
        torch.manual_seed(step)
        expected = loss_of(plain, example, loss)
        expected.backward()  # type: ignore[no-untyped-call]
        update.step()
        torch.manual_seed(step)
        if not same_bits(train(trainer, example), expected.detach()):
            found.append(f"loss of step {step}")
    with trainer.unpaged() as model:
        mine = model.state_dict()
        found += [n for n, value in plain.state_dict().items() if not same_bits(value, mine[n])]
        named = dict(plain.named_parameters())
        for name, held in trainer.program.state.items():
            for kept, value in held.items():
                if not same_bits(value, update.state[named[name]][kept]):
                    found.append(f"{kept} of {name}")
    return found


@pytest.mark.parametrize("share", [1.0, 0.6, 0.4, "min"])
@pytest.mark.parametrize("spec", MODELS)
def test_the_same_training_within_the_budget(spec: str, share: Any, tmp_path: Path) -> None:
    made: Any = build(spec)
    plain = copy.deepcopy(made.model)
    program = poet.capture(made.model, made.loss, ADAMW, example=made.example)
    if share == "min":
        asked = terms(
            "laptop", "min", params="paged", transfers="serial", pinned_roles=("input",)
        )  # as a trainer asks
        tight = plan_for(problem_here(program), asked, Effort(time_limit_seconds=2))
        assert tight.peak_bytes is not None
        ram = tight.peak_bytes
    else:
        ram = int(share * keep_all_bytes(problem_here(program)))
    store = poet.FileStore(tmp_path)
    with poet.Trainer(
        made.model,
        made.loss,
        ADAMW,
        example=made.example,
        ram=ram + store.buffer_bytes,
        store=store,
        params="paged" if share == "min" else "auto",  # what streams rounds differently
        time_limit=2,
    ) as trainer:
        assert not apart(trainer, plain, made.example, made.loss, ADAMW, steps=3)
        assert 0 < trainer.peak_bytes <= ram + store.buffer_bytes
        if trainer.plan.budget.transfers == "serial":
            assert trainer.peak_bytes - store.buffer_bytes == trainer.plan.peak_bytes


def test_the_reported_peak_is_what_an_onlooker_sees(tmp_path: Path) -> None:
    made: Any = build("bert-tiny?seq=64&vocab=500")
    program = poet.capture(made.model, made.loss, ADAMW, example=made.example)
    ram = int(0.5 * keep_all_bytes(program.graph))
    store = poet.FileStore(tmp_path)
    trainer = poet.Trainer(
        made.model,
        made.loss,
        ADAMW,
        example=made.example,
        ram=ram + store.buffer_bytes,
        store=store,
        params="paged",
        time_limit=2,
    )
    train(trainer, made.example)
    assert all(p.isnan().all() for p in made.model.parameters())  # they are in the store
    with LiveStorage(made.example.values()) as live:
        train(trainer, made.example)
    assert live.peak_bytes <= ram
    trainer.close()


def test_other_batch_sizes_evaluation_and_learning_rates(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=6")
    plain = copy.deepcopy(made.model)
    optimizer = poet.SGD(lr=0.1, momentum=0.9)
    update = torch_optimizer(optimizer, plain)
    assert update is not None
    x, y = made.example
    with poet.Trainer(
        made.model,
        made.loss,
        optimizer,
        example=made.example,
        store=tmp_path,
        params="paged",
        time_limit=1,
    ) as trainer:
        for count, rate in ((6, 0.1), (4, 0.05), (6, 0.02), (4, 0.01)):
            update.param_groups[0]["lr"] = trainer.learning_rates[0] = rate
            plain.zero_grad()
            expected = F.cross_entropy(plain(x[:count]), y[:count])
            expected.backward()  # type: ignore[no-untyped-call]
            update.step()
            assert same_bits(trainer.step(x[:count], y[:count]), expected.detach())
            with torch.no_grad(), trainer.unpaged() as model:
                assert same_bits(model(x), plain(x))


@pytest.mark.parametrize("params", ["resident", "paged"])
def test_state_dicts_go_on_where_they_were(params: Any, tmp_path: Path) -> None:
    def trainer(model: nn.Module, folder: str) -> poet.Trainer:
        return poet.Trainer(
            model,
            made.loss,
            ADAMW,
            example=made.example,
            store=tmp_path / folder,
            params=params,
            time_limit=1,
        )

    made: Any = build("lenet?batch=2")
    first = trainer(made.model, "a")
    for _ in range(2):
        train(first, made.example)
    kept = first.state_dict()
    for _ in range(2):
        train(first, made.example)
    other = trainer(build("lenet?batch=2", seed=5).model, "b")
    other.load_state_dict(kept)
    for _ in range(2):
        train(other, made.example)
    first.save(tmp_path / "kept.safetensors")
    ends = [first.state_dict(), other.state_dict()]
    assert ends[0]["steps"] == ends[1]["steps"] == 4
    for name, value in ends[0]["model"].items():
        assert same_bits(value, ends[1]["model"][name])
    build("lenet?batch=2").model.load_state_dict(ends[0]["model"])
    other.load_state_dict(kept)
    other.load(tmp_path / "kept.safetensors")
    for name, value in other.state_dict()["model"].items():
        assert same_bits(value, ends[0]["model"][name])
    assert other.steps == 4
    with pytest.raises(poet.PoetError, match="another optimizer"):
        other.load_state_dict({**kept, "optimizer": {}})
    (tmp_path / "torn").write_bytes((tmp_path / "kept.safetensors").read_bytes()[:-50])
    for bad in ("torn", "nowhere"):
        with pytest.raises(poet.PoetError, match=f"cannot read the checkpoint .*{bad}"):
            other.load(tmp_path / bad)
    with pytest.raises(poet.PoetError, match="cannot write the checkpoint"):
        other.save(tmp_path / "no folder" / "kept")
    first.close()
    other.close()


def test_no_plan_and_no_store_are_said() -> None:
    made: Any = build("lenet")
    with pytest.raises(poet.PoetError, match="infeasible"):
        poet.Trainer(made.model, made.loss, poet.SGD(), example=made.example, ram=1000)
    program = poet.capture(made.model, made.loss, poet.SGD(), example=made.example)
    paged = poet.plan(program, "laptop", params="paged", time_limit=1)
    with pytest.raises(poet.PoetError, match="needs a store"):
        poet.Trainer(made.model, made.loss, poet.SGD(), example=made.example, plan=paged)


def test_a_step_beyond_the_budget_raises_before_it_takes_the_bytes() -> None:
    made: Any = build("lenet")
    trainer = poet.Trainer(
        made.model, made.loss, poet.SGD(), example=made.example, ram="100%", time_limit=1
    )
    weight = next(iter(made.model.parameters()))
    larger = torch.empty(weight.numel() + 1)  # a parameter that takes more than it did
    weight.data = larger[:-1].view(weight.shape).copy_(weight)
    with pytest.raises(OutOfBudget, match=r"would bring RAM to .* bytes; the budget is"):
        train(trainer, made.example)
    with pytest.raises(poet.PoetError, match="failed halfway"):
        train(trainer, made.example)


def test_of_a_batch_out_of_larger_data_the_batch_alone_counts() -> None:
    made: Any = build("lenet?batch=2")
    x, y = made.example
    many = x.repeat(50, 1, 1, 1), y.repeat(50)
    trainer = poet.Trainer(
        made.model, made.loss, poet.SGD(), example=made.example, ram="100%", time_limit=1
    )
    expected = copy.deepcopy(made.model)
    assert same_bits(trainer.step(many[0][:2], many[1][:2]), made.loss(expected(x), y).detach())
    assert trainer.peak_bytes <= (trainer.budget_bytes or 0)


def test_gradients_of_parameters_that_are_away_are_laid_out_like_them(tmp_path: Path) -> None:
    """Parameters in the store show one NaN in every place, without strides."""
    made: Any = build("lenet?batch=2")
    expected = copy.deepcopy(made.model)
    with pytest.warns(poet.PoetWarning, match="no optimizer"):
        trainer = poet.Trainer(
            made.model, made.loss, example=made.example, ram="100%", store=tmp_path,
            params="paged", time_limit=1,
        )  # fmt: skip
    assert trainer.is_paged
    x, y = made.example
    made.loss(expected(x), y).backward()
    found = trainer.run(made.example).gradients
    assert all(same_bits(found[name], p.grad) for name, p in expected.named_parameters())
    trainer.close()


def test_a_corrupted_page_stops_the_step(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=2")
    trainer = poet.Trainer(
        made.model,
        made.loss,
        ADAMW,
        example=made.example,
        store=tmp_path,
        params="paged",
        time_limit=1,
    )
    train(trainer, made.example)
    (file,) = tmp_path.glob("poet-pages-*")
    with open(file, "r+b") as pages:
        content = bytearray(pages.read())
        for at in range(0, len(content), 4096):
            content[at] ^= 1
        pages.seek(0)
        pages.write(content)
    with pytest.raises(poet.PoetError, match="page"):
        train(trainer, made.example)


def test_small_budgets_have_small_buffers(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=4")
    with poet.Trainer(
        made.model,
        made.loss,
        ADAMW,
        example=made.example,
        ram="1.2 MB",
        store=tmp_path,
        time_limit=2,
    ) as trainer:
        train(trainer, made.example)
        assert trainer.store_buffer_bytes < 60_000
        assert trainer.peak_bytes <= 1_200_000
    with pytest.raises(poet.PoetError, match="buffers alone take"):
        poet.Trainer(made.model, made.loss, ADAMW, example=made.example, ram=9000, store=tmp_path)


def test_what_it_chose_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    made: Any = build("lenet")
    with caplog.at_level("INFO", "poet.training"):
        poet.Trainer(made.model, made.loss, poet.SGD(), example=made.example, time_limit=1)
    (record,) = [each for each in caplog.records if each.name.startswith("poet.training")]
    assert "peak" in record.getMessage()
    assert "predicted" not in record.getMessage()  # a laptop's rates say nothing of this machine
    assert "\n" not in record.getMessage()
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""  # the library logs, only commands print


# The command line


def test_train_on_real_data(poet_command: Any, tmp_path: Path) -> None:
    done = poet_command(
        "train", "lenet?batch=16", "--steps", "40", "--ram", "6MB", "--store", tmp_path,
        "--time-limit", "2", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    outcome = msgspec.json.decode(done.out)
    assert outcome["last_loss"] < 0.7 * outcome["first_loss"]
    assert outcome["peak_bytes"] <= 6_000_000
    assert not list(tmp_path.iterdir())  # the page file is gone


def test_train_says_what_it_did(poet_command: Any, user_file: Path) -> None:
    done = poet_command("train", f"{user_file}:make", "--steps", "3", "--time-limit", "1")
    assert done.code == 0
    assert "RAM peak" in done.out
    assert poet_command("train", "lenet", "--optimizer", "none").code == 2
    assert poet_command("train", "lenet", "--ram", "10KB", "--steps", "1").code == 3
