"""Settings are read strictly and told about in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from loom_mq.errors import SettingsError
from loom_mq.observe.logging import LogFormat, LogLevel
from loom_mq.runtime.environment import (
    describe,
    parse_seconds,
    read_settings,
    shown_settings,
    unknown_variables,
)
from loom_mq.runtime.reference import PAGES
from loom_mq.runtime.settings import (
    SETTINGS_OF_ROLE,
    ClientSettings,
    CommonSettings,
    DispatcherSettings,
    MigrateMode,
    TimerSettings,
    WorkerSettings,
)
from loom_mq.runtime.settings_text import settings_help

ADDRESSES = {
    "LOOM_JOURNAL": "postgresql://loom:S3cr3t%2Fp@ss@db/loom",
    "LOOM_BROKER": "amqp://loom:S3cr3t%2Fp@ss@mq/v",
}
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_defaults() -> None:
    settings = read_settings(WorkerSettings, {**ADDRESSES, "LOOM_APP": "flows"})
    assert settings.app == ("flows",)
    assert settings.queues == ("default",)
    assert settings.http_port == 0
    assert settings.migrate is MigrateMode.AUTO
    assert settings.log_format is LogFormat.JSON
    assert settings.lease == 5.0
    assert settings.statement_cache is True


def test_every_kind_of_value_is_read() -> None:
    settings = read_settings(
        WorkerSettings,
        {
            **ADDRESSES,
            "LOOM_APP": " shop.flows , extra.py, shop.more:flow ",
            "LOOM_QUEUES": "a,b",
            "LOOM_LOG_LEVEL": "DEBUG",
            "LOOM_UVLOOP": "true",
            "LOOM_STATEMENT_CACHE": "0",
            "LOOM_HTTP_PORT": "off",
            "LOOM_SLOTS": "7",
            "LOOM_DRAIN": "2m",
            "LOOM_LEASE": "1500ms",
            "LOOM_PARK_DRAIN": "",
        },
    )
    assert settings.app == ("shop.flows", "extra.py", "shop.more:flow")
    assert settings.queues == ("a", "b")
    assert settings.log_level is LogLevel.DEBUG
    assert settings.uvloop is True
    assert settings.statement_cache is False
    assert settings.http_port is None
    assert (settings.slots, settings.drain, settings.lease) == (7, 120.0, 1.5)
    assert settings.park_drain == 30.0, "an empty variable is an unset one"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("0.5", 0.5), ("5s", 5), ("500ms", 0.5), ("2m", 120), ("1h", 3600), (" 1 H ", 3600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5 days", "-1", "nan", "inf", "1e3", "1h30m", "٣"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("LOOM_LEASE", "1", "over 1 to 300 s"),
        ("LOOM_LEASE", "soon", "over 1 to 300 s"),
        ("LOOM_DRAIN", "-1", "0 to 86400 s"),
        ("LOOM_POOL_SIZE", "3.5", "1 to 100"),
        ("LOOM_POOL_SIZE", "0", "1 to 100"),
        ("LOOM_HTTP_PORT", "70000", "0 to 65535, or off"),
        ("LOOM_HTTP_PORT", "on", "0 to 65535, or off"),
        ("LOOM_LOG_LEVEL", "loud", "debug or info or warning or error"),
        ("LOOM_UVLOOP", "ja", "true or false"),
        ("LOOM_MAX_RECOVERIES", "0", "1 to 1000000"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(variable: str, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(DispatcherSettings, {**ADDRESSES, variable: text})
    assert caught.value.message == f"{variable} is {text!r}, allowed is {says}"


def test_all_mistakes_are_told_at_once_and_no_secret_among_them() -> None:
    """C67, C93."""
    with pytest.raises(SettingsError) as caught:
        read_settings(
            WorkerSettings,
            {
                "LOOM_JOURNAL": "mysql://u:S3cr3t@h/db",
                "LOOM_BROKER": "amqp://u:S3c/r3t@h",
                "LOOM_SLOTS": "amqp://u:S3cr3t@h",
            },
        )
    sentence = caught.value.message
    for variable in ("LOOM_JOURNAL", "LOOM_BROKER", "LOOM_APP", "LOOM_SLOTS"):
        assert variable in sentence
    assert "mysql://u:***@h/db" in sentence
    assert "S3c" not in sentence
    assert "r3t" not in sentence
    assert "\n" not in sentence


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(SettingsError, match=r"LOOM_RESEND_LIMIT.*LOOM_RESEND_AFTER"):
        read_settings(
            DispatcherSettings, {**ADDRESSES, "LOOM_RESEND_AFTER": "20", "LOOM_RESEND_LIMIT": "10"}
        )


def test_a_client_needs_the_broker_only() -> None:
    """F1."""
    assert read_settings(ClientSettings, {"LOOM_BROKER": "amqp://h"}).broker.host == "h"


def test_printing_settings_shows_no_secret() -> None:
    """C93: the dump of the configuration."""
    settings = read_settings(TimerSettings, ADDRESSES)
    dump = f"{settings} {settings!r} {shown_settings(settings)}"
    assert "S3cr3t" not in dump
    assert "p@ss" not in dump
    assert shown_settings(settings)["LOOM_JOURNAL"] == "postgresql://loom:***@db/loom"


def test_unknown_variables_are_told_with_the_closest_name_and_without_values() -> None:
    told = unknown_variables(
        {
            "LOOM_SLOT": "S3cr3t",
            "LOOM_ZZZZZZZZ": "S3cr3t",
            "LOOM_SLOTS": "5",
            "LOOM_TIMER_POLL": "1",
            "LOOM_TEST_FAST": "1",
            "PATH": "x",
        }
    )
    assert told == [
        "LOOM_SLOT is not a setting; did you mean LOOM_SLOTS?",
        "LOOM_ZZZZZZZZ is not a setting; see --help for those that are",
    ]


@pytest.mark.parametrize("kind", SETTINGS_OF_ROLE.values())
def test_every_setting_says_what_it_is(kind: type[CommonSettings]) -> None:
    text = settings_help(kind)
    for setting in describe(kind):
        assert setting.variable in text
        assert setting.help.endswith("."), setting.variable
        assert "\n" not in setting.help


@pytest.mark.parametrize("page", PAGES)
def test_generated_pages_are_up_to_date(page: str) -> None:
    """If this fails: python -m loom_mq.runtime.reference docs/reference"""
    assert (REFERENCE / page).read_text(encoding="utf-8") == PAGES[page]()
