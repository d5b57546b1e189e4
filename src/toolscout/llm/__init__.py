"""Language models: any OpenAI-compatible endpoint, replies of a given shape, budgets, a cache that is a record too.

::

    with connect(settings) as llm:
        answer = llm.ask(prompt("tooldet_verify", query=text), Verdict, typical=Verdict(True, "…"))

Nothing here writes prompts, replies or keys to a log.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from toolscout.config import Settings
from toolscout.errors import BadReply, ConfigError, NotFound, TimedOut
from toolscout.llm.budget import Budget, Prices, Spent, bound, estimate
from toolscout.llm.cache import Record, Replies
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.prompts import Prompt, card, prompt, quoted
from toolscout.llm.wire import Backend, Completion, Message, Request, ToolCall, content, decode, schema_of

__all__ = [
    "LLM",
    "Backend",
    "Budget",
    "Completion",
    "Endpoint",
    "Message",
    "Prices",
    "Prompt",
    "Rehearsal",
    "Replies",
    "Request",
    "Spent",
    "ToolCall",
    "card",
    "connect",
    "estimate",
    "prompt",
    "quoted",
    "tokens_of",
]

REPAIRS: Final = 2
MOST_OUT: Final = 1024
FRAME: Final = 4  # tokens that a message costs beside its text
CALLS: Final = 3  # that an agent makes in a rehearsal
TOLD: Final = 60  # tokens of its answer
T = TypeVar("T", bound=msgspec.Struct)
In = TypeVar("In")
Out = TypeVar("Out")
Check = Callable[[T], "str | None"]


class LLM:
    """A model that is asked for values of a given shape. Safe to use from several threads.

    Attributes:
        backend: who answers.
        repairs: how often a reply of the wrong shape is asked for again.
        repaired: replies that were asked for again.
        answers: keys of the answers that were given, paid for or from the cache: what a record of this object holds.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        cache: Replies | None = None,
        budget: Budget | None = None,
        offline: bool = False,
        concurrency: int = 4,
        repairs: int = REPAIRS,
        temperature: float = 0.0,
    ) -> None:
        """Put an LLM together.

        Args:
            backend: who answers.
            cache: where answers are kept; None: nowhere.
            budget: what may be spent, and what it costs; None: no limit.
            offline: answer from the cache alone (replay).
            concurrency: calls under way at once, in `map`.
            repairs: how often a reply of the wrong shape is asked for again.
            temperature: of all calls.
        """
        self.backend, self.cache, self.offline, self.repairs = backend, cache, offline, repairs
        self.budgets: tuple[Budget, ...] = (budget or Budget(),)
        self._tallies: tuple[Budget, ...] = (Budget(prices=self.budgets[0].prices),)
        self.temperature, self.concurrency = temperature, concurrency
        self.repaired = 0
        self.answers: set[str] = set()
        self._lock = threading.Lock()
        self._under_way: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._pool: list[ThreadPoolExecutor] = []

    @property
    def spent(self) -> Spent:
        """What was spent through this object; answers from the cache cost nothing."""
        return self.budgets[0].spent

    @property
    def answered(self) -> Spent:
        """What all answers to this object cost when they were paid for, those from the cache too."""
        return self._tallies[0].spent

    def limited(self, tokens: int | None) -> LLM:
        """The same LLM under one more limit, say for one query; it shares backend, cache and the other budgets."""
        other = object.__new__(LLM)
        other.__dict__.update(self.__dict__)
        prices = self.budgets[0].prices
        other.budgets = (Budget(tokens=tokens, prices=prices), *self.budgets)
        other._tallies = (Budget(prices=prices), *self._tallies)
        return other

    def ask(
        self,
        what: Prompt,
        kind: type[T],
        *,
        typical: T,
        check: Check[T] | None = None,
        sample: int = 0,
        most: int = MOST_OUT,
        seconds: float | None = None,
    ) -> T:
        """A value of the given kind.

        Args:
            what: the prompt.
            kind: a struct; the reply must be a JSON object of its shape.
            typical: a reply as it might be, for estimates of the cost.
            check: says what is wrong with a reply of the right shape, as `reason: sentence`, or None.
            sample: the same again, for another answer.
            most: tokens of the reply.
            seconds: for each call.

        Raises:
            BadReply: if the reply is still wrong after `repairs` more tries.
            OverBudget: before a call that the budget does not allow.
            Unavailable: if there is no answer.
        """
        schema, wrong = schema_of(kind), ""
        messages = opening(what, schema)
        for left in range(self.repairs, -1, -1):
            reply = self._complete(self._request(messages, most, schema, (), sample), seconds)
            wrong, value = _judged(reply, kind, check)
            if value is not None:
                return value
            if left:
                with self._lock:
                    self.repaired += 1
                messages = [
                    *messages,
                    {"role": "assistant", "content": reply.text},
                    {
                        "role": "user",
                        "content": "That is not a valid answer. What is wrong with it:\n"
                        f"{quoted('problem', wrong)}\nAnswer again: one JSON object of the schema, and nothing else.",
                    },
                ]
        raise BadReply(
            f"{what.name}: expected a reply of its shape, found none in {self.repairs + 1} tries",
            wrong.partition(":")[0],
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] = (),
        sample: int = 0,
        most: int = MOST_OUT,
        seconds: float | None = None,
    ) -> Completion:
        """One turn of a conversation: text, or calls of the tools.

        Raises:
            OverBudget: before a call that the budget does not allow.
            Unavailable: if there is no answer.
        """
        return self._complete(self._request(messages, most, None, tuple(tools), sample), seconds)

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """`function` of each item, in order, several at once.

        The first error that it raises stops what has not begun; what is under way ends, and its answers are kept.
        """
        waiting = [self.submit(function, item) for item in items]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()

    def submit(self, function: Callable[..., Out], *arguments: Any) -> Future[Out]:
        """Call `function` beside others, as many at once as the concurrency allows; not from within such a call."""
        with self._lock:
            if not self._pool:
                self._pool.append(ThreadPoolExecutor(self.concurrency, thread_name_prefix="llm"))
        return self._pool[0].submit(function, *arguments)

    def close(self) -> None:
        """Wait for what is under way, and close connections and cache."""
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
        most: int,
        schema: dict[str, Any] | None,
        tools: tuple[dict[str, Any], ...],
        sample: int,
    ) -> Request:
        return Request(
            model=self.backend.model,
            messages=tuple(messages),
            max_tokens=most,
            temperature=self.temperature,
            schema=schema,
            tools=tools,
            sample=sample,
        )

    def _complete(self, request: Request, seconds: float | None) -> Completion:
        """One answer, counted wherever it came from."""
        found = self._found(request, seconds)
        for tally in self._tallies:
            tally.settle((0.0, 0.0), (found.tokens_in, found.tokens_out))
        return found

    def _found(self, request: Request, seconds: float | None) -> Completion:
        """One answer: from the cache, or paid for once, however many threads ask for it."""
        if self.cache is None:
            return self._paid(request, seconds)
        key = request.key(self.backend.address)
        with self._lock:  # the lock of a request lasts as long as anybody waits for it or holds it
            turn = self._under_way.setdefault(key, threading.Lock())
        with turn:
            found = self.cache.get(key)
            if found is None:
                if self.offline:
                    raise NotFound(
                        "expected every answer in the record, found one that is not there: nothing was sent; "
                        "record it again with the same settings"
                    )
                found = self._paid(request, seconds)
                self.cache.put(key, found)
            self.answers.add(key)
            return found

    def _paid(self, request: Request, seconds: float | None) -> Completion:
        tokens = tokens_of(request, bound)
        booked: list[tuple[Budget, tuple[float, float]]] = []
        used: tuple[int, int] | None = None
        answered = True
        try:
            for budget in self.budgets:
                booked.append((budget, budget.book(tokens, request.max_tokens)))
            found = self.backend(request, seconds=seconds)
            used = found.tokens_in, found.tokens_out
            return found
        except TimedOut:
            used, answered = (tokens, request.max_tokens), False
            raise
        finally:
            for budget, amount in booked:
                budget.settle(amount, used, answered=answered)


