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
        uri: of its SKILL.md. With a fault of the whole list: the name of the list.
        document: the text of its SKILL.md. Placeholders are in it in place of credentials.
        entry: `frontmatter` and `resources` as the server listed them. Without `frontmatter`, the skill was found among
            the resources.
        fault: why it cannot be used. Empty: it can.
    """

    uri: str
    document: str = ""
    entry: Mapping[str, Any] = {}
    fault: str = ""


class SkillReader:
    """Reads the skills of one open session."""

    def __init__(self, client: Client, cover: Cover) -> None:
        """Read with a client of the SDK. `cover`: replaces the credentials of the server in what is read."""
        capabilities = client.server_capabilities
        self._session: ClientSession = client.session
        self._cover = cover
        self._has_resources = capabilities.resources is not None
        self._is_declared = SKILLS_EXTENSION in (capabilities.extensions or {})
        self._bytes_left = MAX_LIST_BYTES  # of entries and documents

    async def read_all(self) -> list[ListedSkill]:
        """Read the skills of the server for at most 10 seconds. If some are left out, the last item has a fault."""
        import anyio
        from mcp.shared.exceptions import MCPError
        from mcp_types import METHOD_NOT_FOUND

        if not self._has_resources:
            return []
        skills: dict[int, ListedSkill] = {}  # position in the list → skill
        total, fault = 0, ""
        with anyio.move_on_after(MAX_SKILLS_S) as scope:
            try:
                entries = await (self._list_entries() if self._is_declared else self._find_resources())
            except MCPError as error:
                if not self._is_declared:
                    return []
                if error.code == METHOD_NOT_FOUND:  # it declares the extension without having it
                    self._is_declared = False
                    return await self.read_all()
                return [ListedSkill("skills/list", fault=f"expected its skills, found an error (code {error.code})")]
            total = len(entries)
            await self._read_each(entries, skills)
        if scope.cancelled_caught:  # the total is 0 if not even the list was read
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
            return await self._read_skill(self._check_listed(await self._get_entry(uri)))
        return None

    async def _read_each(self, entries: Iterable[ListedSkill], skills: dict[int, ListedSkill]) -> None:
        """Read the SKILL.md of each entry, several at once, and put it into `skills` by the entry's position."""
        import anyio

        limiter = anyio.CapacityLimiter(MAX_READS_AT_ONCE)

        async def read(number: int, entry: ListedSkill) -> None:
            async with limiter:
                skills[number] = await self._read_skill(entry)

        async with anyio.create_task_group() as group:
            for number, entry in enumerate(entries):
                group.start_soon(read, number, entry)

    async def _list_entries(self) -> list[ListedSkill]:
        """List the entries of all pages of `skills/list`, at most `MAX_SKILLS`."""
        entries: list[ListedSkill] = []
        cursors: list[object] = [None]  # of the pages so far; the first page has none
        while len(entries) < MAX_SKILLS and len(cursors) <= MAX_SKILLS:
            page = await self._request("skills/list", {"cursor": cursors[-1]} if cursors[-1] else {})
            entries += map(self._check_listed, as_list(page.get("skills")))
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in cursors:  # an old cursor would lead in a circle
                break
            cursors.append(cursor)
        return entries[:MAX_SKILLS]

    async def _find_resources(self) -> list[ListedSkill]:
        """List the resources that may be skills, of a server that does not declare the extension. One page is read.

        Whether a resource is a skill, its document shows. FastMCP lists the files of a skill in a resource `_manifest`
        next to it.
        """
        page = await self._session.list_resources()
        listed = [str(resource.uri) for resource in page.resources]
        uris = [uri for uri in listed if uri.startswith(SKILL_SCHEME) and uri.endswith(f"/{SKILL_FILE}")]
        manifests = {uri: f"{uri.removesuffix(SKILL_FILE)}_manifest" for uri in uris[:MAX_SKILLS]}
        return [
            ListedSkill(uri, entry={"manifest": manifest} if manifest in listed else {})
            for uri, manifest in manifests.items()
        ]

    def _check_listed(self, entry: object) -> ListedSkill:
        """Check an entry of `skills/list` or `skills/get`. Returns it as a skill without document, or with a fault."""
        fields = as_object(entry)
        uri = str(fields.get("uri"))[:MAX_URI_CHARS]
        try:
            size = len(msgspec.json.encode(clean(fields)))
            fault = check_entry(fields) or self._count_bytes(size)
        except BadEntry as error:
            fault = str(error)
        kept = {} if fault else {key: fields[key] for key in ("frontmatter", "resources")}
        return ListedSkill(uri, entry=kept, fault=fault)

    async def _read_skill(self, listed: ListedSkill) -> ListedSkill:
        """Read the SKILL.md of an entry. Returns the entry with its document or a fault.

        If the content is not the listed one, the skill has changed since: entry and content are read once more.
        """
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        if listed.fault:
            return listed
        try:
            content = await self._read_file(listed.uri)
            if "frontmatter" not in listed.entry:  # it was found among the resources
                listed = listed._replace(entry={"resources": await self._read_manifest(listed, content)})
            elif _compare_content(listed, content):
                listed = self._check_listed(await self._get_entry(listed.uri))
                content = await self._read_file(listed.uri)
            document = content.decode()
        except MCPError as error:
            return listed._replace(fault=f"expected its {SKILL_FILE}, found an error (code {error.code})")
        except (ValidationError, ValueError):
            return listed._replace(fault=f"expected its {SKILL_FILE} as one text, found something else")
        if fault := listed.fault or _compare_content(listed, content) or self._count_bytes(len(content)):
            return listed._replace(fault=fault)
        return listed._replace(document=self._cover.text(document), entry=self._cover.value(listed.entry))

    def _count_bytes(self, size: int) -> str:
        """Count the bytes of an entry or a document. Returns a fault if it, or all together, are too many, else ""."""
        self._bytes_left -= size
        is_fine = self._bytes_left >= 0 and size <= MAX_SKILL_BYTES
        return "" if is_fine else f"expected at most {MAX_SKILL_BYTES:,} bytes, and 32 MiB in all skills, found more"

    async def _read_manifest(self, listed: ListedSkill, content: bytes) -> object:
        """Return the files of a skill that was found among the resources, as its `_manifest` lists them.

        `dynamic` if there is no manifest, or it does not fit the content of the SKILL.md.
        """
        from mcp.shared.exceptions import MCPError

        folder = listed.uri.removesuffix(SKILL_FILE)
        with suppress(MCPError, ValueError):
            if manifest := listed.entry.get("manifest"):
                files = as_list(as_object(msgspec.json.decode(await self._read_file(manifest))).get("files"))
                resources = [
                    {"uri": folder + quote(str(file.get("path"))), "digest": file.get("hash"), "size": file.get("size")}
                    for file in map(as_object, files)
                ]
                with_files = listed._replace(entry={"resources": resources})
                if not (_check_files(listed.uri, resources) or _compare_content(with_files, content)):
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

    async def _get_entry(self, uri: str) -> object:
        """Request the entry of one skill."""
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
    """Return the digest of a file as the extension writes it: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# --- entries ----------------------------------------------------------------------------------------------------------


def check_entry(entry: Mapping[str, Any]) -> str:
    """Say what is wrong with an entry of `skills/list` or `skills/get`. Empty if nothing is."""
    frontmatter = as_object(entry.get("frontmatter"))
    name, description = frontmatter.get("name"), frontmatter.get("description")
    if not (isinstance(name, str) and name and isinstance(description, str) and description):
        return "expected a frontmatter with name and description, found none"
    if _split_path(entry.get("uri"))[-2:] != [name, SKILL_FILE]:
        return f"expected a URI that ends with the name and {SKILL_FILE}, found another"
    return _check_files(str(entry["uri"]), entry.get("resources"))


def _check_files(uri: str, resources: object) -> str:
    """Say what is wrong with the files of a skill. Empty if nothing is."""
    if resources == DYNAMIC:
        return ""
    files = [as_object(file) for file in as_list(resources)]
    folder = uri.removesuffix(SKILL_FILE)
    uris = [file.get("uri") for file in files]
    if not (uri in uris and len({str(item) for item in uris}) == len(uris)):
        return f'expected "{DYNAMIC}" or its files as resources, each once, with {SKILL_FILE}, found something else'
    if not all(isinstance(item, str) and item.startswith(folder) and _split_path(item) for item in uris):
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
    """Split the URI of a file into its authority, if it has one, and the names of its path.

    Empty if it is no plain path: with `..`, an empty or escaped part, a query or a fragment.
    """
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
    """Say that the content of a SKILL.md is not the listed one. Empty if it is, or its content has no digest."""
    resources: Any = skill.entry.get("resources", DYNAMIC)
    if resources == DYNAMIC:
        return ""
    listed = next(file for file in resources if file["uri"] == skill.uri)
    if (listed["size"], listed["digest"]) == (len(content), take_digest(content)):
        return ""
    return f"its {SKILL_FILE} is not the one that its digest names"


def name_skill(uri: str) -> str:
    """Return the name of a skill from the URI of its SKILL.md: the last folder in it."""
    return unquote(uri.split("/")[-2]) if uri.count("/") > 1 else uri


def name_by_path(uri: str) -> str:
    """Return the path of a skill on its server, which differs between skills of one name: `billing/refunds`.

    If the path is a name alone, return `skills/refunds`: there is a tool of that name.
    """
    path = unquote(uri.partition("://")[2].removesuffix(f"/{SKILL_FILE}").strip("/"))
    return path if "/" in path else f"skills/{path}"


def build_listed_skill(source: str, skill: ListedSkill, tools: Collection[str], distinct_id: str = "") -> Tool:
    """Build the record of a skill of a server. It contains the digests of its files: an approval is valid for these.

    Args:
        source: its source.
        skill: the skill as it was read.
        tools: names of the tools of its source. The skill can require only these.
        distinct_id: its id within the source if its name cannot be the id. Empty: the name.

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
    location: dict[str, Any] = {
        "uri": skill.uri,
        "digest": take_digest(skill.document.encode()),
        "frontmatter": listed if listed is not None and shown == skill.document else split_document(shown)[0],
        "resources": skill.entry.get("resources", DYNAMIC),
    }
    if shown != skill.document:
        location["cleaned"] = {"digest": take_digest(shown.encode()), "size": len(shown.encode())}
    return build_skill(source, document, name_skill(skill.uri), location, tools, distinct_id)


def _is_same(listed: object, parsed: object) -> bool:
    """Return whether a value in a listed frontmatter is the one that we parsed in the document.

    The parser of the server may have read a text where ours reads a number, a boolean or null.
    """
    if isinstance(listed, dict) and isinstance(parsed, dict):
        return listed.keys() == parsed.keys() and all(_is_same(listed[key], parsed[key]) for key in listed)
    if isinstance(listed, list) and isinstance(parsed, list):
        return len(listed) == len(parsed) and all(map(_is_same, listed, parsed))
    if isinstance(listed, str) and not isinstance(parsed, str):
        if parsed is None or isinstance(parsed, bool):
            return listed.casefold() in _YAML_WORDS[parsed]
        return _spells_number(listed, parsed)
    return listed == parsed and isinstance(listed, bool) == isinstance(parsed, bool)  # True == 1 in Python


def _spells_number(text: str, parsed: object) -> bool:
    """Return whether `parsed` is a number, and the text spells it."""
    try:
        return isinstance(parsed, (int, float)) and float(text) == parsed
    except ValueError:
        return False
