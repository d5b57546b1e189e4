"""Requests chat completions, and choices of decision models, from an endpoint with the official OpenAI client."""

from __future__ import annotations

import logging
import math
import os
import random
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from toolscout.errors import BadReply, ConfigError, TimedOut, Unavailable, UserError, require
from toolscout.settings import refuse_user
from toolscout_lab.llm.budget import Pace, estimate
from toolscout_lab.llm.wire import ChatRequest, Completion, DecisionRequest, ToolCall, content

if TYPE_CHECKING:
    import openai
    import tenacity

__all__ = ["LLM_KEY_FILE_VARIABLE", "LLM_KEY_VARIABLE", "Endpoint", "read_key"]

LLM_KEY_VARIABLE: Final = "TOOLSCOUT_LLM_KEY"
LLM_KEY_FILE_VARIABLE: Final = "TOOLSCOUT_LLM_KEY_FILE"
MAX_LLM_RETRIES: Final = 5
LLM_RETRY_STATUS_CODES: Final = (408, 409, 429)
MAX_BACKOFF_S: Final = 8.0  # where the endpoint does not say how long to wait
MAX_RETRY_AFTER_S: Final = 120.0  # an endpoint that asks for more is not retried
MIN_REQUEST_TIMEOUT_S: Final = 0.01
MAX_REPLY_BYTES: Final = 10_000_000
#: Codes with which endpoints say that an account has no money left; such a request is not sent again.
QUOTA_CODES: Final = ("insufficient_quota", "billing_hard_limit_reached", "insufficient_balance", "credits_exhausted")
MODEL_CODES: Final = ("model_not_found", "model_not_available", "unknown_model")
#: Parameters that some endpoints refuse by name, with what is sent instead after the first refusal, the second, and so
#: on. An empty object omits the parameter.
SUBSTITUTES: Final[dict[str, tuple[dict[str, object], ...]]] = {
    "response_format": ({"response_format": {"type": "json_object"}}, {}),
    "max_tokens": ({"max_completion_tokens": None},),  # None stands for the value of the refused parameter
    "temperature": ({},),
    "seed": ({},),
}
#: Other words with which endpoints name `response_format`.
ALIASES: Final = {"response_format": ("json_schema", "json_object")}
#: Statuses with their own meaning. With any other status, an endpoint may say that it does not know a parameter.
STATUSES_WITH_MEANING: Final = (401, 402, 403, 404, 408, 409, 429)
#: Loggers that write requests, and therefore prompts, at their lowest level.
LOGGERS_WITH_PROMPTS: Final = ("openai", "httpx2", "httpcore2", "httpx", "httpcore")


class _WireFunction(msgspec.Struct):
    name: str
    arguments: str = ""


class _WireCall(msgspec.Struct):
    id: str
    function: _WireFunction | None = None


class _WireMessage(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_WireCall] | None = None


class _WireChoice(msgspec.Struct):
    message: _WireMessage
    finish_reason: str | None = None


class _WireUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _WireAnswer(msgspec.Struct):
    """The parts of a chat completion that are used."""

    choices: Annotated[list[_WireChoice], msgspec.Meta(min_length=1)]
    usage: _WireUsage | None = None


class _WireDecision(msgspec.Struct):
    probabilities: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]


class _WireDecisionUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _WireDecisions(msgspec.Struct):
    """The parts of a decision model's answer that are used."""

    answers: dict[str, _WireDecision]
    usage: _WireDecisionUsage | None = None


