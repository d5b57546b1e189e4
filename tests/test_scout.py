from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toolscout.errors import ConfigError, NotFound, SourceError
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes.registry import all_recipes, build
from toolscout.scout import Scout
from toolscout.settings import Settings
from toolscout.testing import toy_tools
from toolscout.types import Search


def schemas(path: Path, **tools: str) -> Path:
    path.write_text("".join(json.dumps({"name": n, "description": d}) + "\n" for n, d in tools.items()))
    return path


def test_a_file_is_added_searched_changed_and_synced(scout: Scout, tmp_path: Path) -> None:
    file = schemas(tmp_path / "tools.jsonl", rain="Will it rain?", mail="Send a letter.", gone="Vanishes.")
    [added] = scout.add(file)
    assert (added.source, added.new) == ("tools", 3)
    assert scout.search("rain").ids == ("tools/rain",)
    schemas(file, rain="Will it rain?", mail="Send a parcel.", new="Brand new umbrella.")
    [synced] = scout.sync()
    assert (synced.new, synced.changed, synced.gone, synced.same) == (1, 1, 1, 1)
    assert scout.search("umbrella").ids == ("tools/new",)
    assert scout.search("vanishes").ids == ()
    assert scout.search("parcel").hits[0].tool == scout.tool("tools/mail")


def test_adding_again_reads_again_instead_of_doubling(scout: Scout, tmp_path: Path) -> None:
    file = schemas(tmp_path / "tools.jsonl", a="x")
    scout.add(file)
    [again] = scout.add(str(file))
    assert (again.new, again.same) == (0, 1)
    assert len(scout.store.origins()) == 1


def test_a_second_source_of_the_same_name_is_numbered_and_keeps_its_number(scout: Scout, tmp_path: Path) -> None:
    first = schemas(tmp_path / "tools.jsonl", a="x")
    others = []
    for folder in ("two", "three"):
        (tmp_path / folder).mkdir()
        others.append(schemas(tmp_path / folder / "tools.jsonl", b="y"))
    for file in (first, *others, *others, first):
        scout.add(file)
    names = ["tools", "tools-2", "tools-3"]
    assert sorted(source.name for source in scout.sources()) == names
    assert sorted((change.source, change.same) for change in scout.sync()) == [(name, 1) for name in names]
    assert [change.source for change in scout.sync(["tools-3"])] == ["tools-3"]
    assert set(scout.search("y").ids) <= {"tools-2/b", "tools-3/b"}


