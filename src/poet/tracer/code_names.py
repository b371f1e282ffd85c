"""Code names: what a function's bytecode mentions: globals, attributes, imports, the world."""

import dis
import types
from typing import Any

_ASKS = {
    "os": frozenset(("environ", "getenv", "listdir", "urandom")),
    "time": frozenset(("time", "time_ns", "monotonic", "perf_counter")),
    "datetime": frozenset(("now", "today", "utcnow")),
}
"""By module, what asks the world: its answer may be another at each step."""


def names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names that a function, or one written inside it, takes from its module, and others."""
    from_module = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    others = set(code.co_names) - from_module
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, rest = names_in(inner)
            from_module, others = from_module | more, others | rest
    return from_module, others


def outside(from_module: set[str], others: set[str], space: dict[str, Any]) -> list[str]:
    """The environment, the clock and files, where code names them."""
    found: list[str] = [x for x in ("open", "input") if x in from_module and x not in space]
    for name in sorted(from_module):
        thing = space.get(name)
        if isinstance(thing, types.ModuleType | type):  # time.time(), datetime.now()
            home = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
            found += [f"{name}.{each}" for each in sorted(_ASKS.get(home, frozenset()) & others)]
        elif getattr(thing, "__name__", "") in _ASKS.get(getattr(thing, "__module__", ""), ()):
            found.append(name)
    return found


def used_in(code: types.CodeType) -> tuple[set[str], set[str], set[str]]:
    """Attributes that code stores and loads, and modules that it imports."""
    stored, loaded, imported = set(), set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_ATTR":
            stored.add(str(step.argval))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            loaded.add(str(step.argval))
        elif step.opname == "IMPORT_NAME":
            imported.add(str(step.argval))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = used_in(inner)
            stored, loaded, imported = stored | more[0], loaded | more[1], imported | more[2]
    return stored, loaded, imported
