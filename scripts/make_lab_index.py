"""Writes benchmarks/LAB-index.md, the index of the lab diary: its entries by date, by method and by subject.

    python scripts/make_lab_index.py [--check]

An entry belongs to a method if its title names it, or its text names it three times or more. With `--check` nothing is
written, and the exit code is 1 if the index is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DIARY = ROOT / "benchmarks" / "LAB.md"
INDEX = ROOT / "benchmarks" / "LAB-index.md"
MIN_MENTIONS = 3
METHODS = {
    "bm25": r"bm25(?!s)|BM25(?!s)",
    "dense, the bundled encoder": r"`dense`|bundled encoder|static encoder",
    "hybrid": r"`hybrid(?:-minilm)?`|rrf",
    "dpr": r"`(?:hybrid-)?dpr[\w-]*`",
    "tool2vec": r"`?tool2vec[\w-]*`?",
    "mlc": r"`mlc[\w-]*`",
    "toolrefiner": r"[Tt]ool[Rr]efiner[\w-]*|the refiner",
    "colt": r"\bcolt[\w-]*|COLT",
    "neighbours": r"`neighbours[\w-]*`",
    "masstool": r"[Mm]ass[Tt]ool[\w-]*",
    "crossencoder": r"`?crossencoder[\w-]*`?|cross-encoder",
    "toolrerank": r"[Tt]ool[Rr]erank[\w-]*",
    "feedback": r"`feedback[\w-]*`",
    "abstention": r"no_tool|\bneeds? no tool|turned away|\bAUROC\b",
    "learning from traffic": r"`learn`|promot\w+|traffic",
    "hostile tools": r"hostile|stuff(?:ing|ed)",
    "service and speed": r"the service|requests a second|p50",
}


class Entry(NamedTuple):
    """One entry of the diary; `number` counts from the newest."""

    number: int
    title: str
    text: str

    @property
    def anchor(self) -> str:
        """The anchor that git hosts give the heading."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def read_entries(diary: str) -> Iterator[Entry]:
    """The entries of a diary, newest first. Headings inside a quotation or a code block are none."""
    text = re.sub(r"^```.*?^```$", lambda block: re.sub("^## ", "", block[0], flags=re.M), diary, flags=re.S | re.M)
    for number, part in enumerate(re.split(r"^## ", text, flags=re.M)[1:], 1):
        title, _, body = part.partition("\n")
        yield Entry(number, title, body)


def write_index(diary: str) -> str:
    """The page for a diary."""
    entries = list(read_entries(diary))
    lines = ["# Index of the lab diary", "", "`python scripts/make_lab_index.py` writes this page from the headings of"]
    lines += [
        "[LAB.md](LAB.md). An entry stands under a method that its title names, or its text names three times.",
        "",
    ]
    lines += [
        "## By date",
        "",
        *(f"* [{entry.title}][{entry.number}]" for entry in entries),
        "",
        "## By method and subject",
    ]
    for name, pattern in METHODS.items():
        belonging = [
            entry
            for entry in entries
            if re.search(pattern, entry.title) or len(re.findall(pattern, entry.text)) >= MIN_MENTIONS
        ]
        lines += (
            ["", f"### {name}", "", *(f"* [{entry.title}][{entry.number}]" for entry in belonging)] if belonging else []
        )
    lines += ["", *(f"[{entry.number}]: LAB.md#{entry.anchor}" for entry in entries)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the index, or check that it is up to date."""
    index = write_index(DIARY.read_text())
    if "--check" not in sys.argv:
        INDEX.write_text(index)
    elif not INDEX.exists() or INDEX.read_text() != index:
        sys.exit("benchmarks/LAB-index.md is out of date. Run  python scripts/make_lab_index.py")


if __name__ == "__main__":
    main()
