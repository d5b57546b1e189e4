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
from typing import Any, Final

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

POSITION_BIAS: Final = 0.5
"""η of the propensity."""
MAX_EXAMPLES: Final = 50_000
"""Bound for the examples in memory."""
MIN_CALLER_SHARE: Final = 0.05
"""Share of all examples that one of many callers may bring."""
MAX_CALLER_SHARE: Final = 0.5
"""Share of all examples that one of few callers may bring."""
MIN_CALLER_EXAMPLES: Final = 50
"""Number of examples that every caller may bring."""
MAX_LIVE_EXAMPLES: Final = 2_000
"""Bound for the examples that count before the next fit."""
MAX_LIVE_EVENTS: Final = 30_000
"""Number of newest events from which live examples are read."""
MAX_UPDATED_TRAILS: Final = 500
"""Number of changed searches above which everything is read again."""
LIVE_PER_CALLER_RANGE: Final = (20, 100)
"""Bounds for the live examples of one caller. Within them, the limit is a twentieth of what the model knows."""
HASHED_QUERY_PREFIX: Final = "blake2b:"
"""Begins a query that was stored as a hash."""

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
    """Return the weight of a call of a tool shown at `rank` (from 1): its inverse propensity. None, not shown: 1."""
    return 1.0 if rank is None else float(max(rank, 1)) ** POSITION_BIAS


def read_example(trail: Trail) -> Example | None:
    """Return the example of one search and what followed it, or None if no tool was used successfully."""
    search = next(event for event in trail.events if event["event"] == "search")
    shown = search["shown"] if isinstance(search["shown"], list) else ()
    ranks: dict[str, int] = {}
    for rank, tool in enumerate(shown, 1):
        if isinstance(tool, str):
            ranks.setdefault(tool, rank)
    weights: dict[str, float] = {}
    for tool, is_right in _list_judgements(event for event in trail.events if event["caller"] == search["caller"]):
        weights.pop(tool, None)  # of several judgements the last one counts
        if is_right:
            weights[tool] = weigh_rank(ranks.get(tool))
    if not weights:
        return None
    return Example(row=trail.row, at=search["at"], caller=search["caller"], query=search["query"], tools=weights)


