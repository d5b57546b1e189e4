"""The report: turns result, run and sweep files into one self-contained page and its charts.

Equal results give an equal page, byte for byte. Names from result files are untrusted: they are escaped in the page and
never become part of a path.
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

MAX_CHART_ROWS: Final = 60
MAX_CHART_COLUMNS: Final = 16
MAX_CHART_LINES: Final = 6
MAX_FAILURE_ROWS: Final = 24
MAX_SWEEPS_SHOWN: Final = 12
MAX_CHART_PANELS: Final = 6
NEED_MEASURE: Final = "detect_auroc"


class Written(list[Path]):
    """The files that were written, the page first.

    Attributes:
        problems: the files that were left out, with the reason.
        notes: what could not be shown because a dataset is missing.
    """

    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def report(folder: Path, out: Path | None = None, *, data: Path | None = None) -> Written:
    """Write `report.html` and its charts from the result, run and sweep files below a folder.

    These are `<dataset>/<label>.json`, `.run.gz` and `.sweep.json`; sweeps may also lie below `sweeps/<dataset>`. An
    invalid file, or one in the wrong place, is left out and named in the page and in `problems`.

    Args:
        folder: the folder that `bench --out` and `sweep --out` wrote.
        out: the folder to write to; by default `folder` itself.
        data: root of the datasets, for failures per tool; datasets that it lacks have none.

    Raises:
        NotFound: when there is no result and no sweep at all.
        MissingExtra: without matplotlib.
        UserError: when `out` cannot be written.
    """
    folder = Path(folder)
    results, problems = read_results(folder)
    sweeps, sweep_problems = read_sweeps(folder)
    problems += sweep_problems
    if not results and not sweeps:
        broken = f"; {len(problems)} cannot be read, {problems[0].entry}: {problems[0].message}" if problems else ""
        raise NotFound(
            f"{folder}: expected result files <dataset>/<label>.json, found none{broken}: write some with  "
            f"toolscout lab bench DATASET --recipe R --out {folder}"
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
    for name, set_results in sets.items():
        failed = _collect_failures(folder, data, set_results, problems, notes)
        set_sweeps = [swept for swept in sweeps if swept.dataset == name]
        images = _set_charts(name, slugs[name], set_results) if set_results else []
        images += _decision_chart(folder, name, slugs[name], set_results, problems)
        images += _failure_charts(name, slugs[name], failed) + _sweep_charts(slugs[name], set_sweeps)
        shown[name] = Content(slugs[name], set_results, set_sweeps, failed, images)
    document = page(shown, problems, notes, overview)
    place = folder if out is None else Path(out)
    files = {"report.html": document.encode(errors="replace")}
    files |= {
        image.file: image.data for group in (overview, *(each.images for each in shown.values())) for image in group
    }
    _write_files(place, files)
    written = Written(place / name for name in files)
    written.problems, written.notes = tuple(problems), tuple(notes)
    return written


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UserError(f"{folder}: expected a folder to write the report to, found: {error.strerror}") from None


def _collect_failures(
    folder: Path, data: Path | None, results: Sequence[Result], problems: list[Problem], notes: list[str]
) -> dict[str, dict[str, Any]]:
    """Return label → `anatomy.failures` for labels with a run file; add to `problems` or `notes` what is wrong."""
    runs = [(result, folder / result.dataset / f"{result.label}.run.gz") for result in results]
    runs = [(result, path) for result, path in runs if path.is_file()]
    if not runs:
        return {}
    name = results[0].dataset
    if data is None or not (data / name / "queries.jsonl").is_file():
        tried = f"none at {data / name}" if data else "no root: set --data or TOOLSCOUT_DATA"
        notes.append(f"{name}: failures per tool are not shown, for want of the dataset: found {tried}.")
        return {}
    failures_by_label: dict[str, dict[str, Any]] = {}
    try:
        dataset = Dataset.load(data / name, root=data)
        for result, path in runs:
            if result.run_sha256 and result.run_sha256 != hashlib.sha256(path.read_bytes()).hexdigest():
                entry = path.relative_to(folder).as_posix()
                problems.append(Problem(entry, f"expected the rankings that {result.label}.json was computed from"))
                continue
            run = {query: [tool for tool, _ in hits] for query, hits in read_run(path).items()}
            failures_by_label[result.label] = failures(run, dataset.split(result.split), dataset.queries)
    except UserError as error:
        notes.append(f"{name}: failures per tool are not shown: {error}.")
        return {}
    return failures_by_label


def _slugs(names: Iterable[str]) -> dict[str, str]:
    """Return name → a unique text that is safe as part of a file name."""
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


def _set_charts(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    shown = results[:MAX_CHART_ROWS]
    fewer = few(len(shown), len(results))
    rows = [
        charts.Bars(
            result.label,
            (100 * result.metrics["ndcg@5"], 100 * result.metrics["comp@5"]),
            (_interval(result, "ndcg@5"), _interval(result, "comp@5")),
        )
        for result in shown
    ]
    papers = [result for result in PUBLISHED.get(name, ()) if "ndcg@5" in result.metrics]
    rows += [
        charts.Bars(
            f"{result.label} (published)", (result.metrics["ndcg@5"], result.metrics.get("comp@5")), published=True
        )
        for result in papers
    ]
    best = f"best NDCG@5: {results[0].label} with {100 * results[0].quality:.1f} percent"
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
        columns = list(dict.fromkeys(part for result in shown for part in result.slices.get(slice_name, {})))
        if len(columns) < least:
            continue
        cut = f" The first {MAX_CHART_COLUMNS} of {len(columns)} columns." if len(columns) > MAX_CHART_COLUMNS else ""
        columns = columns[:MAX_CHART_COLUMNS]
        cells = [[result.slices.get(slice_name, {}).get(part, {}) for part in columns] for result in shown]
        heads = [head(part, [row[x] for row in cells]) for x, part in enumerate(columns)]
        values = [[100 * cell["comp@5"] if "comp@5" in cell else None for cell in row] for row in cells]
        images.append(
            Image(
                f"{slice_name}-{slug}.png",
                f"Table in colours: COMP@5 on {name} by {what}, one row for each of {len(shown)} labels, "
                f"columns {', '.join(columns)}.",
                f"COMP@5 in percent by {what}.{fewer}{cut}",
                charts.grid(f"{name}: COMP@5 by {what}", [result.label for result in shown], heads, values),
            )
        )
    return images + _size_chart(name, slug, results) + parent_charts(name, slug, results)


def _size_chart(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw recall@|N| and comp@|N| by the number of gold tools, as COLT's Fig. 4; needs two such numbers."""
    sized = [result for result in results if any("comp@|N|" in part for part in result.slices.get("gold", {}).values())]
    shown = sized[:MAX_CHART_LINES]
    ticks = sorted({part for result in shown for part in result.slices["gold"]}, key=lambda part: (len(part), part))
    if len(ticks) < 2:
        return []
    panels = [
        charts.Panel(
            f"{metric} by number of gold tools",
            ticks[:MAX_CHART_COLUMNS],
            {
                result.label: [
                    None if (value := result.slices["gold"].get(tick, {}).get(metric)) is None else 100 * value
                    for tick in ticks[:MAX_CHART_COLUMNS]
                ]
                for result in shown
            },
        )
        for metric in ("recall@|N|", "comp@|N|")
    ]
    labels = ", ".join(result.label for result in shown)
    return [
        Image(
            f"size-{slug}.png",
            f"Lines: recall@|N| and comp@|N| on {name} by number of gold tools ({', '.join(ticks)}) for {labels}.",
            f"recall@|N| and comp@|N| in percent by number of gold tools.{few(len(shown), len(sized))}",
            charts.lines(f"{name}: by number of gold tools", panels, "percent"),
        )
    ]


