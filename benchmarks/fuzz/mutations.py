"""Mutations: a good file made bad, by its structure or by its bytes. All from one generator.

Structure: values of other types, numbers that are huge, negative or none at all, strings of code,
ids exchanged, entries gone or there twice, nesting without end. Bytes: flips, truncation, pieces
that repeat, text that is not UTF-8.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

CANARY = "canary"
"""What code that is smuggled in would leave behind, in the folder where mutants are used."""
MARK = "POET_CANARY"
"""What stands in strings of C, between the end of a comment and the begin of the next."""
NEST = "@nested@"
DEPTH = 20_000
NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 7, 255, 256, 2**31, 2**32 - 1, 2**53, 2**63, 2**64, -(2**63), 10**40, 10**400,
    0.5, -0.0, 1e-320, 1e18, 1e300, 1.7e308, float("nan"), float("inf"), float("-inf"), True,
)  # fmt: skip
STRINGS = (
    "", " ", "\0", "\x1b[2J", "a" * 5000, "../../canary", "/etc/passwd", "\ud800", "é", "²", "nan",
    f"__import__('os').system('touch {CANARY}')",
    f"x=open('{CANARY}', 'w'), y",
    f"$(touch {CANARY})", f"; touch {CANARY} #", f"`touch {CANARY}`",
    f"*/ {MARK}(); /*", f'"); {MARK}(); ("', f"\n{MARK}\n", f"\\\n{MARK}",
    f"<script>{MARK}</script>", f"</script><script>{MARK}//", "%s%n{}{0}{__class__}",
    "aten.from_file", "aten.relu", "poet.sgd", "poet.tangent", "os.system", "float32", "save",
    "cuda", "streamed", "plain", "ram", "store", "infeasible", "overlap",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, [], {}, [[]], {"": 0}, [None] * 40, NEST)

Place = tuple[Any, Any]
"""A list or an object, and an index or a name in it."""


def mutated_tree(tree: Any, chance: Random) -> Any:
    """The same JSON with some things changed; it may be changed itself."""
    changes = chance.choice((_GENTLE, _ROUGH))
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
        place = _somewhere(tree, chance)
        if place is None:
            return deepcopy(chance.choice(OTHERS))
        chance.choice(changes)(place, tree, chance)
    return tree


def encoded(tree: Any) -> bytes:
    """JSON text, with what JSON itself does not allow."""
    text = json.dumps(tree).encode()
    return text.replace(json.dumps(NEST).encode(), b"[" * DEPTH + b"]" * DEPTH, 1)


def mutated_bytes(data: bytes, chance: Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(found) + 1)
        chance.choice(_DAMAGES)(found, at, chance)
    return bytes(found)


def _somewhere(tree: Any, chance: Random) -> Place | None:
    """A place in a tree, deep more often than not: most of a file is far from its head."""
    place: Place | None = None
    while isinstance(tree, dict | list) and tree and (place is None or chance.random() < 0.9):
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        key = chance.choice(keys)
        for _ in range(3):
            if isinstance(tree[key], dict | list):
                break
            if chance.random() < 0.7:
                key = chance.choice(keys)
        place, tree = (tree, key), tree[key]
    return place


def _other_value(place: Place, tree: Any, chance: Random) -> None:
    inside, key = place
    inside[key] = deepcopy(chance.choice(chance.choice((NUMBERS, STRINGS, OTHERS))))


def _same_type(place: Place, tree: Any, chance: Random) -> None:
    inside, key = place
    now = inside[key]
    if isinstance(now, int | float):
        inside[key] = chance.choice([x for x in NUMBERS if type(x) is type(now)])
    elif isinstance(now, str):
        inside[key] = chance.choice(STRINGS)
    else:
        _like_another(place, tree, chance)


def _near(place: Place, tree: Any, chance: Random) -> None:
    """A number that is a little off, as ids are."""
    inside, key = place
    now = inside[key]
    if type(now) is int:
        inside[key] = now + chance.choice((-2, -1, -1, 1, 1, 2, 100))
    elif isinstance(now, float):
        inside[key] = now * chance.choice((-1, 0.5, 2, 1e6)) + chance.choice((0, 0, 0.5))
    else:
        _like_another(place, tree, chance)


def _gone(place: Place, tree: Any, chance: Random) -> None:
    inside, key = place
    del inside[key]


def _twice(place: Place, tree: Any, chance: Random) -> None:
    inside, key = place
    if isinstance(inside, list):
        inside.insert(chance.randrange(len(inside) + 1), inside[key])
    else:
        inside[chance.choice(STRINGS)] = inside[key]


def _exchanged(place: Place, tree: Any, chance: Random) -> None:
    """With what stands anywhere else."""
    inside, key = place
    other = _somewhere(tree, chance)
    if other is not None:
        there, name = other
        text = json.dumps([inside[key], there[name]])
        inside[key], there[name] = reversed(json.loads(text))


def _like_another(place: Place, tree: Any, chance: Random) -> None:
    """What another entry has under the same name: another op's inputs, another tensor's shape."""
    inside, key = place
    for _ in range(30):
        other = _somewhere(tree, chance)
        if other is not None and other[1] == key and other[0] is not inside:
            inside[key] = json.loads(json.dumps(other[0][key]))
            return


def _neighbours(place: Place, tree: Any, chance: Random) -> None:
    """Exchanged with another entry of the same list or object."""
    inside, key = place
    other = (
        chance.choice(list(inside)) if isinstance(inside, dict) else chance.randrange(len(inside))
    )
    inside[key], inside[other] = inside[other], inside[key]


def _renamed(place: Place, tree: Any, chance: Random) -> None:
    inside, key = place
    if isinstance(inside, dict):
        inside[chance.choice((*STRINGS, str(chance.choice(NUMBERS[:10]))))] = inside.pop(key)
    else:
        _gone(place, tree, chance)


def _nested(place: Place, tree: Any, chance: Random) -> None:
    inside, key = place
    for _ in range(chance.choice((1, 40, 250))):
        inside[key] = [inside[key]]


Change = Callable[[Place, Any, Random], None]
_GENTLE: tuple[Change, ...] = (
    _same_type, _same_type, _near, _near, _near, _like_another, _like_another, _neighbours,
    _neighbours, _gone,
)  # fmt: skip
"""What leaves most files readable, so that they get far."""
_ROUGH: tuple[Change, ...] = (
    _other_value, _other_value, _other_value, _gone, _twice, _exchanged, _neighbours, _renamed,
    _nested,
)  # fmt: skip


def _flip(data: bytearray, at: int, chance: Random) -> None:
    if at < len(data):
        data[at] ^= 1 << chance.randrange(8)


def _cut(data: bytearray, at: int, chance: Random) -> None:
    del data[at:]


def _without(data: bytearray, at: int, chance: Random) -> None:
    del data[at : at + chance.choice((1, 8, 500))]


def _inserted(data: bytearray, at: int, chance: Random) -> None:
    data[at:at] = chance.choice((b"\xff\xfe", b"\0", b'"', b"}", b"9" * 400, chance.randbytes(8)))


def _again(data: bytearray, at: int, chance: Random) -> None:
    data[at:at] = data[at : at + chance.choice((4, 64, 4096))]


def _overwritten(data: bytearray, at: int, chance: Random) -> None:
    count = chance.choice((1, 8, 64))
    data[at : at + count] = chance.choice((b"\0", b"\xff", b"\x80")) * count


_DAMAGES: tuple[Callable[[bytearray, int, Random], None], ...] = (
    _flip, _flip, _flip, _cut, _without, _inserted, _inserted, _again, _overwritten,
)  # fmt: skip
