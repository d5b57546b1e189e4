"""Offers the skills of all sources to clients that speak the extension `io.modelcontextprotocol/skills` (SEP-2640).

The entries come from the catalogue, so a caller gets those that are approved and that the policy lets them see. A file
of a skill is read only as it was approved: its digest must be the one that was listed then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from toolscout.home.catalogue.store import Catalogue, WaitingDefinition
from toolscout.sources.mcp_skills import DYNAMIC, read_content, take_digest
from toolscout.sources.skills import SKILL_FILE
from toolscout.trust.policy import LOCAL, Caller
from toolscout.trust.screening import sanitise
from toolscout.types import OfKind, Tool
from toolscout_gateway.offers import Offers, cut_page, qualify_skill, refuse, split_qualified
from toolscout_gateway.text import clip, make_plain

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.shared.exceptions import MCPError
    from mcp_types import PaginatedRequestParams, ReadResourceRequestParams

    from toolscout_gateway.sessions.upstream import Upstream

__all__ = ["OfferedSkills"]

SKILLS_TTL_MS: Final = 60_000  # how long a client may use an entry before it asks again
SKILLS_PER_PAGE: Final = 50
MAX_DESCRIPTION_CHARS: Final = 1_024  # of a skill, as the format has it
MAX_COMPATIBILITY_CHARS: Final = 500
_NAME: Final = re.compile("(?!-)(?!.*--)[a-z0-9-]{1,64}(?<!-)")


class OfferedSkills:
    """Handlers of the requests for skills, and the check of their files."""

    def __init__(self, offers: Offers, identify: Callable[[Any], Caller]) -> None:
        """Serve skills.

        Args:
            offers: what the servers offer.
            identify: request context → the caller; raises an error if the caller asks too often.
        """
        self.offers, self.identify = offers, identify
        self._index = _Index.of(None)

    async def list_skills(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams
    ) -> dict[str, Any]:
        """List the skills that the caller may read."""
        caller = self.identify(context)
        sources = [upstream.name for upstream in await self.offers.find_servers(caller, "resources")]
        entries = await self.offers.upstreams.host.run_in_thread(self._build_entries, caller, frozenset(sources))
        page, cursor = cut_page(entries, params, SKILLS_PER_PAGE)
        return {"skills": page, **({"nextCursor": cursor} if cursor else {}), **_allow_caching(caller)}

    def _build_entries(self, caller: Caller, sources: frozenset[str]) -> list[dict[str, Any]]:
        """Build the entries of the skills of these sources that the caller may see."""
        skills = self._load_index().skills.values()
        visible = (skill for skill in skills if skill.source in sources and caller.sees(skill))
        return [entry for skill in visible if (entry := _build_entry(skill))]

    async def get_skill(
        self, context: ServerRequestContext[Any, Any], params: ReadResourceRequestParams
    ) -> dict[str, Any]:
        """Return the entry of one skill.

        If the catalogue lacks the skill because its server does not list it, it is first read, screened and added.
        """
        caller = self.identify(context)
        source, own = split_qualified(params.uri)
        servers = {upstream.name: upstream for upstream in await self.offers.find_servers(caller, "resources")}
        if source in servers and own.endswith(f"/{SKILL_FILE}"):
            for is_second_look in (False, True):  # in the catalogue; then again, after the server was asked for it
                if is_second_look and not await servers[source].find_skill(own):
                    break
                index = await self.offers.upstreams.host.run_in_thread(self._load_index)
                skill = index.skills.get((source, own))
                if skill is not None and caller.sees(skill) and (entry := _build_entry(skill)):
                    return {"skill": entry, **_allow_caching(caller)}
                waiting = index.waiting.get((source, own.removesuffix(SKILL_FILE)))
                if waiting is not None and caller.sees(waiting.tool):
                    raise _refuse_waiting(waiting)
        raise refuse(f"No skill is served at {clip(make_plain(params.uri), 200)}")

    def _load_index(self) -> _Index:
        """Return the skills of the current catalogue."""
        catalogue, _ = self.offers.lookup.load_catalogue()
        if self._index.generation != catalogue.generation:
            self._index = _Index.of(catalogue, self.offers.upstreams.host.scout.settings.trust != "off")
        return self._index

    # --- files

    async def require_approved(self, source: str, uri: str) -> None:
        """Refuse a resource that only a skill waiting for approval contains; called before the resource is read.

        Raises:
            MCPError: with the reason.
        """
        index = await self.offers.upstreams.host.run_in_thread(self._load_index)
        if (source, uri) in index.digests:
            return
        for (owner, folder), waiting in index.waiting.items():
            if owner == source and uri.startswith(folder):
                raise _refuse_waiting(waiting)

    async def check_content(self, upstream: Upstream, uri: str, contents: list[Any]) -> list[Any]:
        """Check that a file of a skill is as it was approved, and return what a client gets of it.

        A SKILL.md loses its hidden characters. Contents that are no file of a skill are returned as they are.

        Raises:
            MCPError: if the content is not the approved one. Then the server's skills are listed again.
        """
        from mcp_types import TextResourceContents

        place = upstream.name, uri
        digests = self._index.digests.get(place)
        if not digests:
            return contents
        content = read_content(contents[0]) if len(contents) == 1 else b""
        if take_digest(content) not in digests:
            upstream.doubt_skills()
            raise refuse(
                f"{make_plain(uri)[:200]} is not the file that was listed and approved; the skills of server "
                f"{upstream.name!r} are read again: ask for the skill's entry again"
            )
        if place not in self._index.skills or "cleaned" not in self._index.skills[place].meta:
            return contents  # no SKILL.md, or one without hidden characters
        shown = sanitise(content.decode())
        return [TextResourceContents(uri=contents[0].uri, mime_type=contents[0].mime_type, text=shown)]


class _Index:
    """The skills of a catalogue by their place: source and URI there.

    Attributes:
        generation: of the catalogue.
        skills: those that are approved.
        digests: place of a file → the digests that it may have.
        waiting: place of the folder of a skill that waits for approval → that skill.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.skills: dict[tuple[str, str], Tool] = {}
        self.digests: dict[tuple[str, str], set[str]] = {}
        self.waiting: dict[tuple[str, str], WaitingDefinition] = {}

    @classmethod
    def of(cls, catalogue: Catalogue | None, is_bound: bool = True) -> _Index:
        """Build the index of a catalogue; None: an empty one.

        `is_bound`: whether files must be as they were approved; otherwise skills whose files change are not checked.
        """
        index = cls(-1 if catalogue is None else catalogue.generation)
        mask = None if catalogue is None else catalogue.mask(OfKind("skill"))
        if catalogue is None or mask is None:
            return index
        ids = [id for id, is_skill in zip(catalogue.ids, mask, strict=True) if is_skill]
        for skill in catalogue.tools(ids):
            if "uri" in skill.meta:
                index.skills[skill.source, skill.meta["uri"]] = skill
                for uri, digest in _list_digests(skill) if is_bound or skill.meta["resources"] != DYNAMIC else ():
                    index.digests.setdefault((skill.source, uri), set()).add(digest)
        for definitions in catalogue.waiting.values():
            for definition in definitions:
                if definition.tool.kind == "skill" and "uri" in definition.tool.meta:
                    folder = definition.tool.meta["uri"].removesuffix(SKILL_FILE)
                    index.waiting[definition.tool.source, folder] = definition
        return index


