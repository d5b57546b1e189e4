"""An encoder that calls an OpenAI-compatible embeddings endpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from toolscout.encoders.encoder import Kind, Vectors, unit_rows
from toolscout.encoders.prompts import (
    INPUT_TYPE_KEYS,
    NO_PROMPTS,
    PROMPT_KEYS,
    choose_prompts,
    find_known_prompts,
    split_prompts,
)
from toolscout.errors import ConfigError, Unavailable
from toolscout.settings import refuse_user
from toolscout.types import digest

if TYPE_CHECKING:
    import httpx

__all__ = ["RemoteEncoder"]

REMOTE_FORMAT: Final = "remote/1"
EMBEDDINGS_KEY_VARIABLE: Final = "TOOLSCOUT_EMBEDDINGS_KEY"
REMOTE_BATCH: Final = 128  # texts in one request
MAX_REMOTE_ATTEMPTS: Final = 4
REMOTE_RETRY_STATUS_CODES: Final = (408, 425, 429, 500, 502, 503, 504)  # the endpoint is busy or fails
MAX_CACHED_REMOTE_QUERIES: Final = 2_048
MAX_REMOTE_TEXT_CHARS: Final = 8_000  # less than what such endpoints refuse


class _Embedding(msgspec.Struct):
    """A vector of a reply; `index`: the number of its text in the request."""

    index: int
    embedding: list[float]


class _EmbeddingsReply(msgspec.Struct):
    """The reply of an endpoint, in any order."""

    data: list[_Embedding]


class RemoteEncoder:
    """POSTs batches of texts and reads the vectors. The variable `TOOLSCOUT_EMBEDDINGS_KEY` sets the key, if any.

    Attributes:
        dim: length of a vector in the endpoint's reply.
        fingerprint: fingerprint of address, model name, `dim` and prompts; it cannot see changes behind the endpoint.
        prompts: that the user wrote after the model's name, or that the model is known to want (`prompts`).
        languages: None, because the endpoint does not say what the model understands.
        max_chars: longer texts are cut before they are sent.
    """

    cheap = False
    languages: frozenset[str] | None = None
    max_chars = MAX_REMOTE_TEXT_CHARS

    def __init__(self, address: str, *, timeout: float) -> None:
        """Request one vector, so that a wrong address fails now.

        Args:
            address: `https://host/v1/embeddings#model`, followed by `?query_prompt=…&tool_prompt=…` to set prompts, or
                by `?query_input_type=…&tool_input_type=…` for an endpoint that adds the prompts itself.
            timeout: seconds per request.

        Raises:
            ConfigError: if the address names no model, may contain a password, or has an unknown key after the model.
            Unavailable: if the endpoint does not answer as expected.
        """
        import httpx

        refuse_user(address, name="encoder")
        self.name = address
        self._url, _, model_and_prompts = address.partition("#")
        self._model, written = split_prompts(model_and_prompts, (*PROMPT_KEYS, *INPUT_TYPE_KEYS))
        if not self._model:
            raise ConfigError(f"encoder: expected an address and a model, like {self._url}#model, found no model")
        # From `query_input_type` and `tool_input_type` to `query` and `tool`, the kinds of texts.
        self._input_types = {key.partition("_")[0]: written[key] for key in INPUT_TYPE_KEYS if key in written}
        default_prompts = NO_PROMPTS if self._input_types else find_known_prompts(self._model)
        self.prompts = choose_prompts(written, default_prompts)
        key = os.environ.get(EMBEDDINGS_KEY_VARIABLE)
        self._timeout = timeout
        self._queries: dict[str, Vectors] = {}  # cache: text → vector
        self._client = httpx.Client(timeout=timeout, headers={"Authorization": f"Bearer {key}"} if key else {})
        self.dim = int(self._request(["dimension"], "query").shape[1])
        parts: list[object] = [self._url, self._model, self.dim]
        if self.prompts != NO_PROMPTS or self._input_types:  # without them, the fingerprint is as before they existed
            parts += [self.prompts.query, self.prompts.tool, self._input_types]
        self.fingerprint = digest(REMOTE_FORMAT, parts)

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows, each with the prompt of its kind.

        Raises:
            Unavailable: if the endpoint does not answer as expected.
        """
        if kind == "query" and len(texts) == 1:
            return self._encode_query(texts[0])
        prompt = self.prompts.query if kind == "query" else self.prompts.tool
        prompted = [prompt + text for text in texts]
        starts = range(0, len(prompted), REMOTE_BATCH)
        batches = [self._request(prompted[start : start + REMOTE_BATCH], kind) for start in starts]
        vectors = np.concatenate(batches) if batches else np.empty((0, self.dim), dtype=np.float32)
        if vectors.shape[1] != self.dim:
            raise self._error(f"vectors of length {vectors.shape[1]} instead of {self.dim}")
        return vectors

    def _encode_query(self, text: str) -> Vectors:
        """Encode one query, `(1, dim)`, and cache the vector, because agents repeat themselves."""
        vector = self._queries.get(text)
        if vector is None:
            if len(self._queries) >= MAX_CACHED_REMOTE_QUERIES:
                self._queries.clear()
            vector = self._queries[text] = self._request([self.prompts.query + text], "query")
        return vector

    def _request(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Request the vectors of one batch of texts, which have their prompts: unit rows, in the order of the texts.

        Raises:
            Unavailable: if the endpoint does not answer as expected.
        """
        import httpx

        body: dict[str, object] = {
            "model": self._model,
            "input": [text[:MAX_REMOTE_TEXT_CHARS] or " " for text in texts],
        }
        if kind in self._input_types:
            body["input_type"] = self._input_types[kind]
        try:
            answer = self._post(body)
            rows = sorted(msgspec.json.decode(answer.content, type=_EmbeddingsReply).data, key=lambda row: row.index)
            vectors = np.array([row.embedding for row in rows], dtype=np.float32)
        except httpx.HTTPStatusError as error:
            raise self._error(f"status {error.response.status_code}") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, msgspec.MsgspecError) as error:
            raise self._error(str(error) or type(error).__name__) from None
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise self._error(f"{len(vectors)} vectors for {len(texts)} texts")
        return unit_rows(vectors)

    def _post(self, body: dict[str, object]) -> httpx.Response:
        """Send one request; retry with growing pauses while the endpoint is busy or fails."""
        import httpx
        import tenacity

        def is_retryable(error: BaseException) -> bool:
            if isinstance(error, httpx.HTTPStatusError):
                return error.response.status_code in REMOTE_RETRY_STATUS_CODES
            return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)

        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_retryable),
            stop=tenacity.stop_after_attempt(MAX_REMOTE_ATTEMPTS) | tenacity.stop_after_delay(self._timeout),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=5.0, jitter=0.2),
            reraise=True,
        ):
            with attempt:
                answer = self._client.post(self._url, json=body)
                answer.raise_for_status()
        return answer

    def _error(self, problem: str) -> Unavailable:
        """Make the error that says what the endpoint answered; the caller raises it."""
        return Unavailable(
            f"{self._url} did not return embeddings of the model {self._model!r}: {problem}. "
            f"Check the address, the model's name and {EMBEDDINGS_KEY_VARIABLE}."
        )
