"""Hostile OpenAPI documents: whatever they hold and however they are served, the process lives and says one sentence.

What only needs to be read is read in one child process, under limits of the kernel: a document that ends it is named.
"""

from __future__ import annotations

import gzip
import json
import socketserver
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources import openapi
from toolscout.sources.addresses import LimitedBody, UnsupportedEncoding
from toolscout.sources.documents import MAX_REFERENCE_STEPS

pytestmark = pytest.mark.attack

HEAD = "openapi: 3.0.0\ninfo: {title: Bomb}\n"
GOOD = "paths: {/a: {get: {operationId: a}}}\n"
DEEP, MANY = "nests deeper than 200 levels", "more than 2,000,000 values"


def document(**more: Any) -> dict[str, Any]:
    return {"openapi": "3.0.0", "info": {"title": "Bomb"}, "paths": {"/a": {"get": {"operationId": "a"}}}, **more}


def as_json(**more: Any) -> str:
    return json.dumps(document(**more))


def body_of(schema: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"/a": {"post": {"operationId": "a", "requestBody": {"required": True, "content": content}}}}


def doubling_pointers() -> str:
    """References inside pointers: each step of one resolves the one before it, several times."""
    refs: dict[str, Any] = {"a0": {"p": {"$ref": "#/x/b0"}, "k": {"$ref": "#/x/a1"}}, "b0": {"$ref": "#/x/a0"}}
    for n in range(1, 18):
        refs[f"a{n}"] = {"p": {"$ref": f"#/x/b{n}"}, "k": {"$ref": f"#/x/a{n + 1}"}}
        refs[f"b{n}"] = {"$ref": f"#/x/a{n - 1}" + "/p" * 4 + "/k"}
    return as_json(x=refs, paths={"/a": {"get": {"parameters": [{"$ref": "#/x/b17"}]}}, "/b": {"get": {}}})


def wide_schema(operations: int) -> str:
    """Every operation wraps the same large schema anew, so that none is remembered."""
    big = {"type": "object", "properties": {f"p{n}": {"$ref": "#/x/deep"} for n in range(300)}}
    deep: Any = {"type": "string", "description": "d" * 150}
    for _ in range(6):
        deep = {"type": "object", "properties": {"a": deep, "b": deep}}
    paths = {f"/{n}": body_of({"allOf": [{"$ref": "#/x/big"}]})["/a"] for n in range(operations)}
    return as_json(x={"big": big, "deep": deep}, paths=paths)


def laughs(levels: int) -> str:
    return "x0: &x0 [lol]\n" + "".join(
        f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, levels)
    )  # fmt: skip


def merging(levels: int) -> str:
    """`<<` of the object before, ten times over, so that a loader that copies copies exponentially."""
    return "x0: &x0 {a: 1, b: 2}\n" + "".join(
        f"x{n}: &x{n}\n  <<: [{', '.join([f'*x{n - 1}'] * 10)}]\n  k{n}: 1\n" for n in range(1, levels)
    )


class Bomb(NamedTuple):
    """A document, and what must be said of it; nothing: it is read, with one tool or more."""

    build: Callable[[], str | bytes]
    message: str = ""
    suffix: str = ".yaml"


