"""Messages: what a worker tells of its job, a line of JSON each, the last of them its end."""

from typing import Literal

import msgspec

from poet.values.schedule import Status

EndStatus = Literal["done", "cancelled", "failed"]


class PlanFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How far a plan has come, or what it came to.

    `outcome` is the plan's own status once there is one. Where it is `infeasible` or `unknown`,
    `enough_bytes` is a RAM budget for which a schedule was found.
    """

    elapsed_seconds: float = 0.0
    outcome: Status | None = None
    joules: float | None = None
    bound_joules: float | None = None
    gap: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    enough_bytes: int | None = None


class CountFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a job's plans are made, and which one is next."""

    elapsed_seconds: float = 0.0
    what: str = ""
    done: int = 0
    count: int = 0


class Progress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    figures: msgspec.Raw


class Said(msgspec.Struct, frozen=True, tag_field="event", tag="log"):
    text: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="end"):
    status: EndStatus
    error: str | None = None
    figures: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


Message = Progress | Said | Ended
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def message(line: bytes) -> Message:
    return _DECODER.decode(line)
