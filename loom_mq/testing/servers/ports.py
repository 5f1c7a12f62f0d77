"""Free ports for servers that go down and come back."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A free TCP port of the loopback interface, below those that outgoing connections get.

    While a server is down, a client that dials a port from the outgoing range may be given
    that very port as its own and so connect to itself, and any other program may be given it.
    """
    highest = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    for _ in range(1_000):
        port = random.randrange(_LOWEST, max(highest, _LOWEST + 1_000))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port on the loopback interface")