BOMBS: dict[str, Bomb] = {
    "flow lists, closed": Bomb(lambda: HEAD + "paths: " + "[" * 60_000 + "]" * 60_000, DEEP),
    "flow objects, open": Bomb(lambda: "{a: " * 30_000, DEEP),
    "flow lists, open": Bomb(lambda: "[" * 1_000_000, DEEP),
    "block lists on one line": Bomb(lambda: HEAD + "x:\n  " + "- " * 50_000 + "a\n" + GOOD, DEEP),
    "block objects, indented": Bomb(lambda: "\n".join(" " * n + f"k{n}:" for n in range(2_000)), DEEP),
    "explicit keys": Bomb(lambda: "? " * 50_000 + "a", "neither|nests deeper"),
    "anchors at each level": Bomb(lambda: "".join(f"&a{n} [" for n in range(50_000)), DEEP),
    "tags at each level": Bomb(lambda: "!!seq [" * 50_000, DEEP),
    "aliases that add up in depth": Bomb(
        lambda: "x0: &x0 [a]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}]\n" for n in range(1, 500)) + HEAD + GOOD, DEEP
    ),
    "a billion laughs": Bomb(lambda: HEAD + laughs(12) + GOOD, MANY),
    "a few laughs": Bomb(lambda: HEAD + laughs(4) + GOOD),
    "a long text behind aliases": Bomb(
        lambda: HEAD + f"x: &x {'t' * 1_000_000}\ny: [{', '.join(['*x'] * 1_000)}]\n" + GOOD, MANY
    ),
    "merge keys": Bomb(lambda: HEAD + merging(12) + GOOD, MANY),
    "merge of no object": Bomb(lambda: HEAD + "x: {<<: [1]}\n" + GOOD, "merge"),
    "a value inside itself": Bomb(lambda: HEAD + "x: &x {y: [*x]}\n" + GOOD, "contains itself"),
    "an alias of nothing": Bomb(lambda: HEAD + "x: *nobody\n" + GOOD, "no value before it"),
    "one anchor twice": Bomb(lambda: HEAD + "x: &x 1\ny: &x 2\nz: *x\n" + GOOD),
    "python objects": Bomb(lambda: HEAD + "x: !!python/object/apply:os.abort []\n" + GOOD, "not known"),
    "python names": Bomb(lambda: HEAD + "x: !!python/name:os.abort\n" + GOOD, "not known"),
    "a tag of its own": Bomb(lambda: HEAD + "x: !evil {a: 1}\n" + GOOD, "not known"),
    "many tag directives": Bomb(
        lambda: "".join(f"%TAG !a{n}! x\n" for n in range(100_000)) + "---\n" + HEAD + GOOD, "%TAG"
    ),
    "two documents": Bomb(lambda: HEAD + GOOD + "---\n" + HEAD + GOOD, "neither"),
    "a list as a key": Bomb(lambda: HEAD + "? [a]\n: 1\n" + GOOD, "neither"),
    "huge numbers": Bomb(lambda: HEAD + f"x: {'9' * 100_000}\ny: 0x{'f' * 100_000}\nz: 1{':59' * 50_000}\n" + GOOD),
    "numbers that are none": Bomb(lambda: HEAD + "x: [.nan, .inf, -.inf, 1e999999, 1_0_0]\n" + GOOD),
    "numbers too large for JSON": Bomb(
        lambda: as_json(x=1)[:-1] + f', "y": {"9" * 9_999}}}', "expected JSON", ".json"
    ),
    "NaN in JSON": Bomb(lambda: as_json(x=float("nan")), "expected JSON", ".json"),
    "deep JSON": Bomb(lambda: '{"a":' * 100_000, "expected JSON", ".json"),
    "JSON somewhat deep": Bomb(lambda: as_json()[:-1] + ', "x": ' + "[" * 500 + "]" * 500 + "}", DEEP, ".json"),
    "many values of JSON": Bomb(lambda: as_json()[:-1] + ', "x": [' + "[]," * 2_100_000 + "[]]}", MANY, ".json"),
    "commas in JSON texts": Bomb(lambda: as_json(x=",[{" * 1_000_000), "", ".json"),
    "comments that do not end": Bomb(lambda: "{" + "/*" * 900_000, "expected JSON", ".json"),
    "quotes that do not end": Bomb(lambda: '{"' + '\\"' * 900_000 + "\\", "expected JSON", ".json"),
    "a long text": Bomb(lambda: HEAD + "x: " + "t" * 20_000_000 + "\n" + GOOD),
    "many empty lines": Bomb(lambda: HEAD + "\n" * 5_000_000 + GOOD),
    "invalid UTF-8": Bomb(lambda: HEAD.encode() + b"x: \xc3\x28\n" + GOOD.encode(), "UTF-8"),
    "UTF-16": Bomb(lambda: (HEAD + GOOD).encode("utf-16"), "UTF-8"),
    "a byte order mark": Bomb(lambda: b"\xef\xbb\xbf" + (HEAD + GOOD).encode()),
    "control characters": Bomb(lambda: HEAD + "x: \x00\x1b[2J\n" + GOOD, "neither"),
    "lone surrogates": Bomb(lambda: HEAD + 'x: "\\ud800"\n' + GOOD, "neither|^$"),
    "nothing": Bomb(lambda: "", "expected an OpenAPI document"),
    "references in a circle": Bomb(
        lambda: as_json(x={"a": {"$ref": "#/x/b"}, "b": {"$ref": "#/x/a"}}, paths={"/a": {"$ref": "#/x/a"}}), "circle"
    ),
    "a long chain of references": Bomb(
        lambda: as_json(
            x={f"r{n}": {"$ref": f"#/x/r{n + 1}"} for n in range(5_000)}, paths={"/a": {"$ref": "#/x/r0"}}
        ),
        "within 64 steps",
    ),
    "references that double": Bomb(doubling_pointers, "takes too long"),
    "a pointer of a million names": Bomb(
        lambda: as_json(paths={"/a": {"$ref": "#" + "/x" * 1_000_000}}), "takes too long"
    ),
    "a schema inside itself": Bomb(
        lambda: as_json(
            components={"schemas": {"N": {"properties": {"n": {"$ref": "#/components/schemas/N"}}}}},
            paths=body_of({"$ref": "#/components/schemas/N"}),
        )
    ),
    "a reference to a secret file": Bomb(
        lambda: as_json(paths={"/a": {"$ref": "/etc/passwd"}}), "absolute path"
    ),
    "texts as everything": Bomb(lambda: as_json(paths="x", servers="y", components=1), "at least one usable"),
    "too many operations": Bomb(
        lambda: as_json(paths={f"/{n}": {"get": {}, "put": {}} for n in range(10_100)}), "at most 20,000 operations"
    ),
    "a shared list of many tags": Bomb(
        lambda: as_json(x={"get": {"tags": ["t"] * 200_000, "security": [{"s": []}] * 200_000}}, paths={
            f"/{n}": {"$ref": "#/x"} for n in range(300)
        }),
    ),
    "too many parameters": Bomb(
        lambda: as_json(paths={"/a": {"get": {"parameters": [{"name": "n", "in": "query"}] * 1_001}}}), "parameters"
    ),
    "a compressed file": Bomb(lambda: gzip.compress(b'{"a":"' + b"x" * 9_000_000 + b'"}'), "binary"),
    "tags on one value": Bomb(lambda: "x: " + "!!str " * 50_000 + "a", "neither"),
    "ten megabytes of a comment": Bomb(lambda: "#" * 10_000_000 + "\n" + HEAD + GOOD),
    "many documents": Bomb(lambda: "---\na: 1\n" * 50_000, "second document"),
    "a number as a key": Bomb(lambda: HEAD + "? " + "9" * 6_000 + "\n: 1\n" + GOOD),
    "texts broken by backslashes": Bomb(lambda: HEAD + 'x: "' + "\\\n" * 200_000 + '"\n' + GOOD),
    "a date that is none": Bomb(lambda: HEAD + "x: 9999-99-99\n2023-13-45: 1\n" + GOOD),
    "names that lead elsewhere": Bomb(
        lambda: as_json(paths={f"/{n}": {"get": {"operationId": name}} for n, name in enumerate(
            ["../../x", "a/b", "\u202e", "", ".", "..", "x\ny", "%2e", "-rf", "--home", "a\0b"]
        )})
    ),
    "a name of a million characters": Bomb(lambda: as_json(paths={"/a": {"get": {"operationId": "a" * 1_000_000}}})),
    "a path of a million characters": Bomb(lambda: as_json(paths={"/" + "a" * 1_000_000: {"get": {}}}), "5,000"),
    "holes in a path": Bomb(lambda: as_json(paths={"/" + "{a" * 2_000: {"get": {}}})),
}  # fmt: skip
HEAVY_BOMBS: dict[str, Bomb] = {
    "a million operations": Bomb(
        lambda: as_json(paths={f"/{n}": {"get": 1} for n in range(1_000_000)}), MANY + "|at most|usable", ".json"
    ),
    "many values of YAML": Bomb(lambda: HEAD + "x:\n" + "- a\n" * 2_100_000 + GOOD, MANY),
    "fifty megabytes": Bomb(lambda: HEAD + "x: " + "t" * 50_000_000 + "\n" + GOOD, "at most 50 MB|more than"),
    "a schema that every operation writes out": Bomb(lambda: wide_schema(19_000), "too large|larger than"),
    "references that double, to the end": Bomb(doubling_pointers, "takes too long"),
    "a long description that every operation shares": Bomb(
        lambda: as_json(
            x={"get": {"description": "d" * 900_000}}, paths={f"/{n}": {"$ref": "#/x"} for n in range(1_000)}
        ),
        "larger than",
    ),
}

