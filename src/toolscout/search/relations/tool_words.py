"""Collects the words of all tools of a snapshot, by which copies and duplicates are found, and stores them with it.

The words of tools that have not changed are taken over from the snapshot before.
"""

from __future__ import annotations

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
        self.compared, self.texts, self.source_mentions = (sets[name] for name in SETS[:3])
        self.names, self.parameters, self.required = (sets[name] for name in SETS[3:])


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
    source_names: dict[str, re.Pattern[str]] = {}
    for batch in catalogue.batches(earlier[0].new_positions if earlier else None):
        for tool in batch:
            _add_words(builders, tool, source_names)
    sets = {name: builder.build() for name, builder in builders.items()}
    words = list(numbers)
    if earlier:
        words, sets = _join_sets(*earlier, words, sets)
    ascending = sorted(range(len(words)), key=words.__getitem__)
    ranks = np.empty(len(words), dtype=np.int32)
    ranks[ascending] = np.arange(len(words), dtype=np.int32)
    arrays: dict[str, Array] = dict(Strings.of(words[number] for number in ascending).arrays("words"))
    for name, table in sets.items():
        ordered = table.renumber(ranks)
        arrays |= {f"{name}.words": ordered.words, f"{name}.ends": ordered.ends}
    return arrays


def _add_words(builders: Mapping[str, WordSetsBuilder], tool: Tool, source_names: dict[str, re.Pattern[str]]) -> None:
    """Add the words of the next tool to the builder of each set.

    Args:
        builders: by the names of `SETS`.
        tool: the tool.
        source_names: cache: source → pattern for its name.
    """
    source = tool.source
    pattern = source_names.get(source)
    if pattern is None:
        pattern = source_names[source] = _compile_name(source)
    description = tool.description[:MAX_COMPARED_CHARS]
    without_source = pattern.sub(" ", description)
    has_name = without_source != description
    words = tokenize(description)
    builders["compared"].add(word for word in words if not word.isdecimal())
    texts = tokenize(without_source) if has_name else words
    builders["texts"].add(texts)
    # The description without the name in addresses. It equals `without_source` if no sentence mentions the name.
    with_mentions = pattern.sub(_drop_address, description) if has_name else without_source
    builders["source_mentions"].add(set() if with_mentions == without_source else {*tokenize(with_mentions)} - {*texts})
    builders["names"].add(tokenize(split_identifiers(tool.name)))
    builders["parameters"].add(_name_parameters(parameter_names(tool.parameters, 1)))
    builders["required"].add(_name_parameters(_list_required(tool)))


def _join_sets(
    earlier: EarlierSnapshot, part: SnapshotPart, words: Sequence[str], sets: Mapping[str, WordSets]
) -> tuple[list[str], dict[str, WordSets]]:
    """Join the sets of unchanged tools with the sets of the others. Words that no tool has any more are left out.

    Args:
        earlier: the snapshot before.
        part: its words and sets.
        words: words of the new and changed tools, in the order of their numbers.
        sets: sets of these tools.

    Returns:
        The words of all tools in the order of their numbers, and the sets of all tools in the order of the ids.
    """
    before = {name: table.take(earlier.positions[earlier.kept_positions]) for name, table in _open_sets(part).items()}
    earlier_words = Strings.from_arrays(part.arrays, "words")
    is_used = np.zeros(len(earlier_words), dtype=np.bool_)
    for table in before.values():
        is_used[table.words] = True
    new_numbers = np.full(len(earlier_words), -1, dtype=np.int32)  # by earlier number; -1: no tool has the word
    numbers = {word: number for number, word in enumerate(words)}
    for earlier_number in np.flatnonzero(is_used).tolist():
        new_numbers[earlier_number] = numbers.setdefault(earlier_words[earlier_number], len(numbers))
    # Joined are first the kept tools, then the new ones. The inverse permutation brings them into the order of the ids.
    order = np.argsort(np.concatenate([earlier.kept_positions, earlier.new_positions]))
    return list(numbers), {
        name: WordSets.join([before[name].renumber(new_numbers), sets[name]]).take(order) for name in SETS
    }


def _compile_name(source: str) -> re.Pattern[str]:
    """Return a pattern for the name of a source, however a text joins its words; it matches nothing for no words."""
    words = map(re.escape, re.findall(r"[^\W_]+", source))
    return re.compile(r"[\W_]+".join(words) or r"(?!)", re.IGNORECASE)


def _drop_address(match: re.Match[str]) -> str:
    """Return the match of a source's name as it is, or a space if it is part of an address: `@acme/hubspot`."""
    is_address = match.string[: match.start()].endswith(("@", "/")) or any(mark in match[0] for mark in "/_-")
    return " " if is_address else match[0]


def _name_parameters(names: Iterable[str]) -> frozenset[str]:
    """Normalise names of parameters: lower case, no punctuation, and synonyms replaced (`SAME_PARAMETERS`)."""
    plain = (re.sub(r"[\W_]+", "", str(name)).casefold() for name in names)
    return frozenset(SAME_PARAMETERS.get(name, name) for name in plain)


def _list_required(tool: Tool) -> Sequence[str]:
    """Return the names of the parameters that a tool requires."""
    required = (tool.parameters or {}).get("required")
    return required if isinstance(required, list) else ()
