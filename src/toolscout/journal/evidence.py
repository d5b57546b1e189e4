"""What the journal says of which tools requests need: calls that succeeded, and feedback.

An example is a search and the tools that its caller then used with success. What counts, and how much:

* A tool that stood further down was less likely looked at, so that a call of it says more. Each tool weighs
  1 / p(rank) with p(r) = r^-η, the propensity of Joachims et al. (arXiv:1608.04468, section 5.1, with η 0.5, since an
  agent reads all that it is shown); a tool that was called though it was not shown weighs 1.
* Calls that failed, and calls by another caller than the one that searched, say nothing. Feedback adds and removes.
* No caller may have its way alone: of each, at most a share of all examples is taken (`share`), the newest.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from toolscout.journal.journal import Journal, Trail

__all__ = ["Evidence", "Example", "Live", "collect", "example", "limit", "weight"]

BIAS: Final = 0.5  # η
MOST: Final = 50_000  # examples that are held in memory
SHARE: Final = 0.05  # of one caller among many, at most
HALF: Final = 0.5  # of one caller among few, at most
FLOOR: Final = 50  # of one caller, whatever the others did
MOST_LIVE: Final = 2_000  # examples beyond what a model was fitted on,
MOST_EVENTS: Final = 30_000  # from the newest so many events, however long ago that was
MOST_TOUCHED: Final = 500  # searches that were added to since the last look; with more, all is read anew
EACH_LIVE: Final = (20, 100)  # of these, of one caller: a twentieth of what the model knows, within these bounds
HASHED: Final = "blake2b:"  # what stands in the place of a query that may not be kept


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and the tools that it was seen to need.

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
        """Who asked what: of equal examples only the newest counts."""
        return self.caller, " ".join(self.query.casefold().split())


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The examples of a journal, and what was left out of them.

    Attributes:
        examples: the oldest first.
        until: row id of the newest event that was looked at.
        searches: searches that a call or feedback followed.
        unused: of these, how many led to no success.
        hidden: of these, how many have no readable query.
        capped: how many were left out because their caller has too many.
        repeated: how many were left out because the same caller asked the same again later.
        callers: caller → examples taken.
        cap: how many were taken of a caller at most.
    """

    examples: tuple[Example, ...]
    until: int
    searches: int
    unused: int
    hidden: int
    capped: int
    repeated: int
    callers: dict[str, int]
    cap: int


def weight(rank: int | None) -> float:
    """What a call of a tool shown at `rank` (from 1) counts: the inverse of its propensity; not shown: 1."""
    return 1.0 if rank is None else float(max(rank, 1)) ** BIAS


def example(trail: Trail) -> Example | None:
    """The example of one search; None: nothing was used with success."""
    search = next(event for event in trail.events if event["event"] == "search")
    ranked = reversed([*enumerate(search["shown"], 1)]) if isinstance(search["shown"], list) else ()
    shown = {tool: rank for rank, tool in ranked if isinstance(tool, str)}
    good: dict[str, float] = {}
    for event in trail.events:
        if event["caller"] != search["caller"]:
            continue
        if event["event"] == "call" and event["ok"]:
            good[event["tool"]] = weight(shown.get(event["tool"]))
        elif event["event"] == "feedback":
            good.update((tool, weight(shown.get(tool))) for tool in _names(event.get("good")))
            for tool in _names(event.get("bad")):
                good.pop(tool, None)
    if not good:
        return None
    return Example(row=trail.row, at=search["at"], caller=search["caller"], query=search["query"], tools=good)


