"""`poet models`: the models POET knows by name, in numbers."""

from typing import Annotated

import typer

from poet.cli.console import print_json, progress_bar, show_table
from poet.cli.options import CacheFlag, JsonFlag
from poet.planning.figures import Figures, figures
from poet.zoo import MODELS, parse


def models(
    name: Annotated[
        list[str] | None, typer.Argument(help="Models by name. Default: all.", metavar="[MODEL]...")
    ] = None,
    options: Annotated[
        bool,
        typer.Option("--options", help="What may follow a name, as in resnet18?size=64."),
    ] = False,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """List the models POET knows by name: parameters, planning tensors, bytes of a step."""
    asked = [parse(each).text for each in name or MODELS]
    if options:
        _show_options(asked)
        return
    found = []
    with progress_bar() as show:
        for done, each in enumerate(asked):
            show(f"capturing {each}", done, len(asked))
            found.append(figures(each, cache=cache))
    if json:
        print_json(found)
    else:
        _show_figures(found)


def _show_options(names: list[str]) -> None:
    show_table(
        [("model", "left"), ("option", "left"), ("default", "right"), ("", "left")],
        [
            [each, option, str(about.default), about.help]
            for each in names
            for option, about in MODELS[parse(each).name].options.items()
        ],
    )


def _show_figures(found: list[Figures]) -> None:
    show_table(
        [("name", "left"), ("parameters", "right"), ("ops", "right"), ("tensors", "right"),
         ("parameter MB", "right"), ("step MB", "right"), ("model", "left")],
        [
            [
                each.name,
                f"{each.parameters:,}",
                f"{each.ops:,}",
                f"{each.planning_tensors:,}",
                f"{each.parameter_bytes / 1e6:,.1f}",
                f"{each.keep_all_bytes / 1e6:,.1f}",
                MODELS[parse(each.name).name].title,
            ]
            for each in found
        ],
        cut_last=True,
    )  # fmt: skip