class Rehearsal(LLM):
    """Answers every question with its typical reply and sends nothing: what a run would cost."""

    def __init__(self, prices: Prices | None = None) -> None:
        super().__init__(_Nobody(), budget=Budget(prices=prices), concurrency=1)

    def limited(self, tokens: int | None) -> LLM:
        """Itself: nothing is spent."""
        return self

    def ask(self, what: Prompt, kind: type[T], *, typical: T, **rest: Any) -> T:
        """`typical`, counted."""
        request = self._request(opening(what, schema_of(kind)), MOST_OUT, schema_of(kind), (), 0)
        self._count(request, estimate(msgspec.json.encode(typical).decode()))
        return typical

    def chat(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = (), **rest: Any) -> Completion:
        """A call of the next of the first three tools, each once, then a short text; counted."""
        request = self._request(messages, MOST_OUT, None, tuple(tools), 0)
        done = sum(message["role"] == "assistant" for message in messages)
        if done < min(CALLS, len(tools)):
            function = tools[done]["function"]
            required = (function.get("parameters") or {}).get("required")
            arguments = {str(name): "some value of it" for name in required} if isinstance(required, list) else {}
            call = ToolCall(f"call_{done}", function["name"], msgspec.json.encode(arguments).decode())
            self._count(request, estimate(call.name + call.arguments))
            return Completion(calls=(call,), finish="tool_calls")
        self._count(request, TOLD)
        return Completion("That is done.")

    def _count(self, request: Request, tokens_out: int) -> None:
        self.budgets[0].settle((0.0, 0.0), (tokens_of(request), tokens_out))


