"""How much one caller of the HTTP service may ask for."""

from __future__ import annotations

import dataclasses

from toolscout.access.rate_limit import Buckets

__all__ = ["Buckets", "Limits"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is too much.

    Attributes:
        rate: queries a second that one caller may ask in the mean; None: as many as can be answered.
        body: bytes of a request.
        upload: bytes of an import of the journal.
        patience: seconds in which a request must have come in, and that open ones get when the service stops.
        waiting: queries that may wait at once; who would bring more is sent away.
    """

    rate: float | None = None
    body: int = 1 << 20
    upload: int = 64 << 20
    patience: int = 30
    waiting: int = 2_000
