"""Joins single requests of a dataset into compound requests, in many ways, with the place of every part.

There are three editions with ways of their own: `fit` (train requests; `fit_steps.py` learns from them), `dev` (dev
requests, for choosing) and `test` (test requests, for the figures that are reported). A part keeps its words; inside a
sentence it loses its full stop and its first capital, as in people's writing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from toolscout.dataset import Dataset

EDITIONS = {"fit": "train", "dev": "dev", "test": "test"}
SETS = ("hammerbench", "metatool", "bfcl", "seal_tools_in")
PARTS = (2, 3, 4)
PER_SET = 300

Way = Callable[[Sequence[str]], list[str]]


class Joined(NamedTuple):
    """A compound request.

    Attributes:
        text: the request.
        spans: where each part starts and ends in it.
        parts: ids of the requests that it was joined from.
        way: name of the way of joining.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    parts: tuple[str, ...]
    way: str


def strip_end(text: str) -> str:
    """Return a part without its final marks."""
    return re.sub(r"[\s.!?;:]+$", "", text)


def lower_start(text: str) -> str:
    """Return a part for the middle of a sentence: no final mark, and no capital that only began a sentence."""
    text = strip_end(text)
    word = re.match(r"\w+", text)
    keeps = not word or word[0] in ("I", "A") or word[0].isupper() or any(letter.isupper() for letter in word[0][1:])
    return text if keeps else text[:1].lower() + text[1:]


def end_sentence(text: str) -> str:
    """Return a part that ends with a mark."""
    text = text.strip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


def drop_marks(text: str) -> str:
    """Return a part for the middle of a sentence, without any marks."""
    return re.sub(r"[,;:.?!](?=\s)", "", lower_start(text))


def end_lowered(text: str) -> str:
    """Return a part without its first capital, as the end of a sentence."""
    return lower_start(text) + "."


def between(
    start: str,
    glue: str,
    last: str | None = None,
    end: str = "",
    shape: Callable[[str], str] = lower_start,
    first: Callable[[str], str] | None = None,
) -> Way:
    """Return a way that puts `glue` between parts (`last` before the last), `start` before and `end` after them."""

    def join(parts: Sequence[str]) -> list[str]:
        chunks = [start]
        for number, part in enumerate(parts):
            if number:
                chunks.append(glue if last is None or number < len(parts) - 1 else last)
            chunks.append((first or shape)(part) if number == 0 else shape(part))
        return [*chunks, end]

    return join


def marked(start: str, marks: Sequence[str], glue: str, end: str = "", shape: Callable[[str], str] = strip_end) -> Way:
    """Return a way that puts a mark before each part: a list, or words such as First and Then."""

    def join(parts: Sequence[str]) -> list[str]:
        chunks = [start + marks[0]]
        for number, part in enumerate(parts):
            if number:
                chunks.append(glue + marks[min(number, len(marks) - 1)])
            chunks.append(shape(part))
        return [*chunks, end]

    return join


def ordinals(text: str) -> list[str]:
    """Return `text` with # as 1 to 4, or as a to d for @."""
    return [text.replace("#", str(n)).replace("@", "abcd"[n - 1]) for n in range(1, 5)]


