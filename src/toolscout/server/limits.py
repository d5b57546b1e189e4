"""Limits on the size, time and rate of requests to the HTTP service."""

from __future__ import annotations

import dataclasses

from toolscout.access.rate_limit import Buckets

__all__ = ["Buckets", "Limits"]


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
