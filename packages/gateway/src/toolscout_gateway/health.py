"""Tells how the servers behind a gateway are: as a file for `toolscout status`, and over HTTP for operators."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.home.database import now
from toolscout.trust.private_files import make_private_folder, open_private
from toolscout_gateway.sessions.upstream import Upstream
from toolscout_gateway.sessions.upstreams import Upstreams
from toolscout_gateway.text import clip, make_plain

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["GatewayState", "Health", "HealthRoutes", "ServerState", "describe_states", "read_states"]

GATEWAYS_FOLDER: Final = "gateways"  # in the home, with a file for each gateway that runs
STALE_AFTER_S: Final = 10.0  # a gateway writes its file more often
REWRITE_S: Final = 2.0
MAX_MESSAGE_CHARS: Final = 300
MAX_NAMED_SERVERS: Final = 10  # of those that start, and of those that fail; the others are counted
MAX_REASON_CHARS: Final = 200  # of why a server does not answer
CIRCUITS: Final = ("closed", "trial", "open")  # from good to bad: of all sessions of a server, the worst is shown


class ServerState(msgspec.Struct, frozen=True):
    """How one server is.

    Attributes:
        name: the source in the catalogue.
        transport: stdio, http or sse.
        state: idle, starting, ok, error, or sign-in (it wants its callers to sign in).
        message: what is wrong now. Empty if nothing is.
        calls: calls since the gateway started.
        failed_calls: calls without an answer.
        failures_in_a_row: of the latest calls. After three, calls are refused for a while.
        in_flight: calls that are under way.
        starts: sessions since the gateway started.
        circuit: closed, open (calls are refused for a while), or trial (the next call is tried).
        answered_at: when it answered last, ISO 8601. Empty: never.
        last_error: what was wrong last, also if it works again. Empty: nothing ever was.
        last_error_at: when that was.

    The figures count the sessions of callers who signed in too.
    """

    name: str
    transport: str
    state: str
    message: str
    calls: int
    failed_calls: int
    failures_in_a_row: int
    in_flight: int
    starts: int
    circuit: str = CIRCUITS[0]
    answered_at: str = ""
    last_error: str = ""
    last_error_at: str = ""


class GatewayState(msgspec.Struct, frozen=True):
    """How one gateway is.

    Attributes:
        pid: its process.
        at: when it wrote this, ISO 8601.
        processes: how many of its servers run as processes now.
        max_processes: how many may.
        servers: by name.
    """

    pid: int
    at: str
    processes: int
    max_processes: int
    servers: list[ServerState]


class Health:
    """Describes the servers behind a gateway."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._path = upstreams.host.scout.settings.home / GATEWAYS_FOLDER / f"{os.getpid()}.json"
        self._written_at = float("-inf")  # monotonic seconds; the file is written again only after a pause

    def describe(self) -> GatewayState:
        """Return the state of all servers, by name."""
        servers = sorted(self._upstreams.servers.values(), key=lambda server: server.name)
        slots = self._upstreams.host.slots
        states = [_describe_server(server) for server in servers]
        return GatewayState(os.getpid(), now(), len(slots.held), slots.limit, states)

    def write(self) -> None:
        """Write the state for `toolscout status`, every two seconds. A home that cannot be written is no error."""
        if time.monotonic() - self._written_at < REWRITE_S:
            return
        self._written_at = time.monotonic()
        with suppress(OSError):
            make_private_folder(self._path.parent)
            partial = self._path.with_suffix(".partial")
            with open(open_private(partial, os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(msgspec.json.encode(self.describe()))
            partial.replace(self._path)

    def remove(self) -> None:
        """Remove the file of a gateway that ends."""
        with suppress(OSError):
            self._path.unlink()

    def render_metrics(self) -> bytes:
        """Render the state in the text format of Prometheus."""
        from prometheus_client import CollectorRegistry, Gauge, generate_latest

        state, registry = self.describe(), CollectorRegistry()

        def add(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"toolscout_{name}", what, labels, registry=registry)

        add("gateway_processes", "Servers that run as processes.").set(state.processes)
        add("gateway_max_processes", "How many may run.").set(state.max_processes)
        server_state = add("upstream_state", "1 for the state of a server.", "server", "state")
        numbers = {
            "calls": add("upstream_calls", "Calls since the gateway started.", "server"),
            "failed_calls": add("upstream_failed_calls", "Calls without an answer.", "server"),
            "failures_in_a_row": add("upstream_failures_in_a_row", "Failed calls in a row.", "server"),
            "in_flight": add("upstream_in_flight", "Calls that are under way.", "server"),
            "starts": add("upstream_starts", "Sessions since the gateway started.", "server"),
        }
        circuit = add("upstream_circuit", "1 for the circuit of a server.", "server", "circuit")
        answered = add("upstream_answered_at_timestamp_seconds", "When a server answered last. 0: never.", "server")
        failed = add("upstream_last_error_at_timestamp_seconds", "When a server failed last. 0: never.", "server")
        for server in state.servers:
            server_state.labels(server.name, server.state).set(1)
            circuit.labels(server.name, server.circuit).set(1)
            answered.labels(server.name).set(_parse_instant(server.answered_at))
            failed.labels(server.name).set(_parse_instant(server.last_error_at))
            for name, gauge in numbers.items():
                gauge.labels(server.name).set(getattr(server, name))
        return generate_latest(registry)


def _describe_server(server: Upstream) -> ServerState:
    """Describe a server by its shared session and those of callers who signed in."""
    sessions = [server, *server.own_sessions.values()]
    failed = max(sessions, key=lambda session: session.contact.error_at)
    return ServerState(
        name=server.name,
        transport=server.server.transport,
        state=server.state,
        message=server.message[:MAX_MESSAGE_CHARS],
        calls=sum(session.calls for session in sessions),
        failed_calls=sum(session.failed_calls for session in sessions),
        failures_in_a_row=max(session.breaker.failures for session in sessions),
        in_flight=sum(session.in_flight for session in sessions),
        starts=sum(session.starts for session in sessions),
        circuit=max((session.breaker.circuit for session in sessions), key=CIRCUITS.index),
        answered_at=max(session.contact.answered_at for session in sessions),
        last_error=failed.contact.error[:MAX_MESSAGE_CHARS],
        last_error_at=failed.contact.error_at,
    )


def _parse_instant(text: str) -> float:
    """Return an instant in seconds since the epoch. 0: there is none."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0


def describe_states(upstreams: Upstreams, syncing: Collection[str], *, is_limited: bool) -> list[str]:
    """Describe the servers that start or fail, and the other sources that are being read, for an answer to a search.

    A caller with limited rights learns no names.
    """
    servers = upstreams.servers.values()
    starting = sorted({server.name for server in servers if server.state == "starting"} | set(syncing))
    failed = sorted((server.name, server.message) for server in servers if server.state == "error")
    n_unlisted = len(upstreams.list_unlisted())
    notes = []
    if n_unlisted:
        notes.append(f"{n_unlisted} of {len(servers)} servers are still starting: try again in 5 s")
    if is_limited:
        if starting and not n_unlisted:
            notes.append(f"{len(starting)} servers are still starting")
        if failed:
            notes.append(f"{len(failed)} servers do not answer")
        return notes
    for name in starting[:MAX_NAMED_SERVERS]:
        notes.append(f"server {name!r} is still starting: its newest tools may be missing")
    for name, why in failed[:MAX_NAMED_SERVERS]:
        notes.append(f"server {name!r} does not answer: {clip(make_plain(why), MAX_REASON_CHARS)}")
    n_unnamed = sum(max(0, len(names) - MAX_NAMED_SERVERS) for names in (starting, failed))
    if n_unnamed:
        notes.append(f"and {n_unnamed} more servers")
    return notes


def read_states(home: Path) -> Iterator[GatewayState]:
    """Yield the states of the gateways that run on this home. A file is removed if its gateway no longer writes it."""
    for path in sorted((home / GATEWAYS_FOLDER).glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            if time.time() - path.stat().st_mtime > STALE_AFTER_S:
                path.unlink()
            else:
                yield msgspec.json.decode(path.read_bytes(), type=GatewayState)


class HealthRoutes:
    """ASGI middleware that answers `/status` and `/metrics` to operators, and passes everything else on."""

    def __init__(self, inner: ASGIApp, health: Health, caller_key: str) -> None:
        """Answer before the application `inner`. `caller_key`: the key of the caller in the scope of a request."""
        self._inner, self._health, self._caller_key = inner, health, caller_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        from starlette.responses import JSONResponse, Response

        is_get = scope["type"] == "http" and scope["method"] == "GET"
        is_answered_here = is_get and scope["path"] in ("/status", "/metrics")
        if not is_answered_here:
            await self._inner(scope, receive, send)
            return
        response: Response
        caller: Any = scope[self._caller_key]
        if not caller.operator:
            message = "Only an operator may do this. Ask for a key with the role `operator`."
            response = JSONResponse({"error": message}, HTTPStatus.FORBIDDEN)
        elif scope["path"] == "/status":
            response = Response(msgspec.json.encode(self._health.describe()), media_type="application/json")
        else:
            response = self._answer_metrics()
        await response(scope, receive, send)

    def _answer_metrics(self) -> Any:
        """Answer with the metrics, or with 501 if the package for them is not installed."""
        from starlette.responses import JSONResponse, Response

        try:
            return Response(self._health.render_metrics(), media_type="text/plain; version=0.0.4")
        except ImportError:
            message = "Metrics need the package prometheus-client. Install toolscout[server]."
            return JSONResponse({"error": message}, HTTPStatus.NOT_IMPLEMENTED)
