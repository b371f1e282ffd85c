"""Code names: what a function's bytecode mentions: globals, attributes, imports, the world."""

import dis
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_ASKS = {
    "os": frozenset(("environ", "getenv", "listdir", "urandom")),
    "time": frozenset(("time", "time_ns", "monotonic", "perf_counter")),
    "datetime": frozenset(("now", "today", "utcnow")),
}
"""By module, what asks the world: its answer may be another at each step."""


class Mentions(NamedTuple):
    """Names in a function's code, and in that of functions written inside it."""

    from_module: frozenset[str]
    """What it takes from its module, or from Python."""
    others: frozenset[str]
    stored: frozenset[str]
    """Attributes that it puts something into."""
    loaded: frozenset[str]
    """Attributes that it reads."""
    imported: frozenset[str]


_BY_STEP = {
    "LOAD_GLOBAL": "from_module", "LOAD_NAME": "from_module", "STORE_ATTR": "stored",
    "LOAD_ATTR": "loaded", "LOAD_METHOD": "loaded", "LOAD_SUPER_ATTR": "loaded",
    "IMPORT_NAME": "imported",
}  # fmt: skip


def mentions(code: types.CodeType) -> Mentions:
    """What code mentions."""
    found: dict[str, set[str]] = {field: set() for field in Mentions._fields}
    for step in dis.get_instructions(code):
        if step.opname in _BY_STEP:
            found[_BY_STEP[step.opname]].add(str(step.argval))
    found["others"] = set(code.co_names) - found["from_module"]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for field, names in mentions(inner)._asdict().items():
                found[field] |= names
    return Mentions(**{field: frozenset(names) for field, names in found.items()})


def outside(
    from_module: Iterable[str], others: frozenset[str], space: Mapping[str, Any]
) -> list[str]:
    """The environment, the clock and files, where code names them."""
    names = sorted(from_module)
    found: list[str] = [x for x in ("open", "input") if x in names and x not in space]
    for name in names:
        thing = space.get(name)
        if isinstance(thing, types.ModuleType | type):  # time.time(), datetime.now()
            home = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
            found += [f"{name}.{each}" for each in sorted(_ASKS.get(home, frozenset()) & others)]
        elif getattr(thing, "__name__", "") in _ASKS.get(getattr(thing, "__module__", ""), ()):
            found.append(name)
    return found
