from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes import top_k
from toolscout.indexes.bm25 import BM25, CODE_SETTINGS, PLAIN_SETTINGS, BM25Settings
from toolscout.indexes.bm25_build import drop_parameters, find_shared_parameters
from toolscout.indexes.words import tokenize
from toolscout.search.home_resources import index_words
from toolscout.testing import check_index
from toolscout.types import Tool


def tool(name: str, description: str = "", *path: str, **parameters: str) -> Tool:
    schema = {"type": "object", "properties": {key: {"description": text} for key, text in parameters.items()}}
    return Tool(
        id=f"s/{name}", name=name, description=description, path=path, parameters=schema if parameters else None
    )


TOOLS = [
    tool("getForecast", "Daily weather forecast for a city", "meteo", city="Name of the town", days="How far ahead"),
    tool("send_email", "Send a message to a recipient", "mailbox", to="Address of the recipient"),
    tool("查询天气", "查询城市天气预报"),
    tool("create_issue", "Open a new ticket", "github"),
    tool("create_card", "Open a new ticket", "trello"),
    tool("rain_radar", "Rain rain rain and more rain over the city"),
]


@pytest.fixture(scope="module")
def index() -> BM25:
    return BM25.build(TOOLS)


# --- top_k ------------------------------------------------------------------------------------------------------------


def test_equal_scores_come_in_order_of_position_at_the_cut_too() -> None:
    scores = np.array([1, 3, 2, 3, 3, 2], dtype=np.float32)
    assert top_k(scores, 2).tolist() == [1, 3]
    assert top_k(scores, 4).tolist() == [1, 3, 4, 2]


def test_top_k_agrees_with_a_full_sort_whatever_is_visible() -> None:
    draw = np.random.default_rng(7)
    for size in (1, 2, 17, 300):
        for _ in range(30):
            scores = draw.integers(-3, 6, size).astype(np.float32)
            visible, floor, k = draw.random(size) < 0.6, float(draw.integers(-4, 4)), int(draw.integers(1, size + 3))
            order = np.argsort(-scores, kind="stable")
            expected = [place for place in order if visible[place] and scores[place] > floor][:k]
            assert top_k(scores, k, visible, floor).tolist() == expected
            assert top_k(scores, k).tolist() == order[:k].tolist()


def test_no_scores_no_k_and_nothing_visible_give_nothing() -> None:
    scores = np.ones(3, dtype=np.float32)
    assert top_k(scores[:0], 5).size == top_k(scores, 0).size == top_k(scores, 2, np.zeros(3, dtype=bool)).size == 0


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="mask of shape"):
        top_k(np.ones(3, dtype=np.float32), 1, np.ones(1, dtype=bool))


# --- search -----------------------------------------------------------------------------------------------------------


def test_the_index_keeps_the_promises_of_an_index(index: BM25) -> None:
    check_index(index, ["weather in the city", "open a ticket", "nothing here fits", "", "天气"])


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("What will the weather be?", "s/getForecast"),
        ("get forecast", "s/getForecast"),
        ("emails", "s/send_email"),
        ("how far ahead", "s/getForecast"),
        ("what is the address", "s/send_email"),
        ("new ticket on trello", "s/create_card"),
        ("new ticket on github", "s/create_issue"),
        ("北京天气", "s/查询天气"),
    ],
)
def test_name_description_parameters_and_path_are_all_searched(index: BM25, query: str, best: str) -> None:
    assert index.search([query], 1)[0] == [[best]]


def test_a_query_without_a_common_word_finds_nothing(index: BM25) -> None:
    ids, [scores] = index.search(["quantum chromodynamics"], 5)
    assert ids == [[]] and scores.size == 0


def test_a_word_repeated_in_the_query_counts_once_unless_asked(index: BM25) -> None:
    assert index.search(["rain rain city"], 9)[1][0].tolist() == index.search(["rain city"], 9)[1][0].tolist()
    counting = BM25.build(TOOLS, repeats=True)
    assert counting.scores("rain rain").max() == pytest.approx(2 * counting.scores("rain").max())


