"""Synthetic queries, the selftest and the lint that use them, and the baseline that CI checks."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

import traffic
from tests_cli import run
from toolscout import metrics
from toolscout.checks import selftest
from toolscout.checks.lint import lint
from toolscout.checks.selftest import RecipeScore, run_selftest
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import champion
from toolscout.learn.loop import learn
from toolscout.learn.synthetic_queries import SyntheticQuery, generate_queries, make_chat_queries
from toolscout.location import describe_home
from toolscout.recipes import registry
from toolscout.scout import Scout
from toolscout.sources.folder import read_tools
from toolscout.testing import toy_tools
from toolscout.types import Search, Tool

ROOT = Path(__file__).parent.parent.parent
ZERO_SHOT = ("bm25", "bm25-plain", "dense", "scout")


# --- synthetic queries ------------------------------------------------------------------------------------------------


def test_every_tool_with_a_description_is_asked_for_and_the_same_way_each_time() -> None:
    tools = [*toy_tools(), Tool(id="x/silent", name="silent")]
    made = generate_queries(tools)
    assert {query.id.removeprefix("p-") for query in made} == {tool.id for tool in tools if tool.description}
    assert made == generate_queries(tools) != generate_queries(tools, seed=1)
    assert all(query.id.removeprefix("p-") in query.tools for query in made)
    assert len(generate_queries(tools, max_queries=3)) == 3


def test_functions_are_commanded_with_values_and_services_described_without_their_name() -> None:
    schema = {"type": "object", "properties": {"unit": {"enum": ["celsius"]}, "dayCount": {"type": "integer"}}}
    command = Tool(id="a/get", name="getForecast", description="Read the forecast of a town.", parameters=schema)
    service = Tool(id="a/brand", name="Skyly", description="Skyly offers the forecast for hikers and sailors at sea.")
    for seed in range(20):
        ordered, described = generate_queries([command, service], seed=seed, unions=False)[::-1][:2][::-1]
        assert ordered.kind == "command" and ("unit celsius" in ordered.text or "day count" in ordered.text)
        assert described.kind == "situation" and "skyly" not in described.text.casefold()


def test_unions_need_several_tools_and_can_be_left_out() -> None:
    made = [query for seed in range(10) for query in generate_queries(toy_tools(), seed=seed)]
    unions = [query for query in made if query.kind == "union"]
    assert unions and all(2 <= len(query.tools) <= 3 for query in unions)
    assert all(len(query.tools) == 1 for query in made if query.kind != "union")
    assert all(len(query.tools) == 1 for query in generate_queries(toy_tools(), unions=False))


def test_odd_tools_make_no_request_fail() -> None:
    odd = [
        Tool(id="o/1", name="", description="?!"),
        Tool(id="o/2", name="x", description="日本語の説明", parameters={"properties": {"": None, "a": 3}}),
        Tool(id="o/3", name="y", description="a", parameters={"properties": {"t": {"enum": [None], "type": ["a"]}}}),
        Tool(id="o/4", name="z", description="the of and", parameters={"properties": "no"}),
        Tool(id="o/5", name="__", description="word " * 500),
    ]
    assert all(query.text for query in generate_queries(odd))
    assert all(query.tools == () for query in make_chat_queries())


# --- the test ---------------------------------------------------------------------------------------------------------


def test_it_scores_the_recipes_and_recommends_the_best(toy: Scout) -> None:
    found = run_selftest(toy, recipe=["bm25-plain"])
    assert {row.recipe for row in found.rows} == {*ZERO_SHOT}
    understanding = [row for row in found.rows if row.recipe not in ("bm25", "bm25-plain")]
    assert found.recommended == max(understanding, key=lambda row: row.measures["ndcg@5"]).recipe
    assert sum(found.requests.values()) == len(generate_queries(toy.store.catalogue().tools())) + len(
        make_chat_queries()
    )
    assert all(0 <= row.no_tool <= 1 and 0 < row.measures["recall@5"] <= 1 for row in found.rows)
    assert run_selftest(toy).test == found.test


def test_a_recipe_of_words_alone_is_recommended_only_for_real_requests(
    toy: Scout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Synthetic queries are made of the tools' own words."""
    ranks = {"bm25": 3, "bm25-plain": 2, "scout": 1, "dense": 0}

    def summarise(name: str, *_: object) -> RecipeScore:
        return RecipeScore(recipe=name, measures={"ndcg@5": ranks[name], "recall@5": 0.5}, kinds={}, no_tool=0.0)

    monkeypatch.setattr(selftest, "_summarise", summarise)
    found = run_selftest(toy, recipe=["bm25-plain"])
    assert found.recommended == "scout" and found.note.startswith("bm25 finds more here")
    assert [row.recipe for row in found.rows] == [*ranks]
    logged = [SyntheticQuery(id="q1", text="fly to Rome", tools=(toy.store.catalogue().ids[0],), kind="logged")]
    monkeypatch.setattr(selftest, "_collect_logged_queries", lambda *_: logged)
    found = run_selftest(toy, recipe=["bm25-plain"])
    assert found.recommended == "bm25" and not found.note
    monkeypatch.setattr(selftest, "_collect_logged_queries", lambda *_: [])
    ranks["scout"] = 4
    assert not run_selftest(toy).note


def test_chat_counts_as_turned_away_where_a_search_turns_it_away(toy: Scout) -> None:
    found, chat = run_selftest(toy), make_chat_queries()
    for recipe in ("scout", "bm25"):
        turned_away = sum(not toy.search(query.text, recipe=recipe).hits for query in chat)
        assert found.row(recipe).no_tool == turned_away / len(chat)
    assert found.row("scout").no_tool > 0


def test_a_catalogue_without_descriptions_is_refused(scout: Scout) -> None:
    with pytest.raises(ConfigError, match="has a description"):
        run_selftest(scout)


def test_logged_requests_and_the_champion_come_in(tmp_path: Path) -> None:
    with Scout(tmp_path / "home", journal=False) as scout:
        traffic.catalogue(scout)
        assert "logged" not in run_selftest(scout).requests
        traffic.replay(scout, traffic.requests(400, 1), [f"c{n}" for n in range(10)])
        before = run_selftest(scout)
        assert before.requests["logged"] == 391 and before.recommended in ("bm25", "dense", "scout")
        assert learn(scout).outcome == "promoted"
        after = run_selftest(scout)
        assert after.requests["logged"] == 78  # what the champion was fitted on is no test
        assert after.recommended == "champion" and after.sure
        logged = {row.recipe: row.kinds["logged"]["ndcg@5"] for row in after.rows}
        assert {"champion", "scout"} < set(logged) and max(logged, key=logged.__getitem__) == "champion"
        if scout.settings.database:  # there a missing copy is fetched again
            return
        shutil.rmtree(champion.find_model(scout.settings.place, champion.history(scout.settings.place)[-1].model))
        broken = run_selftest(scout)
        assert "instead of the promoted model" in broken.problems["champion"] and len(broken.rows) == 3


def test_the_floor_file_holds_in_ci(toy: Scout, tmp_path: Path) -> None:
    home, file = ("--home", describe_home(toy.settings.place)), tmp_path / "floor.json"
    assert run(*home, "selftest", "--write", str(file)).exit_code == 0
    held = json.loads(file.read_text())
    assert held["recipe"] == "scout" and 0 < held["min_recall"] < 1
    assert run(*home, "selftest", "--check", str(file), "--json").exit_code == 0
    file.write_text(json.dumps({**held, "min_recall": 1.01}))
    below = run(*home, "selftest", "--check", str(file))
    assert below.exit_code == 1 and "below the required 1.01" in below.stderr
    assert run(*home, "selftest", "--min-recall", "0.1").exit_code == 0
    assert run(*home, "selftest", "--min-recall", "1.0").exit_code in (0, 1)
    file.write_text("{}")
    assert "was not written by  toolscout selftest --write" in run(*home, "selftest", "--check", str(file)).stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["metatool", "seal_tools_in"])
def test_its_ranking_of_recipes_agrees_with_the_real_tests(name: str, data: Path) -> None:
    """At least four of five pairs, over the pairs of the recipes that need no training."""
    assert agreement(name, data) >= 0.8


