"""Explains why a tool is missing from an answer, and what would lift it.

Every cause is a fact that can be checked: a rank, a word that the text has or lacks, another tool's text, a filter. A
remedy is tested by a whole search, with names, folding and abstention, and is given only if the search returns the tool
then. For a remedy that changes words, the words are added to the tool and the catalogue is indexed again.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from toolscout.errors import NotFound
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import tokenize
from toolscout.search.everyday import list_everyday_words
from toolscout.search.exact_names import EXACT
from toolscout.search.pipeline import Stage
from toolscout.settings import RULES
from toolscout.types import Answer, Explanation, Tool, render
from toolscout.vocabulary import join_phrases, list_words

__all__ = ["RuleEffect", "Why", "WordsTrial", "explain", "find", "try_words"]

MIN_DUPLICATE_OVERLAP = 0.8  # overlap of words from which two tools are called near-duplicates
MAX_LIFTING_WORDS = 3  # missing words that are added to a description together
MAX_PARTS = 6  # parts of a request that are tried by themselves
MIN_PART_WORDS = 2
MAX_QUOTED_CHARS = 120  # of a part of a request
MAX_QUOTED_WORDS = 6
MAX_ADVISED_TOOLS = 20  # more tools than this are no advice
REQUEST_WORDS = frozenset(list_words("advice.words"))  # of any request, which say nothing about a tool
_NAME = re.compile(r"(?<=[^\s.?!:])\s+([A-Z][^\W_]*)")  # a capital in mid-sentence
_MAYBE_NAME = re.compile(  # a capital at the start of a sentence, or a place where people are named
    rf"\b([A-Z][^\W_]*)|\b([^\W_]+)['’]s\b|\b(?:{join_phrases(list_words('advice.before_people'))})\s+([^\W_]+)"
)
_PART_END = re.compile(
    rf"(?<![,;:.?!])[,;:.?!]+(?:\s+|$)|\s+(?:{join_phrases(list_words('why.joints'))})\s+", re.IGNORECASE
)


class WordsTrial(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool would rank if its description had some further words.

    Attributes:
        words: the words that were added.
        rank: the tool's rank in the answer with these words, from 1. If the answer lacks the tool, its rank before the
            hits are cut; None: no stage ranks it.
        shown: whether the answer with these words has the tool.
        refusal: why the request is turned away even with these words; None: it is answered.
    """

    words: tuple[str, ...]
    rank: int | None
    shown: bool
    refusal: str | None = None


class RuleEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule of ranking did to the place of the tool, tried out by a whole search without the rule.

    Attributes:
        rule: its name, one of `toolscout.settings.RULES`.
        about: what the rule does.
        place: the tool's rank in the answer with the rule, from 1; None: the tool is not returned.
        place_without: the same without the rule.
        switch: the setting that leaves the rule out.
    """

    rule: str
    about: str
    place: int | None
    place_without: int | None
    switch: str

    def describe(self) -> str:
        """Say in a sentence what the rule decided."""
        with_rule = f"has rank {self.place}" if self.place else "is not returned"
        without_rule = f"has rank {self.place_without}" if self.place_without else "is not returned"
        return (
            f"the rule “{self.rule}” decides: with it the tool {with_rule}, without it it {without_rule} (tried out). "
            f"{self.about}. To turn it off: {self.switch}"
        )


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
        step: the part of a compound request for which the tool ranks best; None: the whole request ranks it best.
        step_rank: the tool's rank if this part is searched by itself, from 1, also if it is too low to be returned.
        stands_for_it: id of the tool that is returned in its place because it does the same.
        causes: sentences, the most important first.
        fixes: sentences; those that add words were tested.
        trial: effect of the words that the caller asked to try; None: the caller named no words.
        rules: the rules that change the tool's rank in the answer, in the order of `toolscout.settings.RULES`.
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
    trial: WordsTrial | None = None
    step: str | None = None
    step_rank: int | None = None
    stands_for_it: str | None = None
    rules: tuple[RuleEffect, ...] = ()


def find(catalogue: Catalogue, name: str) -> str:
    """Return the id of the tool called `name`, which may be an id, or a name that only one tool has.

    Raises:
        NotFound: if there is no such tool, if its source is not searched, or if several tools have the name.
    """
    if name in catalogue.ids:
        return name
    folded = name.casefold()
    ids = [tool_id for tool_id, other in zip(catalogue.ids, catalogue.names, strict=True) if other.casefold() == folded]
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise NotFound(f"{len(ids)} tools are called {name!r}. Name one by its id: {', '.join(ids[:5])}")
    for source, (why, ids_by_key) in catalogue.disabled.items():
        if folded in ids_by_key:
            raise NotFound(f"{ids_by_key[folded]} is not searched: source {source!r} is {why}")
    raise NotFound(
        f"expected the id or the name of a tool in the catalogue, found {name!r}. See  toolscout list --tools"
    )


def explain(
    catalogue: Catalogue,
    pipeline: Stage,
    rebuild: Callable[[Tool], Stage] | None,
    search: Answer,
    tool_id: str,
    answer: Answer,
    without: Mapping[str, Callable[[], Stage]] | None = None,
) -> Why:
    """Explain why `tool_id` is, or is not, in `answer`.

    Args:
        catalogue: the snapshot that was searched.
        pipeline: the pipeline that searched it.
        rebuild: returns the pipeline with another definition of a tool, to test a change; None: no change is tested.
        search: the query.
        tool_id: an id of the catalogue.
        answer: the result of the pipeline for `search`, with filled hits.
        without: rule → builds the same pipeline without it; None: no rule is tried.
    """
    [tool] = catalogue.tools([tool_id])
    explanation = pipeline.explain(search, tool_id)
    stages = _list_leaves(explanation) if explanation else ()
    matched, missing = _match_words(search.query, stages)
    is_shown = tool_id in answer.ids
    is_hidden = search.visible is not None and not search.visible(tool)
    rank = explanation.rank if explanation and not is_hidden else None
    causes, fixes = _find_role(answer, tool_id), []
    absence: _Absence | None = None
    rules: tuple[RuleEffect, ...] = ()
    if is_hidden:
        causes.append("the caller may not see it: the policy hides it")
        fixes.append("allow the caller to see it")
    else:
        rules = tuple(_find_effects(without or {}, search, tool_id, answer))
        if not is_shown:
            absence = _collect_facts(pipeline, search, tool, answer, rank, stages)
            causes, fixes = _explain_absence(absence, catalogue, rebuild)
    causes += [effect.describe() for effect in rules]
    return Why(
        query=search.query,
        tool=tool_id,
        shown=is_shown,
        rank=rank,
        k=search.k,
        stages=stages,
        matched=matched,
        missing=missing,
        ahead=tuple((hit.id, hit.score) for hit in answer.hits if hit.id != tool_id),
        causes=tuple(causes),
        fixes=tuple(fixes),
        rules=rules,
        **_describe_part(absence),
    )


def _find_effects(
    without: Mapping[str, Callable[[], Stage]], search: Answer, tool_id: str, answer: Answer
) -> Iterator[RuleEffect]:
    """Yield the rules without which the tool has another rank in the answer, gets into it or drops out.

    `without`: rule → builds the pipeline without it; `answer`: what the pipeline with all rules returned.
    """
    place = _get_place(answer, tool_id)
    for rule, build in without.items():
        place_without = _find_place(build(), search, tool_id)
        if place_without != place:
            switch = f'rules_off = ["{rule}"]'
            yield RuleEffect(rule=rule, about=RULES[rule], place=place, place_without=place_without, switch=switch)


def _describe_part(absence: _Absence | None) -> dict[str, Any]:
    """Return the fields `step`, `step_rank` and `stands_for_it` of the explanation; {} if the tool is returned."""
    if absence is None:
        return {}
    fields: dict[str, Any] = {"stands_for_it": absence.stand_in}
    if absence.part:
        fields |= {"step": absence.part.text, "step_rank": absence.part.place or absence.part.rank}
    return fields


def _collect_facts(
    pipeline: Stage, search: Answer, tool: Tool, answer: Answer, rank: int | None, stages: Sequence[Explanation]
) -> _Absence:
    """Collect the facts about a tool that a search did not return. `stages`: what each stage did with the tool."""
    matched, missing = _match_words(search.query, stages)
    stand_in = next((hit.id for hit in answer.hits if tool.id in hit.similar), None)
    part = None if stand_in else _find_part(pipeline, search, answer, tool.id, rank)
    demotions = [stage.note for stage in stages if stage.stage == "demote"]
    advisable = keep_advisable(missing, search.query, part.text if part else None)
    needed_k = None if rank is None else _find_needed_k(pipeline, search, tool.id, rank)
    return _Absence(search, tool, answer, rank, demotions, matched, advisable, part, stand_in, needed_k)


def _find_needed_k(pipeline: Stage, search: Answer, tool_id: str, rank: int) -> int | None:
    """Return how many tools to ask for, so that a tool of this rank is returned (tried out); see `_Absence`."""
    if rank <= search.k or rank > MAX_ADVISED_TOOLS:
        return None
    place = _find_place(pipeline, msgspec.structs.replace(search, k=rank), tool_id)
    return None if place is None else rank


def _explain_absence(
    absence: _Absence, catalogue: Catalogue, rebuild: Callable[[Tool], Stage] | None
) -> tuple[list[str], list[str]]:
    """Return the causes of the absence, and what would bring the tool into the answer, as sentences."""
    near_duplicates = _find_near_duplicates(absence.tool, absence.returned_tools)
    causes, fixes = _find_causes(absence, near_duplicates), _find_fixes(absence, near_duplicates)
    if rebuild and not absence.stand_in and not absence.is_found_by_part:
        advice = _find_lifting_words(catalogue, rebuild, absence.search, absence.tool, absence.missing)
        fixes = [advice, *fixes] if advice else fixes
    return causes, fixes


class _Part(NamedTuple):
    """A part of a request, and how the tool fares if the part is searched by itself.

    Attributes:
        text: the part.
        rank: the tool's rank before the hits are cut, from 1.
        is_step: whether the search split the request into this part; otherwise the part is a clause.
        place: the tool's rank in the answer, from 1; None: it is not returned, or this was not tried.
    """

    text: str
    rank: int
    is_step: bool
    place: int | None = None


def _find_part(pipeline: Stage, search: Answer, answer: Answer, tool_id: str, rank: int | None) -> _Part | None:
    """Return the part of a request that ranks the tool best.

    The parts are the steps of the answer, or else the clauses of the request. None: no part ranks the tool, or no
    clause ranks it better than the whole request does.
    """
    parts = answer.steps or _cut_clauses(search.query)
    ranked = []
    for text in parts[:MAX_PARTS]:
        explanation = pipeline.explain(msgspec.structs.replace(search, query=text, split=False), tool_id)
        if explanation is not None and explanation.rank is not None:
            ranked.append(_Part(text, explanation.rank, is_step=bool(answer.steps)))
    if not ranked:
        return None
    best = min(ranked, key=lambda part: part.rank)
    is_better = rank is None or best.rank < rank
    if not best.is_step and not is_better:
        return None
    return best._replace(place=_find_place(pipeline, msgspec.structs.replace(search, query=best.text), tool_id))


def _cut_clauses(query: str) -> tuple[str, ...]:
    """Cut a request at punctuation marks and conjunctions; () if it has one clause."""
    clauses = tuple(
        clause.strip()
        for clause in _PART_END.split(" ".join(query.split()))
        if len(re.findall(r"\w+", clause)) >= MIN_PART_WORDS
    )
    return clauses if len(clauses) > 1 else ()


def _find_role(answer: Answer, tool_id: str) -> list[str]:
    """Return the cause for which a tool is in the answer although it is no match; empty for any other tool."""
    return [
        f"it is a prerequisite: {hit.why}" for hit in answer.hits if hit.id == tool_id and hit.role == "prerequisite"
    ]


def _list_leaves(explanation: Explanation) -> tuple[Explanation, ...]:
    """Return the explanations of stages without inner stages, in order."""
    parts = explanation.parts
    return tuple(leaf for part in parts for leaf in _list_leaves(part)) if parts else (explanation,)


def _match_words(query: str, stages: Sequence[Explanation]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return (word of the query → its BM25 contribution, words that the tool lacks)."""
    bm25 = next((stage for stage in stages if stage.terms or stage.missing), None)
    if bm25 is None:
        return {}, ()
    words = _map_terms(query)
    matched = {words.get(term, term): score for term, score in bm25.terms.items()}
    return matched, tuple(dict.fromkeys(words.get(term, term) for term in bm25.missing))


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
        part: the part of the request that ranks it best; None: no part ranks it better than the whole request.
        stand_in: id of a returned tool that does the same and is shown in its place; None: there is none.
        needed_k: for how many tools to ask, so that it is returned; None: no reasonable number was found.
    """

    search: Answer
    tool: Tool
    answer: Answer
    rank: int | None
    demotions: Sequence[str]
    matched: Mapping[str, float]
    missing: Sequence[str]
    part: _Part | None
    stand_in: str | None
    needed_k: int | None

    @property
    def returned_tools(self) -> list[Tool]:
        return [hit.tool for hit in self.answer.hits if hit.tool]

    @property
    def is_turned_away(self) -> bool:
        """Whether the search abstained."""
        return _find_refusal(self.answer) is not None

    @property
    def is_found_by_part(self) -> bool:
        """Whether the tool is returned when a part of the request is asked by itself."""
        return self.part is not None and self.part.place is not None

    @property
    def is_cut(self) -> bool:
        """Whether the tool is ranked too low to be returned."""
        return self.rank is not None and self.rank > self.search.k


def _find_causes(absence: _Absence, near_duplicates: Sequence[str]) -> list[str]:
    """List the causes of the absence, the most important first."""
    causes = []
    if absence.is_turned_away:
        causes.append(f"the whole request is turned away: {absence.answer.reason}")
    if absence.stand_in:
        return [*causes, f"{absence.stand_in} stands for it: it does the same"]
    causes += _find_name_causes(absence.answer)
    causes += [f"all other tools stand before it: {note}" for note in absence.demotions]
    causes += _find_part_causes(absence)
    causes += _find_text_causes(absence)
    if near_duplicates:
        causes.append(f"{_join_quoted(near_duplicates)} says almost the same and stands before it")
    return causes + _find_rank_causes(absence)


def _find_name_causes(answer: Answer) -> list[str]:
    """Return the cause that the request names other tools; no cause if it names none."""
    named = [hit.tool.name for hit in answer.hits if hit.why == EXACT and hit.tool]
    names = list(dict.fromkeys(named))
    if not names:
        return []
    read = "is read as the name of a tool" if len(names) == 1 else "are read as names of tools"
    quoted = _join_quoted(names)
    return [f"{quoted} in the request {read}: tools of that name take {len(named)} of the {answer.k} places"]


def _find_refusal(answer: Answer) -> str | None:
    """Return why a request is turned away; None: it is answered."""
    is_answered = bool(answer.hits) or answer.kind in (None, "tools")
    return None if is_answered else answer.reason or answer.kind


def _find_rank_causes(absence: _Absence) -> list[str]:
    """Return the causes that have to do with the tool's rank."""
    k, causes = absence.search.k, []
    if absence.is_cut:
        n_prerequisites = sum(hit.role == "prerequisite" for hit in absence.answer.hits)
        if n_prerequisites:
            causes.append(f"{n_prerequisites} of the {k} returned tools are prerequisites of others")
        causes.append(f"it has rank {absence.rank}, and {'1 tool is' if k == 1 else f'{k} tools are'} asked for")
    elif absence.rank is None and absence.part is None and not absence.demotions:
        causes.append("no stage ranks it among its candidates")
    return causes


