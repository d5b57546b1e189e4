"""Servers that begin in an older way, and what they send that the protocol does not have: others use them, so do we."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.quirks import QuirkyWeb
from toolscout.settings import Settings
from toolscout.sources import Reading, mcp
from toolscout.sources.mcp_session import WAYS_FILE

QUIRKS = str(Path(__file__).parents[1] / "servers" / "quirks.py")
pytestmark = pytest.mark.net


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the SDK waits for an answer to `server/discover`; ten seconds otherwise."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.5)


@pytest.fixture
def web(request: pytest.FixtureRequest) -> Iterator[QuirkyWeb]:
    server = QuirkyWeb(request.param)
    yield server
    server.shutdown()
    server.server_close()


def read(folder: Path, entry: dict[str, Any]) -> Reading:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"it": entry}}))
    (reading,) = mcp.read(str(path), name=None, settings=Settings(home=folder / "home", mcp_timeout=20))
    return reading


def quirky(quirk: str, *more: str, **changes: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [QUIRKS, quirk, *more], **changes}


def list_names(reading: Reading) -> list[str]:
    assert reading.state == "ok", reading.message
    return [tool.name for tool in reading.tools]


def test_a_server_that_ends_at_an_unknown_message_gets_a_handshake_and_the_next_time_at_once(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    for n_starts in (2, 3, 4):
        assert list_names(read(tmp_path, quirky("exits", str(starts)))) == ["hello", "bye"]
        assert len(starts.read_text().splitlines()) == n_starts


def test_a_server_that_starts_slowly_and_ends_at_an_unknown_message_gets_a_handshake(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    for n_starts in (2, 3):
        assert list_names(read(tmp_path, quirky("exits-late", str(starts)))) == ["hello", "bye"]
        assert len(starts.read_text().splitlines()) == n_starts


def test_a_server_that_ignores_an_unknown_message_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list_names(read(tmp_path, quirky("ignores"))) == ["hello", "bye"]
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 600)
    assert list_names(read(tmp_path, quirky("ignores"))) == ["hello", "bye"]


def test_a_server_that_starts_too_slowly_to_be_asked_for_its_protocol_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 3)
    starts = tmp_path / "starts"
    for n_starts in (2, 3):
        assert list_names(read(tmp_path, quirky("late", str(starts)))) == ["hello", "bye"]
        assert len(starts.read_text().splitlines()) == n_starts
    assert not (tmp_path / "home" / WAYS_FILE).exists()


def test_what_was_remembered_is_forgotten_when_it_no_longer_works(tmp_path: Path) -> None:
    entry = quirky("exits")
    read(tmp_path, entry)
    file = tmp_path / "home" / WAYS_FILE
    [(digest, way)] = json.loads(file.read_bytes()).items()
    assert way == ["stdio", "legacy"]
    file.write_text(json.dumps({digest: ["sse", "legacy"]}))  # of a transport that the entry cannot have
    assert list_names(read(tmp_path, entry)) == ["hello", "bye"]
    file.write_text("no JSON")
    assert list_names(read(tmp_path, entry)) == ["hello", "bye"]


def test_a_server_that_ends_in_any_case_is_said_to_end(tmp_path: Path) -> None:
    reading = read(tmp_path, {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no database')"]})
    assert reading.state == "error" and "no database" in reading.message


@pytest.mark.parametrize("quirk", ["old", "null-id", "nulls"])
def test_a_server_of_an_older_revision_or_with_nulls_is_read(quirk: str, tmp_path: Path) -> None:
    assert list_names(read(tmp_path, quirky(quirk))) == ["hello", "bye"]


def test_an_entry_names_the_revision(tmp_path: Path) -> None:
    assert read(tmp_path, quirky("names-revision", protocol="2025-03-26")).message.startswith("2025-03-26")
    assert read(tmp_path, quirky("names-revision")).message.startswith("2025-11-25")
    assert not (tmp_path / "home" / WAYS_FILE).exists()
    wrong = read(tmp_path, quirky("names-revision", protocol="2025-12-31"))
    assert wrong.state == "error" and "found '2025-12-31'" in wrong.message and "2025-11-25" in wrong.message


def test_an_entry_that_names_the_handshake_asks_nothing_before_it(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    assert list_names(read(tmp_path, quirky("exits", str(starts), protocol="2025-06-18"))) == ["hello", "bye"]
    assert len(starts.read_text().splitlines()) == 1


@pytest.mark.parametrize("web", ["sse"], indirect=True)
@pytest.mark.parametrize("kind", [None, "http", "sse"])
def test_a_server_of_the_older_transport_is_read_whatever_its_entry_says(
    web: QuirkyWeb, kind: str | None, tmp_path: Path
) -> None:
    entry = {"url": web.address, **({"type": kind} if kind else {})}
    assert list_names(read(tmp_path, entry)) == ["hello", "bye"]
    web.seen.clear()
    assert list_names(read(tmp_path, entry)) == ["hello", "bye"]
    assert web.seen[:2] == ["initialize", "notifications/initialized"], "remembered"


@pytest.mark.parametrize("quirk", ["no-schema", "null-schema"])
def test_a_tool_without_a_schema_takes_no_arguments(quirk: str, tmp_path: Path) -> None:
    reading = read(tmp_path, quirky(quirk))
    assert list_names(reading) == ["hello", "bye"] and not reading.problems
    assert reading.tools[0].parameters == {"type": "object"}


def test_a_list_that_begins_anew_is_kept_as_far_as_it_was_read(tmp_path: Path) -> None:
    reading = read(tmp_path, quirky("same-cursor"))
    assert list_names(reading) == ["hello", "bye"]
    assert reading.problems[0].entry == "list of tools" and "nextCursor" in reading.problems[0].message
