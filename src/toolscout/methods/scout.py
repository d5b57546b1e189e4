"""The house recipe: splits a request into its steps, and serves every step with BM25 and an encoder."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from toolscout.abstain.decision import build_abstainer
from toolscout.arrays import Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import Encoder
from toolscout.indexes.exact import Exact
from toolscout.methods import BaseRule
from toolscout.methods.zero_shot import Hybrid, HybridOptions
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.search.step_search import StepSearch
from toolscout.search.steps import load_splitter
from toolscout.search.word_cover import Compare
from toolscout.workspace import index_words

__all__ = ["Scout"]


class Scout:
    """Searches every step of a request with `hybrid`, and merges the answers; see `search.step_search`."""

    options_type = HybridOptions
    needs_usage = False
    transfers = True
    abstains = False
    base: BaseRule | None = None

    def build(self, resources: Resources, catalogue: Catalogue, options: HybridOptions) -> Stage:
        """Build the search for one step, the splitter, and the judge of whether a tool fits a step."""
        hybrid = Hybrid().build(resources, catalogue, options)
        judge = build_abstainer(resources, catalogue, hybrid)
        words = index_words(catalogue, options.index_settings())
        is_chat = judge.is_clear_chat if judge else None
        encoder, compare = resources.load_encoder(), None
        if encoder.cheap:  # another one would take as long as a search
            compare = _compare_with(resources.index_tools(catalogue, encoder, options.style), encoder)
        return StepSearch(hybrid, load_splitter(), judge, is_chat=is_chat, words=words, compare=compare)


def _compare_with(index: Exact, encoder: Encoder) -> Compare:
    """Return a function that compares a text with tools by their vectors."""

    def compare(text: str, ids: Sequence[str]) -> Vectors:
        positions = [bisect_left(index.ids, tool_id) for tool_id in ids]
        return index.at(encoder.encode([text], kind="query")[0], positions)

    return compare