def _find_fixes(absence: _Absence, near_duplicates: Sequence[str]) -> list[str]:
    """Return sentences on how to get the tool without adding words of the query to its description."""
    if absence.stand_in:
        return [f"call it by its id, {absence.tool.id}, or prefer its source: preferred_sources"]
    fixes = []
    if absence.is_found_by_part and absence.part:
        part = absence.part
        fixes.append(f"ask this step by itself: {_quote(part.text)}, where it has rank {part.place} (tried out)")
    if near_duplicates:
        fixes.append(f"say in its description what it does that {near_duplicates[0]} does not")
    if absence.is_turned_away and absence.rank is not None and not absence.is_cut:
        fixes.append(f"ask for it by its id, {absence.tool.id}, or leave the setting refuse off")
    if absence.needed_k:
        fixes.append(f"ask for {absence.needed_k} tools: -k {absence.needed_k}")
    return fixes


def _find_part_causes(absence: _Absence) -> list[str]:
    """Return the cause that the tool belongs to one part of the request; no cause if it belongs to the whole."""
    part = absence.part
    if part is None:
        return []
    if part.text in absence.answer.uncovered:
        return [f"no tool is taken to fit its step, {_quote(part.text)}"]
    if absence.is_found_by_part:
        return [f"it belongs to {_quote(part.text)}, where it has rank {part.place}; the other parts take its place"]
    return [f"it belongs to {_quote(part.text)}, and has only rank {part.rank} there"] if part.is_step else []


