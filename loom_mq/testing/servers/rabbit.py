"""A private RabbitMQ."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from loom_mq.testing.servers.base import PrivateServer, ServerFailedError, StopMode
from loom_mq.testing.servers.control import ControlNode
from loom_mq.testing.servers.ports import free_port

_USER: Final = "loom"
_TOOL_TIMEOUT: Final = 60.0
_PROBE_SECONDS: Final = 1.0
_PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_CONNECTION_START: Final = bytes([1, 0, 0])


class QueueState(msgspec.Struct, frozen=True):
    """A queue as the broker tells about it.

    RabbitMQ counts a quorum queue's messages every few seconds only.
    """

    name: str
    type: str
    messages_ready: int
    messages_unacknowledged: int
    consumers: int


class RabbitServer(PrivateServer):
    """A private RabbitMQ: one node, with a name server (epmd) and a cookie of its own.

    RabbitMQ 3.10 writes the name of a new quorum queue to disk only when none was declared or
    deleted for half a second. Killed before that, it comes back with a queue that has no leader
    and never gets one: every use of it waits for ever. `kill` therefore lets it write first,
    unless told to act ``at_once``.

    Args:
        settings: lines for its configuration, by name, for example
            ``{"consumer_timeout": "10000"}``.
        start_timeout: seconds until a start counts as failed.

    Raises:
        ServerFailedError: RabbitMQ is not installed.
    """

    _gentle = signal.SIGKILL
    _stop_signals: Mapping[StopMode, signal.Signals] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, start_timeout: float = 90.0
    ) -> None:
        super().__init__("rabbitmq", user=None, start_timeout=start_timeout)
        self._bin = find_rabbit()
        token = secrets.token_hex(6)
        self._node = f"loom_{token}@localhost"
        self._control_name = f"control_{token}@localhost"
        self._control: ControlNode | None = None
        self._password = secrets.token_hex(16)
        self.port = free_port()
        self._node_port = free_port()
        self._names_port = free_port()
        self._settings = {
            "listeners.tcp.local": f"127.0.0.1:{self.port}",
            "default_user": _USER,
            "default_pass": self._password,
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        """The URL of the virtual host ``/``, for the administrator, password included."""
        return self.url_of("/")

    def url_of(self, vhost: str) -> str:
        """The URL of a virtual host, whether it exists or not."""
        return f"amqp://{_USER}:{self._password}@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    async def create_vhost(self, name: str) -> str:
        """Create a virtual host and return its URL."""
        await self.evaluate(
            f"ok = rabbit_vhost:add({_binary(name)}, {_binary(_USER)}),"
            f" rabbit_auth_backend_internal:set_permissions({_binary(_USER)}, {_binary(name)},"
            f' <<".*">>, <<".*">>, <<".*">>, {_binary(_USER)})'
        )
        return self.url_of(name)

    async def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with all it holds, cutting the connections to it."""
        await self.evaluate(f"rabbit_vhost:delete({_binary(name)}, {_binary(_USER)})")

    async def delete_queue(self, vhost: str, name: str) -> None:
        """Delete a queue with its messages, as an operator might by mistake."""
        await self.evaluate(
            f"{{ok, Q}} = rabbit_amqqueue:lookup({_queue(vhost, name)}),"
            f" rabbit_amqqueue:delete(Q, false, false, {_binary(_USER)})"
        )

    async def purge_queue(self, vhost: str, name: str) -> None:
        """Throw away the messages that wait in a queue."""
        await self.evaluate(
            f"{{ok, Q}} = rabbit_amqqueue:lookup({_queue(vhost, name)}), rabbit_amqqueue:purge(Q)"
        )

    async def list_queues(self, vhost: str) -> list[QueueState]:
        """The queues of a virtual host."""
        answer = await self.evaluate(
            "iolist_to_binary(rabbit_json:encode([maps:from_list([case Item of"
            " {name, {resource, _, _, Name}} -> {name, Name};"
            " {Key, Value} when is_integer(Value) -> {Key, Value};"
            " {type, Type} when is_atom(Type) -> {type, atom_to_binary(Type)};"
            " {Key, _} -> {Key, 0} end"
            " || Item <- rabbit_amqqueue:info(Q, [name, type, messages_ready,"
            " messages_unacknowledged, consumers])])"
            f" || Q <- rabbit_amqqueue:list({_binary(vhost)})]))"
        )
        return msgspec.json.decode(answer, type=list[QueueState])

    async def close_all_connections(self, *, abruptly: bool = False) -> int:
        """Close all clients' connections and return how many there were.

        Args:
            abruptly: cut them without AMQP's farewell, as a broken network would.
        """
        farewell = "exit(P, kill)"
        if not abruptly:
            farewell = '(catch rabbit_networking:close_connection(P, "closed by a test"))'
        answer = await self.evaluate(
            f"length([{farewell} || P <- rabbit_networking:connections()])"
        )
        return int(answer)

    async def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` on this server; takes a second or two.

        Raises:
            ServerFailedError: it refused, or gave no answer in a minute.
        """
        return await self._run([self._bin / "rabbitmqctl", *arguments], _TOOL_TIMEOUT)

    async def evaluate(self, expression: str) -> str:
        """Evaluate an Erlang expression on the server; takes some milliseconds.

        Args:
            expression: without the final full stop.

        Returns:
            The value: a binary as it is, anything else as Erlang writes it.

        Raises:
            ServerFailedError: the server is not reachable, or refused it.
        """
        if self._control is None:
            self._control = ControlNode(
                self._node, self._control_name, self._environment(), self.folder / "control.log"
            )
        return await asyncio.to_thread(self._control.evaluate, expression)

    async def close(self) -> None:
        """End it and remove its data. Nothing is left of it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        await super().close()

    async def _prepare(self) -> None:
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        lines = [f"{name} = {value}\n" for name, value in self._settings.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "empty").write_text("")
        # The machine's own name server is left alone: RabbitMQ would start one that stays behind.
        names = self._spawn(
            ["epmd", "-address", "127.0.0.1", "-port", str(self._names_port)],
            self._environment(),
            self.folder / "epmd.log",
        )
        self._helpers.append(names)
        self._watch(names.pid, signal.SIGKILL)

    async def _settle(self) -> None:
        with suppress(ServerFailedError):
            await self.evaluate("[dets:sync(Table) || Table <- dets:all()]")

    def _command(self) -> Sequence[str | Path]:
        return [self._bin / "rabbitmq-server"]

    def _environment(self) -> Mapping[str, str]:
        strange = ("RABBITMQ_", "ERL_", "ELIXIR_", "LC_")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(strange)}
        folder = self.folder
        return {
            **inherited,
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_CTL_DIST_PORT_MIN": "35672",
            "RABBITMQ_CTL_DIST_PORT_MAX": "36672",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "empty"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            # The same file that its output goes to: a failed start may be told in either way.
            "RABBITMQ_LOGS": str(self.log_file),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # Makes the start script become the server instead of standing in front of it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    async def _ready(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    writer.write(_PROTOCOL_HEADER)
                    return await reader.readexactly(3) == _CONNECTION_START
                finally:
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return False


def find_rabbit() -> Path:
    """The folder of RabbitMQ's scripts.

    Raises:
        ServerFailedError: there is none, or Erlang is missing.
    """
    chosen = os.environ.get("LOOM_TEST_RABBITMQ_BIN")
    if chosen:
        folders = [Path(chosen)]
    else:
        # Not Debian's wrappers in /usr/sbin: they change the account and close their own output.
        folders = [Path("/usr/lib/rabbitmq/bin"), *Path("/opt").glob("rabbitmq*/sbin")]
        found = shutil.which("rabbitmq-server")
        folders += [Path(found).resolve().parent] if found else []
    for folder in folders:
        if (folder / "rabbitmq-server").exists() and shutil.which("epmd"):
            return folder
    raise ServerFailedError(
        "RabbitMQ or Erlang is not installed: run `make servers`, or name the folder of its"
        " scripts in LOOM_TEST_RABBITMQ_BIN"
    )


def _binary(text: str) -> str:
    """Any text as an Erlang binary, without a thought about quotes."""
    return f"<<{','.join(str(byte) for byte in text.encode())}>>"


def _queue(vhost: str, name: str) -> str:
    return f"rabbit_misc:r({_binary(vhost)}, queue, {_binary(name)})"
