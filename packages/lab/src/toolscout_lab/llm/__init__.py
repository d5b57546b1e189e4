"""Calls language models at any OpenAI-compatible endpoint: typed replies, budgets, a cache that can be replayed.

::

    with connect(settings) as llm:
        answer = llm.ask(prompt("tooldet_verify", query=text), Verdict, typical=Verdict(True, "…"))

This package never logs prompts, replies or keys.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from toolscout.errors import BadReply, ConfigError, NotFound, TimedOut
from toolscout.settings import Settings
from toolscout_lab.llm.budget import Booking, Budget, Prices, Spent, bound, estimate
from toolscout_lab.llm.cache import Record, Replies
from toolscout_lab.llm.endpoint import Endpoint
from toolscout_lab.llm.prompts import FilledPrompt, card, prompt, quote
from toolscout_lab.llm.wire import (
    DEFAULT_REPLY_TOKENS,
    Backend,
    ChatRequest,
    Completion,
    Message,
    ToolCall,
    content,
    decode,
    drop_thoughts,
    schema_of,
)

__all__ = [
    "LLM",
    "Backend",
    "Budget",
    "ChatRequest",
    "Completion",
    "Endpoint",
    "FilledPrompt",
    "Message",
    "Prices",
    "Rehearsal",
    "Replies",
    "SharedLLM",
    "Spent",
    "ToolCall",
    "card",
    "connect",
    "estimate",
    "probe",
    "prompt",
    "quote",
    "tokens_of",
]

MAX_REPAIRS: Final = 2
PROBE_REPLY_TOKENS: Final = 16
NO_ANSWER: Final = "(no answer)"  # endpoints refuse empty messages
MESSAGE_OVERHEAD_TOKENS: Final = 4
REHEARSED_CALLS: Final = 3  # tool calls of an agent in a rehearsal
REHEARSED_ANSWER_TOKENS: Final = 60
T = TypeVar("T", bound=msgspec.Struct)
In = TypeVar("In")
Out = TypeVar("Out")
Check = Callable[[T], "str | None"]


class LLM:
    """Asks a model for values of a given type. Safe to use from several threads.

    Attributes:
        backend: sends the requests.
        repairs: how often to ask again after an invalid reply.
        reply_tokens: maximum tokens of a reply, unless a call allows more.
        repaired: number of replies that were asked for again.
        answers: keys of all answers so far, from the endpoint or the cache; a record of this object contains these.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        cache: Replies | None = None,
        budget: Budget | None = None,
        offline: bool = False,
        concurrency: int = 4,
        repairs: int = MAX_REPAIRS,
        reply_tokens: int = DEFAULT_REPLY_TOKENS,
        temperature: float = 0.0,
    ) -> None:
        """Create an LLM.

        Args:
            backend: sends the requests.
            cache: stores the answers; None stores nothing.
            budget: limits and prices; None sets no limit.
            offline: answer only from the cache (replay).
            concurrency: concurrent calls in `map`.
            repairs: how often to ask again after an invalid reply.
            reply_tokens: maximum tokens of a reply, unless a call allows more.
            temperature: temperature of all calls.
        """
        self.reply_tokens = reply_tokens
        self.backend, self.cache, self.offline, self.repairs = backend, cache, offline, repairs
        self.budgets: tuple[Budget, ...] = (budget or Budget(),)
        # budgets without a limit that count what all answers cost at first; see `answered`
        self._tallies: tuple[Budget, ...] = (Budget(prices=self.budgets[0].prices),)
        self.temperature, self.concurrency = temperature, concurrency
        self.repaired = 0
        self.answers: set[str] = set()
        self._lock = threading.Lock()
        self._under_way: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._pool: list[ThreadPoolExecutor] = []

    @property
    def spent(self) -> Spent:
        """The cost of the calls of this object; answers from the cache cost nothing."""
        return self.budgets[0].spent

    @property
    def is_used_up(self) -> bool:
        """Whether the whole budget, and not only that of one query, refused a call."""
        return self.budgets[-1].is_used_up

    @property
    def answered(self) -> Spent:
        """The original cost of all answers, including those from the cache."""
        return self._tallies[0].spent

    def limit_tokens(self, tokens: int | None) -> LLM:
        """Return this LLM with one more limit, for example for one query; backend, cache and budgets are shared."""
        limited = object.__new__(LLM)
        limited.__dict__.update(self.__dict__)
        prices = self.budgets[0].prices
        limited.budgets = (Budget(tokens=tokens, prices=prices), *self.budgets)
        limited._tallies = (Budget(prices=prices), *self._tallies)
        return limited

    def ask(
        self,
        what: FilledPrompt,
        kind: type[T],
        *,
        typical: T,
        check: Check[T] | None = None,
        sample: int = 0,
        max_tokens: int = 0,
        seconds: float | None = None,
    ) -> T:
        """Ask for a value of the given type.

        Args:
            what: the prompt.
            kind: a struct; the reply must be a JSON object that fits it.
            typical: an example reply, for estimates of the cost.
            check: returns what is wrong with a reply that fits, as `reason: sentence`, or None.
            sample: another number gives another answer to the same prompt.
            max_tokens: maximum tokens of the reply, if that is more than `reply_tokens`.
            seconds: time limit per call.

        Raises:
            BadReply: if the reply is still invalid after `repairs` more attempts.
            OverBudget: before a call that the budget does not allow.
            Unavailable: if there is no answer.
        """
        schema, wrong = schema_of(kind), ""
        max_tokens = max(max_tokens, self.reply_tokens)
        messages = opening(what, schema)
        for left in range(self.repairs, -1, -1):
            reply = self._complete(self._request(messages, max_tokens, schema, (), sample), seconds)
            wrong, value = _check_reply(reply, kind, check, max_tokens)
            if value is not None:
                return value
            if left:
                with self._lock:
                    self.repaired += 1
                messages = [
                    *messages,
                    {"role": "assistant", "content": drop_thoughts(reply.text) or NO_ANSWER},
                    {
                        "role": "user",
                        "content": "That is not a valid answer. What is wrong with it:\n"
                        f"{quote('problem', wrong)}\nAnswer again: one JSON object of the schema, and nothing else.",
                    },
                ]
        reason = wrong.partition(":")[0]
        advice = f" Raise llm_reply_tokens above {max_tokens:,}." if reason == "cut_off" else ""
        raise BadReply(
            f"The model gave no valid reply to the prompt {what.name!r} in {self.repairs + 1} attempts "
            f"({reason.replace('_', ' ')}).{advice}",
            reason,
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] = (),
        sample: int = 0,
        max_tokens: int = 0,
        seconds: float | None = None,
    ) -> Completion:
        """Take one turn of a conversation: the reply is text, or calls of the tools.

        Raises:
            OverBudget: before a call that the budget does not allow.
            Unavailable: if there is no answer.
        """
        max_tokens = max(max_tokens, self.reply_tokens)
        return self._complete(self._request(messages, max_tokens, None, tuple(tools), sample), seconds)

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """Apply `function` to each item concurrently; yield the results in order.

        The first error cancels the items that have not started. Running calls finish, and their answers are cached.
        """
        waiting = [self.submit(function, item) for item in items]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()

    def submit(self, function: Callable[..., Out], *arguments: Any) -> Future[Out]:
        """Call `function` in the pool, within the limit of concurrency. Do not use this inside such a call."""
        with self._lock:
            if not self._pool:
                self._pool.append(ThreadPoolExecutor(self.concurrency, thread_name_prefix="llm"))
        return self._pool[0].submit(function, *arguments)

    def close(self) -> None:
        """Wait for running calls, then close connections and cache."""
        for pool in self._pool:
            pool.shutdown(cancel_futures=True)
        self._pool.clear()
        self.backend.close()
        if self.cache is not None:
            self.cache.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        schema: dict[str, Any] | None,
        tools: tuple[dict[str, Any], ...],
        sample: int,
    ) -> ChatRequest:
        return ChatRequest(
            model=self.backend.model,
            messages=tuple(messages),
            max_tokens=max_tokens,
            temperature=self.temperature,
            schema=schema,
            tools=tools,
            sample=sample,
        )

    def _complete(self, request: ChatRequest, seconds: float | None) -> Completion:
        """Answer a request and count its cost, whether the answer is cached or new."""
        answer = self._answer_once(request, seconds)
        for tally in self._tallies:
            tally.settle(Booking(), (answer.tokens_in, answer.tokens_out))
        return answer

    def _answer_once(self, request: ChatRequest, seconds: float | None) -> Completion:
        """Answer from the cache, or call the endpoint once, even if several threads send the same request."""
        if self.cache is None:
            return self._call_backend(request, seconds)
        key = request.key(self.backend.address)
        with self._lock:  # the weak dictionary drops a request's lock when no thread holds it or waits for it
            turn = self._under_way.setdefault(key, threading.Lock())
        with turn:
            answer = self.cache.get(key)
            if answer is None:
                if self.offline:
                    raise NotFound(
                        "An answer is missing from the record, and nothing was sent. "
                        "Record it again with the same settings."
                    )
                answer = self._call_backend(request, seconds)
                self.cache.put(key, answer)
            self.answers.add(key)
            return answer

    def _call_backend(self, request: ChatRequest, seconds: float | None) -> Completion:
        """Call the backend within all budgets."""
        tokens = tokens_of(request, bound)
        booked: list[tuple[Budget, Booking]] = []
        used: tuple[int, int] | None = None
        answered = True
        try:
            for budget in self.budgets:
                booked.append((budget, budget.book(tokens, request.max_tokens)))
            answer = self.backend(request, seconds=seconds)
            used = answer.tokens_in, answer.tokens_out
            return answer
        except TimedOut:
            used, answered = (tokens, request.max_tokens), False
            raise
        finally:
            for budget, amount in booked:
                budget.settle(amount, used, answered=answered)


