"""ToolBank's builder: a model is shown ten tools, picks two to five that fit together, and writes what needs them.

Two stages, as published (Tool2Vec paper, section 3 and appendix B): generation with five examples, then polish, which
may answer that a query is good. Ours: examples are drawn from what was accepted in earlier rounds, so that the model is
steered away from itself; a draft that repeats an example is dropped before it is polished.
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
    """The reply of the second."""

    verdict: Literal["good", "refined"]
    query: str
    reason: str


class ToolBank:
    """See the head of this file."""

    name = "toolbank"
    prompts = ("toolbank_query", "toolbank_polish")

    def __init__(self, tools: Sequence[Tool], *, seed: int = 0, shown: int = TOOLS_OFFERED) -> None:
        """Take the tools, of which `shown` are put before the model at a time.

        Raises:
            ConfigError: if there are fewer than that.
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
