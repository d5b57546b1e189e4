"""Measures whether the asked one of two opposite tools stands first: `add_label` or `remove_label`.

Three lists, each searched over the tools of the pair's server in toucan. `dev` and `test` are the requests that people
wrote (`suites/opposites.jsonl`); they name the aim in other words than the tool's name. `described` is made by rule: of
each other pair that `suites/find_opposites.py` finds, each tool's first sentence is the request. `without` is `hybrid`
as it was before it ordered opposites by their action. `--splits dev` reads only the dev lines.

    python benchmarks/opposites.py [--data DIR] [--splits dev described test] [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.checks.results import write_json
from toolscout.lab.machine import provenance
from toolscout.recipes import registry
from toolscout.search.pipeline import Pipeline, Stage
from toolscout.sources.folder import read_tools
from toolscout.types import Search, Tool
from toolscout.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parent / "suites"))
from find_opposites import CRAWLER_TEXT, find_pairs

RESULTS: Final = Path(__file__).resolve().parent / "results" / "opposites.json"
SUITE: Final = Path(__file__).resolve().parent / "suites" / "opposites.jsonl"
SPLITS: Final = ("dev", "described", "test")
SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")
MAX_HITS: Final = 10_000


class Request(NamedTuple):
    """A request for one of two opposite tools. The ids are those of the corpus."""

    text: str
    asked: str
    opposite: str


def read_suite(split: str) -> Iterator[Request]:
    """Read the requests that people wrote."""
    for row in SUITE.read_text(encoding="utf-8").splitlines():
        line = msgspec.json.decode(row)
        if line["split"] == split:
            [opposite] = set(line["ids"]) - {line["asked"]}
            yield Request(line["query"], line["asked"], opposite)


def make_requests(servers: dict[str, list[Tool]]) -> Iterator[Request]:
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


def measure(stage_of: dict[str, Stage], requests: Sequence[Request]) -> dict[str, float]:
    """Return the shares of requests with the asked tool before its opposite, and first of all tools of the server."""
    before = first = 0
    for request in requests:
        [search] = stage_of[_server(request.asked)]([Search(query=request.text, k=MAX_HITS)])
        ranks = {tool_id.partition("/")[2]: rank for rank, tool_id in enumerate(search.ids)}
        before += ranks.get(request.asked, MAX_HITS) < ranks.get(request.opposite, MAX_HITS)
        first += ranks.get(request.asked) == 0
    return {"n": len(requests), "before": round(before / len(requests), 4), "first": round(first / len(requests), 4)}


def _server(corpus_id: str) -> str:
    return corpus_id.partition("/")[0]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=SPLITS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    servers: dict[str, list[Tool]] = defaultdict(list)
    for tool in read_tools(Path(options.data) / "tool_corpora" / "toucan", "d").tools:
        servers[_server(tool.id.partition("/")[2])].append(tool)
    figures: dict[str, Any] = {}
    for split in options.splits:
        requests = list(make_requests(servers) if split == "described" else read_suite(split))
        names = {_server(request.asked) for request in requests}
        hybrid = {name: registry.build("hybrid", Catalogue.of(servers[name]), Workspace()) for name in names}
        without = {name: stage.stages[0] for name, stage in hybrid.items() if isinstance(stage, Pipeline)}
        figures[split] = {"without": measure(without, requests), "hybrid": measure(hybrid, requests)}
        sys.stderr.write(f"{split}: {figures[split]}\n")
    write_json(options.out, {"command": "python benchmarks/opposites.py", **figures, **provenance()})


if __name__ == "__main__":
    main()
