"""The application: routes, page and guard, put together."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from poet.server.guard import Guard
from poet.server.pages import pages
from poet.server.routes import routes
from poet.server.schema import describe
from poet.server.service import Service
from poet.server.settings import Settings
from poet.version import __version__

_log = logging.getLogger(__name__)


def make_app(settings: Settings) -> Guard:
    """The service as an ASGI application."""
    service = Service(settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    app = FastAPI(
        title="POET",
        version=__version__,
        description="Plans of neural-network training in little memory.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
        redirect_slashes=False,
        exception_handlers={
            HTTPException: _refused,
            RequestValidationError: _not_understood,
            Exception: _failed,
        },
    )
    app.state.service = service
    app.include_router(routes())
    app.include_router(pages())

    def openapi() -> dict[str, Any]:
        return describe(app)

    app.openapi = openapi  # type: ignore[method-assign]
    return Guard(app, service)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _not_understood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg']}"}, 422)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(
        {"error": "this is a fault of the service, which its log tells more about"}, 500
    )
