"""Uses published MCP servers directly, through the gateway and through FastMCP's proxy, and compares what comes back.

    python benchmarks/matrix.py --folder DIR [--only NAME,NAME] [--retry] [--proxy]

`suites/servers.toml` names the servers, `servers.py` installs them below DIR. Each is used by the SDK's client over
standard input and output, and over HTTP where its entry has `http`: it lists its tools, answers up to four harmless
calls with arguments made from the schemas, reads a resource and gets a prompt. The gateway and the proxy have only
this server behind them. A result that differs from the direct one is compared with a second direct run: what varies
there (times, random numbers, ids) is left out, and if more varies, only its kind is compared. A cell that differs only
because two direct runs list other definitions of tools says so: what changed waits for approval. Through the gateway
each tool is also searched by its own name, a result above 3,000 bytes is cut and read on by its handle, and the server
is killed before one more call.

`results/servers.json` keeps versions, counts and yes or no; no text of a server. A server that is in it is left alone,
unless `--only` names it or `--retry` is given and the server did not start; with `--proxy`, a row without the proxy's
cells gets these, compared with a direct run of now, and keeps the others. Each server runs in an empty folder, which
is also its home.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import ElicitResult

from servers import Entry, build_entry, install, load_servers
from toolscout import Scout
from toolscout.checks.results import write_json
from toolscout_lab.machine import provenance

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ports import find_free_port  # noqa: E402

RESULTS: Final = ROOT / "benchmarks" / "results" / "servers.json"
SERVER_SECONDS: Final = 60
CALL_SECONDS: Final = 20
AT_ONCE: Final = 2
CALLS: Final = 4
SEARCHES: Final = 10
MAX_DEPTH: Final = 6
BUDGET_TOKENS: Final = 1000
SURELY_CUT_BYTES: Final = 4000
#: Words in the names of tools that only read, and of those that do not.
READING: Final = re.compile(
    r"\b(get|list|search|read|find|show|describe|count|check|query|lookup|fetch|info|status|echo|validate|current"
    r"|convert|calculate|calc|compute|sum|roll|random|think|help|tree|stats|summary|parse|format|resolve|inspect)\b"
)
WRITING: Final = re.compile(
    r"\b(create|add|update|delete|remove|write|set|put|post|send|insert|execute|run|move|edit|upload|install|start|stop"
    r"|kill|open|close|click|navigate|clear|reset|save|import|export|publish|merge|push|commit|record|wait|ask|browser"
    r"|screenshot|login|auth|connect|launch|subscribe|toggle|download)\b"
)
PROXY: Final = (
    "import json, sys; from fastmcp.server import create_proxy; "
    "create_proxy(json.load(open(sys.argv[1])), mode='auto').run(show_banner=False)"
)
Facts = dict[str, Any]


# --- ways to a server ---


@dataclass
class Way:
    """A way to a server: directly, or through something before it.

    Attributes:
        command: of the program that a client starts, with its arguments.
        env: its variables.
        cwd: its folder.
        url: of the server over HTTP; then `command` is started first, by us.
    """

    command: list[str]
    env: dict[str, str]
    cwd: str
    url: str = ""

    def read_call(self, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return name and arguments of the request that calls a tool of the server."""
        return name, arguments

    def name_prompt(self, name: str) -> str:
        return name


class GatewayWay(Way):
    """The way through `toolscout gateway`."""

    def read_call(self, name: str, arguments: dict[str, Any], detail: str = "full") -> tuple[str, dict[str, Any]]:
        return "call_tool", {"id": f"it/{name}", "arguments": arguments, "detail": detail}

    def name_prompt(self, name: str) -> str:
        return f"it/{name}"


