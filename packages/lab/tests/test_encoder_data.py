"""The training set of an encoder: what is in it, what is left out, and that it is the same each time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import ConfigError, NotFound
from toolscout.types import Tool
from toolscout_lab.encoder_data import (
    LICENSED_SETS,
    DataPlan,
    TrainingExample,
    TrainingSet,
    build_training_set,
    find_opposites,
)

LABELS = [
    ("add_label", "Put a label on an issue of the repository."),
    ("remove_label", "Take a label off an issue of the repository."),
    ("list_labels", "Show every label of the repository in a table."),
    ("merge_branch", "Bring the commits of one branch into another branch."),
]
WEATHER = [
    ("get_forecast", "Tells how warm and how rainy the next seven days of a city will be."),
    ("air_quality", "Reports how clean the air of a place is, with an index from one to ten."),
]
CORPUS = [
    *((f"git/{name}", name, text, ["dev", "git"]) for name, text in LABELS),
    ("sky/get_forecast", *WEATHER[0], ["life", "sky"]),
    (
        "fork/forecast",
        "fetch_forecast",
        "Tells how warm and how rainy the next seven days of a city will be.",
        ["fork"],
    ),
    ("fork/air", "air_quality", "Reports how clean the air of a place is, with an index from one to five.", ["fork"]),
    ("music/play", "play_song", "Plays a song on the speakers of the living room.", ["life", "music"]),
    ("music/stop", "stop_song", "Silences the speakers. Works at night.", ["life", "music"]),
    ("music/copy", "play_song", "Plays a song on the speakers of the living room.", ["life", "music"]),
]


def write_set(folder: Path, tools: list[tuple[str, str]], queries: dict[str, dict[str, tuple[str, list[str]]]]) -> None:
    """Write a dataset folder; queries: split → id → (text, gold)."""
    (folder / "qrels").mkdir(parents=True)
    rows = [entry(name, name, text, []) for name, text in tools]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = {key: text for part in queries.values() for key, (text, _) in part.items()}
    lines = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items()]
    (folder / "queries.jsonl").write_text("".join(lines))
    for split, part in queries.items():
        pairs = [f"{key}\t{tool}\t1\n" for key, (_, gold) in part.items() for tool in gold]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(pairs))


def entry(tool_id: str, name: str, text: str, path: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"issue_number": {"type": "integer"}}} if "label" in name else None
    return {"_id": tool_id, "title": name, "text": text, "metadata": {"path": path, "parameters": parameters}}


@pytest.fixture
def plan(tmp_path: Path) -> DataPlan:
    requests = {f"t{n}": (f"attach the tag number {n} to my ticket", ["add_label"]) for n in range(6)}
    train = {
        **requests,
        "off": ("get rid of the bug tag on ticket nine", ["remove_label"]),
        "all": ("which tags do we have at all", ["list_labels"]),
        "two": ("swap the tag of ticket four", ["add_label", "remove_label"]),
        "leak": ("Please join my feature branch with main, today!", ["merge_branch"]),
        "almost": ("would you join my feature branch with main for me today please", ["merge_branch"]),
    }
    write_set(
        tmp_path / "labels",
        LABELS,
        {
            "train": train,
            "dev": {"d": ("label it", ["add_label"])},
            "test": {
                "x": ("please join my feature branch with main today", ["merge_branch"]),
                "y": ("would you join my feature branch with main for me today", ["merge_branch"]),
            },
        },
    )
    write_set(
        tmp_path / "weather",
        [*WEATHER, LABELS[0]],
        {
            "train": {"w": ("will it rain in Oslo", ["get_forecast"]), "v": ("tag the ticket", ["add_label"])},
            "dev": {"e": ("is it warm", ["get_forecast"])},
            "test": {"z": ("umbrella tomorrow?", ["get_forecast"])},
        },
    )
    (tmp_path / "corpus").mkdir()
    rows = [json.dumps(entry(*row)) + "\n" for row in CORPUS]
    (tmp_path / "corpus" / "corpus.jsonl").write_text("".join(rows))
    return DataPlan(tmp_path, ("labels", "weather"), "corpus", ("labels", "weather"))


def select(made: TrainingSet, catalogue: str, *kinds: str) -> list[TrainingExample]:
    return [each for each in made.examples if each.catalogue == catalogue and (not kinds or each.kind in kinds)]


def test_train_requests_are_in_and_test_and_nearly_equal_ones_are_not(plan: DataPlan) -> None:
    made = build_training_set(plan)
    texts = {example.text for example in select(made, "labels", "request")}
    assert {"attach the tag number 0 to my ticket", "swap the tag of ticket four"} <= texts
    assert not any("branch" in text or text == "label it" for text in texts)
    assert made.report["sources"]["labels"]["requests_dropped"]["test_request"] == 2


def test_a_tool_with_many_requests_has_few(plan: DataPlan) -> None:
    made = build_training_set(dataclasses.replace(plan, max_requests=2))
    golds = [example.gold for example in select(made, "labels", "request")]
    assert golds.count(("add_label",)) == 2 and golds.count(("add_label", "remove_label")) == 1
    assert made.report["sources"]["labels"]["requests_dropped"]["beyond_max_requests"] == 4


def test_the_corpus_loses_every_tool_that_stands_in_a_test_set(plan: DataPlan) -> None:
    made = build_training_set(dataclasses.replace(plan, held_out_ids={"music/copy"}))
    assert made.report["sources"]["corpus"]["dropped_tools"] == {
        **{f"git/{name}": "definition" for name, _ in LABELS},
        "sky/get_forecast": "definition",
        "fork/forecast": "description",
        "fork/air": "near",
        "music/copy": "id",
    }
    assert {tool.id.partition("/")[2] for tool in made.tools["corpus"]} == {"music/play", "music/stop"}
    assert {each for example in select(made, "corpus") for each in example.gold} == {"music/play", "music/stop"}


def test_what_is_left_out_leaves_nothing_behind(plan: DataPlan) -> None:
    made = build_training_set(dataclasses.replace(plan, leave_out=("labels",)))
    assert select(made, "labels") == [] and "labels" not in made.tools
    assert {example.text for example in select(made, "weather")} == {"will it rain in Oslo"}
    assert made.report["sources"]["weather"]["dropped_tools"] == {"add_label": "definition"}
    assert made.report["sources"]["weather"]["requests_dropped"]["gold_tool_left_out"] == 1
    everything = build_training_set(plan)
    assert {example.text for example in select(everything, "weather")} >= {"will it rain in Oslo", "tag the ticket"}


def test_a_request_of_the_left_out_set_in_any_split_is_left_out_elsewhere(plan: DataPlan) -> None:
    queries = plan.root / "weather" / "queries.jsonl"
    queries.write_text(queries.read_text().replace("will it rain in Oslo", "get rid of the bug tag on ticket nine!"))
    assert select(build_training_set(plan), "weather", "request")[-1].gold == ("get_forecast",)
    made = build_training_set(dataclasses.replace(plan, leave_out=("labels",)))
    assert select(made, "weather") == []


def test_opposites_are_negatives_of_their_own_and_copies_are_none(plan: DataPlan) -> None:
    made = build_training_set(plan)
    [off] = [example for example in select(made, "labels", "request") if example.gold == ("remove_label",)]
    assert off.opposites == ("add_label",) and "add_label" not in off.negatives
    assert set(off.negatives) == {"list_labels", "merge_branch"}
    [both] = [example for example in select(made, "labels", "request") if len(example.gold) == 2]
    assert both.opposites == () and not set(both.gold) & set(both.negatives)
    of = {example.gold: (example.opposites, example.negatives) for example in select(made, "corpus", "description")}
    assert of[("music/play",)] == of[("music/copy",)] == (("music/stop",), ())
    assert of[("music/stop",)] == (("music/play", "music/copy"), ())


def test_fields_of_a_tool_are_queries_for_it_and_say_what_to_hide(plan: DataPlan) -> None:
    made = build_training_set(dataclasses.replace(plan, test_sets=("weather",)))
    texts = {
        (example.kind, example.hidden, example.text)
        for example in select(made, "corpus", "name", "description", "parameters")
        if example.gold in (("git/list_labels",), ("music/stop",))
    }
    assert texts == {
        ("name", "name", "list labels"),
        ("description", "description", "Show every label of the repository in a table."),
        ("parameters", "parameters", "issue number"),
        ("name", "name", "stop song"),
        ("description", "description", "Silences the speakers."),
    }
    kinds = {example.kind for example in select(made, "corpus")}
    assert {"command", "situation"} <= kinds


def test_compound_requests_need_the_tools_of_both(plan: DataPlan) -> None:
    made = build_training_set(dataclasses.replace(plan, max_requests=1, compound_share=1.0))
    compounds = select(made, "labels", "compound")
    assert compounds
    text_of = {query: text for query, (text, _) in read_queries(plan.root / "labels").items()}
    for example in compounds:
        first, second = example.id.rpartition("/")[2].split("+")
        assert text_of[first][1:].rstrip(" .!") in example.text and text_of[second][1:] in example.text
        assert len(example.gold) == 2


def read_queries(folder: Path) -> dict[str, tuple[str, None]]:
    rows = map(json.loads, (folder / "queries.jsonl").read_text().splitlines())
    return {row["_id"]: (row["text"], None) for row in rows}


def test_the_same_plan_gives_the_same_files_and_another_seed_others(plan: DataPlan, tmp_path: Path) -> None:
    small = dataclasses.replace(plan, max_requests=1)
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        build_training_set(dataclasses.replace(small, seed=seed)).write(tmp_path / "out" / name)
    files = {name: sorted((tmp_path / "out" / name).iterdir()) for name in ("one", "again", "other")}
    assert [file.name for file in files["one"]] == ["examples.jsonl", "report.json", "tools.jsonl"]
    contents = {name: [file.read_bytes() for file in places] for name, places in files.items()}
    assert contents["one"] == contents["again"] != contents["other"]
    report = json.loads((tmp_path / "out" / "one" / "report.json").read_text())
    assert report["examples"] == len((tmp_path / "out" / "one" / "examples.jsonl").read_text().splitlines())
    assert report["language_model"] == "unused"


def test_sets_without_a_licence_or_a_train_split_are_refused(plan: DataPlan) -> None:
    assert "toollens" not in LICENSED_SETS and "toolbench" not in LICENSED_SETS
    with pytest.raises(ConfigError, match="toollens may not be trained on"):
        build_training_set(dataclasses.replace(plan, sets=("toollens",)))
    with pytest.raises(ConfigError, match="expected a test set to leave out"):
        build_training_set(dataclasses.replace(plan, leave_out=("label",)))
    (plan.root / "weather" / "qrels" / "train.tsv").unlink()
    with pytest.raises(NotFound, match="weather: expected a split"):
        build_training_set(plan)


def test_a_test_set_that_is_not_there_is_reported(plan: DataPlan) -> None:
    made = build_training_set(dataclasses.replace(plan, test_sets=("labels", "absent")))
    assert made.report["missing_test_sets"] == ["absent"]
    with pytest.raises(ConfigError, match="which is to be left out, is not in"):
        build_training_set(dataclasses.replace(plan, test_sets=("labels", "absent"), leave_out=("absent",)))


def test_opposites_share_a_path_and_all_other_words() -> None:
    names = ("a/addLabel", "a/remove_labels", "b/remove_label", "a/remove_user", "a/lock-door", "a/unlock-door")
    tools = [Tool(id=name, name=name[2:], path=(name[0],)) for name in names]
    pairs = [(one.id, other.id) for one, other in find_opposites(tools)]
    assert pairs == [("a/addLabel", "a/remove_labels"), ("a/lock-door", "a/unlock-door")]
