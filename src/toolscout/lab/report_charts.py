"""The charts of the report: for each dataset quality, slices, decisions, failures and sweeps; over all, latency."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from toolscout.checks.results import PUBLISHED, Result, SweepResult, Trial
from toolscout.lab import charts
from toolscout.lab.parent_charts import parent_charts
from toolscout.lab.report_page import Image, count, label_column, mean, mention_omission

__all__ = [
    "NEED_MEASURE",
    "draw_decisions",
    "draw_failures",
    "draw_latency",
    "draw_quality",
    "draw_sweeps",
]

MAX_CHART_ROWS: Final = 60
MAX_CHART_COLUMNS: Final = 16
MAX_CHART_LINES: Final = 6
MAX_FAILURE_ROWS: Final = 24
MAX_SWEEPS_SHOWN: Final = 12
MAX_CHART_PANELS: Final = 6
NEED_MEASURE: Final = "detect_auroc"
Curves = Mapping[str, Sequence[tuple[float, float]]]
"""The curves of `metrics.detection_curves`: name → points."""


def draw_quality(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw what the results of one dataset say of quality: all queries, then slices.

    Args:
        name: name of the dataset.
        slug: the same, safe as part of a file name.
        results: at least one, best first.
    """
    shown = results[:MAX_CHART_ROWS]
    papers = [result for result in PUBLISHED.get(name, ()) if "ndcg@5" in result.metrics]
    rows = [
        charts.Bars(
            result.label,
            (100 * result.metrics["ndcg@5"], 100 * result.metrics["comp@5"]),
            (_interval(result, "ndcg@5"), _interval(result, "comp@5")),
        )
        for result in shown
    ]
    rows += [
        charts.Bars(
            f"{result.label} (published)", (result.metrics["ndcg@5"], result.metrics.get("comp@5")), published=True
        )
        for result in papers
    ]
    best = f"best NDCG@5: {results[0].label} with {100 * results[0].quality:.1f} percent"
    note = " Grey and hatched: published." if papers else ""
    fewer = mention_omission(len(shown), len(results))
    quality = Image(
        f"quality-{slug}.png",
        f"Bars of NDCG@5 and COMP@5 on {name} for {len(rows)} systems; {best}. The table has all figures.",
        f"NDCG@5 and COMP@5 with 95 % intervals.{note}{fewer}",
        charts.bars(f"{name}: NDCG@5 and COMP@5", rows),
    )
    return [
        quality,
        *_draw_slice(_Slice("gold", "number of gold tools |T_q|", 1), name, slug, results),
        *_draw_slice(_Slice("kind", "kind of query", 2), name, slug, results),
        *_draw_sizes(name, slug, results),
        *parent_charts(name, slug, results),
    ]


def _interval(result: Result, metric: str) -> tuple[float, float] | None:
    if metric not in result.ci95:
        return None
    low, high = result.ci95[metric]
    return 100 * low, 100 * high


class _Slice(NamedTuple):
    """A slice that is drawn as a table: its name in a result, in words, and how many parts it needs."""

    name: str
    description: str
    min_parts: int


