"""Chat completions from an OpenAI-compatible endpoint, by the official client."""

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

__all__ = ["KEY", "KEY_FILE", "Endpoint", "key"]

KEY: Final = "TOOLSCOUT_LLM_KEY"
KEY_FILE: Final = "TOOLSCOUT_LLM_KEY_FILE"
RETRIES: Final = 5
AGAIN: Final = (408, 409, 429)
LONGEST_PAUSE: Final = 8.0  # seconds, where the endpoint does not say how many
LONGEST_SAID: Final = 120.0  # where it does; beyond that it is not waited for
SHORTEST: Final = 0.01
#: What some endpoints do not know, and what is sent instead; None: it is left out. Learned from their refusals.
INSTEAD: Final[dict[str, str | None]] = {
    "response_format": None,
    "max_tokens": "max_completion_tokens",
    "temperature": None,
    "seed": None,
}
#: These write requests, and so prompts, at their lowest level.
TALKATIVE: Final = ("openai", "httpx2", "httpcore2", "httpx", "httpcore")


def key(environ: Mapping[str, str] | None = None) -> str | None:
    """The key of the endpoint: `TOOLSCOUT_LLM_KEY`, or the content of the file that `TOOLSCOUT_LLM_KEY_FILE` names.

    Raises:
        ConfigError: if others than its owner may read the file, or it cannot be read.
    """
    environ = os.environ if environ is None else environ
    if environ.get(KEY):
        return environ[KEY]
    if not environ.get(KEY_FILE):
        return None
    file = Path(environ[KEY_FILE]).expanduser()
    try:
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{file}: expected a key that only its owner can read: run  chmod 600 {file}")
        return file.read_text().strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{KEY_FILE}: expected a readable file, found: {type(error).__name__} at {file}") from None


class Endpoint:
    """One model behind one address.

    Busy and failing endpoints (408, 409, 429, 5xx, broken connections) are asked again, later each time, as they say
    themselves where they say it; what is not answered in time is not, for it may have been billed. Each try keeps the
    pace.
    """

    def __init__(self, place: str, *, timeout: float, retries: int = RETRIES, rpm: float = 0.0) -> None:
        """Take `https://host/v1#model`, the seconds that one try may take, and tries a minute; 0: no limit.

        Raises:
            ConfigError: if the address names no model or holds a password, or the key is kept carelessly.
            MissingExtra: without the client.
        """
        refuse_user(place)
        self.address, _, self.model = place.partition("#")
        if not self.address.startswith(("http://", "https://")) or not self.model:
            raise ConfigError(f"llm: expected an address and a model, like https://host/v1#model, found {place!r}")
        openai = require("openai", "llm")
        for name in TALKATIVE:
            logger = logging.getLogger(name)
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.WARNING)
        self._client = openai.OpenAI(base_url=self.address, api_key=key() or "none", timeout=timeout, max_retries=0)
        self._timeout, self._retries, self._pace = timeout, retries, Pace(rpm)
        self._refused: set[str] = set()

    def __call__(self, request: Request, *, seconds: float | None = None) -> Completion:
        """Answer; a parameter that the endpoint refuses by name is left out from then on.

        Raises:
            TimedOut: if what was sent is not answered in time.
            Unavailable: if there is no answer.
            BadReply: if the endpoint refuses this request, by its content or its length.
        """
        import tenacity

        ends = math.inf if seconds is None else time.monotonic() + seconds
        again = tenacity.Retrying(
            retry=lambda state: _worth_it(state, hurried=seconds is not None),
            wait=_pause,
            stop=lambda state: state.attempt_number > self._retries or state.upcoming_sleep >= ends - time.monotonic(),
            sleep=lambda pause: time.sleep(pause),
            reraise=True,
        )
        answer: Completion = again(self._asked, request, ends)
        return answer

    def _asked(self, request: Request, ends: float) -> Completion:
        """One try; or several, until the endpoint knows every parameter that is sent."""
        import openai

        while True:
            if not self._pace.wait(ends - time.monotonic()):
                raise self._error("no turn in time")
            body = self._body(request)
            left = min(self._timeout, max(SHORTEST, ends - time.monotonic()))
            try:
                return self._completion(request, self._client.chat.completions.create(**body, timeout=left))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                named = [name for name in INSTEAD if name in body and name in str(error)]
                if not named:
                    raise BadReply(
                        f"{self.address}: expected an answer to a request, found status {error.status_code}",
                        "refused",
                    ) from None
                self._refused.update(named)
            except openai.APITimeoutError:
                raise TimedOut(str(self._error("no answer in time"))) from None
            except (openai.APIStatusError, openai.APIConnectionError) as error:
                status = getattr(error, "status_code", None)
                found = str(self._error(f"status {status}" if status else type(error).__name__))
                raise _Busy(found, status, _said(error)) from None
            except (openai.APIError, ValueError) as error:
                raise self._error(type(error).__name__) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _body(self, request: Request) -> dict[str, Any]:
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
            value, other = body.pop(name), INSTEAD[name]
            if other:
                body[other] = value
        return body

    def _completion(self, request: Request, answer: Any) -> Completion:
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

    def _error(self, found: str) -> Unavailable:
        return Unavailable(
            f"{self.address}: expected a chat completion of the model {self.model!r}, found {found}: "
            f"check the address, the model's name and {KEY}"
        )


class _Busy(Unavailable):
    """No answer this time: the status, if there was one, and the seconds that the endpoint asks for."""

    def __init__(self, text: str, status: int | None, said: float | None) -> None:
        super().__init__(text)
        self.status, self.said = status, said


def _worth_it(state: tenacity.RetryCallState, *, hurried: bool) -> bool:
    """Whether to ask again; in a hurry an endpoint that does not say when gets one more try."""
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, _Busy) or (error.status is not None and error.status not in AGAIN and error.status < 500):
        return False
    return state.attempt_number == 1 or not hurried if error.said is None else 0 <= error.said <= LONGEST_SAID


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds until the next try: as the endpoint says, or twice as many each time."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Busy) and error.said is not None:
        return error.said
    return min(LONGEST_PAUSE, 2.0 ** (state.attempt_number - 1) / 2) * random.uniform(0.75, 1.0)


def _said(error: Any) -> float | None:
    """The seconds of the answer's `Retry-After`; None: it says none, or a date."""
    try:
        return float(error.response.headers["retry-after"])
    except (AttributeError, KeyError, ValueError):
        return None