def _refuse_waiting(waiting: WaitingDefinition) -> MCPError:
    """Build the error for a skill that waits for approval."""
    return refuse(f"{make_plain(waiting.id)} waits for approval ( toolscout approve ), because {waiting.why}")


def _list_digests(skill: Tool) -> Iterator[tuple[str, str]]:
    """Yield the URI and the digest of each file of a skill; only of SKILL.md if the others change by themselves."""
    yield skill.meta["uri"], skill.meta["digest"]
    for file in skill.meta["resources"] if skill.meta["resources"] != DYNAMIC else ():
        if file["uri"] != skill.meta["uri"]:
            yield file["uri"], file["digest"]


def _build_entry(skill: Tool) -> dict[str, Any]:
    """Build the entry of a skill as clients get it, with the URIs of the gateway.

    Empty if the format of skills does not allow its frontmatter: one such entry would make clients refuse a whole list.
    """
    frontmatter, uri, resources = skill.meta["frontmatter"], skill.meta["uri"], skill.meta["resources"]
    *_, folder, _ = uri.split("/")  # it ends with the folder and SKILL.md
    if not _is_in_format(frontmatter) or folder != frontmatter["name"]:
        return {}
    if resources != DYNAMIC:
        shown = skill.meta.get("cleaned", {})
        resources = [
            {**file, **(shown if file["uri"] == uri else {}), "uri": qualify_skill(skill.source, file["uri"])}
            for file in resources
        ]
    return {"uri": qualify_skill(skill.source, uri), "frontmatter": frontmatter, "resources": resources}


def _is_in_format(frontmatter: Mapping[str, Any]) -> bool:
    """Return whether a frontmatter is one of the format of skills (agentskills.io)."""
    name, description = frontmatter.get("name"), frontmatter.get("description")
    if not (isinstance(name, str) and _NAME.fullmatch(name) and isinstance(description, str)):
        return False
    if not (description.strip() and len(description) <= MAX_DESCRIPTION_CHARS):
        return False
    compatibility, allowed = frontmatter.get("compatibility", "any"), frontmatter.get("allowed-tools", "")
    return (
        isinstance(frontmatter.get("license", ""), str)
        and isinstance(compatibility, str)
        and 0 < len(compatibility) <= MAX_COMPATIBILITY_CHARS
        and isinstance(frontmatter.get("metadata", {}), dict)
        and (isinstance(allowed, str) or (isinstance(allowed, list) and all(isinstance(one, str) for one in allowed)))
    )


def _allow_caching(caller: Caller) -> dict[str, Any]:
    """Return how long a client may cache an answer, and whether callers may share it."""
    return {"ttlMs": SKILLS_TTL_MS, "cacheScope": "public" if caller is LOCAL else "private"}
