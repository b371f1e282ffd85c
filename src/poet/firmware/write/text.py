"""C text: numbers, comments, and the check that statements hold nothing else.

What a plan says reaches C in two ways. Numbers become literals here, whatever they were called
before; names stand in comments, of which they cannot find the end. `check_statement` is the last
word: each token of a statement is a number, punctuation, or a word that POET itself has given it,
so that a kernel which forgets the first cannot let a plan write C. What does not fit is a
`ValueError`; who writes the statement knows which call it is of.
"""

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "c"
LIBRARY = Path(__file__).parents[1] / "library"
KERNEL_HEADERS = ("kernels.h", "layers.h", "mask.h")
LIBRARY_HEADERS = ("poet.h", "step.h")
HEADERS = (*(SOURCES / n for n in KERNEL_HEADERS), *(LIBRARY / n for n in LIBRARY_HEADERS))
"""Those whose words statements are made of."""
_UNSAFE = re.compile(r"[^ \w.,:;()\[\]{}<>+=?&%@!#/-]", re.ASCII)
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_]\w*)|(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?(?:f|u|LL)?)(?![\w.])"
    r"|[-+*/%<>=!&|()\[\]{},;.])",
    re.ASCII,
)
_WORDS = {
    "for",
    "if",
    "continue",
    "i",
    "row",
    "INT64_MAX",
    "INT64_MIN",
    "NULL",
    "p0",
    "p1",
    "p2",
    "p3",
}
"""Of C, and of what is written around kernels, what no header of POET has."""


def c_float(value: float) -> str:
    """A float constant that is read back as the same float."""
    text = f"{_number(value):.9g}"
    if text in ("inf", "-inf", "nan"):
        return {"inf": "(1.0f / 0.0f)", "-inf": "(-1.0f / 0.0f)", "nan": "(0.0f / 0.0f)"}[text]
    return text + ("f" if "." in text or "e" in text else ".0f")


def c_double(value: float) -> str:
    """A double constant; one that is not finite has no place in the C of a step."""
    text = repr(float(_number(value)))
    if "n" in text:  # inf, nan
        raise ValueError(f"{text} is no finite number")
    return text


def c_int(value: int) -> str:
    """A whole number of up to 64 bits."""
    if not isinstance(value, int) or not -(2**63) < value < 2**63:
        raise ValueError(f"{_short(value)} is no whole number of 64 bits")
    return str(int(value)) if abs(value) < 2**31 else f"{int(value)}LL"


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise ValueError(f"{_short(value)} is no number")
    return value


def _short(value: Any) -> str:
    return repr(value)[:40]


def comment(text: str) -> str:
    """A text from a plan inside a comment: with nothing that could end it."""
    return _UNSAFE.sub("_", text)


@cache
def header_words() -> frozenset[str]:
    """The words of POET's own headers, which statements are made of: kernels, structs, fields."""
    texts = [file.read_text() for file in HEADERS]
    code = re.sub(r"/\*.*?\*/", " ", "\n".join(texts), flags=re.DOTALL)
    return frozenset(re.findall(r"\b(?!__)[A-Za-z_]\w*\b", code))  # the compiler's own are not


def check_statement(text: str, own: Collection[str]) -> None:
    """Refuse a statement if a token of it is neither a number nor a word of POET's.

    `own` are the words of this very step: its tensors and constants.
    """
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        word = None if found is None else found["word"]
        known = word is None or word in own or word in _WORDS or word in header_words()
        if found is None or not known:
            raise ValueError(f"{_short(text[at:])} is no word of its C")
        at = found.end()
