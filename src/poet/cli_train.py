"""`poet train`: real steps on real data under a RAM budget, with what was predicted beside it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from poet.cli_models import CacheFlag, JsonFlag
from poet.errors import PoetError
from poet.optimizers import parse_optimizer
from poet.quantities import amount_text, bytes_text


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of training came to."""

    model: str
    data: str
    steps: int
    first_loss: float
    last_loss: float
    step_seconds: float
    predicted_seconds: float | None
    peak_bytes: int
    predicted_peak_bytes: int
    ram_bytes: int | None
    paged_bytes: int
    """Written to and read from the store, in all steps."""


def train(
    model: Annotated[
        str, typer.Argument(help="A model (see: poet models), or your_file.py:function.")
    ],
    ram: Annotated[
        str | None, typer.Option(help="RAM budget: 300000, 500KB, 256KiB. Default: no limit.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 20,
    store: Annotated[
        Path | None, typer.Option(help="A folder for pages. Default: nothing is paged.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="sgd, adam, adamw, with options: sgd?lr=0.1&momentum=0.9.")
    ] = "adam?lr=0.001",
    device: Annotated[
        str, typer.Option(help="The board whose rates the plan's costs follow.")
    ] = "laptop",
    params: Annotated[
        Literal["auto", "resident", "paged"],
        typer.Option(help="Where parameters and state live between steps."),
    ] = "auto",
    time_limit: Annotated[float, typer.Option(help="Seconds to plan.", min=0.0)] = 20.0,
    seed: Annotated[int, typer.Option(help="Of weights, data and dropout.", min=0)] = 0,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """Train a model for some steps, never above a RAM budget."""
    chosen = parse_optimizer(optimizer)
    if chosen is None:
        raise PoetError("training needs an optimizer: sgd, adam or adamw")
    made, batches, data = _problem(model, seed)
    import torch

    from poet.training import Trainer

    torch.manual_seed(seed)
    with Trainer(
        made[0], made[2], chosen, made[1], ram=ram, store=store, device=device, params=params,
        time_limit=time_limit, cache=cache,
    ) as trainer:  # fmt: skip
        losses, seconds = [], []
        with _bar(steps, trainer.budget_bytes) as show:
            for _ in range(steps):
                batch = next(batches)
                started = time.perf_counter()
                loss = trainer.run(batch).loss.item()
                seconds.append(time.perf_counter() - started)
                losses.append(loss)
                show(loss, seconds[-1], trainer.peak_bytes, trainer.paged_bytes)
        few = max(1, min(5, steps // 4))
        outcome = Outcome(
            model=model,
            data=data,
            steps=steps,
            first_loss=sum(losses[:few]) / few,
            last_loss=sum(losses[-few:]) / few,
            step_seconds=sorted(seconds)[len(seconds) // 2],
            predicted_seconds=trainer.plan.seconds,
            peak_bytes=trainer.peak_bytes,
            predicted_peak_bytes=(trainer.plan.peak_bytes or 0) + trainer.store_buffer_bytes,
            ram_bytes=trainer.budget_bytes,
            paged_bytes=trainer.paged_bytes,
        )
    if json:
        print(msgspec.json.encode(outcome).decode())
        return
    from rich.console import Console

    from poet.reports.tables import print_table

    print_table(Console(), [("", "left"), ("", "left")], rows_of(outcome))


def rows_of(outcome: Outcome) -> list[tuple[str, str]]:
    """The outcome for people: labels and texts, in reading order."""
    budget = "no limit" if outcome.ram_bytes is None else bytes_text(outcome.ram_bytes)
    return [
        ("trained", f"{outcome.model}, {outcome.steps} steps"),
        ("data", outcome.data),
        ("loss", f"{outcome.first_loss:.4f} at first, {outcome.last_loss:.4f} at last"),
        ("step", f"{amount_text(outcome.step_seconds, 's')} (median), "
                 f"{amount_text(outcome.predicted_seconds or 0.0, 's')} predicted"),
        ("RAM peak", f"{bytes_text(outcome.peak_bytes)}, "
                     f"{bytes_text(outcome.predicted_peak_bytes)} predicted"),
        ("RAM budget", budget),
        ("paged", f"{bytes_text(outcome.paged_bytes)} in all"),
    ]  # fmt: skip


def _problem(model: str, seed: int) -> tuple[tuple[Any, Any, Any], Iterator[Any], str]:
    """Model, example and loss; batches without end; and what they are."""
    from poet.capturing import made_by_name

    made = made_by_name(model, seed)
    if ".py:" in model:

        def same() -> Iterator[Any]:
            while True:
                yield made[1]

        return made, same(), "the example that the file gives, again and again"
    from poet.data import batches, describe

    return made, iter(batches(model, seed)), describe(model)


@contextmanager
def _bar(steps: int, ram_bytes: int | None) -> Iterator[Callable[[float, float, int, int], None]]:
    """A progress bar on a terminal's stderr: loss, step time, RAM peak and budget, pages."""
    if not sys.stderr.isatty():
        yield lambda loss, seconds, peak, paged: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    budget = "" if ram_bytes is None else f" of {bytes_text(ram_bytes)}"
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("", total=steps)

        def show(loss: float, seconds: float, peak: int, paged: int) -> None:
            text = f"loss {loss:.4f}, {amount_text(seconds, 's')}, RAM {bytes_text(peak)}{budget}"
            bar.update(task, advance=1, description=f"{text}, paged {bytes_text(paged)}")

        yield show
