"""Calls language models at any OpenAI-compatible endpoint: typed replies, budgets, a cache that can be replayed.

::

    with connect(settings) as llm:
        answer = llm.ask(prompt("tooldet_verify", query=text), Verdict, example_reply=Verdict(True, "…"))

This package never logs prompts, replies or keys.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from toolscout.errors import BadReply, ConfigError, NotFound, TimedOut, Unavailable
from toolscout.settings import Settings
from toolscout_lab.llm.budget import Budget, Prices, Spent, bound, estimate
from toolscout_lab.llm.cache import Record, Replies
from toolscout_lab.llm.endpoint import Endpoint
from toolscout_lab.llm.prompts import FilledPrompt, card, prompt, quote
from toolscout_lab.llm.wire import (
    DEFAULT_REPLY_TOKENS,
    Backend,
    ChatRequest,
    Completion,
    DecisionRequest,
    Few,
    Message,
    ToolCall,
    content,
    decode,
    drop_thoughts,
    narrow,
    schema_of,
)

__all__ = [
    "LLM",
    "Backend",
    "Budget",
    "ChatRequest",
    "Completion",
    "Endpoint",
    "Few",
    "FilledPrompt",
    "Message",
    "Prices",
    "Readiness",
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
REPAIR_TEMPERATURE_STEP: Final = 0.4
MAX_LATE_IN_A_ROW: Final = 2  # late answers of each concurrent call, after which the run stops
PROBE_REPLY_TOKENS: Final = 16
NO_LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {}
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
        cache: stores the answers; None stores nothing.
        offline: whether answers come from the cache alone (replay).
        concurrency: concurrent calls in `map`.
        repairs: how often to ask again after an invalid reply.
        reply_tokens: maximum tokens of a reply, unless a call allows more.
        temperature: temperature of all calls; higher where a reply is asked for again.
        budgets: limits and prices; the first may be that of a single query, the last is that of the whole command.
        answers: keys of all answers so far, from the endpoint or the cache; a record of this object contains these.
        skipped: reason → number of prompts that got no valid reply.
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
        """Create an LLM; the attributes describe the arguments. Without a budget there is no limit."""
        self.backend, self.cache, self.offline = backend, cache, offline
        self.concurrency, self.repairs = concurrency, repairs
        self.reply_tokens, self.temperature = reply_tokens, temperature
        self.budgets: tuple[Budget, ...] = (budget or Budget(),)
        self.answers: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        # key of a request → lock
        self._under_way: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._pool: list[ThreadPoolExecutor] = []  # one, once it is needed

    @property
    def spent(self) -> Spent:
        """The cost of the calls of this object; answers from the cache cost nothing."""
        return self.budgets[0].spent

    @property
    def repaired(self) -> int:
        """Number of replies that were asked for again."""
        return self._counts["repaired"]

    @property
    def is_used_up(self) -> bool:
        """Whether the whole budget, and not only that of one query, refused a call."""
        return self.budgets[-1].is_used_up

    @property
    def answered(self) -> Spent:
        """The original cost of all answers, including those from the cache."""
        return self.budgets[0].answered

    def limit_tokens(self, tokens: int | None) -> LLM:
        """Return this LLM with one more limit, for example for one query; backend, cache and budgets are shared."""
        limited = copy.copy(self)
        limited.budgets = (Budget(tokens=tokens, prices=self.budgets[0].prices), *self.budgets)
        return limited

    def replace_backend(self, backend: Backend) -> LLM:
        """Return an LLM that asks another model; cache, budget and limits are shared."""
        other = copy.copy(self)
        other.backend = backend
        return other

    def ask(
        self,
        what: FilledPrompt,
        kind: type[T],
        *,
        example_reply: T,
        check: Check[T] | None = None,
        limits: Mapping[str, Mapping[str, Any]] = NO_LIMITS,
        sample: int = 0,
        max_tokens: int = 0,
        seconds: float | None = None,
    ) -> T:
        """Ask for a value of the given type.

        Args:
            what: the prompt.
            kind: a struct; the reply must be a JSON object that fits it.
            example_reply: a reply as the model may give it. Only `Rehearsal` uses it: it estimates the tokens of
                replies, and sends nothing.
            check: returns what is wrong with a reply that fits, as `reason: sentence`, or None.
            limits: property → keywords for the schema that the endpoint keeps to, see `narrow`. The prompt does not
                show them, because others write ids.
            sample: another number gives another answer to the same prompt.
            max_tokens: maximum tokens of the reply, if that is more than `reply_tokens`.
            seconds: time limit per call.

        Raises:
            BadReply: if the reply is still invalid after `repairs` more attempts, or does not come in time.
            OverBudget: before a call that the budget does not allow.
            TimedOut: within `seconds`, or if no reply comes in time any more.
            Unavailable: if there is no answer.
        """
        try:
            return self._ask(what, kind, check, limits, sample, max(max_tokens, self.reply_tokens), seconds)
        except BadReply as error:
            with self._lock:
                self.skipped[error.reason] += 1
            raise

    def _ask(
        self,
        what: FilledPrompt,
        kind: type[T],
        check: Check[T] | None,
        limits: Mapping[str, Mapping[str, Any]],
        sample: int,
        max_tokens: int,
        seconds: float | None,
    ) -> T:
        """Ask until a reply is valid; see `ask`."""
        schema, wrong = schema_of(kind), ""
        messages = opening(what, schema)
        for attempt in range(self.repairs + 1):
            request = self._request(messages, max_tokens, schema=narrow(schema, limits), sample=sample)
            # At temperature 0 a model often repeats its invalid reply word for word.
            request = msgspec.structs.replace(
                request, temperature=max(request.temperature, REPAIR_TEMPERATURE_STEP * attempt)
            )
            reply = self._complete(request, seconds)
            wrong, value = _check_reply(reply, kind, check, max_tokens)
            if value is not None:
                return value
            if attempt < self.repairs:
                with self._lock:
                    self._counts["repaired"] += 1
                messages = _ask_again(messages, reply, wrong)
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
        """Take one turn of a conversation: the reply is text, or calls of the tools. See `ask` for the errors.

        Args:
            messages: the conversation so far.
            tools: function schemas that the model may call.
            sample: number of the reply, if several to the same messages are wanted; each is cached by itself.
            max_tokens: of the reply; the setting `llm_reply_tokens` is a lower bound.
            seconds: time limit; None: the setting `llm_timeout`.
        """
        max_tokens = max(max_tokens, self.reply_tokens)
        return self._complete(self._request(messages, max_tokens, tools=tuple(tools), sample=sample), seconds)

    def choose(
        self, state: str, question: str, options: Mapping[str, str], *, seconds: float | None = None
    ) -> dict[str, float]:
        """Ask a decision model which option fits. See `ask` for the errors.

        Args:
            state: what the question is about.
            question: one sentence.
            options: name → description.
            seconds: time limit; None: the setting `llm_timeout`.

        Returns:
            name → probability, in the order of `options`.
        """
        reply = self._complete(self._question(state, question, options), seconds)
        return msgspec.json.decode(reply.text, type=dict[str, float])

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

    def submit(self, function: Callable[..., Out], *arguments: object) -> Future[Out]:
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

    def _request(self, messages: Sequence[Message], max_tokens: int, **rest: Any) -> ChatRequest:
        return ChatRequest(
            model=self.backend.model,
            messages=tuple(messages),
            max_tokens=max_tokens,
            temperature=self.temperature,
            **rest,
        )

    def _question(self, state: str, question: str, options: Mapping[str, str]) -> DecisionRequest:
        return DecisionRequest(
            model=self.backend.model,
            messages=({"role": "user", "content": state},),
            max_tokens=0,
            instructions=question,
            options=dict(options),
        )

    def _complete(self, request: ChatRequest, seconds: float | None) -> Completion:
        """Answer a request and count its cost, whether the answer is cached or new.

        A late answer is a bad reply, because one slow request should not end a long run. After many in a row there is
        no hope for the others.
        """
        try:
            answer = self._answer_once(request, seconds)
        except TimedOut as error:
            with self._lock:
                self._counts["late in a row"] += 1
                is_hopeless = self._counts["late in a row"] > MAX_LATE_IN_A_ROW * self.concurrency
            if seconds is not None or is_hopeless:
                raise
            raise BadReply(str(error), "late") from None
        self._counts["late in a row"] = 0
        for budget in self.budgets:
            budget.count_answer(answer.tokens_in, answer.tokens_out)
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
        booked: list[tuple[Budget, Spent]] = []
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
    """Estimates the cost of a run: answers each prompt with its example reply and sends nothing."""

    def __init__(self, prices: Prices | None = None) -> None:
        super().__init__(_NoBackend(), budget=Budget(prices=prices), concurrency=1)

    def limit_tokens(self, tokens: int | None) -> LLM:
        """Return itself, because nothing is spent."""
        return self

    def ask(self, what: FilledPrompt, kind: type[T], *, example_reply: T, **rest: Any) -> T:
        """Count the cost and return `example_reply`."""
        shape = narrow(schema_of(kind), rest.get("limits", NO_LIMITS))
        request = self._request(opening(what, schema_of(kind)), self.reply_tokens, schema=shape)
        self._count(request, estimate(msgspec.json.encode(example_reply).decode()))
        return example_reply

    def chat(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = (), **rest: Any) -> Completion:
        """Call each of the first three tools once, then answer with a short text; count the cost."""
        request = self._request(messages, self.reply_tokens, tools=tuple(tools))
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

    def choose(self, state: str, question: str, options: Mapping[str, str], **rest: Any) -> dict[str, float]:
        """Count the cost and find all options equally likely."""
        self._count(self._question(state, question, options), 0)
        return dict.fromkeys(options, 1 / len(options))

    def _count(self, request: ChatRequest, tokens_out: int) -> None:
        self.budgets[0].settle(Spent(), (tokens_of(request), tokens_out))


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


class Readiness(NamedTuple):
    """What an endpoint of language models can do, as `probe` found out.

    Attributes:
        reply_format: how it takes the shape of a reply: `json_schema`, `json_object`, or `text` alone.
        calls_tools: whether it takes functions, which agents call.
        tokens: of the requests and answers.
    """

    reply_format: str
    calls_tools: bool
    tokens: int


class ProbeReply(msgspec.Struct):
    """The reply to a probe."""

    ready: bool


def probe(settings: Settings, seconds: float) -> Readiness:
    """Find out whether the endpoint of the settings can be used, and how.

    Two requests are sent, as recipes and agents send them: one with the schema of its reply, and one with a function to
    call. Cache and budget are not used. If only the second fails, `calls_tools` of the result is False.

    Args:
        settings: name the endpoint and the model.
        seconds: time limit of each request.

    Raises:
        ConfigError: if the setting is wrong.
        Unavailable, BadReply: if the first request fails; the message says what is wrong with the endpoint.
    """
    endpoint = Endpoint(settings.llm, timeout=seconds, retries=0)
    task: Message = {"role": "user", "content": 'Reply with the JSON object {"ready": true}'}
    request = ChatRequest(model=endpoint.model, messages=(task,), max_tokens=PROBE_REPLY_TOKENS)
    function = {"name": "report_ready", "description": "Reports that all is well.", "parameters": schema_of(ProbeReply)}
    calls_tools, answers = True, []
    try:
        answers.append(endpoint(msgspec.structs.replace(request, schema=schema_of(ProbeReply))))
        try:
            answers.append(
                endpoint(msgspec.structs.replace(request, tools=({"type": "function", "function": function},)))
            )
        except (BadReply, Unavailable):
            calls_tools = False
        return Readiness(
            endpoint.reply_format, calls_tools, sum(answer.tokens_in + answer.tokens_out for answer in answers)
        )
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
        """Prepare the language model of the settings.

        Args:
            settings: name the model and its limits.
            rehearse: whether calls are only counted.
            replay: file with all replies; nothing is sent.
            temperature: of the model.
        """
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
    """Estimate the tokens of a request: messages with overhead, tools, and the schema of the reply or the options."""
    asked = (request.options, request.instructions) if isinstance(request, DecisionRequest) else ()
    shapes = [msgspec.json.encode(part).decode() for part in (*request.tools, request.schema, *asked) if part]
    return count(content(request.messages)) + sum(map(count, shapes)) + MESSAGE_OVERHEAD_TOKENS * len(request.messages)


def opening(what: FilledPrompt, schema: dict[str, object]) -> list[Message]:
    """Build the first messages of a prompt; the system message also states the schema of the reply."""
    shape = msgspec.json.encode(schema).decode()
    system = f"{what.system}\n\nAnswer with one JSON object that fits this JSON Schema, and nothing else:\n{shape}"
    return [{"role": "system", "content": system}, {"role": "user", "content": what.user}]


def _ask_again(messages: list[Message], reply: Completion, wrong: str) -> list[Message]:
    """Return a conversation that asks again after an invalid reply.

    A reply that was cut off is left out: it is long, and a weak model continues what it repeated.
    """
    problem = f"What is wrong with it:\n{quote('problem', wrong)}"
    again = "Answer again: one JSON object of the schema, and nothing else."
    if reply.finish == "length":
        first = f"{messages[1]['content']}\n\nAn earlier answer was not valid. {problem}\n{again}"
        return [messages[0], {"role": "user", "content": first}]
    return [
        *messages,
        {"role": "assistant", "content": drop_thoughts(reply.text) or NO_ANSWER},
        {"role": "user", "content": f"That is not a valid answer. {problem}\n{again}"},
    ]


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
