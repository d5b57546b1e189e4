"""A corpus of crawled MCP tools and every OpenAPI document: speed, completeness, search beside bare bm25s.

With TOOLSCOUT_FULL=1 all 13,685 tools of the corpus, else each tenth.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
from pathlib import Path

import pytest

from toolscout.encoders.static import StaticEncoder
from toolscout.scout import Scout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
FULL = os.environ.get("TOOLSCOUT_FULL") == "1"
EACH = 1 if FULL else 10
OPERATIONS = {
    "ecommerce": 46,
    "github_subset": 58,
    "k8s_core_v1": 248,
    "petstore3": 19,
    "spotify_oas": 40,
    "tmdb_oas": 54,
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.fixture
def locators(data: Path, empty: Path) -> list[Path]:
    """What is read: the corpus, or a part of it in a folder of its own, and the OpenAPI documents."""
    corpus = data / "tool_corpora" / "toucan"
    if not FULL:
        lines = (corpus / "corpus.jsonl").read_bytes().splitlines(keepends=True)
        corpus = empty.with_name("part") / "toucan"
        corpus.mkdir(parents=True, exist_ok=True)
        (corpus / "corpus.jsonl").write_bytes(b"".join(lines[::EACH]))
    return [corpus, *sorted((data / "openapi" / "specs").glob("*.json"))]


@pytest.fixture
def home(empty: Path, locators: list[Path]) -> Path:
    """The home that reading is timed on, filled, whichever test comes first."""
    with Scout(empty) as scout:
        if not scout.sources():
            for locator in locators:
                scout.add(locator)
    return empty


def test_everything_is_read_and_nothing_is_embedded_again(
    locators: list[Path], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scout(empty) as scout:
        changes = [change for locator in locators for change in scout.add(locator)]
        scout.embed()
        entries = len((locators[0] / "corpus.jsonl").read_bytes().splitlines())
        assert changes[0].new + len(changes[0].problems) == entries == -(-13_685 // EACH)
        for change, locator in zip(changes[1:], locators[1:], strict=True):
            assert change.new + len(change.problems) == OPERATIONS[locator.stem]
        monkeypatch.setattr(StaticEncoder, "encode", lambda *_: pytest.fail("a text was embedded again"))
        assert not any(change.any for change in scout.sync())
        scout.embed()
        assert scout.store.check() == []


@pytest.mark.full
def test_a_search_takes_at_most_five_times_bare_bm25s(data: Path, home: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
    try:
        import speed
    finally:
        sys.path.pop(0)
    with Scout(home) as scout:
        best = statistics.median(speed.search_beside_bm25s(scout, speed.queries(data))["ratio_p50"] for _ in range(3))
        assert best <= 5
        assert len(list(scout.journal.read())) >= 800


def test_what_is_not_served_is_not_answered(home: Path) -> None:
    with Scout(home) as scout:
        found = scout.search("qzxv wvut plonkh", recipe="bm25")
        assert (found.kind, found.hits) == ("no_tool_fits", ())


def test_searches_from_many_threads_agree_with_searches_alone(home: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    queries = ["weather tomorrow", "send an email", "list pods", "search movies", "create a repository issue"] * 4
    with Scout(home) as scout, ThreadPoolExecutor(8) as pool:
        alone = [scout.search(query, recipe="bm25").ids for query in queries]
        assert list(pool.map(lambda query: scout.search(query, recipe="bm25").ids, queries)) == alone
        assert statistics.mean(len(ids) for ids in alone) == 5


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=[pytest.mark.full, pytest.mark.timeout(3_000)])])
def test_many_tools_are_added_with_progress_by_number(count: int, tmp_path: Path) -> None:
    """Two cores took 240 s of processor time and 850 MB for 200,000 tools: too long for a spinner alone."""
    words = ("create", "delete", "list", "send", "merge", "refund"), ("invoice", "order", "ticket", "folder", "payment")
    with (tmp_path / "tools.jsonl").open("w") as stream:
        for n in range(count):
            verb, noun = words[0][n % 6], words[1][n // 6 % 5]
            tool = {"name": f"{verb}_{noun}_{n}", "description": f"{verb} the {noun} {n} of department {n % 977}."}
            stream.write(json.dumps(tool) + "\n")
    told: list[tuple[int, int]] = []
    with Scout(tmp_path / "home") as scout:
        [change] = scout.add(str(tmp_path / "tools.jsonl"), name="s", embed=False)
        scout.embed(progress=lambda done, total: told.append((done, total)))
        assert change.new == count and scout.search("refund payment 29").ids[0] == "s/refund_payment_29"
    assert len(told) >= 4 and {total for _, total in told} == {count}
    assert (count, count) in told and all(0 < done <= count for done, _ in told)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert count < 200_000 or gigabytes < 4
