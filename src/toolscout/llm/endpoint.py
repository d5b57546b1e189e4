"""Chat completions from an OpenAI-compatible endpoint, by the official client."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolscout.errors import BadReply, ConfigError, Unavailable, require
from toolscout.llm.budget import estimate
from toolscout.llm.wire import Completion, Request, ToolCall, content

__all__ = ["KEY", "KEY_FILE", "Endpoint", "key"]

KEY: Final = "TOOLSCOUT_LLM_KEY"
KEY_FILE: Final = "TOOLSCOUT_LLM_KEY_FILE"
RETRIES: Final = 5
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
    themselves where they say it.
    """

    def __init__(self, place: str, *, timeout: float, retries: int = RETRIES) -> None:
        """Take `https://host/v1#model`, and the seconds that one request may take.

        Raises:
            ConfigError: if the address names no model, or the key is kept carelessly.
            MissingExtra: without the client.
        """
        self.address, _, self.model = place.partition("#")
        if not self.address.startswith(("http://", "https://")) or not self.model:
            raise ConfigError(f"llm: expected an address and a model, like https://host/v1#model, found {place!r}")
        openai = require("openai", "llm")
        for name in TALKATIVE:
            logger = logging.getLogger(name)
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.WARNING)
        self._client = openai.OpenAI(
            base_url=self.address, api_key=key() or "none", timeout=timeout, max_retries=retries
        )
        self._refused: set[str] = set()

    def __call__(self, request: Request, *, seconds: float | None = None) -> Completion:
        """Answer; a parameter that the endpoint refuses by name is left out from then on.

        Raises:
            Unavailable: if there is no answer.
            BadReply: if the endpoint refuses this request, by its content or its length.
        """
        import openai

        client = self._client if seconds is None else self._client.with_options(timeout=seconds / 2, max_retries=1)
        while True:
            body = self._body(request)
            try:
                return self._completion(request, client.chat.completions.create(**body))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                named = [name for name in INSTEAD if name in body and name in str(error)]
                if not named:
                    raise BadReply(
                        f"{self.address}: expected an answer to a request, found status {error.status_code}",
                        "refused",
                    ) from None
                self._refused.update(named)
            except openai.APIStatusError as error:
                raise self._error(f"status {error.status_code}") from None
            except openai.APITimeoutError:
                raise self._error("no answer in time") from None
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