def build_ways(name: str, server: Mapping[str, Any], folder: Path, proxy: bool) -> dict[str, Way]:
    """Install a server and return the ways to it."""
    programs = install(name, dict(server), folder / "installed")
    scratch, home = folder / "scratch" / name, folder / "homes" / name
    for place in (scratch, home):
        place.mkdir(parents=True, exist_ok=True)
    (scratch / "note.txt").write_text("A note with a few words.\n")
    ways: dict[str, Way] = {}
    for kind, words in (("stdio", server["command"]), ("http", server.get("http"))):
        if not words:
            continue
        port = find_free_port()
        entry = build_entry({**server, "command": words}, programs, scratch)
        entry = json.loads(json.dumps(entry).replace("{port}", str(port)))
        command = [str(entry["command"]), *entry["args"]]
        env = {"HOME": str(scratch), **entry["env"]}
        url = f"http://127.0.0.1:{port}{server.get('path', '/mcp')}" if kind == "http" else ""
        behind: Entry = {"url": url} if url else {"command": command[0], "args": command[1:], "env": env}
        config = home / f"{kind}.json"
        config.write_text(json.dumps({"mcpServers": {"it": {**behind, "cwd": str(scratch)} if not url else behind}}))
        words = ["-m", "toolscout", "--home", str(home / f"home-{kind}"), "gateway", "--config", str(config)]
        own = {**os.environ, "TOOLSCOUT_ENCODER": "static"}
        ways[kind] = Way(command, env, str(scratch), url)
        ways[f"{kind} gateway"] = GatewayWay(
            [sys.executable, *words, "--result-budget", str(BUDGET_TOKENS)], own, str(home)
        )
        if proxy and not url:
            ways["proxy"] = Way([sys.executable, "-c", PROXY, str(config)], own, str(home))
    return ways


@dataclass
class Heard:
    """What a client heard beside answers."""

    progress: int = 0
    logs: int = 0


@asynccontextmanager
async def open_way(way: Way, errors: TextIO, heard: Heard) -> AsyncIterator[Client]:
    """Open a client of the SDK on a way."""

    async def note_log(params: Any) -> None:
        heard.logs += 1

    if way.url:
        server: Any = way.url
    else:
        parameters = StdioServerParameters(command=way.command[0], args=way.command[1:], env=way.env, cwd=way.cwd)
        server = stdio_client(parameters, errlog=errors)
    async with Client(
        server,
        logging_callback=note_log,
        log_level="debug",
        read_timeout_seconds=SERVER_SECONDS,
        elicitation_callback=accept,
    ) as client:
        if client.server_capabilities.logging is not None:
            with suppress(MCPError):
                await client.set_logging_level("debug")
        yield client


async def accept(context: Any, params: Any) -> ElicitResult:
    """Answer a question of a server with values that its form allows."""
    form = getattr(params, "requested_schema", None)
    return ElicitResult(action="accept", content=form and make_value(form, "", "/", form))


