"""Collects from the journal which tools requests need, from successful calls and feedback.

An example is a search together with the tools that its caller then used successfully. The rules:

* A tool that was shown further down was less likely read, so a call of it says more. Its weight is 1 / p(rank) with
  p(r) = r^-η, the propensity of Joachims et al. (arXiv:1608.04468, section 5.1). η is 0.5, because an agent reads
  everything that it is shown. A tool that was called without being shown has weight 1.
* Failed calls are ignored. So are calls by another caller than the one who searched. Feedback adds a tool or removes
  it, until its caller withdraws the feedback.
* No caller may dominate. Only the newest examples of a caller are taken, up to a share of all (`limit_per_caller`).
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.home.journal.journal import Journal, Trail

__all__ = [
    "Evidence",
    "Example",
    "LiveEvidence",
    "collect_evidence",
    "limit_per_caller",
    "read_example",
    "weigh_rank",
]

POSITION_BIAS: Final = 0.5  # η of the propensity
MAX_EXAMPLES: Final = 50_000  # bound for the examples in memory
MIN_CALLER_SHARE: Final = 0.05  # of all examples, for one of many callers
MAX_CALLER_SHARE: Final = 0.5  # of all examples, for one of few callers
MIN_CALLER_EXAMPLES: Final = 50  # number that every caller may bring
MAX_LIVE_EXAMPLES: Final = 2_000  # bound for the examples that count before the next fit
MAX_LIVE_EVENTS: Final = 30_000  # number of newest events from which live examples are read
MAX_UPDATED_TRAILS: Final = 500  # number of changed searches from which on everything is read again
LIVE_PER_CALLER_RANGE: Final = (20, 100)  # bounds for the limit of one caller's live examples
HASHED_QUERY_PREFIX: Final = "blake2b:"  # begins a query that was stored as a hash
_KEY_WORD: Final = re.compile(r"\w+")


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One request and the tools that it needed.

    Attributes:
        row: row id of its search in the journal.
        at: when it was searched.
        caller: who searched and called.
        query: the request.
        tools: tool id → weight, 1 or more.
    """

    row: int
    at: str
    caller: str
    query: str
    tools: dict[str, float]

    @property
    def key(self) -> tuple[str, str]:
        """The caller, and the words of the query in lower case. Of examples with equal keys only the newest counts.

        A query without words, such as "???", is compared as it is.
        """
        folded = self.query.casefold()
        return self.caller, " ".join(_KEY_WORD.findall(folded) or folded.split())


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The examples of a journal, and how many were left out.

    Attributes:
        examples: the oldest first.
        until: row id of the newest event that was read.
        searches: number of searches with a call or feedback.
        unused: how many of these have no successful call or good feedback.
        hidden: how many of these have no readable query, because the journal stores a hash or nothing.
        unnamed: number of successful calls that name no search, so that they belong to no request.
        capped: examples left out because their caller brought too many, or there were too many in all.
        repeated: examples left out because the same caller repeated the request later.
        callers: caller → number of examples taken.
        cap: limit for the examples of one caller; see `limit_per_caller`.
    """

    examples: tuple[Example, ...]
    until: int
    searches: int
    unused: int
    hidden: int
    unnamed: int
    capped: int
    repeated: int
    callers: dict[str, int]
    cap: int


def weigh_rank(rank: int | None) -> float:
    """Return the weight of a call of a tool shown at `rank` (from 1), 1 / p(rank), or 1 if it was not shown."""
    if rank is None:
        return 1.0
    weight: float = float(max(rank, 1)) ** POSITION_BIAS
    return weight


def read_example(trail: Trail) -> Example | None:
    """Return the example of one search and what followed it, or None if no tool was used successfully."""
    search = next(event for event in trail.events if event["event"] == "search")
    own_events = [event for event in trail.events if event["caller"] == search["caller"]]
    shown = search["shown"] if isinstance(search["shown"], list) else ()
    ranks: dict[str, int] = {}
    for rank, tool in enumerate(shown, 1):
        if isinstance(tool, str):
            ranks.setdefault(tool, rank)
    weights: dict[str, float] = {}
    for judgement in _list_judgements(own_events):
        weights.pop(judgement.tool, None)  # of several judgements of a tool the last one counts
        if judgement.is_right:
            weights[judgement.tool] = weigh_rank(ranks.get(judgement.tool))
    if not weights:
        return None
    return Example(row=trail.row, at=search["at"], caller=search["caller"], query=search["query"], tools=weights)


class _Judgement(NamedTuple):
    """Whether a tool was right for a request, by a successful call or by feedback."""

    tool: str
    is_right: bool
    is_feedback: bool


def _list_judgements(events: Iterable[Mapping[str, Any]]) -> list[_Judgement]:
    """List the judgements in events, in order, without feedback that was withdrawn later."""
    judgements: list[_Judgement] = []
    for event in events:
        if event["event"] == "call" and event["ok"]:
            judgements.append(_Judgement(event["tool"], is_right=True, is_feedback=False))
        elif event["event"] == "feedback":
            for tool in _read_ids(event.get("good")):
                judgements.append(_Judgement(tool, is_right=True, is_feedback=True))
            for tool in _read_ids(event.get("bad")):
                judgements.append(_Judgement(tool, is_right=False, is_feedback=True))
            withdrawn = set(_read_ids(event.get("withdrawn")))
            judgements = [each for each in judgements if not (each.is_feedback and each.tool in withdrawn)]
    return judgements


def _read_ids(value: object) -> list[str]:
    """Return the tool ids in a field of an event. Older versions stored events unchecked."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _is_readable(query: str) -> bool:
    """Return whether a query was stored as a text: the setting `journal_queries` may ask for a hash, or nothing."""
    return bool(query.strip()) and not query.startswith(HASHED_QUERY_PREFIX)


