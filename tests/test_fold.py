"""toolscout.search.relations.duplicates and search.fold: the same tool of several sources is one hit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes.builder import guard
from toolscout.recipes.registry import build
from toolscout.scout import Scout
from toolscout.search.fold import FoldSimilar
from toolscout.search.home_resources import HomeResources
from toolscout.search.relations.duplicates import Duplicates, find_duplicates
from toolscout.settings import Settings
from toolscout.types import Hit, Search, Tool

CREATE = "Create a new task in Todoist with a due date."
SHUT = "Close the door of the room."


def tool(tool_id: str, description: str, *parameters: str) -> Tool:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in parameters}}
    return Tool(id=tool_id, name=tool_id.partition("/")[2], description=description, parameters=schema)


TOOLS = [
    tool("a_todoist/create_task", CREATE, "title", "due"),
    tool("b_todoist/todoist_create_task", CREATE, "title", "due"),
    tool("c_todoist/createTask", "Create a task in Todoist with a due date.", "title", "due"),
    tool("a_todoist/create_project", "Create a new project in Todoist with a due date.", "title", "due"),
    tool("slack/add_reaction", "Add an emoji reaction to a message.", "message"),
    tool("zulip/add_reaction", "Add an emoji reaction to a message.", "message"),
    tool("freshdesk/list_folders", "List all folders in Freshdesk.", "page"),
    tool("freshservice/list_folders", "List all folders in Freshservice.", "page"),
    tool("b_todoist/close", "Close a task in Todoist.", "task"),
    tool("b_todoist/label", "Attach a label to something in Todoist.", "label"),
]


def find(preferred: tuple[str, ...] = ()) -> Any:
    return find_duplicates(Catalogue.of(TOOLS), preferred)


def search(query: str, *, preferred: tuple[str, ...] = (), visible: Any = None, k: int = 5) -> Search:
    catalogue = Catalogue.of(TOOLS)
    resources = HomeResources(settings=Settings(rules_off=("demotion",), preferred_sources=preferred))
    stage = guard(build("hybrid", catalogue), catalogue, resources)
    [found] = stage([Search(query=query, visible=visible, k=k)])
    return found


def test_only_the_same_tools_of_one_service_are_duplicates() -> None:
    assert list(find().groups.values()) == [
        ("b_todoist/todoist_create_task", "a_todoist/create_task", "c_todoist/createTask")
    ]


def test_the_source_with_most_tools_of_its_own_stands_for_the_others_and_a_preferred_one_before_it() -> None:
    assert set(find().groups) == {"b_todoist/todoist_create_task"}
    assert set(find(("c_todoist",)).groups) == {"c_todoist/createTask"}


def test_a_group_is_one_hit_that_names_the_others() -> None:
    found = search("create a task with a due date")
    assert found.hits[0].id == "b_todoist/todoist_create_task"
    assert found.hits[0].similar == ("a_todoist/create_task", "c_todoist/createTask")
    assert not {"a_todoist/create_task", "c_todoist/createTask"} & set(found.ids)
    assert "a_todoist/create_project" in found.ids


def test_folding_leaves_places_to_other_tools() -> None:
    assert len(search("create a task in todoist with a due date", k=3).hits) == 3


def hides_b(tool: Tool) -> bool:
    return tool.source != "b_todoist"


def test_a_hidden_tool_neither_stands_for_others_nor_is_named() -> None:
    hit = search("create a task with a due date", visible=hides_b).hits[0]
    assert (hit.id, hit.similar) == ("a_todoist/create_task", ("c_todoist/createTask",))


def test_a_tool_that_the_query_names_keeps_its_hit() -> None:
    assert "c_todoist/createTask" in search("run c_todoist/createTask for me").ids
    assert search("select:createTask").ids == ("c_todoist/createTask",)


def test_a_tool_with_the_number_that_the_query_names_keeps_its_hit() -> None:
    tools = [tool(f"shelf_{n}/count_boxes", f"Count the boxes of warehouse{n}.", "row") for n in (1, 2, 3)]
    catalogue = Catalogue.of(tools)
    duplicates = find_duplicates(catalogue, ())
    assert [len(group) for group in duplicates.groups.values()] == [3]
    hits = tuple(Hit(one.id, 3.0 - place) for place, one in enumerate(tools))
    for query, ids in (("count boxes", ("shelf_1",)), ("count boxes in warehouse2", ("shelf_1", "shelf_2"))):
        [found] = FoldSimilar(catalogue, duplicates).run([Search(query=query, hits=hits)])
        assert sorted(tool_id.partition("/")[0] for tool_id in found.ids) == list(ids)


def test_a_source_of_copies_never_stands_for_the_tools_that_it_copies() -> None:
    copies = [tool(f"{name}_todoist/create_task", CREATE, "title", "due") for name in ("0", "zz")]
    assert set(find_duplicates(Catalogue.of([*TOOLS, *copies])).groups) == {"b_todoist/todoist_create_task"}


def test_the_setting_shows_every_tool(tmp_path: Path) -> None:
    for fold, count in ((True, 1), (False, 2)):
        with Scout(tmp_path / str(fold), fold_similar=fold, false_rejects=0.0, trust="off", trust_scan=False) as scout:
            for source in ("a_todoist", "b_todoist"):
                scout.add([{"name": "create_task", "description": CREATE}], name=source)
            found = scout.search("create a task with a due date")
            assert len(found.hits) == count
            assert [len(hit.similar) for hit in found.hits] == ([1] if fold else [0, 0])


def group(*tools: Tool) -> list[tuple[str, ...]]:
    return list(find_duplicates(Catalogue.of(tools)).groups.values())


def test_tools_that_need_no_account_are_the_same_from_any_two_sources() -> None:
    assert group(
        tool("adspower/navigate", "Navigate to the url", "url"),
        tool("pentest/browser_navigate", "Navigate to a URL", "url", "timeout"),
        tool("spectra/playwright_navigate", "Navigate to a URL"),
    ) == [("adspower/navigate", "pentest/browser_navigate", "spectra/playwright_navigate")]


def test_tools_of_accounts_are_never_the_same_for_their_words_alone() -> None:
    assert not group(
        tool("hubspot/get_meeting", "Get details of a specific meeting", "id"),
        tool("holaspirit/get_meeting", "Get details of a specific meeting", "id"),
    )


def crm(service: str, source: str = "") -> list[Tool]:
    texts = {
        "create_contact": "Create a new contact in",
        "delete_contact": "Delete a contact from",
        "add_note": "Add a",
    }
    return [
        tool(f"{source or service.lower()}/{name}", f"{text} {service} for this account.", "contact")
        for name, text in texts.items()
    ]


def test_tools_whose_descriptions_name_their_services_are_the_same_only_with_tools_of_that_service() -> None:
    assert not group(*crm("HubSpot"), *crm("Salesforce"), *crm("Pipedrive"))
    both = group(*crm("HubSpot"), *crm("HubSpot", "my-hubspot"), *crm("HubSpot", "hubspot-2"), *crm("Salesforce"))
    assert len(both) == 3 and {len(members) for members in both} == {3}
    assert not group(  # one alone names its service
        tool("hubspot/open_page", "Take a screenshot of the page in HubSpot."),
        tool("browser/open_page", "Take a screenshot of the page."),
    )


def test_tools_without_a_description_are_not_the_same() -> None:
    assert not group(tool("a_todoist/close", "", "task"), tool("b_todoist/close", "", "task"))


def test_the_address_of_a_source_in_its_description_names_no_service() -> None:
    text = "Create a new task in Todoist. Deploy it as @{0}, {0} for short."
    assert len(group(*(tool(f"{one}/create", text.format(one)) for one in ("acme-todoist", "bode-todoist")))) == 1


def test_other_ways_to_write_a_service_name_it_too() -> None:
    text = "Run a read-only query on the {0} database, with a limit of rows."
    one, two = tool("acme_postgres/query", text.format("postgresql")), tool("acme/query", text.format("MariaDB"))
    assert not group(one, two)
    assert not group(one, tool("acme/query", text.format("")))
    assert len(group(one, tool("my-postgres/query", text.format("postgresql")))) == 1


def test_short_descriptions_do_not_show_a_fork() -> None:
    short = {"query": "Run a SQL query.", "list_tables": "List the tables.", "describe": "Describe a table."}
    long = {name: f"{text} Every result has at most a hundred rows." for name, text in short.items()}
    for texts, count in ((short, 0), (long, 3)):
        tools = [tool(f"{source}/{name}", text) for source in ("postgres", "mysql") for name, text in texts.items()]
        assert len(group(*tools)) == count


def named_copies(query: str, *sources: str, preferred: tuple[str, ...] = ()) -> list[tuple[str, tuple[str, ...]]]:
    """Return the hits, as sources, of copies of one tool, of which the last source comes first in the ranking."""
    tools = [tool(f"{source}/create_task", CREATE, "title", "due") for source in sources]
    catalogue = Catalogue.of(tools)
    hits = tuple(Hit(one.id, 1.0 + place) for place, one in enumerate(tools))[::-1]
    [found] = FoldSimilar(catalogue, find_duplicates(catalogue, preferred)).run([Search(query=query, hits=hits)])
    return [
        (hit.id.partition("/")[0], tuple(tool_id.partition("/")[0] for tool_id in hit.similar)) for hit in found.hits
    ]


def test_copies_that_the_query_names_are_one_hit_and_the_one_that_is_named_most_exactly_stands_for_it() -> None:
    both = "todoist", "my-todoist"
    assert named_copies("create a task in todoist", *both) == [("todoist", ("my-todoist",))]
    assert named_copies("create a task in todoist", *both[::-1]) == [("todoist", ("my-todoist",))]
    assert named_copies("create a task in my-todoist", *both) == [("my-todoist", ("todoist",))]
    assert named_copies("Create a task in My Todoist!", *both) == [("my-todoist", ("todoist",))]


def test_of_copies_that_the_query_names_equally_the_first_by_name_or_the_preferred_one_stands_for_the_others() -> None:
    both = "my-todoist", "our-todoist"
    assert named_copies("create a task in todoist", *both) == [("my-todoist", ("our-todoist",))]
    assert named_copies("create a task in todoist", *both, preferred=both[1:]) == [("our-todoist", ("my-todoist",))]


def test_the_only_copy_that_the_query_names_keeps_its_own_hit() -> None:
    assert named_copies("create a task in work-todoist", "aa-todoist", "work-todoist", "zz-todoist") == [
        ("aa-todoist", ("zz-todoist",)),
        ("work-todoist", ()),
    ]


def test_of_the_named_source_every_tool_of_the_group_keeps_its_place() -> None:
    ids = "todoist/create_task", "my-todoist/create_task", "todoist/add_task"
    catalogue = Catalogue.of([tool(tool_id, CREATE, "title") for tool_id in ids])
    duplicates = Duplicates(dict.fromkeys(ids, ids[0]), {ids[0]: ids})
    hits = tuple(Hit(tool_id, 1.0) for tool_id in ids)
    [found] = FoldSimilar(catalogue, duplicates).run([Search(query="create a task in todoist", hits=hits)])
    assert [(hit.id, hit.similar) for hit in found.hits] == [(ids[0], (ids[1],)), (ids[2], ())]


def test_why_says_of_a_named_copy_what_the_search_does(tmp_path: Path) -> None:
    with Scout(tmp_path, false_rejects=0.0) as scout:
        create, close = (
            {"name": name, "description": text} for name, text in (("create_task", CREATE), ("close", SHUT))
        )
        for source, tools in (("todoist", [create, close]), ("my-todoist", [create]), ("door", [close])):
            scout.add(tools, name=source)
        why = scout.why("create a task in todoist", "my-todoist/create_task")
        assert (why.shown, why.rank, why.stands_for_it) == (False, 1, "todoist/create_task")
        assert [stage.note for stage in why.stages if stage.stage == "demote"] == []
        why = scout.why("create a task in todoist", "todoist/create_task")
        assert (why.shown, why.rank) == (True, 1)
        unnamed = scout.why("create a task with a due date", "my-todoist/create_task")
        assert [stage.note for stage in unnamed.stages if stage.stage == "demote"] == ["it copies todoist/create_task"]


def require(some: Tool) -> Tool:
    schema = {**some.parameters, "required": list(some.parameters["properties"])}
    return Tool(id=some.id, name=some.name, description=some.description, parameters=schema)


def test_public_tools_that_require_other_values_are_not_the_same() -> None:
    city = require(tool("one/get_weather", "Get the current weather.", "city"))
    place = require(tool("two/get_weather", "Get the current weather.", "location"))
    point = require(tool("three/get_weather", "Get the current weather.", "lat", "lon"))
    assert group(city, place, point) == [("one/get_weather", "two/get_weather")]


def test_public_tools_of_services_that_their_texts_name_are_not_the_same() -> None:
    assert not group(
        tool("sami_tusclases/screenshot", "Take a screenshot of the current tusclases page."),
        tool("browser/screenshot", "Take a screenshot of the current page."),
    )


def test_two_ways_to_write_one_service_are_one_service() -> None:
    labels = "Modify the labels of an email (archive, trash, read)."
    assert group(tool("a_gsuite/modify_email", labels), tool("google_box/modify_email", labels)) == [
        ("a_gsuite/modify_email", "google_box/modify_email")
    ]