@asynccontextmanager
async def running_http(way: Way, errors: TextIO) -> AsyncIterator[None]:
    """Run a server over HTTP."""
    process = subprocess.Popen(
        way.command, env={"PATH": os.environ["PATH"], **way.env}, cwd=way.cwd, stdout=errors, stderr=errors,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        port = int(way.url.split(":")[2].partition("/")[0])
        ends = time.monotonic() + SERVER_SECONDS
        while time.monotonic() < ends and process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            await asyncio.sleep(0.3)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- what is asked of a server ---


@dataclass
class Plan:
    """What every way is asked, as the direct way made it up."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    resource: str = ""
    prompt: tuple[str, dict[str, str]] | None = None


def make_value(schema: Any, name: str, folder: str, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Make a value that a schema allows. Paths are in `folder`; references are looked up in `root`."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return "note"
    if reference := schema.get("$ref"):
        target: Any = root
        for key in str(reference).removeprefix("#/").split("/"):
            target = target.get(key, {}) if isinstance(target, Mapping) else {}
        return make_value(target, name, folder, root, depth + 1)
    options = [schema.get("const"), schema.get("default"), *(schema.get("enum") or ()), *(schema.get("examples") or ())]
    for option in options:
        if option is not None:
            return option
    for inner in (*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ()), *(schema.get("allOf") or ())):
        if inner != {"type": "null"}:
            return make_value(inner, name, folder, root, depth + 1)
    kinds = schema.get("type")
    kind = next((item for item in kinds if item != "null"), "string") if isinstance(kinds, list) else kinds
    if kind == "object" or "properties" in schema:
        inner = schema.get("properties") or {}
        return {key: make_value(inner.get(key), key, folder, root, depth + 1) for key in schema.get("required") or []}
    if kind == "array":
        return [make_value(schema.get("items"), name, folder, root, depth + 1)] * max(1, schema.get("minItems") or 0)
    if kind in ("integer", "number"):
        return max(1, schema.get("minimum") or 0)
    return False if kind == "boolean" else make_text(schema, name, folder)


def make_text(schema: Mapping[str, Any], name: str, folder: str) -> str:
    """Make a text for a parameter by its format and its name."""
    made = {
        "uri": "http://127.0.0.1:9/", "date": "2026-01-02", "date-time": "2026-01-02T03:04:05Z",
        "email": "a@example.com", "uuid": "00000000-0000-4000-8000-000000000000",
    }.get(str(schema.get("format")))  # fmt: skip
    name = name.lower()
    if made is None and re.search(r"dir|folder|root|workspace|repo", name):
        made = folder
    elif made is None and re.search(r"path|file", name):
        made = f"{folder}/note.txt"
    elif made is None and "url" in name:
        made = "http://127.0.0.1:9/"
    elif made is None:
        made = "2 + 3" if "expression" in name else "UTC" if "zone" in name else "12:30" if name == "time" else "note"
    return made.ljust(schema.get("minLength") or 0, "x")


def plan_calls(tools: Sequence[Any], server: Mapping[str, Any], folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Choose harmless calls: those that the suite names, then tools that say or are named as if they only read."""
    calls = [(str(name), json.loads(json.dumps(arguments))) for name, arguments in server.get("calls", {}).items()]
    for tool in tools:
        hints = tool.annotations
        reads = bool(hints and hints.read_only_hint)
        words = split_name(tool.name).lower()
        named = READING.search(words) and not WRITING.search(words)
        harmless = reads or (named and not (hints and hints.destructive_hint))
        if harmless and tool.name not in dict(calls) and tool.name not in server.get("never", ()):
            calls.append(
                (tool.name, make_value({**tool.input_schema, "type": "object"}, "", folder, tool.input_schema))
            )
    calls.sort(key=lambda call: call[0] not in server.get("calls", {}) and len(call[1]))  # fewest arguments first
    return [(name, json.loads(json.dumps(arguments).replace("{folder}", folder))) for name, arguments in calls[:CALLS]]


# --- what comes back ---


def write_plain(value: Any) -> str:
    """Write a result without what a gateway adds for itself."""
    fields = value.model_dump(mode="json", by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else value
    fields = {key: item for key, item in fields.items() if key not in ("_meta", "resultType", "ttlMs", "cacheScope")}
    return json.dumps(fields, sort_keys=True)


async def read_answer(request: Any) -> Facts:
    """Await an answer: whether it is an error, and its text."""
    try:
        answer = await asyncio.wait_for(request, CALL_SECONDS)
    except MCPError as error:
        return {"error": True, "text": str(error)}
    except asyncio.TimeoutError:
        return {"error": True, "text": "time"}
    return {"error": bool(getattr(answer, "is_error", False)), "text": write_plain(answer)}


async def list_all(client: Client, method: str, key: str) -> list[Any] | None:
    """List all pages of tools, resources or prompts. None if the server has no such list."""
    items: list[Any] = []
    cursor: str | None = None
    for _ in range(100):
        try:
            page = await getattr(client, method)(cursor=cursor)
        except MCPError:
            return items or None
        items += getattr(page, key)
        cursor = page.next_cursor
        if not cursor:
            break
    return items


async def observe(client: Client, way: Way, plan: Plan, heard: Heard, facts: Facts) -> None:
    """Ask what a plan says, and note the answers in `facts`."""
    resources = await list_all(client, "list_resources", "resources")
    templates = await list_all(client, "list_resource_templates", "resource_templates")
    prompts = await list_all(client, "list_prompts", "prompts")
    facts["resources"] = sorted(str(item.uri) for item in resources or ())
    facts["templates"] = sorted(item.uri_template for item in templates or ())
    facts["prompts"] = sorted(item.name for item in prompts or ())
    if type(way) is Way and not plan.resource and not plan.prompt:
        plan.resource = next((str(item.uri) for item in resources or ()), "")
        for item in prompts or ():
            plan.prompt = item.name, {argument.name: "note" for argument in item.arguments or () if argument.required}
            break
    if plan.resource:
        facts["read"] = await read_answer(client.read_resource(plan.resource))
    if plan.prompt:
        facts["prompt"] = await read_answer(client.get_prompt(way.name_prompt(plan.prompt[0]), plan.prompt[1]))

    async def note_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.progress += 1

    facts["calls"] = []
    for name, arguments in plan.calls:
        request, sent = way.read_call(name, arguments)
        facts["calls"].append(await read_answer(client.call_tool(request, sent, progress_callback=note_progress)))
    await asyncio.sleep(0.2)
    facts["progress"], facts["logs"] = heard.progress, heard.logs


async def observe_directly(way: Way, server: Mapping[str, Any], plan: Plan, errors: TextIO) -> Facts:
    """Use a server directly. The first time, make the plan."""
    facts: Facts = {}
    heard = Heard()
    async with open_way(way, errors, heard) as client:
        tools = await list_all(client, "list_tools", "tools")
        facts["protocol"] = client.protocol_version
        facts["tools"] = {tool.name: strip_notes(tool.input_schema) for tool in tools or ()}
        facts["definitions"] = {tool.name: tool.model_dump_json(by_alias=True) for tool in tools or ()}
        if not plan.calls:
            plan.calls = plan_calls(tools or (), server, way.cwd)
        await observe(client, way, plan, heard, facts)
    return facts


async def observe_gateway(way: GatewayWay, plan: Plan, errors: TextIO, direct: Facts) -> Facts:
    """Use a server through the gateway."""
    facts: Facts = {"tools": {}}
    heard = Heard()
    async with open_way(way, errors, heard) as client:
        names = list(direct["tools"])
        ends = time.monotonic() + SERVER_SECONDS
        while names and time.monotonic() < ends:
            answer = await client.call_tool("describe_tools", {"ids": [f"it/{names[0]}"]})
            if (answer.structured_content or {}).get("tools"):
                break
            await asyncio.sleep(0.5)
        for name in names:
            answer = await client.call_tool("describe_tools", {"ids": [f"it/{name}"]})
            for tool in (answer.structured_content or {}).get("tools", ()):
                facts["tools"][tool["id"].removeprefix("it/")] = strip_notes(tool.get("parameters"))
        await observe(client, way, plan, heard, facts)
        with Scout(way.command[way.command.index("--home") + 1]) as scout:
            facts["tools"] |= {id: "more" for id in scout.store.catalogue().ids if id.removeprefix("it/") not in names}
        facts["prompts"] = sorted(name.removeprefix("it/") for name in facts["prompts"])
        asked = names[:: max(1, len(names) // SEARCHES)][:SEARCHES]
        facts["found"] = {name: await find(client, name) for name in asked}
        large = [
            (call, answer)
            for call, answer in zip(plan.calls, facts["calls"], strict=True)
            if not answer["error"] and len(measure_text(answer)) > SURELY_CUT_BYTES
        ]
        if large:
            facts["cut"] = await read_cut(client, way, *large[0])
        if plan.calls and not way.url:
            for process in list_children(way.command):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            await asyncio.sleep(0.5)
            name, arguments = way.read_call(*plan.calls[0])
            facts["revived"] = await read_answer(client.call_tool(name, arguments))
    return facts


def split_name(name: str) -> str:
    """Split the name of a tool into its words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[_\-./:]+", " ", name).strip()


async def find(client: Client, name: str) -> bool:
    """Search a tool by the words of its name: is it in the first five?"""
    answer = await client.call_tool("search_tools", {"queries": [split_name(name)], "limit": 5})
    results = (answer.structured_content or {}).get("results") or [{}]
    return f"it/{name}" in [tool["id"] for tool in results[0].get("tools") or ()]


def measure_text(answer: Facts) -> str:
    """Return the text of the first block of an answer; empty if it is none."""
    block = (json.loads(answer["text"]).get("content") or [{}])[0] if not answer["error"] else {}
    return str(block.get("text", ""))


async def read_cut(client: Client, way: GatewayWay, call: tuple[str, dict[str, Any]], whole: Facts) -> bool:
    """Call without `detail`, and return whether the handle gives the whole text, page by page."""
    name, arguments = way.read_call(*call, detail="compact")
    answer = await client.call_tool(name, {key: value for key, value in arguments.items() if key != "detail"})
    handle = ((answer.meta or {}).get("toolscout/result") or {}).get("handle")
    parts: list[str] = []
    offset: int | None = 0
    while handle and offset is not None:
        page = await client.call_tool("read_result", {"handle": handle, "path": "content.0.text", "offset": offset})
        fields = page.structured_content or {}
        parts.append(str(fields.get("text", "")))
        offset = fields.get("next_offset")
    return bool(handle) and mask("".join(parts)) == mask(measure_text(whole))


def list_children(command: Sequence[str]) -> list[int]:
    """List the processes of servers below the gateway that was started with a command."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                lines[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    tops = {process for process, line in lines.items() if line.startswith(" ".join(command))}
    children = {process for process, parent in parents.items() if parent in tops}
    while grown := {process for process, parent in parents.items() if parent in children} - children:
        children |= grown
    return [process for process in children if " -I -S -c" not in lines.get(process, "")]  # all but its guard


# --- comparing ---


def strip_notes(schema: Any, named: bool = False) -> Any:
    """Return a schema without its descriptions, titles and examples, which the gateway shortens."""
    if isinstance(schema, list):
        return [strip_notes(item) for item in schema]
    if not isinstance(schema, Mapping):
        return " ".join(schema.split()) if isinstance(schema, str) else schema
    notes = () if named else ("description", "title", "examples", "example", "$comment")
    kept = {key: item for key, item in schema.items() if key not in notes}
    return {
        key: strip_notes(item, not named and key in ("properties", "$defs", "definitions"))
        for key, item in kept.items()
    }


def mask(text: str) -> str:
    """Leave numbers, hexadecimal ids and the length of spaces out of a text."""
    return re.sub(r"\s+", " ", re.sub(r"[0-9a-f]{6,}|\d+", "0", text))


def is_same(first: Facts, second: Facts, other: Facts | None) -> bool:
    """Return whether two answers are the same, but for what varies in a second direct answer."""
    if first["error"] != second["error"]:
        return False
    if first["error"] or first["text"] == second["text"]:
        return True
    if other is None or other["text"] == first["text"]:
        return False
    return mask(first["text"]) == mask(second["text"]) or mask(first["text"]) != mask(other["text"])


def compare(direct: Facts, facts: Facts, again: Facts | None) -> dict[str, bool]:
    """Compare what came back on a way with what came back directly. What the server does not offer has no cell."""
    cells: dict[str, bool] = {"tools": facts["tools"] == direct["tools"]}
    for kind in ("resources", "templates", "prompts"):
        if direct[kind]:
            cells[kind] = facts[kind] == direct[kind]
    for kind in ("read", "prompt"):
        if kind in direct:
            cells[kind] = is_same(direct[kind], facts[kind], again and again[kind])
    others = again["calls"] if again else [None] * len(direct["calls"])
    for one, two, three in zip(direct["calls"], facts["calls"], others, strict=True):
        kind = "errors" if one["error"] else "calls"
        cells[kind] = cells.get(kind, True) and is_same(one, two, three)
    for kind in ("progress", "logs"):
        if direct[kind]:
            cells[kind] = bool(facts[kind])
    if facts.get("found"):
        cells["search"] = all(facts["found"].values())
    if "cut" in facts:
        cells["cut"] = facts["cut"]
    if "revived" in facts:
        cells["revived"] = facts["revived"]["error"] == facts["calls"][0]["error"]
    return cells


def list_varied(direct: Facts, again: Facts | None) -> set[str]:
    """List the tools that a server itself defines in another way, or not at all, in a second direct session."""
    first, second = direct["definitions"], again["definitions"] if again else direct["definitions"]
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


def leave_out(facts: Facts, tools: set[str], plan: Plan) -> Facts:
    """Return what came back without what concerns some tools."""
    kept = {**facts, "tools": {name: schema for name, schema in facts["tools"].items() if name not in tools}}
    called = [name not in tools for name, _ in plan.calls]
    kept["calls"] = [answer for answer, is_kept in zip(facts["calls"], called, strict=True) if is_kept]
    if "found" in facts:
        kept["found"] = {name: found for name, found in facts["found"].items() if name not in tools}
    if called and not called[0]:
        kept.pop("revived", None)  # the call after the server was killed is the first of the plan
    return kept


def list_explained(direct: Facts, facts: Facts, again: Facts | None, plan: Plan) -> list[str]:
    """List the cells that are only not the same because the server's own definitions of tools vary."""
    varied = list_varied(direct, again)
    cells = compare(direct, facts, again)
    kept_again = again and leave_out(again, varied, plan)
    others = compare(leave_out(direct, varied, plan), leave_out(facts, varied, plan), kept_again)
    return [key for key, same in cells.items() if varied and not same and others.get(key, True)]


def build_cells(label: str, direct: Facts, facts: Facts, again: Facts | None, plan: Plan) -> dict[str, Any]:
    """Return the part of a row for one way: its cells, and those that the server itself explains, if there are any."""
    explained = list_explained(direct, facts, again, plan)
    return {label: compare(direct, facts, again), **({f"{label} varies": explained} if explained else {})}


async def measure(name: str, server: Mapping[str, Any], folder: Path, proxy: bool) -> dict[str, Any]:
    """Use one server on all ways. Returns its row."""
    spec = str(server.get("npm") or server.get("pypi"))
    row: dict[str, Any] = {"package": spec, "registry": "npm" if "npm" in server else "pypi"}
    try:
        ways = await asyncio.to_thread(build_ways, name, server, folder, proxy)
    except (subprocess.SubprocessError, OSError) as error:
        return {**row, "starts": False, "why": f"not installed: {type(error).__name__}"}
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs" / f"{name}.log").open("w") as errors:
        for kind in ("stdio", "http"):
            if kind in ways:
                row |= await measure_kind(kind, ways, server, errors)
                if not row.get("starts"):
                    return row
    return row


async def add_proxy(name: str, server: Mapping[str, Any], folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Use one server directly and through the proxy only. Returns its row with the proxy's cells."""
    try:
        ways = await asyncio.to_thread(build_ways, name, server, folder, True)
    except (subprocess.SubprocessError, OSError):
        return row
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs" / f"{name}.log").open("a") as errors:
        found = await measure_kind("stdio", {key: ways[key] for key in ("stdio", "proxy")}, server, errors)
    return row | {key: value for key, value in found.items() if key.startswith("proxy")}


async def measure_kind(kind: str, ways: dict[str, Way], server: Mapping[str, Any], errors: TextIO) -> dict[str, Any]:
    """Use one server over one transport."""
    plan, way = Plan(), ways[kind]
    limit = SERVER_SECONDS + CALLS * CALL_SECONDS

    async def run(job: Any) -> Facts:
        if not way.url:
            return dict(await asyncio.wait_for(job, limit))
        async with running_http(way, errors):
            return dict(await asyncio.wait_for(job, limit))

    try:
        direct = await run(observe_directly(way, server, plan, errors))
    except BaseException as error:
        return {"starts" if kind == "stdio" else "http": False, "why": describe(error)}
    row: dict[str, Any] = {}
    if kind == "stdio":
        counts = {key: len(direct[key]) for key in ("tools", "resources", "templates", "prompts")}
        row = {"starts": True, "protocol": direct["protocol"], "counts": counts}
        row["bytes"] = max((len(answer["text"]) for answer in direct["calls"]), default=0)
    jobs = {"gateway" if kind == "stdio" else "http": f"{kind} gateway", "proxy": "proxy"}
    for label, key in jobs.items():
        if key not in ways or (kind == "http" and key == "proxy"):
            continue
        other = ways[key]
        try:
            if isinstance(other, GatewayWay):
                facts = await run(observe_gateway(other, plan, errors, direct))
            else:
                facts = await run(observe_directly(other, server, plan, errors))
            again = None
            if not all(compare(direct, facts, None).values()):
                again = await run(observe_directly(way, server, plan, errors))
            row |= build_cells(label, direct, facts, again, plan)
            if not all(row[label].values()):
                save_difference(errors, label, direct, facts, again, plan)
        except BaseException as error:
            row[label] = {"tools": False}
            row[f"{label} why"] = describe(error)
            errors.write(f"\n== {label}: {error!r}\n")
            if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
                raise
    return row


def save_difference(errors: TextIO, label: str, direct: Facts, facts: Facts, again: Facts | None, plan: Plan) -> None:
    """Write what differs into the server's log, for whoever looks for the cause."""
    shown = {"plan": plan.__dict__, "direct": direct, label: facts, "again": again}
    errors.write(f"\n== {label} differs\n{json.dumps(shown, indent=1, default=str)}\n")


def describe(error: BaseException) -> str:
    """Return the kind of an error, without texts of a server."""
    while getattr(error, "exceptions", ()):
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return "no answer in time" if isinstance(error, (TimeoutError, asyncio.TimeoutError)) else type(error).__name__


async def measure_all(folder: Path, only: Sequence[str], retry: bool, proxy: bool) -> None:
    """Use all servers, two at a time, and keep the rows in the file of results."""
    servers = load_servers(only)
    rows: dict[str, Any] = json.loads(RESULTS.read_text())["servers"] if RESULTS.exists() else {}
    turns = asyncio.Semaphore(AT_ONCE)
    lacking = {name for name in servers if proxy and not only and rows.get(name, {}).get("starts")}
    lacking = {name for name in lacking if "proxy" not in rows[name]}

    async def take_turn(name: str) -> None:
        async with turns:
            if name in lacking:
                rows[name] = await add_proxy(name, servers[name], folder, rows[name])
            else:
                rows[name] = await measure(name, servers[name], folder, proxy)
            print(name, rows[name], file=sys.stderr, flush=True)  # noqa: T201
            order = [known for known in load_servers() if known in rows]
            write_json(RESULTS, {"servers": {known: rows[known] for known in order}, **provenance()})

    wanted = [
        name for name in servers if only or name not in rows or name in lacking or (retry and not rows[name]["starts"])
    ]
    await asyncio.gather(*(take_turn(name) for name in wanted))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the servers are installed")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--retry", action="store_true", help="also those that did not start")
    parser.add_argument("--proxy", action="store_true", help="also through FastMCP's proxy")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    names = [name for name in arguments.only.split(",") if name]
    asyncio.run(measure_all(arguments.folder.resolve(), names, arguments.retry, arguments.proxy))
