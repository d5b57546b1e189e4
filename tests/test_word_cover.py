"""An answer's last places go to tools for words that no earlier tool has."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.bm25 import BM25
from toolscout.recipes.registry import build
from toolscout.search.steps.merge import FIRST_COVER_PLACE, WordTable, cover_words, read_words
from toolscout.types import Hit, Search, Tool

HITS = tuple(Hit(f"s/{number:02}", 30.0 - number, "bm25", coverage=number / 20) for number in range(20))


def give_points(first: float = 4.0, second: float = 4.0, repeated: float = 9.0) -> npt.NDArray[np.float32]:
    table = np.zeros((4, len(HITS)), dtype=np.float32)
    table[0, [0, 9]] = repeated  # the first hit has this word already
    table[1, 12] = first
    table[2, [14, 15]] = second
    return table


def as_table(points: npt.NDArray[np.float32], known: float | None = 1.0) -> WordTable:
    return WordTable(points, points, {hit.id: column for column, hit in enumerate(HITS)}, known)


def cover(points: npt.NDArray[np.float32], k: int | None = 10) -> list[str]:
    return [hit.id for hit in cover_words(HITS, as_table(points), k)]


def test_tools_for_words_that_no_earlier_tool_has_take_the_last_places() -> None:
    ids = cover(give_points())
    assert ids[:10] == [*(hit.id for hit in HITS[:8]), "s/12", "s/14"]
    assert sorted(ids) == [hit.id for hit in HITS]
    assert ids[10:12] == ["s/08", "s/09"]


def test_a_word_brings_one_tool() -> None:
    ids = cover(give_points(first=0.0))
    assert ids[8:11] == ["s/14", "s/08", "s/09"]  # 15 repeats the word of 14


def test_few_points_and_repeated_words_move_no_tool() -> None:
    assert cover(give_points(first=2.9, second=1.0)) == [hit.id for hit in HITS]
    assert cover(give_points(first=0.0, second=0.0, repeated=50.0)) == [hit.id for hit in HITS]


@pytest.mark.parametrize(("k", "moved"), [(5, 0), (8, 0), (9, 1), (10, 2), (50, 2), (None, 2)])
def test_the_first_eight_places_stay(k: int | None, moved: int) -> None:
    ids = cover(give_points(), k)
    assert ids[:FIRST_COVER_PLACE] == [hit.id for hit in HITS[:FIRST_COVER_PLACE]]
    assert len({"s/12", "s/14"} & set(ids[8:10])) == moved


def test_scores_never_rise_and_places_keep_their_coverage() -> None:
    covered = cover_words(HITS, as_table(give_points()), 10)
    scores = [hit.score for hit in covered]
    assert scores == sorted(scores, reverse=True)
    assert [hit.coverage for hit in covered] == [hit.coverage for hit in HITS]


def test_verbs_and_labels_of_values_count_for_nothing() -> None:
    names = ("confirm", "flight", "verification", "code", "7788", "seat", "number", "B12", "password", "abc123")
    index = BM25.build_batches([[Tool(id=f"s/{name}", name=name) for name in sorted(names)]])
    request = "Confirm my flight, verification code 7788, seat number: B12, and the password is abc123"
    table = read_words(request, [Hit(tool_id, 1.0, "bm25") for tool_id in index.ids], index)
    has = [tool_id for tool_id, column in table.columns.items() if table.points[:, column].any()]
    assert has == ["s/7788", "s/B12", "s/abc123", "s/flight"] and table.known_share == 1.0


def test_pasted_texts_bring_no_tool() -> None:
    index = give_index()
    hits = tuple(Hit(tool_id, 1.0, "bm25") for tool_id in (*index.ids[:10], "t/menu", "t/seat"))
    request = "NOTE: the menu is new. query: book a seat"
    table = read_words(request, hits, index)
    assert [hit.id for hit in cover_words(hits, table, 10)[8:10]] == ["t/seat", "s/008"]
    assert table.points[:, table.columns["t/menu"]].any()  # its words count for the coverage


def give_index() -> BM25:
    others = [Tool(id=f"s/{number:03}", name=f"book parcel {number}") for number in range(200)]
    found = [Tool(id="t/menu", name="menu", description="a menu"), Tool(id="t/seat", name="seat", description="a seat")]
    return BM25.build_batches([[*others, *found]])


def test_the_share_of_the_words_grows_with_the_tools() -> None:
    shares = as_table(give_points(), known=0.5).list_shares(HITS)
    assert [shares[place] for place in (0, 11, 12, 14, 19)] == pytest.approx([0.125, 0.125, 0.25, 0.375, 0.375])
    assert as_table(give_points(), known=0.5).list_shares(HITS[12:13]) == [0.125]
    assert as_table(give_points()[:0], known=0.0).list_shares(HITS[:2]) == [0.0, 0.0]
    assert as_table(give_points()[:0], known=None).list_shares(HITS) == []


def test_words_that_no_tool_has_lower_the_share() -> None:
    index = BM25.build_batches([[Tool(id="s/a", name="angle"), Tool(id="s/b", name="radians")]])
    hits = [Hit("s/a", 2.0, "bm25"), Hit("s/b", 1.0, "bm25")]
    assert read_words("angle radians", hits, index).list_shares(hits) == [0.5, 1.0]
    assert read_words("angle radians sundial gnomon", hits, index).list_shares(hits) == [0.25, 0.5]
    assert read_words("and the of", hits, index).list_shares(hits) == []


@pytest.mark.parametrize("min_large_tools", [1, 20_000])
def test_the_points_of_the_words_add_up_to_the_score(min_large_tools: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.indexes.large.MIN_LARGE_TOOLS", min_large_tools)
    tools = [Tool(id=f"s/t{n}", name=f"export radians {n}", description="angle " * n) for n in range(9)]
    index = BM25.build_batches([tools])
    ids = ["s/t7", "s/t2"]
    table = index.score_terms("export the angle, export it as text 7", ids)
    scores = dict(zip(index.ids, index.scores("export the angle, export it as text 7"), strict=True))
    assert table.sum(axis=0) == pytest.approx([scores[tool_id] for tool_id in ids])
    assert index.score_terms("nothing known", ids).shape[1] == 2


def test_scout_brings_the_tool_for_a_word_that_is_said_once() -> None:
    similar = [
        Tool(
            id=f"m/sum{number:02}", name=f"sum matrix rows {number}", description="Sum the rows of a matrix of numbers"
        )
        for number in range(12)
    ]
    others = [
        Tool(id=f"o/t{number}", name=f"paint{number}", description=f"Paint wall {number}") for number in range(200)
    ]
    save = Tool(id="m/write", name="write", description="Plots a pivot chart in a spreadsheet")
    request = "Sum the rows of a matrix of numbers into a pivot spreadsheet"
    catalogue = Catalogue.of([*similar, *others, save])
    search, scout = Search(query=request, k=10), build("scout", catalogue)
    [plain], [found] = build("hybrid", catalogue)([search]), scout([search])
    assert "m/write" not in plain.ids[:10] and found.ids[8] == "m/write"
    assert found.ids[:8] == plain.ids[:8]
    explained = {tool_id: scout.explain(search, tool_id) for tool_id in ("m/write", found.ids[9], found.ids[0])}
    ranks = [explanation.rank for explanation in explained.values() if explanation is not None]
    assert ranks == [9, 10, 1]
    first = explained["m/write"]
    assert first is not None and "matches words" in first.note and first.score == found.hits[8].score
