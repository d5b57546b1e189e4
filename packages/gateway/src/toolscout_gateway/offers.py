"""Lists the resources, templates and prompts of servers (*offers*), and sends requests for them to the right server.

Callers see resources and prompts of a server if the policy lets them see `SOURCE/resources` and `SOURCE/prompts`, as if
these were tools that only read. Like tools, they are screened, cleaned and held back until they are approved: to the
catalogue, a prompt is a definition with the id `SOURCE/prompt:NAME`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import posixpath
import re
import sys
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

from toolscout.errors import Unavailable, UserError, find_close
from toolscout.home.catalogue.approvals import OFFER
from toolscout.sources.mcp import PAGE
from toolscout.trust.injection import find_orders, select_orders
from toolscout.trust.policy import Caller
from toolscout.types import Hints, Tool
from toolscout_gateway.calls.kinds import cover_result
from toolscout_gateway.sessions.relay import ask_to_open
from toolscout_gateway.sessions.upstream import SESSION_END_MESSAGES, call_again_once
from toolscout_gateway.text import clean_words, clip, make_plain, quote_error

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError
    from mcp.shared.uri_template import UriTemplate
    from mcp_types import ClientRequest, InputRequiredResult, PaginatedRequestParams

    from toolscout.sources.mcp import McpConnection
    from toolscout.trust.redaction import Cover
    from toolscout_gateway.lookup import Lookup
    from toolscout_gateway.sessions.exchange import Exchange
    from toolscout_gateway.sessions.upstream import Upstream
    from toolscout_gateway.sessions.upstreams import Upstreams

__all__ = [
    "APART",
    "Offers",
    "cut_page",
    "qualify",
    "qualify_skill",
    "qualify_uri",
    "refuse",
    "refuse_prompt",
    "show_page",
    "split_qualified",
]

FIRST_LIST_WAIT_S: Final = 4.0  # for a server that does not run when its offers are first asked for
LIST_TIMEOUT_S: Final = 10.0  # of all pages of one server's list
MAX_OFFERS: Final = 10_000  # of one kind and one server
MAX_OFFERS_PER_PAGE: Final = 1_000
MAX_LINKS: Final = 10_000  # URIs in results whose server is remembered
MAX_IDENTITY_CHARS: Final = 4_096  # of a URI, a template or the name of a prompt
MAX_TEMPLATES_CHARS: Final = 500_000  # of all templates of one server, because each may be compared with a URI
MAX_MATCH_S: Final = 1.0  # to compare a URI with the templates of all servers
MAX_ENCODINGS: Final = 8  # of one URI inside each other
PAGE_SCHEME: Final = "ui://"  # of the pages of MCP Apps
SKILL_SCHEME: Final = "skill://"
APART: Final = (PAGE_SCHEME, SKILL_SCHEME)  # of resources whose URIs always name their server
QUALIFIED_START: Final = "toolscout://"  # of URIs that name the server of a resource
QUALIFIED_PAGE_START: Final = "ui://toolscout/"  # of URIs that name the server of a page
LIST_METHODS: Final = {  # kind of offer → how the SDK's session lists it, and the field of the result
    "resources": ("list_resources", "resources"),
    "templates": ("list_resource_templates", "resource_templates"),
    "prompts": ("list_prompts", "prompts"),
}
KINDS: Final = {"resources": "resource", "templates": "template", "prompts": "prompt"}  # in ids
LIST_AGE_S: Final = 5.0  # a list that was read so long ago is read again before one of its members is used
MAX_CURSOR_DIGITS: Final = 9  # a list never has so many members, and a very long number takes long to read
MAX_PROMPT_NAME_CHARS: Final = 200  # of a name in an error
MAX_COMPLETIONS: Final = 100  # values of one answer, as the protocol has them
IDENTITIES: Final = ("name", "uri", "uriTemplate", "mimeType")  # fields that stay as the server wrote them
VOLATILE: Final = {"icons", "size"}  # fields that may change without approval, as `lastModified` may
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
T = TypeVar("T")


@dataclasses.dataclass
class _Listing:
    """What a server listed of one kind.

    Attributes:
        items: what callers may see, by name or URI.
        waiting: name or URI → why nobody may see it before it is approved.
        patterns: template → its compiled form, with the text before its first variable.
        spellings: other spellings of the URI of a resource that waits → that URI.
        schemes: those of the URIs.
        read_at: when it was read, on the clock of the event loop.
    """

    items: dict[str, Any] = dataclasses.field(default_factory=dict)
    waiting: dict[str, str] = dataclasses.field(default_factory=dict)
    patterns: dict[str, tuple[str, UriTemplate]] = dataclasses.field(default_factory=dict)
    spellings: dict[str, str] = dataclasses.field(default_factory=dict)
    schemes: frozenset[str] = frozenset()
    read_at: float = float("-inf")

    def find_template(self, uri: str, templates: Iterable[str], deadline: float) -> str:
        """Find the template with the longest prefix that a URI fits, or that is the URI itself. Empty: there is none.

        Raises:
            MCPError: if the `deadline`, on the monotonic clock, comes before an answer.
        """
        for template in sorted(templates, key=self._measure_prefix, reverse=True):
            if template == uri:
                return template
            prefix, pattern = self.patterns.get(template, ("", None))
            if pattern is None or not uri.startswith(prefix):
                continue
            if time.monotonic() > deadline:
                raise refuse("Too many resource templates are like this URI: it was not read.")
            if pattern.match(uri) is not None:
                return template
        return ""

    def has_longer_prefix(self, template: str, other: str) -> bool:
        """Return whether a template says more of its URIs than the other, so that it serves those that fit both."""
        return self._measure_prefix(template) > self._measure_prefix(other)

    def _measure_prefix(self, template: str) -> int:
        prefix, _ = self.patterns.get(template, ("", None))
        return len(prefix)


class Offers:
    """The resources, resource templates and prompts of all servers.

    Attributes:
        timeout: seconds for one request. A server's own `timeout` takes precedence.
    """

    def __init__(self, upstreams: Upstreams, lookup: Lookup, timeout: float) -> None:
        self.upstreams, self.lookup, self.timeout = upstreams, lookup, timeout
        self._lists: dict[tuple[str, str], _Listing] = {}  # (kind, key of a session) → as it listed them last
        self._links: OrderedDict[tuple[str, str], str] = OrderedDict()  # (caller, URI in a result) → source
        self._said: set[tuple[str, str]] = set()
        self._first_asked: dict[str, float] = {}  # when a server was first asked for what it offers

    # --- lists

    async def find_servers(self, caller: Caller, kind: str) -> list[Upstream]:
        """Return the servers whose offers of a kind the caller may see, by name. Templates count as resources."""
        await self.upstreams.wait_planned()
        catalogue, _ = await self.upstreams.host.run_in_thread(self.lookup.load_catalogue)
        name = "prompts" if kind == "prompts" else "resources"
        servers = []
        for source, upstream in sorted(self.upstreams.servers.items()):
            path = (upstream.server.name,)
            # To the policy, all offers of a server are one tool.
            offer = Tool(id=f"{source}/{name}", name=name, path=path, hints=Hints(read_only=True))
            session = self.upstreams.find_own(upstream, caller)  # None: the caller has not signed in
            if session is not None and source not in catalogue.disabled and caller.sees(offer):
                servers.append(session)
        return servers

    async def list(self, caller: Caller, kind: str, *, fresh: bool = True) -> dict[str, list[Any]]:
        """List the offers of a kind that the caller may see, by source.

        A server that does not answer counts with its last list. With `fresh` false, only servers are asked whose list
        is not known.
        """
        import anyio

        servers = await self.find_servers(caller, kind)
        async with anyio.create_task_group() as group:
            for upstream in servers:
                if fresh or (kind, upstream.key) not in self._lists:
                    group.start_soon(self._read_list, kind, upstream)
        return {upstream.name: list(self._get(kind, upstream).items.values()) for upstream in servers}

    def _get(self, kind: str, upstream: Upstream) -> _Listing:
        """Return what a server listed last; an empty listing before that."""
        return self._lists.get((kind, upstream.key), _Listing())

    def doubt_lists(self, key: str) -> None:
        """Mark the lists of a session as old, so that they are read again before they are used."""
        for (_, owner), listing in self._lists.items():
            if owner == key:
                listing.read_at = float("-inf")

    async def _read_list(self, kind: str, upstream: Upstream) -> bool:
        """Read the list of a server, and remember it. Return whether it was read; see `_start_once`."""
        import anyio
        from mcp.shared.exceptions import MCPError
        from mcp_types import METHOD_NOT_FOUND
        from pydantic import ValidationError

        with upstream.hold():
            await self._start_once(upstream)
            if not upstream.is_in_catalogue:
                return False
            try:
                listing = await self._fetch_listing(kind, upstream)
            except (MCPError, TimeoutError, UserError, ValidationError) as error:
                if getattr(error, "message", "") in SESSION_END_MESSAGES:
                    upstream.end_session(error)
                    return False
                if getattr(error, "code", None) != METHOD_NOT_FOUND:
                    self._say_once(kind, upstream, f"its list of {kind} could not be read")
                    return False
                listing = _Listing(read_at=anyio.current_time())  # the server offers nothing of this kind
            self._lists[kind, upstream.key] = listing
        return True

    async def _fetch_listing(self, kind: str, upstream: Upstream) -> _Listing:
        """Ask a server for its list, and compare that with the approved definitions."""
        import anyio

        with anyio.fail_after(LIST_TIMEOUT_S):
            connection = await upstream.wait_ready()
            began = anyio.current_time()
            items = await _read_pages(connection, kind)
        kept = _keep_bounded(kind, items)
        if len(kept) < len(items):
            self._say_once(kind, upstream, f"{len(items) - len(kept)} of its {kind} are too long to be used")
        compare = partial(self._compare, upstream.name, kind, kept, whole=upstream.key == upstream.name)
        listing = await self.upstreams.host.run_in_thread(compare)
        listing.read_at = began
        return listing

    def _say_once(self, kind: str, upstream: Upstream, what: str) -> None:
        """Print a sentence on the offers of a server; only the first one on each kind of them."""
        if (kind, upstream.name) not in self._said:
            self._said.add((kind, upstream.name))
            self.upstreams.host.say(f"{upstream.name}: {what}")

    def _compare(self, source: str, kind: str, items: Sequence[object], *, whole: bool) -> _Listing:
        """Compare definitions with the approved ones. Of several with the same name or URI the first one counts.

        `whole`: whether the list is the server's entire list. A caller who signed in may be shown another one.
        """
        named: dict[str, object] = {}
        for item in items:
            named.setdefault(_read_identity(item), item)
        records = {identity: _describe(source, kind, item) for identity, item in named.items()}
        store = self.upstreams.host.scout.store
        reasons = store.hold_back_offers(source, kind, records.values(), whole=whole)
        waiting = {identity: reasons[record.id] for identity, record in records.items() if record.id in reasons}
        shown = {identity: _clean(item) for identity, item in named.items() if identity not in waiting}
        listing = _Listing(shown, waiting)
        if kind != "prompts":
            listing.schemes = frozenset(uri.partition(":")[0].casefold() for uri in named)
            listing.spellings = {_fold_uri(uri, keeps_query=True): uri for uri in waiting}
        if kind == "templates":
            listing.patterns = dict(_compile_templates(named))
        return listing

    async def require_approved(self, upstream: Upstream, kind: str, identity: str) -> None:
        """Check in a list of the last seconds that a prompt or resource does not wait for approval.

        A prompt must be in the list. A resource need not be: servers have more of them than they list. `identity` is
        the server's own name of a prompt, or a URI or template.

        Raises:
            MCPError: if it waits, with the reason; if the prompt is not in the list; if the server gave no list.
        """
        import anyio

        is_old = self._get(kind, upstream).read_at < anyio.current_time() - LIST_AGE_S
        if is_old and not await self._renew_list(kind, upstream):
            raise refuse(f"server {upstream.name!r} did not list its {kind} before the request, so none was used")
        listing = self._get(kind, upstream)
        reason = listing.waiting.get(identity)
        if reason is not None:
            id = f"{upstream.name}/{KINDS[kind]}:{identity}"
            raise refuse(f"{make_plain(id)} waits for approval ( toolscout approve ), because {reason}")
        if kind == "prompts" and identity not in listing.items:
            near = [f"{upstream.name}/{name}" for name in find_close(identity, listing.items)]
            raise refuse_prompt(f"{upstream.name}/{identity}", near)

    async def _renew_list(self, kind: str, upstream: Upstream) -> bool:
        """Read a list in a running session, or in a new one if the server has forgotten it. Return whether it was read.

        Raises:
            MCPError: as `_wait_running`.
        """
        for _ in range(2):  # sessions
            await self._wait_running(upstream)
            if await self._read_list(kind, upstream):
                return True
            if upstream.is_in_catalogue:  # the session goes on, so a new one would not help
                return False
        return False

    async def _wait_running(self, upstream: Upstream) -> None:
        """Wait until a server has a session and the catalogue has its current tools, within the time of a request.

        Raises:
            MCPError: if the server does not start in this time, with the reason.
        """
        import anyio

        seconds = upstream.server.timeout or self.timeout
        try:
            with anyio.fail_after(seconds):
                if not upstream.is_in_catalogue:
                    async with upstream.use():
                        await upstream.wait_ready()
        except UserError as error:
            raise refuse(clean_words(str(error), upstream.credential_cover)) from None
        except TimeoutError:
            raise refuse(f"server {upstream.name!r} did not start within {seconds:g} s") from None

    async def _require_approved_resource(self, upstream: Upstream, uri: str) -> None:
        """Check that a URI leads to nothing that waits for approval.

        It may be another spelling of a resource that waits. A URI that the server lists nowhere may come from each of
        its templates, so none may wait then.

        Raises:
            MCPError: if it may lead to what waits.
        """
        await self.require_approved(upstream, "resources", uri)
        resources = self._get("resources", upstream)
        if uri in resources.items:
            return
        await self.require_approved(upstream, "templates", uri)
        for spelling in (_fold_uri(uri, keeps_query=True), _fold_uri(uri, keeps_query=False)):
            if spelling in resources.spellings:
                await self.require_approved(upstream, "resources", resources.spellings[spelling])
        templates = self._get("templates", upstream)
        if not templates.waiting:
            return
        run, deadline = self.upstreams.host.run_in_thread, time.monotonic() + MAX_MATCH_S
        shown = await run(templates.find_template, uri, templates.items, deadline)
        waiting = await run(templates.find_template, uri, templates.waiting, deadline)
        if not shown or templates.has_longer_prefix(waiting, shown):
            first = next(iter(templates.waiting))  # its reason is in the error if no template fits
            await self.require_approved(upstream, "templates", waiting or first)

    async def _start_once(self, upstream: Upstream) -> None:
        """Start a server when its offers are first asked for, and wait for it until a few seconds after that."""
        import anyio

        deadline = self._first_asked.setdefault(upstream.key, anyio.current_time()) + FIRST_LIST_WAIT_S
        seconds_left = deadline - anyio.current_time()
        if seconds_left > 0 and not upstream.is_in_catalogue:
            with anyio.move_on_after(seconds_left), contextlib.suppress(Unavailable):
                await upstream.wait_ready()

    # --- which server

    def remember_links(self, caller: Caller, source: str, result: object) -> None:
        """Remember from which server the resources and links in a result came, so that the caller can read them."""
        for block in getattr(result, "content", ()):
            resource_or_link = getattr(block, "resource", block)
            uri = getattr(resource_or_link, "uri", None)
            if uri is not None and len(str(uri)) <= MAX_IDENTITY_CHARS:
                self._links[caller.name, str(uri)] = source
        while len(self._links) > MAX_LINKS:
            self._links.popitem(last=False)

    async def locate(self, caller: Caller, uri: str) -> tuple[Upstream, str]:
        """Find the server that has a resource, and the resource's URI there.

        In this order: a qualified URI (one that names its server), the lists, a link in a result, the templates, the
        one server that has resources of the URI's scheme. Lists come before links, so that no server can take over what
        another one lists by a link. What waits for approval comes after what other servers show.

        Raises:
            MCPError: if there is no such server, it is not clear which, or the resource waits for approval.
        """
        if len(uri) > MAX_IDENTITY_CHARS:
            raise refuse(f"Resource not found: its URI has more than {MAX_IDENTITY_CHARS:,} characters.")
        upstream, own_uri = await self._find_owner(caller, uri)
        await self._require_approved_resource(upstream, own_uri)
        return upstream, own_uri

    async def _find_owner(self, caller: Caller, uri: str) -> tuple[Upstream, str]:
        """Return the server of a resource, and the resource's URI there.

        Raises:
            MCPError: if no server that the caller may use has it.
        """
        servers = {upstream.name: upstream for upstream in await self.find_servers(caller, "resources")}
        source, own_uri = split_qualified(uri)
        if source in servers:
            if uri.startswith(SKILL_SCHEME) and uri in self._get("resources", servers[source]).items:
                return servers[source], uri  # the server's own URI, which only looks as if it were qualified
            return servers[source], own_uri
        await self.list(caller, "resources", fresh=False)
        await self.list(caller, "templates", fresh=False)
        lists = {
            name: (self._get("resources", server), self._get("templates", server)) for name, server in servers.items()
        }
        linked = self._links.get((caller.name, uri), "")
        find = partial(_choose_owner, lists, linked if linked in servers else "", uri)
        owner = await self.upstreams.host.run_in_thread(find)
        if not owner:
            raise refuse(f"Resource not found: {uri}", uri=uri)
        return servers[owner], uri

    # --- requests

    async def send(
        self, upstream: Upstream, exchange: Exchange, request: ClientRequest, result_type: type[T]
    ) -> T | InputRequiredResult:
        """Send a request of a caller to a server, within its time limit.

        Credentials are covered in the answer. Completions and the texts of a prompt are cleaned, because a person reads
        them before a model does. The contents of a resource are data, and stay as they are. An error that gives orders
        to a model is put in quotes.

        Raises:
            MCPError: the error of the server, or a sentence on why there is no answer.
        """
        from mcp.shared.exceptions import MCPError

        try:
            async with upstream.use():
                result: Any = await self._send_in_time(upstream, exchange, request, result_type)
        except MCPError as error:
            if (answer := ask_to_open(error, exchange, upstream.name)) is not None:
                return answer
            gives_orders = any(find_orders(error.message, select_orders(error.message)))
            words = f"server {upstream.name!r} {quote_error(error)}" if gives_orders else error.message
            raise MCPError(error.code, words, error.data) from None
        except UserError as error:
            raise refuse(clean_words(str(error), upstream.credential_cover)) from None
        cleaned: T = _clean_answer(cover_result(upstream.credential_cover, result), upstream.credential_cover)
        return cleaned

    async def _send_in_time(
        self, upstream: Upstream, exchange: Exchange, request: ClientRequest, result_type: type[T]
    ) -> T | InputRequiredResult:
        """Send a request in the session of a server, which starts if it does not run.

        Raises:
            Unavailable: as `Upstream.send`, or because the server took too long.
        """
        import anyio

        seconds = upstream.server.timeout or self.timeout
        try:
            with anyio.fail_after(seconds) as exchange.limit:

                async def send() -> T | InputRequiredResult:
                    return await upstream.send(await upstream.wait_ready(), exchange, request, result_type)

                return await call_again_once(send)
        except TimeoutError:
            raise Unavailable(f"server {upstream.name!r} did not answer within {seconds:g} s") from None


def _clean_answer(result: Any, cover: Cover) -> Any:
    """Return the answer to a request for completions or a prompt without invisible characters in its texts."""
    from mcp_types import CompleteResult, GetPromptResult

    if isinstance(result, CompleteResult):
        completion = result.completion
        values = clean_words(completion.values[:MAX_COMPLETIONS], cover)
        return result.model_copy(update={"completion": completion.model_copy(update={"values": values})})
    if not isinstance(result, GetPromptResult):
        return result
    for message in result.messages:  # all fields, because links and resources in a prompt have texts too
        fields = message.content.model_dump(mode="json", by_alias=True, exclude_unset=True)
        message.content = type(message.content).model_validate(clean_words(fields, cover, sys.maxsize))
    cleaned = {"description": clean_words(result.description, cover), "meta": clean_words(result.meta, cover)}
    return result.model_copy(update=cleaned)


async def _read_pages(connection: McpConnection, kind: str) -> list[object]:
    """Read all pages of a list, as far as `MAX_OFFERS`."""
    from mcp_types import PaginatedRequestParams

    method, field = LIST_METHODS[kind]
    capabilities = connection.client.server_capabilities
    if (capabilities.prompts if kind == "prompts" else capabilities.resources) is None:
        return []
    items: list[object] = []
    cursor: str | None = None  # of the first page, and after the last one
    used_cursors: set[str | None] = set()
    while cursor not in used_cursors and len(items) < MAX_OFFERS:
        used_cursors.add(cursor)
        page = await getattr(connection.client.session, method)(params=PaginatedRequestParams(cursor=cursor))
        items += getattr(cover_result(connection.credential_cover, page), field)
        cursor = page.next_cursor
    return items[:MAX_OFFERS]


def _read_identity(item: Any) -> str:
    """Return the URI of a resource, the template of a template, or the name of a prompt."""
    return str(getattr(item, "uri", None) or getattr(item, "uri_template", None) or item.name)


def _describe(source: str, kind: str, item: Any) -> Tool:
    """Describe a resource, template or prompt as a definition that is compared, screened and shown to a person."""
    fields = item.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=VOLATILE)
    name, description = fields.pop("name"), fields.pop("description", "")
    annotations = fields.pop("annotations", {})
    annotations.pop("lastModified", None)
    if annotations:
        fields["annotations"] = annotations
    return Tool(
        id=f"{source}/{KINDS[kind]}:{_read_identity(item)}",
        name=name,
        path=(source,),
        description=description,
        hints=Hints(read_only=True),
        callable=False,
        meta={OFFER: kind, **fields},
    )


def _clean(item: T) -> T:
    """Return an offer without icons, and without invisible characters in its texts and the keys of its `_meta`.

    Texts are cut. A time of the last change that is no ISO date is left out.
    """
    offer: Any = item
    fields = offer.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"icons"})
    annotations = fields.get("annotations") or {}
    if not DATE.fullmatch(annotations.get("lastModified") or ""):
        annotations.pop("lastModified", None)
    cleaned: T = type(offer).model_validate(
        {key: value if key in IDENTITIES else clean_words(value) for key, value in fields.items()}
    )
    return cleaned


def _keep_bounded(kind: str, items: Iterable[Any]) -> list[Any]:
    """Leave out offers with too long a name or URI, and the templates after the first `MAX_TEMPLATES_CHARS`."""
    kept = [item for item in items if len(_read_identity(item)) <= MAX_IDENTITY_CHARS]
    if kind == "templates":
        sizes_so_far = accumulate(len(item.uri_template) for item in kept)
        kept = [item for item, size in zip(kept, sizes_so_far, strict=True) if size <= MAX_TEMPLATES_CHARS]
    return kept


def _compile_templates(templates: Iterable[str]) -> Iterator[tuple[str, tuple[str, UriTemplate]]]:
    """Yield (template, (the text before its first variable, its compiled form)) for each that is valid in RFC 6570."""
    from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

    for template in templates:
        with contextlib.suppress(InvalidUriTemplate):
            yield template, (template.partition("{")[0], UriTemplate.parse(template))


def _choose_owner(lists: Mapping[str, tuple[_Listing, _Listing]], linked: str, uri: str) -> str:
    """Choose the server of a URI; see `Offers.locate`. Empty if there is none.

    `lists`: name of a server → its resources and its templates. `linked`: the server whose result linked to the URI.
    """
    owners = [name for name, (resources, _) in lists.items() if uri in resources.items]
    if not owners:
        owners = [name for name, (resources, _) in lists.items() if uri in resources.waiting]
    if len(owners) > 1 and uri.startswith(APART):
        return linked if linked in owners else ""  # the page or skill of one server must not replace another's
    if owners:
        return owners[0]
    return linked or _choose_owner_by_template(lists, uri) or _choose_owner_by_scheme(lists, uri)


def _choose_owner_by_template(lists: Mapping[str, tuple[_Listing, _Listing]], uri: str) -> str:
    """Choose the first server with a template that a URI fits. Templates that wait for approval come last."""
    deadline = time.monotonic() + MAX_MATCH_S
    templates = {name: templates for name, (_, templates) in lists.items()}
    owners = (name for name, listing in templates.items() if listing.find_template(uri, listing.items, deadline))
    owner = next(owners, "")
    is_unclear = uri.startswith(SKILL_SCHEME) and next(owners, "") != ""  # two servers may have the skill
    if owner and not is_unclear:
        return owner
    owners = (name for name, listing in templates.items() if listing.find_template(uri, listing.waiting, deadline))
    return next(owners, "")


def _choose_owner_by_scheme(lists: Mapping[str, tuple[_Listing, _Listing]], uri: str) -> str:
    """Choose the only server with resources or templates of the URI's scheme. Empty if there are none or several."""
    scheme = uri.partition(":")[0].casefold()
    owners = [name for name, listings in lists.items() if any(scheme in listing.schemes for listing in listings)]
    return owners[0] if len(owners) == 1 else ""


