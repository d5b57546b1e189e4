"""Skills and agents: read from folders and cards, found beside tools, told apart in every face, never called."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from gateway.tests.conftest import open_agent
from tests_cli import run
from toolscout.errors import SourceError
from toolscout.scout import Scout
from toolscout.settings import Settings
from toolscout.sources import detect, read
from toolscout.types import Tool, keep_kind

SKILL = """---
name: quarterly-report
description: Writes the quarterly report of a sales team.
when_to_use: somebody asks for figures of a quarter as a document
tags: [reports]
---
# Steps

1. Read the figures.
2. Write the report.
"""
CARD = {
    "protocolVersion": "0.3.0",
    "name": "Travel desk",
    "description": "Plans and books business trips.",
    "url": "https://agents.example.com/travel",
    "version": "2.1.0",
    "capabilities": {"streaming": True},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "provider": {"organization": "Example", "url": "https://example.com"},
    "skills": [
        {"id": "book", "name": "Book a hotel", "description": "Reserves a hotel room.", "tags": ["hotel"]},
        {"id": "rail", "name": "Find trains", "description": "Searches railway connections.", "tags": ["rail"]},
    ],
}


def make_skill(folder: Path, text: str = SKILL, name: str = "report") -> Path:
    skill = folder / "skills" / name
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(text, encoding="utf-8")
    (skill / "scripts" / "plot.py").write_text("raise SystemExit('nobody runs this')")
    return folder / "skills"


def make_card(folder: Path) -> Path:
    path = folder / "travel.json"
    path.write_text(json.dumps(CARD))
    return path


def read_one(locator: Path) -> Tool:
    [reading] = read(str(locator), settings=Settings())
    assert not reading.problems
    [tool] = reading.tools
    return tool


def test_a_folder_of_skills_is_recognised_and_read(tmp_path: Path) -> None:
    folder = make_skill(tmp_path)
    assert detect(str(folder)) == detect(str(folder / "report")) == "skills"
    skill = read_one(folder)
    assert (skill.id, skill.kind, skill.callable) == ("skills/quarterly-report", "skill", False)
    assert skill.description.endswith("Use it when: somebody asks for figures of a quarter as a document")
    assert skill.meta["instructions"].startswith("# Steps") and skill.meta["files"] == ["scripts/plot.py"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# no fields", "expected name and description"),
        ("---\nname: x\n---\ntext", 'expected "description"'),
        ("---\n- a\n---\ntext", "expected fields"),
        ("---\nname: [\n---\ntext", "SKILL.md"),
        ("---\ndescription: " + "x" * 1_000_001 + "\n---\n", "1,000,000 bytes"),
    ],
)
def test_a_bad_skill_is_named_and_the_others_are_read(tmp_path: Path, text: str, words: str) -> None:
    folder = make_skill(tmp_path)
    make_skill(tmp_path, text, "bad")
    [reading] = read(str(folder), settings=Settings())
    assert [tool.name for tool in reading.tools] == ["quarterly-report"]
    [problem] = reading.problems
    assert problem.entry == "bad" and words in problem.message


def test_links_out_of_a_folder_of_skills_are_not_followed(tmp_path: Path) -> None:
    folder = make_skill(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "SKILL.md").write_text(SKILL)
    (folder / "linked").symlink_to(outside)
    (folder / "half").mkdir()
    (folder / "half" / "SKILL.md").symlink_to(outside / "SKILL.md")
    [reading] = read(str(folder), settings=Settings())
    assert len(reading.tools) == 1 and [problem.entry for problem in reading.problems] == ["half"]


def test_a_folder_without_skills_is_none(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="corpus.jsonl or SKILL.md"):
        detect(str(tmp_path))


def test_an_agent_card_is_read_with_its_skills(tmp_path: Path) -> None:
    path = make_card(tmp_path)
    assert detect(str(path)) == "agents" == detect("https://example.com/.well-known/agent-card.json")
    agent = read_one(path)
    assert (agent.id, agent.kind, agent.callable) == ("Travel-desk/Travel desk", "agent", False)
    assert "Reserves a hotel room." in agent.description and agent.tags == ("hotel", "rail")
    assert agent.meta["url"] == CARD["url"]


def test_a_document_that_is_no_card_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text('{"name": "x", "skills": "none"}')
    with pytest.raises(SourceError, match="expected an A2A agent card"):
        read(str(path), kind="agents", settings=Settings())


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    with Scout(home) as scout:
        scout.add(make_skill(tmp_path))
        scout.add(make_card(tmp_path))
        scout.add([{"name": "book_room", "description": "Books a hotel room.", "parameters": {}}], name="desk")
    return home


def test_the_kind_filters_in_python_and_on_the_command_line(filled: Path) -> None:
    query = "book a hotel room, or write the report of a quarter"
    with Scout(filled) as scout:
        kinds = {hit.tool.kind for hit in scout.search(query, 10).hits if hit.tool}
        assert kinds == {"tool", "skill", "agent"}
        for kind in ("tool", "skill", "agent"):
            hits = scout.search(query, 10, visible=keep_kind(kind)).hits  # type: ignore[arg-type]
            assert hits and {hit.tool.kind for hit in hits if hit.tool} == {kind}
    answer = json.loads(run("--home", str(filled), "search", query, "--kind", "skill", "--json").stdout)
    assert [hit["kind"] for hit in answer["hits"]] == ["skill"]
    listed = json.loads(run("--home", str(filled), "list", "--kind", "agent", "--json").stdout)
    assert [tool["id"] for tool in listed] == ["Travel-desk/Travel desk"]


def test_the_gateway_finds_and_describes_them_and_calls_neither(filled: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with open_agent(tmp_path, home=str(filled)) as agent:
            found = await agent.search("a report of a quarter", kind="skill")
            [entry] = found["results"][0]["tools"]
            assert (entry["id"], entry["kind"], entry["callable"]) == ("skills/quarterly-report", "skill", False)
            described = await agent.use("describe_tools", ids=["skills/quarterly-report"])
            [skill] = described.structured_content["tools"]
            assert "2. Write the report." in skill["instructions"] and skill["files"] == ["scripts/plot.py"]
            assert "2. Write the report." in described.content[0].text
            for id, words in (
                ("skills/quarterly-report", "it is a skill"),
                ("Travel-desk/Travel desk", "another agent"),
            ):
                refused = await agent.call(id)
                assert refused.is_error and words in refused.content[0].text
            everything = await agent.search("book a hotel room")
            assert {"Travel-desk/Travel desk", "desk/book_room"} <= {
                tool["id"] for tool in everything["results"][0]["tools"]
            }
            wrong = await agent.use("search_tools", queries=["x"], kind="prompt")
            assert wrong.is_error

    anyio.run(body)
