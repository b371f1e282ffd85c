"""Result routes: what can be had of a job that has ended, made in a worker when it is asked for."""

import asyncio
import os
import subprocess
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException

from poet.firmware.boards import targets
from poet.server import processes
from poet.server.answers import Kind
from poet.server.guard import STOPPING, STOPPING_SECONDS
from poet.server.kinds import HTML
from poet.server.requests import Id, job_of, later, service_of
from poet.server.schema import reference, refuses, says
from poet.server.service import Service
from poet.server.worker import Task

_FULL_SECONDS = 30
_REPORT_CSP = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
)
"""A page about a plan runs its own scripts, but as nobody: it reaches nothing of the service."""
Target = Annotated[
    str, Query(description="For what C is written.", json_schema_extra={"enum": targets()})
]


def add_result(router: APIRouter, kind: Kind, name: str, media: str) -> None:
    schema = reference(kind.result) if name.endswith(".json") else {"type": "string"}
    content = {media: {"schema": schema}}

    async def get(request: Request, id: Id, target: Target = "host") -> Response:
        service, job = service_of(request), await job_of(request, kind, id)
        result = await asyncio.to_thread(service.jobs.result, job)
        if result is None:
            raise HTTPException(409, f"there is no {kind.field}: the job is {job.status}")
        if name.endswith(".json"):
            made = result
        else:
            made = await _made(service, kind, name, result, target)
        headers = {"content-security-policy": _REPORT_CSP} if media == HTML else {}
        if media != HTML:
            headers["content-disposition"] = f'attachment; filename="{name}"'
        return Response(made, 200, headers, media)

    endpoint: Any = get
    if name != "firmware.zip":

        async def plain(request: Request, id: Id) -> Response:
            return await get(request, id)

        endpoint = plain
    router.add_api_route(
        f"/{kind.path}/{{id}}/{name}",
        endpoint,
        operation_id=f"get_{kind.field}_{name.replace('.', '_')}",
        summary=f"{name} of a {kind.field} that is there.",
        responses={
            200: says(_RESULTS.get(name, "The value."), content=content),
            **refuses(404, 409),
        },
    )


_RESULTS = {
    "plan.csv": "The schedule as a table: an instruction a row.",
    "report": "A page that shows it.",
    "firmware.zip": "A folder of C, without its card.",
    "frontier.csv": "A row for each budget and method.",
    "comparison.csv": "A row for each method.",
}


async def _made(service: Service, kind: Kind, name: str, result: bytes, target: str) -> bytes:
    """A result, made by a worker that is given so much time."""
    async with service.making:
        return await asyncio.to_thread(_make, service, kind, name, result, target)


def _make(service: Service, kind: Kind, name: str, result: bytes, target: str) -> bytes:
    settings = service.settings
    words = {"kind": kind.path, "name": name, "target": target[:64]}
    task = Task(do="result", parent=os.getpid(), memory_bytes=settings.memory_bytes, words=words)
    try:
        worker = processes.start(task, result)
    except OSError:  # no memory for a process, no room for a file
        raise later(
            "there is no room for another process: try again later", _FULL_SECONDS
        ) from None
    service.makers.add(worker)
    try:
        told, _ = worker.communicate(timeout=settings.result_seconds)
    except subprocess.TimeoutExpired:
        say = f"{name} took longer than {settings.result_seconds:g} s, the most here"
        raise HTTPException(422, say) from None
    finally:
        processes.kill(worker)
        worker.wait()
        service.makers.discard(worker)
    if service.is_closing:
        raise HTTPException(503, STOPPING, {"retry-after": f"{STOPPING_SECONDS}"})
    head, _, content = told.partition(b"\n")
    if worker.returncode or not head:
        raise HTTPException(422, f"{name} cannot be made of it: its maker failed")
    error = msgspec.json.decode(head).get("error")
    if error is not None:
        raise HTTPException(422, error)
    return content
