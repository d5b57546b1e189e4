"""A fake language model that derives its reply from the prompt and the prompt's hash, always the same.

It recognises the tasks of toolscout's prompts by the title of the reply's schema. It knows no dataset: its replies
consist of words of the prompt, a short built-in list, and numbers from the hash.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import threading
from collections.abc import Callable
from typing import Any, Final

from toolscout.types import digest
from toolscout_lab.llm import estimate, tokens_of
from toolscout_lab.llm.wire import ChatRequest, Completion, ToolCall

__all__ = ["Faults", "ScriptedLLM", "words_of"]

Data = dict[str, Any]
"""The material of a prompt, a reply, or a schema: JSON values by name."""
_DATA: Final = re.compile(r'<data name="(\w+)">\n(.*?)\n</data>', re.S)
_REPLY_SCHEMA: Final = re.compile(r"and nothing else:\n(\{.*\})", re.S)
_CONTENT_WORD: Final = re.compile(r"[a-z][a-z]{3,}")
_STOPWORDS: Final = """
that this with from have your will into each when then than must been which their there these those such given only
also more some used uses using value values return returns true false none object string optional required please could
would want need like what about the and for
"""
_SCRIPT_STOPWORDS: Final = frozenset(_STOPWORDS.split())
_PEOPLE: Final = (
    "Ana",
    "Ben",
    "Chi",
    "Dov",
    "Eva",
    "Finn",
    "Gita",
    "Hugo",
    "Ines",
    "Jon",
    "Kaya",
    "Liv",
    "Milo",
    "Nora",
)
_TOWNS: Final = ("Bergen", "Cusco", "Dakar", "Essen", "Fukui", "Ghent", "Hobart", "Izmir", "Jaipur", "Kazan", "Lagos")
_TIMES: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "March", "April", "May")
_ASKS: Final = ("I want", "I need", "Could you arrange", "Help me with", "Please get me", "I am after", "Show me")
_OUTSIDE: Final = frozenset(
    ("weather", "today", "tomorrow", "price", "prices", "news", "send", "book", "buy", "latest", "stock", "email")
)


@dataclasses.dataclass(frozen=True)
class Faults:
    """The rates of faults, each between 0 and 1.

    Attributes:
        bad_json: a conversation never gets JSON, however often it asks.
        once: the first reply lacks its JSON; the second is right.
        unknown: a reply names a tool that does not exist, however often the prompt is repeated.
        duplicate: a reply repeats an example of its prompt.
        busy: status 429 with Retry-After before the answer.
        broken: status 500 before the answer.
        slow: the answer takes `pause` seconds longer.
        pause: seconds.
    """

    bad_json: float = 0.0
    once: float = 0.0
    unknown: float = 0.0
    duplicate: float = 0.0
    busy: float = 0.0
    broken: float = 0.0
    slow: float = 0.0
    pause: float = 0.05


class ScriptedLLM:
    """Answers requests in this process; `ScriptedServer` puts it behind HTTP.

    Attributes:
        injected: kind of fault → the conversations that had it.
        asked: every request, in the order of the answers.
    """

    address = "scripted"

    def __init__(
        self,
        *,
        faults: Faults | None = None,
        seed: int = 0,
        model: str = "scripted",
        answers: dict[str, Callable[[Data, random.Random], Any]] | None = None,
    ) -> None:
        """Create a scripted model.

        Args:
            faults: the rates of faults.
            seed: seed of all random choices.
            model: its name.
            answers: schema title → function of (the prompt's data, a random generator) that replaces a built-in reply.
        """
        self.faults, self.seed, self.model = faults or Faults(), seed, model
        self.answers = {**_ANSWERS, **(answers or {})}
        self.injected: dict[str, set[str]] = {}
        self.asked: list[ChatRequest] = []
        self._lock = threading.Lock()

    def __call__(self, request: ChatRequest, *, seconds: float | None = None) -> Completion:
        """Return the reply that this prompt always gets."""
        with self._lock:
            self.asked.append(request)
        tokens = tokens_of(request)
        reply = self._turn(request) if request.tools else Completion(self._text(request))
        return _count_tokens(reply, tokens)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def chance(self, *values: Any) -> random.Random:
        """Create a random generator seeded by these values."""
        return random.Random(int(digest("scripted/1", [self.seed, *values])[:16], 16))

    def count(self, kind: str) -> int:
        """Count the conversations that had a kind of fault."""
        return len(self.injected.get(kind, ()))

    def meets(self, kind: str, conversation: str) -> bool:
        """Whether a conversation has a kind of fault; if so, record it."""
        faulty: bool = self.chance(kind, conversation).random() < getattr(self.faults, kind)
        if faulty:
            with self._lock:
                self.injected.setdefault(kind, set()).add(conversation)
        return faulty

    def _text(self, request: ChatRequest) -> str:
        """Return the text of the reply: a fault, a free answer, or JSON that fits the schema in the prompt."""
        opening = [str(message.get("content") or "") for message in request.messages[:2]]
        first = digest("conversation", [*opening, request.sample])
        match = _REPLY_SCHEMA.search(opening[0])
        if match is None:
            return self.chance(first).choice(("That is done.", "I could not do it.", "Here it is."))
        if self.meets("bad_json", first):
            return "Certainly! Here is what you asked for: {oops"
        if len(request.messages) == 2 and self.meets("once", first):
            return "I would say: it depends."
        schema = json.loads(match[1])
        data = {name: json.loads(body) for name, body in _DATA.findall(opening[1])}
        chance = self.chance(first)
        title = str(schema.get("title"))
        if title in self.answers:
            reply = self.answers[title](data, chance)
        else:
            reply = _make_value(schema, schema, data, chance)
        if isinstance(reply, dict):
            reply = self._spoil(reply, title, first, data, chance)
        return json.dumps(reply, ensure_ascii=False)

    def _spoil(self, reply: Data, title: str, conversation: str, data: Data, chance: random.Random) -> Data:
        """Apply the faults `unknown` and `duplicate` to a reply."""
        if title in _TOOL_LISTS and self.meets("unknown", conversation):
            return _rename_last(reply, _TOOL_LISTS[title], f"no.such.tool_{chance.randrange(1000)}")
        if "query" in reply and data.get("examples") and self.meets("duplicate", conversation):
            verdict = {"verdict": "refined"} if "verdict" in reply else {}
            return {**reply, **verdict, "query": _query_in(chance.choice(data["examples"]))}
        return reply

    def _turn(self, request: ChatRequest) -> Completion:
        """Take one turn with tools: call each tool that shares two words with the request once, then answer."""
        texts = [str(message.get("content") or "") for message in request.messages if message["role"] == "user"]
        done = {call["function"]["name"] for message in request.messages for call in message.get("tool_calls") or ()}
        request_words = set(words_of(" ".join(texts)))
        chance = self.chance(*texts, sorted(done))
        for tool in request.tools:
            function = tool["function"]
            tool_words = set(words_of(f"{function['name'].replace('_', ' ')} {function.get('description', '')}"))
            if function["name"] not in done and len(request_words & tool_words) >= 2:
                schema = function.get("parameters") or {"type": "object", "properties": {}}
                arguments = json.dumps(_make_value(schema, schema, {"request": texts}, chance))
                return Completion(
                    "", (ToolCall(f"call_{len(done)}", function["name"], arguments),), finish="tool_calls"
                )
        return Completion("Done: " + ", ".join(sorted(done)) if done else "No function helps with that.")


def _count_tokens(reply: Completion, tokens_in: int) -> Completion:
    """Return the reply with its tokens counted."""
    out = estimate(reply.text + "".join(call.name + call.arguments for call in reply.calls))
    return Completion(reply.text, reply.calls, tokens_in, max(1, out), reply.finish)


def words_of(text: str) -> list[str]:
    """List the content words of a text, once each, in order."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    return [word for word in dict.fromkeys(_CONTENT_WORD.findall(split.lower())) if word not in _SCRIPT_STOPWORDS]


# --- the reply to each task -------------------------------------------------------------------------------------------


def _query_in(example: Any) -> str:
    return str(example.get("query", "")) if isinstance(example, dict) else str(example)


def _sample(chance: random.Random, words: list[str], count: int) -> list[str]:
    return chance.sample(words, min(count, len(words)))


def _detail(chance: random.Random) -> str:
    return chance.choice(
        (
            f"for {chance.choice(_PEOPLE)} in {chance.choice(_TOWNS)}",
            f"by {chance.choice(_TIMES)} {chance.randrange(1, 29)}",
            f"with {chance.randrange(2, 9999)} of them",
            f"near {chance.choice(_TOWNS)} on {chance.choice(_TIMES)}",
            f"called {chance.choice(_PEOPLE).lower()}-{chance.randrange(10, 999)}",
        )
    )


def _draft(data: Data, chance: random.Random) -> Data:
    """Answer `toolbank_query`: a random tool with the tools most similar to it, and a request made of their words."""
    tools = data["tools"]
    seed = chance.choice(tools)
    near = sorted(
        (tool for tool in tools if tool is not seed),
        key=lambda tool: -len(set(words_of(str(tool))) & set(words_of(str(seed)))),
    )
    chosen = [seed, *near[: chance.randrange(1, 4)]]
    texts = [f"{tool.get('description', '')}" or str(tool["name"]) for tool in chosen]
    parts = [f"{' '.join(_sample(chance, words_of(text), 4))} {_detail(chance)}" for text in texts]
    return {
        "tools": [tool["id"] for tool in chosen],
        "query": f"{chance.choice(_ASKS)} {', and '.join(parts)}.",
        "why": "Each needs what the one before gave back.",
    }


def _polish(data: Data, chance: random.Random) -> Data:
    query = _query_in(data["query"])
    if chance.random() < 0.5:
        return {"verdict": "good", "query": query, "reason": "It is plain."}
    refined = query[:-1] + ", if you would." if query.endswith(".") else f"{query}, please"
    return {"verdict": "refined", "query": refined, "reason": "It was stilted."}


def _selection(data: Data, chance: random.Random) -> Data:
    def verdict(tool: Data) -> str:
        words = set(words_of(str(tool.get("description", "")) + " " + str(tool.get("name"))))
        return "auth" if words & {"login", "password", "credential", "credentials"} else "everyday"

    return {"verdicts": [{"id": tool["id"], "verdict": verdict(tool)} for tool in data["tools"]]}


def _categories(data: Data, chance: random.Random) -> Data:
    words = words_of(str(data["query"])) or ["things"]
    return {"categories": [" ".join(["find", *_sample(chance, words, 3)]) + f" {number}" for number in range(3)]}


def _rewrite(data: Data, chance: random.Random) -> Data:
    names = " ".join(words_of(str(data["parameters"]))[:8])
    return {"query": f"{str(data['query']).rstrip('.')}; {names} {_detail(chance)}, {_detail(chance)}."}


def _need(data: Data, chance: random.Random) -> Data:
    needs = bool(set(words_of(str(data["query"]))) & _OUTSIDE)
    return {"needs_tool": needs, "reason": "It looks outside." if needs else "Words are enough."}


def _comprehension(data: Data, chance: random.Random) -> Data:
    query = str(data["query"])
    goals = [part.strip(" .") for part in re.split(r",|;|\band\b|\balso\b|\. ", query)]
    does = [{"id": tool["id"], "purpose": " ".join(words_of(str(tool))[:6])} for tool in data["tools"]]
    return {"goals": [goal for goal in goals if words_of(goal)] or [query], "tools": does}


def _assessment(data: Data, chance: random.Random) -> Data:
    """Call each goal solved by the tools whose ids share a word with it."""
    solved, unsolved = [], []
    for goal in data["goals"]:
        words = set(words_of(goal))
        tools = [tool["id"] for tool in data["tools"] if words & set(words_of(str(tool)))]
        if tools:
            solved.append({"goal": goal, "tools": tools, "reason": "The words meet."})
        else:
            unsolved.append({"goal": goal, "reason": "No function speaks of it."})
    return {"solved": solved, "unsolved": unsolved, "ordered": True, "reason": "As it should be."}


def _refinement(data: Data, chance: random.Random) -> Data:
    missing = [goal["goal"] for goal in data["assessment"]["unsolved"]]
    if not missing and data["assessment"]["ordered"]:
        return {"instruction": "N/A"}
    return {"instruction": f"Above all: {'; '.join(missing) or data['original']}"}


def _description(data: Data, chance: random.Random) -> Data:
    words = words_of(str(data["query"])) or ["thing"]
    return {"name": "_".join(words[:2]), "description": " ".join(words), "parameters": words[:2]}


def _winner(data: Data, chance: random.Random) -> Data:
    first, second = len(str(data["first"])), len(str(data["second"]))
    winner = "tie" if first == second else "first" if first > second else "second"
    return {"winner": winner, "reason": "The longer one says more."}


_ANSWERS: Final[dict[str, Callable[[Data, random.Random], Any]]] = {
    "QueryDraft": _draft,
    "Polish": _polish,
    "ToolSelection": _selection,
    "Scene": lambda data, chance: {
        "scene": f"a {chance.choice(_TIMES)} with " + " and ".join(_sample(chance, words_of(str(data["tool"])), 2))
    },
    "Statement": lambda data, chance: {
        "query": f"I am planning {' '.join(words_of(str(data['scene'])))} {_detail(chance)} {_detail(chance)}."
    },
    "Categories": _categories,
    "Checks": lambda data, chance: {
        "checks": [{"id": item["tool"]["id"], "helps": chance.random() < 0.9} for item in data["proposals"]]
    },
    "Rewritten": _rewrite,
    "NeedVerdict": _need,
    "Comprehension": _comprehension,
    "Assessment": _assessment,
    "Refinement": _refinement,
    "Variants": lambda data, chance: {
        "queries": [f"{chance.choice(_ASKS)}: {data['query']}", f"{data['query']} ({chance.choice(_PEOPLE)} asks)"]
    },
    "Described": _description,
    "Winner": _winner,
    "Grade": lambda data, chance: {"solved": bool(data["calls"]), "reason": "It called what it could."},
}


#: Schema title → the key of the reply that lists tools.
_TOOL_LISTS: Final = {"QueryDraft": "tools", "ToolSelection": "verdicts", "Checks": "checks"}


def _rename_last(reply: Data, key: str, name: str) -> Data:
    """Replace the last tool that a reply names."""
    *first, last = reply[key]
    return {**reply, key: [*first, {**last, "id": name} if isinstance(last, dict) else name]}


def _make_value(schema: Data, root: Data, data: Any, chance: random.Random) -> Any:
    """Make a value that fits a schema."""
    if "$ref" in schema:
        return _make_value(root["$defs"][schema["$ref"].rpartition("/")[2]], root, data, chance)
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _make_value(schema[key][0], root, data, chance)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        names = schema.get("required") or list(schema.get("properties", {}))
        properties = schema.get("properties", {})
        return {name: _make_value(properties.get(name, {}), root, data, chance) for name in names}
    if kind == "array":
        count = max(1, int(schema.get("minItems", 1)))
        return [_make_value(schema.get("items", {}), root, data, chance) for _ in range(count)]
    return _make_scalar(schema, kind, data, chance)


def _make_scalar(schema: Data, kind: str | None, data: Any, chance: random.Random) -> Any:
    """Make a value that a schema without choices allows."""
    if kind in ("integer", "number"):
        return max(int(schema.get("minimum", 1)), 1) if "maximum" not in schema else int(schema["maximum"])
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "null":
        return None
    return " ".join(_sample(chance, words_of(json.dumps(data)), 3)) or "something"
