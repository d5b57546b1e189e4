"""A method: the words of logged queries are added to the tools that they used; then BM25 searches those texts."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.indexes.bm25 import BM25
from toolscout.rankers import Artifacts, Recipe
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import Retrieve, Stage
from toolscout.search.resources import Resources
from toolscout.types import Request


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the method: how many queries a tool keeps at most."""

    queries: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class LoggedWords:
    """Adds logged words to the text of each tool."""

    options_type, needs_usage, transfers, abstains, base = Options, True, False, False, None

    def fit(self, resources: Resources, lesson: Lesson, options: Options) -> Artifacts:
        """Collect the queries of each tool, and measure on dev."""
        positions, logged = lesson.positions(), [list[str]() for _ in lesson.tools]
        for query, gold in sorted(lesson.train.items()):
            for tool_id in gold:
                logged[positions[tool_id]].append(lesson.texts[query])
        words = [" ".join(texts[: options.queries]) for texts in logged]
        stage = self.make_stage(Catalogue.of(lesson.tools), words)
        answers = stage([Request(query=text, k=10) for text in lesson.texts_of(lesson.dev)])
        rankings = {query: answer.ids for query, answer in zip(lesson.dev, answers, strict=True)}
        return Artifacts({}, lesson.evaluate(rankings).means(), values={"words": words})

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the stage over the tools of the present catalogue; -1 is a tool that the model does not know."""
        model.check_catalogue(catalogue.tools())
        words, places = model.manifest.values["words"], model.places(catalogue.tools())
        return self.make_stage(catalogue, ["" if place < 0 else words[place] for place in places])

    def make_stage(self, catalogue: Catalogue, words: Sequence[str]) -> Stage:
        """Search the catalogue's tools, each with its logged words behind its description."""
        tools = [
            msgspec.structs.replace(tool, description=f"{tool.description} {more}")
            for tool, more in zip(catalogue.tools(), words, strict=True)
        ]
        return Retrieve(BM25.build(tools), label="logged-words", mask=catalogue.mask)


RECIPE = Recipe("logged-words", "BM25 over tools and the queries that used them.", LoggedWords(), encodes=False)

if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    from toolscout.testing import check_method

    with tempfile.TemporaryDirectory() as folder:
        check_method(RECIPE.method, Path(folder))
    print(f"{RECIPE.name} keeps what a method promises")
