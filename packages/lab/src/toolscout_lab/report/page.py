"""The HTML page of the report: its tables; `page.html` puts them into one self-contained document.

The template escapes all text from result files.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from toolscout.checks.results import PUBLISHED, TRAINED, UNTRAINED, Result, SweepResult
from toolscout.errors import require
from toolscout.metrics import DEFAULT_MEASURES
from toolscout.sources import Problem
from toolscout_lab.machine import Record

if TYPE_CHECKING:
    import jinja2

__all__ = ["Content", "Image", "count", "label_column", "mean", "mention_omission", "page"]

MAX_TRIALS_SHOWN: Final = 20
MAX_WORST_TOOLS: Final = 3
MAX_HEAD_CHARS: Final = 24
SUMMARY_MEASURES: Final = ("recall@5", "ndcg@5", "ndcg@10", "comp@5", "comp@10", "mrr")


class Image(NamedTuple):
    """A chart: its file name, its content in words, its caption, its PNG bytes."""

    file: str
    alt: str
    caption: str
    data: bytes


class Content(NamedTuple):
    """The content of the page for one dataset: results, best first; sweeps; failures by label; charts."""

    slug: str
    results: Sequence[Result]
    sweeps: Sequence[SweepResult]
    failures: Mapping[str, Record]
    images: Sequence[Image]


class Cell(NamedTuple):
    """A cell: its text, the value that it is sorted by, a note in small letters."""

    text: str
    value: float | None = None
    note: str = ""


class PageRow(NamedTuple):
    """A row: its name, its cells, the class of its element, a note behind its name."""

    name: str
    cells: Sequence[Cell]
    kind: str = ""
    note: str = ""


class Table(NamedTuple):
    """A table with a caption and the heads of its columns."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[PageRow]