def _fold_uri(uri: str, *, keeps_query: bool) -> str:
    """Return the letters and digits of a URI, which are the same in its other spellings.

    Servers may read `NOTE:one`, `note://./%6Fne` and `note://one?x` as `note://one`.
    """
    for _ in range(MAX_ENCODINGS):
        encoded, uri = uri, unquote(uri)
        if uri == encoded:
            break
    scheme, _, rest = unicodedata.normalize("NFKC", uri).casefold().partition(":")

    path = rest if keeps_query else re.split(r"[?#]", rest)[0]
    return "".join(filter(str.isalnum, scheme + posixpath.normpath(f"/{path}")))


def qualify(lists: Mapping[str, list[Any]]) -> list[tuple[str, Any]]:
    """Join the resources of all servers, each with the URI that clients see.

    The URI is the server's own, with three exceptions that get the name of the server: pages of apps, files of skills,
    and a URI that a server before in `lists` has too.
    """
    joined: dict[str, Any] = {}
    for source, items in lists.items():
        for item in items:
            names_server = item.uri in joined or item.uri.startswith(APART)
            joined[qualify_uri(source, item.uri) if names_server else item.uri] = item
    return list(joined.items())


def qualify_uri(source: str, uri: str) -> str:
    """Build the URI that names the server of a resource. The URI of a page of an app or a skill keeps its scheme."""
    if uri.startswith(SKILL_SCHEME):
        return qualify_skill(source, uri)
    start = QUALIFIED_PAGE_START if uri.startswith(PAGE_SCHEME) else QUALIFIED_START
    return f"{start}{source}/{quote(uri, safe='')}"


