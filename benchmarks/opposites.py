"""Measures whether the asked one of two opposite tools stands first: `add_label` or `remove_label`.

Ten lists. `dev` and `test` are the requests that people wrote (`suites/opposites.jsonl`); `more_dev` and `more_test`
are those of `suites/opposites_more.jsonl`, over other sets too and in four languages; `third_dev` and `third_test`
those of `suites/opposites_third.jsonl`; `fourth_test`, `fifth_test` and `sixth_test` those of
`suites/opposites_fourth.jsonl`, `suites/opposites_fifth.jsonl` and `suites/opposites_sixth.jsonl`. They name the aim in
other words than the tool's name. `described` is made by rule: of each other pair of toucan that
`suites/find_opposites.py` finds, each tool's first sentence is the request. In toucan the tools of the pair's server
are searched, elsewhere all tools of the set. `without` is `hybrid` without the order of opposites by their action.
`--splits dev` reads only the dev lists.

    python benchmarks/opposites.py [--data DIR] [--splits dev test …] [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.checks.results import write_json
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.search.pipeline import Pipeline, Stage
from toolscout.sources.folder import read_tools
from toolscout.types import Search, Tool
from toolscout_lab.machine import provenance
from toolscout_lab.resources import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parent / "suites"))
from find_opposites import CRAWLER_TEXT, find_pairs

RESULTS: Final = Path(__file__).resolve().parent / "results" / "opposites.json"
SUITES: Final = Path(__file__).resolve().parent / "suites"
SUITE: Final = SUITES / "opposites.jsonl"
MORE: Final = SUITES / "opposites_more.jsonl"
THIRD: Final = SUITES / "opposites_third.jsonl"
FOURTH: Final = SUITES / "opposites_fourth.jsonl"
FIFTH: Final = SUITES / "opposites_fifth.jsonl"
SIXTH: Final = SUITES / "opposites_sixth.jsonl"
SPLITS: Final = (
    *("dev", "described", "test", "more_dev", "more_test", "third_dev", "third_test", "fourth_test", "fifth_test"),
    "sixth_test",
)
FILES: Final = {"": SUITE, "more": MORE, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH, "sixth": SIXTH}
TOUCAN: Final = "tool_corpora/toucan"
SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")
MAX_HITS: Final = 10_000


class Request(NamedTuple):
    """A request for one of two opposite tools. The ids are those of the corpus."""

    text: str
    asked: str
    opposite: str
    dataset: str = TOUCAN
    language: str = "en"

    @property
    def catalogue(self) -> tuple[str, str]:
        """The dataset, and the server whose tools are searched: empty for all."""
        return self.dataset, self.asked.partition("/")[0] if self.dataset == TOUCAN else ""


def read_suite(split: str) -> Iterator[Request]:
    """Read the requests that people wrote."""
    prefix, _, part = split.rpartition("_")
    for row in FILES[prefix].read_text(encoding="utf-8").splitlines():
        line = msgspec.json.decode(row)
        if line["split"] == part:
            [opposite] = set(line["ids"]) - {line["asked"]}
            dataset, language = line.get("dataset", TOUCAN), line.get("language", "en")
            yield Request(line["query"], line["asked"], opposite, dataset, language)


def make_requests(servers: Mapping[str, Sequence[Tool]]) -> Iterator[Request]:
    """Make requests from descriptions: each tool's first sentence, of pairs that the suite lacks."""
    written = {frozenset(msgspec.json.decode(row)["ids"]) for row in SUITE.read_text(encoding="utf-8").splitlines()}
    for server in sorted(servers):
        rows = [{"_id": tool.id.partition("/")[2], "title": tool.name, "text": tool.description}
                for tool in servers[server] if not CRAWLER_TEXT.match(tool.description)]  # fmt: skip
        for _, one, other in find_pairs(rows):
            sentences = [SENTENCE_END.split(row["text"].strip())[0] for row in (one, other)]
            if frozenset((one["_id"], other["_id"])) in written or sentences[0] == sentences[1] or not all(sentences):
                continue
            yield Request(sentences[0], one["_id"], other["_id"])
            yield Request(sentences[1], other["_id"], one["_id"])


def measure(stage_of: Mapping[tuple[str, str], Stage], requests: Sequence[Request]) -> dict[str, Any]:
    """Return the shares of requests with the asked tool before its opposite, and first of all that are searched."""
    rows: list[tuple[str, bool, bool]] = []
    for request in requests:
        [search] = stage_of[request.catalogue]([Search(query=request.text, k=MAX_HITS)])
        ranks = {tool_id.partition("/")[2]: rank for rank, tool_id in enumerate(search.ids)}
        asked = ranks.get(request.asked, MAX_HITS)
        rows.append((request.language, asked < ranks.get(request.opposite, MAX_HITS), asked == 0))
    figures: dict[str, Any] = _summarise(rows)
    languages = sorted({language for language, _, _ in rows})
    if len(languages) > 1:
        figures["by_language"] = {name: _summarise([row for row in rows if row[0] == name]) for name in languages}
    return figures


def _summarise(rows: Sequence[tuple[str, bool, bool]]) -> dict[str, float]:
    before, first = (sum(row[place] for row in rows) / len(rows) for place in (1, 2))
    return {"n": len(rows), "before": round(before, 4), "first": round(first, 4)}


def read_catalogues(root: Path, datasets: Iterable[str]) -> dict[tuple[str, str], list[Tool]]:
    """Return the tools that are searched, by dataset and server."""
    catalogues: dict[tuple[str, str], list[Tool]] = defaultdict(list)
    for dataset in sorted(datasets):
        for tool in read_tools(root / dataset, "d").tools:
            catalogues[dataset, tool.id.split("/")[1] if dataset == TOUCAN else ""].append(tool)
    return catalogues


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=SPLITS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    written = {split: list(read_suite(split)) for split in options.splits if split != "described"}
    datasets = {TOUCAN, *(request.dataset for requests in written.values() for request in requests)}
    tools = read_catalogues(Path(options.data), datasets)
    servers = {server: some for (dataset, server), some in tools.items() if dataset == TOUCAN}
    figures: dict[str, Any] = {}
    for split in options.splits:
        requests = written.get(split) or list(make_requests(servers))
        keys = {request.catalogue for request in requests}
        hybrid = {key: registry.build("hybrid", Catalogue.of(tools[key]), Workspace()) for key in keys}
        without = {key: stage.stages[0] for key, stage in hybrid.items() if isinstance(stage, Pipeline)}
        figures[split] = {"without": measure(without, requests), "hybrid": measure(hybrid, requests)}
        sys.stderr.write(f"{split}: {figures[split]}\n")
    write_json(options.out, {"command": "python benchmarks/opposites.py", **figures, **provenance()})


if __name__ == "__main__":
    main()
