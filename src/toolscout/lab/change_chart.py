"""The chart of a method's effect: on each dataset, a point before and a point after, joined by a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolscout.lab.drawing import BLUE, GREY, INK, LIGHT_GREY, add_legend, add_title, draw_grid, open_figure

__all__ = ["Change", "changes"]

MEASURES = ("NDCG@5", "COMP@5")


class Change(NamedTuple):
    """One row of `changes`.

    Attributes:
        label: name of the row, for example of a dataset.
        before: NDCG@5 and COMP@5 without the method, in percent.
        after: the same with it.
    """

    label: str
    before: tuple[float, float]
    after: tuple[float, float]


def changes(title: str, before: str, after: str, rows: Sequence[Change]) -> bytes:
    """Draw what a method changes, a panel for each measure, the first row on top. Returns a PNG file.

    Args:
        title: of the picture.
        before: name of the points without the method.
        after: name of the points with it.
        rows: at least one.

    Raises:
        MissingExtra: without matplotlib.
    """
    with open_figure(8.0, 1.5 + 0.34 * len(rows)) as (figure, write):
        panels = figure.subplots(1, 2, sharey=True)
        for side, axes in enumerate(panels):
            for place, row in enumerate(rows):
                low, high = sorted((row.before[side], row.after[side]))
                axes.plot((low, high), (place, place), color=LIGHT_GREY, linewidth=3, zorder=1)
                axes.text(104, place, f"{row.after[side] - row.before[side]:+.1f}", va="center", fontsize=7, color=INK)
            places = range(len(rows))
            first = axes.scatter([row.before[side] for row in rows], places, s=30, color=GREY, zorder=2)
            second = axes.scatter([row.after[side] for row in rows], places, s=30, color=BLUE, zorder=3)
            axes.set(xlim=(0, 118), ylim=(len(rows) - 0.4, -0.6), xlabel=f"{MEASURES[side]}, percent, and its change")
            axes.set_xticks(range(0, 101, 20))
            draw_grid(axes, "x")
        panels[0].set_yticks(range(len(rows)), [row.label for row in rows])
        add_title(figure, title)
        add_legend(figure, {before: first, after: second}, ncols=2)
        return write()
