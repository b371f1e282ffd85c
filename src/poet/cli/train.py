"""`poet train`: real steps on real data under a RAM budget, with what was predicted beside it.

With `--checkpoint` a run survives whatever happens to it: Ctrl-C and SIGTERM end it after a step
that is whole, and `--resume` goes on from the last checkpoint with the same bits, as if nothing had
happened. Saving and loading are the runtime's; what is here is when, and what a person is told.
"""

import contextlib
import itertools
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from poet.cli.console import PAIRS, Seldom, print_json, say, show_table
from poet.cli.exit_codes import DONE, INTERRUPTED
from poet.cli.options import (
    CacheFlag,
    ForceFlag,
    HereRamOption,
    JsonFlag,
    ParamsOption,
    TrainedModelArgument,
)
from poet.errors import PoetError
from poet.planning.defaults import HERE, OPTIMIZER
from poet.planning.question import MIN
from poet.profiling.power import find_counter
from poet.reports import waiting
from poet.reports.summaries import (
    PREDICTION_COLUMNS,
    TrainingSummary,
    prediction_rows,
    source_rows,
    training_rows,
)
from poet.values.files import check_writable
from poet.values.optimizers import Optimizer, parse_optimizer
from poet.values.plan import Plan
from poet.values.quantities import amount_text, bytes_text, parse_bytes, parse_share

if TYPE_CHECKING:
    from poet.runtime.state.checkpoints import Origin
    from poet.runtime.state.generations import Generations
    from poet.tracer.by_name import Made
    from poet.training.trainer import Trainer

_EVERY = 100
Stream = Callable[[int, str | None], Iterator[Any]]
"""Batches from a number on, where the one before has this digest."""


