"""The charts of the report: for each dataset quality, slices, decisions, failures and sweeps; over all, latency."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from toolscout.checks.results import PUBLISHED, Result, SweepResult, Trial
from toolscout.recipes import registry
from toolscout_lab.machine import Record
from toolscout_lab.rankers.crossencoder import CrossEncoderOptions
from toolscout_lab.report import charts
from toolscout_lab.report.page import Image, count, label_column, mean, mention_omission

__all__ = ["NEED_MEASURE", "draw_decisions", "draw_failures", "draw_latency", "draw_quality", "draw_sweeps"]

MAX_CHART_ROWS: Final = 60
MAX_CHART_COLUMNS: Final = 16
MAX_CHART_LINES: Final = 6
MAX_FAILURE_ROWS: Final = 24
MAX_SWEEPS_SHOWN: Final = 12
MAX_CHART_PANELS: Final = 6
NEED_MEASURE: Final = "detect_auroc"
PARENTS: Final = "parents"
SEEN_KINDS: Final = ("seen", "mixed", "unseen")
RECALL_MEASURES: Final = {"recall@5": "R@5", "recall@10": "R@10"}
FIRST_STAGE_PREFIX: Final = "base.base."  # before the settings that a Rerank-m gives its first stage
Curves = Mapping[str, Sequence[tuple[float, float]]]
"""The curves of `statistics.detection_curves`: name → points."""


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
        *_draw_slice(name, slug, results, "gold", "number of gold tools |T_q|", 1),
        *_draw_slice(name, slug, results, "kind", "kind of query", 2),
        *_draw_sizes(name, slug, results),
        *draw_parents(name, slug, results),
    ]


def _interval(result: Result, metric: str) -> tuple[float, float] | None:
    if metric not in result.ci95:
        return None
    low, high = result.ci95[metric]
    return 100 * low, 100 * high


def _draw_slice(
    name: str, slug: str, results: Sequence[Result], slice_name: str, description: str, min_parts: int
) -> list[Image]:
    """Draw COMP@5 of each label in each part of a slice as a table; no chart with fewer than `min_parts`."""
    shown = results[:MAX_CHART_ROWS]
    slices = [result.slices.get(slice_name, {}) for result in shown]
    parts = list(dict.fromkeys(part for parts in slices for part in parts))
    if len(parts) < min_parts:
        return []
    cut = f" The first {MAX_CHART_COLUMNS} of {len(parts)} columns." if len(parts) > MAX_CHART_COLUMNS else ""
    parts = parts[:MAX_CHART_COLUMNS]
    heads = [label_column(part, [cells.get(part, {}) for cells in slices]) for part in parts]
    values = [[_percent(cells.get(part, {}), "comp@5") for part in parts] for cells in slices]
    return [
        Image(
            f"{slice_name}-{slug}.png",
            f"Table in colours: COMP@5 on {name} by {description}, one row for each of {len(shown)} labels, "
            f"columns {', '.join(parts)}.",
            f"COMP@5 in percent by {description}.{mention_omission(len(shown), len(results))}{cut}",
            charts.grid(f"{name}: COMP@5 by {description}", [result.label for result in shown], heads, values),
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


def draw_failures(name: str, slug: str, failures: Mapping[str, Record]) -> list[Image]:
    """Draw how often gold tools are missed, and how long the queries are that miss one.

    Args:
        name: name of the dataset.
        slug: the same, safe as part of a file name.
        failures: label → `anatomy.failures`; no chart if it is empty.
    """
    if not failures:
        return []
    shown = dict(itertools.islice(failures.items(), MAX_FAILURE_ROWS))

    def spread(figures: Record, factor: float) -> tuple[float, float] | None:
        return None if figures["mean"] is None else (factor * figures["mean"], factor * figures["deviation"])

    rates = [charts.MeanAndDeviation(label, {"rate": spread(figures["rate"], 100)}) for label, figures in shown.items()]
    words = [
        charts.MeanAndDeviation(
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
    """Draw a sweep: for each setting the best trial by its value, with the best trial of all in the caption."""
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


# --- by what training saw of the gold tools' parents, as in ToolRerank's Fig. 1a and Table 3 --------------------------


def draw_parents(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw the results of one dataset, best first, that have the slice; no charts if none has it.

    There is one table for each way to cut folds, because these are not comparable.
    """
    sliced = [result for result in results if any(kind in result.slices.get(PARENTS, {}) for kind in SEEN_KINDS)]
    images = []
    for number, folds in enumerate(sorted({_folds(result) for result in sliced}), 1):
        comparable = [result for result in sliced if _folds(result) == folds]
        rows, cut = comparable[:MAX_CHART_ROWS], f", folds {folds}" if folds else ""
        columns = _find_columns(rows)
        if {kind for kind, _ in columns} == {"seen"}:
            continue  # training saw all parents, so the tables of all queries have the same figures
        heads = [
            label_column(f"{kind} {RECALL_MEASURES[metric]}", [result.slices[PARENTS].get(kind, {}) for result in rows])
            for kind, metric in columns
        ]
        kinds = ", ".join(dict.fromkeys(kind for kind, _ in columns))
        images.append(
            Image(
                f"{PARENTS}-{slug}-{number}.png",
                f"Table in colours: recall@5 and recall@10 on {name}{cut} by whether training saw the parents of the "
                f"gold tools, one row for each of {len(rows)} labels, for queries with {kinds} parents.",
                f"recall@5 and recall@10 in percent by what training saw of the gold tools' parents{cut}."
                f"{mention_omission(len(rows), len(comparable))}",
                charts.grid(
                    f"{name}: recall by what training saw{cut}",
                    [result.label for result in rows],
                    heads,
                    [[_percent_of_kind(result, *column) for column in columns] for result in rows],
                ),
            )
        )
    return images + _draw_candidates(name, slug, sliced)


