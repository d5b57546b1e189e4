"""Opens sessions with MCP servers, bounds their time and size, and explains their failures."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from toolscout.errors import SourceError, UserError, advise_install, require
from toolscout.settings import Settings
from toolscout.sources.mcp_config import Server, Transport, redact, resolve, show_url
from toolscout.sources.mcp_limits import MAX_LIST_BYTES, MAX_MESSAGE_BYTES, Spills, find_refusal
from toolscout.sources.mcp_oauth import (
    EntryTokens,
    PersonRequired,
    SessionIdentity,
    SignInRequired,
    TokenFile,
    approve_origin,
    authenticate_entry,
    sign_in_hint,
    signing_in,
)
from toolscout.sources.mcp_skills import MAX_SKILLS, SKILLS_EXTENSION, ListedSkill, SkillReader
from toolscout.sources.mcp_transport import (
    MAX_OPEN_QUESTIONS,
    RAW_PAGE,
    STDERR_KEPT_BYTES,
    HttpGuard,
    MessageFilter,
    RawPage,
    drain_stderr,
    filter_transport,
    open_stdio,
    origin_of,
)
from toolscout.sources.sandbox.servers import wrap_command
from toolscout.trust.private_files import make_private_folder, replace_file
from toolscout.trust.redaction import Cover, find_environment_credentials

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.client.extension import ClientExtension
    from mcp.client.session import IncomingMessage, MessageHandlerFnT
    from mcp_types import (
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        LoggingMessageNotificationParams,
    )

__all__ = [
    "UI_EXTENSION",
    "McpConnection",
    "SignInRequired",
    "connect",
    "digest_entry",
    "remember_handshake",
    "sends_credentials",
]

MAX_ERROR_CHARS: Final = 195  # without its fixed words; the last line of stderr gets what is left of them
MIN_STDERR_CHARS, MAX_STDERR_CHARS = 40, 200  # of that line
_FAULT: Final = re.compile(
    r"\b(\w*error|cannot|can't|could not|failed|not found|no such|no module|denied|refused)\b", re.I
)
MAX_LIST_PAGES: Final = 1000
MAX_DISCOVERIES: Final = 6  # of a server that is slow to start; the SDK waits 10 s for each
#: MCP Apps. Some servers list tools with a page for it only to clients that show such pages, so every session says so.
UI_EXTENSION: Final = "io.modelcontextprotocol/ui"
UI_TYPE: Final = "text/html;profile=mcp-app"
WAYS_FILE: Final = "mcp-protocols.json"  # in the home: how to open sessions with servers that refuse the first `Way`
SESSION_HEADER: Final = "mcp-session-id"
LOST_SESSION_STATUSES: Final = (400, 404)  # of a request in a session: the server does not know the session
OLDER_TRANSPORT_STATUSES: Final = (400, 404, 405, 406, 415)  # of a server that knows no streamable HTTP
STDERR_END_S: Final = 0.5  # to wait for a server's last words on stderr
#: Variables that a server inherits beside those of the SDK.
INHERITED_VARIABLES: Final = (
    "LANG", "LC_ALL", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
)  # fmt: skip


class McpConnection:
    """An open session with one MCP server. It belongs to the task that opened it.

    Attributes:
        client: the SDK's client, for calls.
        about: name and version as the server gives them.
        messages: counts the messages, and knows whether the other end has closed the connection.
        list_fault: why the last list of tools may not be complete. Empty: it is.
        skills: the skills that are listed behind the tools. None: the next list reads them.
        is_modern: whether the session has a protocol version without a handshake, in which every request declares what
            the client can do.
    """

    def __init__(self, client: Client, watch: _Watch) -> None:
        self.client = client
        self.messages, self.is_modern = watch.messages, watch.messages.is_modern
        self.list_fault = ""
        self.skills: list[ListedSkill] | None = None
        self._watch = watch
        info = client.server_info
        about = {"name": info.name, "version": info.version} if info else {}
        self.about: dict[str, str] = self.credential_cover.value(about)

    @property
    def credential_cover(self) -> Cover:
        """Replaces the credentials that the server was given, also renewed ones, in what it sends."""
        return self._watch.credential_cover

    @property
    def was_refused(self) -> bool:
        """Whether the server's last answer was 401 or 403: it wants somebody to sign in, or further rights."""
        return self._watch.status in (401, 403)

    def listen(
        self,
        answer_question: Callable[[ElicitRequestParams], Awaitable[ElicitResult | ErrorData]],
        write_log: Callable[[LoggingMessageNotificationParams], Awaitable[None]],
    ) -> None:
        """Set who answers the server's questions to a user and receives its log messages. At first there is nobody."""
        self._watch.answer_question, self._watch.write_log = answer_question, write_log

    def handle_messages(self, handler: MessageHandlerFnT) -> None:
        """Pass every notification of the server to `handler`."""
        self._watch.handle_message = handler

    async def list_tools(self, limit: int, *, timed: bool = True) -> list[Any]:
        """Return every tool of the server as it was sent, and its skills. `build_tool` checks them.

        The first listing may take what opening the session has left of the server's timeout, later ones all of it.
        Placeholders are in the result in place of credentials that the server was given.

        Args:
            limit: the largest number of tools.
            timed: whether the timeout applies. Otherwise the caller decides how long to wait.

        Raises:
            SourceError: if there are more than `limit` tools or 32 MiB of them, or an answer is missing or is not MCP.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import METHOD_NOT_FOUND

        with self._watch.run_clock("its list of tools") if timed else nullcontext():
            if self.skills is None:
                self.skills = await SkillReader(self.client, self.credential_cover).read_all()
            try:
                return [*await self._join_pages(limit), *self.skills]
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND and self.client.server_capabilities.tools is None:
                    return []
                raise

    @property
    def lists_skills(self) -> bool:
        """Whether the server has skills, or may come to have some."""
        extensions = self.client.server_capabilities.extensions or {}
        return bool(self.skills) or SKILLS_EXTENSION in extensions

    async def find_skill(self, uri: str) -> bool:
        """Read a skill that the server did not list. The next list of tools has it. Returns whether there is one.

        False also if it was listed, or there are too many skills already.
        """
        skills = self.skills or []
        if len(skills) >= MAX_SKILLS or any(skill.uri == uri for skill in skills):
            return False
        skill = await SkillReader(self.client, self.credential_cover).read_one(uri)
        if skill is not None:
            self.skills = [*skills, skill]
        return skill is not None

    async def _join_pages(self, limit: int) -> list[Any]:
        """Read all pages of the list of tools, and join their tools. Sets `list_fault` if the pages have no end.

        Raises:
            SourceError: if a page has no list, or all have more than `limit` tools or 32 MiB.
        """
        tools: list[Any] = []
        cursors: set[str] = set()
        self.list_fault = ""
        size = 0
        page = await self._read_page(None)
        for _ in range(MAX_LIST_PAGES):
            if not isinstance(page.tools, list):
                raise SourceError("expected a list of tools, found something else")
            size += len(page.encoded)
            if size > MAX_LIST_BYTES:
                raise SourceError(
                    f"expected a list of tools of at most {MAX_LIST_BYTES // 2**20} MiB, found a larger one"
                )
            tools += (
                self.credential_cover.value(page.tools) if self.credential_cover.finds(page.encoded) else page.tools
            )
            if len(tools) > limit:
                raise SourceError(f"expected at most {limit:,} tools, found more: raise max_tools to read them")
            if not page.cursor:
                return tools
            if not isinstance(page.cursor, str) or page.cursor in cursors:
                self.list_fault = (
                    "expected a new nextCursor on each page, found an old one or no text: the list ends there"
                )
                return tools
            cursors.add(page.cursor)
            page = await self._read_page(page.cursor)
        raise SourceError(f"expected a list of tools that ends, found more than {MAX_LIST_PAGES:,} pages")

    async def _read_page(self, cursor: str | None) -> RawPage:
        """Read one page of the list as the server sent it. `MessageFilter` has put it into `_meta` of the result."""
        from mcp_types import PaginatedRequestParams

        params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
        result = await self.client.session.list_tools(params=params)
        page = (result.meta or {}).get(RAW_PAGE)
        return page if isinstance(page, RawPage) else RawPage(None, None, "")


@asynccontextmanager
async def connect(
    server: Server,
    *,
    settings: Settings,
    person: bool = False,
    spills: Spills | None = None,
    identity: SessionIdentity | None = None,
    extensions: Sequence[ClientExtension] = (),
) -> AsyncIterator[McpConnection]:
    """Open a session with a server, and start the server if it is a command.

    When the block is left, the session ends with every process that it started. Every error, also one inside the
    block, becomes one sentence without secrets. Inside the block only `list_tools` has a time limit.

    Args:
        server: as `parse_server` or `server_from_locator` return it. Its `${…}` are filled in here.
        settings: `mcp_timeout` and `home`.
        person: whether somebody can be asked to sign in.
        spills: receives the large values of results, which are then empty in the result. None: a result may have
            16 MiB.
        identity: whose credentials the session uses. None: those of the person who ran `toolscout add`.
        extensions: of the protocol, which the session declares beside MCP Apps and skills.

    Raises:
        SignInRequired: if the server wants the identity to sign in.
        SourceError: with the name of the server, what was expected and what happened.
    """
    require("mcp", "mcp")
    _silence_sdk_loggers()
    try:
        ready = resolve(server, os.environ)
        if ready.sandbox is not None:
            command, *args = wrap_command(ready.sandbox, [ready.command, *ready.args], ready.cwd, settings.home)
            ready = replace(ready, command=command, args=tuple(args))
    except SourceError as error:
        raise SourceError(f"{server.name}: {error}") from None
    ways = _list_ways(server, settings)
    failure: SourceError | None = None  # of the way with mode `auto`, which says most, or else of the first
    async with AsyncExitStack() as stack:
        for way in ways:
            watch = _Watch(replace(ready, transport=way.transport), server.timeout or settings.mcp_timeout, spills)
            watch.identity, watch.extensions = identity, extensions
            watch.read_assertion = lambda: resolve(server, os.environ).sign_in["assertion"]
            try:
                connection = await stack.enter_async_context(_open_session(watch, way.mode, settings, person))
            except SourceError as error:
                failure = error if way.mode == "auto" or failure is None else failure
                if way is ways[-1] or not watch.suggests_another_way:
                    raise failure from None
                continue
            # If `server/discover` got no answer, asking it would cost its timeout each time.
            _remember_way(server, settings, Way(way.transport, "legacy") if watch.messages.ignored_discovery else way)
            break
        yield connection


@asynccontextmanager
async def _open_session(watch: _Watch, mode: str, settings: Settings, person: bool) -> AsyncIterator[McpConnection]:
    """Open a session in one way; see `connect`.

    Args:
        watch: of this session, with its server, whose variables are filled in.
        mode: as in `Way`.
        settings: its home has the tokens of a server that wants a sign-in.
        person: whether somebody can be asked to sign in.
    """
    from mcp import Client
    from mcp.client.extension import advertise
    from mcp_types import Implementation
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    shown = [advertise(UI_EXTENSION, {"mimeTypes": [UI_TYPE]}), advertise(SKILLS_EXTENSION, {})]
    with watch.scope as scope:
        try:
            with watch.run_clock("an answer to its start"):
                for is_second in (False, True):
                    transport = _open_transport(watch.server, watch, settings, person)
                    client = Client(
                        filter_transport(transport, watch.messages),
                        mode=mode,
                        cache=None,
                        message_handler=watch.receive_message,
                        elicitation_callback=watch.receive_question,
                        logging_callback=watch.receive_log,
                        client_info=Implementation(name="toolscout", version=version("toolscout")),
                        extensions=[*shown, *watch.extensions],
                    )
                    async with client:
                        if watch.messages.was_late and not is_second:
                            watch.messages = MessageFilter()
                            continue  # it knows a newer protocol than the one agreed on, and now starts faster
                        if mode in MODERN_PROTOCOL_VERSIONS:
                            await _discover(client, mode)
                        watch.messages.version = client.protocol_version
                        watch.messages.is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
                        with watch.pause_clock():
                            yield McpConnection(client, watch)
                    break
        except Exception as error:
            raise watch.explain(error) from None
    if scope.cancelled_caught:
        raise watch.explain_timeout()


async def _discover(client: Client, revision: str) -> None:
    """Ask a server what it can do. The SDK asks only servers of unknown revision; this one's entry names the revision.

    A server that takes longer to start than the SDK waits for an answer is asked again.
    """
    from mcp.shared.exceptions import MCPError
    from mcp_types import REQUEST_TIMEOUT, DiscoverResult

    for _ in range(MAX_DISCOVERIES):
        try:
            answer = await client.session.send_discover(revision)
        except MCPError as error:
            if error.code != REQUEST_TIMEOUT:
                return
            continue
        discovered = DiscoverResult.model_validate(answer)
        client.session.adopt(discovered.model_copy(update={"supported_versions": [revision]}))
        return


# --- ways to open a session -------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How a session is opened: the transport, and the mode of the SDK's client.

    The mode is `auto` (which asks with `server/discover` first), `legacy` (a handshake), or a revision without one.
    """

    transport: Transport
    mode: str


