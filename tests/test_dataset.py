"""Dataset folders are read exactly or refused by file and line; splits and folds keep their promises."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from toolscout import dataset
from toolscout.dataset import (
    Dataset,
    NoTool,
    Prompt,
    drop_leaks,
    in_dev,
    leaks,
    seen_labels,
)
from toolscout.errors import NotFound, SourceError
from toolscout.metrics import score

HEADER = "query-id\tcorpus-id\tscore\n"
SETS = {
    "bfcl": (1471, 1728, 0, 624),
    "bfcl_parallel_multiple": (458, 0, 0, 200),
    "hammerbench": (951, 1531, 0, 333),
    "livemcpbench": (527, 0, 0, 90),
    "mcpproxy_golden": (45, 0, 0, 47),
    "metatool": (199, 14670, 1813, 2364),
    "numpybank": (513, 1604, 0, 394),
    "openapi/restbench_spotify": (40, 0, 0, 56),
    "openapi/restbench_tmdb": (54, 0, 0, 99),
    "seal_tools_in": (4076, 700, 0, 700),
    "toolbench": (2479, 0, 0, 764),
    "toollens": (464, 16893, 0, 1877),
    "toollinkos": (573, 1263, 0, 297),
    "ultratool": (260, 2477, 0, 411),
}


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def qrels_text(qrels: dict[str, list[str]]) -> str:
    return HEADER + "".join(f"{query}\t{tool}\t1\n" for query, tools in qrels.items() for tool in tools)


def make(folder: Path, **splits: dict[str, list[str]]) -> Path:
    """A folder whose corpus and queries are what the splits mention."""
    (folder / "qrels").mkdir(parents=True)
    tools = sorted({tool for qrels in splits.values() for found in qrels.values() for tool in found})
    queries = [query for qrels in splits.values() for query in qrels]
    (folder / "corpus.jsonl").write_text(jsonl([{"_id": tool, "title": "", "text": tool} for tool in tools]))
    (folder / "queries.jsonl").write_text(jsonl([{"_id": query, "text": f"Do {query}"} for query in queries]))
    for split, qrels in splits.items():
        (folder / "qrels" / f"{split}.tsv").write_text(qrels_text(qrels))
    return folder


def first_byte(text: str) -> int:
    return hashlib.blake2b(text.encode()).digest()[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "set", train={f"q{n}": ["a"] for n in range(200)}, test={"t1": ["a", "b"], "t2": ["c"]})


def test_a_folder_is_read_with_bare_ids_and_named_by_its_place_below_the_data_root(folder: Path) -> None:
    dataset = Dataset.load(folder)
    assert dataset.name == "set"
    assert Dataset.load(folder, root=folder.parent.parent).name == f"{folder.parent.name}/set"
    assert Dataset.load(folder, "other", root=folder.parent).name == "other"
    assert dataset.corpus_ids() == ("a", "b", "c")
    assert dataset.queries["t1"] == "Do t1" and dataset.query_meta["t1"] == {}
    assert dataset.split("test") == {"t1": {"a": 1.0, "b": 1.0}, "t2": {"c": 1.0}}
    assert dataset.texts("test") == {"t1": "Do t1", "t2": "Do t2"}


def test_without_a_dev_file_a_tenth_of_train_becomes_dev_by_the_hash_of_the_id(folder: Path) -> None:
    dataset = Dataset.load(folder)
    expected = {f"q{n}" for n in range(200) if first_byte(f"q{n}") < 26}
    assert set(dataset.split("dev")) == expected == {f"q{n}" for n in range(200) if in_dev(f"q{n}")}
    assert 5 < len(expected) < 40
    assert not expected & dataset.split("train").keys()
    assert dataset.split("train+dev").keys() == {f"q{n}" for n in range(200)}


def test_a_dev_file_leaves_train_whole(tmp_path: Path) -> None:
    queries = {f"q{n}": ["a"] for n in range(50)}
    dataset = Dataset.load(make(tmp_path / "set", train=queries, dev={"d": ["a"]}))
    assert dataset.split("train").keys() == queries.keys() and list(dataset.split("dev")) == ["d"]


def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    dataset = Dataset.load(make(tmp_path / "set", test={"q": ["a"]}))
    with pytest.raises(NotFound, match=r"set: expected a split of test, found 'train'; .*--folds query:5"):
        dataset.split("train+dev")


def test_byte_order_marks_carriage_returns_and_blank_lines_do_no_harm(folder: Path) -> None:
    plain = Dataset.load(folder)
    for file in (*folder.glob("*.jsonl"), *folder.glob("qrels/*.tsv")):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert Dataset.load(folder) == plain


def test_line_separators_within_texts_do_not_end_a_line(folder: Path) -> None:
    text = "one\u2028two\x85three\x0cfour"
    with (folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"_id": "odd", "text": "' + text.replace("\x0c", "\\f") + '"}')
    assert Dataset.load(folder).queries["odd"] == text


def test_grades_are_kept_and_tools_without_a_score_above_zero_are_not_gold(folder: Path) -> None:
    (folder / "qrels/test.tsv").write_text(HEADER + "t1\ta\t2\nt1\tb\t0\nt1\tc\t0.5\nt1\ta\t2\n")
    assert Dataset.load(folder).split("test") == {"t1": {"a": 2.0, "c": 0.5}}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("qrels/test.tsv", "t1\ta\t1\n", r"test.tsv, line 1: expected the header .*found 't1\\ta\\t1': add it"),
        ("qrels/test.tsv", "", r"test.tsv, line 1: expected the header"),
        ("qrels/test.tsv", HEADER + "t1\ta\t1\nnobody\ta\t1\n", r"line 3: expected a query .*found 'nobody'"),
        ("qrels/test.tsv", HEADER + "t1\tnothing\t1\n", r"line 2: expected a tool of corpus.jsonl, found 'nothing'"),
        ("qrels/test.tsv", HEADER + "t1\ta\n", r"line 2: expected query-id<TAB>corpus-id<TAB>score"),
        ("qrels/test.tsv", HEADER + "t1\ta\t1\t9\n", r"line 2: expected query-id<TAB>corpus-id<TAB>score"),
        ("qrels/test.tsv", HEADER + "t1\ta\tyes\n", r"line 2: expected query-id<TAB>corpus-id<TAB>score"),
        ("qrels/test.tsv", HEADER + "t1\ta\tnan\n", r"line 2: expected a finite score, found 'nan'"),
        ("qrels/test.tsv", HEADER + "t1\ta\t1\nt1\ta\t2\n", r"line 3: expected one score for query 't1' and tool 'a'"),
        ("qrels/test.tsv", HEADER + "t1\ta\t0\n", r"test.tsv: expected a tool with a score above 0 for query 't1'"),
        ("qrels/test.tsv", HEADER + "q7\ta\t1\n", r"expected each query in one split, found 'q7' in test.tsv and in"),
        ("queries.jsonl", '{"_id": "q0"}\n', r"queries.jsonl, line 1: .*missing required field `text`"),
        ("queries.jsonl", '{"_id": 7, "text": ""}\n', r"queries.jsonl, line 1: .*got `int`"),
        ("queries.jsonl", '\n{"_id": "", "text": ""}\n', r"queries.jsonl, line 2: expected a unique _id"),
        ("corpus.jsonl", '{"_id": "a"}\n{"_id": "a"}\n', r"corpus.jsonl, line 2: .*found 'a' again"),
        ("corpus.jsonl", '{"_id": "a"}\nnot json\n', r"corpus.jsonl, line 2: expected a JSON object"),
        ("corpus.jsonl", '{"_id": "\\ud800"}\n', r"corpus.jsonl, line 1: expected a JSON object"),
        ("corpus.jsonl", '{"_id": "a", "x": ' + "[" * 100_000, r"corpus.jsonl, line 1: expected a JSON object"),
    ],
)
def test_what_cannot_be_right_is_refused_by_file_and_line(folder: Path, file: str, text: str, said: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(SourceError, match=said):
        Dataset.load(folder)


def test_bytes_that_are_no_text_are_refused_by_file_and_line(folder: Path) -> None:
    (folder / "qrels/test.tsv").write_bytes(HEADER.encode() + b"t1\t\xff\t1\n")
    with pytest.raises(SourceError, match=r"test.tsv, line 2: expected query-id"):
        Dataset.load(folder)


def test_a_folder_without_corpus_or_qrels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"corpus.jsonl: expected a readable file, found: No such file"):
        Dataset.load(tmp_path)
    with pytest.raises(SourceError, match=r"expected qrels/test.tsv or another split"):
        Dataset.load(make(tmp_path / "set"))


def test_slices_are_by_gold_length_kind_and_what_training_saw(folder: Path) -> None:
    with (folder / "queries.jsonl").open("a") as stream:
        stream.write(jsonl([{"_id": "t3", "text": "w " * 25, "metadata": {"kind": "multi"}}]))
    with (folder / "qrels/test.tsv").open("a") as stream:
        stream.write("t3\tb\t1\n")
    dataset = Dataset.load(folder)
    assert dataset.groups("test", train=dataset.split("train")) == {
        "gold": {"t1": "2", "t2": "1", "t3": "1"},
        "length": {"t1": "1-10", "t2": "1-10", "t3": "21-40"},
        "kind": {"t3": "multi"},
        "tools": {"t1": "mixed", "t2": "unseen", "t3": "unseen"},
    }
    assert dataset.groups("train").keys() == {"gold", "length"}


# --- folds ------------------------------------------------------------------------------------------------------------


def fold_of(data: str) -> int:
    return int.from_bytes(hashlib.blake2b(data.encode()).digest()[:8], "big") % 5


def test_the_fold_of_a_query_is_the_same_on_every_machine_and_in_every_version() -> None:
    """Eight bytes of BLAKE2b, the greatest first: modulo 5 their order does not matter, modulo 7 it does."""
    for count, folds in ((5, [3, 0, 1, 0, 0, 4, 4, 0]), (7, [6, 4, 4, 5, 3, 5, 5, 0])):
        assert [dataset._choose_fold(f"q{number}".encode(), count) for number in range(8)] == folds


def test_query_folds_are_by_hash_and_score_each_query_once(tmp_path: Path) -> None:
    queries = {f"q{n}": ["a"] for n in range(60)}
    folds = Dataset.load(make(tmp_path / "set", test=queries)).folds("query:5")
    assert len(folds) == 5
    for number, fold in enumerate(folds):
        assert fold.test == [query for query in queries if fold_of(query) == number]
        assert fold.train == [query for query in queries if fold_of(query) != number]


@pytest.mark.parametrize("seed", range(5))
def test_a_parent_fold_trains_on_no_query_that_touches_a_held_out_parent(seed: int) -> None:
    rng = random.Random(seed)
    parent_of = {f"p{n}/{tool}": ("root", f"p{n}") for n in range(40) for tool in "xy"}
    place = {tool: fold_of(json.dumps(parent, separators=(",", ":"))) for tool, parent in parent_of.items()}
    qrels = {f"q{n}": dict.fromkeys(rng.sample(sorted(parent_of), rng.randint(1, 3)), 1.0) for n in range(100)}
    folds = Dataset(Path(), "set", {}, {}, {"test": qrels}, ()).folds("parent:5", parent_of=parent_of)
    assert len(folds) == 5
    for number, fold in enumerate(folds):
        assert fold.train == [query for query in qrels if number not in {place[tool] for tool in qrels[query]}]
        assert fold.test == [query for query in qrels if number == min(place[tool] for tool in qrels[query])]


def test_a_query_across_two_held_out_parents_is_scored_in_the_lower_fold_and_trains_in_neither(tmp_path: Path) -> None:
    parents = {name: fold_of(json.dumps([name])) for name in "abcdefghijkl"}
    low, high = sorted({parents["a"], *parents.values()})[:2]
    of = {fold: next(name for name, place in parents.items() if place == fold) for fold in (low, high)}
    queries = {"both": [of[low], of[high]], **{f"q{name}": [name] for name in parents}}
    dataset = Dataset.load(make(tmp_path / "set", test=queries))
    folds = dataset.folds("parent:5", parent_of={name: (name,) for name in parents})
    where = [number for number, fold in enumerate(folds) if "both" in fold.test]
    assert where == [0] and f"q{of[low]}" in folds[0].test
    assert [("both" in fold.train) for fold in folds] == [False, False] + [True] * (len(folds) - 2)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("query", "found 'query'"),
        ("query:1", "found 'query:1'"),
        ("tool:5", "found 'tool:5'"),
        ("parent:5", "expected a parent for every gold tool, found none for 'a'"),
    ],
)
def test_folds_that_mean_nothing_are_refused(tmp_path: Path, spec: str, said: str) -> None:
    dataset = Dataset.load(make(tmp_path / "set", test={"q": ["a"], "r": ["b"]}))
    with pytest.raises(SourceError, match=said):
        dataset.folds(spec)


def test_a_catalogue_with_one_parent_has_no_parent_folds(tmp_path: Path) -> None:
    dataset = Dataset.load(make(tmp_path / "set", test={"q": ["a"], "r": ["b"]}))
    with pytest.raises(SourceError, match="found a fold without: use query folds"):
        dataset.folds("parent:5", parent_of={"a": (), "b": ()})


# --- leaks and what was seen ------------------------------------------------------------------------------------------


def test_training_copies_of_a_test_text_are_dropped_and_counted() -> None:
    train = {"1": "Book a  flight!", "2": "book a flight to Oslo", "3": "BOOK, a flight", "4": "!!!", "5": "预订 航班"}
    test = {"9": "book a flight", "8": "???", "7": "预订航班。"}
    assert leaks(train, test) == ["1", "3"]
    assert leaks({"4": "!!!"}, {"8": "!!!"}) == ["4"]
    assert drop_leaks({"1": "x", "2": "y"}, train, test) == ({"2": "y"}, ["1"])


def test_seen_mixed_and_unseen_are_judged_by_tool_or_by_what_a_key_makes_of_it() -> None:
    train = {"1": ["a/x"], "2": {"b/x": 1.0}}
    test = {"seen": ["a/x", "b/x"], "mixed": ["a/x", "b/y"], "unseen": ["b/y"], "far": ["c/z"]}
    assert seen_labels(train, test) == {"seen": "seen", "mixed": "mixed", "unseen": "unseen", "far": "unseen"}
    by_parent = seen_labels(train, test, key=lambda tool: tool.split("/")[0])
    assert by_parent == {"seen": "seen", "mixed": "seen", "unseen": "seen", "far": "unseen"}


# --- no tool ----------------------------------------------------------------------------------------------------------


def test_queries_without_tools_are_cut_into_train_calibrate_and_test(tmp_path: Path) -> None:
    rows = [{"_id": f"d{n}", "text": "hi", "metadata": {"split": "dev", "kind": "chat"}} for n in range(100)]
    rows.append({"_id": "t", "text": "hello", "metadata": {"split": "test"}})
    (tmp_path / "queries.jsonl").write_text(jsonl(rows))
    found = NoTool.load(tmp_path)
    assert found.test == [Prompt("t", "hello", "")]
    assert [prompt.id for prompt in found.calibrate] == [f"d{n}" for n in range(100) if first_byte(f"d{n}") < 51]
    assert len(found.train) + len(found.calibrate) == 100 and found.train[0].kind == "chat"


def test_a_query_without_tools_and_without_a_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text(jsonl([{"_id": "d1", "text": "hi", "metadata": None}]))
    with pytest.raises(SourceError, match=r"query 'd1': expected metadata.split dev or test, found None"):
        NoTool.load(tmp_path)


# --- the real sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_a_public_set_loads_with_its_published_counts_and_without_leaks(data: Path, name: str) -> None:
    dataset = Dataset.load(data / name, root=data)
    tools, train, dev, test = SETS[name]
    assert dataset.name == name and len(dataset.corpus_ids()) == tools and len(dataset.split("test")) == test
    learning = dataset.qrels.get("train", {}) | dataset.qrels.get("dev", {})
    assert len(learning) == train + dev
    assert drop_leaks(learning, dataset.queries, dataset.texts("test")) == (learning, [])
    folds = dataset.folds("query:5")
    assert sorted(query for fold in folds for query in fold.test) == sorted(dataset.split("test"))
    perfect = {query: sorted(tools, key=lambda tool: -tools[tool]) for query, tools in dataset.split("test").items()}
    assert set(score(perfect, dataset.split("test"), ["recall@|N|", "comp@|N|", "ndcg@5", "mrr"]).means().values()) == {
        1
    }


def test_the_public_queries_without_tools_load(data: Path) -> None:
    found = NoTool.load(data / "no_tool")
    assert len(found.test) == 2252 and len(found.train) + len(found.calibrate) == 2359
    assert 0.15 < len(found.calibrate) / 2359 < 0.25
    assert {prompt.kind for prompt in found.test} == {prompt.kind for prompt in found.train}
