"""Found: what a walk through the Python of a step has found, sorted by how it is compared."""

from collections.abc import Callable
from typing import Any

import torch


class Found:
    """What a walk has found, sorted by the way in which it is compared."""

    def __init__(self) -> None:
        self.dicts: list[dict[Any, Any]] = []
        self.lists: list[Any] = []
        self.empty: list[Any] = []
        self.objects: list[Any] = []
        """Things whose class might be replaced."""
        self.reads: list[tuple[str, Callable[[], Any]]] = []
        """Names of a namespace, cells and slots: how to read them again."""
        self.entries: list[tuple[int, dict[str, Any], str]] = []
        """Those reads, by their number, that can be put back: a namespace and a name."""
        self.caches: list[Any] = []
        """Functions that remember what they gave, which during a trace is of no use after it."""
        self.contents: list[tuple[str, Callable[[], Any]]] = []
        """Constants: what stands for their content."""
        self.constants: list[tuple[str, torch.Tensor]] = []
        self.owned: list[tuple[str, torch.Tensor]] = []
        self.names: dict[int, str] = {}
        """What people call a thing, by its id."""
        self.mentioned: frozenset[str] | None = None
        """All names in the code that was walked; None where it may read others, too."""
        self.stored: set[str] = set()
        """Attributes that the code puts something into and never reads."""
        self.bare: set[int] = set()
        """Dicts, by id, of modules whose own hooks somebody else calls."""
        self.open: set[int] = set()
        """Dicts, by id, of which only what is mentioned can be read."""
        self.outside: list[str] = []
        """What the code asks the world for, such as the time: a trace would freeze its answer."""
        self.held: list[Any] = []
        """Keeps everything named alive, so that no id is used twice."""