WAYS: Mapping[str, Mapping[str, Way]] = {
    "fit": {
        "sentences-next": between("", " Next, ", shape=end_lowered, first=end_sentence),
        "and": between("", ", ", " and ", first=strip_end),
        "oxford": between("", ", ", ", and ", ".", first=strip_end),
        "comma-then": between("", ", then ", first=strip_end),
        "then-sentences": marked("", ("", "Then "), " ", shape=end_lowered),
        "numbers": marked("", ordinals("#. "), "\n"),
        "numbers-inline": marked("", ordinals("#. "), " "),
        "dashes": marked("", ("- ",), "\n"),
        "semicolons": between("", "; ", first=strip_end),
        "first-then": marked("First ", ("", "then ", "finally "), ", ", ".", shape=lower_start),
        "also-sentences": marked("", ("", "Also, "), " ", shape=end_lowered),
        "please": marked("Please ", ("", "also "), " and ", shape=lower_start),
        "commas": between("", ", ", first=strip_end),
        "ampersand": between("", " & ", first=strip_end),
        "plus": between("", ", plus ", first=strip_end),
        "lines": between("", "\n", shape=strip_end),
        "once-done": marked("", ("", "Once that's done, "), " ", shape=end_lowered),
        "as-well-as": between("", " as well as ", first=strip_end),
        "as-they-are": between("", " ", shape=end_sentence),
        "bare-sentences": between("Hello, ", ". ", end=".", shape=strip_end),
        "also-want": between("", ". I also need this: ", end=".", shape=lower_start, first=strip_end),
        "todo": marked("Todo: ", ordinals("#) "), ", ", shape=lower_start),
        "arrow": between("", " -> ", shape=lower_start),
        "hyphen": between("", " - ", first=strip_end),
        "slashes": between("", " / ", shape=strip_end),
        "and-sentences": marked("", ("", "And "), " ", shape=end_sentence),
        "heading": marked("Here is what I need:\n", ("",), "\n", "\nThanks a lot!"),
        "greeting": between("Hey there! ", " ", end=" Thank you.", shape=end_sentence),
        "heading-inline": between("Please do the following: ", ", ", ", and "),
        "task-words": marked("", ordinals("Task #: "), " ", shape=strip_end),
        "no-marks": between("", " then ", shape=lower_start),
        "apart-from-that": marked("", ("", "Apart from that, ", "On another note, "), " ", shape=end_sentence),
        "when-finished": between("", "; when you have finished, ", end=".", first=strip_end),
        "reasons": marked(
            "I have a busy week. ",
            ("", "My friend arrives soon, so ", "I nearly forgot: ", "It has to be ready by tonight as well, namely "),
            " ",
            shape=end_lowered,
        ),
        "question-and-order": marked("", ("", "If not, ", "Whatever the answer, "), " ", shape=end_lowered),
        "brackets": between("", " (and also ", end=")", first=strip_end),
        "and-without-marks": between("", " and ", shape=drop_marks),
        "small-sentences": between("", ". ", end=".", shape=lower_start),
        "questions": between("", "? ", end="?", shape=lower_start, first=strip_end),
        "dots": between("", "... ", shape=lower_start),
        "plus-marks": between("", " + ", first=strip_end),
        "square-numbers": marked("", ordinals("[#] "), " "),
        "wishes": marked("", ("My first wish: ", "The next one: ", "One more: ", "And the last: "), " "),
        "leads": marked(
            "", ("", "Besides all of this, ", "When this is over, ", "At the same time, "), " ", "", end_lowered
        ),
        "lead-and-request": marked(
            "", ("", "On the side, could you ", "And if you can, please "), " ", "", end_lowered
        ),
        "postscript": marked("", ("", "PS, "), " ", "", end_lowered),
        "as-well-as-sentences": between("", ", as well as ", end=".", first=strip_end),
        "neighbour": marked("", ("", "My neighbour keeps asking: ", "Something different now: "), " ", "", end_lowered),
        "provided": marked("", ("", "Provided this goes well, ", "Shortly before lunch, "), " ", "", end_lowered),
        "evening": marked(
            "",
            ("To kick things off, ", "In the second place, ", "Along the same lines, ", "As a closing act, "),
            " ",
            shape=end_lowered,
        ),
        "whereupon": between("", ", whereupon ", end=".", first=strip_end),
        "together-with": between("", "; together with this: ", first=strip_end),
        "arrows": marked("", ("➤ ",), " ", shape=strip_end),
        "circled": marked("", ("① ", "② ", "③ ", "④ "), " ", shape=lower_start),
        "broken-bars": between("", " ¦ ", shape=lower_start),
        "letters-with-dots": marked("", ordinals("@. "), "\n", shape=strip_end),
        "equals": between("", "\n===\n", shape=lower_start),
    },
    "dev": {
        "next-lastly": marked(
            "Hi! ", ("", "Next, ", "Lastly, "), " ", " Thanks!", lambda part: lower_start(part) + "."
        ),
        "round-numbers": marked("", ordinals("(#) "), " "),
        "and-after-that": between("", ", and after that ", end=".", first=strip_end),
        "stars": marked("", ("* ",), "\n"),
        "besides": marked("", ("", "Besides, "), " ", shape=end_lowered),
        "heading-lines": between("To do today:\n", "\n", shape=strip_end),
        "comma-also": between("", ", also ", first=strip_end),
        "dashed": between("", " -- ", first=strip_end),
        "steps": marked("", ordinals("Step #: "), " ", shape=end_sentence),
        "and-also": between("Could you please ", " and also ", end="?"),
        "sentences-and": between("", ". And ", end=".", first=strip_end),
        "later": marked("", ("", "Later "), " ", shape=end_lowered),
    },
    "test": {
        "plain-sentences": between("", ". ", end=".", shape=strip_end),
        "and-then": between("", ", ", " and then ", ".", first=strip_end),
        "additionally": marked("", ("", "Additionally, "), " ", shape=end_lowered),
        "letters": marked("", ordinals("@) "), " "),
        "bullets": marked("My list for this week:\n", ("• ",), "\n"),
        "and-throughout": between("", " and ", first=strip_end),
        "secondly": marked(
            "A few things. ",
            ("", "Secondly, ", "And thirdly, ", "Last, "),
            " ",
            shape=end_lowered,
        ),
        "long-dashes": between("", " – ", first=strip_end),
        "semicolon-and": between("", "; ", "; and ", ".", first=strip_end),
        "bars": between("", " | ", shape=strip_end),
        "comma-plus": between("", ", ", ", plus ", "?", first=strip_end),
        "number-lines": marked("Help me with these:\n", ordinals("#) "), "\n", "\nThank you."),
        "one-more-thing": marked("", ("", "One more thing: "), " ", shape=end_lowered),
        "while-at-it": between("", ", and while you're at it, ", first=strip_end),
        "paragraphs": between("", "\n\n", shape=end_sentence),
        "afterwards": between("I'd like you to do this: ", "; afterwards, ", end="."),
    },
}