def train(
    model: TrainedModelArgument,
    ram: HereRamOption = None,
    steps: Annotated[
        int, typer.Option(help="Training steps in all, with those before a resume.", min=1)
    ] = 20,
    store: Annotated[
        Path | None, typer.Option(help="A folder for pages. Default: nothing is paged.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="sgd, adam, adamw, with options: sgd?lr=0.1&momentum=0.9.")
    ] = OPTIMIZER,
    device: Annotated[
        str | None,
        typer.Option(help=f"The board whose rates the plan's costs follow. Default: {HERE}."),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Measured costs (poet profile) to plan with.")
    ] = None,
    params: ParamsOption = "auto",
    accumulate: Annotated[
        int, typer.Option(help="Steps whose gradients make one update; of one batch each.", min=1)
    ] = 1,
    clip_norm: Annotated[
        float | None, typer.Option(help="The most that the norm of all gradients may be.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds to plan.", min=0.0)] = 20.0,
    seed: Annotated[int, typer.Option(help="Of weights, data and dropout.", min=0)] = 0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A folder for checkpoints, from which to resume.")
    ] = None,
    every: Annotated[
        int | None, typer.Option(help=f"Steps from checkpoint to checkpoint: {_EVERY}.", min=1)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest good checkpoint.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the final weights here (.safetensors).")
    ] = None,
    force: ForceFlag = False,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """Train a model for some steps, never above a RAM budget."""
    chosen = parse_optimizer(optimizer)
    if chosen is None:
        raise PoetError("training needs an optimizer: sgd, adam or adamw")
    if checkpoint is None and (resume or every is not None):
        what = "--resume" if resume else "--every"
        raise PoetError(f"{what} needs the folder with the checkpoints: --checkpoint DIR")
    if save is not None:
        check_writable(save, force)
    import torch

    from poet.runtime.state.checkpoints import Origin
    from poet.runtime.state.generations import Generations
    from poet.training.interrupts import Interrupts
    from poet.training.resuming import check_data, check_rates, go_on_from, kept_plan

    origin = Origin(
        model=_known_name(model),
        seed=seed,
        device=device or (HERE if costs is None else str(costs)),
        params=params,
        ram=_known_ram(ram),
        has_store=store is not None,
    )
    with ExitStack() as ending:
        folder = None if checkpoint is None else ending.enter_context(Generations(checkpoint))
        found = None if folder is None else go_on_from(folder, resume, origin, say)
        made, stream, data = _problem(model, seed)
        if found is not None:
            check_data(found, made.data is not None)
        made_before = None if found is None else found.about.origin.data_digest
        trainer = _trainer(
            made, chosen, kept_plan(found, origin), ram=ram, store=store,
            device=device, costs=costs, params=params, time_limit=time_limit, cache=cache,
            accumulate=accumulate, clip_norm=clip_norm,
        )  # fmt: skip
        # Parameters are not brought back into RAM, where they might pass the budget.
        ending.callback(trainer.close, bring_back=False)
        for path in trainer.removed_stale:
            say(f"removed {path}: pages of a process that was killed")
        torch.manual_seed(seed)
        if found is not None:
            trainer.check_fits(found)
            check_rates(found, trainer.learning_rates)
            trainer.load(found)
            say(f"going on from step {trainer.steps:,} in {checkpoint}")
        if folder is not None:
            folder.write_plan(trainer.plan)
        kept = None if found is None else trainer.steps
        run = _TrainingRun(trainer, folder, origin, kept, has_own_data=made.data is not None)
        with Interrupts(say) as interrupts, _bar(trainer, steps) as show:
            if trainer.steps and made.data is not None and trainer.steps < steps:
                say(f"going through the {trainer.steps:,} batches of before")
            batches = stream(trainer.steps, made_before)
            while trainer.steps < steps and not interrupts.asked:
                run.step(next(batches))
                show(run.losses[-1], run.seconds[-1])
                if trainer.steps % (every or _EVERY) == 0:
                    run.keep()
            run.keep()
            if save is not None:
                trainer.save_weights(save)
        few = max(1, min(5, len(run.losses) // 4))
        summary = TrainingSummary(
            model=model,
            data=data,
            steps=trainer.steps,
            first_loss=_mean(run.losses[:few]),
            last_loss=_mean(run.losses[-few:]),
            step_seconds=median_high(run.seconds) if run.seconds else None,
            predicted_seconds=trainer.plan.seconds if trainer.is_measured else None,
            peak_bytes=trainer.peak_bytes,
            predicted_peak_bytes=(trainer.plan.peak_bytes or 0) + trainer.store_buffer_bytes,
            ram_bytes=trainer.budget_bytes,
            paged_bytes=trainer.paged_bytes,
            step_paged_bytes=median_high(run.paged) if run.paged else None,
            predicted_paged_bytes=trainer.plan.paged_bytes,
            step_joules=median_high(run.joules) if run.joules else None,
            predicted_joules=trainer.plan.joules if trainer.is_measured else None,
            energy=run.energy,
            costs=trainer.costs_text,
            resumed_from=None if found is None else found.about.steps,
            interrupted=trainer.steps < steps,
            checkpoint=None if checkpoint is None else str(checkpoint),
            weights=None if save is None else str(save),
        )
    _print(summary, json)
    if not run.losses and not summary.interrupted:
        say(f"{checkpoint} is at step {summary.steps:,} already, and --steps {steps:,} is in all")
    if summary.interrupted:
        how = (
            f"go on with: {_again(save)}" if checkpoint else "give --checkpoint DIR to go on later"
        )
        say(f"interrupted after step {summary.steps:,} of {steps:,}; {how}")
        raise typer.Exit(DONE if checkpoint or save else INTERRUPTED)


def _print(summary: TrainingSummary, json: bool) -> None:
    if json:
        print_json(summary)
        return
    show_table(PAIRS, training_rows(summary))
    if rows := prediction_rows(summary):
        print()
        show_table(PREDICTION_COLUMNS, rows)
        print()
        show_table(PAIRS, source_rows(summary))


class _TrainingRun:
    """Steps with their losses and times, and checkpoints where there is a folder for them."""

    def __init__(
        self,
        trainer: "Trainer",
        folder: "Generations | None",
        origin: "Origin",
        kept: int | None,
        has_own_data: bool,
    ) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.paged: list[int] = []
        self.joules: list[float] = []
        self._counter = find_counter(trainer.program.model_device.type)
        self.energy = "not known: no counter was found here"
        if self._counter is not None:
            self.energy = f"counted by {self._counter.name}"
        elif trainer.is_measured:
            watts = f"{trainer.mean_watts:.3g} W"
            self.energy = f"at the plan's mean of {watts}: no counter was found here"
        self._trainer, self._folder, self._origin = trainer, folder, origin
        self._kept = kept
        """The step of the last checkpoint."""
        self._has_own_data, self._batch = has_own_data, None

    def step(self, batch: Any) -> None:
        trainer, counter = self._trainer, self._counter
        paged = trainer.paged_bytes
        joules = 0.0 if counter is None else counter.joules()
        started = time.perf_counter()
        try:
            loss = trainer.run(batch).loss.item()
        except Exception as error:
            own = isinstance(error, PoetError)
            what = str(error) if own else f"{type(error).__name__}: {error}"
            if self._kept is not None:
                last = f"The last checkpoint is of step {self._kept:,}; go on with: {_again(None)}"
                what = f"{what.rstrip('.')}. {last}"
            raise PoetError(f"step {self._trainer.steps + 1:,} failed: {what}") from error
        self._batch = batch
        self.seconds.append(time.perf_counter() - started)
        self.losses.append(loss)
        self.paged.append(trainer.paged_bytes - paged)
        if counter is not None:
            self.joules.append(counter.joules() - joules)
        elif trainer.is_measured:
            self.joules.append(trainer.mean_watts * self.seconds[-1])

    def keep(self) -> None:
        """Save a checkpoint, if there is a folder and something new."""
        now = self._trainer.steps
        if self._folder is None or now == self._kept:
            return
        from poet.training.own_data import digest_of

        digest = digest_of(self._batch) if self._has_own_data and now else None
        about = msgspec.structs.replace(self._origin, data_position=now, data_digest=digest)
        self._trainer.save(self._folder, about)
        self._kept = now


def _trainer(made: "Made", optimizer: Optimizer, plan: Plan | None, **options: Any) -> "Trainer":
    """A trainer that follows the plan, or where that is for another graph, makes its own."""
    from poet.training.trainer import Trainer

    model, example, loss_fn, _ = made
    if plan is not None:
        with contextlib.suppress(PoetError):  # whatever else is wrong will be said again
            trainer = Trainer(model, loss_fn, optimizer, example=example, plan=plan, **options)
            say("using the plan of before")
            return trainer
    return Trainer(model, loss_fn, optimizer, example=example, **options)


def _problem(model: str, seed: int) -> tuple["Made", Stream, str]:
    """Model, example and loss; batches without end; and what they are."""
    from poet.tracer.by_name import made_by_name

    made = made_by_name(model, seed)
    if made.data is not None:
        from poet.training.own_data import OwnData

        return made, OwnData(made.data, made.example, model, seed).batches, f"the data of {model}"
    if ".py:" in model:
        what = "the example that the file gives, again and again"
        return made, lambda start, digest: itertools.repeat(made.example), what
    from poet.data import batches, describe

    return made, lambda start, digest: iter(batches(model, seed, start=start)), describe(model)


def _known_ram(ram: str | None) -> str:
    """A budget as it is known from run to run: bytes where it is a size."""
    if ram is None or ram == MIN or parse_share(ram) is not None:
        return ram or ""
    return str(parse_bytes(ram, "RAM budget"))


def _known_name(model: str) -> str:
    """A model as it is known from run to run: wherever its file is now, or its options in order."""
    if ".py:" in model:
        return Path(model).name
    from poet.zoo import parse

    return parse(model).text


def _again(save: Path | None) -> str:
    """The command that goes on with this one."""
    more = ["--resume", *(["--force"] if save is not None else [])]
    return shlex.join(["poet", *sys.argv[1:], *(each for each in more if each not in sys.argv)])


def _mean(losses: list[float]) -> float | None:
    return sum(losses) / len(losses) if losses else None


@contextmanager
def _bar(trainer: "Trainer", steps: int) -> Iterator[Callable[[float, float], None]]:
    """Progress on stderr: loss, step time, RAM peak and budget, pages. A bar on a terminal."""
    limit = trainer.budget_bytes
    budget = "" if limit is None else f" of {bytes_text(limit)}"

    def text(loss: float, seconds: float) -> str:
        peak, paged = bytes_text(trainer.peak_bytes), bytes_text(trainer.paged_bytes)
        took = f"loss {loss:.4f}, {amount_text(seconds, 's')}, RAM {peak}{budget}"
        return f"{took}, paged {paged}"

    if not sys.stderr.isatty():
        seldom = Seldom()
        yield lambda loss, seconds: seldom(
            f"step {trainer.steps:,} of {steps:,}: {text(loss, seconds)}"
        )
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=waiting.console()) as bar:
        task = bar.add_task("", total=steps, completed=trainer.steps)

        def show(loss: float, seconds: float) -> None:
            bar.update(task, advance=1, description=text(loss, seconds))

        yield show
