"""`poet card`: what is on the card of a firmware folder."""

from pathlib import Path
from typing import Annotated

import typer

from poet.cli.console import tell
from poet.cli.options import FolderArgument, ForceFlag
from poet.errors import PoetError
from poet.values.files import check_writable

card = typer.Typer(help="Cards of firmware folders.", no_args_is_help=True)


@card.command("export")
def export(
    folder: FolderArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Write here (.safetensors).")],
    force: ForceFlag = False,
) -> None:
    """Take the weights off a card, for PyTorch."""
    from poet.firmware.card.image import read_tensors
    from poet.firmware.card.safetensors import write_safetensors
    from poet.firmware.write.folder import read_folder

    check_writable(output, force)
    made, plan = read_folder(folder)
    found = read_tensors(folder / "card.img", plan.graph, made.card)
    if not found:
        raise PoetError(f"{folder} has a card without parameters")
    tensors = {i: plan.graph.tensors[i] for i in found}
    weights = {t.name: found[i] for i, t in tensors.items() if t.role != "optimizer_state"}
    write_safetensors(weights, output)
    tell(f"{output}: {len(weights)} tensors")
