"""Routes: the paths under /api, each a few lines between a request and a value."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from poet.errors import PoetError
from poet.server import answers
from poet.server.answers import Kind, of_job
from poet.server.events import EVENT, follow, lines_of
from poet.server.jobs import NoRoom, TooMany
from poet.server.kinds import JSON, KINDS
from poet.server.other_routes import add_others
from poet.server.questions import read_question
from poet.server.requests import Id, job_of, json, json_body, later, service_of
from poet.server.result_routes import add_result
from poet.server.schema import body, refuses, says

_FULL_SECONDS, _BUSY_SECONDS = 30, 5


def routes() -> APIRouter:
    found = APIRouter(prefix="/api")
    for kind in KINDS.values():
        _add_kind(found, kind)
    add_others(found)
    return found


def _add_kind(router: APIRouter, kind: Kind) -> None:
    one, path = kind.field, f"/{kind.path}/{{id}}"

    @router.post(
        f"/{kind.path}",
        operation_id=f"ask_{one}",
        summary=f"Ask for a {one}; what was asked before is not asked again.",
        status_code=202,
        responses={
            200: says("It can be asked (with validate=true).", answers.Checked),
            202: says("It is asked, or was before.", answers.Accepted),
            **refuses(415),
        },
        openapi_extra=body(kind.question),
    )
    async def ask(
        request: Request,
        validate: Annotated[bool, Query(description="Check the request, and do no more.")] = False,
    ) -> Response:
        service = service_of(request)
        content = await json_body(request)
        limit = service.settings.plan_seconds
        try:
            question = await asyncio.to_thread(read_question, content, kind.question, limit)
        except PoetError as error:
            raise HTTPException(422, str(error)) from None
        if validate:
            return json(msgspec.json.encode(answers.Checked()))
        asked = msgspec.json.encode(question)
        most = service.settings.waiting_jobs
        try:
            job = await asyncio.to_thread(service.jobs.ask, kind.path, asked, most)
        except TooMany:
            say = f"{most} jobs are waiting, as many as may: try again in {_FULL_SECONDS} s"
            raise later(say, _FULL_SECONDS) from None
        except NoRoom:
            say = "there is no room on the disk for another job: try again later"
            raise later(say, _FULL_SECONDS) from None
        service.runner.wake()
        told = answers.Accepted(id=job.id, status=job.status)
        where = {"location": f"/api/{kind.path}/{job.id}"}
        return Response(msgspec.json.encode(told), 202, where, JSON)

    @router.get(
        path,
        operation_id=f"get_{one}",
        summary=f"How far a {one} has come, and the {one} once it is there.",
        responses={200: says("The job.", kind.answer), **refuses(404)},
    )
    async def get(request: Request, id: Id) -> Response:
        job = await job_of(request, kind, id)
        return json(await asyncio.to_thread(of_job, job, service_of(request).jobs, one))

    @router.delete(
        path,
        operation_id=f"cancel_{one}",
        summary="Cancel, and keep the best so far. What has ended stays as it is.",
        responses={
            200: says("The job, which may need a moment to end.", kind.answer),
            **refuses(404),
        },
    )
    async def cancel(request: Request, id: Id) -> Response:
        service, job = service_of(request), await job_of(request, kind, id)
        if not job.has_ended:
            try:
                if not await asyncio.to_thread(service.jobs.cancel_queued, job):
                    service.runner.cancel(job)
            except NoRoom:
                raise later(
                    "there is no room on the disk: try again later", _FULL_SECONDS
                ) from None
            service.ring(job.id)
            job = await job_of(request, kind, id)
        return json(await asyncio.to_thread(of_job, job, service.jobs, one))

    @router.get(
        f"{path}/question.json",
        operation_id=f"get_{one}_question",
        summary="What was asked.",
        responses={200: says("The request.", kind.question), **refuses(404)},
    )
    async def question(request: Request, id: Id) -> Response:
        job = await job_of(request, kind, id)
        return json(await asyncio.to_thread(service_of(request).jobs.question, job))

    @router.get(
        f"{path}/events",
        operation_id=f"get_{one}_events",
        summary="Server-sent events: status, progress (every incumbent and bound), log; then end.",
        responses={
            200: says("Until the job has ended.", content={"text/event-stream": {"schema": EVENT}}),
            **refuses(404),
        },
        openapi_extra={"parameters": [{
            "name": "Last-Event-ID", "in": "header", "required": False,
            "schema": {"type": "string"}, "description": "Go on after this event.",
        }]},
    )  # fmt: skip
    async def events(request: Request, id: Id) -> Response:
        service, job = service_of(request), await job_of(request, kind, id)
        if service.streams >= service.settings.streams:
            raise later("too many follow events: try again later", _BUSY_SECONDS)
        last = request.headers.get("last-event-id", "")
        after = int(last[:15]) if last.isascii() and last.isdigit() else 0
        return StreamingResponse(
            follow(service, kind, job, after),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    @router.get(
        f"{path}/log",
        operation_id=f"get_{one}_log",
        summary="The log as lines, from one on.",
        responses={
            200: says("Lines; ask from `next` on for more.", answers.LogLines),
            **refuses(404),
        },
    )
    async def log(
        request: Request,
        id: Id,
        start: Annotated[int, Query(alias="from", ge=0, le=2**53, description="A line.")] = 0,
    ) -> Response:
        job = await job_of(request, kind, id)
        found = await asyncio.to_thread(service_of(request).jobs.events, job, start)
        after = found[-1].n if found else start
        told = answers.LogLines(lines=tuple(lines_of(found)), next=after)
        return json(msgspec.json.encode(told))

    for name, media in kind.results.items():
        add_result(router, kind, name, media)
