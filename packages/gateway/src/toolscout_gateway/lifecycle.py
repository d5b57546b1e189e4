"""Bounds the processes of servers, pauses those that fail, and remembers which ones were listed before."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from toolscout.errors import Unavailable
from toolscout.home.database import now
from toolscout.trust.private_files import make_private_folder, replace_file

if TYPE_CHECKING:
    from toolscout.sources.mcp import Server

__all__ = ["GATEWAY_NAME", "Breaker", "Contact", "ListedServers", "ProcessSlots", "Refused", "runs_gateway"]

GATEWAY_NAME: Final = "toolscout"  # the name that a gateway reports, by which another one recognises it
MAX_FAILED_CALLS: Final = 3  # in a row; then calls are refused for a while
FIRST_PAUSE_S: Final = 1.0  # doubled each time that the trial call fails too
MAX_PAUSE_S: Final = 60.0
REFUSAL_PAUSE_S: Final = 1.0  # between two refusals of one server, the first of which is told at once
MAX_REFUSAL_WAIT_S: Final = 2.0  # of one refusal
LISTED_FILE: Final = "gateway-servers.json"  # in the home


class Refused(Unavailable):
    """A call that was not tried, because its server failed before."""


class Contact:
    """When a server was heard of.

    Attributes:
        answered_at: when it answered last: a call, or a request for its list of tools. Empty: never.
        error: what was wrong last, also if the server works again.
        error_at: when that was. Empty: never.
    """

    def __init__(self) -> None:
        self.answered_at = self.error = self.error_at = ""

    def note_answer(self) -> None:
        """The server answered."""
        self.answered_at = now()

    def note_error(self, error: str, say: Callable[[str], None] = lambda text: None) -> None:
        """The server did not answer, or its session failed. `say` is told so, but not again at each attempt."""
        is_news = error != self.error or self.answered_at > self.error_at
        self.error, self.error_at = error, now()
        if is_news:
            say(error)


class Breaker:
    """Refuses calls to a server that failed several times in a row, except for one trial after each pause.

    Attributes:
        failures: failed calls in a row. Calls that failed together count once.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._failed_at = float("-inf")
        self._closed_until = float("-inf")
        self._pause = FIRST_PAUSE_S
        self._next_refusal = float("-inf")

    @property
    def circuit(self) -> str:
        """`closed`: calls pass; `open`: they are refused; `trial`: the next one is tried."""
        if self.failures < MAX_FAILED_CALLS:
            return "closed"
        return "open" if time.monotonic() < self._closed_until else "trial"

    def check(self) -> float:
        """Return the seconds until the next call may try; 0 if it may do so now. A trial makes the others wait."""
        if self.failures < MAX_FAILED_CALLS:
            return 0.0
        clock = time.monotonic()
        if clock < self._closed_until:
            return self._closed_until - clock
        self._closed_until = clock + self._pause
        return 0.0

    def refuse(self, name: str, seconds: float) -> Refused:
        """Return the error for a call to a server of this name, which is tried again in so many seconds."""
        return Refused(
            f"server {name!r} failed {self.failures} times in a row; it is tried again in {seconds:.0f} s. "
            "Use another tool, or try again then"
        )

    async def slow_down(self) -> None:
        """Wait before a refusal is told if there was another one just now.

        A client that calls again and again would otherwise take the time of all callers.
        """
        import anyio

        clock = time.monotonic()
        wait = max(0.0, self._next_refusal - clock)
        self._next_refusal = clock + min(wait + REFUSAL_PAUSE_S, MAX_REFUSAL_WAIT_S)
        await anyio.sleep(wait)

    def note_success(self) -> None:
        """A call was answered."""
        self.failures, self._pause = 0, FIRST_PAUSE_S

    def note_failure(self, began: float) -> None:
        """A call that began at this monotonic time got no answer."""
        if began < self._failed_at:
            return
        self.failures += 1
        self._failed_at = time.monotonic()
        if self.failures == MAX_FAILED_CALLS:
            self._closed_until = self._failed_at + self._pause
        elif self.failures > MAX_FAILED_CALLS:
            self._pause = min(MAX_PAUSE_S, 2 * self._pause)
            self._closed_until = self._failed_at + self._pause


class _Holder(Protocol):
    """A server that holds a slot."""

    last_used: float

    @property
    def is_free(self) -> bool: ...

    @property
    def is_followed(self) -> bool: ...

    def stop(self) -> None: ...


class ProcessSlots:
    """Bounds how many servers run as processes. The one that was not used for the longest time makes room."""

    def __init__(self, limit: int) -> None:
        import anyio

        self.limit = limit
        self.held: dict[_Holder, None] = {}
        self._stopping: set[_Holder] = set()
        self._released = anyio.Event()

    async def take(self, holder: _Holder) -> None:
        """Wait for a slot. If all are taken, a server without calls is stopped."""
        import anyio

        while len(self.held) >= self.limit:
            free = [other for other in self.held if other.is_free and other not in self._stopping]
            if free and len(self._stopping) < self.limit:
                oldest = min(free, key=lambda other: (other.is_followed, other.last_used))
                self._stopping.add(oldest)
                oldest.stop()
            with anyio.move_on_after(1.0):  # a server may have become free without a word
                await self._released.wait()
        self.held[holder] = None

    def release(self, holder: _Holder) -> None:
        """Give a slot back."""
        import anyio

        self.held.pop(holder, None)
        self._stopping.discard(holder)
        self._released.set()
        self._released = anyio.Event()


class ListedServers:
    """Remembers with which entry each server was listed, so that an unchanged one need not start to be served.

    The file holds digests of commands and addresses, and no values of variables or headers.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / LISTED_FILE
        self._digests: dict[str, str] = {}
        self._is_written = True

    def load(self) -> None:
        """Read the file, if there is one that can be read."""
        try:
            self._digests = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            self._digests = {}

    def holds(self, source: str, server: Server) -> bool:
        """Return whether the source was listed with this entry, or nobody knows with which."""
        return self._digests.get(source, digest_entry(server)) == digest_entry(server)

    def add(self, source: str, server: Server) -> None:
        """Remember that the source was listed with this entry."""
        if self._digests.get(source) != digest_entry(server):
            self._digests[source] = digest_entry(server)
            self._is_written = False

    def write(self) -> None:
        """Write the file, if something changed."""
        if not self._is_written:
            self._is_written = True
            make_private_folder(self._path.parent)
            replace_file(self._path, msgspec.json.encode(self._digests))


def digest_entry(server: Server) -> str:
    """Return a digest of what an entry starts or connects to."""
    names: Mapping[str, object] = {"env": sorted(server.env), "headers": sorted(server.headers)}
    entry = [server.transport, server.command, server.args, server.cwd, server.url, names]
    return hashlib.blake2b(msgspec.json.encode(entry), digest_size=16).hexdigest()


def runs_gateway(server: Server) -> bool:
    """Return whether an entry runs `toolscout gateway`: with it, the gateway would call itself."""
    words = [Path(word).name for word in (server.command, *server.args)]
    words = [re.split(r"[@=<>~\[]", word)[0] for text in words for word in text.split()]
    return GATEWAY_NAME in words and "gateway" in words[words.index(GATEWAY_NAME) :]
