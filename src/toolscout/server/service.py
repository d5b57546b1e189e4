"""The service behind the routes: one Scout, the threads that work for it, and what one request carries."""

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
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from toolscout.access.policy import Caller, Policies
from toolscout.errors import ToolscoutError, Unavailable
from toolscout.scout import Scout
from toolscout.server.batches import Batches
from toolscout.server.limits import Buckets, Limits
from toolscout.server.metrics import Metrics
from toolscout.server.view import Views
from toolscout.types import Search

__all__ = ["Ask", "Refused", "Service"]

THREADS: Final = 4  # beside the one that searches; they are never given up, so that SQLite's connections are few
AGAIN: Final = 3.0  # seconds after which opening the index is tried again
T = TypeVar("T")
Asked = TypeVar("Asked")
_log: Final = logging.getLogger("toolscout.server")


class Refused(Exception):
    """A request that is answered with a status of 400 or above, and a sentence."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class Service:
    """What all requests share."""

    def __init__(
        self,
        scout: Scout,
        policies: Policies | None = None,
        *,
        limits: Limits | None = None,
        results: Path | None = None,
    ) -> None:
        """Serve a Scout, which stays open as long as the service is.

        Args:
            scout: what is searched.
            policies: who may come in and see what; by default everybody is the local user.
            limits: what is too much.
            results: the folder of `toolscout lab bench --out`, for the charts of the page.
        """
        self.scout, self.policies, self.results = scout, policies or Policies(), results
        self.limits = limits or Limits()
        self.buckets = Buckets(self.limits.rate)
        self.views = Views(scout.store)
        self.metrics = Metrics(lambda: len(self.batches), scout.store.generation, self._tools)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="toolscout-work")
        self._searching = ThreadPoolExecutor(1, thread_name_prefix="toolscout-search")
        self.batches = Batches(scout, self._searching, self.metrics.batch)
        self.heavy = asyncio.Semaphore(1)  # what keeps a core busy for seconds goes one at a time
        self.shelf = asyncio.Semaphore(1)  # so does what reads and moves models, which need not wait for the other
        self.unready: str | None = "the index is being opened"
        self._warming: asyncio.Future[None] | None = None
        self._warmed = -math.inf

    def _tools(self) -> int:
        return len(self.views.now().rows)

    async def thread(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run blocking work in one of the threads."""
        call = functools.partial(work, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def warm(self) -> None:
        """Open what searches need. What fails here is said by `/ready`, and tried again by it and by searches."""
        started = time.perf_counter()
        try:
            self.scout.embed()
            _, pipeline = self.scout.pipeline()
            with contextlib.suppress(Unavailable):  # searches then do without it, and say so
                pipeline([Search(query="warm up")])  # reads what was used since the model was fitted
            self.views.now()
        except ToolscoutError as error:
            self.unready = str(error)
            _log.warning("not ready: %s", error)
            return
        except Exception as error:  # as in a request: its type and place, for its words may be of a tool or a query
            self.unready = "a fault: the log says where"
            places = "".join(traceback.format_tb(error.__traceback__))
            _log.error("not ready: %s at\n%s", type(error).__name__, places)
            return
        gc.collect()
        gc.freeze()  # what lies in memory now stays: looking through it again and again would only cost pauses
        self.unready = None
        _log.info("ready after %.2f s", time.perf_counter() - started)

    def rewarm(self) -> None:
        """Warm up beside the requests, unless that is done, under way, or failed a moment ago."""
        under_way = self._warming is not None and not self._warming.done()
        if self.unready is not None and not under_way and time.monotonic() - self._warmed >= AGAIN:
            self._warming = asyncio.get_running_loop().run_in_executor(self._searching, self._warm)

    def _warm(self) -> None:
        try:
            self.warm()
        finally:
            self._warmed = time.monotonic()

    @contextlib.asynccontextmanager
    async def running(self, *_: object) -> AsyncIterator[None]:
        """Warm up beside the first requests; at the end let the threads finish what they have begun."""
        self.rewarm()
        try:
            yield
        finally:
            if self._warming is not None:
                await self._warming
            await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """End the threads, each after what it is doing."""
        self._searching.shutdown()
        self._threads.shutdown()


@dataclasses.dataclass(frozen=True)
class Ask(Generic[Asked]):
    """One request, after the door: who asks, for what; and the body, where that is no JSON."""

    service: Service
    caller: Caller
    asked: Asked
    body: AsyncIterator[bytes]