def _decision_chart(
    folder: Path, name: str, slug: str, results: Sequence[Result], problems: list[Problem]
) -> list[Image]:
    """Draw ROC and reliability of the labels with a detect file; add unreadable files to `problems`."""
    shown: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for result in results:
        path = folder / result.dataset / f"{result.label}.detect.gz"
        if NEED_MEASURE not in result.metrics or not path.is_file():
            continue
        try:
            rows = read_detect(path)
            shown[result.label] = detection_curves([label for _, label, _ in rows], [need for _, _, need in rows])
        except (UserError, ValueError) as error:
            problems.append(Problem(path.relative_to(folder).as_posix(), str(error)))
    if not shown:
        return []
    best = sorted(shown, key=lambda label: -_metric(results, label, NEED_MEASURE))[:MAX_CHART_LINES]
    areas = ", ".join(f"{label} {_metric(results, label, NEED_MEASURE):.3f}" for label in best)
    return [
        Image(
            f"decision-{slug}.png",
            f"Curves: tool queries of {name} accepted by no-tool queries accepted, areas {areas}; and how far the need "
            "that is said is the share that needs a tool.",
            f"Does it need a tool: ROC and reliability, both classes with equal mass.{few(len(best), len(shown))}",
            charts.decisions(f"{name}: does it need a tool", {label: shown[label] for label in best}),
        )
    ]


