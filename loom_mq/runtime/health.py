"""Health, readiness and metrics of one service over HTTP.

Written on the bare stream server because that is all it takes: four fixed answers to
GET and HEAD, one request per connection, no bodies to read. A web framework and its
server would be the largest dependency of a process that serves no web.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from loom_mq.errors import SettingsError
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import CONTENT_TYPE, Metrics
from loom_mq.observe.redaction import redactor

MOST_REQUEST_BYTES: Final = 8192
MOST_CONNECTIONS: Final = 64
REQUEST_SECONDS: Final = 5.0

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_METHODS: Final = ("GET", "HEAD")
_log = structlog.get_logger(__name__)


class Readiness(msgspec.Struct, frozen=True):
    """The body of ``/readyz``."""

    ready: bool
    checks: dict[str, Check]


class Version(msgspec.Struct, frozen=True):
    """The body of ``/version``."""

    service: str
    worker: str
    release: str


class _Answer(msgspec.Struct, frozen=True):
    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


class HealthServer:
    """Answers ``/livez``, ``/readyz``, ``/metrics`` and ``/version``.

    ``/livez`` says only that the event loop turns, so a broker that is away restarts
    nobody. ``/readyz`` is 503 as long as any check fails.

    Args:
        host: address to listen on; on a loopback one, requests that name another host
            are refused, so that no web page can read along by a trick with DNS.
        port: 0 for any free one.
        version: what this process is.
        checks: asked at every ``/readyz``; must not block.
        metrics: shown at ``/metrics``.
        request_seconds: how long one request may take.

    Raises:
        SettingsError: (on entering) the address cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        version: Version,
        checks: Callable[[], Mapping[str, Check]],
        metrics: Metrics,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._host = host
        self._port = port
        self._version = version
        self._checks = checks
        self._metrics = metrics
        self._request_seconds = request_seconds
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._pages: dict[str, Callable[[], _Answer]] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics_page,
            "/version": self._version_page,
        }

    @property
    def port(self) -> int:
        """The port that it listens on."""
        if self._server is None:
            return self._port
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, limit=MOST_REQUEST_BYTES
            )
        except OSError as error:
            raise SettingsError(
                f"health cannot be served on {self._host}:{self._port} ({error.strerror}); "
                "change LOOM_HTTP_HOST or LOOM_HTTP_PORT, or set LOOM_HTTP_PORT=off"
            ) from error
        _log.info("health.served", host=self._host, port=self.port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        for talk in self._talks:
            talk.cancel()
        if self._talks:
            await asyncio.wait(self._talks, timeout=1.0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._talks) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        talk = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, answer = await self._read_and_answer(reader)
            writer.write(_encode(answer, with_body=method != "HEAD"))
            async with asyncio.timeout(self._request_seconds):
                await writer.drain()
        except (OSError, TimeoutError):
            return  # they left, or they are too slow to be waited for
        finally:
            writer.close()

    async def _read_and_answer(self, reader: asyncio.StreamReader) -> tuple[str, _Answer]:
        try:
            async with asyncio.timeout(self._request_seconds):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return "GET", _Answer(HTTPStatus.REQUEST_TIMEOUT)
        except asyncio.LimitOverrunError:
            return "GET", _Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except asyncio.IncompleteReadError:
            return "GET", _Answer(HTTPStatus.BAD_REQUEST)
        request, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        parts = request.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return "GET", _Answer(HTTPStatus.BAD_REQUEST)
        method, target, _protocol = parts
        host = next((line[5:] for line in lines if line.lower().startswith("host:")), "")
        return method, self._answer(method, target.partition("?")[0], host.strip())

    def _answer(self, method: str, path: str, host: str) -> _Answer:
        if not self._is_own_name(host):
            return _Answer(HTTPStatus.MISDIRECTED_REQUEST, b"this is another host\n")
        page = self._pages.get(path)
        if page is None:
            listed = " ".join(self._pages)
            return _Answer(HTTPStatus.NOT_FOUND, f"here are {listed}\n".encode())
        if method not in _METHODS:
            allow = (("Allow", ", ".join(_METHODS)),)
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, headers=allow)
        try:
            return page()
        except Exception:  # a broken check is news for the log, and no health
            _log.exception("health.page_failed", path=path)
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _is_own_name(self, host: str) -> bool:
        if self._host not in _LOOPBACK or not host:
            return True
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return name.lower() in _LOOPBACK

    def _livez(self) -> _Answer:
        return _Answer(HTTPStatus.OK, b"alive\n")

    def _readyz(self) -> _Answer:
        checks = {
            name: Check(check.ok, redactor.text(check.detail))
            for name, check in self._checks().items()
        }
        ready = all(check.ok for check in checks.values())
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _Answer(status, _json(Readiness(ready, checks)), "application/json")

    def _metrics_page(self) -> _Answer:
        return _Answer(HTTPStatus.OK, self._metrics.render(), CONTENT_TYPE)

    def _version_page(self) -> _Answer:
        return _Answer(HTTPStatus.OK, _json(self._version), "application/json")


def _json(body: msgspec.Struct) -> bytes:
    return msgspec.json.encode(body) + b"\n"


def _encode(answer: _Answer, *, with_body: bool) -> bytes:
    body = answer.body or f"{answer.status.phrase.lower()}\n".encode()
    head = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(f"{name}: {value}" for name, value in answer.headers),
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + (body if with_body else b"")
