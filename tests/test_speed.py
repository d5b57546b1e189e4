"""How long things take, as ratios: what is timed and what it is held against take turns, and the median turn counts.

Only with scripts/check --full: on a machine that others use, time decides nothing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from toolscout.encoders.static import StaticEncoder
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.words import tokenize
from toolscout.scout import Scout
from toolscout.sources.folder import read_tools
from toolscout.testing import toy_tools
from toolscout.trust.policy import Rules
from toolscout.trust.redaction import redact
from toolscout.trust.screening import scan
from toolscout.types import Tool

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def ratio(one: Callable[[], object], other: Callable[[], object], turns: int = 7) -> float:
    """How many times as long the one takes as the other: the median of turns right after each other."""

    def seconds(work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    one(), other()  # what only the first time costs
    return statistics.median(seconds(one) / seconds(other) for _ in range(turns))


def start(*command: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *command], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("command", "most"), [(("-c", "import toolscout"), 6), (("-m", "toolscout", "--help"), 15)], ids=["import", "help"]
)
def test_starting_takes_a_few_times_what_python_itself_takes(command: tuple[str, ...], most: float) -> None:
    assert ratio(start(*command), start("-c", "pass"), 11) <= most


def test_an_index_is_loaded_in_a_fiftieth_of_the_time_in_which_it_is_built(data: Path) -> None:
    tools = read_tools(data / "tool_corpora" / "toucan", "x").tools
    index = BM25.build(tools)
    arrays, meta = index.arrays(), index.meta
    assert ratio(lambda: BM25.from_arrays(arrays, meta, ids=index.ids), lambda: BM25.build(tools), 5) <= 1 / 50


def test_reading_again_what_did_not_change_takes_a_third_of_reading_it(data: Path, tmp_path: Path) -> None:
    folder, homes = str(data / "tool_corpora" / "toucan"), iter(range(100))

    def read() -> None:
        with Scout(tmp_path / str(next(homes))) as scout:
            scout.add(folder)
            scout.embed()

    read()

    def again() -> None:
        with Scout(tmp_path / "0") as scout:
            scout.sync()
            scout.embed()

    assert ratio(again, read, 3) <= 1 / 3


def test_a_query_is_encoded_in_some_fifty_times_what_it_takes_to_cut_it_into_words() -> None:
    encoder = StaticEncoder()
    query = "I'm planning a trip to Oslo next week; will it rain, and which hotels near the station are cheap?"
    many = range(50)
    assert ratio(lambda: [encoder.encode([query]) for _ in many], lambda: [tokenize(query) for _ in many]) <= 50


def grows(work: Callable[[int], object], size: int) -> float:
    """How many times as long a text of twice the size takes; 2 is linear, 4 is quadratic."""
    return ratio(lambda: work(2 * size), lambda: work(size), 5)


@pytest.mark.parametrize("part", ["ignore ", "use this tool ", "read ", "<important ", "i "])
def test_a_scan_of_hostile_text_grows_with_its_length_alone(part: str) -> None:
    tool = toy_tools()[0]
    texts = {count: Tool(id=tool.id, name=tool.name, description=part * count) for count in (4_000, 8_000)}
    assert grows(lambda count: scan(texts[count]), 4_000) <= 3.2


def test_matching_a_hostile_name_grows_with_its_length_alone() -> None:
    rules = Rules(frozenset({"s/" + "a*" * 40 + "b", "s/" + "**/a/" * 40 + "b"}), frozenset({"s/" + "*a" * 40 + "b"}))
    tools = {n: Tool(id="s/" + "a" * n, name="a" * n, path=("a",) * 100) for n in (100_000, 200_000)}
    assert grows(lambda n: rules(tools[n]), 100_000) <= 3.2


@pytest.mark.parametrize("part", ["a.", "b-", "x://", "a:", "sk-", "https://"])
def test_redacting_a_hostile_text_grows_with_its_length_alone(part: str) -> None:
    assert grows(lambda count: redact(f"x://{part * count}"), 10_000) <= 3.2
