"""Asks a decision model outside which of the first tools fits, or whether none does.

Decision models answer typed questions with probabilities instead of text. Several vendors and local servers serve them
in the "System One" format (`POST /v1/systemone`). One question of the type `choice` names the first tools and, last,
"none of these tools". The tools are then ordered by their probabilities. If "none" is likelier than the setting
`max_none`, the answer says that no tool fits: with hits of low confidence, or without hits under the setting `refuse`.

A request that was split into steps needs several tools, so no single choice answers it: it stays as it was. So does a
request whose model doesn't answer in time; the answer then says so in `degraded`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path
from typing import Annotated, Final

import msgspec

from toolscout.errors import BadReply, NotFound, OverBudget, Unavailable
from toolscout.home.catalogue.store import Catalogue
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.types import Answer, Tool
from toolscout_lab.llm import LLM, card
from toolscout_lab.rankers import LabMethod
from toolscout_lab.rankers.shared.reranking import RankDeeper
from toolscout_lab.resources import connect_llm

__all__ = ["AskDecider", "Decided", "DecidedOptions"]

QUESTION: Final = "Which tool should be called to do what the request asks for?"
NONE: Final = "none"
NONE_DESCRIPTION: Final = "None of these tools does what the request asks for, or the request needs no tool."
MAX_OPTIONS: Final = 200  # below the 208 and 255 options that services allow, with one for "none"
MAX_DESCRIPTION_CHARS: Final = 400  # of one option
LATE: Final = "The decision model did not answer in time."


class DecidedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `decided`.

    Attributes:
        base: the recipe that finds the tools.
        model: the folder of its model, if it is fitted.
        depth: number of tools that the decision model chooses from.
        max_none: probability of "none" above which no tool is said to fit.
        seconds: time for one request; then the order of `base` counts.
    """

    base: str = "scout"
    model: str | None = None
    depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_OPTIONS)] = 8
    max_none: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0


class AskDecider(Stage):
    """Orders the first hits by the probabilities of a decision model, and says if none of them fits."""

    asks = True

    def __init__(
        self,
        inner: Stage,
        model: LLM,
        load_tools: Callable[[Sequence[str]], list[Tool]],
        options: DecidedOptions,
        *,
        refuse: bool = False,
    ) -> None:
        """Wrap a pipeline that writes hits.

        Args:
            inner: the pipeline.
            model: the decision model.
            load_tools: ids → tools, in this order.
            options: depth, threshold and time.
            refuse: whether an answer that no tool fits is without hits.
        """
        self.inner, self.model, self.load_tools = RankDeeper(inner, options.depth), model, load_tools
        self.options, self.refuse = options, refuse
        self.writes = inner.writes | {"hits", "weak", "doubt", "reason", "degraded"}
        self.name = f"decided({inner.name})"

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Search, then ask about each request that is one need, several at once."""
        found = self.inner(searches)
        asked = {
            place: self.model.submit(self._choose, search)
            for place, search in enumerate(found)
            if search.hits and not search.steps
        }
        turns = -(-len(asked) // self.model.concurrency)  # rounded up
        ends = time.monotonic() + turns * self.options.seconds
        for place, future in asked.items():
            search = found[place]
            deadline = ends if search.deadline is None else min(ends, search.deadline)
            try:
                found[place] = self._apply(search, future.result(max(0.0, deadline - time.monotonic())))
            except TooLate:
                future.cancel()
                found[place] = _degrade(search, LATE)
            except (BadReply, NotFound, OverBudget, Unavailable) as error:
                found[place] = _degrade(search, str(error))
        return found

    def _choose(self, search: Answer) -> list[float]:
        """Return the probability of each of the first hits, and of "none" last."""
        tools = self.load_tools([hit.id for hit in search.hits[: self.options.depth]])
        options = {str(number): _describe(tool) for number, tool in enumerate(tools, 1)}
        seconds = self.options.seconds
        if search.deadline is not None:
            seconds = min(seconds, max(0.01, search.deadline - time.monotonic()))
        chances = self.model.choose(search.query, QUESTION, {**options, NONE: NONE_DESCRIPTION}, seconds=seconds)
        return list(chances.values())

    def _apply(self, search: Answer, chances: Sequence[float]) -> Answer:
        """Order the hits, which keep the scores of their new places, and doubt them if "none" is likely."""
        *fits, none = chances
        first, rest = search.hits[: len(fits)], search.hits[len(fits) :]
        order = sorted(range(len(first)), key=lambda place: -fits[place])
        moved = tuple(
            msgspec.structs.replace(first[old], score=first[new].score, coverage=first[new].coverage)
            for new, old in enumerate(order)
        )
        search = msgspec.structs.replace(search, hits=moved + rest)
        if none <= self.options.max_none:
            return search
        doubt = f"The decision model finds with a probability of {none:.2f} that none of these tools fits."
        kept = {"hits": (), "weak": search.hits} if self.refuse else {}
        return msgspec.structs.replace(search, reason=doubt, doubt=doubt, **kept)


def _describe(tool: Tool) -> str:
    """Return name and description of a tool as one line."""
    shown = card(tool, parameters=False)
    return f"{shown['name']}: {shown['description']}"[:MAX_DESCRIPTION_CHARS]


def _degrade(search: Answer, problem: str) -> Answer:
    """Say in the answer why the decision model was of no help."""
    parts = [search.degraded] if search.degraded else []
    return msgspec.structs.replace(search, degraded=" ".join([*parts, f"decided: {problem}"]))


class Decided(LabMethod):
    """Lets a decision model outside choose among the first tools of another recipe."""

    options_type = DecidedOptions
    needs_usage = False

    def build(self, resources: Resources, catalogue: Catalogue, options: DecidedOptions) -> Stage:
        """Build the base recipe with the decision model behind it.

        Raises:
            ConfigError: if no model is set (`llm`).
        """
        folder = Path(options.model) if options.model else None
        inner = resources.build_recipe(options.base, catalogue, folder)
        return AskDecider(inner, connect_llm(resources), catalogue.tools, options, refuse=resources.settings.refuse)
