"""Whether one parent serves a query: what the classifier sees, and that its weights are those of the scaled problem."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from toolscout import encoders
from toolscout.rankers.lesson import Lesson
from toolscout.search.abstain.calibration import sigmoid
from toolscout.search.home_resources import HomeResources
from toolscout.types import Tool
from toolscout_lab.rankers.toolrerank import query_kind
from toolscout_lab.rankers.toolrerank.stages import Families
from toolscout_lab.training.logistic import logistic

THINGS = {"music": ("play a song", "stop the song"), "files": ("copy a file", "delete a file"), "mail": ("send mail",)}
TOOLS = [
    Tool(id=f"d/{parent}/{number}", name=text, description=text, path=(parent,))
    for parent, texts in THINGS.items()
    for number, text in enumerate(texts)
]


def lesson(*, few: int | None = None) -> Lesson:
    """Requests for two things each; only "also" tells those of two parents from those of one."""
    texts, golds = {}, {}
    for number, (one, other) in enumerate(itertools.product(TOOLS, TOOLS)):
        joint = "and also" if one.parent != other.parent else "and then"
        for again, polite in enumerate(("please", "now", "quickly", "")):
            texts[f"q{number}-{again}"] = f"{polite} {one.name} {joint} {other.name}".strip()
            golds[f"q{number}-{again}"] = {one.id: 1, other.id: 1}
    queries = sorted(texts)[:few]
    return Lesson(
        name="things",
        tools=TOOLS,
        texts=texts,
        train={query: golds[query] for query in queries if not query.endswith("-3")},
        dev={query: golds[query] for query in queries if query.endswith("-3")},
    )


def test_a_word_that_a_vector_hardly_shows_decides(tmp_path: Path) -> None:
    task, families = lesson(), Families(TOOLS)
    encoder = encoders.load("static", HomeResources().settings)
    arrays, told = query_kind.fit_classifier(HomeResources(), task, families, encoder)
    one_parent = query_kind.OneParentClassifier(arrays)
    texts = ["sing and also cook", "sing and then cook"]
    assert one_parent(texts, encoder.encode(texts, "query")) == [False, True]
    assert told["accuracy"] > 0.95 and told["crossed"] > 0.95
    assert told["single"] == pytest.approx(9 / 25) and told["majority"] == pytest.approx(16 / 25)
    assert told["words"] == len(arrays["classifier_words"]) and arrays["classifier_words"].dtype == np.uint32
    assert arrays["classifier"].shape == (encoder.dim + told["words"] + 1,)


def test_of_words_those_count_that_neither_few_nor_nearly_all_have() -> None:
    texts = [f"the {'often' if number % 2 else 'else'} {'seldom' if number == 3 else ''}" for number in range(40)]
    words = query_kind._find_common(texts)
    found = query_kind._mark_words(["often", "else", "seldom", "the", "OFTEN else"], words)
    assert found.sum(axis=1).tolist() == [1, 1, 0, 0, 2]


def test_its_weights_say_what_those_of_the_scaled_problem_say() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 4))
    present = (rng.random((60, 3)) < [0.1, 0.4, 0.8]).astype(float)
    labels = vectors[:, 0] + 2 * present[:, 1] + rng.normal(size=60) > 1
    scaled = np.column_stack([vectors, 0.15 * (present - present.mean(axis=0)) / present.std(axis=0)])
    theirs = logistic(scaled, labels, 3e-3)
    rows = np.column_stack([vectors, present])
    ours = query_kind._fit_weights(rows, labels, 3e-3, 3)
    assert sigmoid(rows @ ours[:-1] + ours[-1]) == pytest.approx(sigmoid(scaled @ theirs[:-1] + theirs[-1]))
    assert query_kind._fit_weights(vectors, labels, 3e-3, 0) == pytest.approx(logistic(vectors, labels, 3e-3))


def test_each_training_query_is_judged_by_a_fit_that_left_it_out() -> None:
    """A vector of its own for each query: nothing can be learned of those left out."""
    labels = np.arange(40) % 2 == 0
    part = np.arange(40) // 2 % query_kind.CROSS_VALIDATION_FOLDS
    assert np.array(query_kind._decide(np.eye(40), query_kind._fit_weights(np.eye(40), labels, 1e-3, 0))).tolist() == (
        labels.tolist()
    )
    assert query_kind._cross_validate(np.eye(40), labels, part, 1e-3, 0) == pytest.approx(0.5)


@pytest.mark.parametrize("few", [2, 6])
def test_few_queries_are_enough(tmp_path: Path, few: int) -> None:
    task = lesson(few=4 * few)
    arrays, told = query_kind.fit_classifier(
        HomeResources(), task, Families(TOOLS), encoders.load("static", HomeResources().settings)
    )
    assert 0 <= told["crossed"] <= 1 and np.isfinite(arrays["classifier"]).all()


def test_a_model_without_words_is_read_by_its_vector_alone() -> None:
    one_parent = query_kind.OneParentClassifier({"classifier": np.array([1.0, -1.0, 0.0])})
    assert one_parent(["a", "b"], np.eye(2, dtype=np.float32)) == [True, False]
