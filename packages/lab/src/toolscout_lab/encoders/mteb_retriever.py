"""Lets MTEB score a recipe on its retrieval tasks, with the model protocol of mteb 2 (extra `mteb`).

::

    import mteb
    from toolscout_lab.encoders.mteb_retriever import MtebRetriever

    mteb.evaluate(MtebRetriever("hybrid"), mteb.get_tasks(["NFCorpus"]))

The documents of a task become tools, as those of a dataset folder do. Recipes that are fitted need the folder of a
model, and know no document that their model has not seen.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import toolscout
from toolscout.errors import NotFound, require
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.search.pipeline import Cut, Stage
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout_lab.resources import Workspace, search_all

__all__ = ["MtebRetriever"]

SOURCE: Final = "mteb"


class MtebRetriever:
    """Searches the corpus of an MTEB task with a recipe.

    Attributes:
        recipe: its name.
        model: the folder of its model, if it is fitted.
        encoder: name of the encoder; None: that of the recipe.
        settings: timeouts, and where encoders are kept.
    """

    def __init__(
        self,
        recipe: str = "hybrid",
        *,
        model: Path | None = None,
        encoder: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Take a recipe; the attributes describe the arguments."""
        self.recipe, self.model = recipe, model
        self.encoder, self.settings = encoder or registry.recipe(recipe).encoder, settings or Settings()
        self._stage: Stage | None = None

    @property
    def mteb_model_meta(self) -> Any:
        """Name and version, for MTEB's result files."""
        metadata = require("mteb", "mteb").models.ModelMeta
        return metadata.create_empty(
            {
                "name": f"toolscout/{self.recipe}",
                "revision": toolscout.__version__,
                "license": "apache-2.0",
                "open_weights": True,
                "reference": "https://github.com/toolscout/toolscout",
            }
        )

    def index(self, corpus: Iterable[Mapping[str, Any]], **task: Any) -> None:
        """Build the pipeline over the documents of a task. `task` describes it and is not used."""
        with tempfile.TemporaryDirectory() as folder:
            with (Path(folder) / "corpus.jsonl").open("w", encoding="utf-8") as stream:
                for document in corpus:
                    entry = {"_id": document["id"], "title": document.get("title") or "", "text": document["text"]}
                    stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
            (Path(folder) / "queries.jsonl").touch()
            tools = read_tools(Path(folder), SOURCE).tools
        workspace = Workspace(self.encoder, self.settings)
        self._stage = registry.build(self.recipe, Catalogue.of(tools), workspace, model=self.model)

    def search(
        self,
        queries: Mapping[str, Sequence[str]],
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **task: Any,
    ) -> dict[str, dict[str, float]]:
        """Search for the queries of a task.

        Args:
            queries: a table with the columns `id` and `text`.
            top_k: the most documents of a query.
            top_ranked: query → the documents to order, in a reranking task.
            task: describes the task; not used.

        Returns:
            Query → document → score.

        Raises:
            NotFound: before `index`.
        """
        if self._stage is None:
            raise NotFound("There is no corpus to search. Call index first.")
        texts = dict(zip(queries["id"], queries["text"], strict=True))
        found: dict[str, dict[str, float]] = {}
        for query, search in search_all(self._stage >> Cut(top_k), texts, top_k):
            allowed = None if top_ranked is None else set(top_ranked.get(query, ()))
            hits = [(hit.id.partition("/")[2], float(hit.score)) for hit in search.hits]
            found[query] = {name: score for name, score in hits if allowed is None or name in allowed}
        return found
