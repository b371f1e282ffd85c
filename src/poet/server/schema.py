"""The schema: what OpenAPI says of requests and answers, taken from the values themselves."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from poet.server import answers
from poet.server.kinds import KINDS

_REF = "#/components/schemas/{name}"
_SPOKEN = (
    answers.Refusal, answers.Accepted, answers.Checked, answers.LogLines, answers.Models,
    answers.Devices, answers.Health, answers.Session,
    *(kind.answer for kind in KINDS.values()), *(kind.question for kind in KINDS.values()),
)  # fmt: skip
Responses = dict[int | str, dict[str, Any]]

_REFUSALS = {
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another origin, or for a host that is not this one.",
    404: "There is no such thing.",
    408: "The request did not arrive in time.",
    409: "It is not there yet, or will never be.",
    413: "The request is too large.",
    415: "The request is not JSON.",
    422: "The request cannot be asked; the error says why.",
    429: "Too many requests or jobs: try again later.",
    503: "The service is stopping.",
}
_EVERYWHERE = (401, 403, 408, 413, 422, 429, 503)
_WAIT = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}}


def reference(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": _REF.format(name=kind.__name__)}


def body(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """What a route reads, for `openapi_extra`."""
    content = {"application/json": {"schema": reference(kind)}}
    return {"requestBody": {"required": True, "content": content}}


def says(text: str, kind: type[msgspec.Struct] | None = None, **media: Any) -> dict[str, Any]:
    """An answer with a value, or with text or bytes of a media type."""
    if kind is not None:
        return {"description": text, "content": {"application/json": {"schema": reference(kind)}}}
    return {"description": text, **media}


def refuses(*more: int) -> Responses:
    """The refusals that every route may give, and those of its own."""
    told: Responses = {}
    for status in sorted({*_EVERYWHERE, *more}):
        told[status] = says(_REFUSALS[status], answers.Refusal)
        if status in (429, 503):
            told[status]["headers"] = _WAIT
    return told


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole of it. FastAPI says the paths; the values say what they are."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, components = msgspec.json.schema_components(_SPOKEN, ref_template=_REF)
        found["components"] = {
            "schemas": {name: components[name] for name in sorted(components)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        }
        found["security"] = [{"token": []}, {}]
        app.openapi_schema = found
    return app.openapi_schema
