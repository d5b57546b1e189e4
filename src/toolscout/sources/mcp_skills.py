"""Reads the skills of MCP servers (SEP-2640): those that `skills/list` names, or else those among the resources.

A host fetches a skill when a model loads it. toolscout fetches each SKILL.md when it lists, because the instructions
are screened, searched and approved; other files of a skill only pass through when a client reads them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from toolscout.errors import BadEntry
from toolscout.sources.mcp_limits import MAX_LIST_BYTES
from toolscout.sources.reading import as_list, as_object
from toolscout.sources.skills import MAX_SKILL_BYTES, SKILL_FILE, build_skill, split_document
from toolscout.trust.screening import sanitise
from toolscout.types import Tool, clean

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.session import ClientSession

    from toolscout.trust.redaction import Cover

__all__ = [
    "DYNAMIC",
    "SKILLS_EXTENSION",
    "ListedSkill",
    "SkillReader",
    "build_listed_skill",
    "check_entry",
    "name_by_path",
    "name_skill",
    "read_content",
    "take_digest",
]

SKILLS_EXTENSION: Final = "io.modelcontextprotocol/skills"
DYNAMIC: Final = "dynamic"  # instead of a skill's files, if its content has no stable digests
SKILL_SCHEME: Final = "skill://"
MAX_SKILLS: Final = 1_000  # of one server
MAX_SKILLS_S: Final = 10.0  # to list and read them
MAX_READS_AT_ONCE: Final = 8
MAX_FILES: Final = 512  # of one skill, as the extension has them
MAX_FILES_BYTES: Final = 16 * 2**20  # together
MAX_URI_CHARS: Final = 4_096
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")
#: How YAML spells the values of JSON that other parsers read as text.
_YAML_WORDS: Final[Mapping[bool | None, frozenset[str]]] = {
    True: frozenset({"true", "yes", "on", "y"}), False: frozenset({"false", "no", "off", "n"}),
    None: frozenset({"null", "~", ""}),
}  # fmt: skip


class ListedSkill(NamedTuple):
    """A skill of a server as it was read.

    Attributes:
        uri: of its SKILL.md.
        document: its SKILL.md. Credentials are covered.
        entry: `frontmatter` and `resources` as the server listed them. Empty: it was found among the resources.
        fault: why it is no skill that can be used. Empty: it is one.
    """

    uri: str
    document: str = ""
    entry: Mapping[str, Any] = {}
    fault: str = ""


class SkillReader:
    """Reads the skills of one open session."""

    def __init__(self, client: Client, cover: Cover) -> None:
        """Read with a client of the SDK. `cover`: covers the credentials that the server was given."""
        capabilities = client.server_capabilities
        self._session: ClientSession = client.session
        self._cover = cover
        self._has_resources = capabilities.resources is not None
        self._is_declared = SKILLS_EXTENSION in (capabilities.extensions or {})
        self._bytes_left = MAX_LIST_BYTES  # of entries and documents

    async def read_all(self) -> list[ListedSkill]:
        """Read every skill, as far as that takes `MAX_SKILLS_S` seconds. What is left out has a fault that says so."""
        import anyio
        from mcp.shared.exceptions import MCPError
        from mcp_types import METHOD_NOT_FOUND

        if not self._has_resources:
            return []
        skills: dict[int, ListedSkill] = {}
        total, fault = 0, ""
        with anyio.move_on_after(MAX_SKILLS_S) as scope:
            try:
                entries = await (self._list_entries() if self._is_declared else self._find_resources())
            except MCPError as error:
                if not self._is_declared:
                    return []
                if error.code == METHOD_NOT_FOUND:
                    self._is_declared = False
                    return await self.read_all()
                return [ListedSkill("skills/list", fault=f"expected its skills, found an error (code {error.code})")]
            total = len(entries)
            await self._read_each(entries, skills)
        if scope.cancelled_caught:
            fault = f"expected its skills within {MAX_SKILLS_S:g} s, found {len(skills)} of {total or 'all'}"
        elif total >= MAX_SKILLS:
            fault = f"expected fewer than {MAX_SKILLS:,} skills, found more: the list ends there"
        listed = [skills[number] for number in sorted(skills)]
        return [*listed, ListedSkill("skills", fault=fault)] if fault else listed

    async def read_one(self, uri: str) -> ListedSkill | None:
        """Read one skill, which need not be listed. None: the server has no such skill, or not the extension."""
        from mcp.shared.exceptions import MCPError

        if not self._is_declared:
            return None
        with suppress(MCPError):
            return await self._read_skill(self._check(await self._get(uri)))
        return None

    async def _read_each(self, entries: Iterable[ListedSkill], skills: dict[int, ListedSkill]) -> None:
        """Read the SKILL.md of each entry, several at once."""
        import anyio

        turns = anyio.CapacityLimiter(MAX_READS_AT_ONCE)

        async def read(number: int, entry: ListedSkill) -> None:
            async with turns:
                skills[number] = await self._read_skill(entry)

        async with anyio.create_task_group() as group:
            for number, entry in enumerate(entries):
                group.start_soon(read, number, entry)

    async def _list_entries(self) -> list[ListedSkill]:
        """List the entries of all pages of `skills/list`, at most `MAX_SKILLS`."""
        entries: list[ListedSkill] = []
        cursors: list[object] = [None]
        while len(entries) < MAX_SKILLS and len(cursors) <= MAX_SKILLS:
            page = await self._request("skills/list", {"cursor": cursors[-1]} if cursors[-1] else {})
            entries += map(self._check, as_list(page.get("skills")))
            if not isinstance(cursor := page.get("nextCursor"), str) or cursor in cursors:
                break
            cursors.append(cursor)
        return entries[:MAX_SKILLS]

    async def _find_resources(self) -> list[ListedSkill]:
        """List the resources of the first page that may be skills of a server that does not declare the extension.

        Whether one is shows in its document. FastMCP has a resource `_manifest` with the other files beside it.
        """
        page = await self._session.list_resources()
        listed = [str(each.uri) for each in page.resources]
        uris = [uri for uri in listed if uri.startswith(SKILL_SCHEME) and uri.endswith(f"/{SKILL_FILE}")]
        manifests = {uri: f"{uri.removesuffix(SKILL_FILE)}_manifest" for uri in uris[:MAX_SKILLS]}
        return [
            ListedSkill(uri, entry={"manifest": manifest} if manifest in listed else {})
            for uri, manifest in manifests.items()
        ]

    def _check(self, entry: object) -> ListedSkill:
        """Return an entry of the extension, with its fault if it has one."""
        fields = as_object(entry)
        uri = str(fields.get("uri"))[:MAX_URI_CHARS]
        try:
            size = len(msgspec.json.encode(clean(fields)))
            fault = check_entry(fields) or self._take_bytes(size)
        except BadEntry as error:
            fault = str(error)
        kept = {} if fault else {key: fields[key] for key in ("frontmatter", "resources")}
        return ListedSkill(uri, entry=kept, fault=fault)

    async def _read_skill(self, listed: ListedSkill) -> ListedSkill:
        """Read the SKILL.md of an entry. A content that is not the listed one is read again with a new entry."""
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        if listed.fault:
            return listed
        try:
            content = await self._read_file(listed.uri)
            if "frontmatter" not in listed.entry:
                listed = listed._replace(entry={"resources": await self._read_manifest(listed, content)})
            elif _compare_content(listed, content):
                listed = self._check(await self._get(listed.uri))
                content = await self._read_file(listed.uri)
            document = content.decode()
        except MCPError as error:
            return listed._replace(fault=f"expected its {SKILL_FILE}, found an error (code {error.code})")
        except (ValidationError, ValueError):
            return listed._replace(fault=f"expected its {SKILL_FILE} as one text, found something else")
        if fault := listed.fault or _compare_content(listed, content) or self._take_bytes(len(content)):
            return listed._replace(fault=fault)
        return listed._replace(document=self._cover.text(document), entry=self._cover.value(listed.entry))

    def _take_bytes(self, size: int) -> str:
        """Count bytes that are kept. Returns a fault if there are too many."""
        self._bytes_left -= size
        is_fine = self._bytes_left >= 0 and size <= MAX_SKILL_BYTES
        return "" if is_fine else f"expected at most {MAX_SKILL_BYTES:,} bytes, and 32 MiB in all skills, found more"

    async def _read_manifest(self, listed: ListedSkill, content: bytes) -> object:
        """Return the files of a skill that was found among resources, by the `_manifest` beside it; else `dynamic`."""
        from mcp.shared.exceptions import MCPError

        folder = listed.uri.removesuffix(SKILL_FILE)
        with suppress(MCPError, ValueError):
            if manifest := listed.entry.get("manifest"):
                files = as_list(as_object(msgspec.json.decode(await self._read_file(manifest))).get("files"))
                resources = [
                    {"uri": folder + quote(str(file.get("path"))), "digest": file.get("hash"), "size": file.get("size")}
                    for file in map(as_object, files)
                ]
                found = listed._replace(entry={"resources": resources})
                if not (_check_files(listed.uri, resources) or _compare_content(found, content)):
                    return resources
        return DYNAMIC

    async def _read_file(self, uri: str) -> bytes:
        """Read a resource of one part.

        Raises:
            ValueError: if it has more parts.
        """
        read = await self._session.read_resource(uri)
        [part] = read.contents
        return read_content(part)

    async def _get(self, uri: str) -> object:
        """Return the entry of one skill."""
        return (await self._request("skills/get", {"uri": uri})).get("skill")

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request that the SDK has no type for."""
        from mcp_types import Request
        from pydantic import TypeAdapter

        request: Any = Request[dict[str, Any], str](method=method, params=params)
        answer: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
        result: dict[str, Any] = await self._session.send_request(request, answer)
        return result


