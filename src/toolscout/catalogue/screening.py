"""What a tool's own text tries to do to whoever reads it: hidden instructions, invisible characters, look-alike names.

`scan` looks at one tool, `vet` decides whether it may come in unseen, `sanitise` makes a text fit to be shown to a
model. What is in
`toolscout.catalogue.stuffing` looks at stuffed descriptions, which harm the ranking and not the reader.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.stuffing import stuffed
from toolscout.types import Tool

__all__ = ["Finding", "sanitise", "scan", "spelled_out", "suspects", "vet"]

Kind = Literal["instructions", "invisible", "look-alike", "stuffing"]


_LOWERED: Final = ("instructions", "stuffing")
FORMAT: Final = "suspects/1"  # to be raised whenever the same tool would be judged otherwise


class Finding(msgspec.Struct, frozen=True):
    """Something in a tool's definition that a person should see.

    Attributes:
        kind: instructions (addressed to the model), invisible (characters), look-alike (letters of a name), stuffing.
        field: where: `name`, `description`, or a way into the definition such as `parameters.properties.q.description`.
        message: what was found; quotes at most 80 characters, made visible.
    """

    kind: Kind
    field: str
    message: str


def scan(tool: Tool) -> list[Finding]:
    """Everything suspicious about a tool, by field."""
    found: dict[tuple[str, str], Finding] = {}  # a text that stands in two fields is found once
    body = msgspec.json.encode(tool).decode()
    odd = not body.isascii() or "\\u00" in body or "\x7f" in body
    orders = _COMPILED if odd else _cued(body.lower())
    for field, text in _texts(tool) if odd or orders else ():
        for message in _hidden(text):
            found.setdefault(("invisible", message), Finding("invisible", field, message))
        for message in _given(text, orders):
            found.setdefault(("instructions", message), Finding("instructions", field, message))
    if not tool.name.isascii() and (seems := _look_alike(tool)):
        found["look-alike", seems] = Finding("look-alike", "name", seems)
    if reason := stuffed(tool):
        found["stuffing", reason] = Finding("stuffing", "description", reason)
    return list(found.values())


def vet(tool: Tool) -> str | None:
    """Why a tool that nobody has approved must wait, or None."""
    for finding in scan(tool):
        if finding.kind == "instructions":
            return f"its {finding.field} gives orders to the model"
        if finding.kind == "invisible":
            return f"its {finding.field} holds characters that nobody sees"
    return None


def suspects(catalogue: Catalogue) -> frozenset[str]:
    """Ids of the tools that a search puts behind all others: they give orders, or are stuffed."""

    def found() -> bytes:
        return msgspec.json.encode(
            [tool.id for tool in catalogue.tools() if any(each.kind in _LOWERED for each in scan(tool))]
        )

    return frozenset(msgspec.json.decode(catalogue.cached(FORMAT, found), type=list[str]))


def _texts(tool: Tool) -> Iterator[tuple[str, str]]:
    """(field, text) of everything a model may get to read: values, and the names of parameters."""
    waiting: list[tuple[str, Any]] = [
        ("tags", list(tool.tags)),
        ("meta", tool.meta),
        ("returns", tool.returns),
        ("parameters", tool.parameters),
        ("description", tool.description),
        ("name", tool.name),
    ]
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield f"{field} (a key)", key
                waiting.append((f"{field}.{sanitise(key)[:40]}", inner))
        elif isinstance(value, list):
            waiting += [(field, inner) for inner in value]


# --- orders to the model ----------------------------------------------------------------------------------------------

_UP_TO_SIX: Final = r"(?:\W+\w+){0,6}?\W+"
_TAKE: Final = r"\b(?:use|using|call|calling|invoke|run|choose|select|pick|prefer|query)\W+"
_THIS: Final = r"(?:this|our)(?:\W+(?:tool|function|server|service))?"
_REST: Final = r"(?:any|all|every|each|the)\W+(?:of\W+the\W+)?(?:other|available|remaining)\W+(?:tool|function)"
_ORDERS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "overrides what the model was told": (
        ("ignore", "disregard", "forget", "override", "bypass"),
        r"\b(?:ignore|disregard|forget|override|overrides|bypass)\b"
        r"(?:\W+(?:all|any|every|the|your|my|these|those|of|and|to)){0,4}\W+"
        r"(?:(?:previous|prior|earlier|above|preceding|former|other|existing|system|safety|user'?s?)\W+){1,2}"
        r"(?:(?:system|safety)\W+)?(?:instruction|prompt|rule|guideline|direction|message|command|policies|policy)",
    ),
    "claims to come before all other tools": (
        (
            "this tool",
            "this function",
            "other tool",
            "other function",
            "use this first",
            "call this first",
            "no matter what",
        ),
        r"\b(?:always|must|only)\W+" + _TAKE + _THIS + r"(?:\W+first\b(?!\W+(?:to|when|if|before|in)\b)"
        r"|\W+(?:before|instead\W+of|over|rather\W+than|for)\W+(?:any|all|every|each)\b)"
        r"|" + _TAKE + r"this(?:\W+(?:tool|function))?\W+first\W+(?:for|on|in)\W+(?:any|all|every|each)\b"
        r"|"
        + _TAKE
        + _THIS
        + _UP_TO_SIX
        + r"(?:before|instead\W+of|over|rather\W+than)\W+(?:using\W+|calling\W+)?"
        + _REST
        + r"|\bbefore\W+"
        + _TAKE
        + r"(?:any|all|every|each)\W+(?:other\W+)?(?:tool|function)s?\b"
        r"|\b(?:priority|precedence|preferred|supersedes?|replaces?)"
        + _UP_TO_SIX
        + _REST
        + r"|\bnever\W+"
        + _TAKE
        + r"(?:any\W+|the\W+)?other\W+(?:tool|function)"
        r"|\bdo\W+not\W+" + _TAKE + r"(?:any|the)\W+other\W+(?:tool|function)"
        r"|\bno\W+matter\W+what\W+the\W+(?:user|request|question|query)\b",
    ),
    "asks to keep something from the user": (
        ("the user", "the human", "the end user", "the end-user"),
        r"\b(?:do\W+not|don['’]?t|never|must\W+not|should\W+not|avoid|without)\W+(?:ever\W+)?"
        r"(?:tell|inform|mention|reveal|disclos|notify|alert|let|warn|show|explain|report|say|hint)\w*\b"
        r"(?:\W+\w+){0,5}?\W+the\W+(?:end\W+|human\W+)?(?:user|human)s?\b"
        r"(?!\W+(?:for|to|id|name|interface|input)\b)"
        r"|\b(?:hide|conceal|keep)\W+(?:this|it|that)\W+(?:secret\W+|hidden\W+)?from\W+the\W+(?:user|human)",
    ),
    "asks for secrets or for the conversation": (
        (".ssh", "id_rsa", "id_ed25519", ".aws", ".env", "/etc/", "conversation", "chat", "system prompt", "mcp.json"),
        r"\b(?:read|send|upload|pass|post|include|attach|forward|append|copy|put|leak|exfiltrate|cat|provide)\b"
        r"[^!?\n]{0,80}?(?:~/\.ssh|\.ssh/|\bid_rsa\b|\bid_ed25519\b|\.aws/credentials|/etc/(?:passwd|shadow)|\bmcp\.json\b"
        r"|(?:contents?|values?|text)\W+of\W+(?:the\W+|your\W+|a\W+)?\.env\b"
        r"|(?:entire|whole|full|complete|all\W+previous|your)\W+(?:conversation|chat)(?:\W+history)?\W+"
        r"(?:to|in|into|as|with|so)\b|\byour\W+system\W+prompt)",
    ),
    "imitates the model's own frame": (
        ("<important", "<system", "<secret", "<hidden", "<critical", "<|im_", "[inst]", "<<sys", "<admin"),
        r"<(?:important|system|secret|hidden|critical|admin|system[_ -]?(?:prompt|message|reminder|instructions?))"
        r"(?:\s[^<>]{0,60})?>|<\|im_(?:start|end)\|>|\[/?inst\]|<</?sys>>",
    ),
    "gives the model another role": (
        ("you are now", "new instructions", "from now on"),
        r"\byou\W+are\W+now\W+(?:an?|in|the|my)\b|\b(?:your\W+)?new\W+instructions\W*:|\bfrom\W+now\W+on\W*,?\W*you\b",
    ),
}
_Order = tuple[str, tuple[str, ...], re.Pattern[str]]  # what it does, words one of which it holds, its form
_COMPILED: Final[list[_Order]] = [
    (message, cues, re.compile(pattern, re.IGNORECASE)) for message, (cues, pattern) in _ORDERS.items()
]


def _cued(lowered: str) -> list[_Order]:
    """The orders that a text may hold, at a glance."""
    return [order for order in _COMPILED if any(map(lowered.__contains__, order[1]))]


def _given(text: str, orders: Sequence[_Order]) -> Iterator[str]:
    """What in a text is addressed to the model that reads it."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", sanitise(text))
    lowered = plain.lower()
    for message, cues, pattern in orders:
        if any(map(lowered.__contains__, cues)) and (match := pattern.search(plain)):
            yield f"{message}: “{_quoted(match[0])}”"


