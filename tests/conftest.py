"""Private servers for tests, started when the first test asks for one."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest_asyncio

from loom_mq.testing.servers import PostgresServer, RabbitServer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server() -> AsyncIterator[PostgresServer]:
    """The PostgreSQL of this test run, durable as in production."""
    async with PostgresServer() as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def rabbit_server() -> AsyncIterator[RabbitServer]:
    """The RabbitMQ of this test run."""
    async with RabbitServer() as server:
        yield server


@pytest_asyncio.fixture
async def postgres_dsn(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The URL of an empty database of this test's own; the server runs, whatever a test did."""
    await postgres_server.ensure_running()
    name = f"test_{secrets.token_hex(6)}"
    yield await postgres_server.create_database(name)
    await postgres_server.ensure_running()
    await postgres_server.drop_database(name)


@pytest_asyncio.fixture
async def rabbit_url(rabbit_server: RabbitServer) -> AsyncIterator[str]:
    """The URL of an empty virtual host of this test's own; the server runs, whatever a test did."""
    await rabbit_server.ensure_running()
    name = f"test_{secrets.token_hex(6)}"
    yield await rabbit_server.create_vhost(name)
    await rabbit_server.ensure_running()
    await rabbit_server.delete_vhost(name)
