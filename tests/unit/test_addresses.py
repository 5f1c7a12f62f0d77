"""Addresses are read strictly and shown without secrets (C67, C93)."""

from __future__ import annotations

import traceback

import pytest

from loom_mq.errors import ConfigurationError
from loom_mq.runtime.addresses import forms_of, parse_address, redact, secrets_of

ALL = ("postgresql", "sqlite", "memory", "amqp", "amqps")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://loom:secret@host:5672/v", "amqp://loom:***@host:5672/v"),
        ("amqp://loom@host", "amqp://loom@host"),
        ("amqp://:secret@host", "amqp://:***@host"),
        ("amqp://host/%2F", "amqp://host/%2F"),
        ("postgresql://u:S3cr3t%2Fp@ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p@h1:1,h2:2/db", "postgresql://u:***@h1:1,h2:2/db"),
        ("postgresql://u:p@[::1]:5432/db", "postgresql://u:***@[::1]:5432/db"),
        (
            "amqps://u:p@h/v?heartbeat=10&token=abc&cafile=/ca.pem&bare",
            "amqps://u:***@h/v?heartbeat=10&token=***&cafile=/ca.pem&***",
        ),
        ("amqp://u:pa/ss@h/v", "amqp://***"),
        ("amqp://u:p@ss/w@h/v", "amqp://***"),
        ("amqp://u:pa?ss@h/v", "amqp://***"),
        ("amqp://u:pa#ss@h/v", "amqp://***"),
        ("amqp://u:p@[broken/v", "amqp://***"),
        ("u:secret@h/v", "***"),
        ("host=h password=secret", "***"),
        ("sqlite:////var/lib/loom.db", "sqlite:////var/lib/loom.db"),
        ("memory:", "memory:"),
        ("", "***"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    """C93: no password and no token, and nothing at all when in doubt."""
    assert redact(url) == shown


def test_an_address_prints_redacted_and_reveals_on_request() -> None:
    url = "amqp://loom:top%2Fsecret@host/a%2Fb%25"
    address = parse_address(url, ("amqp",))
    assert f"{address} {address!r}".count("secret") == 0
    assert address.reveal() == url
    assert (address.user, address.host, address.port, address.path) == (
        "loom",
        "host",
        None,
        "a/b%",
    )


def test_odd_vhost_and_password_are_read_when_encoded() -> None:
    """C67: a vhost with '/' and '%', a password with '@:/#%'."""
    address = parse_address("amqp://u:%40%3A%2F%23%25@h:5673/%2F%25", ("amqp",))
    assert address.path == "/%"
    assert address.port == 5673
    assert "@:/#%" in address.secrets()


@pytest.mark.parametrize(
    ("url", "path"),
    [("sqlite:///loom.db", "loom.db"), ("sqlite:////var/l%20m.db", "/var/l m.db")],
)
def test_files(url: str, path: str) -> None:
    assert parse_address(url, ("sqlite",)).path == path


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://u:secret@h", "the scheme 'http'"),
        ("no address secret", "no scheme"),
        ("amqp:secret", "://"),
        ("amqp://u:sec/ret@h/v", "percent-encode"),
        ("amqp://u:secret@h:port/v", "port"),
        ("amqp://u:secret@h:0/v", "port 0"),
        ("amqp://u:secret@h:99999/v", "port"),
        ("amqp://u:sec:ret/x", "port"),
        ("amqp://u:secret@/v", "no host"),
        ("amqp://u:secret@h/v#x", "%23"),
        ("amqp://u:secret@h/v?nothing", "name=value"),
        ("amqp://u:secret@[broken/v", "host or port"),
        ("sqlite://host/x", "sqlite:///"),
        ("sqlite:///", "sqlite:///"),
        ("memory:x", "nothing after"),
    ],
)
def test_what_cannot_be_used_is_refused_without_the_secret(url: str, says: str) -> None:
    """C67, C93: the sentence helps, and neither it nor its traceback holds the password."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_address(url, ALL)
    shown = "".join(traceback.format_exception(caught.value))
    sentence = caught.value.message
    assert "secret" not in sentence
    assert "ret" not in sentence.replace("secret", "")
    assert "cast to integer" not in shown, "the library's own error quotes the password"


def test_every_form_of_the_secrets_is_known() -> None:
    """C93: as written, decoded, encoded; the token of a query parameter too."""
    secrets = secrets_of("postgresql://u:S3cr3t%2Fp@ss@h/db?token=t0k%20n&sslmode=require")
    assert {
        "S3cr3t%2Fp@ss",
        "S3cr3t/p@ss",
        "S3cr3t%2Fp%40ss",
        "S3cr3t%2fp%40ss",
        "S3cr3t%252Fp%40ss",
        "t0k%20n",
        "t0k n",
        "t0k+n",
    } <= secrets
    assert "require" not in secrets


def test_a_password_that_guards_nothing_is_not_hunted_for() -> None:
    """Hunting for `guest` or `a` would blot out innocent words."""
    assert secrets_of("amqp://guest:guest@h/") == frozenset()
    assert secrets_of("amqp://u:abc@h/") == frozenset()


def test_the_password_of_an_unreadable_address_is_known_too() -> None:
    assert "pa/ss@wo" in secrets_of("amqp://user:pa/ss@wo@h/v")


def test_forms_inside_quoted_text() -> None:
    forms = forms_of('quo"te\\back\nünï')
    assert {'quo\\"te\\\\back\\n\\u00fcn\\u00ef', 'quo"te\\\\back\\nünï'} <= forms
