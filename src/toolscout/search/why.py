"""Explains why a tool is missing from an answer, and what would lift it.

Every cause is a fact that can be checked: a rank, a word that the text has or lacks, another tool's text, a filter. A
remedy that changes words is tested: the words are added to the tool, the catalogue is indexed again, and the search is
repeated.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.errors import NotFound
from toolscout.indexes.words import tokenize
from toolscout.search.pipeline import Stage
from toolscout.types import Explanation, Search, Tool, render

__all__ = ["Trial", "Why", "explain", "find", "try_words"]

MIN_TWIN_OVERLAP = 0.8  # overlap of words from which two tools are called near-duplicates
MAX_LIFTING_WORDS = 3  # missing words that are added to a description together
MAX_PARTS = 6  # parts of a request that are tried by themselves
MIN_PART_WORDS = 2
MAX_QUOTED_CHARS = 120  # of a part of a request
MAX_ADVISED_TOOLS = 20  # more tools than this are no advice
REQUEST_WORDS = frozenset(  # words of any request, which say nothing about a tool
    (
        *("want", "need", "help", "please", "like", "much", "find", "know", "give", "tell", "get", "show", "could"),
        *("would", "let", "make", "use", "using", "able", "trying", "looking", "look", "see", "going", "go", "got"),
        *("take", "put", "think", "say", "come", "thanks", "thank", "hello", "hi", "hey", "ok", "okay", "sure", "well"),
        *("something", "anything", "everything", "someone", "thing", "things", "way", "really", "quickly", "also"),
        *("now", "today", "tomorrow", "yesterday", "tonight", "right", "currently", "recently", "soon", "later"),
        *("then", "next", "first", "second", "last", "after", "before", "afterwards", "finally", "one", "two", "three"),
        *("many", "every", "new", "good", "best", "great"),
        *("nice", "big", "interested", "wondering", "maybe", "possible"),
        *("amazing", "interesting", "perfect", "heard", "mood", "ones", "kind", "bit", "lot", "certain", "specific"),
        *("available", "regarding", "related", "wanted", "needed", "asked", "gave", "following", "via"),
    )
)
_PART_END = re.compile(
    r"(?<![,;:.?!])[,;:.?!]+(?:\s+|$)|\s+(?:and|then|also|but|und|dann|y|luego|et|puis|e|depois)\s+", re.IGNORECASE
)
_NAME = re.compile(r"(?<=[^\s.?!:])\s+([A-Z][\w'’-]*)")  # a capital in mid-sentence


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What words would do, if the description of the tool had them.

    Attributes:
        words: the words that were added.
        rank: the rank that the tool then has, from 1; None: no stage ranks it.
        shown: whether that rank is high enough for the answer.
    """

    words: tuple[str, ...]
    rank: int | None
    shown: bool


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation for one tool and one query.

    Attributes:
        tool: id of the tool in question.
        shown: whether the search returns it.
        rank: its rank before the hits are cut, from 1; None: no stage ranks it.
        k: how many tools the search returns.
        stages: the explanation of each ranking stage.
        matched: word of the query → its contribution to the BM25 score.
        missing: words of the query that the tool lacks.
        ahead: (id, score) of the tools that are returned instead.
        step: the part of the request that ranks the tool best, if it has several; None: the whole request does.
        step_rank: the tool's rank when this part is asked by itself.
        stands_for_it: id of the tool that is returned in its place because it does the same.
        causes: sentences, the most important first.
        fixes: sentences; those that add words were tested.
        trial: what words would do that the caller chose; None: none were chosen.
    """

    query: str
    tool: str
    shown: bool
    rank: int | None
    k: int
    stages: tuple[Explanation, ...]
    matched: dict[str, float]
    missing: tuple[str, ...]
    ahead: tuple[tuple[str, float], ...]
    causes: tuple[str, ...]
    fixes: tuple[str, ...]
    trial: Trial | None = None
    step: str | None = None
    step_rank: int | None = None
    stands_for_it: str | None = None


def find(catalogue: Catalogue, name: str) -> str:
    """Return the id of the tool called `name`, which may be an id, or a name that only one tool has.

    Raises:
        NotFound: if there is no such tool, if its source is not searched, or if several tools have the name.
    """
    if name in catalogue.ids:
        return name
    folded = name.casefold()
    same = [
        tool_id for tool_id, title in zip(catalogue.ids, catalogue.names, strict=True) if title.casefold() == folded
    ]
    if len(same) == 1:
        return same[0]
    if same:
        raise NotFound(f"{len(same)} tools are called {name!r}. Name one by its id: {', '.join(same[:5])}")
    for source, (why, names) in catalogue.disabled.items():
        if folded in names:
            raise NotFound(f"{names[folded]} is not searched: source {source!r} is {why}")
    raise NotFound(
        f"expected the id or the name of a tool in the catalogue, found {name!r}. See  toolscout list --tools"
    )


def explain(
    catalogue: Catalogue,
    pipeline: Stage,
    rebuild: Callable[[Catalogue], Stage] | None,
    search: Search,
    tool_id: str,
    answer: Search,
) -> Why:
    """Explain why `tool_id` is, or is not, in `answer`.

    Args:
        catalogue: the snapshot that was searched.
        pipeline: the pipeline that searched it.
        rebuild: returns the same recipe over another snapshot, to test a change; None: nothing is tested.
        search: the query.
        tool_id: an id of the catalogue.
        answer: the result of the pipeline for `search`, with filled hits.
    """
    [tool] = catalogue.tools([tool_id])
    explanation = pipeline.explain(search, tool_id)
    stages = _leaves(explanation) if explanation else ()
    matched, missing = _match_words(search.query, stages)
    shown = tool_id in answer.ids
    hidden = search.visible is not None and not search.visible(tool)
    causes, fixes = _find_role(answer, tool_id), []
    absence: _Absence | None = None
    if hidden:
        causes.append("the caller may not see it: the policy hides it")
        fixes.append("allow the caller to see it")
    elif not shown:
        rank = explanation.rank if explanation else None
        absence = _note_absence(pipeline, search, tool, answer, rank, stages, matched, missing)
        causes, fixes = _explain_absence(absence, catalogue, rebuild)
    return Why(
        query=search.query,
        tool=tool_id,
        shown=shown,
        rank=None if explanation is None or hidden else explanation.rank,
        k=search.k,
        stages=stages,
        matched=matched,
        missing=missing,
        ahead=tuple((hit.id, hit.score) for hit in answer.hits if hit.id != tool_id),
        causes=tuple(causes),
        fixes=tuple(fixes),
        **_describe_part(absence),
    )


def _describe_part(absence: _Absence | None) -> dict[str, Any]:
    """Return the fields of the explanation that name a part of the request, and a tool that stands for the tool."""
    if absence is None:
        return {}
    part = absence.part
    fields = {"step": part.text, "step_rank": part.rank} if part else {}
    return {**fields, "stands_for_it": absence.standing}


def _note_absence(
    pipeline: Stage,
    search: Search,
    tool: Tool,
    answer: Search,
    rank: int | None,
    stages: Sequence[Explanation],
    matched: Mapping[str, float],
    missing: Sequence[str],
) -> _Absence:
    """Return the facts about a tool that a search did not return."""
    standing = next((hit.id for hit in answer.hits if tool.id in hit.similar), None)
    part = None if standing else _find_part(pipeline, search, answer, tool.id, rank)
    demotions = [stage.note for stage in stages if stage.stage == "demote"]
    advisable = _keep_advisable(missing, search.query, part)
    return _Absence(search, tool, answer, rank, demotions, matched, advisable, part, standing)


def _explain_absence(
    absence: _Absence, catalogue: Catalogue, rebuild: Callable[[Catalogue], Stage] | None
) -> tuple[list[str], list[str]]:
    """Return the causes of the absence, and what would lift it."""
    twins = _find_twins(absence.tool, absence.returned_tools)
    causes, fixes = _find_causes(absence, twins), _find_fixes(absence, twins)
    if rebuild and not absence.standing and not absence.is_found_by_part:
        lift = _lift(catalogue, rebuild, absence.search, absence.tool, absence.missing)
        fixes = [lift, *fixes] if lift else fixes
    return causes, fixes


class _Part(NamedTuple):
    """A part of a request, and the rank of the tool when it is asked by itself."""

    text: str
    rank: int
    is_step: bool


def _find_part(pipeline: Stage, search: Search, answer: Search, tool_id: str, rank: int | None) -> _Part | None:
    """Return the part of a request that ranks the tool best; None: the whole request ranks it as well.

    The parts are the steps of the answer, or else the clauses of the request.
    """
    parts = answer.steps or _cut_clauses(search.query)
    alone = [msgspec.structs.replace(search, query=part, split=False) for part in parts[:MAX_PARTS]]
    ranked = [
        _Part(one.query, explanation.rank, bool(answer.steps))
        for one in alone
        if (explanation := pipeline.explain(one, tool_id)) is not None and explanation.rank is not None
    ]
    best = min(ranked, key=lambda part: part.rank, default=None)
    return best if best is not None and (rank is None or best.rank < rank or best.is_step) else None


def _cut_clauses(query: str) -> tuple[str, ...]:
    """Cut a request at marks and conjunctions; empty if it has one clause."""
    clauses = tuple(
        clause.strip()
        for clause in _PART_END.split(" ".join(query.split()))
        if len(re.findall(r"\w+", clause)) >= MIN_PART_WORDS
    )
    return clauses if len(clauses) > 1 else ()


def _keep_advisable(words: Sequence[str], query: str, part: _Part | None) -> tuple[str, ...]:
    """Return the words that a description could take up.

    Left out are words of any request, values (numbers, and names, which are written with a capital), and words of
    another part of the request.
    """
    names = {word.casefold() for word in _NAME.findall(query)}
    own = set(re.findall(r"\w+", part.text.casefold())) if part else None
    return tuple(
        word
        for word in words
        if word.casefold() not in REQUEST_WORDS | names
        and not any(letter.isdigit() for letter in word)
        and (own is None or word.casefold() in own)
    )


def _find_role(answer: Search, tool_id: str) -> list[str]:
    """Return the cause for which a tool is in the answer although it is no match; empty for any other tool."""
    return [
        f"it is a prerequisite: {hit.why}" for hit in answer.hits if hit.id == tool_id and hit.role == "prerequisite"
    ]


def _leaves(explanation: Explanation) -> tuple[Explanation, ...]:
    """Return the explanations of stages without inner stages, in order."""
    parts = explanation.parts
    return tuple(leaf for part in parts for leaf in _leaves(part)) if parts else (explanation,)


def _match_words(query: str, stages: Sequence[Explanation]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return (word of the query → its BM25 contribution, words that the tool lacks)."""
    sparse = next((stage for stage in stages if stage.terms or stage.missing), None)
    if sparse is None:
        return {}, ()
    words = _map_terms(query)
    matched = {words.get(term, term): part for term, part in sparse.terms.items()}
    return matched, tuple(dict.fromkeys(words.get(term, term) for term in sparse.missing))


