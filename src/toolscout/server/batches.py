"""Searches that wait at the same time go through the pipeline together, and into the journal in one transaction."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from toolscout.access.policy import Caller
from toolscout.scout import Scout
from toolscout.types import Search

__all__ = ["Batches"]

MOST: Final = 64  # queries that go together at most, unless one request brings more


class _Job(NamedTuple):
    queries: Sequence[str]
    k: int | None
    recipe: str | None
    caller: Caller
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[list[Search]]

    @property
    def kind(self) -> tuple[Any, ...]:
        """Jobs of one kind can be searched as one."""
        return self.caller, self.k, self.recipe


class Batches:
    """One thread searches; whatever comes in meanwhile is its next batch. More threads would only wait for each other.

    The answers are those of single searches. If a batch fails, each of its jobs is tried alone.
    """

    def __init__(self, scout: Scout, pool: Executor, note: Callable[[int], None] = lambda size: None) -> None:
        """Search with `scout` in a thread of `pool`; `note` hears the size of each batch, in queries."""
        self.scout, self.pool, self.note = scout, pool, note
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._busy = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many queries wait."""
        return self._waiting

    async def search(self, queries: Sequence[str], k: int | None, recipe: str | None, caller: Caller) -> list[Search]:
        """`Scout.search_many` for this caller."""
        loop = asyncio.get_running_loop()
        job = _Job(queries, k, recipe, caller, loop, loop.create_future())
        with self._lock:
            self._jobs.append(job)
            self._waiting += len(queries)
            begin, self._busy = not self._busy, True
        if begin:
            self.pool.submit(self._work)
        return await job.answer

    def _work(self) -> None:
        while jobs := self._next():
            kinds: dict[tuple[Any, ...], list[_Job]] = {}
            for job in jobs:
                kinds.setdefault(job.kind, []).append(job)
            for alike in kinds.values():
                self._answer(alike)

    def _next(self) -> list[_Job]:
        """The jobs that go next; none: the thread is done."""
        with self._lock:
            jobs: list[_Job] = []
            size = 0
            while self._jobs and (not jobs or size + len(self._jobs[0].queries) <= MOST):
                job = self._jobs.popleft()
                self._waiting -= len(job.queries)
                if not job.answer.cancelled():
                    jobs.append(job)
                    size += len(job.queries)
            self._busy = bool(jobs)
            return jobs

    def _answer(self, jobs: list[_Job]) -> None:
        first = jobs[0]
        queries = [query for job in jobs for query in job.queries]
        try:
            found = self.scout.search_many(
                queries, first.k, recipe=first.recipe, visible=first.caller.visible, caller=first.caller.name
            )
        except Exception as error:
            if len(jobs) == 1:
                first.loop.call_soon_threadsafe(_fail, first.answer, error)
                return
            for job in jobs:
                self._answer([job])
            return
        self.note(len(queries))
        start, pairs = 0, []
        for job in jobs:
            pairs.append((job.answer, found[start : start + len(job.queries)]))
            start += len(job.queries)
        first.loop.call_soon_threadsafe(_deliver, pairs)


def _deliver(pairs: list[tuple[asyncio.Future[list[Search]], list[Search]]]) -> None:
    for answer, found in pairs:
        if not answer.done():
            answer.set_result(found)


def _fail(answer: asyncio.Future[list[Search]], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
