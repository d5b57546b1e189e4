"""Builds ToolLens: short requests that several kinds of tools serve (COLT, appendix A.1).

1. Leave out tools that no person asks for: authentication, testing, mapping of ids.
2. Write a scene for a tool.
3. Write a statement from the scene and the tool's parameters alone.
4. Name three kinds of tools (`aspects`) that would serve it. The originating tool takes the nearest kind. Dense search
   finds the most relevant tool of each other kind, which is then verified.
5. Rewrite the statement so that it holds every required parameter.

Differences from the paper: the model verifies instead of people; no tool stands for two kinds. A request with one tool
left is kept, as in the paper, unless `min_tools` says otherwise.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from toolscout.encoders import Encoder, encode_tools
from toolscout.errors import BadReply, ConfigError
from toolscout.types import Tool
from toolscout_lab.llm import LLM, Few, card, prompt
from toolscout_lab.llm.prompts import ShownTools, TrustedText, Wording, choose_wording
from toolscout_lab.progress import Progress, Say, ignore
from toolscout_lab.synth import Dropped, SynthQuery, chance, examples, filler

__all__ = ["ToolLens", "not_for_people"]

STEPS: Final = (
    *("toollens_select", "toollens_scene", "toollens_query", "toollens_categories", "toollens_verify"),
    "toollens_rewrite",
)
TOOLS_PER_QUESTION: Final = 20  # tools in one question of the selection
N_TOOL_KINDS: Final = 3
COUNT_WORDS: Final = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
EXAMPLES_REWRITTEN: Final = 3  # in a prompt of step 5
REJECTION_REASONS: Final = {
    "auth": re.compile(
        r"\b(log ?in|log ?out|sign ?in|oauth|api key|access token|refresh token|authenticat\w+)\b", re.I
    ),
    "testing": re.compile(r"\b(ping|health ?check|test endpoint|dummy|debug\w*|for testing)\b", re.I),
    "id_mapping": re.compile(r"\b(id mapping|map\w* (an? )?ids?|convert\w* (an? )?ids?|ids? to (an? )?ids?)\b", re.I),
}


class ToolVerdict(msgspec.Struct):
    """The verdict on one tool."""

    id: str
    verdict: Literal["everyday", "auth", "testing", "id_mapping"]


class ToolSelection(msgspec.Struct):
    """Step 1."""

    verdicts: Few[ToolVerdict]


class Scene(msgspec.Struct):
    """Step 2."""

    scene: str


class Statement(msgspec.Struct):
    """Step 3."""

    query: str


@functools.cache
def _define_categories(count: int) -> type[Any]:
    """Define the reply of step 4: as many kinds of tools as wanted."""
    texts = Annotated[list[str], msgspec.Meta(min_length=count, max_length=count)]
    namespace = {"__doc__": "Step 4."}
    return msgspec.defstruct("Categories", [("categories", texts)], namespace=namespace, module=__name__)


class Check(msgspec.Struct):
    """Whether a proposed tool helps."""

    id: str
    helps: bool


class Checks(msgspec.Struct):
    """Step 4, verified."""

    checks: Few[Check]


class Rewritten(msgspec.Struct):
    """Step 5."""

    query: str


def not_for_people(tool: Tool) -> str | None:
    """Return why people do not ask for this tool: `auth`, `testing` or `id_mapping`. None: they might."""
    text = f"{tool.name.replace('_', ' ')} {tool.description}"
    return next((reason for reason, words in REJECTION_REASONS.items() if words.search(text)), None)


class ToolLens:
    """Builds the queries; the header of this file lists the steps."""

    name: str = "toollens"

    def __init__(
        self,
        tools: Sequence[Tool],
        llm: LLM,
        encoder: Encoder,
        *,
        seed: int = 0,
        aspects: int = N_TOOL_KINDS,
        min_tools: int = 1,
        wording: Wording = "ours",
        say: Say = ignore,
    ) -> None:
        """Select among the tools (step 1) and embed those that stay.

        Args:
            tools: the corpus.
            llm: makes the selection.
            encoder: of the dense search.
            seed: seed of all random choices.
            aspects: number of kinds of tools that should serve a request.
            min_tools: requests with fewer gold tools are dropped.
            wording: whose prompts to use. The paper has none for selection and verification, which people did.
            say: called with progress messages.

        Raises:
            ConfigError: if fewer tools stay than there are aspects, or for a number out of range.
        """
        if aspects not in COUNT_WORDS or not 1 <= min_tools <= aspects:
            raise ConfigError(
                f"expected {min(COUNT_WORDS)} to {max(COUNT_WORDS)} aspects and from 1 to that many tools, found "
                f"{aspects} aspects and {min_tools} tools"
            )
        self.seed, self.encoder, self.aspects, self.min_tools = seed, encoder, aspects, min_tools
        self.settings: Mapping[str, object] = {"aspects": aspects, "min_tools": min_tools}
        self.wording = choose_wording(STEPS, wording)
        self.prompts: Sequence[str] = tuple(self.wording.values())
        self.drops: Counter[str] = Counter()
        self.tools: Sequence[Tool] = self._select(sorted(tools, key=lambda tool: tool.id), llm, say)
        if len(self.tools) < aspects:
            raise ConfigError(f"expected at least {aspects} tools that people would ask for, found {len(self.tools)}")
        self._rows = encode_tools(lambda texts: encoder.encode(texts, "tool"), self.tools)
        self._order = chance("toollens", seed).sample(range(len(self.tools)), len(self.tools))

    def _select(self, tools: Sequence[Tool], llm: LLM, say: Say) -> list[Tool]:
        """Leave out tools that people do not ask for (step 1): first by words, then by the model."""
        reasons = {tool.id: not_for_people(tool) for tool in tools}
        remaining = [tool for tool in tools if reasons[tool.id] is None]
        self.drops.update(f"tool_{reason}" for reason in reasons.values() if reason)
        starts = range(0, len(remaining), TOOLS_PER_QUESTION)
        groups = [remaining[start : start + TOOLS_PER_QUESTION] for start in starts]

        def ask_verdicts(group: Sequence[Tool]) -> dict[str, str] | BadReply:
            """Return tool id → verdict."""
            names = ShownTools(group)
            try:
                reply = llm.ask(
                    prompt("toollens_select", tools=[card(tool, parameters=False) for tool in group]),
                    ToolSelection,
                    example_reply=ToolSelection([ToolVerdict(tool.id, "everyday") for tool in group]),
                    max_tokens=2048,
                    check=lambda reply: _find_unknown_tools([item.id for item in reply.verdicts], names),
                    limits={"id": {"enum": [tool.id for tool in group]}},
                )
            except BadReply as error:
                return error
            return {names.find(item.id): item.verdict for item in reply.verdicts}

        selected: list[Tool] = []
        answers = Progress(say, "groups of tools selected", len(groups)).count(llm.map(ask_verdicts, groups))
        for group, verdicts in zip(groups, answers, strict=True):
            if isinstance(verdicts, BadReply):  # the word filter has run; the model gave no verdict
                self.drops[f"selection_{verdicts.reason}"] += 1
                verdicts = {}
            for tool in group:
                verdict = verdicts.get(tool.id, "everyday")
                if verdict == "everyday":
                    selected.append(tool)
                else:
                    self.drops[f"tool_{verdict}"] += 1
        return selected

    def attempt(self, llm: LLM, number: int, known: Sequence[Mapping[str, object]]) -> SynthQuery:
        """Make one query; see `toolscout_lab.synth.Builder`."""
        sample, place = divmod(number, len(self.tools))
        tool = self.tools[self._order[place]]
        source = chance("toollens", self.seed, number)
        scene = llm.ask(
            prompt(self.wording["toollens_scene"], tool=card(tool)),
            Scene,
            example_reply=Scene(filler(source, [tool], 4)),
            sample=sample,
        ).scene
        statement = llm.ask(
            prompt(self.wording["toollens_query"], scene=scene, parameters=card(tool).get("parameters", {})),
            Statement,
            example_reply=Statement(filler(source, [tool], 18)),
            sample=sample,
        ).query
        categories_type = _define_categories(self.aspects)
        kinds: list[str] = llm.ask(
            prompt(self.wording["toollens_categories"], query=statement, count=TrustedText(COUNT_WORDS[self.aspects])),
            categories_type,
            example_reply=categories_type([filler(source, [tool], 6) for _ in range(self.aspects)]),
            sample=sample,
        ).categories
        proposed = dict(self._align_kinds(place, kinds))
        gold = (tool.id, *self._verify(llm, statement, proposed))
        if len(gold) < self.min_tools:
            raise Dropped("single_tool")
        tools_by_id = {tool.id: tool for tool in self.tools}
        pool = [*examples("toollens"), *({"query": example["query"]} for example in known)]
        final = llm.ask(
            prompt(
                self.wording["toollens_rewrite"],
                examples=source.sample(pool, EXAMPLES_REWRITTEN),
                query=statement,
                parameters=[card(tools_by_id[id]).get("parameters", {}) for id in gold],
            ),
            Rewritten,
            example_reply=Rewritten(filler(source, [tool], 26)),
            sample=sample,
        ).query
        return SynthQuery(final.strip(), gold, {"scene": scene, "statement": statement, "kinds": proposed})

    def _align_kinds(self, place: int, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (kind, id of the nearest tool) for each kind except the one nearest to the originating tool."""
        origin = self._order[place]
        cosines = self.encoder.encode(list(kinds), "query") @ self._rows.T
        taken = {origin}
        origin_kind = int(np.argmax(cosines[:, origin]))
        for number, kind in enumerate(kinds):
            if number == origin_kind:
                continue
            best = next(int(row) for row in np.argsort(-cosines[number], kind="stable") if int(row) not in taken)
            taken.add(best)
            yield kind, self.tools[best].id

    def _verify(self, llm: LLM, statement: str, proposed: Mapping[str, str]) -> list[str]:
        """Ask which of the proposed tools really help. Returns their ids."""
        tools_by_id = {tool.id: tool for tool in self.tools}
        proposals = {kind: tools_by_id[id] for kind, id in proposed.items()}
        names = ShownTools(list(proposals.values()))
        cards = [{"kind": kind, "tool": card(tool, parameters=False)} for kind, tool in proposals.items()]
        reply = llm.ask(
            prompt("toollens_verify", query=statement, proposals=cards),
            Checks,
            example_reply=Checks([Check(id, True) for id in proposed.values()]),
            check=lambda reply: _find_unknown_tools([item.id for item in reply.checks], names),
            limits={"id": {"enum": list(proposed.values())}},
        )
        helps = {names.find(item.id) for item in reply.checks if item.helps}
        return [id for id in proposed.values() if id in helps]


def _find_unknown_tools(named: Sequence[str], shown: ShownTools) -> str | None:
    unknown = shown.find_unknown(named)
    return f"unknown_tool: {unknown} is not among those that were asked about" if unknown else None
