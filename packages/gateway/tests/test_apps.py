"""MCP Apps behind the gateway: pages of tools pass, kept apart by server, and wait for approval when they change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.extension import advertise
from mcp.shared.exceptions import MCPError

from gateway.tests.conftest import SERVERS, open_agent

UI, UI_TYPE = "io.modelcontextprotocol/ui", "text/html;profile=mcp-app"
RAW = "ui://clock/app.html"
PAGES = {name: f"ui://toolscout/{name}/ui%3A%2F%2Fclock%2Fapp.html" for name in ("ann", "bob")}


def entries(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    made = {}
    for name in PAGES:
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(changes if name == "bob" else {}), encoding="utf-8")
        made[name] = {"command": sys.executable, "args": [str(SERVERS / "apps.py"), name, str(file)]}
    return made


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_a_page_survives_listing_pinning_and_calls_apart_from_those_of_others(
    tmp_path: Path, mode: str, revision: str
) -> None:
    servers = {name: {**entry, "protocol": revision} for name, entry in entries(tmp_path).items()}
    shows = [advertise(UI, {"mimeTypes": [UI_TYPE]})]

    async def main() -> None:
        async with (
            open_agent(tmp_path, servers, pins=("bob/get_time",)) as agent,
            Client(agent.gateway.server, mode=mode, extensions=shows) as app,
            Client(agent.gateway.server, mode=mode) as plain,
        ):
            said = app.server_capabilities.extensions or {}
            assert (UI in said) == (mode == "auto"), "older protocols have no place for it"
            listed = {each.uri: each for each in (await app.list_resources()).resources}
            assert set(listed) == set(PAGES.values())
            assert listed[PAGES["ann"]].mime_type == UI_TYPE
            assert listed[PAGES["ann"]].meta == {"ui": {"csp": {"connectDomains": ["https://clock.example"]}}}
            [pinned] = [each for each in (await app.list_tools()).tools if each.name == "bob_get_time"]
            assert pinned.meta == {"ui": {"resourceUri": PAGES["bob"]}}
            for name in PAGES:
                called = await app.call_tool("call_tool", {"id": f"{name}/get_time", "arguments": {}})
                assert called.meta is not None and called.meta["ui"] == {"resourceUri": PAGES[name]}
                assert called.content[0].text == f"{name}: page"  # type: ignore[union-attr]
                [read] = (await app.read_resource(called.meta["ui"]["resourceUri"])).contents
                assert (read.uri, read.text) == (PAGES[name], f"<html>{name}</html>")  # type: ignore[union-attr]
            words = await plain.call_tool("call_tool", {"id": "ann/get_time", "arguments": {}})
            expected = "words" if revision == "2026-07-28" else "page"  # older servers hear it once for all callers
            assert words.content[0].text == f"ann: {expected}"  # type: ignore[union-attr]
            with pytest.raises(MCPError, match="not found"):
                await app.read_resource(RAW)  # both servers have it

    anyio.run(main)


@pytest.mark.parametrize(("change", "waits"), [
    ({"csp": ["https://evil.example"]}, "bob/resource:ui://clock/app.html"),
    ({"uri": "ui://clock/other.html"}, "bob/get_time"),
])  # fmt: skip
def test_a_page_that_changes_waits_for_approval(tmp_path: Path, change: dict[str, Any], waits: str) -> None:
    async def main(**changes: Any) -> None:
        async with open_agent(tmp_path, entries(tmp_path, **changes)) as agent:
            called = [await agent.call(f"{name}/get_time") for name in ("ann", "bob")][1]
            pages = {each.uri for each in (await agent.client.list_resources()).resources}
            if not changes:
                assert not called.is_error and PAGES["bob"] in pages
                return
            assert waits in [each.id for each in agent.gateway.scout.waiting()]
            assert PAGES["bob"] not in pages and PAGES["ann"] in pages
            assert called.is_error == (waits == "bob/get_time")
            if waits.startswith("bob/resource:"):
                with pytest.raises(MCPError, match="waits for approval"):
                    await agent.client.read_resource(PAGES["bob"])

    anyio.run(main)
    anyio.run(lambda: main(**change))


def test_a_tool_for_apps_alone_is_reached_by_its_name_and_shown_to_no_model(tmp_path: Path) -> None:
    code = 'print(call("bob/wind", {"turns": 1}))'

    async def main() -> None:
        servers = {"bob": entries(tmp_path)["bob"]}
        async with open_agent(tmp_path, servers, pins=("bob/wind", "bob/get_time"), run_code=True) as agent:
            [result] = (await agent.search("wind the spring of the clock", limit=10))["results"]
            assert [tool["id"] for tool in result["tools"]] == ["bob/get_time"]
            described = (await agent.use("describe_tools", ids=["bob/wind"])).structured_content
            assert not described["tools"] and "bob/wind" in described["missing"]
            assert "bob_wind" not in [tool.name for tool in (await agent.client.list_tools()).tools]
            for id in ("bob/wind", "wind", "bob_wind"):
                assert (await agent.call(id, turns=2)).is_error
            assert "turns" not in str((await agent.use("run_code", code=code)).content)
            for name in ("wind", "bob/wind"):
                called = await agent.client.call_tool(name, {"turns": 3})
                assert not called.is_error and called.content[0].text == "bob: 3 turns"
            [*_, event] = agent.events("call")
            assert event["tool"] == "bob/wind" and event["ok"]
            assert agent.gateway.scout.sources()[0].tools == 2, "it is kept"

    anyio.run(main)
