"""Result, run and sweep files → one self-contained page and its charts.

The page needs nothing from elsewhere and is the same, byte for byte, for the same results. Names that stand in result
files are untrusted: they are escaped in the page and never become part of a path.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolscout.checks.results import PUBLISHED, Result, SweepResult, read_results, read_sweeps
from toolscout.dataset import Dataset
from toolscout.errors import NotFound, UserError
from toolscout.lab import charts
from toolscout.lab.anatomy import failures
from toolscout.lab.parent_charts import parent_charts
from toolscout.lab.report_page import Content, Image, count, few, head, mean, page
from toolscout.lab.run_files import read_detect, read_run
from toolscout.metrics import detection_curves
from toolscout.sources import Problem

__all__ = ["PUBLISHED", "Written", "report"]

MOST_ROWS: Final = 60
MOST_COLUMNS: Final = 16
MOST_LINES: Final = 6
MOST_FAILURES: Final = 24
MOST_SWEEPS: Final = 12
MOST_PANELS: Final = 6
NEED: Final = "detect_auroc"


class Written(list[Path]):
    """The files that were written, the page first; `problems` names each file that was left out.

    `notes` says what could not be shown for want of a dataset.
    """

    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def report(folder: Path, out: Path | None = None, *, data: Path | None = None) -> Written:
    """Write `report.html` and its charts from the result, run and sweep files below a folder.

    These are `<dataset>/<label>.json`, `.run.gz` and `.sweep.json`. A file that is none of them, or not the one that
    its place says, is left out and named: in the page and in the `problems` of what is returned.

    Args:
        folder: what `bench --out` and `sweep --out` wrote.
        out: where to write; by default `folder` itself.
        data: root of the datasets, for failures per tool; without it, or without a dataset, they are not shown.

    Raises:
        NotFound: when there is no result and no sweep at all.
        MissingExtra: without matplotlib.
        UserError: when `out` cannot be written.
    """
    folder = Path(folder)
    results, problems = read_results(folder)
    sweeps, more = read_sweeps(folder)
    problems += more
    if not results and not sweeps:
        broken = f"; {len(problems)} cannot be read, {problems[0].entry}: {problems[0].message}" if problems else ""
        raise NotFound(
            f"{folder}: expected result files <dataset>/<label>.json, found none{broken}: write some with  "
            f"toolscout bench DATASET --recipe R --out {folder}"
        )
    sets: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda each: (each.dataset, -each.quality, each.label)):
        sets.setdefault(result.dataset, []).append(result)
    for name in sorted({swept.dataset for swept in sweeps} - sets.keys()):
        sets[name] = []
    slugs = _slugs(sets)
    overview = _latency_charts(sets)
    notes: list[str] = []
    shown = {}
    for name, held in sets.items():
        failed = _failures(folder, data, held, problems, notes)
        own = [swept for swept in sweeps if swept.dataset == name]
        images = _set_charts(name, slugs[name], held) if held else []
        images += _decision_chart(folder, name, slugs[name], held, problems)
        images += _failure_charts(name, slugs[name], failed) + _sweep_charts(slugs[name], own)
        shown[name] = Content(slugs[name], held, own, failed, images)
    document = page(shown, problems, notes, overview)
    place = folder if out is None else Path(out)
    files = {"report.html": document.encode(errors="replace")}
    files |= {
        image.file: image.data for group in (overview, *(each.images for each in shown.values())) for image in group
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
    except OSError as error:
        raise UserError(f"{place}: expected a folder to write the report to, found: {error.strerror}") from None
    written = Written(place / name for name in files)
    written.problems, written.notes = tuple(problems), tuple(notes)
    return written


def _failures(
    folder: Path, data: Path | None, held: Sequence[Result], problems: list[Problem], notes: list[str]
) -> dict[str, dict[str, Any]]:
    """Label → `anatomy.failures`, of the labels that have a run file; what is wrong goes to `problems` or `notes`."""
    runs = [(each, folder / each.dataset / f"{each.label}.run.gz") for each in held]
    runs = [(each, path) for each, path in runs if path.is_file()]
    if not runs:
        return {}
    name = held[0].dataset
    if data is None or not (data / name / "queries.jsonl").is_file():
        looked = f"none at {data / name}" if data else "no root: set --data or TOOLSCOUT_DATA"
        notes.append(f"{name}: failures per tool are not shown, for want of the dataset: found {looked}.")
        return {}
    found: dict[str, dict[str, Any]] = {}
    try:
        dataset = Dataset.load(data / name, root=data)
        for each, path in runs:
            if each.run_sha256 and each.run_sha256 != hashlib.sha256(path.read_bytes()).hexdigest():
                entry = path.relative_to(folder).as_posix()
                problems.append(Problem(entry, f"expected the rankings that {each.label}.json was computed from"))
                continue
            run = {query: [tool for tool, _ in hits] for query, hits in read_run(path).items()}
            found[each.label] = failures(run, dataset.split(each.split), dataset.queries)
    except UserError as error:
        notes.append(f"{name}: failures per tool are not shown: {error}.")
        return {}
    return found


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
    fewer = few(len(shown), len(held))
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
            f"NDCG@5 and COMP@5 with 95 % intervals.{note}{fewer}",
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
        heads = [head(part, [row[x] for row in cells]) for x, part in enumerate(columns)]
        values = [[100 * cell["comp@5"] if "comp@5" in cell else None for cell in row] for row in cells]
        images.append(
            Image(
                f"{slice_name}-{slug}.png",
                f"Table in colours: COMP@5 on {name} by {what}, one row for each of {len(shown)} labels, "
                f"columns {', '.join(columns)}.",
                f"COMP@5 in percent by {what}.{fewer}{cut}",
                charts.grid(f"{name}: COMP@5 by {what}", [each.label for each in shown], heads, values),
            )
        )
    return images + _size_chart(name, slug, held) + parent_charts(name, slug, held)


def _size_chart(name: str, slug: str, held: Sequence[Result]) -> list[Image]:
    """recall@|N| and comp@|N| by the number of gold tools, as COLT's Fig. 4; nothing without two numbers to compare."""
    known = [each for each in held if any("comp@|N|" in part for part in each.slices.get("gold", {}).values())]
    shown = known[:MOST_LINES]
    ticks = sorted({part for each in shown for part in each.slices["gold"]}, key=lambda part: (len(part), part))
    if len(ticks) < 2:
        return []
    panels = [
        charts.Panel(
            f"{metric} by number of gold tools",
            ticks[:MOST_COLUMNS],
            {
                each.label: [
                    None if (value := each.slices["gold"].get(tick, {}).get(metric)) is None else 100 * value
                    for tick in ticks[:MOST_COLUMNS]
                ]
                for each in shown
            },
        )
        for metric in ("recall@|N|", "comp@|N|")
    ]
    labels = ", ".join(each.label for each in shown)
    return [
        Image(
            f"size-{slug}.png",
            f"Lines: recall@|N| and comp@|N| on {name} by number of gold tools ({', '.join(ticks)}) for {labels}.",
            f"recall@|N| and comp@|N| in percent by number of gold tools.{few(len(shown), len(known))}",
            charts.lines(f"{name}: by number of gold tools", panels, "percent"),
        )
    ]