class Rehearsal(LLM):
    """Estimates the cost of a run: answers each prompt with its typical reply and sends nothing."""

    def __init__(self, prices: Prices | None = None) -> None:
        super().__init__(_NoBackend(), budget=Budget(prices=prices), concurrency=1)

    def limit_tokens(self, tokens: int | None) -> LLM:
        """Return itself, because nothing is spent."""
        return self

    def ask(self, what: FilledPrompt, kind: type[T], *, typical: T, **rest: Any) -> T:
        """Count the cost and return `typical`."""
        request = self._request(opening(what, schema_of(kind)), self.reply_tokens, schema_of(kind), (), 0)
        self._count(request, estimate(msgspec.json.encode(typical).decode()))
        return typical

    def chat(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = (), **rest: Any) -> Completion:
        """Call each of the first three tools once, then answer with a short text; count the cost."""
        request = self._request(messages, self.reply_tokens, None, tuple(tools), 0)
        done = sum(message["role"] == "assistant" for message in messages)
        if done < min(REHEARSED_CALLS, len(tools)):
            function = tools[done]["function"]
            required = (function.get("parameters") or {}).get("required")
            arguments = {str(name): "some value of it" for name in required} if isinstance(required, list) else {}
            call = ToolCall(f"call_{done}", function["name"], msgspec.json.encode(arguments).decode())
            self._count(request, estimate(call.name + call.arguments))
            return Completion(calls=(call,), finish="tool_calls")
        self._count(request, REHEARSED_ANSWER_TOKENS)
        return Completion("That is done.")

    def _count(self, request: ChatRequest, tokens_out: int) -> None:
        self.budgets[0].settle(Booking(), (tokens_of(request), tokens_out))


