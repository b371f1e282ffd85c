"""The guard: stands before every route, and refuses what should not reach one.

In this order: who is asked (the host and origin that a browser names, so that no page from
elsewhere drives a service on this machine), how often, whether the token is known, and how much is
sent. Its answers have the form of all others, and every answer leaves with the security headers.
"""

import asyncio
import hashlib
import hmac
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.exceptions import HTTPException

from poet.server.service import Service
from poet.server.settings import Settings, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "poet_session"
STOPPING, STOPPING_SECONDS = "the service is stopping; its jobs go on when it is back", 5
OPEN_PATHS = ("/api/health", "/api/session")
"""What needs no token; nor does the page, which holds nothing."""
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "SAMEORIGIN",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Guard:
    def __init__(self, app: App, service: Service) -> None:
        self._app, self.service, self._settings = app, service, service.settings
        settings = service.settings
        self._posts = _Rate(settings.posts_a_minute)
        self._requests = _Rate(settings.requests_a_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        scope["poet_guard"] = self
        guarded = _with_headers(send)
        refused = self._refusal(scope, headers)
        if refused is not None:
            await _answer(guarded, *refused)
        else:
            await self._app(scope, _limited(receive, headers, self._settings), guarded)

    def knows(self, headers: MutableMapping[str, str] | Any) -> bool:
        """Whether a request brings the token, as a header or as the cookie that stands for it."""
        token = self._settings.token
        if token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), token):
            return True
        return _same(_cookie(headers.get("cookie", "")), self.cookie)

    @property
    def cookie(self) -> str:
        """What a browser keeps instead of the token."""
        token = self._settings.token or ""
        return hmac.new(token.encode(), b"poet session", hashlib.sha256).hexdigest()

    def _refusal(
        self, scope: Scope, headers: dict[str, str]
    ) -> "tuple[int, str, dict[str, str]] | None":
        if self.service.is_closing:
            return 503, STOPPING, _later(STOPPING_SECONDS)
        wrong = self._wrong_place(headers)
        if wrong:
            return 403, wrong, {}
        client = (scope.get("client") or ("",))[0]
        changes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        rate = self._posts if changes else self._requests
        wait = rate.wait_seconds(client)
        if wait:
            return 429, f"too many requests; try again in {wait} s", _later(wait)
        path = scope["path"]
        if path.startswith("/api/") and path not in OPEN_PATHS and not self.knows(headers):
            say = "this service needs its token: Authorization: Bearer …"
            return 401, say, {"www-authenticate": "Bearer"}
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:18]) > self._settings.upload_bytes:
            return 413, self._too_large, {"connection": "close"}
        return None

    @property
    def _too_large(self) -> str:
        return too_large(self._settings)

    def _wrong_place(self, headers: dict[str, str]) -> str:
        """A browser that was led here by somebody else, in words."""
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname if _is_plain(host) else None
        if is_loopback(self._settings.host) or self._settings.names:
            known = name is not None and (is_loopback(name) or name in self._settings.names)
            if not known:
                return "this service is not known under that name: poet serve --name says which are"
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, host):
            return "requests from pages of another origin are refused"
        from_elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if from_elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return "requests from pages of another origin are refused"
        return ""

    def _is_own(self, origin: str, host: str) -> bool:
        if not _is_plain(origin):
            return False
        place = urlsplit(origin)
        return place.scheme in ("http", "https") and (
            place.netloc == host or place.hostname in self._settings.names
        )


def too_large(settings: Settings) -> str:
    return (
        f"the request is larger than {settings.upload_bytes:,} bytes, the most this service reads"
    )


class _Rate:
    """So many a minute for each client; a tenth of them may come at once."""

    def __init__(self, a_minute: float) -> None:
        self._a_second, self._most = a_minute / 60, max(1.0, a_minute / 10)
        self._left: dict[str, tuple[float, float]] = {}

    def wait_seconds(self, client: str) -> int:
        """0 if the client may go on, or how long it has to wait."""
        now = time.monotonic()
        left, then = self._left.pop(client, (self._most, now))
        left = min(self._most, left + (now - then) * self._a_second)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _CLIENTS:
            del self._left[next(iter(self._left))]  # who was away longest
        return 0 if left >= 1 else math.ceil((1 - left) / self._a_second)


_CLIENTS = 10_000


def _later(seconds: float) -> dict[str, str]:
    return {"retry-after": str(math.ceil(seconds))}


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_plain(text: str) -> bool:
    """Of what host names and origins are made of, so that it can be taken apart."""
    return (
        bool(text) and all(char.isalnum() or char in ".-:[]/_" for char in text) and text.isascii()
    )


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *((k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given),
            ]
        await send(message)

    return sending


def _limited(receive: Receive, headers: dict[str, str], settings: Settings) -> Receive:
    """The request's body, as long as it is neither too large nor too slow."""
    got, until = 0, time.monotonic() + settings.upload_seconds
    whole = False

    async def receiving() -> MutableMapping[str, Any]:
        nonlocal got, whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                message = await receive()
        except TimeoutError:
            say = f"the request did not arrive within {settings.upload_seconds:g} s"
            raise HTTPException(408, say, {"connection": "close"}) from None
        got += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if got > settings.upload_bytes:
            raise HTTPException(413, too_large(settings), {"connection": "close"})
        return message

    return receiving


async def _answer(send: Send, status: int, error: str, headers: dict[str, str]) -> None:
    body = msgspec.json.encode({"error": error})
    told = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
