"""Charts by what training saw of the gold tools' parents, as in ToolRerank's Fig. 1a and Table 3."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from toolscout.checks.results import Result
from toolscout.lab import charts
from toolscout.lab.report_page import Image, label_column, mention_omission
from toolscout.methods.crossencoder import CrossEncoderOptions
from toolscout.recipes import registry

__all__ = ["parent_charts"]

PARENTS: Final = "parents"
SEEN_KINDS: Final = ("seen", "mixed", "unseen")
RECALL_MEASURES: Final = {"recall@5": "R@5", "recall@10": "R@10"}
FIRST_STAGE_PREFIX: Final = "base.base."  # before the settings that a Rerank-m gives its first stage
MAX_CHART_ROWS: Final = 60
MAX_CHART_PANELS: Final = 6


def parent_charts(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw the results of one dataset, best first, that have the slice; no charts if none has it."""
    sliced = [result for result in results if any(kind in result.slices.get(PARENTS, {}) for kind in SEEN_KINDS)]
    return _draw_tables(name, slug, sliced) + _draw_candidates(name, slug, sliced)


def _draw_tables(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw recall@5 and recall@10 by what training saw, unless it saw all.

    There is one table for each way to cut folds, because these are not comparable.
    """
    images = []
    for number, folds in enumerate(sorted({_folds(result) for result in results}), 1):
        image = _draw_table(name, f"{PARENTS}-{slug}-{number}.png", results, folds)
        images += [image] if image else []
    return images


def _draw_table(name: str, file: str, results: Sequence[Result], folds: str) -> Image | None:
    """Draw the table of the results with these folds; None if training saw all parents."""
    comparable = [result for result in results if _folds(result) == folds]
    rows = comparable[:MAX_CHART_ROWS]
    cut = f", folds {folds}" if folds else ""
    columns = _find_columns(rows)
    if {kind for kind, _ in columns} == {"seen"}:
        return None  # training saw all parents, so the tables of all queries have the same figures
    heads = [
        label_column(f"{kind} {RECALL_MEASURES[metric]}", [result.slices[PARENTS].get(kind, {}) for result in rows])
        for kind, metric in columns
    ]
    kinds = ", ".join(dict.fromkeys(kind for kind, _ in columns))
    return Image(
        file,
        f"Table in colours: recall@5 and recall@10 on {name}{cut} by whether training saw the parents of the "
        f"gold tools, one row for each of {len(rows)} labels, for queries with {kinds} parents.",
        f"recall@5 and recall@10 in percent by what training saw of the gold tools' parents{cut}."
        f"{mention_omission(len(rows), len(comparable))}",
        charts.grid(
            f"{name}: recall by what training saw{cut}",
            [result.label for result in rows],
            heads,
            [[_percent(result, *column) for column in columns] for result in rows],
        ),
    )


def _find_columns(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Return the pairs (kind of query, metric) of which a result has a figure."""
    return [
        (kind, metric)
        for kind in SEEN_KINDS
        for metric in RECALL_MEASURES
        if any(_percent(result, kind, metric) is not None for result in results)
    ]


def _draw_candidates(name: str, slug: str, results: Sequence[Result]) -> list[Image]:
    """Draw recall@5 by the number of candidates that a cross-encoder reads, a panel for each way to fit it."""
    groups = _group_by_fit(results)
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


def _group_by_fit(results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """Group the Rerank-m by how they were fitted: way → m → result, for ways with several m."""
    groups: dict[str, dict[int, Result]] = {}
    for result in results:
        if (m := _count_candidates(result)) is not None:
            groups.setdefault(_key_of_fit(result), {}).setdefault(m, result)
    return {key: dict(sorted(group.items())) for key, group in sorted(groups.items()) if len(group) > 1}


def _make_panel(group: Mapping[int, Result], results: Sequence[Result]) -> tuple[charts.Panel, str]:
    """Return the panel of one group, and its content in words."""
    example = next(iter(group.values()))
    first_stage = _find_first_stage(example, results)
    series = {kind: [_percent(result, kind, "recall@5") for result in group.values()] for kind in SEEN_KINDS}
    series = {kind: values for kind, values in series.items() if any(value is not None for value in values)}
    levels = {}
    for kind in series if first_stage else ():
        assert first_stage is not None
        if (level := _percent(first_stage, kind, "recall@5")) is not None:
            levels[kind] = level
    details = "".join(f", {detail}" for detail in _describe_fit(example))
    panel = charts.Panel(f"candidates{details}", [str(m) for m in group], series, levels=levels)
    rows = [f"{kind} {', '.join(map(_format, values))}" for kind, values in series.items()]
    return panel, f"{', '.join(panel.ticks)}{details}: {'; '.join(rows)} percent."


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _percent(result: Result, kind: str, metric: str) -> float | None:
    value = result.slices[PARENTS].get(kind, {}).get(metric)
    return None if value is None else 100 * value


def _settings(result: Result) -> dict[str, Any]:
    try:
        return msgspec.json.decode(result.settings, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _folds(result: Result) -> str:
    return str(_settings(result).get("folds", ""))


def _count_candidates(result: Result) -> int | None:
    """Return m of a Rerank-m, the number of candidates that it scores; None for another recipe.

    Rerank-m is a ToolRerank with equal limits for seen and unseen tools, so both settings hold m.
    """
    settings = _settings(result)
    m = settings.get("seen")
    is_rerank = re.fullmatch(r"crossencoder-\d+", result.recipe) and m == settings.get("unseen")
    return m if is_rerank and isinstance(m, int) else None


def _key_of_fit(result: Result) -> str:
    """Return what the Rerank-m of one panel have in common."""
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
    expected: Mapping[str, Any] = {**recipe.settings, **below, **folds}
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
