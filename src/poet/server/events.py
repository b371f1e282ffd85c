"""Events: a job's as server-sent events, and the same as lines of a log."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from poet.server.answers import Kind, of_job
from poet.server.jobs import Event, Job
from poet.server.messages import CountFigures, PlanFigures
from poet.server.service import Service
from poet.values.graph import printable
from poet.values.quantities import amount_text

EVENT = {
    "type": "object",
    "description": "One event; `data` is JSON. The last one has no `id`.",
    "properties": {
        "event": {"type": "string", "enum": ["status", "progress", "log", "end"]},
        "data": {"type": "string"},
        "id": {"type": "string"},
    },
    "required": ["event", "data"],
}
_BEAT_SECONDS = 15.0
"""How often a connection without news shows that it is alive."""


async def follow(service: Service, kind: Kind, job: Job, after: int) -> AsyncIterator[bytes]:
    """The events of a job after one of them, until it has ended or the service stops.

    The last is `end`, with the answer that a GET gives but for the result itself. It has no number:
    who asks again is told again.
    """
    service.streams += 1
    try:
        yield b"retry: 1000\n\n"
        while not service.is_closing:
            news = service.news(job.id)
            now = await asyncio.to_thread(service.jobs.find, kind.path, job.id)
            found = await asyncio.to_thread(service.jobs.events, job, after)
            for event in found:
                after = event.n
                yield _sse(event.kind, event.data, event.n)
            if found:
                continue
            if now is None or now.has_ended:
                service.ring(job.id)  # nothing is left to wait for
                if now is not None:
                    told = await asyncio.to_thread(of_job, now, service.jobs, kind.field, False)
                    yield _sse("end", told)
                return
            try:
                await asyncio.wait_for(news.wait(), _BEAT_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"
    finally:
        service.streams -= 1


def _sse(kind: str, data: bytes, n: int | None = None) -> bytes:
    """Data is JSON, which has no line ends."""
    number = b"" if n is None else b"id: %d\n" % n
    return b"event: %s\n%bdata: %b\n\n" % (kind.encode(), number, data)


def lines_of(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        yield _line(event)


def _line(event: Event) -> str:
    if event.kind == "log":
        return printable(msgspec.json.decode(event.data, type=str))
    if event.kind == "status":
        told = msgspec.json.decode(event.data, type=dict[str, str])
        return ": ".join(told.values())
    if b'"done":' in event.data:
        count = msgspec.json.decode(event.data, type=CountFigures)
        return f"{count.elapsed_seconds:.1f} s: {count.what} ({count.done} of {count.count} done)"
    now = msgspec.json.decode(event.data, type=PlanFigures)
    text = f"{now.elapsed_seconds:.1f} s: "
    if now.joules is not None and now.bound_joules is not None:
        text += f"{amount_text(now.joules, 'J')}, at least {amount_text(now.bound_joules, 'J')}, "
    return text + ("no schedule yet" if now.gap is None else f"gap {now.gap:.2%}")