def qualify_skill(source: str, uri: str) -> str:
    """Build the URI of a file of a skill: the source, then the path on its server, which ends with the skill's name.

    `skill://git/pr/SKILL.md` of the source `github` is `skill://github/git/pr/SKILL.md`. Another scheme than `skill`
    is a part of the path: `skill://github/repo:owner/pr/SKILL.md`.
    """
    scheme, _, path = uri.partition("://")
    # A colon in the first segment would look like another scheme to `split_qualified`.
    has_colon = ":" in path.partition("/")[0]
    qualified_path = path if f"{scheme}://" == SKILL_SCHEME and not has_colon else f"{scheme}:{path}"
    return f"{SKILL_SCHEME}{quote(source, safe='')}/{qualified_path}"


def split_qualified(uri: str) -> tuple[str, str]:
    """Split the URI of a resource into its source and its own URI. The source is empty if the URI names none."""
    if uri.startswith(SKILL_SCHEME):
        source, _, path = uri.removeprefix(SKILL_SCHEME).partition("/")
        scheme, colon, rest = path.partition(":")
        has_scheme = bool(colon) and "/" not in scheme
        own_uri = f"{scheme}://{rest}" if has_scheme else f"{SKILL_SCHEME}{path}"
        return (unquote(source), own_uri) if path else ("", uri)
    for start in (QUALIFIED_START, QUALIFIED_PAGE_START):
        if uri.startswith(start):
            source, _, encoded_uri = uri.removeprefix(start).partition("/")
            return (source, unquote(encoded_uri)) if source and encoded_uri else ("", uri)
    return "", uri


