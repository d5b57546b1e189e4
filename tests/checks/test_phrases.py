"""toolscout.checks.lint: what lint asks for a tool is what people say."""

from __future__ import annotations

import pytest

from toolscout.checks.lint import TEMPLATES, lint, write_phrases
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.types import Hit, Search, Tool


def tool(tool_id: str, description: str, *path: str) -> Tool:
    return Tool(id=tool_id, name=tool_id.partition("/")[2], description=description, path=path)


def list_orders(some: Tool) -> set[str]:
    """The orders behind all templates, from several seeds."""
    starts = [template.partition("{}") for template in TEMPLATES]
    phrases = {phrase for seed in range(12) for phrase in write_phrases(some, seed)}
    return {
        phrase.removeprefix(start).removesuffix(end) if phrase.startswith(start) and phrase.endswith(end) else phrase
        for phrase in phrases
        for start, _, end in sorted(starts, key=lambda parts: -len(parts[0]))[:4]
    }


@pytest.mark.parametrize(
    ("description", "order"),
    [
        ("Gets the details of a call. Needs a key.", "get the details of a call"),
        ("This tool allows you to list files in a folder.", "list files in a folder"),
        ("Get the class (ABI and more) of a contract", "get the class of a contract"),
        ("[WORKFLOW] Deploys a service from a template", "deploy a service from a template"),
        ("Modifies a label Args: label: its id", "modify a label"),
        ("Fetches a page", "fetch a page"),
    ],
)
def test_a_description_becomes_an_order(description: str, order: str) -> None:
    assert order in list_orders(tool("s/x", description))


def test_a_short_name_is_said_with_its_service_and_a_long_one_alone() -> None:
    assert "list layers in geoserver" in write_phrases(tool("mahdin75_geoserver-mcp/list_layers", "Lists layers."))
    long_name = tool("mahdin75_geoserver-mcp/list_all_layers_of_workspace", "Lists layers.")
    assert "list all layers of workspace" in write_phrases(long_name)


def test_a_tool_that_says_nothing_is_asked_for_by_its_name() -> None:
    assert all("weekly report" in phrase for phrase in write_phrases(tool("acme/weekly_report", "")))


def test_a_tool_is_confused_only_with_one_that_its_phrases_could_mean() -> None:
    trello = tool("trello/recent_activity", "Get the recent activity of a board on Trello.")
    anime = tool("anime/recent_activity", "Get the recent activity of a user who watches anime.")
    twin = tool("kanban/activity", "Get the recent activity of a board on Trello.")

    def answer(*tools: str) -> object:
        return lambda searches: [Search(query=s.query, hits=tuple(Hit(id, 1.0) for id in tools)) for s in searches]

    tools = [trello, anime, twin]
    [pair] = lint([trello, twin], answer("kanban/activity", "trello/recent_activity"), max_tools=2).confused  # type: ignore[arg-type]
    assert {pair.one, pair.other} == {"trello/recent_activity", "kanban/activity"} and pair.twins
    assert not lint(tools[:2], answer("anime/recent_activity", "trello/recent_activity")).confused  # type: ignore[arg-type]


def test_a_hit_that_stands_for_a_tool_finds_it() -> None:
    tools = [tool("a/navigate", "Navigate to a page."), tool("b/navigate", "Navigate to a page.")]
    stage = registry.build("bm25", Catalogue.of(tools))

    def fold(searches: list[Search]) -> list[Search]:
        return [
            Search(query=search.query, hits=(Hit("a/navigate", 1.0, similar=("b/navigate",)),))
            for search in stage(searches)
        ]

    found = lint(tools, fold)  # type: ignore[arg-type]
    assert not found.hidden and not found.confused
