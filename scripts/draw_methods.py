"""Draws the charts of README, the method pages and large catalogues from benchmarks/results, into docs/images.

    python scripts/draw_methods.py [--check]

With `--check` nothing is written, and the exit code is 1 if a picture is missing or the figures that it shows have
changed: each picture lies beside the figures that it was drawn from, in `docs/images/methods.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from table_peers import JOINED, LARGEST, SETS, average, read_peers

from toolscout.checks.results import PUBLISHED, Result, read_results, write_json
from toolscout_lab.report import charts
from toolscout_lab.report import charts as change_chart

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
FIGURES: Final = IMAGES / "methods.json"
TRAINED: Final = (
    "toollens",
    "ultratool",
    "hammerbench",
    "bfcl",
    "metatool",
    "seal_tools_in",
    "toollinkos",
    "numpybank",
)  # the eight sets with training queries

LEAST: Final = "bytes read / bandwidth"
Row = list[Any]
Picture = tuple[str, list[Row], Callable[[str, list[Row]], bytes]]


class Results:
    """Results on test, by dataset and label."""

    def __init__(self, folder: Path) -> None:
        results, problems = read_results(folder)
        if problems:
            sys.exit(f"benchmarks/results has files that cannot be read: {problems[0]}")
        self._results = {(result.dataset, result.label): result for result in results}

    def find(self, dataset: str, label: str) -> Result | None:
        """Return the result of a label on a dataset, None if there is none."""
        return self._results.get((dataset, label))

    def get(self, dataset: str, label: str) -> Result:
        """Return the result of a label on a dataset, or end the program."""
        result = self.find(dataset, label)
        return result if result else sys.exit(f"expected benchmarks/results/{dataset}/{label}.json: bench it first")


def read_percents(result: Result) -> list[float]:
    """Return NDCG@5 and COMP@5 in percent, one decimal."""
    return [round(100 * result.metrics[name], 1) for name in ("ndcg@5", "comp@5")]


def compare_sets(results: Results, title: str, before: str, after: str) -> Picture:
    """Plan a chart of two labels on the sets with training queries, the largest gain of NDCG@5 on top."""
    rows = []
    for dataset in TRAINED:
        first, second = results.find(dataset, before), results.find(dataset, after)
        if first and second:
            rows.append([dataset, read_percents(first), read_percents(second)])
    rows.sort(key=lambda row: row[1][0] - row[2][0])

    def draw(text: str, figures: list[Row]) -> bytes:
        return change_chart.changes(text, before, after, [change_chart.Change(*row) for row in figures])

    return title, rows, draw


def compare_recipes(
    results: Results, title: str, dataset: str, labels: Sequence[str], published: Sequence[str] = ()
) -> Picture:
    """Plan bars with intervals of several labels on one set, and of figures that a paper gives for it."""
    rows: list[Row] = []
    for label in labels:
        result = results.get(dataset, label)
        intervals = [
            [round(100 * end, 1) for end in result.ci95[name]] if name in result.ci95 else None
            for name in ("ndcg@5", "comp@5")
        ]
        rows.append([label, read_percents(result), intervals, False])
    for label in published:
        metrics = next(row.metrics for row in PUBLISHED[dataset] if row.label == label)
        rows.append([f"{label} (paper)", [metrics.get("ndcg@5"), metrics.get("comp@5")], [None, None], True])

    def draw(text: str, figures: list[Row]) -> bytes:
        return charts.bars(text, [charts.Bars(row[0], tuple(row[1]), tuple(row[2]), row[3]) for row in figures])

    return title, rows, draw


def compare_times(results: Results, title: str, dataset: str, labels: Sequence[str]) -> Picture:
    """Plan points of quality over time of several labels on one set."""
    rows: list[Row] = []
    for label in labels:
        result = results.get(dataset, label)
        rows.append([label, round(result.latency_ms["p50"], 1), read_percents(result)[0]])

    def draw(text: str, figures: list[Row]) -> bytes:
        return charts.scatter(text, [charts.Point(*row) for row in figures])

    return title, rows, draw


def compare_peers_joined() -> Picture:
    """Plan bars of each tool retriever on requests with several needs, the mean over the sets of joined requests."""
    peers = read_peers()
    joined = sorted({name for sets in peers.values() for name in sets if name.startswith(JOINED)})
    rows: list[Row] = []
    for variant, sets in peers.items():
        values = [average(sets, joined, measure) for measure in ("ndcg@5", "comp@5")]
        if None not in values:
            rows.append([variant, [round(value or 0.0, 1) for value in values]])
    rows.sort(key=lambda row: -row[1][1])

    def draw(text: str, figures: list[Row]) -> bytes:
        return charts.bars(text, [charts.Bars(row[0], tuple(row[1])) for row in figures])

    return "Requests with two to four needs: ranking, and whole sets in the first five", rows, draw


def compare_peers_time() -> Picture:
    """Plan points of each tool retriever: mean quality of the fourteen sets over the time on the largest catalogue."""
    rows: list[Row] = []
    for variant, sets in read_peers().items():
        quality, milliseconds = average(sets, SETS, "ndcg@5"), sets.get(LARGEST, {}).get("p50_ms")
        if quality is not None and milliseconds:
            rows.append([variant, milliseconds, round(quality, 1)])

    def draw(text: str, figures: list[Row]) -> bytes:
        return charts.scatter(text, [charts.Point(*row) for row in figures])

    return "Quality, mean of 14 sets, and time of one search among 4,076 tools", rows, draw


def compare_sizes(path: Path) -> Picture:
    """Plan lines of the median time of a search by the number of tools, and of the least that memory allows."""
    sizes = msgspec.json.decode(path.read_bytes())["sizes"]
    rows: list[Row] = []
    for size in sorted(sizes, key=int):
        searched = sizes[size]["search"]
        least = 1e3 * sum(searched["bytes_per_search"].values()) / searched["memory_bytes_per_s"]
        times = {name: searched["recipes"][name]["processor"]["p50_ms"] for name in ("bm25", "dense", "hybrid")}
        rows.append([f"{int(size):,}", {name: round(value, 3) for name, value in {**times, LEAST: least}.items()}])

    def draw(text: str, figures: list[Row]) -> bytes:
        ticks = [row[0] for row in figures]
        series = {name: [row[1][name] for row in figures] for name in figures[0][1]}
        return charts.lines(text, [charts.Panel("one core, processor time", ticks, series)], "milliseconds")

    return "One search by number of tools, median", rows, draw


def plan_pictures(results: Results) -> dict[str, Picture]:
    """Return the pictures of README and of each method page, by the file's name without ending."""
    first_tools = ["hybrid-dpr", "crossencoder-10", "crossencoder-30", "crossencoder-50"]
    hierarchies = ["toolrerank-single", "toolrerank-multi", "toolrerank", "toolrerank-published", "toolrerank-oracle"]
    return {
        "peers-joined": compare_peers_joined(),
        "peers-time": compare_peers_time(),
        "colt-parts": compare_recipes(
            results,
            "ToolLens, test: what each part of COLT brings",
            "toollens",
            ["dpr-inbatch", "colt-no-semantic", "colt-no-collaborative", "colt-no-contrastive", "colt", "colt-strong"],
            ["COLT + Contriever"],
        ),
        "crossencoder-time": compare_times(
            results, "seal_tools_in, test: quality and time by tools read", "seal_tools_in", first_tools
        ),
        "dpr-sets": compare_sets(
            results, "Test: the encoder before and after training on a set", "dense-minilm", "dpr"
        ),
        "feedback-parts": compare_recipes(
            results,
            "seal_tools_in, test: what each part of feedback brings",
            "seal_tools_in",
            ["dpr", "feedback-dpr-no-warmup", "feedback-dpr-no-hard", "feedback-dpr-no-joint", "feedback-dpr"],
        ),
        "mlc-sets": compare_sets(results, "Test: search without usage, and the set classifier", "hybrid", "mlc-light"),
        "neighbours-sets": compare_sets(
            results, "Test: search without usage, and neighbouring requests", "hybrid", "neighbours"
        ),
        "scout-light-sets": compare_sets(
            results, "Test: search without and with usage, no torch", "scout", "scout-light"
        ),
        "toolrefiner-stages": compare_recipes(
            results,
            "ToolLens, test: two first stages, without and with ToolRefiner",
            "toollens",
            ["tool2vec-tuned", "toolrefiner-tool2vec", "mlc", "toolrefiner"],
            ["ToolRefiner + Tool2Vec", "ToolRefiner + MLC"],
        ),
        "toolrerank-settings": compare_recipes(
            results,
            "ToolBench, test folds: what each part of ToolRerank brings",
            "toolbench",
            ["hybrid-dpr", "crossencoder-50", *hierarchies],
        ),
    }


def main() -> None:
    """Draw what has changed, or check that nothing has."""
    folder = ROOT / "benchmarks" / "results"
    pictures = {**plan_pictures(Results(folder)), "scale": compare_sizes(folder / "scale.json")}
    drawn = msgspec.json.decode(FIGURES.read_bytes()) if FIGURES.exists() else {}
    figures = {name: {"title": title, "rows": rows} for name, (title, rows, _) in pictures.items()}
    stale = [name for name in pictures if drawn.get(name) != figures[name] or not (IMAGES / f"{name}.png").exists()]
    if "--check" in sys.argv[1:]:
        sys.exit(f"out of date: {', '.join(stale)}: run python scripts/draw_methods.py" if stale else 0)
    for name in stale:
        title, rows, draw = pictures[name]
        (IMAGES / f"{name}.png").write_bytes(draw(title, rows))
        print(f"drew docs/images/{name}.png")
    write_json(FIGURES, figures)


if __name__ == "__main__":
    main()
