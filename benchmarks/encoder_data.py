"""Build the training set of an encoder and report what was left out of it, and why.

    python benchmarks/encoder_data.py --data DATA_ROOT --out FOLDER [--leave-out DATASET]…

Besides the tools of the test sets, the tools that the test lines of `benchmarks/suites` name are left out. `FOLDER`
gets `examples.jsonl`, `tools.jsonl` and `report.json`; the texts of datasets stay out of the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from toolscout.errors import UserError
from toolscout_lab.encoder_data import DataPlan, build_training_set

SUITES = Path(__file__).parent / "suites"
OPPOSITES = ("opposites.jsonl", *(f"opposites_{name}.jsonl" for name in ("more", "third", "fourth", "fifth", "sixth")))
TOUCAN = "tool_corpora/toucan"


def read_suite_ids() -> set[str]:
    """The tools of the corpus that a test line of a suite names, or that test lines are searched over."""
    ids = set((SUITES / "languages_dev" / "tools.txt").read_text(encoding="utf-8").split())
    for name in OPPOSITES:
        for line in (SUITES / name).read_text(encoding="utf-8").splitlines():
            pair = json.loads(line)
            if pair["split"] == "test" and pair.get("dataset", TOUCAN) == TOUCAN:
                ids.update(pair["ids"])
    return ids


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the datasets")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--leave-out", action="append", default=[], help="a dataset of which nothing may be in the set")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    plan = DataPlan(
        arguments.data, leave_out=tuple(arguments.leave_out), held_out_ids=read_suite_ids(), seed=arguments.seed
    )
    try:
        made = build_training_set(plan)
    except UserError as error:
        return str(error)
    made.write(arguments.out)
    counts = {name: {**source, "dropped_tools": "in report.json"} for name, source in made.report["sources"].items()}
    sys.stdout.write(json.dumps({**made.report, "sources": counts}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    sys.exit(main())
