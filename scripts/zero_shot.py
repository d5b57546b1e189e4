"""Measures the recipes that need no training on all fourteen sets, and writes the table into docs/datasets.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from toolscout.lab.results import TRAINED, UNTRAINED

ROOT = Path(__file__).parent.parent
RECIPES = ("bm25", "bm25-plain", "dense", "hybrid", "dense-minilm", "hybrid-minilm")
SHOWN = ("ndcg@5", "comp@5")
BEGIN, END = "<!-- zero-shot table -->", "<!-- end of the zero-shot table -->"


def measure(arguments: list[str]) -> None:
    recipes = [part for name in RECIPES for part in ("--recipe", name)]
    command = [sys.executable, "-m", "toolscout", "bench", *TRAINED, *UNTRAINED, *recipes, "--resume", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


def table(results: Path) -> str:
    """NDCG@5 and COMP@5 in percent, set by set, and the means: all, with train, without."""
    held = {
        (name, recipe): json.loads((results / name / f"{recipe}.json").read_text())["metrics"]
        for name in (*TRAINED, *UNTRAINED)
        for recipe in RECIPES
    }
    rows = ["| set | " + " | ".join(RECIPES) + " |", "|---|" + "---:|" * len(RECIPES)]
    for name in sorted((*TRAINED, *UNTRAINED)):
        rows.append(f"| {name} | " + " | ".join(_cell([held[name, recipe]]) for recipe in RECIPES) + " |")
    for title, names in (
        ("mean of all 14", (*TRAINED, *UNTRAINED)),
        ("mean of the 8 with train", TRAINED),
        ("mean of the 6 without", UNTRAINED),
    ):
        cells = (_cell([held[name, recipe] for name in names]) for recipe in RECIPES)
        rows.append(f"| **{title}** | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(metrics: list[dict[str, float]]) -> str:
    return " / ".join(f"{100 * sum(each[name] for each in metrics) / len(metrics):.1f}" for name in SHOWN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table-only", action="store_true", help="write the table from the results that are there")
    chosen, rest = parser.parse_known_args()
    if not chosen.table_only:
        measure(rest)
    page = ROOT / "docs" / "datasets.md"
    text = page.read_text()
    before, _, after = text.partition(BEGIN)
    after = after.partition(END)[2] if END in after else after
    page.write_text(f"{before}{BEGIN}\n{table(ROOT / 'benchmarks' / 'results')}\n{END}{after}")


if __name__ == "__main__":
    main()
