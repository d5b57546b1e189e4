"""Spreads work over a Ray cluster, or does it in this process if there is no cluster, with the same results.

The work is divided into *shards*. The caller of `map_shards` stores each result as soon as it is done; if the caller is
killed, it asks in its next run only for the shards that are missing. If a worker is killed, another one does its shard
again. Ray sends functions and values as pickles between its processes, so give it a cluster that you trust.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from toolscout import encoders
from toolscout.arrays import Vectors
from toolscout.encoders.encoder import Encoder, Kind
from toolscout.errors import ConfigError, Unavailable, require
from toolscout.settings import Settings

__all__ = ["LOCAL_WORKERS", "encode_batches", "map_shards"]

LOCAL_WORKERS: Final = "local"  # value of the setting `ray` for workers on this machine
MAX_RETRIES: Final = 5  # of a shard whose worker was killed
SHARDS_PER_CORE: Final = 2  # that are given to Ray at once, so that no worker waits and memory is bounded
T = TypeVar("T")
R = TypeVar("R")


def map_shards(work: Callable[[T], R], shards: Sequence[T], ray: str = "") -> Iterator[tuple[int, R]]:
    """Call a function with each shard, and yield (number of the shard, result) as soon as one is done.

    Args:
        work: a pure function that can be pickled. Errors that it raises are raised here.
        shards: values that can be pickled.
        ray: address of a Ray cluster, or `LOCAL_WORKERS`; "": in this process, one shard after the other.

    Raises:
        MissingExtra: without Ray.
        Unavailable: if the cluster does not answer, or the workers of one shard were killed again and again.
    """
    if not ray:
        for number, shard in enumerate(shards):
            yield number, work(shard)
        return
    driver = require("ray", "ray")
    with _connect(driver, ray) as cores:
        task = driver.remote(max_retries=MAX_RETRIES)(work)
        pending: dict[Any, int] = {}  # Ray's reference to a result → number of the shard
        for number, shard in enumerate(shards):
            pending[task.remote(shard)] = number
            if len(pending) < SHARDS_PER_CORE * cores:
                continue
            yield _take_one(driver, pending)
        while pending:
            yield _take_one(driver, pending)


def _take_one(driver: Any, pending: dict[Any, int]) -> tuple[int, Any]:
    """Wait until any pending shard is done, and remove it from `pending`. Returns its number and its result.

    Raises:
        Unavailable: if the cluster could not do it. An error of the work itself is raised as it is.
    """
    [done], _ = driver.wait(list(pending), num_returns=1)
    number = pending.pop(done)
    try:
        return number, driver.get(done)
    except driver.exceptions.RayTaskError as error:  # the work itself failed
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except driver.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise Unavailable(f"Ray could not do a piece of the work: {reason}. Run the command again.") from error


@contextlib.contextmanager
def _connect(driver: Any, address: str) -> Iterator[int]:
    """Connect to a cluster, or start workers on this machine, and yield the number of their cores.

    A connection that this process already has is used, and stays open.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports to its makers
    is_ours = not driver.is_initialized()
    if is_ours:
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == LOCAL_WORKERS:
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            driver.init(address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise Unavailable(f"Ray at {address} does not answer: {reason}. Check that it runs.") from error
    try:
        yield max(1, int(driver.cluster_resources().get("CPU", 1)))
    finally:
        if is_ours:
            driver.shutdown()


def encode_batches(
    encoder: Encoder, kind: Kind, batches: Sequence[Sequence[str]], settings: Settings
) -> Iterator[tuple[int, Vectors]]:
    """Encode batches of texts, on a cluster if the setting `ray` names one. Yields (number of the batch, its rows).

    Each worker loads the encoder by its name.

    Raises:
        ConfigError: if the workers have another encoder of this name.
    """
    if not settings.ray or len(batches) < 2:
        yield from map_shards(functools.partial(encoder.encode, kind=kind), batches)
        return
    work = functools.partial(_encode_batch, encoder.name, encoder.fingerprint, settings.http_timeout, kind)
    yield from map_shards(work, batches, settings.ray)


def _encode_batch(name: str, fingerprint: str, http_timeout: float, kind: Kind, texts: Sequence[str]) -> Vectors:
    """Encode texts in a worker.

    Raises:
        ConfigError: if the worker's encoder has another fingerprint, so that its vectors are not comparable.
    """
    encoder = _load_encoder(name, http_timeout)
    if encoder.fingerprint != fingerprint:
        raise ConfigError(
            f"A worker of Ray has another encoder {name!r} than this machine. Install the same one there."
        )
    return encoder.encode(texts, kind)


@functools.lru_cache(maxsize=1)
def _load_encoder(name: str, http_timeout: float) -> Encoder:
    """Load an encoder once in each worker."""
    return encoders.load(name, Settings(http_timeout=http_timeout))
