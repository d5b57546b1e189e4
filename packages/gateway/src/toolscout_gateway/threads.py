"""Runs blocking work of callers in threads, so that the work of one caller delays nobody else's.

Callers take turns: a thread that is free takes the next work of the caller who waited longest for a turn. No caller may
have all threads. Work that computes for long has a pool of few threads, because Python runs one thread at a time.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final, TypeVar

__all__ = ["WORKING_FOR", "FairThreads"]

WORKING_FOR: Final[ContextVar[str]] = ContextVar("toolscout_gateway_caller", default="")  # "": the gateway itself
T = TypeVar("T")
Work = tuple["asyncio.Future[Any]", Callable[[], Any]]


class FairThreads:
    """A pool of threads for the work of all callers. It belongs to one event loop."""

    def __init__(self, threads: int, most_of_caller: int) -> None:
        """Begin without threads. They start with the first work.

        Args:
            threads: of all callers together.
            most_of_caller: that one caller may have at once. The gateway's own work may have all.
        """
        self._threads, self._most_of_caller = threads, most_of_caller
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="toolscout")
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()  # caller → work; who is next is first
        self._running: Counter[str] = Counter()

    async def run(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run blocking work for the caller whose request this task answers (`WORKING_FOR`)."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = functools.partial(function, *arguments, **options)
        self._waiting.setdefault(WORKING_FOR.get(), deque()).append((future, call))
        self._start_next()
        return await future

    def shutdown(self) -> None:
        """Wait for the work that runs, and drop the rest."""
        waiting, self._waiting = self._waiting, OrderedDict()
        for future, _ in (work for queue in waiting.values() for work in queue):
            future.get_loop().call_soon_threadsafe(future.cancel)
        self._pool.shutdown(cancel_futures=True)

    def _start_next(self) -> None:
        """Give the free threads to callers in turn, each to one work of the caller."""
        while self._running.total() < self._threads:
            may_start = (name for name in self._waiting if not name or self._running[name] < self._most_of_caller)
            caller = next(may_start, None)  # "": the gateway itself, which may have all threads
            if caller is None:
                return
            queue = self._waiting.pop(caller)
            future, call = queue.popleft()
            if queue:
                self._waiting[caller] = queue  # behind the others
            if future.cancelled():
                continue
            self._running[caller] += 1
            done = asyncio.get_running_loop().run_in_executor(self._pool, call)
            done.add_done_callback(functools.partial(self._finish, caller, future))

    def _finish(self, caller: str, future: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        """Pass on what a thread returned, and give the thread to the next caller."""
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        if done.cancelled():
            future.cancel()
        elif not future.done():
            if (error := done.exception()) is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)
        self._start_next()