def show_page(tool: Tool) -> dict[str, Any]:
    """Return the page that an app shows for a tool, as a client gets it: in `_meta`, with a URI that names the server.

    Empty if there is none.
    """
    if PAGE not in tool.meta:
        return {}
    page = clean_words(tool.meta[PAGE])
    uri = page.get("resourceUri")
    if isinstance(uri, str):
        page["resourceUri"] = qualify_uri(tool.source, uri)
    return {PAGE: page}


def cut_page(
    items: list[Any], params: PaginatedRequestParams | None, size: int = MAX_OFFERS_PER_PAGE
) -> tuple[list[Any], str | None]:
    """Return the page that a client asks for, and the cursor of the next.

    Raises:
        MCPError: if the cursor is not one of ours.
    """
    start = 0
    if params is not None and params.cursor is not None:
        cursor = params.cursor
        is_number = cursor.isascii() and cursor.isdigit()
        if not is_number or len(cursor) > MAX_CURSOR_DIGITS:
            raise refuse("Invalid cursor: use the one of the page before, unchanged.")
        start = int(cursor)
    end = start + size
    return items[start:end], str(end) if end < len(items) else None


def refuse_prompt(name: str, near: Sequence[str]) -> MCPError:
    """Build the error for the name of a prompt that does not exist, with the names that the client may mean."""
    hint = f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return refuse(f"Unknown prompt: {clip(make_plain(name), MAX_PROMPT_NAME_CHARS)}{hint}")


def refuse(message: str, **data: Any) -> MCPError:
    """Build the error for a request that cannot be answered."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import INVALID_PARAMS

    return MCPError(INVALID_PARAMS, message, data or None)