def _decision_chart(folder: Path, name: str, slug: str, held: Sequence[Result], problems: list[Problem]) -> list[Image]:
    """ROC and reliability of the labels that have a detect file; a file that cannot be read goes to `problems`."""
    shown: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for each in held:
        path = folder / each.dataset / f"{each.label}.detect.gz"
        if NEED not in each.metrics or not path.is_file():
            continue
        try:
            rows = read_detect(path)
            shown[each.label] = detection_curves([label for _, label, _ in rows], [need for _, _, need in rows])
        except (UserError, ValueError) as error:
            problems.append(Problem(path.relative_to(folder).as_posix(), str(error)))
    if not shown:
        return []
    best = sorted(shown, key=lambda label: -_metric(held, label, NEED))[:MOST_LINES]
    areas = ", ".join(f"{label} {_metric(held, label, NEED):.3f}" for label in best)
    return [
        Image(
            f"decision-{slug}.png",
            f"Curves: tool queries of {name} accepted by no-tool queries accepted, areas {areas}; and how far the need "
            "that is said is the share that needs a tool.",
            f"Does it need a tool: ROC and reliability, both classes with equal mass.{few(len(best), len(shown))}",
            charts.decisions(f"{name}: does it need a tool", {label: shown[label] for label in best}),
        )
    ]


