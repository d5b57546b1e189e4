"""The catalogue over HTTP: pages, words, the tree, one tool; always the present generation."""

from __future__ import annotations

from typing import Any

import pytest

from toolscout.home.catalogue.store import Catalogue
from toolscout.scout import Scout
from toolscout.testing import TOY_TOOLS
from toolscout.types import Tool
from toolscout_server.view import CatalogueView, RowFilter, encode_key


def get(client: Any, path: str, **parameters: Any) -> Any:
    answer = client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_pages_of_tools_put_together_are_the_catalogue(client: Any) -> None:
    pages = [get(client, "/v1/tools", offset=offset, limit=3) for offset in range(0, 12, 3)]
    assert [row["id"] for page in pages for row in page["tools"]] == sorted(TOY_TOOLS)
    assert {page["total"] for page in pages} == {10}


def test_words_narrow_the_list(client: Any) -> None:
    assert [row["id"] for row in get(client, "/v1/tools", text="CITY Snow")["tools"]] == ["weather/get_forecast"]
    assert get(client, "/v1/tools", text="nowhere")["total"] == 0


def test_the_tree_leads_to_every_tool_and_counts_right(client: Any) -> None:
    root = get(client, "/v1/tree")
    assert root["tools"] == 10 and [node["name"] for node in root["nodes"]] == [
        "files",
        "mail",
        "ru",
        "travel",
        "weather",
        "zh",
    ]
    for node in root["nodes"]:
        below = get(client, "/v1/tools", within=node["key"])
        assert below["total"] == node["tools"] and node["leaf"]
        assert all(row["id"].startswith(node["name"] + "/") for row in below["tools"])


def test_names_with_slashes_and_other_signs_have_keys_of_their_own() -> None:
    places = [("a", "b/c"), ("a/b", "c"), ("a", "b", "c"), ("a", "ü %2F?&"), ("a", "<b>")]
    tools = [Tool(id=f"{place[0]}/{number}", name=str(number), path=place[1:]) for number, place in enumerate(places)]
    view = CatalogueView(Catalogue.of(tools))
    from toolscout.trust.policy import LOCAL

    for number, tool in enumerate(tools):
        key = encode_key((tool.source, *tool.path))
        rows, _ = view.page_tools(LOCAL, RowFilter(key), 0, 10)
        assert [row.name for row in rows] == [str(number)] if number else True
    assert len({encode_key(place) for place in places}) == len(places)


def test_one_tool_is_shown_whole_and_an_unknown_one_is_not_there(client: Any) -> None:
    tool = get(client, "/v1/tool", id="mail/send_email")
    assert list(tool["parameters"]["properties"]) == ["to", "subject", "body"] and tool["fingerprint"]
    assert client.get("/v1/tool", params={"id": "mail/none"}).status_code == 404


def test_a_change_of_the_catalogue_is_seen_at_once(client: Any, toy: Scout) -> None:
    before = get(client, "/v1/me")
    toy.add([{"name": "mow_lawn", "description": "Mow the lawn."}], name="garden")
    after = get(client, "/v1/me")
    assert (before["tools"], after["tools"]) == (10, 11) and after["generation"] > before["generation"]
    assert get(client, "/v1/tools", text="lawn")["total"] == 1
    toy.remove(["garden"])
    assert client.get("/v1/tool", params={"id": "garden/mow_lawn"}).status_code == 404


def test_the_state_of_sources_is_shown(client: Any, toy: Scout) -> None:
    toy.enable("ru", False)
    states = {source["name"]: source["state"] for source in get(client, "/v1/sources")["sources"]}
    assert states["ru"] == "disabled" and states["mail"] == "ok"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "offset=-1", "unknown=1", "limit=1&limit=2", "within=nowhere"]
)
def test_wrong_parameters_are_refused_with_a_sentence(client: Any, query: str) -> None:
    answer = client.get(f"/v1/tools?{query}")
    assert answer.status_code in (404, 422) and answer.json()["error"].startswith("expected ")
