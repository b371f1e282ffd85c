"""Requests: what routes ask of them, and the answers that several give."""

import asyncio
import math
from typing import Annotated

from fastapi import Path, Request, Response
from starlette.exceptions import HTTPException

from poet.server.answers import Kind
from poet.server.jobs import Job
from poet.server.kinds import JSON
from poet.server.service import Service

Id = Annotated[str, Path(description="As the request was answered with.", max_length=64)]


def service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


async def job_of(request: Request, kind: Kind, id: str) -> Job:
    job = await asyncio.to_thread(service_of(request).jobs.find, kind.path, id)
    if job is None:
        raise HTTPException(404, f"there is no {kind.field} of that id")
    return job


async def json_body(request: Request) -> bytes:
    """The body, of a request that says that it is JSON: no form of another page can say so."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise HTTPException(415, f"send the request as {JSON}")
    parts = [part async for part in request.stream()]
    return b"".join(parts)


def json(content: bytes) -> Response:
    return Response(content, 200, media_type=JSON)


def later(error: str, seconds: float) -> HTTPException:
    """Too many of something."""
    return HTTPException(429, error, {"retry-after": str(math.ceil(seconds))})