def _metric(held: Sequence[Result], label: str, metric: str) -> float:
    return next(each.metrics[metric] for each in held if each.label == label)


def _failure_charts(name: str, slug: str, failed: Mapping[str, Mapping[str, Any]]) -> list[Image]:
    if not failed:
        return []
    shown = dict(itertools.islice(failed.items(), MOST_FAILURES))

    def spread(found: Mapping[str, Any], factor: float) -> tuple[float, float] | None:
        return None if found["mean"] is None else (factor * found["mean"], factor * found["deviation"])

    rates = [charts.Spread(label, {"rate": spread(found["rate"], 100)}) for label, found in shown.items()]
    words = [
        charts.Spread(
            label,
            {
                "missed a gold tool": spread(found["words"]["failed"], 1),
                "found all": spread(found["words"]["found"], 1),
            },
        )
        for label, found in shown.items()
    ]
    means = ", ".join(f"{label} {100 * found['rate']['mean']:.1f}" for label, found in shown.items())
    return [
        Image(
            f"failures-{slug}.png",
            f"Bars: how often gold tools of {name} are not among the first 5, mean over tools in percent: {means}; and "
            "the length of the queries where that happens beside the others'.",
            "Failures per tool at 5, and the length of failed queries: means, lines of one deviation to both sides."
            + few(len(shown), len(failed)),
            charts.spreads(
                f"{name}: failures at 5",
                [("failure rate of a tool, percent", rates, 100.0), ("words of a query", words, None)],
            ),
        )
    ]


def _sweep_charts(slug: str, sweeps: Sequence[SweepResult]) -> list[Image]:
    """For each sweep a field a setting: the best of the trials with each value, and all trials as dots."""
    images = []
    for number, swept in enumerate(sweeps[:MOST_SWEEPS], 1):
        names = {"ndcg@5": "NDCG@5", "comp@5": "COMP@5"}
        if all(NEED in trial.dev for trial in swept.trials):
            names[NEED] = "AUROC of the need"
        panels = []
        for name, values in itertools.islice(swept.over.items(), MOST_PANELS):
            ticks = [str(value) for value in values][:MOST_COLUMNS]
            held = [[trial for trial in swept.trials if str(trial.settings[name]) == tick] for tick in ticks]
            series = {
                metric: [max((100 * trial.dev[metric] for trial in one), default=None) for one in held]
                for metric in names
            }
            dots = [
                (place, 100 * trial.dev[metric]) for place, one in enumerate(held) for trial in one for metric in series
            ]
            panels.append(charts.Panel(name, ticks, series, dots if len(swept.over) > 1 else ()))
        best = max(swept.trials, key=lambda trial: trial.dev["ndcg@5"] + trial.dev["comp@5"])
        chosen = ", ".join(f"{name} = {value}" for name, value in best.settings.items())
        images.append(
            Image(
                f"sweep-{slug}-{number}.png",
                f"Lines: {' and '.join(names.values())} on dev of {swept.dataset} by each swept setting of "
                f"{swept.recipe}; "
                f"best: {chosen} with {100 * best.dev['ndcg@5']:.1f} and {100 * best.dev['comp@5']:.1f} percent.",
                f"Sweep {swept.label} on dev, {count(len(swept.trials), 'trial')}: each point the best over the other "
                f"settings, each dot a trial. Best: {chosen}.",
                charts.lines(f"{swept.dataset}: {swept.label} on dev", panels, "percent"),
            )
        )
    return images


def _interval(result: Result, metric: str) -> tuple[float, float] | None:
    if metric not in result.ci95:
        return None
    low, high = result.ci95[metric]
    return 100 * low, 100 * high


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
                + few(len(points), len(shown)),
                charts.scatter(f"Latency against NDCG@5, {over}", points),
            )
        )
    return images
