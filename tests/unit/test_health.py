"""Health over HTTP: right answers, bounded requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from loom_mq.errors import SettingsError
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import Metrics
from loom_mq.observe.redaction import redactor
from loom_mq.runtime.health import MOST_CONNECTIONS, HealthServer, Version

CHECKS: dict[str, Check] = {}


@pytest.fixture
async def server() -> AsyncIterator[HealthServer]:
    CHECKS.clear()
    CHECKS["journal"] = Check(True)
    async with HealthServer(
        "127.0.0.1",
        0,
        version=Version("worker", "w/1", "1.2.3"),
        checks=lambda: CHECKS,
        metrics=Metrics(version="1.2.3"),
        request_seconds=0.3,
    ) as running:
        yield running


async def ask(server: HealthServer, request: str) -> tuple[int, dict[str, str], bytes]:
    return await ask_raw(server, request.replace("\n", "\r\n").encode() + b"\r\n\r\n")


async def ask_raw(server: HealthServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(request)
            answer = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split(" ")[1]), headers, body


async def test_live(server: HealthServer) -> None:
    status, headers, body = await ask(server, "GET /livez HTTP/1.1\nHost: localhost:1")
    assert (status, body) == (200, b"alive\n")
    assert headers["Content-Length"] == str(len(body))
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Connection"] == "close"


async def test_ready_shows_every_check(server: HealthServer) -> None:
    status, headers, body = await ask(server, "GET /readyz?verbose HTTP/1.1")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"ready": True, "checks": {"journal": {"ok": True, "detail": ""}}}


async def test_one_failed_check_is_503_and_shows_no_secret(server: HealthServer) -> None:
    """C93."""
    redactor.register(["S3cr3t/p@ss"])
    CHECKS["broker"] = Check(False, "cannot reach amqp://u:S3cr3t/p@ss@h")
    status, _, body = await ask(server, "GET /readyz HTTP/1.1")
    assert status == 503
    assert json.loads(body)["ready"] is False
    assert b"S3cr3t" not in body


async def test_metrics_and_version(server: HealthServer) -> None:
    status, headers, body = await ask(server, "GET /metrics HTTP/1.1")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert b'loom_build_info{schema="",version="1.2.3"} 1.0' in body
    _, _, body = await ask(server, "GET /version HTTP/1.0")
    assert json.loads(body) == {"service": "worker", "worker": "w/1", "release": "1.2.3"}


async def test_head_has_the_headers_and_no_body(server: HealthServer) -> None:
    status, headers, body = await ask(server, "HEAD /livez HTTP/1.1")
    assert (status, headers["Content-Length"], body) == (200, "6", b"")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST /livez HTTP/1.1", 405),
        ("OPTIONS /readyz HTTP/1.1", 405),
        ("GET / HTTP/1.1", 404),
        ("POST /nothing HTTP/1.1", 404),
        ("GET /livez", 400),
        ("GET /livez SPDY/3", 400),
        ("nonsense", 400),
    ],
)
async def test_what_is_not_served(server: HealthServer, request_line: str, status: int) -> None:
    found, headers, _ = await ask(server, request_line)
    assert found == status
    assert headers.get("Allow") == ("GET, HEAD" if status == 405 else None)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
    ],
)
async def test_a_foreign_host_is_refused_on_loopback(
    server: HealthServer, host: str, status: int
) -> None:
    """C96: a web page cannot read along by pointing its own name at the loopback address."""
    found, _, _ = await ask(server, f"GET /readyz HTTP/1.1\nHost: {host}")
    assert found == status


async def test_requests_are_bounded_in_size(server: HealthServer) -> None:
    status, _, _ = await ask(server, "GET /livez HTTP/1.1\nX: " + "x" * 20_000)
    assert status == 431


async def test_requests_are_bounded_in_time(server: HealthServer) -> None:
    status, _, _ = await ask_raw(server, b"GET /livez HTTP/1.1\r\n")
    assert status == 408


async def test_connections_are_bounded(server: HealthServer) -> None:
    """Those over the limit are dropped; when the idle ones time out, all is well again."""
    idle = [
        await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MOST_CONNECTIONS)
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    for waiting, _ in idle:
        assert b" 408 " in await waiting.read()
    status, _, _ = await ask(server, "GET /livez HTTP/1.1")
    assert status == 200
    for _, over in idle:
        over.close()


async def test_a_check_that_raises_is_a_500(server: HealthServer) -> None:
    CHECKS["broken"] = None  # type: ignore[assignment]  # what a faulty part might return
    status, _, _ = await ask(server, "GET /readyz HTTP/1.1")
    assert status == 500


async def test_a_port_in_use_names_the_setting(server: HealthServer) -> None:
    second = HealthServer(
        "127.0.0.1",
        server.port,
        version=Version("worker", "w/2", "1"),
        checks=dict,
        metrics=Metrics(),
    )
    with pytest.raises(SettingsError, match="LOOM_HTTP_PORT"):
        async with second:
            pass