def test_stuffing_a_description_gains_less_and_less() -> None:
    def best(times: int) -> float:
        rivals = [tool(f"t{n}", "weather " + "other words " * 5) for n in range(9)]
        return float(BM25.build([*rivals, tool("stuffed", "weather " * times)], b=0.0).scores("weather").max())

    few, many, endless = best(3), best(30), best(3000)
    assert few < many < endless and endless - many < many - few


def test_one_mask_serves_all_queries_and_each_may_have_its_own(index: BM25) -> None:
    hidden = np.array([tool_id != "s/create_card" for tool_id in index.ids])
    query = "new ticket on trello"
    assert index.search([query], 9, hidden)[0] == [["s/create_issue"]]
    assert index.search([query, query], 1, [hidden, None])[0] == [["s/create_issue"], ["s/create_card"]]


def test_the_order_in_which_tools_are_given_does_not_matter(index: BM25) -> None:
    queries = ["city weather", "open ticket", "rain message"]
    other = BM25.build(TOOLS[::-1])
    assert other.search(queries, 9)[0] == index.search(queries, 9)[0]
    assert all(map(np.array_equal, other.search(queries, 9)[1], index.search(queries, 9)[1]))


def test_scores_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    code = (
        "from toolscout.indexes.bm25 import BM25; from toolscout.types import Tool\n"
        "tools = [Tool(id=f's/{n}', name=f'tool{n}', description='a b c d e f g'[: n * 2]) for n in range(7)]\n"
        "print(BM25.build(tools).scores('b c d e f g tool').tobytes().hex())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_an_empty_catalogue_and_tools_without_words_can_be_searched() -> None:
    assert BM25.build([]).search(["weather"], 5)[0] == [[]]
    assert BM25.build([tool("…"), tool("rain")]).search(["rain"], 5)[0] == [["s/rain"]]


@pytest.mark.parametrize("parameters", [{"properties": []}, {"properties": {"a": True, "b": {"description": 3}}}, {}])
def test_sloppy_parameters_are_no_obstacle(parameters: dict[str, object]) -> None:
    odd = Tool(id="s/odd", name="odd", parameters=parameters)
    assert BM25.build([odd]).search(["odd"], 1)[0] == [["s/odd"]]


def test_scores_equal_those_of_another_implementation() -> None:
    bm25s = pytest.importorskip("bm25s")
    tools = [tool(f"t{n}", " ".join(f"w{(n * n + i * 7) % 23}" for i in range(4 + n % 9))) for n in range(60)]
    mine = BM25.build(tools, PLAIN_SETTINGS, fields={"description": 1})
    other = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    texts = [next(t.description for t in tools if t.id == tool_id) for tool_id in mine.ids]
    other.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    for query in ("w1 w2 w3", "w5 w5 w22", "w0"):
        theirs = other.get_scores(bm25s.tokenize(query, return_ids=False, show_progress=False)[0])
        assert mine.scores(query) == pytest.approx(theirs, abs=1e-5)


def test_the_shipped_settings_are_a_weighted_bm25_of_another_implementation() -> None:
    """bm25s knows no fields and no parts of a word: each word is repeated four times its field's weight.

    The formula has tf / (tf + k1 · length), so that four times tf under four times k1 is the same score.
    """
    bm25s = pytest.importorskip("bm25s")
    names = ["alpha", "beta", "gamma", "delta", "alpha"]
    tools, texts = [], []
    for number in range(40):
        name, path = names[number % 5], ["omega", "sigma"][number % 2]
        description = [f"word{'abcdefg'[(number * number + place) % 7]}" for place in range(3 + number % 11)]
        tools.append(
            Tool(
                id=f"s/{number:02}",
                name=name,
                description=" ".join(description),
                path=(path,),
                parameters={"type": "object", "properties": {"zeta": {"description": "kappa"}} if number % 3 else {}},
            )
        )
        texts.append([name] * 8 + description * 4 + ["zeta", "zeta", "kappa", "kappa"] * bool(number % 3) + [path])
    other = bm25s.BM25(k1=4 * 2.0, b=0.75, method="lucene")
    other.index(texts, show_progress=False)
    mine = BM25.build(tools)
    for query in ("alpha", "worda wordb", "gamma omega", "zeta", "kappa wordc", "delta sigma worde"):
        assert mine.scores(query) == pytest.approx(other.get_scores(query.split()), abs=1e-5), query


@pytest.mark.parametrize(
    ("query", "tool_text", "meet"),
    [
        ("user by id", "getUserById", True),
        ("getUserById", "get_user_by_id", True),
        ("HTTP server", "HTTPServer", True),
        ("forecasting", "forecasts", True),
        ("meteo", "météo", True),
        ("will it be what", "what will it be", False),
        ("please do it for me", "do it for me please", False),
        ("rain", "train", False),
    ],
)
def test_the_shipped_tokenizer_decides_which_words_meet(query: str, tool_text: str, meet: bool) -> None:
    [ids], _ = BM25.build([tool("a", tool_text), tool("b", "nothing of the kind")]).search([query], 1)
    assert ids == (["s/a"] if meet else [])


def test_a_word_that_a_query_repeats_counts_once_as_shipped() -> None:
    index = BM25.build([tool("a", "rain"), tool("b", "snow")])
    assert index.scores("rain rain rain").tolist() == index.scores("rain").tolist()


# --- explanations -----------------------------------------------------------------------------------------------------


def test_explanations_agree_with_the_search_for_every_tool(index: BM25) -> None:
    for query in ("weather forecast for the city", "open a new github ticket", "rain"):
        [ids], [scores] = index.search([query], 99)
        for rank, (tool_id, score) in enumerate(zip(ids, scores, strict=True), 1):
            found = index.explain(query, tool_id)
            assert (found.rank, found.score) == (rank, pytest.approx(score))
            assert sum(found.terms.values()) == pytest.approx(score, rel=1e-5)
            assert set(found.terms) | set(found.missing) == set(tokenize(query))
        for tool_id in set(index.ids) - set(ids):
            absent = index.explain(query, tool_id)
            assert (absent.rank, absent.score, absent.terms) == (None, 0.0, {})


def test_ranks_count_only_visible_rivals(index: BM25) -> None:
    visible = np.array([tool_id != "s/create_card" for tool_id in index.ids])
    assert index.explain("trello ticket", "s/create_issue").rank == 2
    assert index.explain("trello ticket", "s/create_issue", visible).rank == 1


@pytest.mark.parametrize("tool_id", ["s/absent", "", "zzz"])
def test_explaining_an_unknown_tool_says_so(index: BM25, tool_id: str) -> None:
    with pytest.raises(NotFound, match="index has no tool"):
        index.explain("rain", tool_id)


# --- keeping ----------------------------------------------------------------------------------------------------------


def test_an_index_comes_back_from_its_arrays(index: BM25) -> None:
    again = BM25.from_arrays(index.arrays(), json.loads(json.dumps(index.meta)), ids=index.ids)
    queries = ["weather city", "天气", "open ticket"]
    assert again.ids == index.ids and again.settings == index.settings
    assert all(map(np.array_equal, again.search(queries, 9)[1], index.search(queries, 9)[1]))
    assert again.explain("weather", "s/getForecast") == index.explain("weather", "s/getForecast")


@pytest.mark.parametrize(
    "damage",
    [
        {"data": np.ones(3, dtype=np.float32)},
        {"vocabulary.text": np.frombuffer(b"a", dtype=np.uint8)},
        {"vocabulary.places": np.zeros(1, dtype=np.int32)},
        {"indices": np.array([7], dtype=np.int32), "data": np.ones(1, dtype=np.float32)},
        {"indptr": np.array([0, 9], dtype=np.int32)},
    ],
)
def test_damaged_arrays_are_refused(index: BM25, damage: dict[str, np.ndarray]) -> None:
    with pytest.raises(StoreError, match="Build it again"):
        BM25.from_arrays({**index.arrays(), **damage}, index.meta, ids=index.ids)


@pytest.mark.parametrize(
    "change", [{"fingerprint": "other"}, {"settings": {"k1": "much"}}, {"settings": None}, {"n_tools": 3}]
)
def test_an_index_of_another_format_is_refused(index: BM25, change: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="Build it again"):
        BM25.from_arrays(index.arrays(), {**index.meta, **change}, ids=index.ids)


def test_every_setting_changes_the_fingerprint() -> None:
    changes: list[dict[str, object]] = [
        {"tokenizer": "plain"},
        {"stem": False},
        {"stopwords": False},
        {"fold": False},
        {"written": 0},
        {"repeats": True},
        {"fields": {"name": 1}},
        {"glosses": 0},
        {"k1": 1},
        {"b": 0},
    ]
    prints = {CODE_SETTINGS.fingerprint, *(CODE_SETTINGS.replace(**change).fingerprint for change in changes)}
    assert len(prints) == len(changes) + 1 == len(BM25Settings.__struct_fields__) + 1
    assert (
        json.loads(json.dumps(BM25.build(TOOLS, k1=1).meta))["fingerprint"] == CODE_SETTINGS.replace(k1=1.0).fingerprint
    )


@pytest.mark.parametrize(
    "change",
    [
        {"k1": -1},
        {"k1": "much"},
        {"b": 2},
        {"fields": {}},
        {"fields": {"nmae": 1}},
        {"fields": {"name": 0}},
        {"tokenizer": "magic"},
        {"unheard": 1},
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"expected|A BM25 setting is not valid"):
        BM25.build(TOOLS, **change)


def test_building_loading_and_searching_import_no_search_library() -> None:
    code = (
        "import sys; from toolscout.indexes.bm25 import BM25; from toolscout.types import Tool\n"
        "index = BM25.build([Tool(id='s/a', name='rain')]); index.search(['rain'], 1)\n"
        "assert not {'bm25s', 'scipy', 'tqdm', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- with the data ----------------------------------------------------------------------------------------------------

DATA = os.environ.get("TOOLSCOUT_DATA")
with_data = pytest.mark.skipif(not DATA, reason="TOOLSCOUT_DATA is not set")


def tools_of(dataset: str) -> list[Tool]:
    from toolscout.sources.folder import read_tools

    return read_tools(Path(DATA or "") / dataset, "x").tools


@with_data
@pytest.mark.parametrize(
    ("dataset", "expected"),
    [("ultratool", 0.604), ("bfcl_parallel_multiple", 0.797), ("toollinkos", 0.414), ("toollens", 0.317)],
)
def test_plain_settings_reproduce_the_published_baseline(dataset: str, expected: float) -> None:
    folder = Path(DATA or "") / dataset
    gold: dict[str, dict[str, float]] = {}
    for row in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query_id, tool_id, score = row.split("\t")
        gold.setdefault(query_id, {})[f"x/{tool_id}"] = float(score)
    lines = (folder / "queries.jsonl").read_text().splitlines()
    queries = {each["_id"]: each["text"] for each in map(json.loads, lines)}
    found, _ = BM25.build(tools_of(dataset), PLAIN_SETTINGS).search([queries[query_id] for query_id in gold], 5)
    discount = 1 / np.log2(np.arange(2, 7))
    values = [
        sum(grades.get(tool_id, 0.0) * part for tool_id, part in zip(ids, discount, strict=False))
        / (np.array(sorted(grades.values(), reverse=True)[:5]) @ discount[: len(grades)])
        for ids, grades in zip(found, gold.values(), strict=True)
    ]
    assert np.mean(values) == pytest.approx(expected, abs=0.003)


def test_a_word_as_it_is_written_counts_beside_its_stem() -> None:
    tools = [tool("list", "items"), tool("listing", "items")]
    [listing], [scores] = BM25.build(tools).search(["listing"], 2)
    assert listing == ["s/listing", "s/list"] and scores[0] > scores[1] > 0
    stems = BM25.build(tools, written=0.0)
    assert stems.scores("listing")[0] == stems.scores("listing")[1] > 0
    written = BM25.build(tools, stem=False)
    share = BM25.build(tools, written=0.25)
    expected = 0.75 * stems.scores("listing") + 0.25 * written.scores("listing")
    assert share.scores("listing") == pytest.approx(expected)
    explanation = share.explain("listing", "s/listing")
    assert explanation.terms == {"list": pytest.approx(float(expected[1]))}


def test_an_upper_bound_weighs_both_kinds_of_terms() -> None:
    index = BM25.build([tool("list", "items"), tool("other", "another thing")])
    bound, known = index.mass("listing unknown")
    assert bound >= float(index.scores("listing unknown").max()) and known == 0.5


# --- glosses ----------------------------------------------------------------------------------------------------------


def test_english_words_find_a_tool_that_is_described_in_another_language() -> None:
    tools = [
        tool("maoyan_top", "获取猫眼电影票房榜"),
        tool("hupu", "获取虎扑步行街热帖"),
        tool("rain_radar", "Rain over the city"),
    ]
    index = BM25.build(tools)
    assert index.search(["movies at the box office"], 1)[0] == [["s/maoyan_top"]]
    assert index.search(["猫眼电影"], 1)[0] == [["s/maoyan_top"]]
    assert "movi" in index.explain("movies", "s/maoyan_top").terms
    assert BM25.build(tools, glosses=0).search(["movies at the box office"], 1)[0] == [[]]
    weights = index.weigh_query("movies of the box office")
    stored = index.weigh_tool(tools[0])
    score = sum(weight * stored.get(term, 0.0) for term, weight in weights.items())
    assert score == pytest.approx(index.scores("movies of the box office").max(), rel=1e-5) and score > 0


def test_english_tools_keep_their_scores_to_the_bit() -> None:
    english = [one for one in TOOLS if one.name.isascii()]
    with_glosses, without = BM25.build(english), BM25.build(english, glosses=0)
    for name, array in with_glosses.arrays().items():
        assert array.tobytes() == without.arrays()[name].tobytes()


def test_glosses_do_not_lengthen_a_tool() -> None:
    tools = [tool("maoyan_top", "获取猫眼电影票房榜"), tool("rain_radar", "Rain over the city"), tool("snow", "Snow")]
    with_glosses, without = BM25.build(tools), BM25.build(tools, glosses=0)
    assert with_glosses.scores("rain snow 猫眼").tolist() == without.scores("rain snow 猫眼").tolist()
    [heavy, light] = (BM25.build(tools, glosses=weight).scores("movies").max() for weight in (2, 0.5))
    assert heavy > light > 0


def test_a_negative_weight_of_glosses_is_refused() -> None:
    with pytest.raises(ConfigError, match="glosses of 0 or more, found -1"):
        BM25.build(TOOLS, glosses=-1)


# --- instructions and shared parameters -------------------------------------------------------------------------------


def test_a_skill_is_found_by_what_its_instructions_say_most_often() -> None:
    details = " ".join(f"detail{chr(97 + n)}{chr(97 + n)}" for n in range(26))
    filler = " ".join(f"filler{one}{other} filler{one}{other}" for one in "abcdef" for other in "abcdef")
    text = f"Open the invoice. Check the invoice. {details} {filler}"
    skill = Tool(id="s/close", name="close", description="Monthly work", kind="skill", meta={"instructions": text})
    index = BM25.build([*TOOLS, skill])
    assert index.search(["invoice"], 1)[0] == [["s/close"]]
    assert index.search(["detailaa"], 1)[0] == [[]], "a long text has words of every request"
    other = msgspec.structs.replace(skill, kind="tool")
    assert BM25.build([*TOOLS, other]).search(["invoice"], 1)[0] == [[]], "a tool has no instructions"


def test_parameters_that_most_tools_of_a_source_take_carry_no_words() -> None:
    shared = [tool(f"t{n}", "", project="the cloud project", **{f"own{n}": "x"}) for n in range(8)]
    catalogue = Catalogue.of([*shared[:6], *(tool(f"t{n}", "", place="somewhere") for n in (6, 7))])
    assert index_words(catalogue).search(["cloud project", "own3", "place"], 9)[0] == [[], ["s/t3"], ["s/t6", "s/t7"]]
    few = Catalogue.of([*shared[:5], *(tool(f"t{n}", "", place="somewhere") for n in (6, 7, 8))])
    assert len(index_words(few).search(["cloud project"], 9)[0][0]) == 5, "fewer than three quarters of the tools"
    assert len(index_words(Catalogue.of(shared[:7])).search(["project"], 9)[0][0]) == 7, "a source of seven tools"
    assert find_shared_parameters(shared) == {"s": ["project"]}
    assert drop_parameters(shared[0], ["project"]).parameters == {"properties": {"own0": {"description": "x"}}}
    assert drop_parameters(TOOLS[2], ["project"]) is TOOLS[2], "a tool without parameters"