_ANSWER_DECODER: Final = msgspec.json.Decoder(_WireAnswer)
_DECISIONS_DECODER: Final = msgspec.json.Decoder(_WireDecisions)
DECISION_PATH: Final = "/systemone"
QUESTION: Final = "fits"  # the key of the only question; the model does not see it


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
        self._refusals: dict[str, int] = {}  # parameter → forms of it that the endpoint refused

    @property
    def reply_format(self) -> str:
        """How the shape of a reply is asked for: `json_schema`, `json_object`, or `text` alone."""
        return ("json_schema", "json_object", "text")[min(self._refusals.get("response_format", 0), 2)]

    def __call__(self, request: ChatRequest, *, seconds: float | None = None) -> Completion:
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

    def _attempt(self, request: ChatRequest, ends: float) -> Completion:
        """Send the request, and again without the parameters that the endpoint refuses."""
        import openai

        while True:
            if not self._pace.wait(ends - time.monotonic()):
                raise Unavailable("The setting llm_rpm leaves no time for this request. Raise it, or allow more time.")
            refusals = dict(self._refusals)  # other threads may learn of a refusal meanwhile
            body = self._build_body(request, refusals)
            seconds = min(self._timeout, max(MIN_REQUEST_TIMEOUT_S, ends - time.monotonic()))
            try:
                return self._parse_completion(request, self._receive(body, seconds))
            except openai.APITimeoutError:
                raise self._late() from None
            except openai.APIStatusError as error:
                named = [name for name in SUBSTITUTES if name in body and _names_parameter(error, name)]
                if not named:
                    raise self._explain_status(error) from None
                for name in named:
                    self._refusals[name] = max(self._refusals.get(name, 0), refusals.get(name, 0) + 1)
            except openai.APIConnectionError:
                raise _Busy(
                    f"{self.address} cannot be reached. Check the address in the setting llm and that the server runs."
                ) from None
            except openai.APIError as error:
                raise self._error(type(error).__name__) from None

    def _receive(self, body: dict[str, object], seconds: float) -> bytes:
        """Send one request and read the answer within this time, even if it comes in small pieces.

        Raises:
            TimedOut, Unavailable, openai.OpenAIError
        """
        ends, received = time.monotonic() + seconds, b""
        if "questions" in body:
            answer: str = self._client.post(DECISION_PATH, cast_to=str, body=body, options={"timeout": seconds})
            return answer.encode()
        create = self._client.chat.completions.with_streaming_response.create
        with create(**body, timeout=seconds) as response:
            try:
                for chunk in response.iter_bytes():
                    received += chunk
                    if time.monotonic() > ends or len(received) > MAX_REPLY_BYTES:
                        break
                else:
                    return received
            except Exception as error:  # of the HTTP library that the client uses
                if "Timeout" not in type(error).__name__:
                    raise _Busy(f"{self.address} broke off its answer. Try again later.") from None
        if len(received) > MAX_REPLY_BYTES:
            raise self._error(f"more than {MAX_REPLY_BYTES:,} bytes")
        raise self._late()

    def _late(self) -> TimedOut:
        return TimedOut(
            f"The model {self.model!r} at {self.address} did not answer in time. Try again, or raise llm_timeout."
        )

    def _explain_status(self, error: openai.APIStatusError) -> UserError:
        """Say in one sentence what an error status means, and what to do."""
        status, code, found = error.status_code, str(error.code or error.type or ""), f"status {error.status_code}"
        if status in (401, 403):
            return Unavailable(f"{self.address} refused the key ({found}). Check {LLM_KEY_VARIABLE}.")
        if status == 404 or (status in (400, 422) and code in MODEL_CODES):
            return self._report_unknown_model(found)
        if status == 402 or code in QUOTA_CODES:
            return Unavailable(
                f"The quota of your account at {self.address} is used up ({found}). Raise it there, or set another llm."
            )
        if status in (400, 422):
            return BadReply(
                f"{self.address} refused the request ({found}). It may be too long for the model.", "refused"
            )
        text = f"{self.address} failed ({found}). Try again later."
        if status == 429:
            text = f"{self.address} gets too many requests ({found}). Wait, or lower llm_rpm or llm_concurrency."
        return _Busy(text, status, _read_retry_after(error))

    def _report_unknown_model(self, detail: str) -> Unavailable:
        return Unavailable(
            f"{self.address} serves no model {self.model!r} ({detail}). Check address and model in the setting llm; "
            "the address often ends with /v1."
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @staticmethod
    def _build_body(request: ChatRequest, refusals: Mapping[str, int]) -> dict[str, object]:
        """Build the arguments of the client, without the parameters that the endpoint has refused."""
        if isinstance(request, DecisionRequest):
            question = {"type": "choice", "instructions": request.instructions, "criteria": request.options}
            return {
                "model": request.model,
                "state": content(request.messages),
                "questions": {QUESTION: question},
            }
        body: dict[str, object] = {
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
        for name, count in refusals.items():
            if name in body:
                value, substitutes = body.pop(name), SUBSTITUTES[name]
                substitute = substitutes[min(count, len(substitutes)) - 1]
                body |= {key: value if sent is None else sent for key, sent in substitute.items()}
        return body

    def _parse_completion(self, request: ChatRequest, answer: bytes) -> Completion:
        """Decode an answer. Tokens that it does not report are estimated.

        Raises:
            Unavailable: if it is no chat completion, or no decision where one was asked for.
        """
        if isinstance(request, DecisionRequest):
            return self._parse_decision(request, answer)
        try:
            completion = _ANSWER_DECODER.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise self._error("something that is no chat completion") from None
        choice, usage = completion.choices[0], completion.usage or _WireUsage()
        text = choice.message.content or ""
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.function is not None
        )
        return Completion(
            text=text,
            calls=calls,
            tokens_in=estimate(content(request.messages)) if usage.prompt_tokens is None else usage.prompt_tokens,
            tokens_out=estimate(text) if usage.completion_tokens is None else usage.completion_tokens,
            finish=choice.finish_reason or "stop",
        )

    def _parse_decision(self, request: DecisionRequest, answer: bytes) -> Completion:
        """Return the probability of each option as JSON; one that the answer leaves out has none."""
        try:
            decisions = _DECISIONS_DECODER.decode(answer)
            given = decisions.answers[QUESTION].probabilities
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
            raise self._error("something that is no decision") from None
        if given.keys().isdisjoint(request.options):
            raise self._error("no probability of an option")
        usage = decisions.usage or _WireDecisionUsage()
        return Completion(
            text=msgspec.json.encode({name: given.get(name, 0.0) for name in request.options}).decode(),
            tokens_in=estimate(content(request.messages)) if usage.input_tokens is None else usage.input_tokens,
            tokens_out=usage.output_tokens or 0,
        )

    def _error(self, problem: str) -> Unavailable:
        return Unavailable(f"{self.address} returned {problem}. Check address and model in the setting llm.")


class _Busy(Unavailable):
    """No answer to this attempt; holds the status, if any, and the pause in seconds that the endpoint requests."""

    def __init__(self, text: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after


def _names_parameter(error: openai.APIStatusError, name: str) -> bool:
    """Whether an endpoint says that it does not take a parameter.

    Servers differ in the status: llama-cpp-python gives 500. There the name must stand in quotation marks, because an
    error of a server may repeat the request.
    """
    if error.status_code in STATUSES_WITH_MEANING:
        return False
    text, names = str(error), (name, *ALIASES.get(name, ()))
    if error.status_code < 500:
        return any(other in text for other in names)
    return error.param == name or any(re.search(rf"[\"'`]{other}\b|\b{other}[\"'`]", text) for other in names)


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


def _read_retry_after(error: openai.APIStatusError) -> float | None:
    """Read the seconds of the answer's `Retry-After`; None if it is missing or a date."""
    try:
        return float(error.response.headers["retry-after"])
    except (AttributeError, KeyError, ValueError):
        return None