def _quoted(text: str) -> str:
    line = " ".join(sanitise(text).split())
    return line if len(line) <= 80 else line[:79] + "…"


# --- characters that nobody sees --------------------------------------------------------------------------------------

_CONTROLS: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_BIDI: Final = "\u202a-\u202e\u2066-\u2069"
_MARKS: Final = "\u200e\u200f\u061c"
_ZERO: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
)
_JOINERS: Final = "\u200c\u200d"
_VARIANTS: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS: Final = "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
_UNSEEN: Final = re.compile(f"[{_CONTROLS}{_BIDI}{_MARKS}{_ZERO}{_JOINERS}{_VARIANTS}{_TAGS}]+")
_FLAG: Final = re.compile("(?<=\U0001f3f4)[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f")
_OVERRIDES: Final = frozenset("\u202d\u202e")


def sanitise(text: str) -> str:
    """The text as a person sees it: without control codes and without characters that show nothing and join nothing.

    Emoji, and what Arabic, Hebrew, Indic, Mongolian and other scripts need between their letters, stay.
    """
    if not _UNSEEN.search(text):
        return text
    kept, start = [], 0
    for span in _unseen(text):
        kept.append(text[start : span.start()])
        start = span.end()
    return "".join(kept) + text[start:]


def spelled_out(text: str) -> str:
    """The text for a person who has to judge it: what nobody would see stands there as `<U+200B>`."""
    return _UNSEEN.sub(lambda run: "".join(f"<U+{ord(letter):04X}>" for letter in run[0]), text)


