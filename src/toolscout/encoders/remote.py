"""Embeddings from an OpenAI-compatible endpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from toolscout.config import refuse_user
from toolscout.encoders import Kind, Vectors, unit_rows
from toolscout.errors import ConfigError, Unavailable
from toolscout.types import digest

if TYPE_CHECKING:
    import httpx

__all__ = ["RemoteEncoder"]

FORMAT: Final = "remote/1"
KEY: Final = "TOOLSCOUT_EMBEDDINGS_KEY"
_BATCH: Final = 128
_TRIES: Final = 4
_BUSY: Final = (408, 425, 429, 500, 502, 503, 504)
_REMEMBERED: Final = 2_048
_LONGEST: Final = 8_000  # characters: short of what such endpoints refuse


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Reply(msgspec.Struct):
    data: list[_Row]


class RemoteEncoder:
    """POSTs batches of texts and reads the vectors; the key is taken from `TOOLSCOUT_EMBEDDINGS_KEY`, if it is set.

    Attributes:
        dim: length of a vector, as the endpoint answers it.
        fingerprint: of the address, the model's name and `dim`; what changes behind them is not seen.
    """

    cheap = False

    def __init__(self, address: str, *, timeout: float) -> None:
        """Ask the endpoint for one vector, so that a wrong address is found now.

        Args:
            address: `https://host/v1/embeddings#model`.
            timeout: seconds for one request.

        Raises:
            ConfigError: if the address names no model, or may hold a password.
            Unavailable: if the endpoint does not answer as expected.
        """
        import httpx

        refuse_user(address, name="encoder")
        self.name = address
        self._url, _, self._model = address.partition("#")
        if not self._model:
            raise ConfigError(f"encoder: expected an address and a model, like {self._url}#model, found no model")
        key = os.environ.get(KEY)
        self._patience = timeout
        self._queries: dict[str, Vectors] = {}
        self._client = httpx.Client(timeout=timeout, headers={"Authorization": f"Bearer {key}"} if key else {})
        self.dim = int(self._ask(["dimension"]).shape[1])
        self.fingerprint = digest(FORMAT, [self._url, self._model, self.dim])

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Texts → `(n, dim)` float32 unit rows; queries and tools alike.

        Raises:
            Unavailable: if the endpoint does not answer as expected.
        """
        if kind == "query" and len(texts) == 1:
            return self._remembered(texts[0])
        batches = [self._ask(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]
        vectors = np.concatenate(batches) if batches else np.empty((0, self.dim), dtype=np.float32)
        if vectors.shape[1] != self.dim:
            raise self._error(f"vectors of length {vectors.shape[1]} where there were {self.dim}")
        return vectors

    def _remembered(self, text: str) -> Vectors:
        """The vector of one query, `(1, dim)`, asked for once: agents repeat themselves."""
        found = self._queries.get(text)
        if found is None:
            if len(self._queries) >= _REMEMBERED:
                self._queries.clear()
            found = self._queries[text] = self._ask([text])
        return found

    def _ask(self, texts: Sequence[str]) -> Vectors:
        import httpx

        body: dict[str, Any] = {"model": self._model, "input": [text[:_LONGEST] or " " for text in texts]}
        try:
            answer = self._post(body)
            rows = sorted(msgspec.json.decode(answer.content, type=_Reply).data, key=lambda row: row.index)
            vectors = np.array([row.embedding for row in rows], dtype=np.float32)
        except httpx.HTTPStatusError as error:
            raise self._error(f"status {error.response.status_code}") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, msgspec.MsgspecError) as error:
            raise self._error(str(error) or type(error).__name__) from None
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise self._error(f"{len(vectors)} vectors for {len(texts)} texts")
        return unit_rows(vectors)

    def _post(self, body: dict[str, Any]) -> httpx.Response:
        """One request; a busy or failing endpoint is asked again, a little later each time."""
        import httpx
        import tenacity

        def worth_it(error: BaseException) -> bool:
            if isinstance(error, httpx.HTTPStatusError):
                return error.response.status_code in _BUSY
            return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)

        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(worth_it),
            stop=tenacity.stop_after_attempt(_TRIES) | tenacity.stop_after_delay(self._patience),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=5.0, jitter=0.2),
            reraise=True,
        ):
            with attempt:
                answer = self._client.post(self._url, json=body)
                answer.raise_for_status()
        return answer

    def _error(self, found: str) -> Unavailable:
        return Unavailable(
            f"{self._url}: expected embeddings of the model {self._model!r}, found {found}: "
            f"check the address, the model's name and {KEY}"
        )
