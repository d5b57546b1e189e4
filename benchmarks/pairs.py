"""Measures the time of a cross-encoder on 50 pairs of 64 tokens: one thread, six or three layers, int8 or float32.

Prints JSON and writes it to benchmarks/results/pairs.json: wall time and processor time. Needs the extra `train`, and
all-MiniLM-L6-v2 on this machine. Its weights are not tuned for pairs; the time does not depend on that. Compare ratios,
not milliseconds, between machines.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from toolscout_lab.encoders.onnx_pairs import OnnxPairs
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.machine import provenance
from toolscout_lab.rankers.crossencoder import export
from toolscout_lab.training.crossencoders import CrossEncoder
from toolscout_lab.training.towers import Tower

ROOT = Path(__file__).parent
LENGTH, PAIRS = 64, 50
QUERY = (
    "I am planning a trip with my family next month and need to know the weather in Lisbon for the whole week, the "
    "cheapest flights from Oslo on Friday evening, and a hotel near the old town with a pool and breakfast included"
)
TOOL = (
    "travel > stays > find_hotels number {}: search for hotels in a city between two dates, with a price range, stars, "
    "distance from the centre, facilities and whether breakfast is included (city, check_in, check_out, guests, stars)"
)


def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="searches of each edition, in turn")
    rounds = parser.parse_args().rounds
    texts = [TOOL.format(number) for number in range(PAIRS)]
    readers: dict[str, OnnxPairs] = {}
    with tempfile.TemporaryDirectory() as held:
        for layers in (6, 3):
            for precise in ("int8", "float32"):
                tower = Tower(TransformerEncoder("minilm").model, dropout=0.0, precision="float32")
                net = CrossEncoder(tower, length=LENGTH, layers=layers).eval()
                folder = Path(held) / f"{layers}-{precise}"
                export(net, folder, precise, [(QUERY, text) for text in texts[:8]])
                readers[f"{layers} layers, {precise}"] = OnnxPairs(folder, LENGTH)
    pieces = [len(each.ids) for each in readers["6 layers, int8"].pieces(QUERY, texts)]
    assert min(pieces) == LENGTH, pieces
    times: dict[str, list[float]] = {name: [] for name in readers}
    with threadpool_limits(1):
        for turn in range(rounds + 2):
            for name, reader in readers.items():
                started, busy = time.perf_counter(), time.thread_time()
                reader.logits(QUERY, texts)
                if turn > 1:
                    times[name].append((time.perf_counter() - started) * 1000)
                    times.setdefault(f"{name}, processor", []).append((time.thread_time() - busy) * 1000)
    return {
        "pairs": PAIRS,
        "pieces": LENGTH,
        "rounds": rounds,
        "ms": {
            name: {f"p{share}": round(float(np.percentile(found, share)), 1) for share in (50, 95)}
            for name, found in sorted(times.items())
        },
        **provenance(),
    }


if __name__ == "__main__":
    result = json.dumps(main(), indent=1)
    (ROOT / "results" / "pairs.json").write_text(result + "\n")
    print(result)  # noqa: T201
