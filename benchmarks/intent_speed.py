"""Measures the time that masstool adds to its encoder, one query at a time on one thread.

The encoder alone and the whole pipeline take turns. Prints JSON and writes it to benchmarks/results/intent-speed.json.
Needs a model of masstool (`--model`) and the dataset of its fit. Compare the ratio between machines, not the
milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from toolscout.dataset import Dataset
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.recipes import registry
from toolscout.sources.folder import read_tools
from toolscout.types import Search
from toolscout_lab.machine import provenance
from toolscout_lab.rankers.dpr import FittedEncoder
from toolscout_lab.rankers.shared.tuning import ENCODER_FOLDER

QUERIES, WARM_UP = 200, 20


def main() -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "intent-speed.json")
    given = parser.parse_args()
    model = model_store.load(given.model)
    dataset = Dataset.load(Path(os.environ["TOOLSCOUT_DATA"]) / model.manifest.data.name)
    encoder = FittedEncoder(given.model / ENCODER_FOLDER, model.manifest.values["tool_length"])
    tools = read_tools(dataset.folder, "d").tools
    stage = registry.build(model.manifest.recipe, Catalogue.of(tools), model=given.model)
    texts = list(dataset.texts("test").values())
    texts = texts[:: len(texts) // QUERIES][:QUERIES]
    alone: list[float] = []
    whole: list[float] = []
    with threadpool_limits(1):
        for text in [*texts[:WARM_UP], *texts]:
            for times, work in (
                (alone, lambda text=text: encoder.encode([text], "query")),
                (whole, lambda text=text: stage([Search(query=text, k=5)])),
            ):
                started = time.perf_counter()
                work()
                times.append(1000 * (time.perf_counter() - started))
    alone, whole = alone[WARM_UP:], whole[WARM_UP:]
    found = {
        "recipe": model.manifest.recipe,
        "dataset": dataset.name,
        "queries": len(texts),
        "pool": len(model.arrays["keys"]),
        "tools": len(tools),
        "encoder_ms": {"p50": round(float(np.median(alone)), 3), "p95": round(float(np.percentile(alone, 95)), 3)},
        "whole_ms": {"p50": round(float(np.median(whole)), 3), "p95": round(float(np.percentile(whole, 95)), 3)},
        "ratio_p50": round(float(np.median(whole) / np.median(alone)), 3),
        **provenance(),
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
