"""Charts of a report by what training saw: the slice `parents` of results, as ToolRerank's Fig. 1a and Table 3 cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from toolscout.checks.results import Result
from toolscout.lab import charts
from toolscout.lab.report_page import Image, few, head
from toolscout.methods.crossencoder import Options
from toolscout.recipes import registry

__all__ = ["parent_charts"]

PARENTS: Final = "parents"
KINDS: Final = ("seen", "mixed", "unseen")
METRICS: Final = {"recall@5": "R@5", "recall@10": "R@10"}
BELOW: Final = "base.base."  # settings of a Rerank-m's first stage begin so; its name is the setting without the dot
MOST_ROWS: Final = 60
MOST_PANELS: Final = 6


def parent_charts(name: str, slug: str, held: Sequence[Result]) -> list[Image]:
    """What is shown of the results of one dataset, best first, that have the slice; nothing where none has it."""
    known = [each for each in held if any(kind in each.slices.get(PARENTS, {}) for kind in KINDS)]
    return _tables(name, slug, known) + _candidates(name, slug, known)


def _tables(name: str, slug: str, known: Sequence[Result]) -> list[Image]:
    """recall@5 and recall@10 by what training saw, unless it saw all.

    A table for each way to cut folds, which are not comparable.
    """
    images = []
    for number, folds in enumerate(sorted({_folds(each) for each in known}), 1):
        every = [each for each in known if _folds(each) == folds]
        shown = every[:MOST_ROWS]
        cut = f", folds {folds}" if folds else ""
        columns = [(kind, metric) for kind in KINDS for metric in METRICS]
        columns = [
            (kind, metric) for kind, metric in columns if any(_of(each, kind, metric) is not None for each in shown)
        ]
        if {kind for kind, _ in columns} == {"seen"}:
            continue  # training saw all: the other tables say the same
        heads = [
            head(f"{kind} {METRICS[metric]}", [each.slices[PARENTS].get(kind, {}) for each in shown])
            for kind, metric in columns
        ]
        kinds = ", ".join(dict.fromkeys(kind for kind, _ in columns))
        images.append(
            Image(
                f"{PARENTS}-{slug}-{number}.png",
                f"Table in colours: recall@5 and recall@10 on {name}{cut} by whether training saw the parents of the "
                f"gold tools, one row for each of {len(shown)} labels, for queries with {kinds} parents.",
                f"recall@5 and recall@10 in percent by what training saw of the gold tools' parents{cut}."
                f"{few(len(shown), len(every))}",
                charts.grid(
                    f"{name}: recall by what training saw{cut}",
                    [each.label for each in shown],
                    heads,
                    [[_of(each, *column) for column in columns] for each in shown],
                ),
            )
        )
    return images


def _candidates(name: str, slug: str, known: Sequence[Result]) -> list[Image]:
    """recall@5 by the number of candidates that a cross-encoder reads; a field for each way to fit it."""
    groups: dict[str, dict[int, Result]] = {}
    for each in known:
        if (m := _m(each)) is not None:
            groups.setdefault(_way(each), {}).setdefault(m, each)
    groups = {way: dict(sorted(group.items())) for way, group in sorted(groups.items()) if len(group) > 1}
    if not groups:
        return []
    panels, told = [], []
    for group in list(groups.values())[:MOST_PANELS]:
        some = next(iter(group.values()))
        first = _first_stage(some, known)
        series = {kind: [_of(each, kind, "recall@5") for each in group.values()] for kind in KINDS}
        series = {kind: values for kind, values in series.items() if any(value is not None for value in values)}
        own = {kind: _of(first, kind, "recall@5") for kind in series} if first else {}
        levels = {kind: level for kind, level in own.items() if level is not None}
        below = "".join(f", {each}" for each in _said(some))
        panels.append(charts.Panel(f"candidates{below}", [str(m) for m in group], series, levels=levels))
        rows = [f"{kind} {', '.join('–' if v is None else f'{v:.1f}' for v in row)}" for kind, row in series.items()]
        told.append(f"{', '.join(panels[-1].ticks)}{below}: {'; '.join(rows)} percent.")
    note = " Faint: the first stage's own." if any(panel.levels for panel in panels) else ""
    few_fields = f" The first {len(panels)} of {len(groups)} fields." if len(panels) < len(groups) else ""
    return [
        Image(
            f"candidates-{slug}.png",
            f"Lines: recall@5 of cross-encoders on {name} by the number of candidates that they read, for queries whose"
            f" tools' parents training saw or not. {' '.join(told)}",
            f"recall@5 in percent by number of candidates, and by what training saw of the gold tools' parents."
            f"{note}{few_fields}",
            charts.lines(f"{name}: recall@5 by number of candidates", panels, "percent"),
        )
    ]


def _of(result: Result, kind: str, metric: str) -> float | None:
    value = result.slices[PARENTS].get(kind, {}).get(metric)
    return None if value is None else 100 * value


def _settings(result: Result) -> dict[str, Any]:
    try:
        return msgspec.json.decode(result.settings, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _folds(result: Result) -> str:
    return str(_settings(result).get("folds", ""))


def _m(result: Result) -> int | None:
    """How many candidates a Rerank-m reads; None: it is none."""
    settings = _settings(result)
    m = settings.get("seen")
    rerank = re.fullmatch(r"crossencoder-\d+", result.recipe) and m == settings.get("unseen")
    return m if rerank and isinstance(m, int) else None


def _way(result: Result) -> str:
    """What the Rerank-m of one field have in common."""
    settings = {key: value for key, value in _settings(result).items() if key not in ("seen", "unseen")}
    return msgspec.json.encode([settings, result.encoder, result.seed, result.split], order="sorted").decode()


def _said(result: Result) -> list[str]:
    """How the Rerank-m of one field were made, beyond what all of them are."""
    own = {"seen", "unseen", "hierarchy"}
    told = [f"{key} {value}" for key, value in _settings(result).items() if key not in own]
    return [*told, *([f"seed {result.seed}"] if result.seed else [])]


def _first_stage(result: Result, known: Sequence[Result]) -> Result | None:
    """The result of a Rerank-m's first stage alone, fitted the same way; None: there is none."""
    settings = _settings(result)
    name = settings.get(BELOW.rstrip("."), Options().base)
    recipe = registry.all_recipes().get(name) if isinstance(name, str) else None
    if recipe is None or "base" in settings:
        return None
    below = {key.removeprefix(BELOW): value for key, value in settings.items() if key.startswith(BELOW)}
    folds = {"folds": settings["folds"]} if "folds" in settings else {}
    wanted: Mapping[str, Any] = {**recipe.settings, **below, **folds}
    return next(
        (
            each
            for each in known
            if (each.recipe, each.seed, each.split) == (name, result.seed, result.split)
            and each.encoder in (None, result.encoder)
            and _settings(each) == wanted
        ),
        None,
    )
