"""`poet serve`: plans over HTTP, and a page for them, until Ctrl-C."""

import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from poet.errors import MissingPackage


def serve(
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="POET_TOKEN",
            help="What requests must bring; needed where others reach the service.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A host name that others reach it by, through a proxy; repeat it."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where jobs are kept. Default: ~/.local/state/poet/serve."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Jobs at once. Default: one a core.", min=1)
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="The most for one job: 4GiB. Default: an equal share.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser, where there is a screen.")
    ] = False,
) -> None:
    """Answer requests for plans, and show a page for them."""
    try:
        from poet.server.serving import serve as served
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("fastapi", "uvicorn"):
            raise
        raise MissingPackage("poet serve", package) from None
    from poet.planning.plan import cores
    from poet.server.settings import Settings, memory_for, usual_folder
    from poet.values.quantities import parse_bytes

    count = workers or cores()
    settings = Settings(
        host=host,
        port=port,
        token=token or None,
        names=tuple(each.lower() for each in name or ()),
        folder=folder or usual_folder(),
        workers=count,
        threads=max(1, cores() // count),
        memory_bytes=memory_for(count) if memory is None else parse_bytes(memory, "memory"),
    )

    def ready(address: str) -> None:
        print(f"POET is at {address}", flush=True)
        if show and _has_screen():
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    served(settings, ready)


def _has_screen() -> bool:
    """Elsewhere a browser would take the terminal."""
    return sys.platform != "linux" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
