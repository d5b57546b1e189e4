"""A leaderboard of result files in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolscout.checks.results import read_results
from toolscout.errors import ConfigError, NotFound
from toolscout.sources import Problem
from toolscout_lab.report.markdown import lay_out

__all__ = ["make_leaderboard"]


def make_leaderboard(folder: Path, measure: str, names: Sequence[str] = ()) -> tuple[list[str], list[Problem]]:
    """Make the lines of a table of labels by datasets, in percent, the best mean first.

    Only labels that were measured on every dataset of the table are listed, so that their means can be compared.

    Args:
        folder: the folder that `bench --out` wrote.
        measure: a measure of the results.
        names: the datasets; none: all that the label with the most results was measured on.

    Returns:
        The lines, and a problem for each file that is no result.

    Raises:
        NotFound: if no label was measured on all of the datasets.
        ConfigError: if no result has the measure.
    """
    results, problems = read_results(folder)
    scores: dict[str, dict[str, float]] = {}
    for result in results:
        if measure in result.metrics and (not names or result.dataset in names):
            scores.setdefault(result.label, {})[result.dataset] = 100 * result.metrics[measure]
    if results and not scores and not names:
        raise ConfigError(f"--measure: expected one of {', '.join(sorted(results[0].metrics))}, found {measure!r}")
    largest: dict[str, float] = max(scores.values(), key=len, default={})
    datasets = sorted(names or largest)
    complete = {label: row for label, row in scores.items() if row.keys() >= set(datasets)}
    if not datasets or not complete:
        raise NotFound(f"{folder} holds no label with results on {', '.join(datasets) or 'any dataset'}.")
    means = {label: sum(row[name] for name in datasets) / len(datasets) for label, row in complete.items()}
    rows = [
        [f"`{label}`", f"{means[label]:.1f}", *(f"{complete[label][name]:.1f}" for name in datasets)]
        for label in sorted(complete, key=lambda label: (-means[label], label))
    ]
    return lay_out([measure.replace("|", "\\|"), "mean", *datasets], rows), problems
