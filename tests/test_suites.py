"""benchmarks/suites: the requests written by hand have their counts, their splits and one id each."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scripts_loader import load_script

ROOT = Path(__file__).parent.parent
SUITES = ROOT / "benchmarks" / "suites"
PHRASES = ROOT / "src" / "toolscout" / "search" / "words" / "en.everyday.txt"
LANGUAGES = SUITES / "languages_dev"
TOUCAN = "tool_corpora/toucan"
OPPOSITES = ("opposites.jsonl", *(f"opposites_{name}.jsonl" for name in ("more", "third", "fourth", "fifth", "sixth")))
DEV_BELOW = 85  # of 256: about a third
MAX_LINES_OF_A_VERB_PAIR = 25
LINES = {
    "terse.jsonl": {"test": 100},
    "opposites.jsonl": {"dev": 59, "test": 141},
    "opposites_more.jsonl": {"dev": 103, "test": 103},
    "opposites_third.jsonl": {"dev": 110, "test": 72},
    "opposites_fourth.jsonl": {"test": 200},
    "opposites_fifth.jsonl": {"test": 200},
    "opposites_sixth.jsonl": {"test": 200},
    "one_need.jsonl": {"dev": 71, "test": 129},
    "one_need_more.jsonl": {"dev": 60, "test": 60},
    "one_need_third.jsonl": {"test": 60},
    "joined_by_hand.jsonl": {"dev": 29, "test": 71},
    "everyday.jsonl": {"test": 40},
}
FIELDS = {
    "terse.jsonl": {"_id", "text", "language", "kind", "split"},
    "opposites.jsonl": {"_id", "verbs", "ids", "asked", "query", "split"},
    "opposites_more.jsonl": {"_id", "verbs", "dataset", "ids", "asked", "query", "language", "split"},
    "opposites_third.jsonl": {"_id", "verbs", "dataset", "ids", "asked", "query", "language", "split"},
    "opposites_fourth.jsonl": {"_id", "verbs", "dataset", "ids", "asked", "query", "language", "split"},
    "opposites_fifth.jsonl": {"_id", "verbs", "dataset", "ids", "asked", "query", "language", "split"},
    "opposites_sixth.jsonl": {"_id", "verbs", "dataset", "ids", "asked", "query", "language", "split"},
    "one_need.jsonl": {"_id", "text", "language", "group", "split"},
    "one_need_more.jsonl": {"_id", "text", "language", "split"},
    "one_need_third.jsonl": {"_id", "text", "language", "split"},
    "joined_by_hand.jsonl": {"_id", "text", "language", "form", "steps", "split"},
    "everyday.jsonl": {"_id", "text", "kind", "rubric", "split"},
}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_tools(suite: Path = LANGUAGES) -> list[str]:
    return (suite / "tools.txt").read_text(encoding="utf-8").split()


def read_qrels() -> list[tuple[str, str, str]]:
    rows = (LANGUAGES / "qrels" / "dev.tsv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "query-id\tcorpus-id\tscore"
    return [(query, tool, score) for query, tool, score in (row.split("\t") for row in rows[1:])]


def is_dev(key: str) -> bool:
    return hashlib.blake2b(key.encode()).digest()[0] < DEV_BELOW


@pytest.mark.parametrize("name", LINES)
def test_a_list_has_its_lines_fields_and_splits(name: str) -> None:
    lines = read_lines(SUITES / name)
    assert Counter(line["split"] for line in lines) == LINES[name]
    assert {frozenset(line) for line in lines} == {frozenset(FIELDS[name])}
    assert all(line[field] for line in lines for field in FIELDS[name])


def test_no_id_and_no_request_stands_twice_in_any_list() -> None:
    lines = [line for name in LINES for line in read_lines(SUITES / name)] + read_lines(LANGUAGES / "queries.jsonl")
    requests = Counter((line.get("text") or line["query"]).casefold().strip(" .?!") for line in lines)
    assert [text for text, count in requests.items() if count > 1] == []
    assert len({line["_id"] for line in lines}) == len(lines) == 640 + 120 + 206 + 182 + 3 * 200 + 120 + 60


def test_languages_has_sixty_requests_in_four_languages_and_in_english() -> None:
    queries = read_lines(LANGUAGES / "queries.jsonl")
    assert Counter(query["metadata"]["kind"] for query in queries) == {"de": 15, "es": 15, "zh": 15, "pt": 15, "en": 60}
    assert Counter(query["metadata"]["original"] for query in queries).most_common()[-1][1] == 2
    gold: dict[str, set[str]] = {query["_id"]: set() for query in queries}
    rows = read_qrels()
    for query, tool, score in rows:
        assert score == "1"
        gold[query].add(tool)
    assert sum(map(len, gold.values())) == len(rows)
    assert {len(tools) for tools in gold.values()} == {1, 2, 3}
    assert all(gold[query["_id"]] == gold[query["metadata"]["original"]] for query in queries)
    assert set.union(*gold.values()) <= set(read_tools())


def test_tools_are_some_three_hundred_of_some_thirty_servers() -> None:
    tools = read_tools()
    assert tools == sorted(set(tools))
    assert len(tools) == 323
    assert len({tool.split("/", 1)[0] for tool in tools}) == 32


@pytest.mark.parametrize(("name", "total"), [("terse.jsonl", 30), ("one_need.jsonl", 60), ("joined_by_hand.jsonl", 21)])
def test_some_requests_are_not_english(name: str, total: int) -> None:
    assert sum(line["language"] != "en" for line in read_lines(SUITES / name)) == total


def test_opposites_ask_for_each_side_equally_often() -> None:
    lines = read_lines(SUITES / "opposites.jsonl")
    assert Counter(line["ids"].index(line["asked"]) for line in lines) == {0: 100, 1: 100}
    assert len({tuple(line["ids"]) for line in lines}) == len(lines)
    assert all(len(set(line["ids"])) == 2 and len({tool.split("/")[0] for tool in line["ids"]}) == 1 for line in lines)
    verbs = Counter(line["verbs"] for line in lines)
    assert len(verbs) == 76
    assert max(verbs.values()) <= MAX_LINES_OF_A_VERB_PAIR
    assert all((line["split"] == "dev") == is_dev("|".join(line["ids"])) for line in lines)


def test_further_opposites_share_no_tool_with_the_others_and_no_pair_across_the_split() -> None:
    lines = read_lines(SUITES / "opposites_more.jsonl")
    used = {tool for line in read_lines(SUITES / "opposites.jsonl") for tool in line["ids"]}
    assert not used & {tool for line in lines if line["dataset"] == "tool_corpora/toucan" for tool in line["ids"]}
    assert all(len(set(line["ids"])) == 2 and line["asked"] in line["ids"] for line in lines)
    pairs = {split: {tuple(line["ids"]) for line in lines if line["split"] == split} for split in ("dev", "test")}
    assert not pairs["dev"] & pairs["test"]
    assert Counter(line["language"] for line in lines) == {"en": 164, "de": 14, "es": 14, "zh": 14}


def test_no_pair_of_opposites_is_dev_in_one_list_and_test_in_another() -> None:
    lines = [line for name in OPPOSITES for line in read_lines(SUITES / name)]
    later = [line for line in lines if line["_id"].startswith("opposite-third")]
    before = {frozenset(line["ids"]) for name in OPPOSITES[:2] for line in read_lines(SUITES / name)}
    pairs = {split: {frozenset(line["ids"]) for line in later if line["split"] == split} for split in ("dev", "test")}
    assert not pairs["test"] & (pairs["dev"] | before)
    assert not pairs["dev"] & {frozenset(line["ids"]) for line in lines if line["split"] == "test"}
    asked = Counter(line["ids"].index(line["asked"]) for line in later if line["split"] == "test")
    assert asked == {0: 32, 1: 40}


def test_the_fourth_list_of_opposites_asks_for_pairs_that_no_older_list_has() -> None:
    fourth = read_lines(SUITES / OPPOSITES[3])
    before = {frozenset(line["ids"]) for name in OPPOSITES[:3] for line in read_lines(SUITES / name)}
    pairs = {frozenset(line["ids"]) for line in fourth}
    assert len(pairs) == len(fourth) and not pairs & before
    assert Counter(line["ids"].index(line["asked"]) for line in fourth) == {0: 100, 1: 100}


@pytest.mark.parametrize(("place", "pairs"), [(4, 143), (5, 100)])
def test_a_later_list_of_opposites_asks_for_pairs_that_no_older_list_has_each_tool_once(place: int, pairs: int) -> None:
    lines = read_lines(SUITES / OPPOSITES[place])
    before = {frozenset(line["ids"]) for name in OPPOSITES[:place] for line in read_lines(SUITES / name)}
    asked = Counter((frozenset(line["ids"]), line["asked"]) for line in lines)
    assert len(asked) == len(lines) and not {pair for pair, _ in asked} & before
    assert len({pair for pair, _ in asked}) == pairs
    assert Counter(line["ids"].index(line["asked"]) for line in lines) == {0: 100, 1: 100}


def test_the_same_trap_in_several_languages_stands_on_one_side() -> None:
    lines = read_lines(SUITES / "one_need.jsonl")
    known = {"black-and-white", "buy-and-sell", "tom-and-jerry"}
    assert all((line["split"] == "dev") == (line["group"] in known or is_dev(line["group"])) for line in lines)
    assert known < {line["group"] for line in lines}


def test_joined_requests_have_gold_for_two_to_four_steps() -> None:
    lines = read_lines(SUITES / "joined_by_hand.jsonl")
    assert Counter(len(line["steps"]) for line in lines) == {2: 50, 3: 35, 4: 15}
    assert {line["form"] for line in lines} == {"prose", "sentences", "list"}
    steps = [step for line in lines for step in line["steps"]]
    assert all(step["text"] and step["gold"] for step in steps)
    assert {tool for step in steps for tool in step["gold"]} <= set(read_tools())
    assert all((line["split"] == "dev") == is_dev(line["text"]) for line in lines)


def test_joined_dev_has_gold_among_other_servers_than_languages_dev() -> None:
    lines, tools = read_lines(SUITES / "joined_dev" / "queries.jsonl"), read_tools(SUITES / "joined_dev")
    assert Counter(len(line["steps"]) for line in lines) == {2: 41, 3: 27, 4: 4}
    assert {line["split"] for line in lines} == {"dev"}
    assert len({line["_id"] for line in lines}) == len({line["text"] for line in lines}) == len(lines) == 72
    assert tools == sorted(set(tools)) and len(tools) == 288
    assert {tool for line in lines for step in line["steps"] for tool in step["gold"]} <= set(tools)
    assert {tool.split("/")[0] for tool in tools}.isdisjoint(tool.split("/")[0] for tool in read_tools())


def test_one_need_dev_has_ninety_requests_that_no_other_list_has() -> None:
    lines = read_lines(SUITES / "one_need_dev.jsonl")
    assert Counter(line["language"] == "en" for line in lines) == {True: 76, False: 14}
    assert {frozenset(line) for line in lines} == {frozenset({"_id", "text", "language", "split"})}
    others = {line["text"] for line in read_lines(SUITES / "one_need.jsonl")}
    assert len({line["text"] for line in lines} - others) == len({line["_id"] for line in lines}) == 90


def test_everyday_has_26_single_and_14_compound_requests_with_a_rubric() -> None:
    lines = read_lines(SUITES / "everyday.jsonl")
    assert Counter(line["kind"] for line in lines) == {"single": 26, "compound": 14}
    assert len({line["rubric"] for line in lines}) == len(lines)


def test_no_everyday_phrase_is_a_whole_clause_of_the_everyday_test() -> None:
    def list_words(text: str) -> tuple[str, ...]:
        return tuple(re.findall(r"[\w']+", text.lower().replace("’", "'")))

    texts = [line["text"] for line in read_lines(SUITES / "everyday.jsonl")]
    clauses = {list_words(clause) for text in texts for clause in re.split(r"[,.;:?!]|\band\b|\bthen\b", text)}
    phrases = {list_words(line.partition("\t")[0]) for line in PHRASES.read_text(encoding="utf-8").splitlines()}
    assert len(phrases) > 10_000
    assert {phrase for phrase in phrases & clauses if len(phrase) > 2} == set()


def test_everyday_dev_names_right_tools_and_repeats_no_line_of_the_test_list() -> None:
    lines = read_lines(SUITES / "everyday_dev.jsonl")
    assert {frozenset(line) for line in lines} == {frozenset({"_id", "text", "gold", "split"})}
    assert {line["split"] for line in lines} == {"dev"} and all(line["gold"] for line in lines)
    others = {line["text"] for line in read_lines(SUITES / "everyday.jsonl")}
    assert len({line["text"] for line in lines} - others) == len({line["_id"] for line in lines}) == 72


def test_everyday_compounds_have_steps_with_right_tools_and_repeat_no_line_of_the_test_list() -> None:
    lines = read_lines(SUITES / "everyday_compound_dev.jsonl")
    assert {frozenset(line) for line in lines} == {frozenset({"_id", "text", "steps", "split"})}
    assert {line["split"] for line in lines} == {"dev"} and {len(line["steps"]) for line in lines} == {2, 3}
    assert all(
        step["gold"] and step["text"].lower() in line["text"].lower() for line in lines for step in line["steps"]
    )
    others = {line["text"] for line in read_lines(SUITES / "everyday.jsonl")}
    assert len({line["text"] for line in lines} - others) == len({line["_id"] for line in lines}) == 30


def test_training_leaves_out_the_tools_of_all_test_pairs() -> None:
    ids = load_script("benchmarks/encoder_data.py").read_suite_ids()
    assert set(read_tools()) < ids
    for name in OPPOSITES:
        test = [line for line in read_lines(SUITES / name) if line["split"] == "test"]
        corpus = {tool for line in test for tool in line["ids"] if line.get("dataset", TOUCAN) == TOUCAN}
        assert corpus and corpus <= ids
    assert not [tool for tool in ids if tool.startswith("bfcl")]


def test_the_readme_states_the_counts() -> None:
    readme = (SUITES / "README.md").read_text(encoding="utf-8")
    for name, splits in LINES.items():
        total, dev, test = sum(splits.values()), splits.get("dev", ""), splits["test"]
        assert f"| `{name}` | {total} | {dev} | {test} |".replace("|  |", "| |") in readme


def test_find_opposites_finds_a_pair_and_leaves_others(tmp_path: Path) -> None:
    names = ("addLabel", "remove_labels", "remove_user", "list_labels", "reverse_geocode", "geocode")
    tools = [{"_id": f"server/{name}", "title": name, "text": f"About {name}."} for name in names]
    elsewhere = [
        {"_id": "other/remove_label", "title": "remove_label", "text": "Removes it."},
        {"_id": "server/add_user", "title": "add_user", "text": "Deploy Server X Try in Playground add_user"},
    ]
    folder = tmp_path / "tool_corpora" / "toucan"
    folder.mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps(tool) + "\n" for tool in tools + elsewhere), encoding="utf-8"
    )
    command = [sys.executable, str(SUITES / "find_opposites.py"), "--data", str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    pairs = {(pair["verbs"], *pair["ids"]) for pair in map(json.loads, printed.splitlines())}
    assert pairs == {
        ("add/remove", "server/addLabel", "server/remove_labels"),
        ("geocode/reverse_geocode", "server/geocode", "server/reverse_geocode"),
    }


def test_the_named_tools_exist(data: Path, tmp_path: Path) -> None:
    if not (data / "tool_corpora" / "toucan").is_dir():
        pytest.skip("needs tool_corpora/toucan in the data root")
    corpus = {tool["_id"]: tool["text"] for tool in read_lines(data / "tool_corpora" / "toucan" / "corpus.jsonl")}
    assert {tool for line in read_lines(SUITES / "opposites.jsonl") for tool in line["ids"]} <= set(corpus)
    for line in [line for name in OPPOSITES[1:] for line in read_lines(SUITES / name)]:
        if line["dataset"] == "tool_corpora/toucan":
            assert set(line["ids"]) <= set(corpus)
    elsewhere = [data / name / "corpus.jsonl" for name in ("livemcpbench", "mcpproxy_golden")]
    texts = {" ".join(tool["text"].split()) for path in elsewhere for tool in read_lines(path)}
    assert not texts & {" ".join(corpus[tool].split()) for tool in read_tools()}
    command = [sys.executable, str(SUITES / "build_languages_dev.py"), "--data", str(data), "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    assert [tool["_id"] for tool in read_lines(tmp_path / "corpus.jsonl")] == sorted(
        read_tools(), key=list(corpus).index
    )
