"""Requests chat completions from an OpenAI-compatible endpoint with the official client."""

from __future__ import annotations

import logging
import math
import os
import random
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolscout.config import refuse_user
from toolscout.errors import BadReply, ConfigError, TimedOut, Unavailable, require
from toolscout.llm.budget import Pace, estimate
from toolscout.llm.wire import Completion, Request, ToolCall, content

if TYPE_CHECKING:
    import tenacity

__all__ = ["LLM_KEY_FILE_VARIABLE", "LLM_KEY_VARIABLE", "Endpoint", "read_key"]

LLM_KEY_VARIABLE: Final = "TOOLSCOUT_LLM_KEY"
LLM_KEY_FILE_VARIABLE: Final = "TOOLSCOUT_LLM_KEY_FILE"
MAX_LLM_RETRIES: Final = 5
LLM_RETRY_STATUS_CODES: Final = (408, 409, 429)
MAX_BACKOFF_S: Final = 8.0  # where the endpoint does not say how long to wait
MAX_RETRY_AFTER_S: Final = 120.0  # an endpoint that asks for more is not retried
MIN_REQUEST_TIMEOUT_S: Final = 0.01
#: Parameters that some endpoints refuse by name, and their substitutes; None omits the parameter.
SUBSTITUTES: Final[dict[str, str | None]] = {
    "response_format": None,
    "max_tokens": "max_completion_tokens",
    "temperature": None,
    "seed": None,
}
#: Loggers that write requests, and therefore prompts, at their lowest level.
LOGGERS_WITH_PROMPTS: Final = ("openai", "httpx2", "httpcore2", "httpx", "httpcore")


def read_key(environ: Mapping[str, str] | None = None) -> str | None:
    """Read the endpoint's key from `TOOLSCOUT_LLM_KEY`, or from the file named by `TOOLSCOUT_LLM_KEY_FILE`.

    Raises:
        ConfigError: if users besides the owner may read the file, or it cannot be read.
    """
    environ = os.environ if environ is None else environ
    if environ.get(LLM_KEY_VARIABLE):
        return environ[LLM_KEY_VARIABLE]
    if not environ.get(LLM_KEY_FILE_VARIABLE):
        return None
    file = Path(environ[LLM_KEY_FILE_VARIABLE]).expanduser()
    try:
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"Other users may read the key file {file}. Run  chmod 600 {file}")
        return file.read_text().strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{LLM_KEY_FILE_VARIABLE}: expected a readable file, found {type(error).__name__} at {file}"
        ) from None