def _names(value: Any) -> list[str]:
    """The ids in a field of an event, whatever else stands there: older versions took events in as they came."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _is_readable(query: str) -> bool:
    return bool(query.strip()) and not query.startswith(HASHED)


def _readable(trails: Iterable[Trail]) -> Iterator[Example]:
    return (found for trail in trails if (found := example(trail)) is not None and _is_readable(found.query))


def limit(counts: Mapping[str, int]) -> int:
    """How many examples of one caller are taken, so that none has more than its share of those taken.

    The share is 2 / n of n callers, at least a twentieth and at most a half; a single caller has no limit, and fifty
    examples everybody may bring.
    """
    if len(counts) < 2:
        return max(counts.values(), default=0)
    share = min(HALF, max(SHARE, 2 / len(counts)))
    cap = max(counts.values())
    while cap > FLOOR and cap > share * sum(min(count, cap) for count in counts.values()):
        cap = max(FLOOR, min(cap - 1, int(share * sum(min(count, cap) for count in counts.values()))))
    return cap


def collect(
    journal: Journal, *, until: int, since: int = 0, trusted: Container[str] = (), most: int = MOST
) -> Evidence:
    """The examples of a journal, read as a stream twice: to count callers, and to take the newest of each.

    Args:
        journal: where from.
        until: events with a row id up to this.
        since: searches after this row id are new: nobody has more than a caller's share of these either.
        trusted: callers without a limit.
        most: how many examples at most, the newest.
    """
    counts: Counter[str] = Counter()
    late: Counter[str] = Counter()
    searches = unused = hidden = 0
    for trail in journal.trails(until=until):
        found = example(trail)
        searches += 1
        unused += found is None
        if found is not None:
            readable = _is_readable(found.query)
            hidden += not readable
            counts[found.caller] += readable
            late[found.caller] += readable and found.row > since
    cap, fresh = (limit({caller: count for caller, count in each.items() if count}) for each in (counts, late))
    taken: dict[tuple[str, str], Example] = {}
    callers: dict[str, int] = {}
    capped = repeated = 0
    for found in _readable(journal.trails(until=until)):
        enough = callers.get(found.caller, 0) >= (min(cap, fresh) if found.row > since else cap)
        if found.key in taken:
            repeated += 1
        elif (enough and found.caller not in trusted) or len(taken) >= most:
            capped += 1
        else:
            taken[found.key] = found
            callers[found.caller] = callers.get(found.caller, 0) + 1
    return Evidence(
        examples=tuple(sorted(taken.values(), key=lambda each: (each.at, each.row))),
        until=until,
        searches=searches,
        unused=unused,
        hidden=hidden,
        capped=capped,
        repeated=repeated,
        callers=callers,
        cap=cap,
    )


class Live:
    """What was used since a model was fitted: it counts at once, for the methods that need no training.

    The newest two thousand examples count, as far as the newest thirty thousand events hold them. Of one caller only a
    twentieth as many as the model knows are taken (20 to 100), so that nobody can turn its answers round before the
    next test. What counts depends on the journal alone, not on when it was read. Safe to use from several threads.
    """

    def __init__(self, journal: Journal, after: int, known: int, *, trusted: Container[str] = ()) -> None:
        """Take the journal, the row id of the last search that the model knows, how many examples it knows, and the
        callers without a limit.
        """
        self._journal, self._after, self._trusted = journal, after, trusted
        self._each = sorted((EACH_LIVE[0], known // 20, EACH_LIVE[1]))[1]
        self._lock = threading.Lock()
        self._seen = -1
        self._version = 0
        self._known: dict[int, tuple[str, int]] = {}  # all examples of those events: row → caller, hash of the key
        self._held: dict[int, Example] = {}  # those that count; both the oldest first

    def __call__(self) -> tuple[int, tuple[Example, ...]]:
        """A number that changes whenever the examples do, and the examples, the oldest first."""
        last = self._journal.last()
        with self._lock:
            if last > self._seen:
                self._read(last)
            return self._version, tuple(self._held.values())

    def _read(self, last: int) -> None:
        before, after = [*self._held.values()], max(self._after, last - MOST_EVENTS)
        touched = [] if self._seen < 0 else self._journal.trails_since(self._seen, until=last)
        if self._seen < 0 or len(touched) >= MOST_TOUCHED:
            self._known = {
                row: known for row, known, _ in _light(self._journal.trails(after=after, until=last)) if known
            }
            self._choose(last, {})
        else:
            while self._known and (oldest := next(iter(self._known))) <= after:
                del self._known[oldest]
                self._held.pop(oldest, None)
            if touched:
                found = {}
                for row, known, each in _light(trail for trail in touched if trail.row > after):
                    self._known.pop(row, None)
                    self._held.pop(row, None)
                    if known is not None and each is not None:
                        self._known[row], found[row] = known, each
                self._choose(last, found)
        self._seen = last
        self._version += before != [*self._held.values()]

    def _choose(self, last: int, found: Mapping[int, Example]) -> None:
        """Hold those that count: of each caller the newest, of equal ones the newest, and not too many."""
        order = sorted(self._known)
        self._known = {row: self._known[row] for row in order}
        taken: dict[int, int] = {}  # hash of the key → row
        callers: Counter[str] = Counter()
        for row in reversed(order):
            caller, key = self._known[row]
            if len(taken) >= MOST_LIVE:
                break
            if key not in taken and (callers[caller] < self._each or caller in self._trusted):
                taken[key] = row
                callers[caller] += 1
        rows = sorted(taken.values())
        held = {**found, **self._held}
        missing = self._journal.trails_at([row for row in rows if row not in held], until=last)
        held |= {row: each for row, _, each in _light(missing) if each is not None}
        self._held = {row: held[row] for row in rows}


def _light(trails: Iterable[Trail]) -> Iterator[tuple[int, tuple[str, int] | None, Example | None]]:
    """Row, caller and hash of the key of each search that is an example, and the example; else None twice."""
    for trail in trails:
        found = example(trail)
        if found is None or not _is_readable(found.query):
            yield trail.row, None, None
        else:
            yield trail.row, (found.caller, hash(found.key)), found
