"""Choices: what a variant of an op streams, said by its name."""

import re

import msgspec

_IDS = r"(?:\d{1,9}(?:,\d{1,9})*)?"
_NAME = re.compile(rf"tiles of (?P<limit>\d{{1,12}}) from (?P<reads>{_IDS}) to (?P<writes>{_IDS})")


class Choice(msgspec.Struct, frozen=True):
    """What a variant streams, and the bytes that its tiles may take at once."""

    reads: frozenset[int]
    writes: frozenset[int]
    limit: int

    @property
    def name(self) -> str:
        reads, writes = (",".join(map(str, sorted(ids))) for ids in (self.reads, self.writes))
        return f"tiles of {self.limit} from {reads} to {writes}"

    @property
    def streamed(self) -> frozenset[int]:
        return self.reads | self.writes


def choice_named(name: str) -> Choice | None:
    """What the name of a variant says; None: it is another kind of variant."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    reads, writes = (
        frozenset(int(n) for n in found[key].split(",") if n) for key in ("reads", "writes")
    )
    return Choice(reads, writes, int(found["limit"]))