def _find_text_causes(absence: _Absence) -> list[str]:
    """Return the causes that the tool's own text has: no description, missing words, no word in common."""
    causes, missing = [], absence.missing
    if not absence.tool.description:
        causes.append("it has no description, so only its name, path and parameters can be found")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        cause = f"{_join_quoted(missing)} of the query {verb} nowhere in its text"
        shared = [word for word in missing if any(_has_word(other, word) for other in absence.returned_tools)]
        if shared:
            cause += f"; tools that are returned instead have {_join_quoted(shared)}"
        causes.append(cause)
    if absence.matched and missing:
        causes.append(f"it matches only on {_join_quoted(list(absence.matched))}")
    elif not absence.matched and not _map_terms(absence.search.query):
        causes.append("no word of the query can be searched for")
    return causes


def _find_near_duplicates(tool: Tool, returned_tools: Sequence[Tool]) -> list[str]:
    """Return the ids of returned tools that say almost the same."""
    return [other.id for other in returned_tools if _measure_overlap(tool, other) >= MIN_DUPLICATE_OVERLAP]


def _measure_overlap(one: Tool, other: Tool) -> float:
    """Return the Jaccard overlap of two descriptions' words, 0 to 1. For a missing description, the name counts."""
    words, other_words = (set(tokenize(tool.description or tool.name)) for tool in (one, other))
    return len(words & other_words) / len(words | other_words) if words | other_words else 0.0


