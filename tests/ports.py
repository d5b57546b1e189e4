"""Free ports for servers that a test starts in another program."""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

FIRST_PORT: Final = 20_000  # below 32,768, where systems take the ports of clients and of listeners at port 0
PORTS: Final = 10_000

_tries = itertools.count()


def find_free_port() -> int:
    """Return a port of loopback on which nobody listens, a new one each time.

    A port that the system gives out and that is let go can be given to the next program that asks, before the
    server of the test has it; then the test talks to a stranger. Each process begins at a place of its own.
    """
    for tried in itertools.islice(_tries, PORTS):
        port = FIRST_PORT + (os.getpid() * 101 + tried) % PORTS
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free")