def _map_terms(query: str) -> dict[str, str]:
    """Return index term → the word of the query that it comes from."""
    words_by_term: dict[str, str] = {}
    for word in re.findall(r"\w+", query):
        for term in tokenize(word):
            words_by_term.setdefault(term, word)
    return words_by_term


@dataclasses.dataclass(frozen=True)
class _Absence:
    """Facts about a tool that a search did not return.

    Attributes:
        search: the query.
        tool: the tool.
        answer: what was returned.
        rank: the tool's rank before the hits are cut, from 1; None: no stage ranks it.
        demotions: notes of the stages that put it behind all others.
        matched: word of the query → its contribution to the BM25 score.
        missing: words of the query that the tool lacks and that its description could take up.
        part: the part of the request that ranks it best; None: the whole request does.
        standing: id of a returned tool that does the same.
    """

    search: Search
    tool: Tool
    answer: Search
    rank: int | None
    demotions: Sequence[str]
    matched: Mapping[str, float]
    missing: Sequence[str]
    part: _Part | None
    standing: str | None

    @property
    def returned_tools(self) -> list[Tool]:
        return [hit.tool for hit in self.answer.hits if hit.tool]

    @property
    def is_turned_away(self) -> bool:
        """Whether the search abstained."""
        return not self.answer.hits and self.answer.answer not in (None, "tools")

    @property
    def is_found_by_part(self) -> bool:
        """Whether the tool is returned when a part of the request is asked by itself."""
        return self.part is not None and self.part.rank <= self.search.k

    @property
    def is_cut(self) -> bool:
        """Whether the tool is ranked too low to be returned."""
        return self.rank is not None and self.rank > self.search.k


