"""Toolscout's own gateway in a configuration file: it is left out, so that no home reads itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests_cli import run
from toolscout.errors import SourceError
from toolscout.sources.mcp import has_moved, plan_servers
from toolscout.sources.mcp_config import discover

SHOP = {"command": "shop-server"}
OWN = {"command": "toolscout", "args": ["gateway"]}
LEFT_OUT = "toolscout's own gateway is left out"


def write(path: Path, **servers: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def plan(tmp_path: Path, entry: dict[str, Any]) -> list[str]:
    """List the sources of a file with a shop and this entry, for the home `tmp_path / "home"`."""
    return list(
        plan_servers(str(write(tmp_path / "mcp.json", shop=SHOP, toolscout=entry)), None, home=tmp_path / "home")
    )


@pytest.mark.parametrize(
    "entry",
    [
        OWN,
        {"command": "/home/ann/.local/bin/toolscout", "args": ["gateway", "--config", "servers.json"]},
        {"command": "C:\\Users\\ann\\Scripts\\toolscout.exe", "args": ["gateway"]},
        {"command": "uvx", "args": ["--from", "toolscout[mcp]", "toolscout", "gateway", "--discover"]},
        {"command": "uvx", "args": ["toolscout@1.2", "gateway"]},
        {"command": "/usr/bin/python3", "args": ["-m", "toolscout", "gateway"]},
        {"command": "sh", "args": ["-c", "exec toolscout gateway"]},
        {"command": ["toolscout", "gateway"]},
        {"cmd": "toolscout", "args": ["gateway"]},
    ],
)
def test_the_own_gateway_is_left_out_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, entry: dict[str, Any]
) -> None:
    assert plan(tmp_path, entry) == ["shop"]
    assert [record.message for record in caplog.records] == [f"toolscout: {tmp_path / 'mcp.json'}: {LEFT_OUT}"]


@pytest.mark.parametrize(
    "change",
    [
        {"args": ["gateway", "--home", "@"]},
        {"args": ["--home=@", "gateway"]},
        {"env": {"TOOLSCOUT_HOME": "@"}},
        {"command": "sh", "args": ["-c", "toolscout gateway --home @"]},
    ],
)
def test_a_gateway_of_another_home_is_a_server_like_others(tmp_path: Path, change: dict[str, Any]) -> None:
    own, other = (OWN | json.loads(json.dumps(change).replace("@", str(tmp_path / name))) for name in ("home", "work"))
    assert plan(tmp_path, own) == ["shop"]
    assert plan(tmp_path, other) == ["shop", "toolscout"]


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "api", "args": ["gateway"]},
        {"command": "x", "args": ["gateway", "toolscout"]},
        {"command": "toolscout", "args": ["serve"]},
        {"url": "https://tools.example.com/mcp"},
        {"command": 7},
    ],
)
def test_an_entry_that_only_mentions_a_gateway_stays(tmp_path: Path, entry: dict[str, Any]) -> None:
    assert plan(tmp_path, entry) == ["shop", "toolscout"]


def test_the_name_of_the_other_server_does_not_change(tmp_path: Path) -> None:
    path = write(tmp_path / "mcp.json", shop=SHOP, toolscout=OWN)
    assert list(plan_servers(str(path), "work", home=tmp_path)) == ["work"]


def test_a_file_with_nothing_else_is_refused_and_not_discovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / ".cursor/mcp.json", toolscout=OWN)
    with pytest.raises(SourceError, match="only toolscout's own gateway"):
        plan_servers(str(file), None, home=tmp_path)
    assert discover(home=tmp_path, cwd=tmp_path / "nowhere", catalogue=tmp_path / "home") == []
    assert f"{file} was not read" in caplog.text
    write(file, toolscout=OWN, shop=SHOP)
    assert discover(home=tmp_path, cwd=tmp_path / "nowhere", catalogue=tmp_path / "home") == [file]


@pytest.mark.net
def test_sync_keeps_the_tools_of_servers_that_gave_place_to_the_gateway(tmp_path: Path) -> None:
    shop = {"command": sys.executable, "args": [str(Path(__file__).parents[2] / "examples/shop/server.py")]}
    file = write(tmp_path / "mcp.json", shop=shop, second=shop)
    home = ("--home", str(tmp_path / "home"))
    assert "shop: 7 new" in run(*home, "add", str(file)).output
    write(file, shop=shop, second=shop, toolscout=OWN)
    assert "shop: no change (7 tools)" in run(*home, "sync").output
    assert "toolscout" not in run(*home, "list", "--tools").output
    write(file, toolscout=OWN)
    synced = run(*home, "sync")
    assert synced.exit_code == 1 and synced.stderr.count("error:") == 1
    assert f"error: second, shop: {file}: it has only toolscout's own gateway." in synced.stderr
    assert "14 tools in 2 sources" in run(*home, "list").output


@pytest.mark.net
def test_a_copy_of_the_file_takes_the_place_of_the_file_that_gets_the_gateway(tmp_path: Path) -> None:
    shop = {"command": sys.executable, "args": [str(Path(__file__).parents[2] / "examples/shop/server.py")]}
    file = write(tmp_path / ".cursor/mcp.json", shop=shop)
    home = ("--home", str(tmp_path / "home"))
    assert "shop: 7 new" in run(*home, "add", str(file)).output
    copy = write(tmp_path / "servers.json", shop=shop)
    added = run(*home, "add", str(copy))
    assert added.exit_code == 0, added.output
    assert f"shop: no change (7 tools) — shop; now read from {copy}, not from {file}" in " ".join(added.output.split())
    write(file, toolscout=OWN)
    synced = run(*home, "sync")
    assert synced.exit_code == 0 and "shop: no change (7 tools)" in synced.output
    other = write(tmp_path / "other.json", shop=shop | {"args": ["other.py"]})
    refused = run(*home, "add", str(other))
    assert refused.exit_code == 1 and "first run  toolscout remove shop" in refused.output
    assert "toolscout sync" not in refused.output  # a sync cannot help: the name is taken
    assert "shop: no change" in run(*home, "sync").output


@pytest.mark.parametrize("old", [None, {"toolscout": OWN}, {"shop": SHOP, "news": SHOP}, {}])
def test_a_server_has_moved_if_its_file_lacks_it_or_has_the_same_entry(
    tmp_path: Path, old: dict[str, Any] | None
) -> None:
    file, new = tmp_path / "mcp.json", write(tmp_path / "servers.json", shop=SHOP)
    if old is not None:
        write(file, **old)
    assert has_moved("shop", str(file), str(new), None)
    assert not has_moved("shop", "https://tools.example.com/mcp", str(new), None)
    assert not has_moved("shop", str(file), "uvx shop-server", None)


@pytest.mark.parametrize("text", ['{"mcpServers": {"shop": {"command": "other"}}}', '{"mcpServers": '])
def test_a_server_has_not_moved_if_its_file_has_another_entry_or_cannot_be_read(tmp_path: Path, text: str) -> None:
    file, new = tmp_path / "mcp.json", write(tmp_path / "servers.json", shop=SHOP)
    file.write_text(text)
    assert not has_moved("shop", str(file), str(new), None)