def _hidden(text: str) -> Iterator[str]:
    """One sentence on each sort of characters in a text that nobody sees."""
    sorts: dict[str, int] = {}
    for span in _unseen(text) if not (text.isascii() and text.isprintable()) else ():
        for letter in span[0]:
            sort = _sort(letter)
            sorts[sort] = sorts.get(sort, 0) + 1
    for sort, count in sorts.items():
        spelled = bytes(ord(letter) - 0xE0000 for letter in text if 0xE0020 <= ord(letter) < 0xE007F).decode("ascii")
        spells = f", which spell “{_quoted(spelled)}”" if sort == "tag characters" and spelled else ""
        yield f"{count} {sort}{spells}"


def _sort(letter: str) -> str:
    code = ord(letter)
    if code < 0xA0:
        return "control codes"
    if 0xE0000 <= code <= 0xE00FF:
        return "tag characters"
    if 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:
        return "variation selectors"
    if 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069 or letter in "\u200e\u200f\u061c":
        return "characters that turn the direction of text"
    return "characters of no width"


def _unseen(text: str) -> Iterator[re.Match[str]]:
    """The runs of characters that show nothing, and that no script or emoji needs where they stand."""
    for run in _UNSEEN.finditer(text):
        if not _needed(run, text):
            yield run


def _needed(run: re.Match[str], text: str) -> bool:
    """Whether the run belongs to the writing around it."""
    letters = run[0]
    before = text[run.start() - 1] if run.start() else ""
    after = text[run.end() : run.end() + 1]
    foreign = not before.isascii() and not after.isascii()  # neither is ASCII; an end of the text counts as ASCII
    if letters == "\ufeff" and not before:
        return True
    if letters in ("\u200b", "\u200c", "\u200d"):
        return foreign and not (_latin(before) or _latin(after))
    if letters in ("\ufe0f", "\ufe0e"):  # after a sign that is also an emoji
        return bool(before) and not before.isalpha() and not before.isspace()
    if letters == "\ufe0f\u200d":
        return foreign and not before.isalpha()
    if len(letters) == 1 and "\U000e0100" <= letters <= "\U000e01ef":
        return "\u3400" <= before <= "\u9fff" or before >= "\U00020000"
    if len(letters) == 1 and "\u180b" <= letters <= "\u180f":
        return "\u1800" <= before <= "\u18af"
    if all(letter in "\u200e\u200f\u061c\u202a\u202b\u202c\u2066\u2067\u2068\u2069" for letter in letters):
        return len(letters) <= 2 and _right_to_left(text)
    return bool(_FLAG.fullmatch(text, run.start(), run.end()))


def _latin(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith("LATIN")


def _right_to_left(text: str) -> bool:
    return any(letter.isalpha() and unicodedata.bidirectional(letter) in ("R", "AL") for letter in text)


# --- letters that look like others ------------------------------------------------------------------------------------

_LIKE: Final = dict(
    zip(
        "авеіјкмнорсѕтухһԁԛԝԍӏʟАВЕІЈКМНОРСЅТУХΑΒΕΖΗΙΚΜΝΟΡΤΥΧανοικρυɑɡı",
        "abeijkmhopcstyxhdqwglLABEIJKMHOPCSTYXABEZHIKMNOPTYXavoikpuagi",
        strict=True,
    )
)
_WORD: Final = re.compile(r"[^\W\d_]+")


def _look_alike(tool: Tool) -> str | None:
    """What is wrong with a name whose letters are not what they seem: mixed scripts, or foreign letters that spell."""
    for word in _WORD.findall(tool.name):
        if word.isascii():
            continue
        scripts = {_script(letter) for letter in word}
        plain = unicodedata.normalize("NFKC", word)
        if plain != word and plain.isascii():
            return f"“{_quoted(word)}” is written in other forms of the letters of “{plain}”"
        if "LATIN" in scripts and scripts & {"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"}:
            return f"“{_quoted(word)}” mixes letters of {' and '.join(sorted(scripts))}"
        around = _scripts(tool.description[:1000])
        if all(letter in _LIKE for letter in word) and "LATIN" in around and not scripts & around:
            return f"“{_quoted(word)}” looks like “{''.join(map(_LIKE.__getitem__, word))}” in other letters"
    return None


def _scripts(text: str) -> set[str]:
    return {_script(letter) for letter in set(text) if letter.isalpha()}


@functools.lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