def count(number: int, what: str) -> str:
    """Write a number with its noun: `3 datasets`, `1 dataset`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def mention_omission(shown: int, total: int) -> str:
    """Return a sentence for the caption that labels are left out; empty if all are shown."""
    return f" The best {shown} of {total} labels." if shown < total else ""


def label_column(part: str, cells: Sequence[Mapping[str, float]]) -> str:
    """Return the label of a column of a coloured table: its name and its number of queries."""
    counts = {cell["n"] for cell in cells if "n" in cell}
    name = part if len(part) <= MAX_HEAD_CHARS else f"{part[: MAX_HEAD_CHARS - 1]}…"
    return f"{name}\nn = {counts.pop():.0f}" if len(counts) == 1 else f"{name}\nn differs"


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one value."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


# --- tables -----------------------------------------------------------------------------------------------------------


def _text(value: object) -> Cell:
    if isinstance(value, msgspec.Raw):
        value = bytes(value).decode(errors="replace").strip('"')
    return Cell("–" if value is None else str(value))


def _percent(value: float | None, interval: tuple[float, float] | None = None) -> Cell:
    if value is None:
        return Cell("–")
    note = f"{100 * interval[0]:.2f} to {100 * interval[1]:.2f}" if interval else ""
    return Cell(f"{100 * value:.2f}", value, note)


def _plain(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(f"{value:,.3f}".rstrip("0").rstrip("."), value)


def _make_quality_table(name: str, results: Sequence[Result]) -> Table:
    """Make the table of measures of a dataset, with the published rows of papers below ours."""
    papers = PUBLISHED.get(name, ())
    names = set().union(*(result.metrics for result in results), *(result.metrics for result in papers))
    metrics = [
        *(str(measure) for measure in DEFAULT_MEASURES if measure in names),
        *sorted(names.difference(DEFAULT_MEASURES)),
    ]
    rows = [
        PageRow(result.label, [_percent(result.metrics.get(metric), result.ci95.get(metric)) for metric in metrics])
        for result in results
    ]
    for paper in papers:
        cells = [_percent(paper.metrics[metric] / 100 if metric in paper.metrics else None) for metric in metrics]
        rows.append(PageRow(paper.label, cells, "published", f"published, {paper.source}"))
    note = (
        " Published rows: as the papers give them; COLT's authors chose their epoch on the test queries, ours is "
        "chosen on dev."
    )
    caption = f"{name}: all metrics in percent, 95 % intervals small.{note if papers else ''}"
    return Table(caption, ["label", *metrics], rows)


def _make_cost_table(name: str, results: Sequence[Result]) -> Table:
    heads = ["label", "recipe", "encoder", "split", "chosen on", "seed", "queries", "tools", "p50 ms", "p95 ms"]
    heads += ["queries/s", "fit s", "peak MB"]
    rows = [
        PageRow(
            result.label,
            [
                *map(_text, (result.recipe, result.encoder, result.split, result.selected_on)),
                *map(_plain, (result.seed, result.n_queries, result.n_tools)),
                *map(_plain, (result.latency_ms.get("p50"), result.latency_ms.get("p95"))),
                *map(_plain, (result.batch_qps, result.fit_seconds, result.peak_rss_mb)),
            ],
        )
        for result in results
    ]
    return Table(f"{name}: what each label is and costs.", heads, rows)


def _make_origin_table(name: str, results: Sequence[Result]) -> Table:
    rows = [
        PageRow(result.label, [*map(_text, (result.commit, result.settings, result.versions, result.machine))])
        for result in results
    ]
    return Table(f"{name}: how each was made.", ["label", "commit", "settings", "versions", "machine"], rows)


def _make_failure_table(name: str, failures: Mapping[str, Record]) -> Table:
    heads = ["label", "gold tools", "mean rate", "deviation", "missed a tool", "never missed", "failed queries"]
    heads += ["words, failed", "words, found", "worst tools"]
    rows = []
    for label, figures in failures.items():
        rate, words = figures["rate"], figures["words"]
        worst = [f"{tool['tool']} {tool['missed']}/{tool['gold']}" for tool in figures["worst"][:MAX_WORST_TOOLS]]
        numbers = (figures["missed_per_tool"], figures["spared"], words["failed"]["n"])
        cells = [
            _plain(figures["tools"]),
            *map(_percent, (rate["mean"], rate["deviation"])),
            *map(_plain, (*numbers, words["failed"]["mean"], words["found"]["mean"])),
            _text("; ".join(worst) or None),
        ]
        rows.append(PageRow(label, cells))
    return Table(
        f"{name}: gold tools that are not among the first 5, in percent of the queries that need them (mean over "
        "tools, and its deviation); the mean number of misses of a tool; mean lengths of queries in words.",
        heads,
        rows,
    )


def _make_sweep_table(swept: SweepResult) -> Table:
    ranked = sorted(swept.trials, key=lambda trial: -(trial.dev["ndcg@5"] + trial.dev["comp@5"]))
    names = list(swept.trials[0].dev)
    rows = [
        PageRow(
            ", ".join(f"{name} = {value}" for name, value in trial.settings.items()),
            [*(_percent(trial.dev.get(name)) for name in names), _plain(trial.fit_seconds), _plain(trial.seconds)],
        )
        for trial in ranked[:MAX_TRIALS_SHOWN]
    ]
    omission = f" The best {MAX_TRIALS_SHOWN} of {len(ranked)} trials." if len(ranked) > MAX_TRIALS_SHOWN else ""
    encoder = f", encoder {swept.encoder}" if swept.encoder else ""
    caption = f"{swept.dataset}: sweep {swept.label} of {swept.recipe} on dev{encoder}.{omission}"
    return Table(caption, ["settings", *names, "fit s", "all s"], rows)


def _make_summaries(sets: Mapping[str, Sequence[Result]]) -> list[Table]:
    """Make the tables of means: over all test sets, and over those with and without training queries."""
    test_sets = TRAINED + UNTRAINED
    if not sets:
        return []
    if not sets.keys() >= set(test_sets):
        return [_make_summary(f"Means over {count(len(sets), 'dataset')}", sets, list(sets))]
    further = sorted(sets.keys() - set(test_sets))
    title = f"Means over the {len(test_sets)} test sets" + (f" (without {', '.join(further)})" if further else "")
    return [
        _make_summary(title, sets, test_sets),
        _make_summary(f"The {len(TRAINED)} of them with training queries", sets, TRAINED),
        _make_summary(f"The {len(UNTRAINED)} of them without", sets, UNTRAINED),
    ]


def _make_summary(title: str, sets: Mapping[str, Sequence[Result]], names: Sequence[str]) -> Table:
    """Make a table of means over datasets. Labels with all of them come first."""
    labels: dict[str, list[Result]] = {}
    for name in names:
        for result in sets[name]:
            labels.setdefault(result.label, []).append(result)
    ranked = sorted(labels.items(), key=lambda item: (-len(item[1]), -mean(e.quality for e in item[1]), item[0]))
    rows = []
    for label, results in ranked:
        cells = [
            Cell(f"{len(results)} of {len(names)}", len(results)),
            *(_percent(_mean_of_all([result.metrics.get(name) for result in results])) for name in SUMMARY_MEASURES),
            _plain(_mean_of_all([result.latency_ms.get("p50") for result in results])),
        ]
        rows.append(PageRow(label, cells, "" if len(results) == len(names) else "partial"))
    caption = f"{title}, in percent; a label with fewer sets is a mean over those, and not comparable with the others."
    return Table(caption, ["label", "sets", *SUMMARY_MEASURES, "p50 ms"], rows)


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    present = [value for value in values if value is not None]
    return mean(present) if len(present) == len(values) else None


# --- page -------------------------------------------------------------------------------------------------------------


class _Section(NamedTuple):
    """The part of the page on one dataset, as the template shows it."""

    slug: str
    images: Sequence[Image]
    tables: Sequence[Table]
    origins: Table | None


def _make_section(name: str, content: Content) -> _Section:
    results = content.results
    tables = [_make_quality_table(name, results), _make_cost_table(name, results)] if results else []
    tables += [_make_failure_table(name, content.failures)] if content.failures else []
    tables += map(_make_sweep_table, content.sweeps)
    return _Section(content.slug, content.images, tables, _make_origin_table(name, results) if results else None)


@functools.cache
def _load_template() -> jinja2.Template:
    environment = require("jinja2", "lab").Environment(autoescape=True, keep_trailing_newline=True)
    environment.filters["b64encode"] = lambda data: base64.b64encode(data).decode()
    template: jinja2.Template = environment.from_string(
        (resources.files("toolscout_lab.report") / "page.html").read_text(encoding="utf-8")
    )
    return template


def page(
    sets: Mapping[str, Content], problems: Sequence[Problem], notes: Sequence[str], overview: Sequence[Image]
) -> str:
    """Render the document.

    Args:
        sets: dataset → its content.
        problems: the files that were left out.
        notes: what could not be shown because something other than a result is missing.
        overview: charts over several datasets.
    """
    n_results = sum(len(content.results) for content in sets.values())
    n_sweeps = sum(len(content.sweeps) for content in sets.values())
    counts = " and ".join([count(n_results, "result"), *([count(n_sweeps, "sweep")] if n_sweeps else [])])
    return _load_template().render(
        counts=f"{counts} on {count(len(sets), 'dataset')}",
        notes=notes,
        problems=problems,
        sets={name: _make_section(name, content) for name, content in sets.items()},
        summary=_make_summaries({name: content.results for name, content in sets.items() if content.results}),
        overview=overview,
    )
