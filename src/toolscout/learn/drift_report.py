"""What the drift watch says: alarms, new topics, new tools, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = ["DRIFT_KINDS", "FAILING", "Alarm", "DriftReport", "Topic", "advise", "describe_alarm"]

FAILING: Final = ("server", "group", "tool")
TRAFFIC_CHANGES: Final = {
    "requests": "The requests are unlike the earlier ones",
    "words": "The requests share more or fewer words with the tools than before",
    "meanings": "The tools fit the meaning of the requests better or worse than before",
    "abstention": "More or fewer requests are answered without a tool than before",
    "success": "Fewer calls succeed than before",
}
DRIFT_KINDS: Final = (*TRAFFIC_CHANGES, *FAILING)
MAX_NAMES: Final = 3  # of new tools in the message


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that changed.

    Attributes:
        what: one of `DRIFT_KINDS`.
        name: of the server, the group of tools or the tool that fails; empty otherwise.
        since: instant at which the change seems to have begun.
        at: instant of the event at which the alarm was raised.
        before: mean in the champion's time: of the distance, the score, or the share of failures or abstentions.
        after: mean since the change.
        count: number of observations since the change.
        over: whether calls that failed succeed again.
    """

    what: str
    name: str = ""
    since: str
    at: str
    before: float
    after: float
    count: int
    over: bool = False


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are close to each other and far from all requests of the champion's time.

    Attributes:
        size: number of requests.
        callers: number of their callers.
        rows: journal rows of some of them.
        examples: their queries. Empty in the file of a home, because the journal may forget them.
    """

    size: int
    callers: int
    rows: tuple[int, ...]
    examples: tuple[str, ...] = ()


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the watch has seen since the champion's time; see `toolscout.learn.drift`.

    Attributes:
        state: `raised`, `quiet`, or `waiting` while there is too little to compare with.
        champion: name of the model, or of the recipe without one.
        reference: number of searches of the champion's time that are compared with.
        watched: number of searches since.
        alarms: what changed; those that are over too.
        topics: new topics, the largest first.
        new_tools: tool id → number of calls, for tools that nobody called in the champion's time.
        advice: what to do: `repair`, `learn`, `rollback`.
        message: the same in sentences; empty if nothing changed.
        at: when it was checked.
    """

    state: str
    champion: str
    reference: int = 0
    watched: int = 0
    alarms: tuple[Alarm, ...] = ()
    topics: tuple[Topic, ...] = ()
    new_tools: dict[str, int] = {}
    advice: tuple[str, ...] = ()
    message: str = ""
    at: str = ""


def advise(alarms: Sequence[Alarm], *, has_model: bool, new_tools: Sequence[str] = ()) -> tuple[tuple[str, ...], str]:
    """Return what to do about alarms, and sentences that say what changed and what to do.

    Args:
        alarms: all of them.
        has_model: whether a fitted model serves, so that a rollback is possible.
        new_tools: ids of tools that are new in the calls, the most called first.
    """
    open_alarms = [alarm for alarm in alarms if not alarm.over]
    if not open_alarms:
        return (), ""
    advice: list[str] = []
    sentences = [describe_alarm(alarm) for alarm in _name_each_failure_once(open_alarms)]
    kinds = {alarm.what for alarm in open_alarms}
    something_fails = not kinds.isdisjoint(FAILING)
    requests_changed = not kinds.isdisjoint(("requests", "words", "meanings"))
    if something_fails:
        advice.append("repair")
        sentences.append("Look at what fails (toolscout status).")
    if requests_changed:
        advice.append("learn")
        if new_tools:
            names = ", ".join(new_tools[:MAX_NAMES])
            sentences.append(f"Tools are called that nobody called before: {names}.")
        sentences.append("To fit and test a model on the new requests, run  toolscout learn")
    elif has_model and not something_fails:  # only abstentions or the successes of all calls changed
        advice.append("rollback")
        sentences.append(
            "The requests are the same, so the champion may be worse. Take it back with  toolscout rollback"
        )
    elif not something_fails:
        advice.append("learn")
        sentences.append("To fit and test a model on the newest requests, run  toolscout learn")
    return tuple(advice), " ".join(sentences)


def _name_each_failure_once(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Leave out alarms that another alarm explains, such as the alarm of a tool if its whole server fails."""
    servers = {alarm.name for alarm in alarms if alarm.what == "server"}
    group_prefixes = tuple(f"{alarm.name}/" for alarm in alarms if alarm.what == "group")
    something_fails = any(alarm.what in FAILING for alarm in alarms)

    def is_explained(alarm: Alarm) -> bool:
        if alarm.what == "success":  # of all calls
            return something_fails
        source, _, _ = alarm.name.partition("/")
        by_server = alarm.what in ("group", "tool") and source in servers
        by_group = alarm.what == "tool" and alarm.name.startswith(group_prefixes)
        return by_server or by_group

    return [alarm for alarm in alarms if not is_explained(alarm)]


def describe_alarm(alarm: Alarm) -> str:
    """Say in a sentence what changed."""
    since = alarm.since[:16].replace("T", " ")  # to the minute
    if alarm.what in FAILING:
        return (
            f"The {alarm.what} {alarm.name} fails: {alarm.after:.0%} of {alarm.count:,} calls since {since} "
            f"failed, {alarm.before:.0%} before."
        )
    spec = ".0%" if alarm.what in ("abstention", "success") else ".2f"  # shares are written as percentages
    nouns = {"requests": "mean distance", "abstention": "share", "success": "share of failures"}
    noun = nouns.get(alarm.what, "mean score")
    return f"{TRAFFIC_CHANGES[alarm.what]}, since {since}: {noun} {alarm.after:{spec}}, {alarm.before:{spec}} before."
