"""Other routes: what there is to ask about, how the service is, and the token for a browser."""

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from poet.devices import device_names, find_device
from poet.errors import PoetError
from poet.firmware.boards import targets
from poet.planning.compare import COMPARED
from poet.server import answers
from poet.server.docs import docs_page
from poet.server.guard import COOKIE, Guard
from poet.server.requests import json, json_body, service_of
from poet.server.schema import body, refuses, says
from poet.values.files import decode_json
from poet.version import __version__
from poet.zoo import MODELS

_COOKIE_SECONDS = 30 * 24 * 3600


def add_others(router: APIRouter) -> None:
    router.add_api_route("/docs", _docs, include_in_schema=False)
    router.add_api_route(
        "/models",
        _models,
        operation_id="get_models",
        summary="The models that may be asked for by name, and their options.",
        responses={200: says("All of them.", answers.Models), **refuses()},
    )
    router.add_api_route(
        "/devices",
        _devices,
        operation_id="get_devices",
        summary="The boards that may be asked for by name, with the source of every figure.",
        responses={200: says("All of them.", answers.Devices), **refuses()},
    )
    router.add_api_route(
        "/health",
        _health,
        operation_id="get_health",
        summary="Whether the service takes jobs, and its limits. Needs no token.",
        responses={200: says("It does.", answers.Health), **refuses()},
    )
    router.add_api_route(
        "/session",
        _enter,
        methods=["POST"],
        operation_id="enter",
        status_code=204,
        summary="Take a token, and keep it as a cookie for pages. Needs no token.",
        responses={204: says("It is the right one."), **refuses(415)},
        openapi_extra=body(answers.Session),
    )
    router.add_api_route(
        "/session",
        _leave,
        methods=["DELETE"],
        operation_id="leave",
        status_code=204,
        summary="Forget the cookie.",
        responses={204: says("It is forgotten."), **refuses()},
    )


async def _models() -> Response:
    found = tuple(
        answers.Model(
            name=name,
            title=entry.title,
            options=tuple(
                answers.Choice(
                    name=option, default=about.default, allowed=about.allowed, help=about.help
                )
                for option, about in entry.options.items()
            ),
        )
        for name, entry in MODELS.items()
    )
    return json(msgspec.json.encode(answers.Models(found)))


async def _devices() -> Response:
    found = tuple(find_device(name) for name in device_names())
    return json(msgspec.json.encode(answers.Devices(devices=found, targets=tuple(targets()))))


async def _health(request: Request) -> Response:
    service = service_of(request)
    told = answers.Health(
        status="ok",
        version=__version__,
        needs_token=not _guard(request).knows(request.headers),
        unfinished=await asyncio.to_thread(service.jobs.waiting),
        plan_seconds=service.settings.plan_seconds,
        upload_bytes=service.settings.upload_bytes,
        methods=COMPARED,
    )
    return json(msgspec.json.encode(told))


async def _enter(request: Request) -> Response:
    content = await json_body(request)
    try:
        given = decode_json(content, answers.Session, "the request")
    except PoetError as error:
        raise HTTPException(422, str(error)) from None
    guard = _guard(request)
    if not guard.knows({"authorization": f"Bearer {given.token}"}):
        raise HTTPException(401, "this is not the token", {"www-authenticate": "Bearer"})
    answer = Response(status_code=204)
    answer.set_cookie(
        COOKIE, guard.cookie, max_age=_COOKIE_SECONDS, path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


async def _leave() -> Response:
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


async def _docs(request: Request) -> Response:
    return HTMLResponse(docs_page(request.app.openapi()))


def _guard(request: Request) -> Guard:
    found: Guard = request.scope["poet_guard"]
    return found