def _has_word(tool: Tool, word: str) -> bool:
    """Tell whether a word is in the text or the path of a tool."""
    return bool(set(tokenize(word)) & set(tokenize(f"{' '.join(tool.path)} {render(tool)}")))


def _find_lifting_words(
    catalogue: Catalogue, rebuild: Callable[[Tool], Stage], search: Answer, tool: Tool, missing: Sequence[str]
) -> str | None:
    """Say which missing words, added to the description, bring the tool into the answer. None: no words do that.

    The rarest word is tried out first, then the two rarest, and so on.
    """
    if not missing:
        return None
    rarest_first = sort_by_rarity(missing, catalogue.tools())
    for count in range(1, min(MAX_LIFTING_WORDS, len(rarest_first)) + 1):
        words = rarest_first[:count]
        place = _find_place(rebuild(_add_words(tool, words)), search, tool.id)
        if place is not None:
            return f"with {_join_quoted(words)} in its description it would have rank {place} (tried out)"
    return None


def try_words(rebuild: Callable[[Tool], Stage], search: Answer, tool: Tool, words: Sequence[str]) -> WordsTrial:
    """Say which rank a tool would have if its description had these words too.

    `rebuild` returns the pipeline over a catalogue in which one tool has another definition. `search` is the request as
    the first stage gets it: an `Answer` without hits.
    """
    pipeline = rebuild(_add_words(tool, words))
    [answer] = pipeline([search])
    place = _get_place(answer, tool.id)
    if place is not None:
        return WordsTrial(words=tuple(words), rank=place, shown=True)
    explanation = pipeline.explain(search, tool.id)
    rank = explanation.rank if explanation else None
    return WordsTrial(words=tuple(words), rank=rank, shown=False, refusal=_find_refusal(answer))