class _NoBackend:
    address = model = ""

    def __call__(self, request: ChatRequest, *, seconds: float | None = None) -> Completion:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: no connection is open."""


def connect(settings: Settings, *, replay: Path | None = None, temperature: float = 0.0) -> LLM:
    """Create the LLM of the settings, with its budget, and with its cache in the home.

    Args:
        settings: `llm` and the settings that begin with it.
        replay: answer only from this record; the home's cache is not used.
        temperature: temperature of all calls.

    Raises:
        ConfigError: if no endpoint is set, or the budget cannot be read.
        SourceError: if the record cannot be read.
        MissingExtra: without the client.
    """
    if not settings.llm:
        raise ConfigError(
            "No language model is set. Set llm (or TOOLSCOUT_LLM) to an address and a model, like https://host/v1#model"
        )
    budget = Budget.parse(settings.llm_budget, Prices(settings.llm_price_in, settings.llm_price_out))
    backend = Endpoint(settings.llm, timeout=settings.llm_timeout, rpm=settings.llm_rpm)
    return LLM(
        backend,
        cache=Record(replay) if replay else Replies(settings.home),
        budget=budget,
        offline=replay is not None,
        concurrency=settings.llm_concurrency,
        reply_tokens=settings.llm_reply_tokens,
        temperature=temperature,
    )


def probe(settings: Settings, seconds: float) -> Completion:
    """Send one short request to the endpoint of the settings, past cache and budget, and return its answer.

    Raises:
        ConfigError: if the setting is wrong.
        Unavailable, BadReply: saying what is wrong with the endpoint.
    """
    endpoint = Endpoint(settings.llm, timeout=seconds, retries=0)
    try:
        messages = ({"role": "user", "content": "Reply with the word: ready"},)
        return endpoint(ChatRequest(model=endpoint.model, messages=messages, max_tokens=PROBE_REPLY_TOKENS))
    finally:
        endpoint.close()


class SharedLLM:
    """Opens the language model of the settings when it is first needed. All users share it, and so its budget.

    Attributes:
        opened: the language model; None: nothing needed it yet.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        rehearse: bool = False,
        replay: Path | None = None,
        temperature: float = 0.0,
    ) -> None:
        """Prepare the language model of the settings, or a rehearsal of it; see `connect` for the arguments."""
        self.settings, self.rehearse, self.replay, self.temperature = settings, rehearse, replay, temperature
        self.opened: LLM | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __call__(self) -> LLM:
        """Return the language model, opened at the first call.

        Raises:
            ConfigError, SourceError, MissingExtra: see `connect`.
        """
        with self._lock:
            if self.opened is None:
                if self.rehearse:
                    self.opened = Rehearsal(Prices(self.settings.llm_price_in, self.settings.llm_price_out))
                else:
                    self.opened = connect(self.settings, replay=self.replay, temperature=self.temperature)
            return self.opened

    @property
    def spent(self) -> Spent:
        """The cost so far."""
        return self.opened.spent if self.opened else Spent()

    def close(self) -> None:
        """Wait for running calls, so that `spent` is final, and close the language model, if it is open."""
        if self.opened is not None and not self._is_closed:
            self._is_closed = True
            self.opened.close()


