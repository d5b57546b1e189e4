"""The HTML page of the report: tables and figures in one self-contained document.

All text from result files is escaped here.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.checks.results import PUBLISHED, TRAINED, UNTRAINED, Result, SweepResult
from toolscout.metrics import DEFAULT_MEASURES
from toolscout.sources import Problem

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
    failures: Mapping[str, Mapping[str, Any]]
    images: Sequence[Image]


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


def _render_table(caption: str, heads: Sequence[str], rows: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """Render a table of finished cells; each row: its class, the HTML of its header, its cells."""
    header_cells = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in heads)
    body = "\n".join(
        f'<tr{f" class={kind}" if kind else ""}><th scope="row">{name}</th>{"".join(cells)}</tr>'
        for kind, name, cells in rows
    )
    title = html.escape(caption)
    return (
        f'<div class="wide" role="region" aria-label="{title}" tabindex="0"><table>\n<caption>{title}</caption>\n'
        f"<thead><tr>{header_cells}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _text(value: object) -> str:
    return f"<td>{'–' if value is None else html.escape(str(value))}</td>"


def _number(value: float | None, shown: str, interval: tuple[float, float] | None = None) -> str:
    if value is None:
        return "<td>–</td>"
    between = f" <small>{100 * interval[0]:.2f} to {100 * interval[1]:.2f}</small>" if interval else ""
    return f'<td data-value="{value!r}">{shown}{between}</td>'


def _percent(value: float | None, interval: tuple[float, float] | None = None) -> str:
    return _number(value, "" if value is None else f"{100 * value:.2f}", interval)


def _plain(value: float | None) -> str:
    return _number(value, "" if value is None else f"{value:,.3f}".rstrip("0").rstrip("."))


def _render_quality_table(name: str, results: Sequence[Result]) -> str:
    papers = PUBLISHED.get(name, ())
    names = set().union(*(result.metrics for result in results), *(result.metrics for result in papers))
    metrics = [
        *(str(measure) for measure in DEFAULT_MEASURES if measure in names),
        *sorted(names.difference(DEFAULT_MEASURES)),
    ]
    rows = [
        (
            "",
            html.escape(result.label),
            [_percent(result.metrics.get(metric), result.ci95.get(metric)) for metric in metrics],
        )
        for result in results
    ]
    for paper in papers:
        cells = [_percent(paper.metrics[metric] / 100 if metric in paper.metrics else None) for metric in metrics]
        rows.append(("published", f"{html.escape(paper.label)} <small>published, {paper.source}</small>", cells))
    note = (
        " Published rows: as the papers give them; COLT's authors chose their epoch on the test queries, ours is "
        "chosen on dev."
    )
    return _render_table(
        f"{name}: all metrics in percent, 95 % intervals small.{note if papers else ''}", ["label", *metrics], rows
    )


def _render_cost_table(name: str, results: Sequence[Result]) -> str:
    heads = ["label", "recipe", "encoder", "split", "chosen on", "seed", "queries", "tools", "p50 ms", "p95 ms"]
    heads += ["queries/s", "fit s", "peak MB"]
    rows = [
        (
            "",
            html.escape(result.label),
            [
                *map(_text, (result.recipe, result.encoder, result.split, result.selected_on)),
                *map(_plain, (result.seed, result.n_queries, result.n_tools)),
                *map(_plain, (result.latency_ms.get("p50"), result.latency_ms.get("p95"))),
                *map(_plain, (result.batch_qps, result.fit_seconds, result.peak_rss_mb)),
            ],
        )
        for result in results
    ]
    return _render_table(f"{name}: what each label is and costs.", heads, rows)


def _render_origin_table(name: str, results: Sequence[Result]) -> str:
    rows = [
        (
            "",
            html.escape(result.label),
            [_text(result.commit), *(_raw(value) for value in (result.settings, result.versions, result.machine))],
        )
        for result in results
    ]
    return _render_table(f"{name}: how each was made.", ["label", "commit", "settings", "versions", "machine"], rows)


def _render_failure_table(name: str, failures: Mapping[str, Mapping[str, Any]]) -> str:
    heads = ["label", "gold tools", "mean rate", "deviation", "missed a tool", "never missed", "failed queries"]
    heads += ["words, failed", "words, found", "worst tools"]
    rows = []
    for label, figures in failures.items():
        rate, words = figures["rate"], figures["words"]
        worst = "; ".join(
            f"{tool['tool']} {tool['missed']}/{tool['gold']}" for tool in figures["worst"][:MAX_WORST_TOOLS]
        )
        numbers = (figures["missed_per_tool"], figures["spared"], words["failed"]["n"])
        rows.append(
            (
                "",
                html.escape(label),
                [
                    _plain(figures["tools"]),
                    *map(_percent, (rate["mean"], rate["deviation"])),
                    *map(_plain, (*numbers, words["failed"]["mean"], words["found"]["mean"])),
                    _text(worst or None),
                ],
            )
        )
    return _render_table(
        f"{name}: gold tools that are not among the first 5, in percent of the queries that need them (mean over "
        "tools, and its deviation); the mean number of misses of a tool; mean lengths of queries in words.",
        heads,
        rows,
    )


def _render_sweep_table(swept: SweepResult) -> str:
    ranked = sorted(swept.trials, key=lambda trial: -(trial.dev["ndcg@5"] + trial.dev["comp@5"]))
    names = list(swept.trials[0].dev)
    rows = [
        (
            "",
            html.escape(", ".join(f"{name} = {value}" for name, value in trial.settings.items())),
            [*(_percent(trial.dev.get(name)) for name in names), _plain(trial.fit_seconds), _plain(trial.seconds)],
        )
        for trial in ranked[:MAX_TRIALS_SHOWN]
    ]
    omission = f" The best {MAX_TRIALS_SHOWN} of {len(ranked)} trials." if len(ranked) > MAX_TRIALS_SHOWN else ""
    encoder = f", encoder {swept.encoder}" if swept.encoder else ""
    return _render_table(
        f"{swept.dataset}: sweep {swept.label} of {swept.recipe} on dev{encoder}.{omission}",
        ["settings", *names, "fit s", "all s"],
        rows,
    )


def _raw(value: msgspec.Raw) -> str:
    return _text(bytes(value).decode(errors="replace").strip('"'))


def _render_summary(sets: Mapping[str, Sequence[Result]]) -> str:
    test_sets = TRAINED + UNTRAINED
    if not sets.keys() >= set(test_sets):
        return _render_summary_table(f"Means over {count(len(sets), 'dataset')}", sets, list(sets))
    further = sorted(sets.keys() - set(test_sets))
    title = f"Means over the {len(test_sets)} test sets" + (f" (without {', '.join(further)})" if further else "")
    return (
        _render_summary_table(title, sets, test_sets)
        + _render_summary_table(f"The {len(TRAINED)} of them with training queries", sets, TRAINED)
        + _render_summary_table(f"The {len(UNTRAINED)} of them without", sets, UNTRAINED)
    )


def _render_summary_table(title: str, sets: Mapping[str, Sequence[Result]], names: Sequence[str]) -> str:
    labels: dict[str, list[Result]] = {}
    for name in names:
        for result in sets[name]:
            labels.setdefault(result.label, []).append(result)
    ranked = sorted(labels.items(), key=lambda item: (-len(item[1]), -mean(e.quality for e in item[1]), item[0]))
    rows = []
    for label, results in ranked:
        values = [[result.metrics.get(metric) for result in results] for metric in SUMMARY_MEASURES]
        times = [result.latency_ms.get("p50") for result in results]
        cells = [
            _number(len(results), f"{len(results)} of {len(names)}"),
            *(_percent(_mean_of_all(row)) for row in values),
        ]
        kind = "" if len(results) == len(names) else "partial"
        rows.append((kind, html.escape(label), [*cells, _plain(_mean_of_all(times))]))
    caption = f"{title}, in percent; a label with fewer sets is a mean over those, and not comparable with the others."
    return _render_table(caption, ["label", "sets", *SUMMARY_MEASURES, "p50 ms"], rows)


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    present = [value for value in values if value is not None]
    return mean(present) if len(present) == len(values) else None


# --- page -------------------------------------------------------------------------------------------------------------

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --line: #d0d0d0; --soft: #f2f4f6; --faint: #5c5c5c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --line: #3c4046; --soft: #22262b; --faint: #a8adb3; }
}
body { margin: 0 auto; max-width: 72rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
a { color: inherit; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 4px; }
figcaption, caption { color: var(--faint); text-align: left; padding: .3rem 0; }
.wide { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: right; vertical-align: top; }
thead th { background: var(--soft); white-space: nowrap; }
tbody th, td:not([data-value]) { text-align: left; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--paper); }
small { display: block; color: var(--faint); font-weight: 400; white-space: nowrap; }
.published th, .published td { background: var(--soft); font-style: italic; }
.partial th, .partial td { color: var(--faint); }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " \\25b2"; }
th[aria-sort=descending] button::after { content: " \\25bc"; }
"""

