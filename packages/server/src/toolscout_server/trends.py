"""Counts the events of the journal by day, and lists the queries that got no tool."""

from __future__ import annotations

from typing import Final

import msgspec

from toolscout.home.journal.journal import Journal

__all__ = ["DayCounts", "Unanswered", "count_days", "list_unanswered"]

MAX_TREND_DAYS: Final = 400
ABSTAINED: Final = "('no_tool_needed', 'no_tool_fits')"


class DayCounts(msgspec.Struct, frozen=True):
    """The events of one day, in UTC.

    Attributes:
        day: as 2026-05-31.
        searches: all searches.
        abstained: searches that returned no tool on purpose.
        empty: other searches that returned no tool.
        calls: calls of tools.
        failed_calls: calls that failed.
        feedback: ratings.
    """

    day: str
    searches: int
    abstained: int
    empty: int
    calls: int
    failed_calls: int
    feedback: int


class Unanswered(msgspec.Struct, frozen=True):
    """A query that got no tool.

    Attributes:
        query: the query.
        answer: no_tool_needed or no_tool_fits if the search abstained; None: no tool was found.
        times: how often it was asked.
        last: when it was asked last.
    """

    query: str
    answer: str | None
    times: int
    last: str


def count_days(journal: Journal, since: str) -> list[DayCounts]:
    """Count the events of each day from an instant on, the oldest day first. Days without an event are left out.

    If more than `MAX_TREND_DAYS` days have events, only the newest are counted.

    Args:
        journal: the journal.
        since: ISO 8601, UTC.
    """
    shown, answer = (journal.dialect.read_text("body", key) for key in ("shown", "answer"))
    succeeded = journal.dialect.json_true.format(column="body", key="ok")
    abstained = f"event = 'search' AND {answer} IN {ABSTAINED}"
    empty = f"event = 'search' AND {shown} = '[]' AND NOT coalesce({answer} IN {ABSTAINED}, FALSE)"
    conditions = (  # in the order of the fields of `DayCounts`
        "event = 'search'",
        abstained,
        empty,
        "event = 'call'",
        f"event = 'call' AND NOT coalesce({succeeded}, FALSE)",
        "event = 'feedback'",
    )
    sums = ", ".join(f"sum(CASE WHEN {condition} THEN 1 ELSE 0 END)" for condition in conditions)
    with journal.reading() as connection:
        rows = connection.execute(
            f"SELECT substr(at, 1, 10), {sums} FROM events WHERE at >= ? GROUP BY substr(at, 1, 10) "
            "ORDER BY substr(at, 1, 10) DESC LIMIT ?",
            (since, MAX_TREND_DAYS),
        ).fetchall()
    return [DayCounts(str(day), *map(int, counts)) for day, *counts in reversed(rows)]


def list_unanswered(journal: Journal, since: str, *, abstained: bool, limit: int) -> list[Unanswered]:
    """List the queries without a tool from an instant on, the most frequent first.

    Args:
        journal: the journal.
        since: ISO 8601, UTC.
        abstained: whether to list searches that abstained, or those that found nothing.
        limit: maximum number of queries.
    """
    query, shown, answer = (journal.dialect.read_text("body", key) for key in ("query", "shown", "answer"))
    is_abstained = f"coalesce({answer} IN {ABSTAINED}, FALSE)"
    with journal.reading() as connection:
        rows = connection.execute(
            f"SELECT {query}, {answer}, count(*), max(at) FROM events WHERE at >= ? AND event = 'search' "
            f"AND {shown} = '[]' AND {'' if abstained else 'NOT '}{is_abstained} GROUP BY {query}, {answer} "
            "ORDER BY count(*) DESC, max(at) DESC LIMIT ?",
            (since, limit),
        ).fetchall()
    return [Unanswered(str(text or ""), reason, int(times), last) for text, reason, times, last in rows]