def tokens_of(request: ChatRequest, count: Callable[[str], int] = estimate) -> int:
    """Estimate the tokens of a request: messages with their overhead, tools, and the schema of the reply."""
    shapes = [msgspec.json.encode(schema).decode() for schema in (*request.tools, request.schema) if schema]
    return count(content(request.messages)) + sum(map(count, shapes)) + MESSAGE_OVERHEAD_TOKENS * len(request.messages)


def opening(what: FilledPrompt, schema: dict[str, Any]) -> list[Message]:
    """Build the first messages of a prompt; the system message also states the schema of the reply."""
    shape = msgspec.json.encode(schema).decode()
    system = f"{what.system}\n\nAnswer with one JSON object that fits this JSON Schema, and nothing else:\n{shape}"
    return [{"role": "system", "content": system}, {"role": "user", "content": what.user}]


def _check_reply(reply: Completion, kind: type[T], check: Check[T] | None, max_tokens: int) -> tuple[str, T | None]:
    """Return what is wrong with a reply, or the value that it holds."""
    if reply.finish == "length":
        return f"cut_off: it was longer than {max_tokens} tokens, be brief", None
    try:
        value: T = decode(reply.text, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        return f"malformed: {error}"[:300], None
    wrong = check(value) if check else None
    return (wrong, None) if wrong else ("", value)