class Endpoint:
    """Calls one model at one address.

    It retries busy and failing endpoints (408, 409, 429, 5xx, broken connections) with growing pauses, or after the
    pause that the endpoint requests. It does not retry after a timeout, because the request may have been billed. Each
    attempt respects the rate limit.
    """

    def __init__(
        self, address_and_model: str, *, timeout: float, retries: int = MAX_LLM_RETRIES, rpm: float = 0.0
    ) -> None:
        """Connect to an endpoint.

        Args:
            address_and_model: `https://host/v1#model`.
            timeout: seconds per attempt.
            retries: maximum number of retries.
            rpm: maximum attempts per minute; 0 sets no limit.

        Raises:
            ConfigError: if the address names no model or contains a password, or other users may read the key file.
            MissingExtra: without the client.
        """
        refuse_user(address_and_model)
        self.address, _, self.model = address_and_model.partition("#")
        if not self.address.startswith(("http://", "https://")) or not self.model:
            raise ConfigError(
                f"llm: expected an address and a model, like https://host/v1#model, found {address_and_model!r}"
            )
        openai = require("openai", "llm")
        for name in LOGGERS_WITH_PROMPTS:
            logger = logging.getLogger(name)
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.WARNING)
        self._client = openai.OpenAI(
            base_url=self.address, api_key=read_key() or "none", timeout=timeout, max_retries=0
        )
        self._timeout, self._retries, self._pace = timeout, retries, Pace(rpm)
        self._refused: set[str] = set()

    def __call__(self, request: Request, *, seconds: float | None = None) -> Completion:
        """Request one answer. A parameter that the endpoint refuses by name is substituted or omitted from then on.

        Raises:
            TimedOut: if the request was sent but not answered in time.
            Unavailable: if there is no answer.
            BadReply: if the endpoint refuses the content or the length of the request.
        """
        import tenacity

        ends = math.inf if seconds is None else time.monotonic() + seconds
        retrying = tenacity.Retrying(
            retry=lambda state: _is_retryable(state, has_time_limit=seconds is not None),
            wait=_choose_pause,
            stop=lambda state: state.attempt_number > self._retries or state.upcoming_sleep >= ends - time.monotonic(),
            sleep=lambda pause: time.sleep(pause),
            reraise=True,
        )
        answer: Completion = retrying(self._attempt, request, ends)
        return answer

    def _attempt(self, request: Request, ends: float) -> Completion:
        """Send the request, and again without the parameters that the endpoint refuses."""
        import openai

        while True:
            if not self._pace.wait(ends - time.monotonic()):
                raise self._error("the rate limit leaves no time for it")
            body = self._build_body(request)
            left = min(self._timeout, max(MIN_REQUEST_TIMEOUT_S, ends - time.monotonic()))
            try:
                return self._parse_completion(request, self._client.chat.completions.create(**body, timeout=left))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                named = [name for name in SUBSTITUTES if name in body and name in str(error)]
                if not named:
                    raise BadReply(
                        f"{self.address} refused the request with status {error.status_code}.",
                        "refused",
                    ) from None
                self._refused.update(named)
            except openai.APITimeoutError:
                raise TimedOut(str(self._error("no answer in time"))) from None
            except (openai.APIStatusError, openai.APIConnectionError) as error:
                status = getattr(error, "status_code", None)
                message = str(self._error(f"status {status}" if status else type(error).__name__))
                raise _Busy(message, status, _read_retry_after(error)) from None
            except (openai.APIError, ValueError) as error:
                raise self._error(type(error).__name__) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _build_body(self, request: Request) -> dict[str, Any]:
        """Build the arguments of the client, without the parameters that the endpoint has refused."""
        body: dict[str, Any] = {
            "model": request.model,
            "messages": list(request.messages),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.schema is not None:
            named = {"name": request.schema.get("title", "reply"), "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if request.tools:
            body["tools"] = list(request.tools)
        if request.sample:
            body["seed"] = request.sample
        for name in sorted(self._refused & set(body)):
            value, substitute = body.pop(name), SUBSTITUTES[name]
            if substitute:
                body[substitute] = value
        return body

    def _parse_completion(self, request: Request, answer: Any) -> Completion:
        """Convert the client's answer. Tokens that it does not report are estimated."""
        if not getattr(answer, "choices", None) or getattr(answer.choices[0], "message", None) is None:
            raise self._error("an answer without a message")
        choice = answer.choices[0]
        text = choice.message.content or ""
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        )
        usage = answer.usage
        return Completion(
            text=text,
            calls=calls,
            tokens_in=usage.prompt_tokens if usage else estimate(content(request.messages)),
            tokens_out=usage.completion_tokens if usage else estimate(text),
            finish=choice.finish_reason or "stop",
        )

    def _error(self, problem: str) -> Unavailable:
        return Unavailable(
            f"{self.address} did not return a completion of the model {self.model!r}: {problem}. "
            f"Check the address, the model's name and {LLM_KEY_VARIABLE}."
        )


class _Busy(Unavailable):
    """No answer to this attempt; holds the status, if any, and the pause in seconds that the endpoint requests."""

    def __init__(self, text: str, status: int | None, retry_after: float | None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after


def _is_retryable(state: tenacity.RetryCallState, *, has_time_limit: bool) -> bool:
    """Whether to retry. A has_time_limit request is retried only once if the endpoint does not say how long to wait."""
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, _Busy):
        return False
    if error.status is not None and error.status not in LLM_RETRY_STATUS_CODES and error.status < 500:
        return False
    if error.retry_after is None:
        return state.attempt_number == 1 or not has_time_limit
    return 0 <= error.retry_after <= MAX_RETRY_AFTER_S


def _choose_pause(state: tenacity.RetryCallState) -> float:
    """Return the seconds until the next attempt: the endpoint's own, or twice as many each time."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Busy) and error.retry_after is not None:
        return error.retry_after
    return min(MAX_BACKOFF_S, 2.0 ** (state.attempt_number - 1) / 2) * random.uniform(0.75, 1.0)


def _read_retry_after(error: Any) -> float | None:
    """Read the seconds of the answer's `Retry-After`; None if it is missing or a date."""
    try:
        return float(error.response.headers["retry-after"])
    except (AttributeError, KeyError, ValueError):
        return None
