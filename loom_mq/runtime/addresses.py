"""Addresses of the broker and the journal: read strictly, shown without secrets (C93).

An address may hold a password and tokens. `Address` therefore shows itself redacted
wherever it is printed, and gives the real text only through `reveal`. Text that cannot
be read for certain is hidden as a whole rather than in part.
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, unquote_plus, urlsplit

from loom_mq.errors import ConfigurationError

HIDDEN: Final = "***"
MIN_SECRET: Final = 4
"""Shorter passwords are hidden in addresses, but not hunted for in running text."""

SHAPES: Final = {
    "amqp": "amqp://user:password@host/vhost",
    "amqps": "amqps://user:password@host/vhost",
    "postgresql": "postgresql://user:password@host/database",
    "sqlite": "sqlite:///path",
    "memory": "memory:",
}
"""What an address of each scheme looks like, for people."""

_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*$")
_AUTHORITY_END: Final = re.compile(r"[/?#]")
_OPEN_PARAMETERS: Final = frozenset(
    {
        "application_name",
        "auth",
        "cafile",
        "capath",
        "certfile",
        "channel_max",
        "connect_timeout",
        "connection_attempts",
        "heartbeat",
        "keyfile",
        "name",
        "no_verify_ssl",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
        "timeout",
    }
)
"""Parameters whose values are no secrets; the value of any other one is hidden."""


class Address:
    """Where a server or a file is. Printing one never shows a secret.

    Attributes:
        scheme: in lower case.
        user: decoded, empty when there is none.
        host: empty for files and for memory; several are joined by commas.
        port: None for the scheme's own; the first host's where there are several.
        path: decoded, without the slash that ends the host.
    """

    __slots__ = ("_text", "host", "path", "port", "scheme", "user")

    def __init__(
        self, text: str, *, scheme: str, user: str, host: str, port: int | None, path: str
    ) -> None:
        self._text = text
        self.scheme = scheme
        self.user = user
        self.host = host
        self.port = port
        self.path = path

    def reveal(self) -> str:
        """The address as it was given, secrets included: only for the one who connects."""
        return self._text

    def secrets(self) -> frozenset[str]:
        """Every form of the secrets in it; see `secrets_of`."""
        return secrets_of(self._text)

    def __str__(self) -> str:
        return redact(self._text)

    def __repr__(self) -> str:
        return f"Address({redact(self._text)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def parse_address(text: str, schemes: tuple[str, ...]) -> Address:
    """Read an address.

    Args:
        text: such as ``postgresql://user:secret@host:5432/name``, ``sqlite:///loom.db``
            (relative), ``sqlite:////var/lib/loom.db`` (absolute) or ``memory:``.
        schemes: what is allowed, in lower case.

    Raises:
        ConfigurationError: it cannot be used; the sentence says what to write instead
            and holds no secret.
    """
    text = text.strip()
    scheme, separator, _rest = text.partition(":")
    scheme = scheme.lower()
    if not separator or scheme not in schemes:
        shown = f"the scheme {scheme!r}" if separator and _SCHEME.match(scheme) else "no scheme"
        allowed = " or ".join(SHAPES[name] for name in schemes)
        raise ConfigurationError(f"it has {shown}, allowed is {allowed}")
    if scheme == "memory":
        return _memory(text)
    parts = _split(text)
    if scheme == "sqlite":
        return _file(text, parts)
    return _server(text, scheme, parts)


def redact(url: str) -> str:
    """The address without password and without the values of unknown parameters.

    What cannot be read for certain, such as a password with a bare ``@`` or ``/`` in
    it, is hidden as a whole.
    """
    url = url.strip()
    if url == "memory:":
        return url
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.match(scheme):
        return HIDDEN
    if _doubtful(rest):
        return f"{scheme}://{HIDDEN}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{scheme}://{HIDDEN}"
    userinfo, at, host = parts.netloc.rpartition("@")
    user, colon, _password = userinfo.partition(":")
    shown = f"{scheme}://{user}{colon}{HIDDEN if colon else ''}{at}{host}{parts.path}"
    if parts.query:
        shown += "?" + "&".join(_shown_parameter(pair) for pair in parts.query.split("&"))
    return shown + (f"#{HIDDEN}" if parts.fragment else "")


def secrets_of(url: str) -> frozenset[str]:
    """Every form in which the secrets of an address may turn up in running text.

    Passwords and values of unknown parameters: as written, decoded, percent-encoded,
    and as they look inside a Python or JSON string. A password that is shorter than
    `MIN_SECRET` or equal to the user name guards nothing, and hunting for it would
    blot out innocent words, so it is left to `redact` alone.
    """
    rest = url.strip().partition("://")[2]
    query = ""
    if _doubtful(rest):
        user, _, password = rest.rpartition("@")[0].partition(":")
        found = {password}
    else:
        authority, query = _authority_and_query(rest)
        user, _, password = authority.rpartition("@")[0].partition(":")
        found = {password}
    found.update(
        value
        for pair in query.split("&")
        for name, _, value in (pair.partition("="),)
        if name.lower() not in _OPEN_PARAMETERS
    )
    found -= {user, unquote(user)}
    forms = {form for secret in found if len(secret) >= MIN_SECRET for form in forms_of(secret)}
    return frozenset(form for form in forms if len(form) >= MIN_SECRET)


def forms_of(secret: str) -> frozenset[str]:
    """A secret as written, decoded, percent-encoded, and inside quoted text."""
    decoded = {secret, unquote(secret), unquote_plus(secret)}
    encoded = {
        quoted
        for plain in decoded
        for quoted in (quote(plain, safe=""), quote(plain), quote_plus(plain))
    }
    lower = {re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), text) for text in encoded}
    forms = decoded | encoded | lower
    quoted_forms = {repr(form)[1:-1] for form in forms} | {json.dumps(form)[1:-1] for form in forms}
    return frozenset(forms | quoted_forms)


def _doubtful(rest: str) -> bool:
    """Whether an ``@`` stands after the host's end: part of a password, for all we know."""
    end = _AUTHORITY_END.search(rest)
    return end is not None and "@" in rest[end.start() :]