def join_parts(parts: Sequence[str], way: Way) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the compound text and the place of each part in it."""
    text, spans = "", []
    for number, chunk in enumerate(way(parts)):
        start = len(text)
        text += chunk
        if number % 2:
            spans.append((start, len(text)))
    return text, tuple(spans)


def build_joined(dataset: Dataset, edition: str, count: int, seed: int = 0) -> list[Joined]:
    """Return compound requests of two to four parts, each part a request with one gold tool of its own.

    Args:
        dataset: where the parts come from.
        edition: fit, dev or test.
        count: how many, in equal shares of 2, 3 and 4 parts.
        seed: of the draw.
    """
    split = EDITIONS[edition]
    qrels, texts = dataset.split(split), dataset.texts(split)
    single = {query: next(iter(gold)) for query, gold in qrels.items() if len(gold) == 1}
    queries, draw = sorted(single), random.Random(f"{seed} {dataset.name} {edition}")
    ways = WAYS[edition]
    names = list(ways)
    joined = []
    for number in range(count):
        size = PARTS[number % len(PARTS)]
        parts: list[str] = []
        while len(parts) < size:
            query = draw.choice(queries)
            if query not in parts and single[query] not in {single[part] for part in parts}:
                parts.append(query)
        name = names[(number // len(PARTS)) % len(names)]
        text, spans = join_parts([texts[part] for part in parts], ways[name])
        joined.append(Joined(text, spans, tuple(parts), name))
    return joined