CHILD = """
import json, resource, sys
from pathlib import Path
from toolscout.settings import Settings
from toolscout.errors import SourceError
from toolscout.sources import documents, openapi
documents.MAX_REFERENCE_STEPS = int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        [reading] = openapi.read(str(path), name="bomb", settings=Settings())
        answer = "", len(reading.tools)
    except SourceError as error:
        answer = str(error)[:1000] or "no message", 0
    print(json.dumps([path.stem, *answer]), flush=True)
"""


def read_in_a_child(bombs: dict[str, Bomb], folder: Path, *limits: int) -> dict[str, Any]:
    """Name of a bomb → (message or nothing, number of tools); what ended the child is not there.

    `limits`: bytes of memory, seconds of processor time, steps that references may take.
    """
    for name, bomb in bombs.items():
        content = bomb.build()
        content = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        (folder / f"{name}{bomb.suffix}").write_bytes(content)
    command = [sys.executable, "-c", CHILD, str(folder), *map(str, limits)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answers = {name: answer for name, *answer in map(json.loads, done.stdout.splitlines())}
    return {"child": (done.returncode, done.stderr[-2000:]), **answers}


def check(answers: dict[str, Any], name: str, bomb: Bomb) -> None:
    import re

    assert name in answers, f"the child ended before it had an answer: {answers['child']}"
    message, tools = answers[name]
    assert re.search(bomb.message, message) if bomb.message else not message, message
    assert "\n" not in message and "Traceback" not in message
    assert bool(message) != bool(tools)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return read_in_a_child(BOMBS, tmp_path_factory.mktemp("bombs"), 2 << 30, 120, 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_one_sentence_or_is_read(answers: dict[str, Any], name: str) -> None:
    check(answers, name, BOMBS[name])


def test_the_process_that_read_all_bombs_lived(answers: dict[str, Any]) -> None:
    assert answers["child"][0] == 0, answers["child"]


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", HEAVY_BOMBS)
def test_a_heavy_bomb_is_one_sentence(tmp_path: Path, name: str) -> None:
    check(
        read_in_a_child({name: HEAVY_BOMBS[name]}, tmp_path, 4 << 30, 120, MAX_REFERENCE_STEPS),
        name,
        HEAVY_BOMBS[name],
    )


def test_writing_schemas_out_is_bounded_by_the_size_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout.sources.openapi.schemas.MIN_EXPANSION_CHARS", 100_000)
    small, large = wide_schema(4), wide_schema(4)[:-1] + f', "y": "{"t" * 1_000_000}"}}'
    (tmp_path / "small.json").write_text(small)
    with pytest.raises(SourceError, match="its schemas are too large once"):
        openapi.read(str(tmp_path / "small.json"), name=None, settings=Settings())
    (tmp_path / "large.json").write_text(large)
    [reading] = openapi.read(str(tmp_path / "large.json"), name=None, settings=Settings())
    assert len(reading.tools) == 4


# --- what is compressed -----------------------------------------------------------------------------------------------

ZEROS = b"\0" * 20_000_000
SENT_PACKED = {
    "gzip": gzip.compress(ZEROS),
    "br": b"\x8b\x03\x80",
    "zstd": b"\x28\xb5\x2f\xfd",
    "gzip, gzip": gzip.compress(gzip.compress(ZEROS)),
}
DEFLATE = zlib.compressobj(wbits=-15)
PACKED = {
    "gzip": gzip.compress(ZEROS),
    "x-gzip": gzip.compress(ZEROS),
    "GZIP": gzip.compress(ZEROS),
    "deflate": zlib.compress(ZEROS),
    "deflate ": DEFLATE.compress(ZEROS) + DEFLATE.flush(),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_what_is_decoded_is_counted_as_it_is_produced(encoding: str) -> None:
    body = LimitedBody(encoding, 100_000)
    produced: list[int] = []
    inner = body._decoder
    assert inner is not None

    class Counted:
        def decompress(self, chunk: bytes, most: int) -> bytes:
            piece = inner.decompress(chunk, most)
            produced.append(len(piece))
            return piece

        eof = False

    body._decoder = Counted()  # type: ignore[assignment]
    wanted = [body.feed(PACKED[encoding][start : start + 1000]) for start in range(0, 5_000, 1000)]
    assert body.is_cut and not wanted[-1] and len(body.content) == 100_000
    assert sum(produced) <= 101_000 or encoding == "deflate "


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip,deflate", "identity, br", "x"])
def test_an_encoding_that_cannot_be_counted_is_refused_unread(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding, match="not asked for"):
        LimitedBody(encoding, 100)


@pytest.mark.parametrize("encoding", ["deflate", "deflate "])
def test_a_body_of_deflate_is_the_same_however_it_is_cut(encoding: str) -> None:
    body = LimitedBody(encoding, 2_000_000)
    packed = PACKED[encoding]
    for piece in (packed[:1], packed[1:2], packed[2:]):
        body.feed(piece)
    assert bytes(body.content) == ZEROS[:2_000_000]


def test_a_damaged_encoding_is_refused() -> None:
    with pytest.raises(UnsupportedEncoding, match="damaged"):
        LimitedBody("gzip", 100).feed(b"no gzip at all")


# --- how it is served -------------------------------------------------------------------------------------------------


class Hostile(ThreadingHTTPServer):
    """A server whose every path misbehaves in its own way, and a second one that nobody may reach."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Misbehave)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.gone = threading.Event()
        self.served: list[str] = []
        self.accepts: list[str | None] = []
        self.sink: Sink

    def handle_error(self, request: object, address: object) -> None:
        pass


class Sink(socketserver.ThreadingTCPServer):
    """Counts who connects."""

    daemon_threads = True

    def __init__(self) -> None:
        self.connections = 0
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        self.shutdown_request(request)


class Misbehave(BaseHTTPRequestHandler):
    server: Hostile
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.served.append(self.path)
        self.server.accepts.append(self.headers.get("accept-encoding"))
        sink, name = self.server.sink.port, unquote(self.path.partition("?")[0]).strip("/").removesuffix(".json")
        targets = {
            "to-sink": f"http://127.0.0.1:{sink}/x.json",
            "to-localhost": f"http://localhost:{sink}/x.json",
            "to-decimal": f"http://2130706433:{sink}/x.json",
            "to-octal": f"http://0177.0.0.1:{sink}/x.json",
            "to-short": f"http://127.1:{sink}/x.json",
            "to-mapped": f"http://[::ffff:127.0.0.1]:{sink}/x.json",
            "to-any": f"http://0.0.0.0:{sink}/x.json",
            "to-metadata": "http://169.254.169.254/latest/meta-data/x.json",
            "to-private": "http://10.0.0.1/x.json",
            "to-file": "file:///etc/passwd",
            "to-itself": self.path,
            "to-the-next": f"/to-the-next.json?{len(self.server.served)}",
        }
        if name in targets:
            self.reply(302, b"", location=targets[name])
        elif name in SENT_PACKED:
            self.reply(200, SENT_PACKED[name], **{"content-encoding": name})
        elif name == "refers":
            refs = [f"http://127.0.0.1:{sink}/p.json", "/to-sink.json", "//127.0.0.1/p.json", "file:///etc/passwd"]
            paths = {f"/{n}": {"get": {"parameters": [{"$ref": f"{ref}#/p"}]}} for n, ref in enumerate(refs)}
            self.reply(200, json.dumps(document(paths={**paths, "/good": {"get": {}}})).encode())
        elif name == "endless":
            self.send_response(200)
            self.end_headers()
            while not self.server.gone.is_set():
                self.wfile.write(b" " * 65_536)
        else:
            self.drip(name)

    def reply(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def drip(self, name: str) -> None:
        """A little now and then, for ever: each read is in time, and the whole never comes."""
        start, little = {
            "drip-body": (b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b" "),
            "drip-headers": (b"HTTP/1.1 200 OK\r\n", b"x-more: y\r\n"),
            "drip-continue": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        }[name]
        self.wfile.write(start)
        while not self.server.gone.wait(0.02):
            self.wfile.write(little)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Hostile() as server, Sink() as sink:
        server.sink = sink
        threads = [
            threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.01}) for each in (server, sink)
        ]
        for thread in threads:
            thread.start()
        yield server
        server.gone.set()
        for each in (server, sink):
            each.shutdown()
        for thread in threads:
            thread.join()


PRIVATE = "has a private address"
SERVED = {
    **dict.fromkeys(("to-sink", "to-localhost", "to-decimal", "to-octal", "to-short", "to-mapped", "to-any"), PRIVATE),
    **dict.fromkeys(("to-metadata", "to-private"), PRIVATE),
    "to-octal": "has a private address|Invalid IPv4",
    "to-file": "expected a readable document",
    "to-itself": "redirects",
    "to-the-next": "redirects",
    "gzip": "at most",
    "br": "not asked for",
    "zstd": "not asked for",
    "gzip, gzip": "not asked for",
    "endless": "at most",
    "drip-body": "expected an answer within",
    "drip-headers": "expected an answer within",
    "drip-continue": "expected an answer within",
}


@pytest.mark.net
@pytest.mark.parametrize("name", SERVED)
def test_a_server_that_misbehaves_is_one_sentence_and_leads_nowhere(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("toolscout.sources.documents.MAX_DOCUMENT_BYTES", 1_000_000)
    if name.startswith("drip"):  # each read is in time, and the whole is not
        monkeypatch.setattr("toolscout.sources.documents.TOTAL_TIMEOUTS", 0.05)
    with pytest.raises(SourceError, match=SERVED[name]) as error:
        openapi.read(f"{hostile.url}/{name}.json", name=None, settings=Settings(http_timeout=10))
    assert "\n" not in str(error.value)
    assert hostile.sink.connections == 0
    assert set(hostile.accepts) == {"identity"}


@pytest.mark.net
def test_references_of_a_remote_document_reach_nobody_else(hostile: Hostile) -> None:
    [reading] = openapi.read(f"{hostile.url}/refers.json", name=None, settings=Settings(http_timeout=5))
    assert len(reading.tools) == 5 and len(reading.problems) == 4
    assert not any(tool.parameters and tool.parameters["properties"] for tool in reading.tools)
    assert hostile.sink.connections == 0
