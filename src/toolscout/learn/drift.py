"""Watches whether the traffic has changed since the champion's time, and says what changed.

The champion's time is what `learn` last compared the champion on: the journal up to the last event of that run. Before
the first run it is the first `FIRST_REFERENCE` searches. What is watched since:

* requests: the distance of each request to the nearest of the champion's time, by the bundled encoder;
* score features: how well words and meanings of the best tools fit the request (`search.abstain.score_features`);
* the share of searches without a tool, and the shares of failed calls, of all tools and of each server, group and tool.

Each is a test by betting (`toolscout.learn.betting`). All tests together raise a false alarm since the champion's time
with a probability of at most `FALSE_ALARMS`, however long they watch: the significance level is shared over the tests,
and over the segments of `SEGMENT_SEARCHES` searches, after which they start again. This holds if requests of the same
traffic are exchangeable, and if the shares of failures of the champion's time are within their bounds
(`REFERENCE_ERROR`). A caller who repeats one request all day is a change.

A *row* is the id of an event in the journal; later events have higher ones.

::

    <home>/learn/drift.json     where the present segment starts, and what was raised before it
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.arrays import Vectors
from toolscout.encoders.static import load_static
from toolscout.errors import UserError
from toolscout.home.database import now, open_home
from toolscout.home.journal.evidence import HASHED_QUERY_PREFIX
from toolscout.home.journal.journal import read_rows
from toolscout.learn.betting import ConformalTest, ShareTest, bound_share, draw_uniform
from toolscout.learn.drift_report import DRIFT_KINDS, FAILING, Alarm, DriftReport, Topic, advise
from toolscout.learn.gate import level_of_look
from toolscout.learn.report import last
from toolscout.scout import Scout
from toolscout.search.abstain.score_features import ScoreFeatures
from toolscout.search.home_resources import index_words

__all__ = ["DRIFT_FILE", "DriftWatch", "read_report"]

DRIFT_FILE: Final = "learn/drift.json"
DRIFT_FORMAT: Final = "toolscout-drift/1"
FALSE_ALARMS: Final = 0.01  # bound on the probability of any false alarm since the champion's time
FIRST_REFERENCE: Final = 500  # searches that are compared with before the first run of learn
MIN_REFERENCE: Final = 100
MAX_REFERENCE: Final = 1_000
MIN_CALLS: Final = 20  # calls of a server in the champion's time; with fewer, it is compared with all servers
REFERENCE_ERROR: Final = 0.01  # of the upper bound on the share of failures in the champion's time
MIN_FAILURE_SHARE: Final = 0.05  # fewer failures are never an alarm
NEW_FAILURE_SHARE: Final = 0.2  # the same for a server that was hardly called in the champion's time
RECOVERED_CALLS: Final = 20  # newest calls that must succeed as before, for a failure to be over
SEGMENT_SEARCHES: Final = 5_000
MAX_BACKLOG_SEARCHES: Final = 20_000  # of more, a first check reads the newest
MAX_SEGMENT_CALLS: Final = 80_000  # of more beside the searches of a segment, the first are read
MAX_FEATURE_TOOLS: Final = 20_000  # with more, the score features take too long to watch
MAX_STRANGE: Final = 500  # strange requests that topics are made of
STRANGE_QUANTILE: Final = 0.95  # of the distances in the champion's time; requests beyond it are strange
MIN_TOPIC_COSINE: Final = 0.3
MAX_TOPICS: Final = 3
MAX_TOPIC_EXAMPLES: Final = 3
MAX_TOPIC_QUERY_CHARS: Final = 160
OUTCOMES: Final = (*FAILING, "success")
Rows = Sequence[tuple[int, dict[str, Any]]]
"""Events of the journal: row, and the event as the journal exports it."""


class _DriftState(msgspec.Struct, kw_only=True):
    """The file: the champion's time, where the present segment starts, and what was raised.

    Attributes:
        champion: name of the model, or of the recipe.
        until: last row of the champion's time.
        segment: number of the present segment, from 1.
        start: last row before it.
        watched: searches of the former segments.
        alarms: of all segments.
        topics: found when the alarm was raised, without queries.
        report: of the last check, without queries.
    """

    champion: str
    until: int
    segment: int = 1
    start: int = 0
    watched: int = 0
    alarms: list[Alarm] = []
    topics: list[Topic] = []
    report: DriftReport | None = None
    format: str = DRIFT_FORMAT


class _RunningTest:
    """One test of the present segment, with the values that it has seen."""

    def __init__(self, test: ConformalTest | ShareTest, before: float, level: float) -> None:
        self.test, self.before = test, before  # `before`: mean of the values in the champion's time
        self.log_limit = math.log(1 / level)  # the test rejects when the logarithm of its capital reaches this
        self.values: list[float] = []
        self.instants: list[str] = []  # at which the values were observed

    @property
    def rejects(self) -> bool:
        """Whether the values have changed since the champion's time. Once true, it stays true."""
        return self.test.high >= self.log_limit

    def observe(self, value: float, at: str, tie: float) -> None:
        """Add an observation; `tie` decides between equal values, see `ConformalTest.rank`."""
        self.values.append(value)
        self.instants.append(at)
        if isinstance(self.test, ShareTest):
            self.test.observe(value)
        else:
            self.test.observe(value, tie)

    def make_alarm(self, what: str, name: str) -> Alarm:
        """Describe the change that the test has found: when it began, and the mean before and after."""
        since = self.test.since
        return Alarm(
            what=what,
            name=name,
            since=self.instants[since],
            at=self.instants[-1],
            before=self.before,
            after=float(np.mean(self.values[since:])),
            count=len(self.values) - since,
        )

    def has_recovered(self) -> bool:
        """Return whether the newest calls fail no more often than in the champion's time, for a test of failures."""
        newest = self.values[-RECOVERED_CALLS:]
        return len(newest) == RECOVERED_CALLS and float(np.mean(newest)) <= max(self.before, MIN_FAILURE_SHARE)


