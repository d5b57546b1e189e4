"""Result files → one self-contained page and its charts.

The page needs nothing from elsewhere and is the same, byte for byte, for the same results. Names that stand in result
files are untrusted: they are escaped in the page and never become part of a path.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from toolscout.errors import NotFound, UserError
from toolscout.lab import charts
from toolscout.lab.page import Image, count, mean, page
from toolscout.lab.results import PUBLISHED, Result, read_results
from toolscout.sources import Problem

__all__ = ["PUBLISHED", "Written", "report"]

MOST_ROWS: Final = 60
MOST_COLUMNS: Final = 16
LONGEST_PART: Final = 24


class Written(list[Path]):
    """The files that were written, the page first; `problems` names each result file that was left out."""

    problems: tuple[Problem, ...] = ()


def report(folder: Path, out: Path | None = None) -> Written:
    """Write `report.html` and its charts from the result files `<dataset>/<label>.json` below a folder.

    A file that is no result, or not the one that its place says, is left out and named: in the page and in the
    `problems` of what is returned.

    Args:
        folder: what `bench --out` wrote.
        out: where to write; by default `folder` itself.

    Raises:
        NotFound: when there is no result at all.
        MissingExtra: without matplotlib.
        UserError: when `out` cannot be written.
    """
    folder = Path(folder)
    results, problems = read_results(folder)
    if not results:
        broken = f"; {len(problems)} cannot be read, {problems[0].entry}: {problems[0].message}" if problems else ""
        raise NotFound(
            f"{folder}: expected result files <dataset>/<label>.json, found none{broken}: write some with  "
            f"toolscout bench DATASET --recipe R --out {folder}"
        )
    sets: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda each: (each.dataset, -each.quality, each.label)):
        sets.setdefault(result.dataset, []).append(result)
    slugs = _slugs(sets)
    overview = _latency_charts(sets)
    images = {name: _set_charts(name, slugs[name], held) for name, held in sets.items()}
    document = page(sets, slugs, problems, overview, images)
    place = folder if out is None else Path(out)
    files = {"report.html": document.encode(errors="replace")}
    files |= {image.file: image.data for group in (overview, *images.values()) for image in group}
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (place / name).write_bytes(data)
    except OSError as error:
        raise UserError(f"{place}: expected a folder to write the report to, found: {error.strerror}") from None
    written = Written(place / name for name in files)
    written.problems = tuple(problems)
    return written


def _slugs(names: Iterable[str]) -> dict[str, str]:
    """A file name's worth of each name, no two alike."""
    slugs: dict[str, str] = {}
    for name in names:
        slug = base = re.sub(r"[^a-z0-9_]+", "-", name.lower())[:60].strip("-") or "set"
        for number in itertools.count(2):
            if slug not in slugs.values():
                break
            slug = f"{base}-{number}"
        slugs[name] = slug
    return slugs


# --- charts -----------------------------------------------------------------------------------------------------------