def _draw_slice(chart: _Slice, name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw COMP@5 of each label in each part of a slice; no chart with too few parts."""
    shown = results[:MAX_CHART_ROWS]
    slices = [result.slices.get(chart.name, {}) for result in shown]
    parts = list(dict.fromkeys(part for parts in slices for part in parts))
    if len(parts) < chart.min_parts:
        return []
    cut = f" The first {MAX_CHART_COLUMNS} of {len(parts)} columns." if len(parts) > MAX_CHART_COLUMNS else ""
    parts = parts[:MAX_CHART_COLUMNS]
    heads = [label_column(part, [cells.get(part, {}) for cells in slices]) for part in parts]
    values = [[_percent(cells.get(part, {}), "comp@5") for part in parts] for cells in slices]
    return [
        Image(
            f"{chart.name}-{slug}.png",
            f"Table in colours: COMP@5 on {name} by {chart.description}, one row for each of {len(shown)} labels, "
            f"columns {', '.join(parts)}.",
            f"COMP@5 in percent by {chart.description}.{mention_omission(len(shown), len(results))}{cut}",
            charts.grid(f"{name}: COMP@5 by {chart.description}", [result.label for result in shown], heads, values),
        )
    ]


def _percent(figures: Mapping[str, float], metric: str) -> float | None:
    value = figures.get(metric)
    return None if value is None else 100 * value


def _draw_sizes(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
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
                    _percent(result.slices["gold"].get(tick, {}), metric) for tick in ticks[:MAX_CHART_COLUMNS]
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
            f"recall@|N| and comp@|N| in percent by number of gold tools.{mention_omission(len(shown), len(sized))}",
            charts.lines(f"{name}: by number of gold tools", panels, "percent"),
        )
    ]


def draw_decisions(name: str, slug: str, areas: Mapping[str, float], curves: Mapping[str, Curves]) -> list[Image]:
    """Draw ROC and reliability of the decision whether a query needs a tool; no chart without a label.

    Args:
        name: name of the dataset.
        slug: the same, safe as part of a file name.
        areas: label → AUROC.
        curves: label → its curves, for the same labels.
    """
    if not curves:
        return []
    best = sorted(curves, key=lambda label: -areas[label])[:MAX_CHART_LINES]
    listed = ", ".join(f"{label} {areas[label]:.3f}" for label in best)
    return [
        Image(
            f"decision-{slug}.png",
            f"Curves: tool queries of {name} accepted by no-tool queries accepted, areas {listed}; and the share of "
            "queries that need a tool by the estimated need.",
            "Does it need a tool: ROC and reliability, both classes with equal mass."
            f"{mention_omission(len(best), len(curves))}",
            charts.decisions(f"{name}: does it need a tool", {label: curves[label] for label in best}),
        )
    ]


def draw_failures(name: str, slug: str, failures: Mapping[str, Mapping[str, Any]]) -> list[Image]:
    """Draw how often gold tools are missed, and how long the queries are that miss one.

    Args:
        name: name of the dataset.
        slug: the same, safe as part of a file name.
        failures: label → `anatomy.failures`; no chart if it is empty.
    """
    if not failures:
        return []
    shown = dict(itertools.islice(failures.items(), MAX_FAILURE_ROWS))

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
            + mention_omission(len(shown), len(failures)),
            charts.spreads(
                f"{name}: failures at 5",
                [("failure rate of a tool, percent", rates, 100.0), ("words of a query", words, None)],
            ),
        )
    ]


# --- sweeps -----------------------------------------------------------------------------------------------------------


def draw_sweeps(slug: str, sweeps: Sequence[SweepResult]) -> list[Image]:
    """Draw each sweep, a panel for each setting: the best trial with each value, and all trials as dots."""
    return [
        _draw_sweep(f"sweep-{slug}-{number}.png", swept) for number, swept in enumerate(sweeps[:MAX_SWEEPS_SHOWN], 1)
    ]


def _draw_sweep(file: str, swept: SweepResult) -> Image:
    names = {"ndcg@5": "NDCG@5", "comp@5": "COMP@5"}
    if all(NEED_MEASURE in trial.dev for trial in swept.trials):
        names[NEED_MEASURE] = "AUROC of the need"
    panels = [
        _make_sweep_panel(setting, [str(value) for value in values][:MAX_CHART_COLUMNS], swept, list(names))
        for setting, values in itertools.islice(swept.over.items(), MAX_CHART_PANELS)
    ]
    best = max(swept.trials, key=lambda trial: trial.dev["ndcg@5"] + trial.dev["comp@5"])
    chosen = ", ".join(f"{name} = {value}" for name, value in best.settings.items())
    return Image(
        file,
        f"Lines: {' and '.join(names.values())} on dev of {swept.dataset} by each swept setting of {swept.recipe}; "
        f"best: {chosen} with {100 * best.dev['ndcg@5']:.1f} and {100 * best.dev['comp@5']:.1f} percent.",
        f"Sweep {swept.label} on dev, {count(len(swept.trials), 'trial')}: each point the best over the other "
        f"settings, each dot a trial. Best: {chosen}.",
        charts.lines(f"{swept.dataset}: {swept.label} on dev", panels, "percent"),
    )


def _make_sweep_panel(setting: str, ticks: Sequence[str], swept: SweepResult, metrics: Sequence[str]) -> charts.Panel:
    """Make the panel of one setting; a sweep over this setting alone has no dots beside its points."""
    trials_by_tick: list[list[Trial]] = [
        [trial for trial in swept.trials if str(trial.settings[setting]) == tick] for tick in ticks
    ]
    series = {
        metric: [max((100 * trial.dev[metric] for trial in trials), default=None) for trials in trials_by_tick]
        for metric in metrics
    }
    dots = [
        (place, 100 * trial.dev[metric])
        for place, trials in enumerate(trials_by_tick)
        for trial in trials
        for metric in metrics
    ]
    return charts.Panel(setting, ticks, series, dots if len(swept.over) > 1 else ())


# --- latency ----------------------------------------------------------------------------------------------------------


def draw_latency(sets: Mapping[str, Sequence[Result]]) -> list[Image]:
    """Draw all labels over the datasets that they share, and the labels with the most datasets over those.

    Args:
        sets: dataset → its results.
    """
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
    ordered = sorted(views, key=lambda view: (len(view), sorted(view)))
    return [
        _draw_latency_view(f"latency-{number}.png", sorted(view), timed, labels)
        for number, view in enumerate(ordered, 1)
    ]


def _draw_latency_view(
    file: str, names: Sequence[str], timed: Mapping[str, Mapping[str, Result]], labels: set[str]
) -> Image:
    """Draw the means over some datasets of each label that has a latency on all of them.

    Args:
        file: name of the image.
        names: names of the datasets.
        timed: label → dataset → its result with a latency.
        labels: all labels; the caption names those that are not shown.
    """
    shown = {
        label: [results[name] for name in names] for label, results in timed.items() if results.keys() >= set(names)
    }
    points = [
        charts.Point(
            label,
            mean(result.latency_ms["p50"] for result in results),
            100 * mean(result.quality for result in results),
        )
        for label, results in sorted(shown.items())
    ]
    points = sorted(points, key=lambda point: -point.value)[:MAX_CHART_ROWS]
    over = count(len(names), "dataset")
    absent = ", ".join(sorted(labels - shown.keys()))
    return Image(
        file,
        f"Points: latency (p50) against NDCG@5 of {len(points)} labels, means over {over}. "
        f"The best, {points[0].label}, has {points[0].value:.1f} percent in {points[0].ms:.3g} ms.",
        f"Means over {', '.join(names)}, which all labels shown have."
        + (f" Not shown, for want of one of them or of its latency: {absent}." if absent else "")
        + mention_omission(len(points), len(shown)),
        charts.scatter(f"Latency against NDCG@5, {over}", points),
    )
