"""Measures queries: their length, how they are joined, and how many of their words their tools have.

For each dataset: words and sentences of a test query, the share of queries that say "also", "then" and the like, and
the share of a query's terms that the texts of its gold tools contain. It fits nothing. For two sets whose licence
allows it, two queries drawn by the hash of their id are kept as examples.

    python benchmarks/query_words.py [--data ROOT]       writes benchmarks/results/query-words.json
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from toolscout.checks.results import write_json
from toolscout.indexes.words import tokenize
from toolscout.sources.folder import read_tools
from toolscout.types import render
from toolscout_lab.bench_jobs import load_dataset, strip_source
from toolscout_lab.machine import provenance
from toolscout_lab.reproduce import draw_ids

OUT: Final = Path(__file__).resolve().parent / "results" / "query-words.json"
DATASETS: Final = ("toollens", "toolbench", "numpybank", "seal_tools_in", "metatool", "ultratool", "bfcl")
QUOTED: Final = ("toolbench", "numpybank")  # their licences allow it; that of ToolLens does not
JOINED: Final = re.compile(
    r"\b(also|additionally|then|furthermore|moreover|finally|lastly|next|after that|in addition)\b", re.I
)
SENTENCE_END: Final = re.compile(r"[.!?]+(?:\s|$)")


def describe_queries(name: str, root: Path | None) -> dict[str, Any]:
    """Return the means over the test queries of a dataset."""
    dataset = load_dataset(name, root)
    terms_of = {strip_source(tool.id): set(tokenize(render(tool))) for tool in read_tools(dataset.folder, "d").tools}
    rows, gold = [], dataset.split("test")
    for query, tools in gold.items():
        text = dataset.queries[query]
        terms = set(tokenize(text))
        offered = set().union(*(terms_of[tool] for tool in tools))
        rows.append(
            (
                len(text),
                len(text.split()),
                max(1, len(SENTENCE_END.findall(text))),
                bool(JOINED.search(text)),
                len(terms & offered) / max(1, len(terms)),
                len(tools),
            )
        )
    names = ("characters", "words", "sentences", "joined", "terms_in_gold_tools", "gold_tools")
    figures: dict[str, Any] = {"queries": len(rows)}
    figures |= {key: round(float(mean), 4) for key, mean in zip(names, np.mean(rows, axis=0), strict=True)}
    if name in QUOTED:
        figures["examples"] = [dataset.queries[query] for query in draw_ids(gold, 2)]
    return figures


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default=os.environ.get("TOOLSCOUT_DATA"), help="folder of the datasets")
    root = parser.parse_args().data
    figures = {name: describe_queries(name, Path(root) if root else None) for name in DATASETS}
    write_json(OUT, {"datasets": figures, **provenance()})


if __name__ == "__main__":
    main()
