"""Collects the words of all tools of a snapshot, by which copies and duplicates are found, and stores them with it.

The words of tools that have not changed are taken over from the snapshot before.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Array
from toolscout.encoders import split_identifiers
from toolscout.home.catalogue.snapshot import Catalogue
from toolscout.home.catalogue.snapshot_files import EarlierSnapshot, SnapshotPart
from toolscout.indexes.strings import Strings
from toolscout.indexes.words import tokenize
from toolscout.search.relations.word_sets import WordSets, WordSetsBuilder
from toolscout.types import Tool, parameter_names
from toolscout.vocabulary import read_pairs

__all__ = ["ToolWords", "read_tool_words"]

TOOL_WORDS_FORMAT: Final = "tool words/2"  # raise it whenever the words of an unchanged tool change
MAX_COMPARED_CHARS: Final = 4_000  # of each description
SAME_PARAMETERS: Final = {
    other: name for name, others in read_pairs("duplicates.same_parameters").items() for other in others.split()
}
SETS: Final = ("compared", "texts", "source_mentions", "names", "parameters", "required")


class ToolWords:
    """Sets of words of each tool, in the order of the ids.

    Attributes:
        numbers: word → its number in all sets; the numbers follow the alphabet.
        compared: words of the description, without numerals: a flood of tools may differ in these alone ("task 17").
        texts: words of the description, without the name of the tool's own source.
        source_mentions: words of that name, where a sentence mentions it ("in HubSpot"), and not in an address
            (`@acme/hubspot`).
        names: words of the name.
        parameters: names of the outermost parameters, each replaced by the usual one of its synonyms.
        required: the same for required parameters only.
    """

    def __init__(self, words: Iterable[str], sets: Mapping[str, WordSets]) -> None:
        """Take the words in the order of their numbers, and the sets of all tools for each name of `SETS`."""
        self.numbers = {word: number for number, word in enumerate(words)}
        self.compared, self.texts, self.source_mentions = sets["compared"], sets["texts"], sets["source_mentions"]
        self.names, self.parameters, self.required = sets["names"], sets["parameters"], sets["required"]


def read_tool_words(catalogue: Catalogue) -> ToolWords:
    """Return the words of the tools of a snapshot."""

    def load() -> ToolWords:
        part = catalogue.load_part(TOOL_WORDS_FORMAT, lambda: (_collect_words(catalogue), {}))
        return ToolWords(Strings.from_arrays(part.arrays, "words"), _open_sets(part))

    return catalogue.share(TOOL_WORDS_FORMAT, load)


def _open_sets(part: SnapshotPart) -> dict[str, WordSets]:
    """Return the sets that `_collect_words` stored, by the names of `SETS`."""
    return {name: WordSets(part.arrays[f"{name}.words"], part.arrays[f"{name}.ends"]) for name in SETS}


def _collect_words(catalogue: Catalogue) -> dict[str, Array]:
    """Read the words of new and changed tools, and join them with those of the snapshot before.

    Returns:
        The words in alphabetical order, and two arrays for each name of `SETS`; see `_open_sets`.
    """
    earlier = catalogue.open_earlier(TOOL_WORDS_FORMAT)
    numbers: dict[str, int] = {}  # word → its number, in the order in which words are met
    builders = {name: WordSetsBuilder(numbers) for name in SETS}
    source_patterns: dict[str, re.Pattern[str]] = {}  # cache for `_add_words`
    new_positions = None if earlier is None else earlier[0].new_positions  # None: all tools are new
    for tool in itertools.chain.from_iterable(catalogue.batches(new_positions)):
        _add_words(builders, tool, source_patterns)
    sets = {name: builder.build() for name, builder in builders.items()}
    words = list(numbers)
    if earlier is not None:
        snapshot, part = earlier
        words, sets = _join_sets(snapshot, part, words, sets)
    alphabetical = sorted(range(len(words)), key=words.__getitem__)
    ranks = np.empty(len(words), dtype=np.int32)  # by number: place of the word in the alphabet
    ranks[alphabetical] = np.arange(len(words), dtype=np.int32)
    arrays: dict[str, Array] = dict(Strings.of(words[number] for number in alphabetical).arrays("words"))
    for name, table in sets.items():
        ordered = table.renumber(ranks)
        arrays |= {f"{name}.words": ordered.words, f"{name}.ends": ordered.ends}
    return arrays


def _add_words(
    builders: Mapping[str, WordSetsBuilder], tool: Tool, source_patterns: dict[str, re.Pattern[str]]
) -> None:
    """Add the words of the next tool to the builder of each set of `SETS`. `source_patterns` is a cache."""
    pattern = source_patterns.get(tool.source)
    if pattern is None:
        pattern = source_patterns[tool.source] = _compile_name(tool.source)
    description = tool.description[:MAX_COMPARED_CHARS]
    words = text_words = tokenize(description)
    mentions: set[str] = set()
    without_source = pattern.sub(" ", description)
    if without_source != description:
        text_words = tokenize(without_source)
        without_addresses = pattern.sub(_drop_address, description)
        if without_addresses != without_source:  # a sentence mentions the name of the source
            mentions = set(tokenize(without_addresses)).difference(text_words)
    builders["compared"].add(word for word in words if not word.isdecimal())
    builders["texts"].add(text_words)
    builders["source_mentions"].add(mentions)
    builders["names"].add(tokenize(split_identifiers(tool.name)))
    builders["parameters"].add(_name_parameters(parameter_names(tool.parameters, 1)))
    builders["required"].add(_name_parameters(_list_required(tool)))


def _join_sets(
    earlier: EarlierSnapshot, part: SnapshotPart, words: Sequence[str], sets: Mapping[str, WordSets]
) -> tuple[list[str], dict[str, WordSets]]:
    """Join the sets of unchanged tools, in a part of the earlier snapshot, with the sets of the other tools.

    The words, given and returned, are in the order of their numbers. The returned sets are in the order of the ids.
    Words that no tool has any more are left out.
    """
    kept_before = earlier.positions[earlier.kept_positions]
    kept_sets = {name: table.take(kept_before) for name, table in _open_sets(part).items()}
    earlier_words = Strings.from_arrays(part.arrays, "words")
    is_used = np.zeros(len(earlier_words), dtype=np.bool_)
    for table in kept_sets.values():
        is_used[table.words] = True
    new_numbers = np.full(len(earlier_words), -1, dtype=np.int32)  # by earlier number; -1: no tool has the word
    numbers = {word: number for number, word in enumerate(words)}
    for earlier_number in np.flatnonzero(is_used).tolist():
        new_numbers[earlier_number] = numbers.setdefault(earlier_words[earlier_number], len(numbers))
    # The joined sets have the kept tools first and then the new ones. `order` brings them into the order of the ids.
    order = np.argsort(np.concatenate([earlier.kept_positions, earlier.new_positions]))
    joined = {name: WordSets.join([kept_sets[name].renumber(new_numbers), sets[name]]) for name in SETS}
    return list(numbers), {name: table.take(order) for name, table in joined.items()}


def _compile_name(source: str) -> re.Pattern[str]:
    """Return a pattern for the name of a source, whatever punctuation or spaces join its words in a text."""
    words = re.findall(r"[^\W_]+", source)
    never = r"(?!)"  # the pattern for a name without words: it matches nothing
    return re.compile(r"[\W_]+".join(words) or never, re.IGNORECASE)


def _drop_address(match: re.Match[str]) -> str:
    """Return the match of a source's name as it is, or a space if it is part of an address: `@acme/hubspot`."""
    name, text_before = match[0], match.string[: match.start()]
    is_in_address = text_before.endswith(("@", "/")) or any(mark in name for mark in "/_-")
    return " " if is_in_address else name


def _name_parameters(names: Iterable[str]) -> frozenset[str]:
    """Normalise names of parameters: lower case, no punctuation, and synonyms replaced (`SAME_PARAMETERS`)."""
    plain = (re.sub(r"[\W_]+", "", str(name)).casefold() for name in names)
    return frozenset(SAME_PARAMETERS.get(name, name) for name in plain)


def _list_required(tool: Tool) -> Sequence[str]:
    """Return the names of the parameters that a tool requires."""
    required = (tool.parameters or {}).get("required")
    return required if isinstance(required, list) else ()
