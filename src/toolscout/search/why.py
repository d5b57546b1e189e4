"""Why a tool is not in an answer: where it stood, which words matched, who stood before it, and what would lift it.

Every cause is one that can be checked: a rank, a word that is there or not, a rival's text, a filter. What would lift
the tool is tried out: the tool is given the words, everything is indexed again, and the query is asked again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.errors import NotFound
from toolscout.indexes.words import tokenize
from toolscout.search.pipeline import Stage
from toolscout.types import Explanation, Search, Tool, render

__all__ = ["Why", "explain", "find"]

TWIN = 0.8  # share of words in common from which two tools are called twins
MAX_LIFTING_WORDS = 3  # so many missing words are tried at most
ASKING = frozenset(  # words of asking: put into a description, they would lift it for no good reason
    ("want", "need", "help", "please", "like", "much", "find", "know", "give", "tell", "get", "show", "could", "would")
)


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `why`.

    Attributes:
        tool: id of the tool in question.
        shown: whether the search returns it.
        rank: where it stands before anything is cut, from 1; None: no stage reaches it.
        k: how many tools the search returns.
        stages: what each ranking stage says of it.
        matched: word of the query → its part of the BM25 score.
        missing: words of the query that the tool lacks.
        ahead: (id, score) of the tools that are returned instead.
        causes: sentences, the weightiest first.
        fixes: sentences; those about words were tried out.
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


def find(catalogue: Catalogue, name: str) -> str:
    """The id of the tool that `name` means: an id, or a name that only one tool has.

    Raises:
        NotFound: if there is none, if its source is not searched, or if several have the name.
    """
    if name in catalogue.ids:
        return name
    same = [
        each for each, held in zip(catalogue.ids, catalogue.names, strict=True) if held.casefold() == name.casefold()
    ]
    if len(same) == 1:
        return same[0]
    if same:
        raise NotFound(f"expected the id of one tool, found {len(same)} called {name!r}: {', '.join(same[:5])}")
    for source, (why, names) in catalogue.disabled.items():
        if name.casefold() in names:
            raise NotFound(f"{names[name.casefold()]} is not searched: source {source!r} is {why}")
    raise NotFound(
        f"expected the id or the name of a tool in the catalogue, found {name!r}: see  toolscout list --tools"
    )


def explain(
    catalogue: Catalogue,
    pipeline: Stage,
    rebuild: Callable[[Catalogue], Stage] | None,
    search: Search,
    tool_id: str,
    answer: Search,
) -> Why:
    """Why `tool_id` is (not) in `answer`.

    Args:
        catalogue: the snapshot that was searched.
        pipeline: what was run on it.
        rebuild: the same recipe over another snapshot, to try out a change; None: nothing is tried out.
        search: the question.
        tool_id: an id of the catalogue.
        answer: what the pipeline made of `search`, hits filled in.
    """
    [tool] = catalogue.tools([tool_id])
    explanation = pipeline.explain(search, tool_id)
    stages = _leaves(explanation) if explanation else ()
    words = _words(search.query)
    sparse = next((stage for stage in stages if stage.terms or stage.missing), None)
    matched = {words.get(term, term): part for term, part in (sparse.terms if sparse else {}).items()}
    missing = tuple(dict.fromkeys(words.get(term, term) for term in (sparse.missing if sparse else ())))
    shown = tool_id in answer.ids
    hidden = search.visible is not None and not search.visible(tool)
    causes, fixes = [], []
    if hidden:
        causes.append("the caller may not see it: the policy hides it")
        fixes.append("allow the caller to see it")
    elif not shown:
        causes, fixes = _causes(catalogue, rebuild, search, tool, answer, explanation, matched, missing)
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
    )


def _leaves(told: Explanation) -> tuple[Explanation, ...]:
    """The views of the stages that have no inner ones, in order."""
    return (told,) if not told.parts else tuple(leaf for part in told.parts for leaf in _leaves(part))


def _words(query: str) -> dict[str, str]:
    """Index term → the word of the query that it comes from."""
    words_by_term: dict[str, str] = {}
    for word in re.findall(r"\w+", query):
        for term in tokenize(word):
            words_by_term.setdefault(term, word)
    return words_by_term


def _causes(
    catalogue: Catalogue,
    rebuild: Callable[[Catalogue], Stage] | None,
    search: Search,
    tool: Tool,
    answer: Search,
    explanation: Explanation | None,
    matched: Mapping[str, float],
    missing: Sequence[str],
) -> tuple[list[str], list[str]]:
    causes, fixes = [], []
    rank = explanation.rank if explanation else None
    behind = [part.note for part in (_leaves(explanation) if explanation else ()) if part.stage == "demote"]
    causes += [f"all other tools stand before it: {note}" for note in behind]
    returned_tools = [hit.tool for hit in answer.hits if hit.tool]
    twins = [other.id for other in returned_tools if _alike(tool, other) >= TWIN]
    if not tool.description:
        causes.append("it has no description, so only its name, path and parameters can be found")
    if missing:
        ahead = [word for word in missing if any(_has(other, word) for other in returned_tools)]
        causes.append(
            f"{_list(missing)} of the query {'is' if len(missing) == 1 else 'are'} nowhere in its text"
            + (f"; tools that are returned instead have {_list(ahead)}" if ahead else "")
        )
    if matched:
        causes.append(f"it matches only on {_list(list(matched))}") if missing else None
    elif not _words(search.query):
        causes.append("no word of the query can be searched for")
    if twins:
        causes.append(f"{_list(twins)} says almost the same and stands before it")
        fixes.append(f"say in its description what it does that {twins[0]} does not")
    if rank is not None and rank <= search.k and not answer.hits and answer.reason:
        causes.insert(0, f"the whole request is turned away: {answer.reason}")
        fixes.append(f"ask for it by its name, {tool.name}, or set false_rejects to 0")
    if rank is not None and rank > search.k:
        causes.append(f"it stands at rank {rank}, and {search.k} tools are asked for")
        fixes.append(f"ask for {rank}: -k {rank}")
    elif rank is None and not behind:
        causes.append("no stage ranks it among its candidates")
    lift = _lift(catalogue, rebuild, search, tool, missing) if rebuild else None
    if lift:
        fixes.insert(0, lift)
    return causes, fixes


def _alike(one: Tool, other: Tool) -> float:
    """Share of words in common of the descriptions, 0 to 1; of the names where there are none."""
    a, b = (set(tokenize(tool.description or tool.name)) for tool in (one, other))
    return len(a & b) / len(a | b) if a | b else 0.0


def _has(tool: Tool, word: str) -> bool:
    return bool(set(tokenize(word)) & set(tokenize(f"{' '.join(tool.path)} {render(tool)}")))


def _lift(
    catalogue: Catalogue, rebuild: Callable[[Catalogue], Stage], search: Search, tool: Tool, missing: Sequence[str]
) -> str | None:
    """The fewest missing words that, put into the description, bring the tool into the answer; tried out."""
    if not missing:
        return None
    all_tools = catalogue.tools()
    tried = _telling(missing, all_tools)
    for count in range(1, min(MAX_LIFTING_WORDS, len(tried)) + 1):
        added = " ".join(tried[:count])
        changed = _replace_description(tool, f"{tool.description} {added}".strip())
        trial = Catalogue.of(changed if each.id == tool.id else each for each in all_tools)
        explanation = rebuild(trial).explain(search, tool.id)
        if explanation and explanation.rank is not None and explanation.rank <= search.k:
            return (
                f"with {_list(tried[:count])} in its description it would stand at rank {explanation.rank} (tried out)"
            )
    return None


def _telling(words: Sequence[str], tools: Sequence[Tool]) -> list[str]:
    """Words that say what is wanted, those first that fewest tools have; words of asking are left out."""
    terms = {word: set(tokenize(word)) for word in words if word.casefold() not in ASKING}
    frequency = Counter[str]()
    for tool in tools:
        tool_terms = set(tokenize(f"{tool.name} {tool.description}"))
        frequency.update(word for word, parts in terms.items() if parts & tool_terms)
    return sorted(terms, key=lambda word: (frequency[word] == 0, frequency[word]))


def _replace_description(tool: Tool, description: str) -> Tool:
    meta = {**tool.meta, "text": f"{tool.meta['text']} {description}"} if "text" in tool.meta else tool.meta
    return msgspec.structs.replace(tool, description=description, meta=meta)


def _list(words: Sequence[str]) -> str:
    quoted = [f"“{word}”" for word in words[:6]]
    remainder = f" and {len(words) - 6} more" if len(words) > 6 else ""
    return ", ".join(quoted) + remainder
