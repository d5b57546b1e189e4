"""MTEB scores a recipe on a retrieval task; the recipe searches the task's documents."""

from __future__ import annotations

from typing import Any

import pytest

from toolscout.errors import NotFound
from toolscout_lab.encoders.mteb_retriever import MtebRetriever

CORPUS = [
    {"id": "rain", "title": "Forecast", "text": "Says whether it rains in a city"},
    {"id": "mail", "title": "Letters", "text": "Sends a letter to a person"},
    {"id": "a/b", "title": "", "text": "Books a table in a restaurant"},
]
QUERIES = {"id": ["q1", "q2"], "text": ["will it rain in the city", "table in a restaurant"]}


def test_documents_of_a_task_are_found_by_their_ids() -> None:
    retriever = MtebRetriever("bm25")
    with pytest.raises(NotFound, match="Call index first"):
        retriever.search(QUERIES, top_k=2)
    retriever.index(CORPUS, hf_split="test", encode_kwargs={}, num_proc=None)
    found = retriever.search(QUERIES, top_k=2, hf_split="test", encode_kwargs={}, num_proc=None)
    assert max(found["q1"], key=found["q1"].__getitem__) == "rain"
    assert max(found["q2"], key=found["q2"].__getitem__) == "a/b"
    assert all(len(hits) <= 2 for hits in found.values())
    ranked = retriever.search(QUERIES, top_k=2, top_ranked={"q1": ["mail"], "q2": ["a/b"]})
    assert "rain" not in ranked["q1"] and list(ranked["q2"]) == ["a/b"]


@pytest.mark.slow
@pytest.mark.timeout(300)  # importing mteb takes a quarter of a minute
def test_mteb_scores_a_recipe_on_a_tiny_task(tmp_path: Any) -> None:
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset
    from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask

    class Tiny(MockRetrievalTask):  # type: ignore[misc]
        def load_data(self, *_: Any, **__: Any) -> None:
            queries = [{"id": name, "text": text} for name, text in zip(QUERIES["id"], QUERIES["text"], strict=True)]
            split = {
                "corpus": Dataset.from_list(CORPUS),
                "queries": Dataset.from_list(queries),
                "relevant_docs": {"q1": {"rain": 1}, "q2": {"mail": 1}},
                "top_ranked": None,
            }
            self.dataset = {"default": dict.fromkeys(self.metadata.eval_splits, split)}
            self.data_loaded = True

    result = mteb.evaluate(MtebRetriever("bm25"), Tiny(), cache=None, overwrite_strategy="always")
    [task] = result.task_results
    assert [part[0]["recall_at_1"] for part in task.scores.values()] == [0.5] * len(
        task.scores
    ) and result.model_name == "toolscout/bm25"
