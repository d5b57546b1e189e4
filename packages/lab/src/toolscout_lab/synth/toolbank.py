"""Builds ToolBank: a model sees ten tools, picks two to five that fit together, and writes a query that needs them.

The two stages are those of the Tool2Vec paper (section 3 and appendix B). The model writes a query with five examples
before it. Then it polishes the query, or answers that the query is good.

Two things are ours. The examples also come from the queries accepted in earlier rounds, so that the model does not
repeat itself. A draft that repeats an example is dropped before it is polished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from toolscout.errors import ConfigError
from toolscout.types import Tool
from toolscout_lab.llm import LLM, card, prompt
from toolscout_lab.synth import Draft as Made
from toolscout_lab.synth import Dropped, chance, examples, filler
from toolscout_lab.synth.filters import normalise

__all__ = ["ToolBank"]

TOOLS_OFFERED: Final = 10  # T
TOOLS_CHOSEN: Final = (2, 5)  # M
TYPICAL_TOOLS: Final = 3  # in the reply that a dry run assumes
EXAMPLES_SHOWN: Final = 5


class Draft(msgspec.Struct):
    """The reply of the first stage."""

    tools: list[str]
    query: str
    why: str


class Polish(msgspec.Struct):
    """The reply of the second stage."""

    verdict: Literal["good", "refined"]
    query: str
    reason: str


class ToolBank:
    """Builds the queries; the header of this file describes the stages."""

    name = "toolbank"
    prompts = ("toolbank_query", "toolbank_polish")

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        seed: int = 0,
        shown: int = TOOLS_OFFERED,
        chosen: tuple[int, int] = TOOLS_CHOSEN,
        instructions: str = "",
    ) -> None:
        """Take the tools and the settings of the paper.

        Args:
            tools: the corpus.
            seed: seed of all random choices.
            shown: number of tools that the model sees at a time (T).
            chosen: least and greatest number of tools that it picks from them (M).
            instructions: what else the model should know, for example about the library; trusted text.

        Raises:
            ConfigError: if there are fewer tools than `shown`, or `chosen` does not fit `shown`.
        """
        if not 1 <= chosen[0] <= chosen[1] <= shown:
            raise ConfigError(
                f"expected numbers of chosen tools with 1 <= LOW <= HIGH <= {shown}, found {chosen[0]} {chosen[1]}"
            )
        if len(tools) < shown:
            raise ConfigError(f"expected at least {shown} tools to choose from, found {len(tools)}: add more sources")
        self.tools, self.seed = sorted(tools, key=lambda tool: tool.id), seed
        self.shown, self.chosen, self.instructions = shown, chosen, instructions.strip()
        self.settings = {"shown": shown, "chosen": list(chosen), "instructions": self.instructions}
        self.drops: Counter[str] = Counter()

    def attempt(self, llm: LLM, number: int, known: Sequence[Mapping[str, Any]]) -> Made:
        """Make one query; see `toolscout_lab.synth.Builder`."""
        source = chance("toolbank", self.seed, number)
        shown = source.sample(self.tools, self.shown)
        pool_sample = source.sample([*examples("toolbank"), *known], EXAMPLES_SHOWN)
        low, high = self.chosen
        task = prompt("toolbank_query", low=low, high=high, tools=[card(tool) for tool in shown], examples=pool_sample)
        if self.instructions:
            task = task._replace(system=f"{task.system}\n\nFor these functions in particular:\n{self.instructions}")
        typical_tools = [tool.id for tool in shown[: max(low, min(high, TYPICAL_TOOLS))]]
        draft = llm.ask(
            task,
            Draft,
            typical=Draft(typical_tools, filler(source, shown, 24), filler(source, shown, 12)),
            check=lambda reply: _find_fault(reply, shown, self.chosen),
        )
        if normalise(draft.query) in {normalise(entry["query"]) for entry in pool_sample}:
            raise Dropped("duplicate")
        polished = llm.ask(
            prompt("toolbank_polish", examples=examples("polish"), query=draft.query),
            Polish,
            typical=Polish("refined", draft.query, filler(source, shown, 10)),
        )
        query = draft.query if polished.verdict == "good" else polished.query
        steps = {"shown": [tool.id for tool in shown], "raw": draft.query, "why": draft.why, "polish": polished.verdict}
        return Made(query.strip(), tuple(draft.tools), steps)


def _find_fault(reply: Draft, shown: Sequence[Tool], chosen: tuple[int, int]) -> str | None:
    unknown = sorted(set(reply.tools) - {tool.id for tool in shown})
    if unknown:
        return f"unknown_tool: {', '.join(unknown)} is not among the functions"
    low, high = chosen
    if len(set(reply.tools)) != len(reply.tools) or not low <= len(reply.tools) <= high:
        return f"wrong_count: expected {low} to {high} different functions, found {len(set(reply.tools))}"
    return None if reply.query.strip() else "empty: there is no request"
