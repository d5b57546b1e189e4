"""Batches concurrent searches: one pass of the pipeline and one journal transaction for all that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from toolscout.access.policy import Caller
from toolscout.scout import Scout
from toolscout.types import Count, Kind, Search, keep_kind

__all__ = ["Batches"]

DEADLINE_GRACE_S: Final = 1.0  # to put together what there is at the deadline
MAX_BATCH_QUERIES: Final = 64  # of several requests together; a single request may have more


class _Job(NamedTuple):
    queries: Sequence[str]
    k: Count | None
    recipe: str | None
    caller: Caller
    tool_kind: Kind | None
    preview: bool
    deadline: float | None
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[list[Search]]

    @property
    def kind(self) -> tuple[Any, ...]:
        """Jobs of one kind can be searched together."""
        return self.caller, self.k, self.recipe, self.tool_kind, self.preview, self.deadline


class Batches:
    """Runs searches in one thread. Requests that arrive during a search form the next batch.

    More threads would only wait for each other. The answers equal those of single searches. If a batch fails, each of
    its jobs is tried alone.
    """

    def __init__(self, scout: Scout, pool: Executor, report_size: Callable[[int], None] = lambda size: None) -> None:
        """Batch the searches of a Scout.

        Args:
            scout: runs the searches.
            pool: gives the thread.
            report_size: called with the number of queries of each batch.
        """
        self.scout, self.pool, self.report_size = scout, pool, report_size
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._busy = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of waiting queries."""
        return self._waiting

    async def search(
        self,
        queries: Sequence[str],
        k: Count | None,
        recipe: str | None,
        caller: Caller,
        kind: Kind | None = None,
        *,
        preview: bool = False,
        deadline: float | None = None,
    ) -> list[Search]:
        """Run `Scout.search_many`, or `preview_many`, for a caller, together with other waiting requests.

        Stages that can be cut short end at the deadline, which is on the clock of `time.monotonic`.

        Raises:
            TimeoutError: if the searches before it took so long that there is no answer soon after the deadline.
        """
        loop = asyncio.get_running_loop()
        job = _Job(queries, k, recipe, caller, kind, preview, deadline, loop, loop.create_future())
        with self._lock:
            self._jobs.append(job)
            self._waiting += len(queries)
            begin, self._busy = not self._busy, True
        if begin:
            self.pool.submit(self._run_jobs)
        wait = None if deadline is None else max(0.0, deadline - time.monotonic()) + DEADLINE_GRACE_S
        return await asyncio.wait_for(job.answer, wait)

    def _run_jobs(self) -> None:
        while jobs := self._take_batch():
            kinds: dict[tuple[Any, ...], list[_Job]] = {}
            for job in jobs:
                kinds.setdefault(job.kind, []).append(job)
            for alike in kinds.values():
                self._search_batch(alike)

    def _take_batch(self) -> list[_Job]:
        """Take the jobs of the next batch. Without jobs the thread ends."""
        with self._lock:
            jobs: list[_Job] = []
            size = 0
            while self._jobs and (not jobs or size + len(self._jobs[0].queries) <= MAX_BATCH_QUERIES):
                job = self._jobs.popleft()
                self._waiting -= len(job.queries)
                if not job.answer.cancelled():
                    jobs.append(job)
                    size += len(job.queries)
            self._busy = bool(jobs)
            return jobs

    def _search_batch(self, jobs: list[_Job]) -> None:
        """Search all jobs together and deliver the answers. After an error each job is searched alone."""
        first = jobs[0]
        queries = [query for job in jobs for query in job.queries]
        try:
            visible = keep_kind(first.tool_kind, first.caller.visible)
            if first.preview:
                searches = self.scout.preview_many(queries, first.k, recipe=first.recipe, visible=visible)
            else:
                searches = self.scout.search_many(
                    queries,
                    first.k,
                    recipe=first.recipe,
                    visible=visible,
                    caller=first.caller.name,
                    deadline=first.deadline,
                )
        except Exception as error:
            if len(jobs) == 1:
                first.loop.call_soon_threadsafe(_fail, first.answer, error)
                return
            for job in jobs:
                self._search_batch([job])
            return
        self.report_size(len(queries))
        start, pairs = 0, []
        for job in jobs:
            pairs.append((job.answer, searches[start : start + len(job.queries)]))
            start += len(job.queries)
        first.loop.call_soon_threadsafe(_deliver, pairs)


def _deliver(pairs: list[tuple[asyncio.Future[list[Search]], list[Search]]]) -> None:
    for answer, searches in pairs:
        if not answer.done():
            answer.set_result(searches)


def _fail(answer: asyncio.Future[list[Search]], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