def _find_columns(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Return the pairs (kind of query, metric) of which a result has a figure."""
    return [
        (kind, metric)
        for kind in SEEN_KINDS
        for metric in RECALL_MEASURES
        if any(_percent_of_kind(result, kind, metric) is not None for result in results)
    ]


def _draw_candidates(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw recall@5 by the number of candidates that a cross-encoder reads, a panel for each way to fit it."""
    groups = _group_rerankers_by_fit(results)
    if not groups:
        return []
    panels, descriptions = [], []
    for group in list(groups.values())[:MAX_CHART_PANELS]:
        panel, description = _make_panel(group, results)
        panels.append(panel)
        descriptions.append(description)
    note = " Faint: the first stage's own." if any(panel.levels for panel in panels) else ""
    few_fields = f" The first {len(panels)} of {len(groups)} fields." if len(panels) < len(groups) else ""
    return [
        Image(
            f"candidates-{slug}.png",
            f"Lines: recall@5 of cross-encoders on {name} by the number of candidates that they read, for queries whose"
            f" tools' parents training saw or not. {' '.join(descriptions)}",
            f"recall@5 in percent by number of candidates, and by what training saw of the gold tools' parents."
            f"{note}{few_fields}",
            charts.lines(f"{name}: recall@5 by number of candidates", panels, "percent"),
        )
    ]


def _group_rerankers_by_fit(results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """Group the results of Rerank-m, a cross-encoder that scores the first m tools, by how it was fitted.

    Returns:
        Key of a fit → m → result, for fits with several m. Of results with the same fit and m, the first counts.
    """
    groups: dict[str, dict[int, Result]] = {}
    for result in results:
        if (m := _read_candidates_limit(result)) is not None:
            groups.setdefault(_key_of_fit(result), {}).setdefault(m, result)
    return {key: dict(sorted(group.items())) for key, group in sorted(groups.items()) if len(group) > 1}


def _make_panel(group: Mapping[int, Result], results: Sequence[Result]) -> tuple[charts.Panel, str]:
    """Return the panel of one group, and its content in words."""
    example = next(iter(group.values()))
    first_stage = _find_first_stage(example, results)
    series = {kind: [_percent_of_kind(result, kind, "recall@5") for result in group.values()] for kind in SEEN_KINDS}
    series = {kind: values for kind, values in series.items() if any(value is not None for value in values)}
    levels = {}
    for kind in series if first_stage else ():
        assert first_stage is not None
        if (level := _percent_of_kind(first_stage, kind, "recall@5")) is not None:
            levels[kind] = level
    details = "".join(f", {detail}" for detail in _describe_fit(example))
    panel = charts.Panel(f"candidates{details}", [str(m) for m in group], series, levels=levels)
    rows = [f"{kind} {', '.join(map(_format_percent, values))}" for kind, values in series.items()]
    return panel, f"{', '.join(panel.ticks)}{details}: {'; '.join(rows)} percent."


def _format_percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _percent_of_kind(result: Result, kind: str, metric: str) -> float | None:
    return _percent(result.slices[PARENTS].get(kind, {}), metric)


def _settings(result: Result) -> Record:
    """Return the settings of a result; empty if they cannot be read."""
    try:
        return msgspec.json.decode(result.settings, type=Record)
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _folds(result: Result) -> str:
    return str(_settings(result).get("folds", ""))


def _read_candidates_limit(result: Result) -> int | None:
    """Return m of a Rerank-m, the number of candidates that it scores; None for another recipe.

    Rerank-m is a ToolRerank with equal limits for seen and unseen tools, so both settings hold m.
    """
    settings = _settings(result)
    m = settings.get("seen")
    is_rerank = re.fullmatch(r"crossencoder-\d+", result.recipe) and m == settings.get("unseen")
    return m if is_rerank and isinstance(m, int) else None


def _key_of_fit(result: Result) -> str:
    """Return a key of everything but m: the results of one panel have the same."""
    settings = {key: value for key, value in _settings(result).items() if key not in ("seen", "unseen")}
    return msgspec.json.encode([settings, result.encoder, result.seed, result.split], order="sorted").decode()


def _describe_fit(result: Result) -> list[str]:
    """Describe how the Rerank-m of one panel were fitted, without the settings that all of them have."""
    common = {"seen", "unseen", "hierarchy"}
    details = [f"{key} {value}" for key, value in _settings(result).items() if key not in common]
    return [*details, *([f"seed {result.seed}"] if result.seed else [])]


def _find_first_stage(result: Result, results: Sequence[Result]) -> Result | None:
    """Find the result of a Rerank-m's first stage alone, fitted the same way; None if there is none."""
    settings = _settings(result)
    name = settings.get(FIRST_STAGE_PREFIX.rstrip("."), CrossEncoderOptions().base)
    recipe = registry.all_recipes().get(name) if isinstance(name, str) else None
    if recipe is None or "base" in settings:
        return None
    below = {
        key.removeprefix(FIRST_STAGE_PREFIX): value
        for key, value in settings.items()
        if key.startswith(FIRST_STAGE_PREFIX)
    }
    folds = {"folds": settings["folds"]} if "folds" in settings else {}
    expected: Record = {**recipe.settings, **below, **folds}
    return next(
        (
            other
            for other in results
            if (other.recipe, other.seed, other.split) == (name, result.seed, result.split)
            and other.encoder in (None, result.encoder)
            and _settings(other) == expected
        ),
        None,
    )