def _metric(results: Sequence[Result], label: str, metric: str) -> float:
    return next(result.metrics[metric] for result in results if result.label == label)


def _failure_charts(name: str, slug: str, failed: Mapping[str, Mapping[str, Any]]) -> list[Image]:
    if not failed:
        return []
    shown = dict(itertools.islice(failed.items(), MAX_FAILURE_ROWS))

    def spread(figures: Mapping[str, Any], factor: float) -> tuple[float, float] | None:
        return None if figures["mean"] is None else (factor * figures["mean"], factor * figures["deviation"])

    rates = [charts.Spread(label, {"rate": spread(figures["rate"], 100)}) for label, figures in shown.items()]
    words = [
        charts.Spread(
            label,
            {
                "missed a gold tool": spread(figures["words"]["failed"], 1),
                "found all": spread(figures["words"]["found"], 1),
            },
        )
        for label, figures in shown.items()
    ]
    means = ", ".join(f"{label} {100 * figures['rate']['mean']:.1f}" for label, figures in shown.items())
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
    """Draw each sweep, a panel for each setting: the best trial with each value, and all trials as dots."""
    images = []
    for number, swept in enumerate(sweeps[:MAX_SWEEPS_SHOWN], 1):
        names = {"ndcg@5": "NDCG@5", "comp@5": "COMP@5"}
        if all(NEED_MEASURE in trial.dev for trial in swept.trials):
            names[NEED_MEASURE] = "AUROC of the need"
        panels = []
        for name, values in itertools.islice(swept.over.items(), MAX_CHART_PANELS):
            ticks = [str(value) for value in values][:MAX_CHART_COLUMNS]
            trials_by_tick = [[trial for trial in swept.trials if str(trial.settings[name]) == tick] for tick in ticks]
            series = {
                metric: [max((100 * trial.dev[metric] for trial in trials), default=None) for trials in trials_by_tick]
                for metric in names
            }
            dots = [
                (place, 100 * trial.dev[metric])
                for place, trials in enumerate(trials_by_tick)
                for trial in trials
                for metric in series
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
    """Draw all labels over the datasets that they share, and the labels with the most datasets over those."""
    timed: dict[str, dict[str, Result]] = {}
    for results in sets.values():
        for result in results:
            if result.latency_ms.get("p50"):
                timed.setdefault(result.label, {})[result.dataset] = result
    if not timed:
        return []
    widest = max((set(results) for results in timed.values()), key=len)
    views = {frozenset(set.intersection(*map(set, timed.values()))), frozenset(widest)} - {frozenset()}
    labels = {result.label for results in sets.values() for result in results}
    images = []
    for number, common in enumerate(sorted(views, key=lambda view: (len(view), sorted(view))), 1):
        shown = {
            label: [results[name] for name in sorted(common)]
            for label, results in timed.items()
            if common <= set(results)
        }
        points = [
            charts.Point(
                label, mean(result.latency_ms["p50"] for result in results), 100 * mean(e.quality for e in results)
            )
            for label, results in sorted(shown.items())
        ]
        points = sorted(points, key=lambda point: -point.value)[:MAX_CHART_ROWS]
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