class _Nobody:
    address = model = ""

    def __call__(self, request: Request, *, seconds: float | None = None) -> Completion:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def connect(
    settings: Settings,
    *,
    tokens: int | None = None,
    dollars: float | None = None,
    replay: Path | None = None,
    temperature: float = 0.0,
) -> LLM:
    """The LLM of the settings, with its cache in their home.

    Args:
        settings: `llm` and what begins with it.
        tokens: the most that this LLM may spend.
        dollars: the same in money.
        replay: answer from this record alone; the home's answers are neither used nor added to.
        temperature: of all calls.

    Raises:
        ConfigError: if no endpoint is set.
        SourceError: if the record cannot be read.
        MissingExtra: without the client.
    """
    if not settings.llm:
        raise ConfigError(
            "expected a language model, found none set: set llm (or TOOLSCOUT_LLM) to an address and a model, "
            "like https://host/v1#model"
        )
    prices = Prices(settings.llm_price_in, settings.llm_price_out)
    backend = Endpoint(settings.llm, timeout=settings.llm_timeout, rpm=settings.llm_rpm)
    return LLM(
        backend,
        cache=Record(replay) if replay else Replies(settings.home),
        budget=Budget(tokens=tokens, dollars=dollars, prices=prices),
        offline=replay is not None,
        concurrency=settings.llm_concurrency,
        temperature=temperature,
    )


def tokens_of(request: Request, count: Callable[[str], int] = estimate) -> int:
    """Tokens of a request, estimated: texts, tools, the shape of the reply, and what each message costs beside."""
    shapes = [msgspec.json.encode(each).decode() for each in (*request.tools, request.schema) if each]
    return count(content(request.messages)) + sum(map(count, shapes)) + FRAME * len(request.messages)


def opening(what: Prompt, schema: dict[str, Any]) -> list[Message]:
    """The messages that a prompt begins with; the shape of the reply is said in words too."""
    shape = msgspec.json.encode(schema).decode()
    system = f"{what.system}\n\nAnswer with one JSON object that fits this JSON Schema, and nothing else:\n{shape}"
    return [{"role": "system", "content": system}, {"role": "user", "content": what.user}]


def _judged(reply: Completion, kind: type[T], check: Check[T] | None) -> tuple[str, T | None]:
    """What is wrong with a reply, or the value that it holds."""
    if reply.finish == "length":
        return "malformed: it was cut off, be brief", None
    try:
        value: T = decode(reply.text, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        return f"malformed: {error}"[:300], None
    wrong = check(value) if check else None
    return (wrong, None) if wrong else ("", value)