def _find_causes(absence: _Absence, twins: Sequence[str]) -> list[str]:
    """List the causes of the absence, the most important first."""
    causes = []
    if absence.is_turned_away:
        causes.append(f"the whole request is turned away: {absence.answer.reason}")
    if absence.standing:
        return [*causes, f"{absence.standing} stands for it: it does the same"]
    causes += [f"all other tools stand before it: {note}" for note in absence.demotions]
    causes += _find_part_causes(absence)
    causes += _find_text_causes(absence)
    if twins:
        causes.append(f"{_list(twins)} says almost the same and stands before it")
    return causes + _find_rank_causes(absence)


def _find_rank_causes(absence: _Absence) -> list[str]:
    """Return the causes that lie in the tool's rank."""
    if absence.is_cut:
        count = sum(hit.role == "prerequisite" for hit in absence.answer.hits)
        causes = [f"{count} of the {absence.search.k} returned tools are prerequisites of others"] if count else []
        return [*causes, f"it stands at rank {absence.rank}, and {absence.search.k} tools are asked for"]
    is_unranked = absence.rank is None and absence.part is None and not absence.demotions
    return ["no stage ranks it among its candidates"] if is_unranked else []


def _find_fixes(absence: _Absence, twins: Sequence[str]) -> list[str]:
    if absence.standing:
        return [f"call it by its id, {absence.tool.id}, or prefer its source: preferred_sources"]
    fixes = []
    if absence.is_found_by_part and absence.part:
        step = absence.part
        fixes.append(f"ask this step by itself: {_quote(step.text)}, where it stands at rank {step.rank} (tried out)")
    if twins:
        fixes.append(f"say in its description what it does that {twins[0]} does not")
    if absence.is_turned_away and absence.rank is not None and absence.rank <= absence.search.k:
        fixes.append(f"ask for it by its name, {absence.tool.name}, or set false_rejects to 0")
    if absence.is_cut and absence.rank is not None and absence.rank <= MAX_ADVISED_TOOLS:
        fixes.append(f"ask for {absence.rank} tools: -k {absence.rank}")
    return fixes