def _authority_and_query(rest: str) -> tuple[str, str]:
    end = _AUTHORITY_END.search(rest)
    authority = rest if end is None else rest[: end.start()]
    return authority, rest.partition("?")[2].partition("#")[0]


def _shown_parameter(pair: str) -> str:
    name, equals, _value = pair.partition("=")
    if not equals:
        return HIDDEN
    return pair if name.lower() in _OPEN_PARAMETERS else f"{name}={HIDDEN}"


def _split(text: str) -> SplitResult:
    rest = text.partition(":")[2]
    if not rest.startswith("//"):
        raise ConfigurationError("`://` must follow the scheme")
    if _doubtful(rest[2:]):
        raise ConfigurationError(
            "an `@` stands after the host, so it cannot be told where the password ends; "
            "percent-encode the special characters of user, password and path "
            "(@ is %40, : is %3A, / is %2F, # is %23, ? is %3F, % is %25)"
        )
    try:
        parts = urlsplit(text)
        for host in parts.netloc.rpartition("@")[2].split(","):  # PostgreSQL takes several
            urlsplit(f"//{host}").port  # noqa: B018  # raises when it is no number
    except ValueError:
        # the error's own text may hold a piece of the password, so it is not chained
        raise ConfigurationError(
            "host or port cannot be read; the port is a number from 1 to 65535, an IPv6 "
            "address stands in brackets, and special characters of the password are "
            "percent-encoded (: is %3A, / is %2F, # is %23, ? is %3F)"
        ) from None
    return parts


def _memory(text: str) -> Address:
    if text.lower() not in ("memory:", "memory://"):
        raise ConfigurationError("`memory:` takes nothing after it")
    return Address(text, scheme="memory", user="", host="", port=None, path="")


def _file(text: str, parts: SplitResult) -> Address:
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path:
        raise ConfigurationError(
            "write sqlite:///loom.db for a file here or sqlite:////var/lib/loom.db for one anywhere"
        )
    return Address(text, scheme="sqlite", user="", host="", port=None, path=path)


def _server(text: str, scheme: str, parts: SplitResult) -> Address:
    hosts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    if not all(host.hostname for host in hosts):
        raise ConfigurationError("it names no host")
    if any(host.port == 0 for host in hosts):
        raise ConfigurationError("port 0 is no port")
    if parts.fragment or "#" in text:
        raise ConfigurationError("a bare `#` must be written %23")
    try:
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError(
            "what follows the `?` is not name=value&name=value; a bare `?` in the password "
            "must be written %3F"
        ) from None
    return Address(
        text,
        scheme=scheme,
        user=unquote(parts.username or ""),
        host=",".join(host.hostname or "" for host in hosts),
        port=hosts[0].port,
        path=unquote(parts.path.removeprefix("/")),
    )
