"""The service behind the routes: one Scout, its threads, the context of one request, and what it says about itself."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import math
import time
import traceback
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.responses import Response

import toolscout
from toolscout.errors import ToolscoutError, Unavailable
from toolscout.home.access.http import Buckets
from toolscout.home.access.live_policy import LivePolicies
from toolscout.learn.drift import DriftWatch
from toolscout.learn.drift_report import DriftReport
from toolscout.scout import Scout
from toolscout.trust.policy import Caller, Policies
from toolscout.types import Search
from toolscout_server.batches import Batches
from toolscout_server.metrics import Metrics
from toolscout_server.shapes import ExamplesAnswer, Me, Nothing, Ready, ServiceHealth
from toolscout_server.view import CatalogueView, CatalogueViews

__all__ = [
    "ApiRequest",
    "Limits",
    "RequestRefused",
    "Service",
    "check_health",
    "check_ready",
    "may_manage",
    "read_caller",
    "read_metrics",
]

SERVICE_THREADS: Final = 4  # beside the search thread; a fixed number keeps the SQLite connections few
DATABASE_ANSWER_S: Final = 2.0
DRIFT_INTERVAL_S: Final = 60.0  # between looks at whether the traffic changed
POLICY_INTERVAL_S: Final = 0.5  # between looks at the policy file
REOPEN_INTERVAL_S: Final = 3.0  # between attempts to open the index
T = TypeVar("T")
Parameters = TypeVar("Parameters", covariant=True)
_log: Final = logging.getLogger("toolscout.server")


class RequestRefused(Exception):
    """A request that is answered with a status of 400 or above and a message."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one service.

    Attributes:
        rate: average queries a second of one caller. None: no limit.
        rate_with_policy: replaces `rate` while rules of a policy file are in force, also if the file appears later.
            None: `rate` stays.
        body: bytes of a request body.
        upload: bytes of a journal import.
        patience: seconds for a request to arrive, and for open requests to finish when the service stops.
        waiting: queries that may wait at once. Further requests get status 503.
    """

    rate: float | None = None
    rate_with_policy: float | None = None
    body: int = 1 << 20
    upload: int = 64 << 20
    patience: int = 30
    waiting: int = 2_000


class Service:
    """State shared by all requests."""

    def __init__(
        self,
        scout: Scout,
        policies: Policies | LivePolicies | None = None,
        *,
        limits: Limits | None = None,
        results: Path | None = None,
        follow_policies: Callable[[str], None] | None = None,
    ) -> None:
        """Serve a Scout. The caller keeps it open while the service runs.

        Args:
            scout: catalogue, search and journal.
            policies: who may use the service and see what. By default everybody is the local user.
            limits: sizes, times and rates of requests.
            results: the folder of `toolscout lab bench --out`, shown as charts on the page.
            follow_policies: has the service apply changes of the policy file, and receives a sentence about each. None:
                the policies stay as they are, or somebody else refreshes them.
        """
        self.scout, self.policies, self.results = scout, policies or Policies(), results
        self.limits = limits or Limits()
        self.buckets = Buckets(self._choose_rate())
        self.views = CatalogueViews(scout.store)
        self.metrics = Metrics(lambda: len(self.batches), scout.store.generation, self._count_tools)
        self._threads = ThreadPoolExecutor(SERVICE_THREADS, thread_name_prefix="toolscout-work")
        self._search_thread = ThreadPoolExecutor(1, thread_name_prefix="toolscout-search")
        self.batches = Batches(scout, self._search_thread, self.metrics.count_batch)
        self.locks = {
            "catalogue": asyncio.Semaphore(1),  # of requests that change the catalogue
            "models": asyncio.Semaphore(1),  # of requests that read or move models
            "slow": asyncio.Semaphore(1),  # of requests that keep a core busy for seconds
        }
        self.examples: dict[Hashable, ExamplesAnswer] = {}  # by generation, rules of the caller and number
        self.not_ready_reason: str | None = "the index is being opened"
        self.is_stopping = False  # from then on, health answers no, so that no new requests come
        # Checks whether the database answers. Requests that want to know meanwhile wait for the same check.
        self._answering: asyncio.Future[Any] | None = None
        self._opening: asyncio.Future[None] | None = None  # opens the index in the background
        self._opened_at = -math.inf  # monotonic seconds when the last attempt to open it ended
        self._drift = DriftWatch(scout)
        self._follow_policies = follow_policies

    def _choose_rate(self) -> float | None:
        """Choose the queries a second that one caller may send now."""
        has_rules = isinstance(self.policies, LivePolicies) and self.policies.has_rules
        return self.limits.rate_with_policy or self.limits.rate if has_rules else self.limits.rate

    def _count_tools(self) -> int:
        return len(self.views.current().rows)

    async def run_in_thread(self, work: Callable[..., T], *arguments: object, **named: object) -> T:
        """Run blocking work in one of the service's threads."""
        call = functools.partial(work, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def open_index(self) -> None:
        """Open what searches need. After a failure, `/ready` reports it, and `/ready` and searches try again."""
        started = time.perf_counter()
        try:
            self.scout.embed()
            _, pipeline = self.scout.pipeline()
            # A deadline that has passed keeps a language model from being asked.
            deadline = time.monotonic() if self.scout.settings.llm else None
            with contextlib.suppress(Unavailable):  # searches then leave it out and say so
                pipeline([Search(query="warm up", deadline=deadline)])  # loads the state of the model
            self.views.current()
        except ToolscoutError as error:
            self.not_ready_reason = str(error)
            _log.warning("not ready: %s", error)
            return
        except Exception as error:  # log the type and place only: the message may quote a tool or a query
            self.not_ready_reason = "opening the index failed; the log says where"
            places = "".join(traceback.format_tb(error.__traceback__))
            _log.error("not ready: %s at\n%s", type(error).__name__, places)
            return
        gc.collect()
        gc.freeze()  # these objects live as long as the service: do not scan them again
        self.not_ready_reason = None
        _log.info("ready after %.2f s", time.perf_counter() - started)

    def reopen(self) -> None:
        """Open the index in the background, unless it is open, being opened, or failed a moment ago."""
        under_way = self._opening is not None and not self._opening.done()
        if (
            self.not_ready_reason is not None
            and not under_way
            and time.monotonic() - self._opened_at >= REOPEN_INTERVAL_S
        ):
            self._opening = asyncio.get_running_loop().run_in_executor(self._search_thread, self._open_and_note)

    def _open_and_note(self) -> None:
        try:
            self.open_index()
        finally:
            self._opened_at = time.monotonic()

    async def find_problem(self) -> str | None:
        """Say why searches would wait or fail now. None: nothing is wrong. The database gets a moment to answer.

        Only one check of the database runs at a time, so that a database that hangs takes one thread.
        """
        if self.is_stopping:
            return "the service is stopping"
        if self.not_ready_reason is not None or self.scout.settings.database is None:
            return self.not_ready_reason
        if self._answering is None or self._answering.done():
            self._answering = asyncio.ensure_future(self.run_in_thread(self._ask_database))
        try:
            await asyncio.wait_for(asyncio.shield(self._answering), DATABASE_ANSWER_S)
        except (ToolscoutError, asyncio.TimeoutError):
            return "the database does not answer"
        return None

    def _ask_database(self) -> None:
        with self.scout.store.reading() as connection:
            connection.execute("SELECT 1").fetchone()

    def begin_stop(self) -> None:
        """Let `/ready` say that the service stops, so that a balancer sends no more requests."""
        self.is_stopping = True

    def check_drift(self) -> DriftReport:
        """Test whether the traffic changed since `learn` last compared the champion, and show this in the metrics."""
        report = self._drift.check()
        self.metrics.show_drift(report)
        return report

    async def _watch_drift(self) -> None:
        """Look at the traffic from time to time. A failure is logged, and the next look tries again."""
        while True:
            await asyncio.sleep(DRIFT_INTERVAL_S)
            try:
                await self.run_in_thread(self.check_drift)
            except ToolscoutError as error:
                _log.warning("changes of the traffic are not noticed: %s", error)

    async def _watch_policies(self, policies: LivePolicies, say: Callable[[str], None]) -> None:
        """Apply changes of the policy file. Requests that are under way end with the rights that they began with."""
        while True:
            await asyncio.sleep(POLICY_INTERVAL_S)
            try:
                await asyncio.to_thread(policies.refresh, say)  # the service's own threads may all be busy
                self.buckets.rate = self._choose_rate()
            except ToolscoutError as error:
                _log.warning("the policy file is not read: %s", error)

    @contextlib.asynccontextmanager
    async def running(self, *_: object) -> AsyncIterator[None]:
        """Open the index and watch the traffic in the background. At the end wait until the threads have finished."""
        self.scout.engine.switch_in_background()
        self.reopen()
        watches = [asyncio.create_task(self._watch_drift())]
        if self._follow_policies is not None and isinstance(self.policies, LivePolicies):
            watches.append(asyncio.create_task(self._watch_policies(self.policies, self._follow_policies)))
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            if self._opening is not None:
                await self._opening
            await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Stop the threads after their current work."""
        self.scout.engine.stop_switching()
        self._search_thread.shutdown()
        self._threads.shutdown()


@dataclasses.dataclass(frozen=True)
class ApiRequest(Generic[Parameters]):
    """An authenticated request: its caller, its validated parameters, and the body if it is not JSON."""

    service: Service
    caller: Caller
    parameters: Parameters
    body: AsyncIterator[bytes]

    @property
    def scout(self) -> Scout:
        """Catalogue, search and journal."""
        return self.service.scout

    @property
    def view(self) -> CatalogueView:
        """The current catalogue. Every use checks the generation."""
        return self.service.views.current(self.caller)


def may_manage(caller: Caller) -> bool:
    """Return whether a caller may see and change sources: an operator from whom the policy hides nothing."""
    rules = caller.rules
    return caller.operator and (rules is None or ("**" in rules.allow and not rules.deny and not rules.read_only))


# --- state routes: the caller, whether the service lives, whether it is ready, and its metrics ------------------------


def read_caller(request: ApiRequest[Nothing]) -> Me:
    """Read who the caller is, and what they may see and do."""
    caller, view, settings = request.caller, request.view, request.scout.settings
    serving, _ = request.scout.engine.serving()
    return Me(
        caller=caller.name,
        operator=caller.operator,
        version=toolscout.__version__,
        generation=view.generation,
        tools=view.count_tools(caller),
        recipe=serving.recipe,
        k=settings.k,
        journal=settings.journal,
        results=request.service.results is not None,
        manages=may_manage(caller),
    )


async def check_health(request: ApiRequest[Nothing]) -> ServiceHealth:
    """Check that the process answers."""
    return ServiceHealth("ok")


async def check_ready(request: ApiRequest[Nothing]) -> Response:
    """Check that the index is open and the database answers. Status 503 if not; opening is then tried again."""
    request.service.reopen()
    problem = await request.service.find_problem()
    if problem is not None and problem == request.service.not_ready_reason:
        problem = "the index is not open yet"  # the reason may name files
    state = Ready(problem is None, problem)
    return Response(msgspec.json.encode(state), 200 if state.ready else 503, media_type="application/json")


def read_metrics(request: ApiRequest[Nothing]) -> Response:
    """Read counts and times for Prometheus."""
    return Response(request.service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