_SCRIPT: Final = """
for (const head of document.querySelectorAll("thead th")) {
  const button = document.createElement("button");
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const key = (row) => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
    const compare = (a, b) => (a === "–") - (b === "–") || sign * a.localeCompare(b, "en", { numeric: true });
    const number = (text) => text !== "" && !isNaN(text);
    body.append(...[...body.rows].sort((one, two) => {
      const a = key(one), b = key(two);
      return number(a) && number(b) ? sign * (a - b) : compare(a, b);
    }));
  });
}
"""


def _render_figure(image: Image) -> str:
    data = base64.b64encode(image.data).decode()
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{html.escape(image.alt)}">'
        f"<figcaption>{html.escape(image.caption)}</figcaption></figure>\n"
    )


def _render_head(sets: Mapping[str, Content], problems: Sequence[Problem], notes: Sequence[str]) -> str:
    """Render the title, what is missing, and the links to the datasets."""
    n_results = sum(len(content.results) for content in sets.values())
    n_sweeps = sum(len(content.sweeps) for content in sets.values())
    counts = " and ".join([count(n_results, "result"), *([count(n_sweeps, "sweep")] if n_sweeps else [])])
    parts = [f"<h1>toolscout: results</h1>\n<p>{counts} on {count(len(sets), 'dataset')}.</p>\n"]
    parts += [f"<p>{html.escape(note)}</p>\n" for note in notes]
    if problems:
        items = "".join(f"<li><code>{html.escape(p.entry)}</code>: {html.escape(p.message)}</li>\n" for p in problems)
        parts.append(f"<h2>Left out</h2>\n<ul>\n{items}</ul>\n")
    links = " · ".join(f'<a href="#{content.slug}">{html.escape(name)}</a>' for name, content in sets.items())
    return "".join([*parts, f"<nav>{links}</nav>\n"])


def _render_dataset(name: str, content: Content) -> list[str]:
    """Render the charts and tables of one dataset."""
    parts = [f'<h2 id="{content.slug}">{html.escape(name)}</h2>\n', *map(_render_figure, content.images)]
    if content.results:
        parts += [_render_quality_table(name, content.results), _render_cost_table(name, content.results)]
    if content.failures:
        parts.append(_render_failure_table(name, content.failures))
    parts += map(_render_sweep_table, content.sweeps)
    if content.results:
        origins = _render_origin_table(name, content.results)
        parts.append(f"<details><summary>How each was made</summary>\n{origins}</details>\n")
    return parts


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
    results = {name: content.results for name, content in sets.items() if content.results}
    parts = [_render_head(sets, problems, notes)]
    if results:
        parts += ["<h2>Summary</h2>\n", _render_summary(results), *map(_render_figure, overview)]
    for name, content in sets.items():
        parts += _render_dataset(name, content)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>toolscout: results</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{''.join(parts)}<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )
