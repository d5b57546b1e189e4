"""The builders against the scripted model over real HTTP, with real tools."""

from __future__ import annotations

import filecmp
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from toolscout.dataset import Dataset
from toolscout.encoders.static import StaticEncoder
from toolscout.errors import ConfigError, SourceError, TimedOut
from toolscout.settings import Settings
from toolscout.types import Tool
from toolscout_lab.llm import LLM, connect
from toolscout_lab.llm.wire import ChatRequest, Completion
from toolscout_lab.synth import build, examples, load_instructions, write_dataset
from toolscout_lab.synth.collect import collect
from toolscout_lab.synth.filters import NearDuplicates, Sieve
from toolscout_lab.synth.toolbank import ToolBank
from toolscout_lab.synth.toollens import ToolLens, not_for_people
from toolscout_lab.testing import Faults, ScriptedLLM, ScriptedServer

WORDS = ("rain", "city", "basket", "letter", "window", "bridge", "garden", "market", "carpet", "violin", "hammer")
MODULES = ("py:statistics", "py:shutil", "py:zipfile", "py:json", "py:datetime", "py:textwrap", "py:calendar")
FAULTY = Faults(bad_json=0.05, once=0.05, unknown=0.06, duplicate=0.06, busy=0.05, broken=0.05, slow=0.02, pause=0.01)


@pytest.fixture(scope="module")
def tools() -> list[Tool]:
    return collect(MODULES, Settings())


def made(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def settings(place: str, home: Path) -> Settings:
    return Settings(home=home, llm=place, llm_concurrency=8)


def same(one: Path, other: Path) -> bool:
    names = ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "report.json", "README.md"]
    return not any(filecmp.cmpfiles(one, other, names, shallow=False)[1:])


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", [80, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["toolbank", "toollens"])
def test_a_builder_drops_what_went_wrong_and_nothing_else(
    tools: list[Tool], tmp_path: Path, kind: str, wanted: int
) -> None:
    with ScriptedServer(ScriptedLLM(faults=FAULTY)) as server, connect(settings(server.place, tmp_path)) as llm:
        builder: Any = ToolBank(tools) if kind == "toolbank" else ToolLens(tools, llm, StaticEncoder())
        done = build(builder, llm, wanted)
        report = write_dataset(tmp_path / "set", builder, done, seed=0, model="scripted", wanted=wanted)
        drops = Counter(report["drops"])
        assert drops["malformed"] + drops["selection_malformed"] == server.llm.count("bad_json") >= 2
        # Two tools without parameters got one scene, so that step 4 is one conversation, whose bad reply is met twice.
        shared = 0 if kind == "toolbank" else 1
        unknown = drops["unknown_tool"] + drops["selection_unknown_tool"]
        assert 2 <= server.llm.count("unknown") <= unknown <= server.llm.count("unknown") + shared
        assert drops["duplicate"] == server.llm.count("duplicate") >= 2
        assert llm.repaired >= server.llm.count("once") >= 2 and server.llm.count("busy") >= 2
        assert max(server.served.values()) == 1
    lost = sum(count for reason, count in drops.items() if not reason.startswith(("tool_", "selection_")))
    assert report["attempts"] == report["queries"] + lost and report["queries"] == wanted
    dataset = Dataset.load(tmp_path / "set")
    assert len(dataset.queries) == wanted and dataset.split("test") and dataset.split("dev")
    least = 2 if kind == "toolbank" else 1  # ToolLens keeps requests for one tool
    assert all(least <= len(gold) <= 5 for split in ("train", "dev", "test") for gold in dataset.split(split).values())
    meta = next(iter(dataset.query_meta.values()))
    assert meta["origin"]["model"] == "scripted" and meta["origin"]["prompts"] and meta["steps"]
    assert report["coverage"] > 0.5 and report["words"]["least"] >= 3


def test_tools_that_are_none_are_counted_wherever_toollens_meets_them(tools: list[Tool]) -> None:
    backend = ScriptedLLM(faults=Faults(unknown=1.0))
    builder = ToolLens(tools[:30], LLM(backend), StaticEncoder())
    assert builder.drops["selection_unknown_tool"] == backend.count("unknown") == 2
    assert len(builder.tools) + sum(builder.drops.values()) - 2 == 30, "the words have had their say"
    done = build(builder, LLM(backend), 3)
    assert not done.drafts and done.drops["unknown_tool"] == 12 == backend.count("unknown") - 2


class LateOnce(ScriptedLLM):
    """Answers the first two requests for a draft or a scene too late."""

    late = 2

    def __call__(self, request: ChatRequest, **rest: Any) -> Completion:
        title = (request.schema or {}).get("title")
        if title in ("QueryDraft", "Scene") and self.late:
            self.late -= 1
            raise TimedOut("The model did not answer in time.")
        return super().__call__(request, **rest)


@pytest.mark.parametrize("kind", ["toolbank", "toollens"])
def test_late_answers_are_counted_and_the_build_goes_on(tools: list[Tool], kind: str) -> None:
    llm = LLM(LateOnce())
    builder: Any = ToolBank(tools) if kind == "toolbank" else ToolLens(tools[:30], LLM(ScriptedLLM()), StaticEncoder())
    done = build(builder, llm, 5)
    assert len(done.drafts) == 5 and done.drops["late"] == 2


def test_a_server_that_answers_nothing_in_time_ends_the_build(tools: list[Tool]) -> None:
    backend = LateOnce()
    backend.late = 10_000
    with pytest.raises(TimedOut):
        build(ToolBank(tools), LLM(backend), 50)


def test_tools_may_be_named_by_their_short_names(tools: list[Tool]) -> None:
    def draft(data: dict[str, Any], chance: random.Random) -> Any:
        names = [tool["name"] for tool in data["tools"]][:2]
        return {"tools": names, "query": f"I want {' '.join(chance.sample(WORDS, 6))}", "why": "so"}

    def select(data: dict[str, Any], chance: random.Random) -> Any:
        return {"verdicts": [{"id": tool["name"], "verdict": "auth"} for tool in data["tools"][:5]]}

    done = build(ToolBank(tools), LLM(ScriptedLLM(answers={"QueryDraft": draft})), 4)
    ids = {tool.id for tool in tools}
    assert len(done.drafts) == 4 and all(set(each.gold) <= ids for each in done.drafts.values())
    builder = ToolLens(tools[:20], LLM(ScriptedLLM(answers={"ToolSelection": select})), StaticEncoder())
    assert builder.drops["tool_auth"] >= 5 and not builder.drops["selection_unknown_tool"]


def test_toollens_says_how_many_groups_of_tools_it_has_selected(tools: list[Tool]) -> None:
    said: list[str] = []
    ToolLens(tools[:50], LLM(ScriptedLLM()), StaticEncoder(), say=said.append)
    assert said[0].startswith("1 of 3 groups of tools selected") and said[-1].startswith("3 of 3")


def systems_of(backend: ScriptedLLM, word: str) -> list[str]:
    """The instructions of the prompts that contain a word."""
    texts = [str(request.messages[0]["content"]) for request in backend.asked]
    return [text for text in texts if word in text]


def test_toolbank_shows_and_wants_as_many_tools_as_it_is_told_and_passes_instructions_on(tools: list[Tool]) -> None:
    def draft(data: dict[str, Any], chance: random.Random) -> Any:
        ids = [tool["id"] for tool in data["tools"]]
        count = chance.choice((1, 2, 3, 4))
        return {"tools": ids[:count], "query": f"I want {' '.join(chance.sample(WORDS, 6))}", "why": str(len(ids))}

    backend = ScriptedLLM(answers={"QueryDraft": draft})
    builder = ToolBank(tools, shown=6, chosen=(3, 4), instructions="Speak of gardens.\n")
    done = build(builder, LLM(backend), 6)
    assert len(done.drafts) == 6
    assert {len(each.gold) for each in done.drafts.values()} == {3, 4}
    assert {each.steps["why"] for each in done.drafts.values()} == {"6"}
    asked = systems_of(backend, "Choose at least")
    assert all("at least 3 and at most 4" in text and "Speak of gardens." in text for text in asked)
    polishing = systems_of(backend, "You edit requests")
    assert polishing and not any("gardens" in text for text in polishing)
    assert builder.settings == {"shown": 6, "chosen": [3, 4], "instructions": "Speak of gardens."}
    plain = ScriptedLLM()
    build(ToolBank(tools), LLM(plain), 2)
    assert not any("in particular" in text for text in systems_of(plain, "Choose at least 2 and at most 5"))
    assert systems_of(plain, "Choose at least")
    for settings_, found in (({"chosen": (3, 2)}, "found 3 2"), ({"shown": 4}, "found 2 5"), ({"shown": 900}, "900")):
        with pytest.raises(ConfigError, match=found):
            ToolBank(tools, **settings_)  # type: ignore[arg-type]


def test_the_wording_of_the_papers_is_used_where_they_print_it(tools: list[Tool]) -> None:
    backend = ScriptedLLM()
    bank = ToolBank(tools, wording="paper")
    assert build(bank, LLM(backend), 2).drafts
    assert bank.prompts == ("paper/toolbank_query", "paper/toolbank_polish")
    assert systems_of(backend, "You are an expert in utilizing a library of functions")
    assert systems_of(backend, "You are an expert at refining user instructions")
    assert not systems_of(backend, "You invent requests")
    other = ScriptedLLM()
    lens = ToolLens(tools, LLM(other), StaticEncoder(), wording="paper")
    assert build(lens, LLM(other), 2).drafts
    assert systems_of(other, "Your task is to generate potential scenes")
    assert "paper/toollens_rewrite" in lens.prompts and "toollens_verify" in lens.prompts


def test_toollens_keeps_requests_for_one_tool_unless_told_otherwise(tools: list[Tool]) -> None:
    nothing_helps = {
        "Checks": lambda data, chance: {
            "checks": [{"id": each["tool"]["id"], "helps": False} for each in data["proposals"]]
        }
    }
    published = ToolLens(tools[:30], LLM(ScriptedLLM()), StaticEncoder())
    done = build(published, LLM(ScriptedLLM(answers=nothing_helps)), 3)
    assert [len(each.gold) for each in done.drafts.values()] == [1, 1, 1] and not done.drops["single_tool"]
    several = ToolLens(tools[:30], LLM(ScriptedLLM()), StaticEncoder(), min_tools=2)
    assert build(several, LLM(ScriptedLLM(answers=nothing_helps)), 3).drops["single_tool"] == 12


def test_toollens_asks_for_as_many_kinds_of_tools_as_it_is_told(tools: list[Tool]) -> None:
    kinds = {"Categories": lambda data, chance: {"categories": [f"find {n} {data['query'][:20]}" for n in range(5)]}}
    backend = ScriptedLLM(answers=kinds)
    builder = ToolLens(tools[:30], LLM(ScriptedLLM()), StaticEncoder(), aspects=5, min_tools=2)
    done = build(builder, LLM(backend), 4)
    assert len(done.drafts) == 4 and all(len(each.steps["kinds"]) == 4 for each in done.drafts.values())
    assert all("exactly five different" in text for text in systems_of(backend, "kinds of functions would help"))
    assert builder.settings == {"aspects": 5, "min_tools": 2}
    assert all('"description":"Step 4."' in text for text in systems_of(backend, "kinds of functions would help"))
    wrong = build(ToolLens(tools[:30], LLM(ScriptedLLM()), StaticEncoder()), LLM(ScriptedLLM(answers=kinds)), 1)
    assert not wrong.drafts and wrong.drops["malformed"] == 4, "five kinds are no three kinds"
    for aspects, min_tools in ((1, 1), (7, 1), (3, 4), (3, 0)):
        with pytest.raises(ConfigError, match=f"found {aspects} aspects and {min_tools} tools"):
            ToolLens(tools[:30], LLM(ScriptedLLM()), StaticEncoder(), aspects=aspects, min_tools=min_tools)


def test_instructions_for_a_library_are_packaged_or_read_from_a_file(tmp_path: Path) -> None:
    assert len({load_instructions(name) for name in ("numpy", "pandas", "boto3")}) == 3
    (tmp_path / "mine.txt").write_text("Speak of gardens.")
    assert load_instructions(str(tmp_path / "mine.txt")) == "Speak of gardens."
    with pytest.raises(ConfigError, match="expected instructions for numpy, pandas, boto3"):
        load_instructions("cobol")


def test_what_the_packaged_examples_say_cannot_come_back(tools: list[Tool]) -> None:
    llm = LLM(ScriptedLLM(faults=Faults(duplicate=1.0)))
    done = build(ToolBank(tools), llm, 5)
    assert not done.drafts and done.drops == {"duplicate": 20}
    with pytest.raises(ConfigError, match="20 duplicate"):
        write_dataset(Path("nowhere"), ToolBank(tools), done, seed=0, model="m", wanted=5)


def test_the_seed_makes_another_dataset_and_the_same_seed_the_same(tools: list[Tool], tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        builder = ToolBank(tools, seed=seed)
        done = build(builder, LLM(ScriptedLLM()), 20)
        write_dataset(tmp_path / name, builder, done, seed=seed, model="scripted", wanted=20)
    assert same(tmp_path / "a", tmp_path / "b") and not same(tmp_path / "a", tmp_path / "c")


def test_a_set_that_is_held_out_stays_out(tools: list[Tool]) -> None:
    first = build(ToolBank(tools), LLM(ScriptedLLM()), 10)
    texts = [draft.query for draft in first.drafts.values()]
    again = build(ToolBank(tools), LLM(ScriptedLLM()), 10, held_out=texts[:4])
    assert again.drops["leak"] == 4 and not set(texts[:4]) & {draft.query for draft in again.drafts.values()}


def test_tools_that_nobody_asks_for_are_left_out_by_words_or_by_the_model(tools: list[Tool]) -> None:
    odd = [
        Tool(id="x/1", name="refresh", description="Refresh the access token."),
        Tool(id="x/2", name="ping_server", description="Says whether it is alive."),
        Tool(id="x/3", name="convert", description="Converts an ID to a name."),
        Tool(id="x/4", name="reset", description="Sets a new password for the service's own account."),
    ]
    assert [not_for_people(tool) for tool in odd] == ["auth", "testing", "id_mapping", None]
    builder = ToolLens([*tools[:10], *odd], LLM(ScriptedLLM()), StaticEncoder())
    assert builder.drops == {"tool_auth": 2, "tool_testing": 1, "tool_id_mapping": 1}
    assert not {tool.id for tool in odd} & {tool.id for tool in builder.tools}


def test_the_kinds_of_a_statement_lead_to_the_nearest_other_tools() -> None:
    tools = [
        Tool(id=f"x/{name}", name=name, description=text)
        for name, text in {
            "rain": "Weather forecast for a city",
            "train": "Railway timetable between two stations",
            "hotel": "Rooms in a hotel",
            "poem": "Writes a poem",
        }.items()
    ]
    said = {
        "Categories": lambda data, chance: {"categories": ["hotel rooms", "weather forecast", "railway timetable"]},
        "Checks": lambda data, chance: {
            "checks": [
                {"id": each["tool"]["id"], "helps": each["tool"]["id"] != "x/hotel"} for each in data["proposals"]
            ]
        },
    }
    builder = ToolLens(tools, LLM(ScriptedLLM()), StaticEncoder())
    place = next(place for place, own in enumerate(builder._order) if builder.tools[own].id == "x/rain")
    draft = builder.attempt(LLM(ScriptedLLM(answers=said)), place, ())
    assert set(draft.gold) == {"x/rain", "x/train"}
    assert set(draft.steps["kinds"].values()) == {"x/train", "x/hotel"}


def test_texts_that_share_most_of_their_words_in_a_row_are_near() -> None:
    near = NearDuplicates(["Plot total sales by region from the file sales.csv for last year"])
    assert "plot total sales by region, from the file: sales csv for last year" in near
    assert near.has_near_duplicate("Plot total sales by region from the file sales.csv for this year")
    assert not near.has_near_duplicate("Which region sold most, by the file of last year?")


def test_a_query_that_names_its_tool_is_refused_and_says_why() -> None:
    tools = [Tool(id="s/get_rain", name="get_rain"), Tool(id="s/copy", name="copy")]
    sieve = Sieve(tools, known=["An example that everybody knows"])
    assert sieve.refuses("Please run get_rain for Oslo", ["s/get_rain"]) == "names_tool"
    assert sieve.refuses("Please run get_rain for Oslo", ["s/copy"]) is None
    assert sieve.refuses("Please copy my files to Oslo", ["s/copy"]) is None
    assert sieve.refuses("an EXAMPLE, that everybody knows!", ["s/copy"]) == "duplicate"
    assert sieve.refuses("too short", ["s/copy"]) == "length"


def test_numpy_and_pandas_come_without_what_toolbank_leaves_out() -> None:
    numpy = {tool.path[-1] for tool in collect(["py:numpy"], Settings())}
    assert {"numpy", "numpy.ndarray", "numpy.linalg"} <= numpy
    assert not {path.split(".")[1] for path in numpy if "." in path} & {"rec", "ctypeslib", "dtypes", "f2py", "testing"}


def test_services_of_aws_become_tools_without_any_connection() -> None:
    pytest.importorskip("botocore")
    tools = {tool.id: tool for tool in collect(["boto3:s3,sns"], Settings())}
    bucket = tools["boto3/s3.create_bucket"]
    assert len(tools) > 100 and bucket.path == ("aws", "s3") and "<" not in bucket.description
    assert bucket.parameters and "Bucket" in bucket.parameters["required"]
    with pytest.raises(SourceError, match="knows no such service"):
        collect(["boto3:nosuch"], Settings())


def test_the_examples_that_come_with_the_package_are_whole() -> None:
    assert len(examples("toolbank")) >= 5
    assert all(2 <= len(each["tools"]) <= 5 and each["query"] for each in examples("toolbank"))
    assert {each["verdict"] for each in examples("polish")} == {"good", "refined"}