class _StrangeRequest(msgspec.Struct, frozen=True):
    """A request that is unusually far from the requests of the champion's time. `vector` is a row of floats."""

    row: int
    caller: str
    vector: Any


class DriftWatch:
    """Watches the traffic of a home for changes since the champion's time. Thread-safe.

    `check` reads only what is new since its last call. A new process reads the present segment again.
    """

    def __init__(self, scout: Scout) -> None:
        """Watch the journal of a Scout."""
        self._scout, self._home = scout, scout.settings.place
        self._lock = threading.Lock()
        self._state: _DriftState | None = None  # of the present segment; None before the first check

    def check(self) -> DriftReport:
        """Read what is new, and return what changed since the champion's time."""
        with self._lock:
            newest = self._scout.journal.last()
            selection, _ = self._scout.engine.serving()
            champion = selection.model.name if selection.model else selection.recipe
            values = selection.manifest.values if selection.manifest else {}
            until = self._find_end_of_reference(values, champion, newest)
            if until is None:
                return DriftReport(state="waiting", champion=champion, at=now())
            state = self._state
            if state is None or (state.champion, state.until) != (champion, until):
                state = self._begin(champion, until, newest)
                self._state = state  # only now, so that the next check begins again if this one failed
            count = len(self._reference_searches)
            if count < MIN_REFERENCE:
                return DriftReport(state="waiting", champion=champion, reference=count, at=now())
            self._read_new(state, newest)
            return self._report(state, has_model=selection.promoted, newest=newest)

    def _find_end_of_reference(self, values: dict[str, object], champion: str, newest: int) -> int | None:
        """Return the last row of the champion's time. None: there are too few searches yet.

        Args:
            values: of the champion's manifest. `learn` notes there which rows it read.
            champion: name of the model, or of the recipe.
            newest: last row of the journal.
        """
        rows = values.get("journal")
        until = int(rows.get("until", 0)) if isinstance(rows, dict) else 0
        report = last(self._home)
        # A run that tested a candidate against the champion moves the end; a dry run ("would-…") does not.
        if report is not None and report.verdict is not None and not report.outcome.startswith("would"):
            until = max(until, int(report.evidence.get("until", 0)))
        if until:
            return until
        saved = _read_state(self._home)
        # An earlier check chose the row; it is beyond `newest` if somebody has replaced the journal since.
        if saved is not None and saved.champion == champion and saved.until <= newest:
            return saved.until
        searches = read_rows(self._scout.journal, "search", until=newest, limit=FIRST_REFERENCE)
        if len(searches) < FIRST_REFERENCE:
            return None
        until, _ = searches[-1]
        return until

    # --- the champion's time

    def _begin(self, champion: str, until: int, newest: int) -> _DriftState:
        """Read the champion's time, and start the tests of the saved segment, or of a first one. Return its state."""
        journal = self._scout.journal
        state = _read_state(self._home)
        if state is None or (state.champion, state.until) != (champion, until):
            state = _DriftState(champion=champion, until=until, start=until)
            backlog = read_rows(journal, "search", after=until, until=newest, limit=MAX_BACKLOG_SEARCHES, newest=True)
            if len(backlog) == MAX_BACKLOG_SEARCHES:  # reading all that may be before these would take too long
                state.start, _ = backlog[0]
        self._reference_searches = read_rows(journal, "search", until=until, limit=MAX_REFERENCE, newest=True)
        self._reference_calls = read_rows(journal, "call", until=until, limit=4 * MAX_REFERENCE, newest=True)
        self._reference_tools = {call["tool"] for _, call in self._reference_calls}
        self._encoder = load_static()
        self._features = self._open_features()
        readable = [(row, search) for row, search in self._reference_searches if _is_readable(search["query"])]
        # One half are anchors. The other half is measured against them, as new requests will be: the reference values.
        self._anchors = self._encode(readable[::2])
        self._reference_values = self._measure(readable[1::2])
        distances = self._reference_values.get("requests", ())
        self._usual_distance = float(np.quantile(distances, STRANGE_QUANTILE)) if len(distances) else 0.0
        self._start_segment(state)
        return state

    def _start_segment(self, state: _DriftState) -> None:
        """Start all tests anew, and count from zero.

        Tests of servers, groups and tools start with their first call (`_find_failure_test`).
        """
        # Every kind of test gets an equal part of the level, and spends it over all segments that may follow.
        level = level_of_look(FALSE_ALARMS / len(DRIFT_KINDS), state.segment)
        self._level, self._row, self._searches = level, state.start, 0
        self._tests: dict[tuple[str, str], _RunningTest] = {}  # by kind and name, as in an alarm
        self._strange: deque[_StrangeRequest] = deque(maxlen=MAX_STRANGE)
        self._new_tools: Counter[str] = Counter()  # calls of tools that nobody called in the champion's time
        self._late_names: Counter[str] = Counter()  # kind → number of names that were not called then
        for what, values in self._reference_values.items():
            if len(values) >= MIN_REFERENCE // 2:  # they were measured on half of the searches
                test = ConformalTest(values, both=what != "requests")  # requests that come nearer are no alarm
                self._tests[what, ""] = _RunningTest(test, float(np.mean(values)), level)
        abstained = [float(not search["shown"]) for _, search in self._reference_searches]
        test = ConformalTest(abstained, both=True)
        self._tests["abstention", ""] = _RunningTest(test, float(np.mean(abstained)), level)
        self._failures = [float(not call["ok"]) for _, call in self._reference_calls]
        if len(self._failures) >= MIN_CALLS:
            self._tests["success", ""] = self._make_failure_test(self._failures, level)
        self._failures_by_name: dict[tuple[str, str], list[float]] = {}
        paths = self._read_paths(self._reference_tools)
        for (_, call), failed in zip(self._reference_calls, self._failures, strict=True):
            for key in _list_names(call["tool"], paths.get(call["tool"], ())):
                self._failures_by_name.setdefault(key, []).append(failed)
        self._reference_names = Counter(what for what, _ in self._failures_by_name)

    def _find_failure_test(self, what: str, name: str) -> _RunningTest | None:
        """Return the test of a server, a group or a tool, and start it at the first call.

        Half of the level of a kind is divided evenly over the names that were called in the champion's time. The other
        half is for later names, the first one most. None: the champion's time has too few calls to compare with.
        """
        if (what, name) in self._tests:
            return self._tests[what, name]
        if len(self._failures) < MIN_CALLS:
            return None
        failures = self._failures_by_name.get((what, name), [])
        if failures:
            level = self._level / 2 / self._reference_names[what]
        else:
            self._late_names[what] += 1
            level = level_of_look(self._level / 2, self._late_names[what])
        self._tests[what, name] = self._make_failure_test(failures, level)
        return self._tests[what, name]

    def _make_failure_test(self, failures: Sequence[float], level: float) -> _RunningTest:
        """Make a test of whether calls fail more often than in the champion's time.

        `failures` are 1 or 0 for each call of that time. If they are too few, the calls of all tools are the reference.
        """
        if len(failures) >= MIN_CALLS:
            reference, min_bound = failures, MIN_FAILURE_SHARE
        else:
            reference, min_bound = self._failures, NEW_FAILURE_SHARE
        bound = max(min_bound, bound_share(sum(reference), len(reference), REFERENCE_ERROR))
        bound = min(bound, 1 - MIN_FAILURE_SHARE)  # a `ShareTest` needs a bound below 1
        return _RunningTest(ShareTest(bound), float(np.mean(reference)), level)

    def _open_features(self) -> ScoreFeatures | None:
        """Open the score features over the present catalogue. None if it is empty or too large, or has no vectors."""
        catalogue = self._scout.store.catalogue()
        if not 0 < len(catalogue) <= MAX_FEATURE_TOOLS:
            return None
        try:
            # The index is over vectors of the bundled encoder, whatever the recipe, so the default recipe will do.
            resources = self._scout.engine.builder.make_resources(self._scout.engine.selector.default)
            return ScoreFeatures(index_words(catalogue), {"static": resources.index_tools(catalogue, self._encoder)})
        except UserError:  # the vectors are missing
            return None

    def _encode(self, searches: Rows) -> Vectors:
        return self._encoder.encode([search["query"] for _, search in searches], "query")

    def _measure(self, searches: Rows) -> dict[str, Sequence[float]]:
        """Return what the tests of requests and score features compare: name of the test → a value for each search."""
        if not searches or not len(self._anchors):
            return {}
        vectors = self._encode(searches)
        values: dict[str, Sequence[float]] = {"requests": _find_distances(vectors, self._anchors)}
        if self._features is not None:
            rows = self._features.rows([search["query"] for _, search in searches], [vectors])
            for what, column in (("words", "words.top"), ("meanings", "static.top")):  # the score of the best tool
                values[what] = rows[:, self._features.names.index(column)].tolist()
        return values

    def _read_paths(self, tools: Iterable[str]) -> dict[str, tuple[str, ...]]:
        return {tool.id: tool.path for tool in self._scout.store.tools(sorted(set(tools)))}

    # --- what is new

    def _read_new(self, state: _DriftState, newest: int) -> None:
        """Read the events from the last check to the row `newest`. A full segment ends, and the next one starts."""
        journal = self._scout.journal
        while self._row < newest:
            n_missing = SEGMENT_SEARCHES - self._searches
            searches = read_rows(journal, "search", after=self._row, until=newest, limit=n_missing)
            is_full = len(searches) == n_missing
            until = max(row for row, _ in searches) if is_full else newest
            calls = read_rows(journal, "call", after=self._row, until=until, limit=MAX_SEGMENT_CALLS)
            self._read_segment(state, searches, calls)
            self._row = until
            if is_full:
                state.segment, state.start = state.segment + 1, until
                state.watched += self._searches
                self._save(state)
                self._start_segment(state)

    def _read_segment(self, state: _DriftState, searches: Rows, calls: Rows) -> None:
        """Pass searches and calls to the tests in the order in which they happened."""
        readable = [(row, search) for row, search in searches if _is_readable(search["query"])]
        vectors = self._encode(readable) if readable else np.zeros((0, 1), dtype=np.float32)
        values_by_test = self._measure(readable)
        index_of_row = {row: index for index, (row, _) in enumerate(readable)}
        paths = self._read_paths(call["tool"] for _, call in calls)
        for row, event in sorted([*searches, *calls], key=lambda entry: entry[0]):
            if event["event"] == "call":
                self._observe_call(state, event, paths.get(event["tool"], ()))
                continue
            self._searches += 1
            self._observe(state, "abstention", "", float(not event["shown"]), event)
            if row not in index_of_row:  # the journal has only a hash of the query
                continue
            index = index_of_row[row]
            for what, values in values_by_test.items():
                self._observe(state, what, "", values[index], event)
                is_strange = what == "requests" and values[index] > self._usual_distance
                if is_strange:
                    self._strange.append(_StrangeRequest(row, event["caller"], vectors[index]))

    def _observe_call(self, state: _DriftState, call: dict[str, Any], path: tuple[str, ...]) -> None:
        """Pass a call to the tests of all calls, and of its server, group and tool; `path` is the path of the tool."""
        failed = float(not call["ok"])
        if call["tool"] not in self._reference_tools:
            self._new_tools[call["tool"]] += 1
        self._observe(state, "success", "", failed, call)
        for what, name in _list_names(call["tool"], path):
            self._observe(state, what, name, failed, call)

    def _observe(self, state: _DriftState, what: str, name: str, value: float, event: dict[str, Any]) -> None:
        """Pass the value of an event to a test, and raise an alarm if the test rejects and raised none before.

        `what` is one of `DRIFT_KINDS`, `name` the server, group or tool; it is empty for tests of all traffic.
        """
        test = self._find_failure_test(what, name) if what in FAILING else self._tests.get((what, name))
        if test is None:  # the champion's time has too little to compare with
            return
        test.observe(value, event["at"], draw_uniform(what, name, event["uid"]))
        if test.rejects and (what, name) not in [(alarm.what, alarm.name) for alarm in state.alarms]:
            state.alarms.append(test.make_alarm(what, name))

    # --- the report

    def _report(self, state: _DriftState, *, has_model: bool, newest: int) -> DriftReport:
        """Build the report, and save it if it changed.

        The report that is returned also has example requests of each topic. They are read from the journal up to the
        event `newest`, and are not saved.
        """
        state.alarms = [self._update_alarm(alarm) for alarm in state.alarms]
        if any(alarm.what == "requests" for alarm in state.alarms) and self._strange:
            state.topics = _find_topics(self._strange)
        new_tools = dict(self._new_tools.most_common())
        advice, message = advise(state.alarms, has_model=has_model, new_tools=list(new_tools))
        report = DriftReport(
            state="raised" if advice else "quiet",
            champion=state.champion,
            reference=len(self._reference_searches),
            watched=state.watched + self._searches,
            alarms=tuple(state.alarms),
            topics=tuple(state.topics),
            new_tools=new_tools,
            advice=advice,
            message=message,
            at=now(),
        )
        former = state.report
        if former is None or former != msgspec.structs.replace(report, at=former.at):  # the time alone is no change
            state.report = report
            self._save(state)
        topics = tuple(self._add_examples(topic, newest) for topic in report.topics)
        return msgspec.structs.replace(report, topics=topics)

    def _update_alarm(self, alarm: Alarm) -> Alarm:
        """Return an alarm with its newest numbers, and whether it is over: failing calls succeed again.

        An alarm of a former segment keeps its numbers, unless the test of this segment rejects too.
        """
        test = self._tests.get((alarm.what, alarm.name))
        if test is None or not test.values:
            return alarm
        if test.rejects:
            alarm = msgspec.structs.replace(test.make_alarm(alarm.what, alarm.name), at=alarm.at)
        return msgspec.structs.replace(alarm, over=alarm.what in OUTCOMES and test.has_recovered())

    def _add_examples(self, topic: Topic, newest: int) -> Topic:
        """Return a topic with the queries of its rows, as far as the journal still has them."""
        trails = self._scout.journal.trails_at(topic.rows, until=newest)
        queries = (event["query"] for trail in trails for event in trail.events if event["event"] == "search")
        examples = tuple(query[:MAX_TOPIC_QUERY_CHARS] for query in queries)
        return msgspec.structs.replace(topic, examples=examples)

    def _save(self, state: _DriftState) -> None:
        """Write the file, unless the home is read-only."""
        if not self._scout.journal.read_only:
            content = msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n"
            open_home(self._home).write_document(DRIFT_FILE, content)


