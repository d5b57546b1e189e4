"""The tables of other tool retrievers beside scout, from benchmarks/results/peers.json; for scripts/tables.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from table_layout import RESULTS, lay_out, mark_read

from toolscout.checks.results import TRAINED, UNTRAINED

SETS = (*TRAINED, *UNTRAINED)
LARGEST = "seal_tools_in"  # of the fourteen catalogues, with 4,076 tools
JOINED = "joined/"
FIGURES = ("ndcg@5", "comp@5")
OURS = ("toolscout scout", "toolscout scout, compact")


def read_peers() -> dict[str, dict[str, Any]]:
    """Variant → set → figures."""
    peers: dict[str, dict[str, Any]] = json.loads((RESULTS / "peers.json").read_text())["peers"]
    return peers


def average(sets: dict[str, Any], names: Sequence[str], measure: str) -> float | None:
    """The mean of one measure over sets; None if one of them is missing."""
    values = [sets[name][measure] for name in names if measure in sets.get(name, {})]
    return sum(values) / len(values) if names and len(values) == len(names) else None


def write(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def count_firsts(peers: dict[str, dict[str, Any]], variant: str, measure: str) -> str:
    """On how many of the fourteen sets a variant is first or level with the first."""
    sets = peers[variant]
    if any(measure not in sets.get(name, {}) for name in SETS):
        return "-"
    rivals = [other for name, other in peers.items() if name == variant or not {name, variant} <= set(OURS)]
    return str(
        sum(sets[name][measure] >= max(other.get(name, {}).get(measure, 0.0) for other in rivals) for name in SETS)
    )


def tabulate_peers(which: Sequence[str]) -> list[str]:
    return {"quality": tabulate_quality, "cost": tabulate_cost, "sets": tabulate_sets}[which[0]]()


def tabulate_quality() -> list[str]:
    peers = read_peers()
    joined = sorted({name for sets in peers.values() for name in sets if name.startswith(JOINED)})
    heads = ["retriever", "NDCG@5", "COMP@5", "first in NDCG@5", "first in COMP@5"]
    heads += ["joined NDCG@5", "joined COMP@5", "joined COMP@10"]
    rows = [
        [
            variant,
            *(write(average(sets, SETS, measure)) for measure in FIGURES),
            *(count_firsts(peers, variant, measure) for measure in FIGURES),
            *(write(average(sets, joined, measure)) for measure in (*FIGURES, "comp@10")),
        ]
        for variant, sets in peers.items()
    ]
    return lay_out(heads, rows)


def tabulate_cost() -> list[str]:
    heads = ["retriever", "p50 ms", "p50 ms of the processor", "index s", "peak MB"]
    rows = []
    for variant, sets in read_peers().items():
        peak = max((figures.get("peak_mb", 0.0) for figures in sets.values()), default=None)
        cost = sets.get(LARGEST, {})
        times = [write(cost.get(name), 2) for name in ("p50_ms", "processor_p50_ms")]
        rows.append([variant, *times, write(cost.get("index_s")), write(peak, 0) if sets else "-"])
    return lay_out(heads, rows)


def tabulate_sets() -> list[str]:
    peers = read_peers()
    names = [*SETS, *sorted({name for sets in peers.values() for name in sets if name.startswith(JOINED)})]
    rows = []
    for name in names:
        cells = [peers[variant].get(name, {}) for variant in peers]
        rows.append(
            [
                name if name.startswith(JOINED) else name + mark_read(name),
                *(f"{cell['ndcg@5']:.1f} / {cell['comp@5']:.1f}" if "ndcg@5" in cell else "-" for cell in cells),
            ]
        )
    return lay_out(["set", *peers], rows)


PEER_KINDS: dict[str, Callable[[Sequence[str]], list[str]]] = {"peers": tabulate_peers}
