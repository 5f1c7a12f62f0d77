"""Wrong settings, unreachable servers, secrets that must stay secret (C93, C67, F1)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from loom_mq.testing.servers import PostgresServer, RabbitServer

ROOT = Path(__file__).parents[2]
SECRET = "S3cr3t/p@ss:w#rd%"
FORMS = (SECRET, quote(SECRET, safe=""), quote(SECRET))
ROLES = ("dispatcher", "worker", "timer")


def run(role: str, *, expected: int, within: float = 20.0, **settings: str) -> str:
    """Run a service to its end; what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", f"services.{role}"],
        cwd=ROOT,
        env={**env, "LOOM_APP": "tests.support.fleet_flows", "LOOM_LOG_LEVEL": "debug", **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = ended.stdout + ended.stderr
    assert ended.returncode == expected, told
    assert time.monotonic() - began < within
    for form in FORMS:
        assert form not in told, f"the secret is in the output as {form}"
    return told


@pytest.mark.parametrize("role", ROLES)
def test_a_missing_setting_is_told_in_a_sentence(role: str) -> None:
    told = run(role, expected=2)
    assert "LOOM_BROKER" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("role", ROLES)
def test_a_wrong_value_is_told_in_a_sentence(role: str) -> None:
    told = run(
        role,
        expected=2,
        LOOM_BROKER=f"amqp://u:{quote(SECRET, safe='')}@localhost/",
        LOOM_JOURNAL=f"mysql://u:{quote(SECRET, safe='')}@localhost/x",
    )
    assert "LOOM_JOURNAL" in told
    assert "Traceback" not in told


def test_an_app_without_flows_is_told_in_a_sentence() -> None:
    told = run(
        "worker",
        expected=2,
        LOOM_BROKER="amqp://u:p@localhost/",
        LOOM_JOURNAL="postgresql://u:p@localhost/x",
        LOOM_APP="no.such.module",
    )
    assert "no.such.module" in told


@pytest.mark.parametrize("role", ROLES)
def test_an_unreachable_journal_ends_in_bounded_time(role: str, rabbit_url: str) -> None:
    """C93: retried with a logged, bounded wait; then an end that says what is wrong."""
    told = run(
        role,
        expected=5,
        LOOM_BROKER=rabbit_url,
        LOOM_JOURNAL=f"postgresql://loom:{quote(SECRET, safe='')}@127.0.0.1:9/loom",
        LOOM_STARTUP_TIMEOUT="2",
    )
    assert "journal" in told


@pytest.mark.parametrize("role", ROLES)
def test_an_unreachable_broker_ends_in_bounded_time(role: str, postgres_dsn: str) -> None:
    told = run(
        role,
        expected=5,
        LOOM_BROKER=f"amqp://loom:{quote(SECRET, safe='')}@127.0.0.1:9/",
        LOOM_JOURNAL=postgres_dsn,
        LOOM_STARTUP_TIMEOUT="2",
    )
    assert "broker" in told


def test_c93_wrong_passwords_are_told_without_the_password(
    rabbit_server: RabbitServer, postgres_server: PostgresServer, rabbit_url: str, postgres_dsn: str
) -> None:
    """C93, C67: a refused login ends the service with one line and no secret in it."""
    told = run(
        "dispatcher",
        expected=2,
        LOOM_BROKER=f"amqp://nobody:{quote(SECRET, safe='')}@127.0.0.1:{rabbit_server.port}/",
        LOOM_JOURNAL=postgres_dsn,
        LOOM_STARTUP_TIMEOUT="30",
    )
    assert "LOOM_BROKER" in told
    run(
        "dispatcher",
        expected=2,
        LOOM_BROKER=rabbit_url,
        LOOM_JOURNAL=(
            f"postgresql://nobody:{quote(SECRET, safe='')}@127.0.0.1:{postgres_server.port}/x"
        ),
        LOOM_STARTUP_TIMEOUT="30",
    )