def read_content(part: Any) -> bytes:
    """Return the bytes of a part of a resource, which is a text or a blob."""
    return part.text.encode() if hasattr(part, "text") else base64.b64decode(part.blob)


def take_digest(content: bytes) -> str:
    """Return the digest of a file in the form of the extension."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# --- entries ----------------------------------------------------------------------------------------------------------


def check_entry(entry: Mapping[str, Any]) -> str:
    """Say what is wrong with an entry of `skills/list` or `skills/get`. Empty if it is as the extension has it."""
    frontmatter = as_object(entry.get("frontmatter"))
    name, description = frontmatter.get("name"), frontmatter.get("description")
    if not (isinstance(name, str) and name and isinstance(description, str) and description):
        return "expected a frontmatter with name and description, found none"
    steps = _split_path(entry.get("uri"))
    if len(steps) < 2 or steps[-1] != SKILL_FILE or steps[-2] != name:
        return f"expected a URI that ends with the name and {SKILL_FILE}, found another"
    return _check_files(str(entry["uri"]), entry.get("resources"))


def _check_files(uri: str, resources: object) -> str:
    """Say what is wrong with the files of a skill. Empty if nothing is."""
    if resources == DYNAMIC:
        return ""
    files = [as_object(file) for file in as_list(resources)]
    folder = uri.removesuffix(SKILL_FILE)
    uris = [file.get("uri") for file in files]
    if not (uri in uris and len({str(each) for each in uris}) == len(uris)):
        return f'expected "{DYNAMIC}" or its files as resources, each once, with {SKILL_FILE}, found something else'
    if not all(isinstance(each, str) and each.startswith(folder) and _split_path(each) for each in uris):
        return "expected only files in its folder as resources, found others"
    return _check_sizes(files)


def _check_sizes(files: Sequence[Mapping[str, object]]) -> str:
    """Say what is wrong with the sizes and digests of a skill's files. Empty if nothing is."""
    sizes = [size for file in files if isinstance(size := file.get("size"), int) and not isinstance(size, bool)]
    if len(sizes) < len(files) or min(sizes) < 0:
        return "expected the size of each file, found something else"
    if not all(_DIGEST.fullmatch(str(file.get("digest"))) for file in files):
        return "expected a digest sha256:… of each file, found something else"
    if len(files) > MAX_FILES or sum(sizes) > MAX_FILES_BYTES:
        return f"expected at most {MAX_FILES} files of {MAX_FILES_BYTES // 2**20} MiB together, found more"
    return ""


