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
from toolscout.lab.synth import Draft as Made
from toolscout.lab.synth import Dropped, chance, examples, filler
from toolscout.lab.synth.filters import normalise
from toolscout.llm import LLM, card, prompt
from toolscout.types import Tool

__all__ = ["ToolBank"]

TOOLS_OFFERED: Final = 10  # T
TOOLS_CHOSEN: Final = (2, 5)  # M
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

    def __init__(self, tools: Sequence[Tool], *, seed: int = 0, shown: int = TOOLS_OFFERED) -> None:
        """Prepare a build from these tools. The model sees `shown` of them at a time.

        Raises:
            ConfigError: if there are fewer tools.
        """
        if len(tools) < max(shown, TOOLS_CHOSEN[1]):
            raise ConfigError(f"expected at least {shown} tools to choose from, found {len(tools)}: add more sources")
        self.tools, self.seed, self.shown = sorted(tools, key=lambda tool: tool.id), seed, shown
        self.drops: Counter[str] = Counter()

    def attempt(self, llm: LLM, number: int, known: Sequence[Mapping[str, Any]]) -> Made:
        """Make one query; see `toolscout.lab.synth.Builder`."""
        source = chance("toolbank", self.seed, number)
        shown = source.sample(self.tools, self.shown)
        pool_sample = source.sample([*examples("toolbank"), *known], EXAMPLES_SHOWN)
        draft = llm.ask(
            prompt(
                "toolbank_query",
                low=TOOLS_CHOSEN[0],
                high=TOOLS_CHOSEN[1],
                tools=[card(tool) for tool in shown],
                examples=pool_sample,
            ),
            Draft,
            typical=Draft([tool.id for tool in shown[:3]], filler(source, shown, 24), filler(source, shown, 12)),
            check=lambda reply: _find_fault(reply, shown),
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


def _find_fault(reply: Draft, shown: Sequence[Tool]) -> str | None:
    unknown = sorted(set(reply.tools) - {tool.id for tool in shown})
    if unknown:
        return f"unknown_tool: {', '.join(unknown)} is not among the functions"
    if len(set(reply.tools)) != len(reply.tools) or not TOOLS_CHOSEN[0] <= len(reply.tools) <= TOOLS_CHOSEN[1]:
        low, high = TOOLS_CHOSEN
        return f"wrong_count: expected {low} to {high} different functions, found {len(set(reply.tools))}"
    return None if reply.query.strip() else "empty: there is no request"