def agreement(name: str, data: Path, most: int = 400) -> float:
    """Share of the pairs of recipes that requests by rule put in the order of the real test, by ndcg@5."""
    tools = read_tools(data / name, "d").tools
    asked = generate_queries(tools, max_queries=most)
    gold = {query.id: dict.fromkeys(query.tools, 1.0) for query in asked}
    ours, real = {}, {}
    for recipe in ZERO_SHOT:
        stage = registry.build(recipe, Catalogue.of(tools))
        answers = stage([Search(query=query.text, k=5) for query in asked])
        ranking = {query.id: answer.ids for query, answer in zip(asked, answers, strict=True)}
        ours[recipe] = metrics.score(ranking, gold, ["ndcg@5"]).means()["ndcg@5"]
        result = json.loads((ROOT / "benchmarks" / "results" / name / f"{recipe}.json").read_text())
        real[recipe] = result["metrics"]["ndcg@5"]
    pairs = list(itertools.combinations(ZERO_SHOT, 2))
    return sum((ours[a] > ours[b]) == (real[a] > real[b]) for a, b in pairs) / len(pairs)


# --- the lint ---------------------------------------------------------------------------------------------------------


def test_lint_names_what_is_hidden_what_is_confused_and_what_says_nothing(scout: Scout) -> None:
    same = "Read the weather forecast of a town for the coming days."
    twins = [Tool(id=f"w/forecast_{n}", name=f"forecast_{n}", description=same) for n in range(9)]
    others = [Tool(id="m/send", name="send_mail", description="Send a letter to people by electronic mail.")]
    tools = [*twins, *others, Tool(id="s/silent", name="silent")]
    found = lint(tools, registry.build("bm25", Catalogue.of(tools)))
    assert found.silent == ("s/silent",) and found.asked == 10
    assert found.hidden and {each.tool for each in found.hidden} <= {tool.id for tool in twins}
    assert all("almost the same description" in each.causes[0] for each in found.hidden)
    assert found.confused and all(each.twins for each in found.confused)
    assert all(each.missed for each in found.hidden)


def test_lint_asks_for_the_same_sample_in_every_way() -> None:
    tools = [
        Tool(id=f"t/{n}", name=f"list_{n}", description="Lists all open invoices of a customer.") for n in range(30)
    ]
    found = lint(tools, registry.build("bm25", Catalogue.of(tools)), max_tools=10)
    assert found.asked == 10 and found.confused, "pairs show only where a tool is asked for more than once"


def test_lint_puts_what_the_user_can_edit_first(tmp_path: Path) -> None:
    own, twin = "Counts the sheep in a field.", "Read the weather forecast of a town for the coming days."
    tools = [{"name": f"forecast_{n}", "description": twin} for n in range(9)] + [{"name": "silent"}]
    script = tmp_path / "server.py"
    script.write_text((ROOT / "tests" / "servers" / "raw.py").read_text())
    (tmp_path / "zoo.json").write_text(json.dumps(tools))
    servers = {"mine": {"command": sys.executable, "args": [str(script), "good"]}, "theirs": {"command": "absent"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    with Scout(tmp_path / "home") as scout:
        scout.add([*tools, {"name": "sheep", "description": own}], name="answers")
        for locator in (str(tmp_path / "zoo.json"), str(tmp_path / "mcp.json"), "py:json"):
            scout.add(locator)
        assert scout.find_editable() == {"zoo", "mine"}
        catalogue, pipeline = scout.pipeline("bm25")
        found = lint(catalogue.tools(), pipeline, editable=scout.find_editable())
    sources = [each.tool.partition("/")[0] for each in found.hidden]
    assert "zoo" in sources and sources == sorted(sources, key=lambda source: source != "zoo")
    assert found.silent == ("zoo/silent", "answers/silent")
    assert {found.confused[0].one.partition("/")[0], found.confused[0].other.partition("/")[0]} & {"zoo"}
    assert "You can edit mine, zoo: their tools come first." in run("lint", "--home", str(tmp_path / "home")).stdout


def test_the_command_line_lints(toy: Scout) -> None:
    home = ("--home", describe_home(toy.settings.place))
    told = json.loads(run(*home, "lint", "--json").stdout)
    assert told["asked"] == len(generate_queries(toy_tools())) and set(told) == {
        "asked",
        "silent",
        "hidden",
        "confused",
    }
    assert "tools checked" in run(*home, "lint", "--recipe", "bm25").stdout
