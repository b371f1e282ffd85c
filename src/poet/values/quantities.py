"""Amounts as people write and read them: sizes, deadlines, seconds, joules.

`KB` is 1000 bytes and `KiB` 1024; a bare number is bytes. A deadline is `20s` (seconds) or `1.5x`
(times the unconstrained step).
"""

import math
import re
from fractions import Fraction

from poet.errors import PoetError
from poet.values.graph import MAX_BYTES
from poet.values.schedule import Goal

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(
    r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]+)?)\s*([a-z]*)", re.ASCII
)
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%", re.ASCII)
_LONGEST = 64
_DEADLINE = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(x|s|ms|min|h)", re.ASCII)
_SECONDS = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}


def parse_bytes(text: str | int, what: str = "size") -> int:
    """`'256 KiB'` → 262144. A fraction of a byte is rounded down: a budget is never exceeded."""
    match = _SIZE.fullmatch(str(text)[: _LONGEST + 1].strip().lower())
    if match is None or match[2] not in _UNITS:
        raise PoetError(
            f"{what} {str(text)[:_LONGEST]!r} is not a size. Write bytes (300000) or a number with "
            "a unit: 500KB, 256KiB, 1.5MB, 2GiB."
            + (
                " Or a share of what keeping all takes, 60%, or min."
                if what == "RAM budget"
                else ""
            )
        )
    exact = Fraction(match[1].replace("_", "").replace(",", "")) * _UNITS[match[2]]
    if 0 < exact < 1:
        hint = f'. For a share of what keeping all takes, write "{float(100 * exact):g}%"'
        raise PoetError(
            f"{what} {str(text)[:_LONGEST]!r} is less than one byte"
            f"{hint if what == 'RAM budget' else ''}"
        )
    nbytes = int(exact)
    if nbytes > MAX_BYTES:
        raise PoetError(
            f"{what} {str(text)[:_LONGEST]!r} is more than {MAX_BYTES:,} bytes, "
            "the most POET handles."
        )
    return nbytes


def parse_share(text: str) -> float | None:
    """`'60%'` → 0.6; None where it is not a share."""
    written = text.strip()
    if not written.endswith("%"):
        return None
    match = _SHARE.fullmatch(written[:_LONGEST])
    if match is None or float(match[1]) > 100:
        raise PoetError(f"the share {text[:_LONGEST]!r} is not from 0% to 100%")
    return float(match[1]) / 100


def parse_deadline(text: str | float, step_seconds: float) -> float:
    """`'1.5x'` → 1.5 × `step_seconds`; `'20s'`, or the number 20 → 20."""
    written = text if isinstance(text, str) else f"{text}s"
    match = _DEADLINE.fullmatch(written.strip().lower())
    seconds = math.nan
    if match is not None:
        unit = step_seconds if match[2] == "x" else _SECONDS[match[2]]
        seconds = float(match[1]) * unit
    if not math.isfinite(seconds):
        raise PoetError(
            f"deadline {text!r} is not a time. Write seconds (20s, 350ms, 2min) or a multiple of "
            "the unconstrained step (1.5x)."
        )
    return seconds


def short_bytes_text(nbytes: int) -> str:
    """Bytes in a unit that is easy to read: `256.0 KiB`."""
    scaled, unit = float(nbytes), ""
    for unit in ("", "KiB", "MiB", "GiB", "TiB"):
        if scaled < 1024 or unit == "TiB":
            break
        scaled /= 1024
    return f"{scaled:.1f} {unit}" if unit else f"{nbytes:,} B"


def bytes_text(nbytes: int) -> str:
    """Exact bytes, and the same in a unit that is easy to read: `262,144 B (256.0 KiB)`."""
    exact, short = f"{nbytes:,} B", short_bytes_text(nbytes)
    return exact if exact == short else f"{exact} ({short})"


def limit_text(nbytes: int | None) -> str:
    """A limit in bytes, which may be none at all."""
    return "no limit" if nbytes is None else bytes_text(nbytes)


_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def amount_text(amount: float, unit: str) -> str:
    """Four significant digits with a metric prefix: `545.7 mJ`."""
    if amount == 0:
        return f"0 {unit}"
    scale, prefix = next((p for p in _PREFIXES if abs(amount) >= p[0]), _PREFIXES[-1])
    scaled = amount / scale
    digits = max(0, 3 - math.floor(math.log10(abs(scaled)))) if abs(scaled) < 1e4 else 0
    return f"{scaled:,.{digits}f} {prefix}{unit}"


def goal_text(goal: Goal, amount: float) -> str:
    """An amount of what a plan makes small."""
    if goal == "bytes":
        return bytes_text(int(amount))
    return amount_text(amount, "J" if goal == "joules" else "s")


def share_text(share: float, digits: int = 1) -> str:
    """A share in percent: `12.5 %`."""
    return f"{100 * share:.{digits}f} %"