def _read_examples(trails: Iterable[Trail]) -> Iterator[Example]:
    """Yield the examples with a readable query."""
    for trail in trails:
        example = read_example(trail)
        if example is not None and _is_readable(example.query):
            yield example


def limit_per_caller(counts: Mapping[str, int]) -> int:
    """Return a limit for the examples of one caller, so that nobody has more than a share of all that are taken.

    The share is 2 / n for n callers, at least `MIN_CALLER_SHARE` and at most `MAX_CALLER_SHARE`. A single caller has no
    limit, and everybody may bring `MIN_CALLER_EXAMPLES`.

    Args:
        counts: caller → number of examples.
    """
    if len(counts) < 2:
        return max(counts.values(), default=0)
    share = min(MAX_CALLER_SHARE, max(MIN_CALLER_SHARE, 2 / len(counts)))
    cap = max(counts.values())
    while cap > MIN_CALLER_EXAMPLES:
        n_taken = sum(min(count, cap) for count in counts.values())
        n_allowed = int(share * n_taken)
        if cap <= n_allowed:
            break
        cap = max(MIN_CALLER_EXAMPLES, n_allowed)  # fewer are taken now, so the share is checked again
    return cap


def collect_evidence(
    journal: Journal, *, until: int, since: int = 0, trusted: Container[str] = (), max_examples: int = MAX_EXAMPLES
) -> Evidence:
    """Collect the examples of a journal.

    The journal is read as a stream, twice: to count the examples of each caller, and to take the newest of each.

    Args:
        journal: the journal.
        until: last row id to read.
        since: searches after this row id are new. Of these alone, nobody may have more than their share either.
        trusted: callers without a limit.
        max_examples: bound for the examples taken, the newest first.
    """
    counts: Counter[str] = Counter()
    new_counts: Counter[str] = Counter()
    searches = unused = hidden = 0
    for trail in journal.trails(until=until):
        searches += 1
        example = read_example(trail)
        if example is None:
            unused += 1
        elif not _is_readable(example.query):
            hidden += 1
        else:
            counts[example.caller] += 1
            if example.row > since:
                new_counts[example.caller] += 1
    cap = limit_per_caller(counts)
    new_cap = min(cap, limit_per_caller(new_counts))
    taken: dict[tuple[str, str], Example] = {}  # by key
    callers: Counter[str] = Counter()
    capped = repeated = 0
    for example in _read_examples(journal.trails(until=until)):  # the newest first: new ones before the others
        limit = new_cap if example.row > since else cap
        is_over_limit = callers[example.caller] >= limit and example.caller not in trusted
        if example.key in taken:
            repeated += 1
        elif is_over_limit or len(taken) >= max_examples:
            capped += 1
        else:
            taken[example.key] = example
            callers[example.caller] += 1
    return Evidence(
        examples=tuple(sorted(taken.values(), key=lambda example: (example.at, example.row))),
        until=until,
        searches=searches,
        unused=unused,
        hidden=hidden,
        unnamed=journal.count_unnamed_calls(until),
        capped=capped,
        repeated=repeated,
        callers=callers,
        cap=cap,
    )


