"""Builds ToolBank: a model sees ten tools, picks two to five that fit together, and writes a query that needs them.

The two stages are those of the Tool2Vec paper (section 3 and appendix B). The model writes a query with five examples
before it. Then it polishes the query, or answers that the query is good.

Two things are ours. The examples also come from the queries accepted in earlier rounds, so that the model does not
repeat itself. A draft that repeats an example is dropped before it is polished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from toolscout.errors import ConfigError
from toolscout.types import Tool
from toolscout_lab.llm import LLM, Few, card, prompt
from toolscout_lab.llm.prompts import ShownTools, Wording, choose_wording
from toolscout_lab.synth import Dropped, SynthQuery, chance, examples, filler
from toolscout_lab.synth.filters import normalise

__all__ = ["ToolBank"]

TOOLS_OFFERED: Final = 10  # T
TOOLS_CHOSEN: Final = (2, 5)  # M
TYPICAL_TOOLS: Final = 3  # in the reply that a dry run assumes
EXAMPLES_SHOWN: Final = 5


class QueryDraft(msgspec.Struct):
    """The reply of the first stage: ids of the tools that the model picked, a query that needs them, and why."""

    tools: Few[str]
    query: str
    why: str


class Polish(msgspec.Struct):
    """The reply of the second stage: the query as it was if the verdict is `good`, else as a person would ask it."""

    verdict: Literal["good", "refined"]
    query: str
    reason: str


class ToolBank:
    """Builds queries that need several tools.

    A model sees some tools, picks a few that fit together, and writes a query; a second request makes the query sound
    like a person's. The header of this file describes both stages.
    """

    name: str = "toolbank"

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        seed: int = 0,
        shown: int = TOOLS_OFFERED,
        chosen: tuple[int, int] = TOOLS_CHOSEN,
        instructions: str = "",
        wording: Wording = "ours",
    ) -> None:
        """Take the tools and the settings of the paper.

        Args:
            tools: the corpus.
            seed: seed of all random choices.
            shown: number of tools that the model sees at a time (T).
            chosen: least and greatest number of tools that it picks from them (M).
            instructions: what else the model should know, for example about the library; trusted text.
            wording: whose prompts to use.

        Raises:
            ConfigError: if there are fewer tools than `shown`, or `chosen` does not fit `shown`.
        """
        if not 1 <= chosen[0] <= chosen[1] <= shown:
            raise ConfigError(
                f"expected numbers of chosen tools with 1 <= LOW <= HIGH <= {shown}, found {chosen[0]} {chosen[1]}"
            )
        if len(tools) < shown:
            raise ConfigError(f"expected at least {shown} tools to choose from, found {len(tools)}: add more sources")
        self.tools: Sequence[Tool] = sorted(tools, key=lambda tool: tool.id)
        self.seed = seed
        self.wording = choose_wording(("toolbank_query", "toolbank_polish"), wording)
        self.prompts: Sequence[str] = tuple(self.wording.values())
        self.shown, self.chosen, self.instructions = shown, chosen, instructions.strip()
        self.settings: Mapping[str, object] = {
            "shown": shown,
            "chosen": list(chosen),
            "instructions": self.instructions,
        }
        self.drops: Counter[str] = Counter()

    def attempt(self, llm: LLM, number: int, known: Sequence[Mapping[str, object]]) -> SynthQuery:
        """Make one query; see `toolscout_lab.synth.Builder`."""
        source = chance("toolbank", self.seed, number)
        shown = source.sample(self.tools, self.shown)
        pool_sample = source.sample([*examples("toolbank"), *known], EXAMPLES_SHOWN)
        low, high = self.chosen
        task = prompt(
            self.wording["toolbank_query"],
            low=low,
            high=high,
            tools=[card(tool) for tool in shown],
            examples=pool_sample,
        )
        if self.instructions:
            task = task._replace(system=f"{task.system}\n\nFor these functions in particular:\n{self.instructions}")
        typical_tools = [tool.id for tool in shown[: max(low, min(high, TYPICAL_TOOLS))]]
        names = ShownTools(shown)
        draft = llm.ask(
            task,
            QueryDraft,
            example_reply=QueryDraft(typical_tools, filler(source, shown, 24), filler(source, shown, 12)),
            check=lambda reply: _find_fault(reply, names, self.chosen),
            limits={"tools": {"enum": [tool.id for tool in shown], "minItems": low, "maxItems": high}},
        )
        if normalise(draft.query) in {normalise(entry["query"]) for entry in pool_sample}:
            raise Dropped("duplicate")
        polished = llm.ask(
            prompt(self.wording["toolbank_polish"], examples=examples("polish"), query=draft.query),
            Polish,
            example_reply=Polish("refined", draft.query, filler(source, shown, 10)),
        )
        query = draft.query if polished.verdict == "good" else polished.query
        steps = {"shown": [tool.id for tool in shown], "raw": draft.query, "why": draft.why, "polish": polished.verdict}
        return SynthQuery(query.strip(), tuple(map(names.find, draft.tools)), steps)


def _find_fault(reply: QueryDraft, shown: ShownTools, chosen: tuple[int, int]) -> str | None:
    """Say why a draft cannot be used: an unknown tool, too many or few tools, or no request; None: it can."""
    if unknown := shown.find_unknown(reply.tools):
        return f"unknown_tool: {unknown} is not among the functions"
    (low, high), count = chosen, len(set(map(shown.find, reply.tools)))
    if count != len(reply.tools) or not low <= count <= high:
        return f"wrong_count: expected {low} to {high} different functions, found {count}"
    return None if reply.query.strip() else "empty: there is no request"