def _list_judgements(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """List (tool, whether it was right) from successful calls and feedback that was not withdrawn, in order."""
    judgements: list[tuple[str, bool, str]] = []  # tool, whether it was right, kind of event
    for event in events:
        kind = event["event"]
        if kind == "call" and event["ok"]:
            judgements.append((event["tool"], True, kind))
        elif kind == "feedback":
            judgements += [(tool, True, kind) for tool in _read_ids(event.get("good"))]
            judgements += [(tool, False, kind) for tool in _read_ids(event.get("bad"))]
            withdrawn = set(_read_ids(event.get("withdrawn")))
            judgements = [
                (tool, is_right, event_kind)
                for tool, is_right, event_kind in judgements
                if event_kind == "call" or tool not in withdrawn
            ]
    return [(tool, is_right) for tool, is_right, _ in judgements]


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
    while cap > MIN_CALLER_EXAMPLES:  # a lower limit also lowers the number of all, so it is lowered again
        n_taken = sum(min(count, cap) for count in counts.values())
        if cap <= share * n_taken:
            break
        cap = max(MIN_CALLER_EXAMPLES, min(cap - 1, int(share * n_taken)))
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
        example = read_example(trail)
        searches += 1
        unused += example is None
        if example is not None:
            readable = _is_readable(example.query)
            hidden += not readable
            counts[example.caller] += readable
            new_counts[example.caller] += readable and example.row > since
    cap, new_cap = (
        limit_per_caller({caller: count for caller, count in counter.items() if count})
        for counter in (counts, new_counts)
    )
    taken: dict[tuple[str, str], Example] = {}  # by key
    callers: Counter[str] = Counter()
    capped = repeated = 0
    for example in _read_examples(journal.trails(until=until)):  # the newest first: new ones before the others
        limit = min(cap, new_cap) if example.row > since else cap
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
        self._first_row, self._last_row = -1, -1  # of the journal, when it was read last; -1: never
        self._version = 0  # rises when the examples change
        self._caller_and_key: dict[int, tuple[str, int]] = {}  # row → caller and hash of the key, for every example
        self._examples: dict[int, Example] = {}  # row → example, for those that count; both the oldest first

    def __call__(self) -> tuple[int, tuple[Example, ...]]:
        """Return a version that changes with the examples, and the examples, the oldest first."""
        first, last = self._journal.read_bounds()
        with self._lock:
            if last > self._last_row or first != self._first_row:
                self._update(first, last)
            return self._version, tuple(self._examples.values())

    def _update(self, first: int, last: int) -> None:
        """Bring the examples up to date with the journal.

        If only few searches changed, these are read again. Otherwise, and if events were removed, the newest
        `MAX_LIVE_EVENTS` events are read again.

        Args:
            first: row id of the oldest event in the journal.
            last: row id of the newest event.
        """
        old_examples, after = [*self._examples.values()], max(self._after, last - MAX_LIVE_EVENTS)
        reads_all = self._last_row < 0 or first != self._first_row
        updated = [] if reads_all else self._journal.trails_since(self._last_row, until=last)
        if reads_all or len(updated) >= MAX_UPDATED_TRAILS:
            self._examples = {}  # a call may have been judged bad, or forgotten
            self._caller_and_key = {
                row: key for row, key, _ in _read_keys(self._journal.trails(after=after, until=last)) if key
            }
            self._select(last, {})
        else:
            self._apply_changes(updated, after, last)
        self._first_row, self._last_row = first, last
        self._version += old_examples != [*self._examples.values()]

    def _apply_changes(self, updated: Sequence[Trail], after: int, last: int) -> None:
        """Drop the examples that became too old, replace those that changed, and add new ones.

        Args:
            updated: the trails of the changed and the new searches.
            after: searches up to this row id are too old.
            last: row id of the last event to read.
        """
        # the dictionary begins with the oldest row
        while self._caller_and_key and (oldest := next(iter(self._caller_and_key))) <= after:
            del self._caller_and_key[oldest]
            self._examples.pop(oldest, None)
        if not updated:
            return
        fresh = {}
        for row, key, example in _read_keys(trail for trail in updated if trail.row > after):
            self._caller_and_key.pop(row, None)
            self._examples.pop(row, None)
            if key is not None and example is not None:
                self._caller_and_key[row], fresh[row] = key, example
        self._select(last, fresh)

    def _select(self, last: int, fresh: Mapping[int, Example]) -> None:
        """Keep the newest example of each key, and of each caller only the newest up to the limit.

        Args:
            last: row id of the last event to read.
            fresh: row → example, for examples that were just read. Others are read here if they are not in memory.
        """
        selected = self._choose_rows()
        examples = {**fresh, **self._examples}
        missing = self._journal.trails_at([row for row in selected if row not in examples], until=last)
        examples |= {row: example for row, _, example in _read_keys(missing) if example is not None}
        gone = [row for row in selected if row not in examples]
        if gone:  # another process has removed them meanwhile: choose among the others
            self._caller_and_key = {row: key for row, key in self._caller_and_key.items() if row not in gone}
            self._select(last, examples)
        else:
            self._examples = {row: examples[row] for row in selected}

    def _choose_rows(self) -> list[int]:
        """Return the rows of the examples that count, the oldest first. Also sorts `_caller_and_key` by row.

        Equal examples have the same key (a hash), and the newest of them counts. Only trusted callers have no limit.
        """
        rows = sorted(self._caller_and_key)
        self._caller_and_key = {row: self._caller_and_key[row] for row in rows}
        row_by_key: dict[int, int] = {}
        n_by_caller: Counter[str] = Counter()
        for row in reversed(rows):
            caller, key = self._caller_and_key[row]
            if len(row_by_key) >= MAX_LIVE_EXAMPLES:
                break
            if key not in row_by_key and (n_by_caller[caller] < self._max_per_caller or caller in self._trusted):
                row_by_key[key] = row
                n_by_caller[caller] += 1
        return sorted(row_by_key.values())


def _read_keys(trails: Iterable[Trail]) -> Iterator[tuple[int, tuple[str, int] | None, Example | None]]:
    """Yield (row, (caller, hash of the key), example) of each search; (row, None, None): it gives no example.

    The hash takes the place of the key in memory.
    """
    for trail in trails:
        example = read_example(trail)
        if example is None or not _is_readable(example.query):
            yield trail.row, None, None
        else:
            yield trail.row, (example.caller, hash(example.key)), example
