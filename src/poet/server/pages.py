"""Pages: the files of `page/` and what they share with reports, served as they are, by their names.

Which files there are is known before anybody asks: no path of a request is ever opened.
"""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from poet.reports import page as report_page

_FOLDER = Path(__file__).parent / "page"
_REPORTS = Path(report_page.__file__).parent
_SHARED = (_REPORTS / "amounts.js", _REPORTS / "report.css")
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


class _File(NamedTuple):
    content: bytes
    media: str
    mark: str


def pages() -> APIRouter:
    """`/` is index.html; any other file is found by its name."""
    files = {
        path.name: _read(path) for path in (*_FOLDER.iterdir(), *_SHARED) if path.suffix in _MEDIA
    }
    router = APIRouter()

    @router.get("/{name:path}", include_in_schema=False)
    async def page(request: Request, name: str) -> Response:
        found = files.get(name or "index.html")
        if found is None:
            raise HTTPException(404, "there is no such page")
        headers = {"etag": found.mark, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == found.mark:
            return Response(None, 304, headers)
        return Response(found.content, 200, {**headers, "content-type": found.media})

    return router


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _MEDIA[path.suffix], f'"{sha256(content).hexdigest()[:32]}"')
