"""Chooses under whose identity a server is called, and asks callers to sign in.

With a policy, several callers use the gateway. A server that wants its callers to sign in then gets a session for each
of them, unless the setting `shared_sessions` names it. Tokens of the gateway's own callers are never passed on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestURLParams, ElicitResult

from toolscout.errors import Denied, StoreError, Unavailable
from toolscout.home.access.vault import Vault, list_entry_names, name_entry
from toolscout.sources.mcp_config import resolve
from toolscout.sources.mcp_oauth import Nobody, SessionIdentity
from toolscout.sources.mcp_session import sends_credentials
from toolscout.trust.policy import LOCAL, Caller
from toolscout.types import Hints, Tool
from toolscout_gateway.access.oauth_routes import serve_loopback
from toolscout_gateway.access.permissions import CREDENTIAL, Permissions
from toolscout_gateway.access.sign_in import SIGN_IN_PATH, SIGN_IN_WAIT_S, Identity, SignIn, SignIns
from toolscout_gateway.lookup import Lookup
from toolscout_gateway.sessions.exchange import Exchange, ServerSession
from toolscout_gateway.sessions.upstream import CallerSession, SessionLost, Upstream
from toolscout_gateway.text import make_result

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from toolscout_gateway.sessions.upstreams import Upstreams

__all__ = ["Identities"]

MAX_SIGN_IN_ROUNDS: Final = 4  # of one call: without identity, to sign in, for further rights, and once more
MAX_CALLER_SESSIONS: Final = 1_000  # of one server
VAULT_POLL_S: Final = 0.5
SIGN_IN_TOOL: Final = "sign_in"  # what a caller calls at a server whose tools are not known yet
T = TypeVar("T")


class Identities:
    """Knows who is signed in where.

    Attributes:
        vault: keeps the tokens.
        sign_ins: those that wait for their persons.
    """

    def __init__(self, upstreams: Upstreams, permissions: Permissions, lookup: Lookup) -> None:
        """Sign callers in at these servers. The servers ask this object for the session of each caller."""
        self.upstreams, self._permissions, self._lookup = upstreams, permissions, lookup
        settings = upstreams.host.scout.settings
        self.vault = Vault(settings.place)
        self.sign_ins = SignIns(settings.public_url.rstrip("/"))
        self._base_lock = anyio.Lock()
        self._registration_locks: dict[str, anyio.Lock] = {}  # by the address of a server
        self.upstreams.host.choose_identity = self.choose_shared_identity
        self.upstreams.find_own = self.find_own

    # --- whose session

    def may_sign_in(self, upstream: ServerSession) -> bool:
        """Return whether callers may sign in to a server themselves: not at a gateway for the local user alone."""
        policies = self._permissions.policies
        is_single = policies.default is LOCAL and not policies.callers
        if is_single or upstream.server.transport == "stdio" or sends_credentials(upstream.server):
            return False
        return upstream.name not in self.upstreams.host.scout.settings.shared_sessions

    def choose_shared_identity(self, upstream: ServerSession) -> SessionIdentity | None:
        """Return whose session all callers share: nobody's, or that of the person who added the server (None)."""
        return Nobody() if self.may_sign_in(upstream) else None

    def find_own(self, upstream: Upstream, caller: Caller) -> Upstream | None:
        """Return the session whose resources and prompts a caller may see. None: they have not signed in."""
        if not self.may_sign_in(upstream):
            return upstream
        session = upstream.own_sessions.get(caller.person)
        if session is None and upstream.wants_identity:
            return None
        return session or upstream

    async def choose(self, upstream: Upstream, exchange: Exchange) -> Upstream:
        """Return the session for a call: the caller's own one if the server wants callers to sign in.

        Raises:
            Denied: if the caller cannot be told from others, or tokens cannot be kept.
            SourceError: if the server's entry is incomplete.
        """
        if not self.may_sign_in(upstream):
            return upstream
        caller = exchange.caller
        if upstream.is_owned:  # it was opened before there was a policy
            upstream = self.upstreams.replace(upstream)
        session = upstream.own_sessions.get(caller.person)
        if session is None:
            if not upstream.wants_identity and (
                upstream.is_in_catalogue or not await self._has_tokens(upstream, caller)
            ):
                return upstream
            session = await self._open(upstream, caller)
        if isinstance(session, CallerSession):
            session.identity.subject_token = self._read_token(exchange)
        return session

    async def _has_tokens(self, upstream: Upstream, caller: Caller) -> bool:
        """Return whether the vault has tokens of a caller for a server."""
        url = resolve(upstream.server, os.environ).url
        run = self.upstreams.host.run_in_thread
        return await run(lambda: self.vault.has_key) and await run(self.vault.has_tokens, caller.person, url)

    async def _open(self, upstream: Upstream, caller: Caller) -> Upstream:
        """Prepare the session of a caller. It begins with the first call."""
        if caller.is_anonymous:
            raise Denied(
                f"server {upstream.name!r} wants its callers to sign in, and you came without a key: ask whoever runs "
                "this gateway for one"
            )
        await self.upstreams.host.run_in_thread(lambda: self.vault.sealer)
        ready = resolve(upstream.server, os.environ)
        base, issuer = await self._find_base(), self._permissions.policies.token_issuer
        identity = Identity(self.vault, caller.person, ready, base, token_issuer=issuer)
        identity.registration_lock = self._registration_locks.setdefault(ready.url, identity.registration_lock)
        identity.group, identity.register = self.upstreams.host.relay.group, self.sign_ins.add
        session = upstream.own_sessions.setdefault(
            caller.person, CallerSession(upstream, identity, self.upstreams.host)
        )
        if isinstance(session, CallerSession) and session.identity is identity:  # no other request was faster
            self._retire_oldest(upstream)
            self.upstreams.run_session(session)
        return session

    def _retire_oldest(self, upstream: Upstream) -> None:
        """End the session that was unused for the longest time, if a server has too many."""
        if len(upstream.own_sessions) > MAX_CALLER_SESSIONS:
            # At least the session that was just opened is free.
            free = [(own.last_used, person) for person, own in upstream.own_sessions.items() if own.in_flight == 0]
            _, person = min(free)
            upstream.own_sessions.pop(person).retire()

    async def follow_vault(self) -> None:
        """End the sessions of persons whose tokens were removed from the vault, until cancelled."""
        while True:
            await anyio.sleep(VAULT_POLL_S)
            with contextlib.suppress(StoreError, OSError):  # the home may be away for a while
                await self._end_forgotten()

    async def _end_forgotten(self) -> None:
        """End the sessions whose tokens were removed. Calls that are under way finish."""
        stored = [
            (upstream, person, session)
            for upstream in self.upstreams.servers.values()
            for person, session in upstream.own_sessions.items()
            if isinstance(session, CallerSession) and session.identity.is_stored
        ]
        names = set(await self.upstreams.host.run_in_thread(list_entry_names, self.vault.home)) if stored else set()
        for upstream, person, session in stored:
            identity = session.identity
            if name_entry(person, identity.server.url) not in names and upstream.own_sessions.get(person) is session:
                identity.forget()
                upstream.own_sessions.pop(person).retire()

    def _read_token(self, exchange: Exchange) -> str:
        """Return the token with which the caller came. Empty if they came with a key."""
        if not exchange.caller.subject or exchange.context is None:
            return ""
        scope = getattr(exchange.context.request, "scope", None)
        return str(scope.get(CREDENTIAL) or "") if isinstance(scope, dict) else self._permissions.credential or ""

    async def _find_base(self) -> str:
        """Return the address of the gateway for browsers. Over standard input a port of this machine is opened."""
        async with self._base_lock:
            if not self.sign_ins.base:
                assert self.upstreams.host.relay.group is not None
                home, describe = self.upstreams.host.scout.settings.home, self._permissions.policies.describe_resource
                self.sign_ins.base = await self.upstreams.host.relay.group.start(
                    serve_loopback, self.sign_ins, describe, home
                )
        return self.sign_ins.base

    # --- calls

    async def run(self, exchange: Exchange, source: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work of a call in the right session. If the server wants the caller to sign in, they are asked.

        Raises:
            Unavailable: if they have not signed in, with what to do.
        """
        for _ in range(MAX_SIGN_IN_ROUNDS):
            upstream = self.upstreams.servers.get(source)
            if upstream is None:
                return await work()
            chosen = exchange.upstream = await self.choose(upstream, exchange)
            try:
                async with chosen.use():
                    try:
                        return await work()
                    except SessionLost:  # the server has not worked on it: once more, in a new session
                        return await work()
            except (MCPError, Unavailable):
                if not self._wants_person(chosen):
                    raise
            if isinstance(chosen, CallerSession) and chosen.identity.pending is not None:
                await self._ask(exchange, chosen, chosen.identity.pending)
        raise Unavailable(f"server {source!r} still refuses you after you signed in: ask whoever runs it for access")

    def _wants_person(self, chosen: Upstream) -> bool:
        """Return whether a call failed because the server wants the caller to sign in, also for further rights.

        A shared session notes it, so that callers get sessions of their own.
        """
        if isinstance(chosen, CallerSession):
            return chosen.identity.pending is not None
        if self.may_sign_in(chosen) and (chosen.state == "sign-in" or chosen.was_refused):
            chosen.wants_identity = True
        return chosen.wants_identity

    async def _ask(self, exchange: Exchange, session: CallerSession, sign_in: SignIn) -> None:
        """Have the caller's user sign in, and wait for that.

        Raises:
            Unavailable: if they did not, or their client cannot show the link.
        """
        link = f"{self.sign_ins.base}{SIGN_IN_PATH}?id={sign_in.id}"
        if not exchange.can_ask("url"):
            raise Unavailable(
                f"server {session.name!r} wants you to sign in. Show the user this link, and call the tool again when "
                f"they have signed in: {link}"
            )
        if not sign_in.is_asked:
            sign_in.is_asked = True
            try:
                answer = await exchange.ask(
                    ElicitRequestURLParams(
                        message=f"[{session.name}] Sign in at {sign_in.issuer}, so that your tools can be called.",
                        url=link,
                        elicitation_id=sign_in.id,
                    )
                )
            except BaseException:
                sign_in.is_asked = False
                raise
            if not isinstance(answer, ElicitResult) or answer.action != "accept":
                sign_in.give_up("the user declined")
        with anyio.move_on_after(SIGN_IN_WAIT_S):
            await sign_in.done.wait()
        if sign_in.error or not sign_in.done.is_set():
            session.identity.pending = None
            raise Unavailable(
                f"nobody signed in to server {session.name!r} ({sign_in.error or 'it took too long'}): ask the user "
                "before you call it again"
            )
        await self._tell_end(exchange, sign_in)

    async def _tell_end(self, exchange: Exchange, sign_in: SignIn) -> None:
        """Tell the client that its user has finished, if its protocol has such a message."""
        if exchange.context is None or exchange.resends_with_answers:
            return
        with contextlib.suppress(MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await exchange.context.session.send_elicit_complete(sign_in.id)

    async def find_missing_scope(self, caller: Caller, id: str) -> str:
        """Return the scope that a caller's token lacks for a tool. Empty if there is none, or no such tool."""
        tools, _ = await self.upstreams.host.run_in_thread(self._lookup.find_tools, caller, [id])
        return caller.find_missing_scope(tools[id]) if id in tools else ""

    # --- servers whose tools are not known yet

    def describe(self, caller: Caller) -> list[str]:
        """Return a sentence for each server whose tools a caller can only find after they signed in."""
        return [
            f"server {upstream.name!r} wants you to sign in before its tools can be found: call the tool "
            f"'{upstream.name}/{SIGN_IN_TOOL}'"
            for upstream in self.upstreams.servers.values()
            if upstream.state == "sign-in"
            and not upstream.is_listed
            and caller.person not in upstream.own_sessions
            and caller.sees(_make_sign_in_tool(upstream.name))
        ]

    async def answer_sign_in(self, exchange: Exchange, id: str) -> CallToolResult | None:
        """Answer a call of `SOURCE/sign_in`. None: the id means something else.

        Raises:
            Unavailable: if they have not signed in, with what to do.
        """
        source, _, name = id.partition("/")
        upstream = self.upstreams.servers.get(source)
        if name != SIGN_IN_TOOL or upstream is None or not self.may_sign_in(upstream):
            return None
        if not exchange.caller.sees(_make_sign_in_tool(source)):
            return None

        async def list_tools() -> None:
            assert exchange.upstream is not None
            await exchange.upstream.check_definitions()

        await self.run(exchange, source, list_tools)
        text = f"You can use server {source!r} now. Search again to find its tools."
        return make_result({"source": source, "signed_in": exchange.upstream is not upstream}, text)


def _make_sign_in_tool(source: str) -> Tool:
    """Return the tool by which the policy says who may sign in at a server."""
    return Tool(id=f"{source}/{SIGN_IN_TOOL}", name=SIGN_IN_TOOL, path=(source,), hints=Hints(read_only=True))