class LiveEvidence:
    """The examples since a model was fitted. They count at once, in methods that need no training.

    The newest `MAX_LIVE_EXAMPLES` count, as far as they are among the newest `MAX_LIVE_EVENTS` events. The limit for
    one caller is a twentieth of the number of examples that the model knows, at least 20 and at most 100. So nobody can
    change the answers completely before the model is tested again. The result depends on the journal alone, not on when
    it was read. Thread-safe.
    """

    def __init__(self, journal: Journal, after: int, known: int, *, trusted: Container[str] = ()) -> None:
        """Remember where to read.

        Args:
            journal: the journal.
            after: row id of the last search that the model was fitted on.
            known: number of examples that the model was fitted on.
            trusted: callers without a limit.
        """
        self._journal, self._after, self._trusted = journal, after, trusted
        least, most = LIVE_PER_CALLER_RANGE
        self._max_per_caller = min(most, max(least, known // 20))
        self._lock = threading.Lock()
        self._first_row = self._last_row = -1  # bounds of the journal at the last reading; no journal has a row -1
        self._version = 0  # rises when the examples change
        self._keys: dict[int, tuple[str, int]] = {}  # row → caller and hash of the key, for every example
        self._examples: dict[int, Example] = {}  # row → example, for those that count; both the oldest first

    def __call__(self) -> tuple[int, tuple[Example, ...]]:
        """Return a version that changes with the examples, and the examples, the oldest first."""
        first, last = self._journal.read_bounds()
        with self._lock:
            events_were_added = last > self._last_row
            events_were_removed = first != self._first_row
            if events_were_added or events_were_removed:
                self._update(first, last)
            return self._version, tuple(self._examples.values())

    def _update(self, first: int, last: int) -> None:
        """Bring the examples up to date with the journal.

        Only changed searches are read, unless there are many, or events were removed from the journal.

        Args:
            first: row id of the oldest event in the journal.
            last: row id of the newest event.
        """
        old_examples = list(self._examples.values())
        after = max(self._after, last - MAX_LIVE_EVENTS)
        changed = None
        if first == self._first_row:
            changed = self._journal.trails_since(self._last_row, until=last)
        if changed is None or len(changed) >= MAX_UPDATED_TRAILS:
            self._read_all(after, last)
        else:
            self._apply_changes(changed, after, last)
        self._first_row, self._last_row = first, last
        if list(self._examples.values()) != old_examples:
            self._version += 1

    def _read_all(self, after: int, last: int) -> None:
        """Read all searches after the row id `after` again, with their events up to the row id `last`."""
        self._examples = {}  # a call may have been judged bad, or forgotten
        examples = _read_examples(self._journal.trails(after=after, until=last))
        self._keys = {example.row: _hash_key(example) for example in examples}
        self._choose_examples(last, {})

    def _apply_changes(self, changed: Sequence[Trail], after: int, last: int) -> None:
        """Drop the examples that became too old, replace those that changed, and add new ones.

        Args:
            changed: the trails of the changed and the new searches.
            after: searches up to this row id are too old.
            last: row id of the last event to read.
        """
        outdated = list(takewhile(lambda row: row <= after, self._keys))  # `_keys` begins with the oldest row
        recent = [trail for trail in changed if trail.row > after]
        for row in (*outdated, *(trail.row for trail in recent)):
            self._keys.pop(row, None)
            self._examples.pop(row, None)
        if changed:
            fresh = {example.row: example for example in _read_examples(recent)}
            self._keys |= {row: _hash_key(example) for row, example in fresh.items()}
            self._choose_examples(last, fresh)

    def _choose_examples(self, last: int, fresh: Mapping[int, Example]) -> None:
        """Choose the examples that count, and read those that are not in memory.

        Args:
            last: row id of the last event to read.
            fresh: row → example, for examples that were just read.
        """
        self._keys = dict(sorted(self._keys.items()))
        chosen = self._choose_rows()
        examples = {**fresh, **self._examples}
        unread = [row for row in chosen if row not in examples]
        examples |= {example.row: example for example in _read_examples(self._journal.trails_at(unread, until=last))}
        gone = [row for row in unread if row not in examples]
        if gone:  # another process has removed them from the journal meanwhile: choose among the others
            for row in gone:
                del self._keys[row]
            self._choose_examples(last, examples)
        else:
            self._examples = {row: examples[row] for row in chosen}

    def _choose_rows(self) -> list[int]:
        """Return the rows of the examples that count, the oldest first.

        Of examples with one key the newest counts. A caller who is not trusted has only the newest up to the limit.
        """
        row_by_key: dict[int, int] = {}
        n_by_caller: Counter[str] = Counter()
        for row, (caller, key) in reversed(self._keys.items()):
            if len(row_by_key) >= MAX_LIVE_EXAMPLES:
                break
            is_allowed = caller in self._trusted or n_by_caller[caller] < self._max_per_caller
            if is_allowed and key not in row_by_key:
                row_by_key[key] = row
                n_by_caller[caller] += 1
        return sorted(row_by_key.values())


def _hash_key(example: Example) -> tuple[str, int]:
    """Return the caller, and a hash of the example's key, which needs less memory than the key."""
    return example.caller, hash(example.key)
