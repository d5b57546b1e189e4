"""Counts what test sets share with training data: tools that the encoder has read, and gold sets of train.

The bundled encoder was distilled over the texts of the corpora that its manifest names. A tool of a dataset counts as
read if one of these corpora has the same tool: the same name without its path and the same description, both without
case, marks and spaces. A dataset whose own corpus was read counts as a whole. For datasets with train, the count says
how many test queries need exactly the set of tools that a training query needs.

    python benchmarks/contamination.py [--data ROOT]       writes benchmarks/results/contamination.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from toolscout.checks.results import TRAINED, UNTRAINED
from toolscout.dataset import Dataset
from toolscout.encoders.static import STATIC_ENCODER_FOLDER
from toolscout.sources.folder import read_tools
from toolscout.types import Tool
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance


def normalise(text: str) -> str:
    """Keep letters and digits only, in lower case."""
    return re.sub(r"[\W_]+", "", text.lower())


def find_keys(tools: Iterable[Tool]) -> set[tuple[str, str]]:
    """Return (name, description) of each tool, normalised."""
    return {(normalise(tool.name), normalise(tool.description)) for tool in tools}


def count_read_tools(root: Path, corpora: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Count the tools of each dataset that the encoder has read, by name and description, and by description alone."""
    read: set[tuple[str, str]] = set()
    for name in corpora:
        read |= find_keys(read_tools(root / name, "d").tools)
    texts = {text for _, text in read if len(text) > 20}  # shorter ones are alike by chance
    counts = {}
    for name in (*TRAINED, *UNTRAINED):
        tools = [(normalise(tool.name), normalise(tool.description)) for tool in read_tools(root / name, "d").tools]
        counts[name] = {
            "tools": len(tools),
            "same_name_and_description": sum(key in read for key in tools),
            "same_description": sum(key[1] in texts for key in tools),
            "corpus_was_read": name in corpora,
        }
    return counts


def count_repeated_gold(dataset: Dataset) -> dict[str, int]:
    """Count the gold sets of train, the test queries, and the test queries that need a gold set of train."""
    train = {frozenset(gold) for gold in dataset.split("train").values()}
    test = [frozenset(gold) for gold in dataset.split("test").values()]
    return {"train_sets": len(train), "test": len(test), "test_in_train": sum(gold in train for gold in test)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "contamination.json")
    given = parser.parse_args()
    if given.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    manifest = json.loads((STATIC_ENCODER_FOLDER / "manifest.json").read_text())
    found = {
        "encoder": manifest["fingerprint"],
        "read": sorted(manifest["corpora"]),
        "tools": count_read_tools(Path(given.data), manifest["corpora"]),
        "gold": {name: count_repeated_gold(load_dataset(name, Path(given.data))) for name in TRAINED},
        **provenance(),
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, counts in found["tools"].items():
        click.echo(f"{name}: {counts} {found['gold'].get(name, '')}")


if __name__ == "__main__":
    main()