def _split_path(uri: object) -> list[str]:
    """Split the URI of a file into its authority and the names of its path. Empty if they can lead elsewhere."""
    if not isinstance(uri, str) or len(uri) > MAX_URI_CHARS or "://" not in uri:
        return []
    try:
        parts = urlsplit(uri)
    except ValueError:
        return []
    names = [unquote(step) for step in f"{parts.netloc}{parts.path}".split("/")]
    names = names if parts.netloc else names[1:]
    is_plain = all(name not in ("", ".", "..") and not re.search(r"[/\\]", name) for name in names)
    return names if is_plain and not parts.query and not parts.fragment else []


def _compare_content(skill: ListedSkill, content: bytes) -> str:
    """Say that the content of a SKILL.md is not the listed one. Empty if it is, or the skill has no stable digests."""
    resources: Any = skill.entry.get("resources", DYNAMIC)
    if resources == DYNAMIC:
        return ""
    listed = next(file for file in resources if file["uri"] == skill.uri)
    if (listed["size"], listed["digest"]) == (len(content), take_digest(content)):
        return ""
    return f"its {SKILL_FILE} is not the one that its digest names"


def name_skill(uri: str) -> str:
    """Return the name of a skill, with which the path of its folder ends."""
    return unquote(uri.split("/")[-2]) if uri.count("/") > 1 else uri


