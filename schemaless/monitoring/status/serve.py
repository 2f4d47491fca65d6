"""Serves the status page with Starlette and uvicorn: loopback only, or any address with a token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from schemaless.errors import InvalidInput
from schemaless.monitoring.status.collector import Collector
from schemaless.monitoring.status.model import status_json
from schemaless.monitoring.status.page import SCRIPT, STYLE, status_html
from schemaless.ui.pages.frame import STYLE as FRAME_STYLE

MIN_TOKEN_CHARACTERS: Final = 16
"""Minimum length of a token."""

_COOKIE: Final = "schemaless-status"
_BACKLOG: Final = 128
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256((FRAME_STYLE + STYLE).encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; script-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    # The first URL of a browser holds the token.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")

Next = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Address:
    """Where the page is served.

    Attributes:
        host: a name or an IP address.
        port: 0 for a free one.
        token: required from clients; None on loopback.
    """

    host: str
    port: int
    token: str | None


def address(listen: str, *, remote: bool, token: str | None) -> Address:
    """Return the address to serve at.

    Args:
        listen: ``HOST:PORT``.
        remote: whether an address other than loopback is permitted.
        token: token for such an address; None for a random one.

    Raises:
        InvalidInput: the text is not an address, ``remote`` is needed but not set, or the token is too short.
    """
    host, colon, port = listen.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise InvalidInput(f"--listen takes HOST:PORT such as 127.0.0.1:9465, got {listen!r}")
    if _is_loopback(host):
        return Address(host, int(port), None)
    if not remote:
        raise InvalidInput(
            f"--listen {listen}: other machines could read the status; listen on 127.0.0.1 and use 'ssh -L', or "
            "add --remote, which requires a token from every client"
        )
    if token is not None and len(token) < MIN_TOKEN_CHARACTERS:
        raise InvalidInput(f"SCHEMALESS_STATUS_TOKEN has {len(token)} characters; use {MIN_TOKEN_CHARACTERS} or more")
    return Address(host, int(port), token or secrets.token_urlsafe(24))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def application(collector: Collector, token: str | None) -> Starlette:
    """Return the application: the page, its script, and ``/status.json``.

    Args:
        collector: collects the status.
        token: required from clients, as a bearer token or once as ``?token=``; None to accept every local client.
    """

    def page(request: Request) -> Response:
        return Response(status_html(collector.status()), media_type="text/html")

    def script(request: Request) -> Response:
        return Response(SCRIPT, media_type="text/javascript")

    def data(request: Request) -> Response:
        return JSONResponse(status_json(collector.status()))

    def no_icon(request: Request) -> Response:
        return Response(status_code=204)

    async def guarded(request: Request, answer: Next) -> Response:
        response = _refusal(request, token) or await answer(request)
        response.headers.update(_HEADERS)
        return response

    # Against DNS rebinding: a page of another origin must not read this one through a name of its own.
    trusted = [Middleware(TrustedHostMiddleware, allowed_hosts=list(_LOOPBACK_HOSTS))] if token is None else []
    return Starlette(
        routes=[
            Route("/", page),
            Route("/status.js", script),
            Route("/status.json", data),
            Route("/favicon.ico", no_icon),
        ],
        middleware=[*trusted, Middleware(BaseHTTPMiddleware, dispatch=guarded)],
    )


def _refusal(request: Request, token: str | None) -> Response | None:
    """Return the response to a request without the token; None if the request may proceed."""
    if token is None:
        return None
    if (given := request.query_params.get("token")) is not None and _is_same(given, token):
        response = RedirectResponse("./", status_code=303)
        response.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
        return response
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if _is_same(bearer, token) or _is_same(request.cookies.get(_COOKIE, ""), token):
        return None
    return PlainTextResponse("Open the URL with the token that 'schemaless status' has printed.\n", status_code=401)


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def listening_socket(at: Address) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        InvalidInput: it is not possible to listen on the address.
    """
    try:
        family, *_, where = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=_BACKLOG)
    except OSError as problem:
        raise InvalidInput(f"cannot listen on {at.host}:{at.port}: {problem.strerror}") from None


def serve(collector: Collector, listener: socket.socket, token: str | None) -> None:
    """Serve until the process is interrupted."""
    config = uvicorn.Config(
        application(collector, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    with closing(listener):
        uvicorn.Server(config).run(sockets=[listener])