def _find_part_causes(absence: _Absence) -> list[str]:
    """Return the causes that lie in the other parts of the request."""
    part = absence.part
    if part is None:
        return []
    if part.text in absence.answer.uncovered:
        return [f"no tool is taken to fit its step, {_quote(part.text)}"]
    if absence.is_found_by_part:
        return [
            f"it belongs to {_quote(part.text)}, where it stands at rank {part.rank}; the other parts take its place"
        ]
    return [f"it belongs to {_quote(part.text)}, and stands only at rank {part.rank} there"] if part.is_step else []


def _find_text_causes(absence: _Absence) -> list[str]:
    """Return the causes that lie in the tool's own text: no description, missing words, no word in common."""
    causes, missing = [], absence.missing
    if not absence.tool.description:
        causes.append("it has no description, so only its name, path and parameters can be found")
    if missing:
        shared = [word for word in missing if any(_has(other, word) for other in absence.returned_tools)]
        causes.append(
            f"{_list(missing)} of the query {'is' if len(missing) == 1 else 'are'} nowhere in its text"
            + (f"; tools that are returned instead have {_list(shared)}" if shared else "")
        )
    if absence.matched and missing:
        causes.append(f"it matches only on {_list(list(absence.matched))}")
    elif not absence.matched and not _map_terms(absence.search.query):
        causes.append("no word of the query can be searched for")
    return causes


