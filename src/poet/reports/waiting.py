"""Waiting: what a terminal's stderr shows while something takes long, a line or a bar that changes.

It is gone when the work is done.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from poet.values.progress import CountProgress, SearchProgress
from poet.values.quantities import amount_text

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def line(text: str) -> Iterator[Callable[[str], None]]:
    """A line, and how to change it."""
    from rich.text import Text

    with console().status(Text(text)) as status:
        yield lambda now: status.update(Text(now))


@contextmanager
def bar() -> Iterator[CountProgress]:
    """A bar of so many parts."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(), transient=True) as shown:
        task = shown.add_task("", total=None)

        def show(what: str, done: int, count: int) -> None:
            shown.update(task, description=what, completed=done, total=count or None)

        yield show


def planning_text(progress: SearchProgress) -> str:
    """How far a search is."""
    if not progress.joules:
        return f"planning {progress.seconds:.0f} s: no schedule yet"
    if progress.placing:
        joules = amount_text(progress.joules, "J")
        return f"planning {progress.seconds:.0f} s: addresses for a schedule of {joules}"
    gap = max(0.0, 1 - progress.bound_joules / progress.joules)
    return (
        f"planning {progress.seconds:.0f} s: {amount_text(progress.joules, 'J')}, "
        f"at least {amount_text(progress.bound_joules, 'J')}, gap {gap:.2%} "
        "(Ctrl-C: the best so far)"
    )