def _find_place(pipeline: Stage, search: Answer, tool_id: str) -> int | None:
    """Run a search, and return the rank of a tool in the answer; see `_get_place`."""
    [answer] = pipeline([search])
    return _get_place(answer, tool_id)


def _get_place(answer: Answer, tool_id: str) -> int | None:
    """Return the rank of a tool in an answer, from 1; None: the tool is not returned."""
    return answer.ids.index(tool_id) + 1 if tool_id in answer.ids else None


def _add_words(tool: Tool, words: Sequence[str]) -> Tool:
    """Return the tool with more words in its description, and in `meta["text"]` if it has that."""
    added = " ".join(words)
    description = f"{tool.description} {added}".strip()
    meta = {**tool.meta, "text": f"{tool.meta['text']} {added}"} if "text" in tool.meta else tool.meta
    return msgspec.structs.replace(tool, description=description, meta=meta)


def _quote(text: str) -> str:
    """Return a text in quotation marks, cut if it is long."""
    return f"“{text}”" if len(text) <= MAX_QUOTED_CHARS else f"“{text[: MAX_QUOTED_CHARS - 1].rstrip()}…”"


def _join_quoted(words: Sequence[str]) -> str:
    """Return words in quotation marks with commas, at most `MAX_QUOTED_WORDS`, and how many more there are."""
    quoted = [f"“{word}”" for word in words[:MAX_QUOTED_WORDS]]
    remainder = f" and {len(words) - MAX_QUOTED_WORDS} more" if len(words) > MAX_QUOTED_WORDS else ""
    return ", ".join(quoted) + remainder


def keep_advisable(words: Sequence[str], query: str, part: str | None) -> tuple[str, ...]:
    """Return the words that a description could take up.

    Left out are words of any request ("please"), values (numbers and names), and words outside the part of the request
    that the tool belongs to (`part`; None: the whole request). A name has a capital in mid-sentence. A word at the
    start of a sentence, or where people are named ("tell anna", "anna's"), is a name unless it is among the everyday
    words.
    """
    names = {word.casefold() for word in _NAME.findall(query)}
    likely_names = {word.casefold() for groups in _MAYBE_NAME.findall(query) for word in groups if word}
    excluded = REQUEST_WORDS | names | (likely_names - list_everyday_words())
    words_of_part = set(re.findall(r"\w+", part.casefold())) if part else None
    return tuple(
        word
        for word in words
        if word.casefold() not in excluded
        and not any(letter.isdigit() for letter in word)
        and (words_of_part is None or word.casefold() in words_of_part)
    )


def sort_by_rarity(words: Sequence[str], tools: Sequence[Tool]) -> list[str]:
    """Sort words, the rarest in the catalogue first. Words of no tool come last, words of any request are dropped."""
    terms_by_word = {word: set(tokenize(word)) for word in words if word.casefold() not in REQUEST_WORDS}
    n_tools = Counter[str]()  # word → tools that have it
    for tool in tools:
        tool_terms = set(tokenize(f"{tool.name} {tool.description}"))
        n_tools.update(word for word, terms in terms_by_word.items() if terms & tool_terms)
    return sorted(terms_by_word, key=lambda word: (n_tools[word] == 0, n_tools[word]))