def digest_entry(server: Server) -> str:
    """Return a digest of what an entry starts or connects to, without values of variables and headers."""
    names: dict[str, object] = {"env": sorted(server.env), "headers": sorted(server.headers)}
    if server.sign_in:
        names["signIn"] = [server.sign_in["grant"], server.sign_in["issuer"], server.sign_in["clientId"]]
    entry = [server.transport, server.command, server.args, server.cwd, server.url, names]
    return hashlib.blake2b(msgspec.json.encode(entry), digest_size=16).hexdigest()


def _list_ways(server: Server, settings: Settings) -> list[Way]:
    """List the ways in which a session with a server is tried, in their order.

    Some servers end at a message that they do not know, such as `server/discover`: they get a handshake. Some know no
    streamable HTTP: they are asked for the older transport. The way that worked the last time is tried first.

    Raises:
        SourceError: if its entry names a revision that does not exist.
    """
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

    revision = server.protocol
    if revision:
        revisions = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
        if revision not in revisions:
            names = ", ".join(revisions)
            raise SourceError(f'{server.name}: expected one of {names} as "protocol", found {revision!r}')
        return [Way(server.transport, revision if revision in MODERN_PROTOCOL_VERSIONS else "legacy")]
    if server.transport == "sse":
        return [Way("sse", "legacy")]
    ways = [Way(server.transport, "auto"), Way(server.transport, "legacy")]
    ways += [Way("sse", "legacy")] if server.transport == "http" else []
    remembered = _read_ways(settings).get(digest_entry(server))
    return sorted(ways, key=lambda way: way != remembered)  # moves the remembered one to the front


