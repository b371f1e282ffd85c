"""A call on pieces, in its place."""

from typing import Any, NamedTuple

import msgspec

from poet.calls.operands import Operand, Work
from poet.firmware.write.kernels.site import Fields, Site


class Place(NamedTuple):
    """A piece as an operand, and the C text of its address."""

    operand: Operand
    text: str


class PieceSite:
    """A call on pieces (see `kernels.site.Site`): what it names lies where they lie."""

    def __init__(
        self,
        site: Site,
        work: Work,
        reads: dict[str, Place],
        given: dict[str, Any],
        made: tuple[Place | None, ...],
    ) -> None:
        self._site, self._work, self._given = site, work, given
        self._texts: list[str] = []
        self.kind, self.family, self.op_number = work.kind, work.family, site.op_number
        self.arguments: dict[str, Any] = {**given}
        self.arguments |= {name: self._seated(place) for name, place in reads.items()}
        self.results = tuple(None if place is None else self._seated(place) for place in made)

    def _seated(self, place: Place) -> Operand:
        self._texts.append(place.text)
        storage = ("piece", len(self._texts) - 1)
        return msgspec.structs.replace(place.operand, storage=storage)

    def refuse(self, why: str) -> Exception:
        return self._site.refuse(why)

    def at(self, operand: Operand | None, further: int = 0) -> str:
        if operand is None or operand.storage[0] != "piece":
            return self._site.at(operand, further)
        text, offset = self._texts[operand.storage[1]], operand.offset + further
        return text if offset == 0 else f"{text} + {offset}"

    def constant(self, struct: str, fields: Fields) -> str:
        return self._site.constant(struct, fields)

    def literal(self, struct: str, text: str) -> str:
        return self._site.literal(struct, text)

    def view(self, operand: Operand) -> str:
        return self._site.view(operand)

    def scalar(self, operand: Operand) -> str:
        return self._site.scalar(operand)

    def is_parameter(self, operand: Operand) -> bool:
        return False

    def with_arguments(self, arguments: dict[str, Any]) -> "Site":
        raise NotImplementedError