def test_a_name_that_the_user_gave_twice_is_refused_and_both_are_kept(scout: Scout, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    scout.add(schemas(tmp_path / "tools.jsonl", a="x"))
    [clash] = scout.add(schemas(tmp_path / "other" / "tools.jsonl", b="y"), name="tools")
    assert clash.state == "error" and "already in the catalogue" in clash.message and "--name" in clash.message
    assert [source.name for source in scout.sources()] == ["tools"]
    assert len(scout.store.origins()) == 1
    [named] = scout.add(tmp_path / "other" / "tools.jsonl", name="other")
    assert named.new == 1


def test_a_source_that_disappears_keeps_its_tools_and_says_so(scout: Scout, tmp_path: Path) -> None:
    file = schemas(tmp_path / "tools.jsonl", a="x")
    scout.add(file)
    file.unlink()
    [change] = scout.sync()
    assert change.state == "error" and str(file) in change.message
    assert scout.search("x").ids == ("tools/a",)
    assert scout.sources()[0].state == "error"


def test_sync_reads_only_what_is_named_and_refuses_unknown_names(scout: Scout, tmp_path: Path) -> None:
    scout.add(schemas(tmp_path / "a.jsonl", t="x"))
    scout.add(schemas(tmp_path / "b.jsonl", t="x"))
    assert [change.source for change in scout.sync(["b"])] == ["b"]
    with pytest.raises(NotFound, match="found 'c'. There are: a, b"):
        list(scout.sync(["c"]))


def test_functions_and_schemas_are_added_as_objects(scout: Scout) -> None:
    def water_plants(minutes: int, where: str = "garden") -> None:
        """Water the plants.

        Args:
            minutes: how long.
            where: which plants.
        """

    [change] = scout.add([water_plants, {"name": "mow", "description": "Mow the lawn."}], name="house")
    assert change.new == 2
    hit = scout.search("water plants").hits[0]
    assert hit.id == "house/water_plants" and hit.tool is not None
    assert hit.tool.parameters is not None
    assert hit.tool.parameters["properties"]["minutes"]["type"] == "integer"
    assert list(scout.sync()) == []
    with pytest.raises(SourceError, match="expected a name"):
        scout.add([water_plants])


def test_nothing_understood_is_refused_with_what_would_be(scout: Scout, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        scout.add(str(tmp_path / "absent.json"))
    with pytest.raises(SourceError, match="a folder without them"):
        scout.add(tmp_path)
    with pytest.raises(SourceError, match="no command on PATH"):
        scout.add("no-such-command-anywhere --flag")
    with pytest.raises(SourceError, match="expected a kind of source"):
        scout.add(schemas(tmp_path / "t.jsonl", a="x"), kind="magic")
    assert scout.sources() == []


def test_sources_and_tools_are_removed_and_unknown_names_remove_nothing(toy: Scout) -> None:
    with pytest.raises(NotFound, match="found 'nobody'"):
        toy.remove(["mail", "nobody"])
    assert len(toy.search("mailbox").ids) == 1
    assert toy.remove(["mail", "files/copy"]) == 3
    assert toy.search("mailbox").ids == ()
    assert toy.search("files/copy").ids != ("files/copy",)


def test_every_empty_answer_says_why(scout: Scout, tmp_path: Path) -> None:
    assert scout.search("x").reason == "The catalogue is empty. Add a source with  toolscout add SOURCE."
    scout.add(schemas(tmp_path / "tools.jsonl", a="word"))
    assert scout.search("").reason == "The query is empty."
    nothing = scout.search("zzz")
    assert (nothing.kind, nothing.reason) == (
        "no_tool_fits",
        "The only tool does not score high enough for this query.",
    )
    hidden = scout.search("word", visible=lambda tool: False)
    assert hidden.reason == "None of the catalogue's tools is visible to this caller."
    scout.enable("tools", False)
    assert "Not searched: source 'tools' is disabled" in (scout.search("word").reason or "")


def test_two_callers_with_different_sight_share_one_index(toy: Scout) -> None:
    held = toy.pipeline()
    for _ in range(2):
        assert toy.search("city", visible=_only_travel).ids == ("travel/find_hotel",)
        assert "travel/find_hotel" not in toy.search("city", visible=_not_travel).ids
    assert toy.pipeline() is held


def _only_travel(tool: object) -> bool:
    return tool.source == "travel"  # type: ignore[attr-defined,no-any-return]


def _not_travel(tool: object) -> bool:
    return tool.source != "travel"  # type: ignore[attr-defined,no-any-return]


def test_a_batch_gives_each_query_what_it_gets_alone(toy: Scout) -> None:
    queries = ["weather in a city", "send a message", "", "get_forecast"]
    batch = toy.search_many(queries, 3)
    assert [found.ids for found in batch] == [toy.search(query, 3).ids for query in queries]
    assert len({found.search_id for found in batch}) == len(batch)
    assert toy.search_many([]) == []
    with pytest.raises(ValueError, match="at least 1"):
        toy.search("x", 0)


def test_the_same_search_gives_the_same_answer(toy: Scout) -> None:
    first = toy.search("a city in a city")
    assert all(toy.search("a city in a city").hits == first.hits for _ in range(5))


def test_searching_works_from_async_code(toy: Scout) -> None:
    async def both() -> list[tuple[str, ...]]:
        found = await asyncio.gather(toy.asearch("weather city"), toy.asearch("copy a file", 1))
        return [each.ids for each in found]

    weather, copy = asyncio.run(both())
    assert copy == ("files/copy",) and weather


def test_the_journal_notes_searches_calls_and_feedback(toy: Scout) -> None:
    found = toy.search("weather forecast of a city", caller="alice")
    assert found.search_id is not None
    toy.called(found.ids[1], ok=True, search_id=found.search_id, ms=12.0)
    toy.called("somewhere/else", ok=False)
    toy.feedback(found.search_id, good=[found.ids[0]], bad=[found.ids[1]])
    searched, called, stray, feedback = toy.journal.read()
    assert (searched["caller"], searched["shown"], searched["recipe"]) == ("alice", list(found.ids), "bm25")
    assert searched["generation"] == toy.store.generation()
    assert (called["rank"], called["search_id"], stray["rank"]) == (2, found.search_id, None)
    assert feedback["good"] == [found.ids[0]]
    with pytest.raises(NotFound, match="expected the id of a search"):
        toy.feedback("unknown", good=[])


def test_a_batch_writes_one_line_a_query_and_the_journal_can_be_off(toy: Scout, tmp_path: Path) -> None:
    toy.search_many(["one", "two", "three"])
    assert len(list(toy.journal.read())) == 3
    with Scout(tmp_path / "home", journal=False) as quiet:
        quiet.search("four")
    assert len(list(toy.journal.read())) == 3


def test_a_running_process_sees_what_another_adds_at_its_next_search(scout: Scout, home: str, tmp_path: Path) -> None:
    scout.add(schemas(tmp_path / "one.jsonl", first="alpha"))
    assert scout.search("umbrella").ids == ()
    file = schemas(tmp_path / "two.jsonl", second="umbrella")
    command = [sys.executable, "-m", "toolscout", "--home", home]
    subprocess.run([*command, "add", str(file)], check=True, capture_output=True)
    assert scout.search("umbrella").ids == ("two/second",)
    subprocess.run([*command, "remove", "two"], check=True, capture_output=True)
    assert scout.search("umbrella").ids == ()


def test_no_search_sees_half_of_a_change(tmp_path: Path) -> None:
    """A writer swaps all tools between two generations of descriptions; every answer is of one of them."""
    file = tmp_path / "tools.jsonl"
    write = lambda word: schemas(file, **{f"t{number}": f"{word} thing" for number in range(60)})  # noqa: E731
    write("red")
    failures: list[object] = []
    done = threading.Event()
    with Scout(tmp_path / "home") as writer, Scout(tmp_path / "home") as reader:
        writer.add(file)

        def read() -> None:
            try:
                while not done.is_set():
                    words = {hit.tool.description for hit in reader.search("red blue thing", 60).hits if hit.tool}
                    if len(words) != 1:
                        failures.append(words)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(12):
            write("blue" if number % 2 == 0 else "red")
            list(writer.sync())
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_recipes_refuse_unknown_names_and_settings() -> None:
    catalogue = Catalogue.of(toy_tools())
    with pytest.raises(NotFound, match="did you mean 'bm25'"):
        build("bm52", catalogue)
    with pytest.raises(ConfigError, match="recipe bm25"):
        build("bm25", catalogue, settings={"colour": "red"})
    for name, recipe in all_recipes().items():
        assert recipe.summary
        if recipe.is_fitted:
            with pytest.raises(ConfigError, match="needs a fitted model"):
                build(name, catalogue)
        elif name in ("decided", "feedback", "mmrr"):
            with pytest.raises(ConfigError, match="No language model is set"):
                build(name, catalogue)
        elif recipe.encoder is None:
            assert build(name, catalogue).writes >= {"hits"}


def test_settings_reach_the_scout(tmp_path: Path) -> None:
    with Scout(tmp_path / "x", k=2, recipe="bm25-plain") as scout:
        assert isinstance(scout.settings, Settings)
        assert (scout.settings.k, scout.settings.recipe) == (2, "bm25-plain")
        scout.add([{"name": f"t{n}", "description": "same words"} for n in range(5)], name="s")
        assert len(scout.search("same words").ids) == 2


def test_a_catalogue_that_is_not_english_is_advised_of_the_encoder(scout: Scout) -> None:
    scout.add([{"name": "a", "description": "Send a message."}], name="english")
    assert scout.advice() == []
    scout.add([{"name": f"t{n}", "description": "查询城市天气预报"} for n in range(3)], name="chinese")
    assert len(scout.advice()) == 1 and "--encoder" in scout.advice()[0]
    assert scout.search("天气预报").ids[0].startswith("chinese/")


def test_hybrid_finds_by_meaning_what_words_do_not_and_nothing_for_gibberish(toy: Scout) -> None:
    assert toy.search("purchase a plane ticket", 1, recipe="hybrid").ids == ("travel/book_flight",)
    for gibberish in ("qzxv wvut plonkh", "xyzzy plugh"):
        found = toy.search(gibberish, recipe="hybrid")
        assert (found.ids, found.kind) == ((), "no_tool_fits"), gibberish


def test_the_engine_of_a_scout_searches_and_writes_no_journal(scout: Scout, tmp_path: Path) -> None:
    scout.add(schemas(tmp_path / "tools.jsonl", rain="Will it rain?"))
    selection, notice = scout.engine.select(None, None)
    assert (selection.recipe, notice) == ("bm25", "")
    [answer], generation = scout.engine.run(selection, [Search(query="rain")])
    assert (answer.ids, generation) == (("tools/rain",), scout.store.generation())
    assert not list(scout.journal.read(event="search")), "the engine writes no journal"
    assert scout.search("rain").ids == answer.ids
    assert answer.coverage is None


@pytest.mark.parametrize("name", ["catalogue", "selector", "vectors", "workspace", "build", "serving"])
def test_a_member_of_version_0_2_works_and_says_its_new_name(scout: Scout, name: str) -> None:
    with pytest.deprecated_call(match=rf"Scout\.{name} is now "):
        assert getattr(scout, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        scout.nothing  # type: ignore[attr-defined]  # noqa: B018