def _read_ways(settings: Settings) -> dict[str, Way]:
    """Read the digests of entries → the way in which a session was last opened.

    They only spare attempts, so a damaged file counts as an empty one.
    """
    try:
        return msgspec.json.decode((settings.home / WAYS_FILE).read_bytes(), type=dict[str, Way])
    except (OSError, msgspec.MsgspecError):
        return {}


def remember_handshake(server: Server, settings: Settings) -> bool:
    """Open later sessions with a server by a handshake. Returns False if its entry names the revision, which counts."""
    if server.protocol:
        return False
    _remember_way(server, settings, Way(server.transport, "legacy"))
    return True


def _remember_way(server: Server, settings: Settings, way: Way) -> None:
    """Remember in which way a session was opened, unless it is the one that is tried first anyway."""
    ways, digest = _read_ways(settings), digest_entry(server)
    is_default = bool(server.protocol) or way == Way(server.transport, "auto") or server.transport == "sse"
    if ways.get(digest) == (None if is_default else way):
        return
    ways.pop(digest, None)
    ways |= {} if is_default else {digest: way}
    with suppress(OSError):  # what is remembered only spares time
        make_private_folder(settings.home)
        replace_file(settings.home / WAYS_FILE, msgspec.json.encode(ways))


class _Watch:
    """The state of one connection: its time limit, the receivers of its messages, and the end of its stderr.

    Attributes:
        server: resolved: its variables are filled in.
        timeout_s: seconds for the start with the first list of tools, and for each later list.
        seconds_left: seconds that remain of them for what is awaited now.
        scope: is cancelled when they are over.
        awaited: what the server must send now, for errors.
        status: HTTP status of the last answer to a message; 0 before there is one.
        stderr: the last bytes that the server wrote there.
        tokens: those of whoever signed in with `toolscout add`, or that the entry itself got. None: there are none.
        read_assertion: reads the assertion that the entry names, again at each sign-in.
        identity: the caller whose credentials are used instead. None: nobody's.
        extensions: of the protocol, declared beside those of every session.
    """

    def __init__(self, server: Server, seconds: float, spills: Spills | None) -> None:
        import anyio

        self.server = server
        self.spills = spills
        self.scope = anyio.CancelScope()
        self.timeout_s = seconds
        self.seconds_left = seconds
        self.awaited = ""
        self.status = 0
        self.stderr = b""
        self.messages = MessageFilter(server.protocol)
        self.tokens: TokenFile | EntryTokens | None = None
        self.read_assertion: Callable[[], str] = str
        self.identity: SessionIdentity | None = None
        self.extensions: Sequence[ClientExtension] = ()
        # The owner of the connection sets these three. None: questions are declined, messages are dropped.
        self.answer_question: Callable[[ElicitRequestParams], Awaitable[ElicitResult | ErrorData]] | None = None
        self.write_log: Callable[[LoggingMessageNotificationParams], Awaitable[None]] | None = None
        self.handle_message: MessageHandlerFnT | None = None
        self._credentials = server.credentials | find_environment_credentials()  # when the session began
        self._covered: frozenset[str] = frozenset()  # the credentials that `_cover` covers
        self._cover = Cover()

    @property
    def credential_cover(self) -> Cover:
        """Replaces the credentials that the server was given, also renewed ones, in what it sends."""
        credentials = self._credentials
        if self.tokens is not None:
            credentials |= self.tokens.secrets()
        if self.identity is not None:
            credentials |= self.identity.secrets()
        if credentials != self._covered:
            self._covered, self._cover = credentials, Cover(credentials)
        return self._cover

    @property
    def suggests_another_way(self) -> bool:
        """Whether the session could not be opened for a reason that another `Way` may avoid."""
        if self.server.transport == "http":
            return self.status in OLDER_TRANSPORT_STATUSES
        # A server that starts slowly may read `server/discover`, and end at it, only after the handshake was begun.
        ended_late = self.messages.ignored_discovery and not self.scope.cancel_called
        return self.server.transport == "sse" or not self.messages.is_initializing or ended_late

    def keep_stderr(self, chunk: bytes) -> None:
        """Keep the end of what a server writes to stderr."""
        self.stderr = (self.stderr + chunk)[-STDERR_KEPT_BYTES:]

    async def receive_question(self, context: object, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question of the server, which is told at its start that it may ask.

        Some servers list further tools for clients that can be asked, so every session says the same.
        """
        from mcp_types import INVALID_REQUEST, ErrorData

        if self.answer_question is None:
            return ErrorData(code=INVALID_REQUEST, message="Nobody can be asked now.")
        return await self.answer_question(params)

    async def receive_log(self, params: LoggingMessageNotificationParams) -> None:
        """Receive a log message of the server."""
        if self.write_log is not None:
            await self.write_log(params)

    async def receive_message(self, message: IncomingMessage) -> None:
        """Receive a notification of the server, or an error of the transport."""
        if self.handle_message is not None:
            await self.handle_message(message)

    @contextmanager
    def run_clock(self, awaited: str) -> Iterator[None]:
        """Limit the time inside the block to the seconds left. After it, all of them are there again.

        `awaited` says what the server must send.
        """
        import anyio

        self.awaited = awaited
        self.scope.deadline = anyio.current_time() + self.seconds_left
        try:
            yield
        finally:
            self.scope.deadline, self.seconds_left = math.inf, self.timeout_s

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Suspend the time limit inside the block."""
        import anyio

        self.seconds_left = self.scope.deadline - anyio.current_time()
        self.scope.deadline = math.inf
        try:
            yield
        finally:
            self.scope.deadline = anyio.current_time() + self.seconds_left

    def explain_timeout(self) -> SourceError:
        """Explain that the server did not answer in time."""
        return self._build_error(
            f"expected {self.awaited} within {self.timeout_s:g} s, found none",
            'if it needs longer, set mcp_timeout (seconds), or "timeout" in its entry',
        )

    def explain(self, error: BaseException) -> SourceError:
        """Explain an error of the SDK, the transport or the operating system in one sentence."""
        from mcp.client.auth import OAuthFlowError

        while inner := getattr(error, "exceptions", None):
            error = inner[0]  # of a group of errors, the first one counts
        words = " ".join(str(error).split())[:200]
        if self.scope.cancel_called:
            return self.explain_timeout()
        if refusal := find_refusal(words):
            return self._build_error(
                f"expected {self.awaited} of at most {MAX_MESSAGE_BYTES // 2**20} MiB, uncompressed; {refusal}"
            )
        if isinstance(error, UserError):
            return self._build_error(str(error))
        if self.server.sign_in and isinstance(error, OAuthFlowError):
            return self._build_error(f"expected to sign in, found: {words}", 'check "signIn" in its entry')
        return self._explain_foreign_error(error, words)

    def _explain_foreign_error(self, error: BaseException, words: str) -> SourceError:
        """Explain an error of another package. `words` is its message in one line."""
        from httpx2 import HTTPStatusError, RequestError
        from mcp.client.auth import OAuthFlowError
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED
        from pydantic import ValidationError

        uses_stdio = self.server.transport == "stdio"
        if isinstance(error, HTTPStatusError):
            self.status = error.response.status_code
        if not uses_stdio and self.status >= 400:
            return self._explain_refusal(words if isinstance(error, MCPError) else "")
        if isinstance(error, MCPError):
            is_end = error.code == CONNECTION_CLOSED and words == "Connection closed"
            return self._build_error(f"expected {self.awaited}, found {self._explain_mcp_error(is_end, words)}")
        if isinstance(error, ValidationError):
            return self._build_error(f"expected {self.awaited}, found one that MCP does not know")
        if isinstance(error, OAuthFlowError):
            return self._build_error(f"expected to sign in, found: {words}")
        if isinstance(error, RequestError):
            where = show_url(self.server.url)
            advice = "Check the address, and that the server runs."
            return self._build_error(f"{where} cannot be reached ({words}). {advice}")
        if isinstance(error, (OSError, ValueError)) and uses_stdio:
            return self._explain_start(error, words)
        return self._build_error(f"expected {self.awaited}, found {type(error).__name__}: {words}")

    def _explain_start(self, error: OSError | ValueError, words: str) -> SourceError:
        """Explain that the command of the server could not be started. `words`: the message of the error."""
        command = self.server.command
        is_missing = isinstance(error, FileNotFoundError) and error.filename == command
        reason = advise_install(command) if is_missing else words
        is_forbidden = isinstance(error, PermissionError)
        action = "make it executable, or name the program that runs it" if is_forbidden else ""
        return self._build_error(f"expected a command that starts, found {command!r}: {reason}", action)

    def _explain_refusal(self, words: str) -> SourceError:
        """Explain that the server refused a message, by its HTTP status. `words`: its own words.

        Two kinds of error for status 401 tell the caller what helps. `SignInRequired`: the caller to whom the session
        belongs can sign in. `PersonRequired`: the session belongs to nobody, so somebody must run `toolscout add`. If
        the entry has credentials, neither helps: they are wrong.
        """
        if self.status == 401 and self.identity is not None:
            return SignInRequired(f"{self.server.name}: this server wants you to sign in")
        error = self._build_error(*self._explain_status(words))
        return PersonRequired(str(error)) if self.status == 401 and not sends_credentials(self.server) else error

    def _explain_mcp_error(self, is_end: bool, words: str) -> str:
        """Say what came instead of the awaited answer. `is_end`: the session ended. `words`: the error's message."""
        if self.messages.unread_answers > MAX_OPEN_QUESTIONS:
            return "questions without end instead"
        if self.messages.gave_up:
            return "something else on its standard output"
        return "that it ended" if is_end else f"the error {words!r}"

    def _explain_status(self, words: str) -> tuple[str, str]:
        """Say what the HTTP status of an answer means, and what to do. `words`: the server's own, or empty."""
        where = show_url(self.server.url)
        if self.status != 401:
            answer = f"HTTP status {self.status}{' and ' if words else ''}{words}"
            return f"expected an MCP server at {where}, found {answer}", "check the address"
        if sends_credentials(self.server):
            action = 'check "signIn" in its entry' if self.server.sign_in else "check its headers"
            return f"expected access to {where}, found that it refuses these credentials", action
        return f"expected access to {where}, found that this server wants you to sign in", sign_in_hint(self.server)

    def _build_error(self, what: str, action: str = "") -> SourceError:
        """Build the error from what happened, what the server wrote, and what to do, without secrets."""
        written = f"; {self.messages.junk:,} lines it wrote are no MCP messages" if self.messages.junk else ""
        cause = _find_cause(self.stderr.decode("utf-8", "replace"))
        max_chars = MAX_ERROR_CHARS - len(self.server.name) - len(what) - len(action)
        max_chars = min(max(max_chars, MIN_STDERR_CHARS), MAX_STDERR_CHARS)
        cause = self.credential_cover.text(
            redact(cause, self.server.secrets)
        )  # before it is cut: half a secret is not recognised
        cause = cause if len(cause) <= max_chars else f"{cause[: max_chars - 1]}…"
        written += f"; it wrote to stderr: {cause!r}" if cause else ""
        text = f"{what}{written}{': ' if action else ''}{action}"
        return SourceError(f"{self.server.name}: {self.credential_cover.text(redact(text, self.server.secrets))}")


def _find_cause(stderr: str) -> str:
    """Return the last line that names a fault, or else the last line: some programs end with their version."""
    lines = [line.strip() for line in stderr.split("\n") if line.strip()]
    return next((line for line in reversed(lines) if _FAULT.search(line)), lines[-1] if lines else "")


def _silence_sdk_loggers() -> None:
    """Keep the SDK's loggers from writing to stderr if nobody has configured logging.

    `MessageFilter.junk` counts the lines that are not messages, and one sentence reports them. The SDK would log each
    of them with its traceback, and a server that floods would delay all others.
    """
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    logging.getLogger("mcp.client.stdio").addFilter(_is_not_junk)


def _is_not_junk(record: logging.LogRecord) -> bool:
    """Return whether a record of the SDK is not about a line that is no message, for `logging`."""
    return not (record.levelno == logging.ERROR and record.msg.startswith("Failed to parse"))


# --- transports ---


@asynccontextmanager
async def _open_transport(server: Server, watch: _Watch, settings: Settings, person: bool) -> AsyncIterator[Any]:
    """Open the streams of messages from and to a server.

    Args:
        server: resolved: its variables are filled in.
        watch: gets the HTTP status of each answer. If it has an identity, the identity's credentials are used, else the
            tokens in the home.
        settings: give the home.
        person: whether somebody can sign in now, in a browser.
    """
    if server.transport == "stdio":
        async with _open_stdio(server, watch) as streams:
            yield streams
        return
    import httpx2
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    address = urlsplit(server.url)

    def note_status(response: httpx2.Response) -> None:
        """Keep the status of an answer to a message, and note a message whose session the server does not know."""
        if response.request.method == "POST" and response.request.url.path == address.path:
            watch.status = response.status_code
            if watch.status in LOST_SESSION_STATUSES and SESSION_HEADER in response.request.headers:
                watch.messages.note_refusal(response.request.content)

    signing: AbstractAsyncContextManager[httpx2.Auth | None]
    approve: Callable[[str], Awaitable[bool]]
    if server.sign_in:
        watch.tokens = own_tokens = EntryTokens(watch.read_assertion)
        signing, approve = nullcontext(authenticate_entry(server, own_tokens)), partial(_is_issuer, server)
    elif watch.identity is not None:
        signing, approve = nullcontext(watch.identity.auth), watch.identity.approve
    else:
        watch.tokens = tokens = TokenFile(settings.home, server.url)
        signing = signing_in(server, tokens, person=person, pause_clock=watch.pause_clock)
        approve = partial(approve_origin, server, tokens, person, watch.pause_clock)
    guard = HttpGuard(server.url, approve, note_status, watch.spills)
    async with nullcontext() if sends_header(server) else signing as auth:
        client = httpx2.AsyncClient(
            headers=dict(server.headers), auth=auth, timeout=httpx2.Timeout(30, read=300), event_hooks=guard.hooks
        )
        if server.transport == "sse":
            async with sse_client(server.url, httpx_client_factory=lambda *_, **__: client) as streams:
                yield streams
        else:
            async with (
                client,
                streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
            ):
                yield streams


async def _is_issuer(server: Server, origin: str) -> bool:
    """Return whether an origin is the one of the issuer that the entry of a server names. No other gets requests."""
    return origin == origin_of(server.sign_in["issuer"])


def sends_header(server: Server) -> bool:
    """Return whether the entry of a server has an `Authorization` header."""
    return any(header.lower() == "authorization" for header in server.headers)


def sends_credentials(server: Server) -> bool:
    """Return whether the entry of a server has credentials of its own: a header, or a way to sign in."""
    return bool(server.sign_in) or sends_header(server)


@asynccontextmanager
async def _open_stdio(server: Server, watch: _Watch) -> AsyncIterator[Any]:
    """Start the program of a server with the variables that it may have, and yield its streams."""
    from mcp.client.stdio import get_default_environment

    inherited = {key: os.environ[key] for key in INHERITED_VARIABLES if key in os.environ}
    reading, writing = os.pipe()
    drain = drain_stderr(reading, watch.keep_stderr)
    try:
        with os.fdopen(writing, "w") as errors:
            async with open_stdio(
                [server.command, *server.args],
                env={**get_default_environment(), **inherited, **server.env},
                cwd=server.cwd or None,
                errors=errors,
                spills=watch.spills,
            ) as streams:
                yield streams
    finally:
        drain.join(STDERR_END_S)  # the thread ends with the last process that holds the pipe