def _set_charts(name: str, slug: str, held: Sequence[Result]) -> list[Image]:
    shown = held[:MOST_ROWS]
    few = _few(len(shown), len(held))
    rows = [
        charts.Bars(
            each.label,
            (100 * each.metrics["ndcg@5"], 100 * each.metrics["comp@5"]),
            (_interval(each, "ndcg@5"), _interval(each, "comp@5")),
        )
        for each in shown
    ]
    papers = [each for each in PUBLISHED.get(name, ()) if "ndcg@5" in each.metrics]
    rows += [
        charts.Bars(f"{each.label} (published)", (each.metrics["ndcg@5"], each.metrics.get("comp@5")), published=True)
        for each in papers
    ]
    best = f"best NDCG@5: {held[0].label} with {100 * held[0].quality:.1f} percent"
    note = " Grey and hatched: published." if papers else ""
    images = [
        Image(
            f"quality-{slug}.png",
            f"Bars of NDCG@5 and COMP@5 on {name} for {len(rows)} systems; {best}. The table has all figures.",
            f"NDCG@5 and COMP@5 with 95 % intervals.{note}{few}",
            charts.bars(f"{name}: NDCG@5 and COMP@5", rows),
        )
    ]
    for slice_name, what, least in (("gold", "number of gold tools |T_q|", 1), ("kind", "kind of query", 2)):
        columns = list(dict.fromkeys(part for each in shown for part in each.slices.get(slice_name, {})))
        if len(columns) < least:
            continue
        cut = f" The first {MOST_COLUMNS} of {len(columns)} columns." if len(columns) > MOST_COLUMNS else ""
        columns = columns[:MOST_COLUMNS]
        cells = [[each.slices.get(slice_name, {}).get(part, {}) for part in columns] for each in shown]
        heads = [_head(part, [row[x] for row in cells]) for x, part in enumerate(columns)]
        values = [[100 * cell["comp@5"] if "comp@5" in cell else None for cell in row] for row in cells]
        images.append(
            Image(
                f"{slice_name}-{slug}.png",
                f"Table in colours: COMP@5 on {name} by {what}, one row for each of {len(shown)} labels, "
                f"columns {', '.join(columns)}.",
                f"COMP@5 in percent by {what}.{few}{cut}",
                charts.grid(f"{name}: COMP@5 by {what}", [each.label for each in shown], heads, values),
            )
        )
    return images


def _few(shown: int, every: int) -> str:
    return f" The best {shown} of {every} labels." if shown < every else ""


def _interval(result: Result, metric: str) -> tuple[float, float] | None:
    if metric not in result.ci95:
        return None
    low, high = result.ci95[metric]
    return 100 * low, 100 * high


def _head(part: str, cells: Sequence[Mapping[str, float]]) -> str:
    counts = {cell["n"] for cell in cells if "n" in cell}
    name = part if len(part) <= LONGEST_PART else f"{part[: LONGEST_PART - 1]}…"
    return f"{name}\nn = {counts.pop():.0f}" if len(counts) == 1 else f"{name}\nn differs"


def _latency_charts(sets: Mapping[str, Sequence[Result]]) -> list[Image]:
    """All labels over the datasets that they share, and the labels with the most datasets over those."""
    timed: dict[str, dict[str, Result]] = {}
    for held in sets.values():
        for each in held:
            if each.latency_ms.get("p50"):
                timed.setdefault(each.label, {})[each.dataset] = each
    if not timed:
        return []
    most = max((set(held) for held in timed.values()), key=len)
    views = {frozenset(set.intersection(*map(set, timed.values()))), frozenset(most)} - {frozenset()}
    labels = {each.label for held in sets.values() for each in held}
    images = []
    for number, common in enumerate(sorted(views, key=lambda view: (len(view), sorted(view))), 1):
        shown = {label: [held[name] for name in sorted(common)] for label, held in timed.items() if common <= set(held)}
        points = [
            charts.Point(label, mean(each.latency_ms["p50"] for each in held), 100 * mean(e.quality for e in held))
            for label, held in sorted(shown.items())
        ]
        points = sorted(points, key=lambda point: -point.value)[:MOST_ROWS]
        over = count(len(common), "dataset")
        gone = sorted(labels - shown.keys())
        images.append(
            Image(
                f"latency-{number}.png",
                f"Points: latency (p50) against NDCG@5 of {len(points)} labels, means over {over}. "
                f"The best, {points[0].label}, has {points[0].value:.1f} percent in {points[0].ms:.3g} ms.",
                f"Means over {', '.join(sorted(common))}, which all labels shown have."
                + (f" Not shown, for want of one of them or of its latency: {', '.join(gone)}." if gone else "")
                + _few(len(points), len(shown)),
                charts.scatter(f"Latency against NDCG@5, {over}", points),
            )
        )
    return images
