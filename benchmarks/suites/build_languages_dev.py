"""Make a dataset folder of `languages_dev`: its requests over the chosen tools, whose texts come from the data root.

    python benchmarks/suites/build_languages_dev.py --data DATA_ROOT --out DIR

`toolscout lab bench DIR --split dev` reads the folder. A tool that `tools.txt` names and the corpus lacks is an error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

SUITE = Path(__file__).parent / "languages_dev"
CORPUS = Path("tool_corpora", "toucan", "corpus.jsonl")


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the datasets")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    arguments = parser.parse_args()
    chosen = set((SUITE / "tools.txt").read_text(encoding="utf-8").split())
    lines = (arguments.data / CORPUS).read_text(encoding="utf-8").splitlines(keepends=True)
    tools = {tool_id: line for line in lines if (tool_id := json.loads(line)["_id"]) in chosen}
    if missing := sorted(chosen - set(tools)):
        return f"The corpus lacks {len(missing)} of the chosen tools, {missing[0]} among them."
    (arguments.out / "qrels").mkdir(parents=True, exist_ok=True)
    (arguments.out / "corpus.jsonl").write_text("".join(tools.values()), encoding="utf-8")
    for name in ("queries.jsonl", "qrels/dev.tsv"):
        shutil.copyfile(SUITE / name, arguments.out / name)
    return None


if __name__ == "__main__":
    sys.exit(main())
