"""Parses docstrings in Google, NumPy, Sphinx or epydoc style, or in none."""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap
from typing import Final, NamedTuple

import docstring_parser
from docstring_parser import DocstringStyle

__all__ = ["Doc", "find_examples", "find_signature_lines", "get_docstring", "read_docstring", "remove_addresses"]

MAX_DOCSTRING_CHARS: Final = 1_000
MAX_EXAMPLE_CHARS: Final = 2_000
SECTIONS: Final = (
    (re.compile(r"^ *(Parameters|Returns|Yields|See Also|Examples?) *\n *-{3,}", re.M), DocstringStyle.NUMPYDOC),
    (re.compile(r"^ *:(param|type|returns?|rtype|raises?)\b", re.M), DocstringStyle.REST),
    (re.compile(r"^ *(Args|Arguments|Parameters|Params|Returns|Yields|Raises):", re.M), DocstringStyle.GOOGLE),
    (re.compile(r"^ *@(param|type|returns?|rtype|raise)\b", re.M), DocstringStyle.EPYDOC),
)
#: `name(arguments)` with an optional result. One pattern for all names: compiling one each takes longer than to match.
_SIGNATURE_LINE: Final = re.compile(r"(?P<name>[\w.]+)\((?P<arguments>[^()\n]*)\)[ :]*(?:(?:->|=|--)[^\n]*)?(?:\n|$)")
_MEMORY_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_VERSION_NOTE: Final = re.compile(r"\.\. version(?:added|changed):: \S+ ?")
_ROLE: Final = re.compile(r":[a-z]+(?::[a-z]+)?:`~?\.?([^`<]+?)(?: *<[^`]*>)?`")


class Doc(NamedTuple):
    """The content of a docstring. `parameters` maps each name to its type as text and its description."""

    description: str
    parameters: dict[str, tuple[str, str]]
    returns: str


def get_docstring(function: object) -> str:
    """Return the docstring of a function or class without indentation, inherited if it has none. It may be empty."""
    try:
        text = inspect.getdoc(function)
    except Exception:
        return ""
    return text if isinstance(text, str) else ""


def read_docstring(text: str, names: set[str]) -> Doc:
    """Parse a docstring. `names` are the function names that signatures in its first lines may have."""
    text = _remove_signatures(text, names)
    style = next((style for pattern, style in SECTIONS if pattern.search(text)), None)
    if style is None:
        return Doc(_shorten(text), {}, "")
    try:
        parsed = docstring_parser.parse(text, style=style)
    except (docstring_parser.ParseError, ValueError, IndexError, AttributeError, TypeError):
        return Doc(_shorten(text), {}, "")
    parameters = {
        name.strip().lstrip("*"): (item.type_name or "", _to_plain_text(item.description or ""))
        for item in parsed.params
        for name in item.arg_name.split(",")
    }
    returns = parsed.returns
    words = (returns.type_name, returns.description) if returns else ()
    return Doc(
        _shorten("\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)),
        parameters,
        _to_plain_text(": ".join(word for word in words if word)),
    )


def find_examples(text: str) -> str:
    r"""Return the doctests (`>>>`) of a docstring: whole lines, up to 2,000 characters. Empty if it has none.

    Characters that cannot be printed are written as escapes, as in the source of a doctest such as `b'\x81'`.
    """
    if ">>>" not in text:
        return ""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        starts = line.lstrip().startswith(">>>")
        if starts and not inside and lines:
            lines.append("")
        inside = starts or (inside and bool(line.strip()))
        if inside:
            lines.append(line.rstrip())
    sizes = itertools.accumulate(len(line) + 1 for line in lines)
    kept = [line for line, size in zip(lines, sizes, strict=True) if size <= MAX_EXAMPLE_CHARS]
    return remove_addresses(_escape_unprintable(textwrap.dedent("\n".join(kept)).strip("\n")))


def _escape_unprintable(text: str) -> str:
    return "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in text
    )


def _remove_signatures(text: str, names: set[str]) -> str:
    """Remove the signatures at the beginning of a docstring, unless one continues as a sentence."""
    lines = find_signature_lines(text, names) if names else []
    rest = text[lines[-1].end() :] if lines else text
    return text if rest[:1] in ("", " ", "(") else rest.lstrip()


def _shorten(text: str) -> str:
    """Return the first paragraphs without doctests and directives: up to 1,000 characters, at least one."""
    paragraphs: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = _to_plain_text(paragraph)
        if not plain or plain.startswith((">>>", ".. ")):
            continue
        if paragraphs and sum(map(len, paragraphs)) + len(plain) > MAX_DOCSTRING_CHARS:
            break
        paragraphs.append(plain)
    return "\n".join(paragraphs)


def _to_plain_text(text: str) -> str:
    return remove_addresses(_ROLE.sub(r"\1", _VERSION_NOTE.sub("", " ".join(text.split()))).strip())


def remove_addresses(text: str) -> str:
    """Remove memory addresses from a text, because they differ between two runs."""
    return _MEMORY_ADDRESS.sub("", text)


def find_signature_lines(text: str, names: set[str]) -> list[re.Match[str]]:
    """Find the lines `name(arguments)` at the beginning of a docstring. The matches have a group `arguments`."""
    matches: list[re.Match[str]] = []
    while match := _SIGNATURE_LINE.match(text, matches[-1].end() if matches else 0):
        if not any(_ends_with_word(match["name"], name) for name in names):
            break
        matches.append(match)
    return matches


def _ends_with_word(dotted_name: str, name: str) -> bool:
    """Return whether a dotted name ends with a name, at the start of a word."""
    before = dotted_name[: -len(name)]
    return dotted_name.endswith(name) and (not before or before.endswith("."))