def read_report(scout: Scout) -> DriftReport | None:
    """Return the report of the last check, without queries; None if there was none."""
    state = _read_state(scout.settings.place)
    return state.report if state is not None else None


def _read_state(home: Any) -> _DriftState | None:
    """Read the file; None if there is none, or it cannot be read: the watch then starts again."""
    try:
        state = msgspec.json.decode(open_home(home).read_document(DRIFT_FILE), type=_DriftState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return state if state.format == DRIFT_FORMAT else None


def _is_readable(query: str) -> bool:
    """Return whether the journal has the text of a query, and not only a hash of it."""
    return bool(query.strip()) and not query.startswith(HASHED_QUERY_PREFIX)


def _find_distances(vectors: Vectors, anchors: Vectors) -> list[float]:
    """Return the cosine distance of each vector to the nearest anchor, 0 to 2.

    It is 1 for a vector of zeros: the encoder knows no word of that text.
    """
    return np.clip(1.0 - (vectors @ anchors.T).max(axis=1), 0.0, 2.0).tolist()  # type: ignore[no-any-return]


def _list_names(tool: str, path: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return (kind, name) of all that may fail with a call: the server, the tool, and the tool's group if it has one.

    Args:
        tool: id of the tool.
        path: of the tool; it may begin with the source, which is no group.
    """
    source, _, _ = tool.partition("/")
    groups = path[1:] if path and path[0] == source else path
    names = [("server", source), ("tool", tool)]
    if groups:
        names.append(("group", "/".join((source, *groups))))
    return names


def _find_topics(strange: Iterable[_StrangeRequest]) -> list[Topic]:
    """Group strange requests: each joins the first group with a first request close to it, or begins a new group."""
    groups: list[list[_StrangeRequest]] = []
    for request in strange:
        close_groups = (group for group in groups if float(group[0].vector @ request.vector) >= MIN_TOPIC_COSINE)
        group = next(close_groups, None)
        if group is None:
            groups.append([request])
        else:
            group.append(request)
    groups.sort(key=lambda group: (-len(group), group[0].row))  # the largest first, of equal ones the oldest
    return [
        Topic(
            size=len(group),
            callers=len({request.caller for request in group}),
            rows=tuple(request.row for request in group[:MAX_TOPIC_EXAMPLES]),
        )
        for group in groups[:MAX_TOPICS]
    ]
