"""benchmarks/need.py: its figures against counting, and the page of figures against its results."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolscout.encoders.static import StaticEncoder
from toolscout.search.pipeline import Floors

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "need.json"


@pytest.fixture(scope="module")
def need() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import need as module
    finally:
        sys.path.pop(0)
    return module


def test_auroc_counts_pairs_and_equal_ones_by_half(need: Any) -> None:
    rng = np.random.default_rng(0)
    right, wrong = rng.integers(0, 6, 40) / 5, rng.integers(0, 4, 30) / 5
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    assert need.auroc(right, wrong) == pytest.approx(sum(pairs) / len(pairs))


def test_figures_stop_what_lies_below_and_say_what_that_loses(need: Any) -> None:
    right, wrong = np.linspace(0.2, 1.0, 101), np.linspace(0.0, 0.8, 101)
    found = need.figures(right, wrong, 0.05, threshold=0.4)
    assert found["stopped"] == pytest.approx(np.mean(wrong < 0.24), abs=0.011)
    assert found["stopped_carried"] == pytest.approx(np.mean(wrong < 0.4), abs=0.011)
    assert found["lost_carried"] == pytest.approx(np.mean(right < 0.4), abs=0.011)
    for name in ("auroc", "stopped", "stopped_carried", "lost_carried"):
        low, high = found["ci95"][name]
        assert low <= found[name] <= high


def test_the_page_tells_the_figures_of_the_results() -> None:
    results, page = json.loads(RESULTS.read_text()), (ROOT / "docs" / "results" / "need.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for label, name in (("vectors", "regression on frozen"), ("bundled", "as it ships")):
        [row] = [line for line in rows if line.startswith(f"| {name}")]
        held = results["need"][label]
        for domain in ("metatool", "bfcl", "hammerbench"):
            assert f"{held[domain]['auroc']:.3f}"[1:] in row and f"{100 * held[domain]['stopped']:.0f} %" in row
        assert f"{held['mean']['auroc']:.3f}"[1:] in row and f"{100 * held['mean']['stopped']:.0f} %" in row
    for what in ("near", "foreign"):
        for label, name in (("minilm_top", "MiniLM's cosine"), ("bundled_others", "as it ships")):
            [row] = [line for line in rows if line.startswith(f"| {what}: {name}")]
            held = results["fit"][what][label]
            for domain in ("metatool", "bfcl", "seal_tools_in"):
                told = f"{held[domain]['auroc']:.3f}"[1:], f"{100 * held[domain]['stopped_carried']:.0f} %"
                assert all(each in row for each in told), (what, label, domain)
            assert f"{held['mean']['auroc']:.3f}"[1:] in row


def test_requests_of_few_words_use_a_share_of_the_budget_alone(need: Any) -> None:
    floors = Floors((0.0, 0.01, 0.02), (0.0, 0.0, 0.0), (0.0, 0.3, 0.6))
    texts = ["lights off", "turn the lights of the kitchen off", "please turn all the lights of the kitchen off now"]
    fits = np.array([0.3, 0.4, 0.4])
    mark = functools.partial(need.mark_away, floors, 0.02, texts, np.ones(3))
    assert mark(fits, np.zeros(3)).tolist() == [False, False, True]
    assert mark(fits - 0.2, np.zeros(3)).tolist() == [False, True, True]
    assert mark(fits, np.full(3, -3.0)).tolist() == [False, True, True], "what is clearly chat uses all of it"


def test_only_english_requests_with_a_known_word_count_as_judged(need: Any) -> None:
    static = StaticEncoder()
    texts = ["turn the lights of the kitchen off", "schalte bitte das Licht in der Küche aus", "qzxv"]
    asked = need.Part(texts, {"static": static.encode(texts, "query")}, [[], [], []])
    assert need.mark_judged(asked, static).tolist() == [True, False, False]