def _find_twins(tool: Tool, returned_tools: Sequence[Tool]) -> list[str]:
    """Return the ids of returned tools that say almost the same."""
    return [other.id for other in returned_tools if _overlap(tool, other) >= MIN_TWIN_OVERLAP]


def _overlap(one: Tool, other: Tool) -> float:
    """Return the overlap of words of two descriptions, 0 to 1; names stand in for missing descriptions."""
    a, b = (set(tokenize(tool.description or tool.name)) for tool in (one, other))
    return len(a & b) / len(a | b) if a | b else 0.0


def _has(tool: Tool, word: str) -> bool:
    return bool(set(tokenize(word)) & set(tokenize(f"{' '.join(tool.path)} {render(tool)}")))


def _lift(
    catalogue: Catalogue, rebuild: Callable[[Catalogue], Stage], search: Search, tool: Tool, missing: Sequence[str]
) -> str | None:
    """Say which missing words, added to the description, bring the tool into the answer; None: none do.

    The words are tried out, as few as possible.
    """
    if not missing:
        return None
    tried = _sort_by_rarity(missing, catalogue.tools())
    for count in range(1, min(MAX_LIFTING_WORDS, len(tried)) + 1):
        rank = _rank_with_words(catalogue, rebuild, search, tool, tried[:count])
        if rank is not None and rank <= search.k:
            return f"with {_list(tried[:count])} in its description it would stand at rank {rank} (tried out)"
    return None


def try_words(
    catalogue: Catalogue, rebuild: Callable[[Catalogue], Stage], search: Search, tool_id: str, words: Sequence[str]
) -> Trial:
    """Say where a tool would stand if its description had these words too."""
    [tool] = catalogue.tools([tool_id])
    rank = _rank_with_words(catalogue, rebuild, search, tool, words)
    return Trial(words=tuple(words), rank=rank, shown=rank is not None and rank <= search.k)


def _rank_with_words(
    catalogue: Catalogue, rebuild: Callable[[Catalogue], Stage], search: Search, tool: Tool, words: Sequence[str]
) -> int | None:
    """Return the rank that the tool would have with more words in its description; None: no stage ranks it."""
    changed = _replace_description(tool, f"{tool.description} {' '.join(words)}".strip())
    trial = Catalogue.of(changed if other.id == tool.id else other for other in catalogue.tools())
    explanation = rebuild(trial).explain(search, tool.id)
    return None if explanation is None else explanation.rank


def _sort_by_rarity(words: Sequence[str], tools: Sequence[Tool]) -> list[str]:
    """Sort words, the rarest in the catalogue first. Words of no tool come last, words of any request are dropped."""
    terms = {word: set(tokenize(word)) for word in words if word.casefold() not in REQUEST_WORDS}
    frequency = Counter[str]()
    for tool in tools:
        tool_terms = set(tokenize(f"{tool.name} {tool.description}"))
        frequency.update(word for word, parts in terms.items() if parts & tool_terms)
    return sorted(terms, key=lambda word: (frequency[word] == 0, frequency[word]))


def _replace_description(tool: Tool, description: str) -> Tool:
    meta = {**tool.meta, "text": f"{tool.meta['text']} {description}"} if "text" in tool.meta else tool.meta
    return msgspec.structs.replace(tool, description=description, meta=meta)


def _quote(text: str) -> str:
    """Return a text in quotation marks, cut if it is long."""
    return f"“{text}”" if len(text) <= MAX_QUOTED_CHARS else f"“{text[: MAX_QUOTED_CHARS - 1].rstrip()}…”"


def _list(words: Sequence[str]) -> str:
    quoted = [f"“{word}”" for word in words[:6]]
    remainder = f" and {len(words) - 6} more" if len(words) > 6 else ""
    return ", ".join(quoted) + remainder
