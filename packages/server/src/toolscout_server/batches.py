"""Batches concurrent searches: one pass of the pipeline and one journal transaction for all that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from toolscout.scout import Scout
from toolscout.trust.policy import Caller
from toolscout.types import Count, Kind, Search, keep_kind

__all__ = ["Batches", "SearchOptions"]

DEADLINE_GRACE_S: Final = 1.0  # to put together what there is at the deadline
MAX_BATCH_QUERIES: Final = 64  # of several requests together; a single request may have more


class SearchOptions(NamedTuple):
    """How to search. Requests with equal options can be searched together.

    Attributes:
        caller: who searches.
        k: as in `Scout.search_many`.
        recipe: as in `Scout.search_many`.
        kind: of the tools. None: every kind.
        preview: whether nothing is written to the journal.
        deadline: on the clock of `time.monotonic`. Stages that can be cut short end then.
    """

    caller: Caller
    k: Count | None = None
    recipe: str | None = None
    kind: Kind | None = None
    preview: bool = False
    deadline: float | None = None


class _SearchJob(NamedTuple):
    """The queries of one request, which wait for a batch, and the future of their answers in the request's loop."""

    queries: Sequence[str]
    options: SearchOptions
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[list[Search]]


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
        self._jobs: deque[_SearchJob] = deque()
        self._waiting = 0  # queries of the jobs that have not begun
        self._busy = False  # whether a batch runs, which takes the jobs after it
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of waiting queries."""
        return self._waiting

    async def search(self, queries: Sequence[str], options: SearchOptions) -> list[Search]:
        """Run `Scout.search_many`, or `preview_many`, together with other waiting requests.

        Raises:
            TimeoutError: if the searches before it took so long that there is no answer soon after the deadline.
        """
        loop = asyncio.get_running_loop()
        job = _SearchJob(queries, options, loop, loop.create_future())
        with self._lock:
            self._jobs.append(job)
            self._waiting += len(queries)
            must_begin, self._busy = not self._busy, True
        if must_begin:
            self.pool.submit(self._run_jobs)
        timeout = None
        if options.deadline is not None:
            timeout = max(0.0, options.deadline - time.monotonic()) + DEADLINE_GRACE_S
        return await asyncio.wait_for(job.answer, timeout)

    def _run_jobs(self) -> None:
        """Search for the waiting jobs.

        Those with the same options are one batch, since one search has one set of options.
        """
        while jobs := self._take_batch():
            by_options: dict[SearchOptions, list[_SearchJob]] = {}
            for job in jobs:
                by_options.setdefault(job.options, []).append(job)
            for batch in by_options.values():
                self._search_batch(batch)

    def _take_batch(self) -> list[_SearchJob]:
        """Take the jobs of the next batch. Without jobs the thread ends."""
        with self._lock:
            jobs: list[_SearchJob] = []
            size = 0
            while self._jobs and (not jobs or size + len(self._jobs[0].queries) <= MAX_BATCH_QUERIES):
                job = self._jobs.popleft()
                self._waiting -= len(job.queries)
                if not job.answer.cancelled():
                    jobs.append(job)
                    size += len(job.queries)
            self._busy = bool(jobs)
            return jobs

    def _search_batch(self, jobs: list[_SearchJob]) -> None:
        """Search all jobs together and deliver the answers. After an error each job is searched alone."""
        first = jobs[0]
        queries = [query for job in jobs for query in job.queries]
        try:
            searches = self._search(queries, first.options)
        except Exception as error:
            if len(jobs) == 1:
                first.loop.call_soon_threadsafe(_deliver, jobs, [], error)
                return
            for job in jobs:
                self._search_batch([job])
            return
        self.report_size(len(queries))
        first.loop.call_soon_threadsafe(_deliver, jobs, searches)

    def _search(self, queries: list[str], options: SearchOptions) -> list[Search]:
        """Search for several queries with the same options. A preview is not written to the journal."""
        caller, k, recipe = options.caller, options.k, options.recipe
        visible = keep_kind(options.kind, caller.visible)
        if options.preview:
            return self.scout.preview_many(queries, k, recipe=recipe, visible=visible)
        return self.scout.search_many(
            queries, k, recipe=recipe, visible=visible, caller=caller.name, deadline=options.deadline
        )


def _deliver(jobs: list[_SearchJob], searches: list[Search], error: Exception | None = None) -> None:
    """Give each job its part of the searches, or the error."""
    start = 0
    for job in jobs:
        end = start + len(job.queries)
        if job.answer.done():  # its caller waits no longer
            pass
        elif error is None:
            job.answer.set_result(searches[start:end])
        else:
            job.answer.set_exception(error)
        start = end