def name_by_path(uri: str) -> str:
    """Return the path of a skill on its server, which tells skills of one name apart: `billing/refunds`.

    A path of one name, which is that of a tool, gets a second: `skills/refunds`.
    """
    path = unquote(uri.partition("://")[2].removesuffix(f"/{SKILL_FILE}").strip("/"))
    return path if "/" in path else f"skills/{path}"


def build_listed_skill(source: str, skill: ListedSkill, tools: Collection[str], name: str = "") -> Tool:
    """Build the record of a skill of a server, with its files and their digests, to which an approval is bound.

    Args:
        source: its source.
        skill: as it was read.
        tools: names of the tools of its source. Of these alone it may bring some (`allowed-tools`).
        name: of its id. Empty: its own name.

    Raises:
        BadEntry: if it is no skill that can be used.
    """
    if skill.fault:
        raise BadEntry(skill.fault)
    document = skill.document.removeprefix("\ufeff")
    fields, _ = split_document(document)
    listed = skill.entry.get("frontmatter")
    if listed is not None and not _is_same(clean(listed), clean(fields)):
        raise BadEntry(f"its frontmatter in skills/list is not the one in its {SKILL_FILE}")
    shown = sanitise(skill.document)
    place: dict[str, Any] = {
        "uri": skill.uri,
        "digest": take_digest(skill.document.encode()),
        "frontmatter": listed if listed is not None and shown == skill.document else split_document(shown)[0],
        "resources": skill.entry.get("resources", DYNAMIC),
    }
    if shown != skill.document:
        place["cleaned"] = {"digest": take_digest(shown.encode()), "size": len(shown.encode())}
    return build_skill(source, document, name_skill(skill.uri), place, tools, name)


def _is_same(listed: object, parsed: object) -> bool:
    """Compare a value of a listed frontmatter with that of the document. Parsers differ in what is text in YAML."""
    if isinstance(listed, dict) and isinstance(parsed, dict):
        return listed.keys() == parsed.keys() and all(_is_same(listed[key], parsed[key]) for key in listed)
    if isinstance(listed, list) and isinstance(parsed, list):
        return len(listed) == len(parsed) and all(map(_is_same, listed, parsed))
    if isinstance(listed, str) and not isinstance(parsed, str):
        if parsed is None or isinstance(parsed, bool):
            return listed.casefold() in _YAML_WORDS[parsed]
        return _is_number(listed, parsed)
    return listed == parsed and isinstance(listed, bool) == isinstance(parsed, bool)


def _is_number(text: str, parsed: object) -> bool:
    """Return whether a text spells a number."""
    try:
        return isinstance(parsed, (int, float)) and float(text) == parsed
    except ValueError:
        return False
