"""What others publish: bundles and entries of a registry. Nothing of it runs before the user trusts it."""

from __future__ import annotations

import hashlib
import json
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests_cli import run
from toolscout.errors import SourceError
from toolscout.scout import Scout
from toolscout.settings import Settings
from toolscout.sources.published import PublishedServer, describe_bundle, prepare, unpack

SERVER = Path(__file__).parents[1] / "servers" / "busy.py"
MANIFEST: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "busy",
    "version": "1.2.0",
    "description": "A server for tests",
    "author": {"name": "Example"},
    "server": {
        "type": "python",
        "entry_point": "server/main.py",
        "mcp_config": {"command": sys.executable, "args": ["${__dirname}/server/main.py"], "env": {}},
    },
}


def make_bundle(path: Path, manifest: dict[str, Any] | None = None, **more: Any) -> Path:
    """A bundle with the server of `tests/servers/busy.py`, and further entries."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest or MANIFEST))
        archive.writestr("server/main.py", SERVER.read_text())
        for name, content in more.items():
            archive.writestr(name, content)
    return path


def add_entry(path: Path, name: str, content: bytes = b"x", mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


# --- bundles ---


@pytest.mark.net
def test_a_bundle_runs_only_after_its_folder_is_trusted(tmp_path: Path) -> None:
    bundle, home = make_bundle(tmp_path / "busy.mcpb"), tmp_path / "home"
    refused = run("--home", str(home), "add", str(bundle))
    assert refused.exit_code == 1
    assert "Nothing of it has run" in refused.output and "main.py" in refused.output
    assert "toolscout trust" in refused.output
    with Scout(home) as scout:
        assert scout.sources() == []
    folder = home / "published" / "busy"
    assert run("--home", str(home), "trust", str(folder)).exit_code == 0
    added = run("--home", str(home), "add", str(bundle))
    assert added.exit_code == 0, added.output
    with Scout(home) as scout:
        assert "busy/echo" in [id for id, _ in scout.store.page(limit=None)]
        [origin] = scout.store.origins()
        assert origin.kind == "mcp" and origin.locator == str(folder / ".mcp.json")
    changed = make_bundle(tmp_path / "busy.mcpb", {**MANIFEST, "version": "1.3.0"})
    again = run("--home", str(home), "add", str(changed))
    assert "Nothing of it has run" in again.output  # trust is for this content only


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("../evil.py", 0),
        ("server/../../evil.py", 0),
        ("/etc/evil", 0),
        ("server\\..\\evil.py", 0),
        ("C:/evil.py", 0),
        ("link", stat.S_IFLNK | 0o777),
        ("device", stat.S_IFCHR | 0o600),
        ("SERVER/Main.py", 0),
    ],
)
def test_a_bundle_cannot_write_outside_its_folder(tmp_path: Path, name: str, mode: int) -> None:
    bundle = add_entry(make_bundle(tmp_path / "evil.mcpb"), name, b"/etc/passwd", mode)
    with pytest.raises(SourceError, match="the bundle holds a"):
        unpack(bundle, tmp_path / "bundles")
    assert not any((tmp_path / "bundles").glob("*")) and not (tmp_path / "evil.py").exists()
    assert not list((tmp_path / "bundles").glob(".*"))


def test_a_zip_bomb_is_refused_before_and_while_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = add_entry(make_bundle(tmp_path / "bomb.mcpb"), "zeros", bytes(30_000_000))
    with pytest.raises(SourceError, match="would unpack to"):
        unpack(honest, tmp_path / "bundles")
    monkeypatch.setattr("toolscout.sources.published.MAX_BUNDLE_BYTES", 1_000_000)
    monkeypatch.setattr("toolscout.sources.published._check_sizes", lambda *_: None)  # a header that lies
    with pytest.raises(SourceError, match="holds more than"):
        unpack(honest, tmp_path / "bundles")
    assert not list((tmp_path / "bundles").iterdir())


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.mcpb"
    path.write_bytes(b"not a zip")
    with pytest.raises(SourceError, match="cannot be unpacked"):
        unpack(path, tmp_path / "bundles")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "no manifest")
    with pytest.raises(SourceError, match="expected manifest.json"):
        prepare(str(path), None, Settings(home=tmp_path / "home"))


def test_values_of_a_bundle_come_from_variables_of_its_own(tmp_path: Path) -> None:
    config = {
        "command": "node",
        "args": ["${__dirname}/x.js", "${user_config.folders}", "--key=${user_config.api_key}"],
        "env": {"LIMIT": "${user_config.limit}", "PLACE": "${HOME}"},
        "platform_overrides": {sys.platform: {"command": "node22"}},
    }
    asked = {
        "api_key": {"type": "string", "required": True, "sensitive": True},
        "limit": {"type": "number", "default": 5},
        "folders": {"type": "directory", "multiple": True, "default": ["/a", "/b"]},
    }
    manifest = {**MANIFEST, "server": {"type": "node", "mcp_config": config}, "user_config": asked}
    folder = unpack(make_bundle(tmp_path / "b.mcpb", manifest), tmp_path / "bundles")
    _, version, entry = describe_bundle(folder, "P_")
    assert version == "1.2.0" and entry["command"] == "node22" and entry["cwd"] == str(folder)
    assert entry["args"] == [f"{folder}/x.js", "/a", "/b", "--key=${P_API_KEY}"]
    assert entry["env"] == {"LIMIT": "${P_LIMIT:-5}", "PLACE": str(Path.home())}
    config["args"] = ["${AWS_SECRET_ACCESS_KEY}"]
    folder = unpack(make_bundle(tmp_path / "c.mcpb", manifest), tmp_path / "bundles")
    with pytest.raises(SourceError, match="may not read"):
        describe_bundle(folder, "P_")


# --- the registry ---


class Registry:
    """An MCP registry on a loopback port, with documents of the official shape."""

    def __init__(self) -> None:
        self.servers: dict[tuple[str, str], dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = self.path.split("/")
                content = registry.files.get(self.path)
                if content is None and parts[1] == "v0.1" and parts[2] == "servers" and parts[4] == "versions":
                    name, version = unquote(parts[3]), unquote(parts[5])
                    versions = [key for key in registry.servers if key[0] == name]
                    key = max(versions, default=("", "")) if version == "latest" else (name, version)
                    if key in registry.servers:
                        meta = {"io.modelcontextprotocol.registry/official": {"status": "active", "isLatest": True}}
                        content = json.dumps({"server": registry.servers[key], "_meta": meta}).encode()
                self.send_response(404 if content is None else 200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(content or b'{"title": "Not Found"}')

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def publish(self, name: str, version: str, **fields: Any) -> None:
        self.servers[name, version] = {
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            "name": name,
            "description": "A server for tests",
            "version": version,
            **fields,
        }


@pytest.fixture
def registry() -> Iterator[Registry]:
    running = Registry()
    yield running
    running.http.shutdown()
    running.http.server_close()


def load_entry(path: Path) -> dict[str, Any]:
    [entry] = json.loads(path.read_text())["mcpServers"].values()
    return dict(entry)


NPM = {
    "registryType": "npm",
    "identifier": "@example/weather",
    "version": "1.2.0",
    "transport": {"type": "stdio"},
    "packageArguments": [
        {"type": "named", "name": "--units", "value": "metric"},
        {"type": "positional", "valueHint": "city", "isRequired": True},
    ],
    "environmentVariables": [
        {"name": "WEATHER_KEY", "isRequired": True, "isSecret": True},
        {"name": "OPTIONAL"},
    ],
}


@pytest.mark.net
def test_a_package_of_the_registry_is_pinned_and_needs_trust(registry: Registry, tmp_path: Path) -> None:
    name = "io.github.example/weather"
    for version in ("1.1.0", "1.2.0"):
        registry.publish(name, version, packages=[{**NPM, "version": version}])
    settings = Settings(home=tmp_path / "home", registry=registry.url)
    with pytest.raises(SourceError) as refused:
        prepare(f"registry:{name}", None, settings)
    message = str(refused.value)
    assert "npx -y @example/weather@1.2.0 --units metric" in message and "Nothing of it has run" in message
    assert "TOOLSCOUT_CREDENTIAL_WEATHER_WEATHER_KEY" in message
    entry = load_entry(tmp_path / "home" / "published" / "weather" / ".mcp.json")
    assert entry["env"] == {"WEATHER_KEY": "${TOOLSCOUT_CREDENTIAL_WEATHER_WEATHER_KEY}"}
    with pytest.raises(SourceError, match=r"@example/weather@1\.1\.0"):
        prepare(f"registry:{name}@1.1.0", None, settings)
    with pytest.raises(SourceError, match="has no server"):
        prepare(f"registry:{name}@9.9.9", None, settings)
    with pytest.raises(SourceError, match="registry:NAMESPACE/NAME"):
        prepare("registry:weather", None, settings)


@pytest.mark.net
def test_a_remote_of_the_registry_is_added_with_its_headers(registry: Registry, tmp_path: Path) -> None:
    remote = {
        "type": "streamable-http",
        "url": "https://{tenant}.example.com/mcp",
        "variables": {"tenant": {"default": "main"}},
        "headers": [
            {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isSecret": True}}},
            {"name": "X-Trace"},
        ],
    }
    registry.publish("com.example/crm", "2.0.0", remotes=[remote], packages=[NPM])
    settings = Settings(home=tmp_path / "home", registry=registry.url)
    entry = load_entry(prepare("registry:com.example/crm", "crm", settings))
    assert entry == {
        "type": "http",
        "url": "https://${TOOLSCOUT_CREDENTIAL_CRM_TENANT:-main}.example.com/mcp",
        "headers": {"Authorization": "Bearer ${TOOLSCOUT_CREDENTIAL_CRM_TOKEN}"},
    }
    with pytest.raises(SourceError, match="npx"):
        prepare("registry:com.example/crm#npm", "crm", settings)
    registry.publish("com.example/thief", "1.0.0", remotes=[{"type": "sse", "url": "https://x.example/${HOME}"}])
    with pytest.raises(SourceError, match="may not name environment variables"):
        prepare("registry:com.example/thief", None, settings)


@pytest.mark.net
def test_a_bundle_of_the_registry_must_be_the_published_one(registry: Registry, tmp_path: Path) -> None:
    content = make_bundle(tmp_path / "b.mcpb").read_bytes()
    registry.files["/b.mcpb"] = content
    package = {"registryType": "mcpb", "identifier": f"{registry.url}/b.mcpb", "transport": {"type": "stdio"}}
    settings = Settings(home=tmp_path / "home", registry=registry.url)
    for digest, words in (
        (hashlib.sha256(content).hexdigest(), "Nothing of it has run"),
        ("0" * 64, "is not the one that was published"),
        (None, "expected fileSha256"),
    ):
        registry.publish("com.example/busy", "1.2.0", packages=[{**package, "fileSha256": digest}])
        with pytest.raises(SourceError, match=words):
            prepare("registry:com.example/busy", None, settings)


@pytest.mark.parametrize(
    "package",
    [
        {"registryType": "npm", "identifier": "x", "version": "latest"},
        {"registryType": "npm", "identifier": "x", "version": "^1.0.0"},
        {"registryType": "npm", "identifier": "--eval=1", "version": "1.0.0"},
        {"registryType": "pypi", "identifier": "x", "version": ""},
        {"registryType": "oci", "identifier": "docker.io/x/y:latest"},
        {"registryType": "nuget", "identifier": "x", "version": "1.0.0"},
    ],
)
def test_packages_without_an_exact_version_are_refused(package: dict[str, Any]) -> None:
    published = PublishedServer({"name": "a/b", "version": "1.0.0", "packages": [package]})
    with pytest.raises(SourceError, match="exact version|can start"):
        published.build_entry("P_")


def test_images_are_run_with_their_variables() -> None:
    package = {
        "registryType": "oci",
        "identifier": "ghcr.io/example/db:3.1.0",
        "runtimeArguments": [{"type": "named", "name": "--network", "value": "none"}],
        "environmentVariables": [{"name": "DSN", "isRequired": True}],
    }
    entry = PublishedServer({"name": "a/db", "version": "3.1.0", "packages": [package]}).build_entry("P_")
    assert entry == {
        "command": "docker",
        "args": ["run", "-i", "--rm", "-e", "DSN", "--network", "none", "ghcr.io/example/db:3.1.0"],
        "env": {"DSN": "${P_DSN}"},
    }
