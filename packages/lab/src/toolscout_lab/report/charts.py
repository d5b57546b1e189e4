"""Draws the charts of the report, of the anatomy and of the documentation as PNG bytes.

Equal input gives equal bytes. The global state of matplotlib stays unchanged. Each function raises `MissingExtra`
without matplotlib.
"""

from __future__ import annotations

import contextlib
import io
import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from toolscout.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

__all__ = [
    "Bars",
    "Change",
    "MeanAndDeviation",
    "Panel",
    "Point",
    "bars",
    "boxes",
    "changes",
    "cloud",
    "decisions",
    "grid",
    "lines",
    "scatter",
    "spreads",
    "stages",
]

Named = dict[str, Any]
"""What a legend shows for each name, or arguments of matplotlib."""
DPI: Final = 120
MAX_LABEL_CHARS: Final = 36
MAX_TITLE_CHARS: Final = 90
BLUE, ORANGE, GREY, LIGHT_GREY, INK = "#0072B2", "#E69F00", "#8C8C8C", "#CFCFCF", "#222222"  # Okabe and Ito's palette
GREEN, RED, SKY, PINK = "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
SERIES: Final = tuple(
    zip((BLUE, ORANGE, GREEN, RED, PINK, SKY, INK), "os^Dv<P", strict=True)
)  # (colour, marker) of each series
GRID_COLOR: Final = "#E3E3E3"
MEASURES = ("NDCG@5", "COMP@5")
MAX_STAGE_CHARS: Final = 48
MAX_TICK_CHARS: Final = 18
LABEL_OFFSETS: Final = tuple(
    (x * reach, y * reach)
    for reach in (7, 16, 28, 42, 60)
    for x, y in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1))
)  # places for a label beside its point, in typographic points, nearest first
OFFSETS_WITHOUT_LINE: Final = LABEL_OFFSETS[:4]  # so near that no line has to lead to the point


@contextlib.contextmanager
def open_figure(width: float, height: float) -> Iterator[tuple[Figure, Callable[[], bytes]]]:
    """Open a figure of a size in inches, drawn by Agg. Yield it and a function that returns its PNG bytes."""
    style = require("matplotlib.style", "lab")
    figures = require("matplotlib.figure", "lab")
    agg = require("matplotlib.backends.backend_agg", "lab")
    with style.context(["default", {"text.parse_math": False, "font.size": 9, "hatch.linewidth": 0.6}]):
        figure = figures.Figure((width, height), DPI, facecolor="white", layout="constrained")
        agg.FigureCanvasAgg(figure)

        def write() -> bytes:
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
            return file.getvalue()

        yield figure, write


def add_title(figure: Figure, title: str) -> None:
    """Write the title above all panels."""
    figure.suptitle(shorten_text(title, MAX_TITLE_CHARS), fontsize=11)


def draw_grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw faint lines at the ticks, below everything else."""
    axes.grid(axis=axis, color=GRID_COLOR)
    axes.set_axisbelow(True)


def write_plain_ticks(axes: Axes) -> None:
    """Write the numbers of a logarithmic x axis without powers of ten, and only at the major ticks."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")


def add_legend(
    figure: Figure,
    handles: Named,
    *,
    ncols: int,
    place: Literal["outside lower center", "outside lower right"] = "outside lower center",
    size: int = 8,
    shorten: bool = False,
) -> None:
    """Add a legend below the panels.

    Args:
        figure: changed in place.
        handles: name → the line or patch beside it.
        ncols: columns of the legend.
        place: where in the figure, in matplotlib's words.
        size: points of the letters.
        shorten: whether long names are cut, as by `shorten_text`.
    """
    names = [shorten_text(name) for name in handles] if shorten else list(handles)
    figure.legend(list(handles.values()), names, loc=place, ncols=ncols, frameon=False, fontsize=size)


def shorten_text(text: str, max_chars: int = MAX_LABEL_CHARS) -> str:
    """Cut a text after `max_chars`, and show a box for each character that the font lacks."""
    manager = require("matplotlib.font_manager", "lab")
    font = manager.get_font(manager.findfont("DejaVu Sans"))

    def can_draw(letter: str) -> bool:
        return letter == "\n" or (unicodedata.category(letter)[0] != "C" and font.get_char_index(ord(letter)) != 0)

    drawable = "".join(letter if can_draw(letter) else "□" for letter in text)
    return drawable if len(drawable) <= max_chars else f"{drawable[: max_chars - 1]}…"


class Bars(NamedTuple):
    """One row of `bars`.

    Attributes:
        label: name of the row.
        values: NDCG@5 and COMP@5 in percent; None: not published.
        intervals: their 95 % intervals; None: not known.
        published: whether the figures come from a paper.
    """

    label: str
    values: tuple[float | None, float | None]
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)
    published: bool = False


class Point(NamedTuple):
    """One point of `scatter`: its label, milliseconds (above 0) and percent."""

    label: str
    ms: float
    value: float


def bars(title: str, rows: Sequence[Bars]) -> bytes:
    """Draw two bars for each row, the first row on top; bars of published figures are grey and hatched."""
    with open_figure(8.0, 1.3 + 0.46 * len(rows)) as (figure, write):
        axes = figure.add_subplot()
        handles: Named = {}
        for place, row in enumerate(rows):
            for side, name in enumerate(("NDCG@5", "COMP@5")):
                y = place - 0.2 + 0.4 * side
                if row.values[side] is None:
                    axes.text(0.6, y, "not published", va="center", fontsize=7, color=INK)
                    continue
                bar = _draw_bar(axes, row, side, y)
                handles.setdefault(f"{name}, published" if row.published else name, bar)
        axes.set_yticks(range(len(rows)), [shorten_text(row.label) for row in rows])
        axes.set(
            xlim=(0, 107), ylim=(len(rows) - 0.4, -0.6), xlabel="percent, with 95 % intervals where they are known"
        )
        axes.set_xticks(range(0, 101, 20))
        draw_grid(axes, "x")
        add_title(figure, title)
        add_legend(figure, handles, ncols=4)
        return write()


def _draw_bar(axes: Axes, row: Bars, side: int, y: float) -> BarContainer:
    """Draw one bar with its interval and its number."""
    value, interval = row.values[side], row.intervals[side]
    assert value is not None
    style: Named = {"facecolor": (BLUE, ORANGE)[side]}
    if row.published:
        style = {"facecolor": (GREY, LIGHT_GREY)[side], "edgecolor": "white", "hatch": ("///", "...")[side]}
    bar = axes.barh(y, value, 0.38, **style)
    end = value
    if interval:
        gaps = [[max(0.0, value - interval[0])], [max(0.0, interval[1] - value)]]
        axes.errorbar(value, y, xerr=gaps, color=INK, elinewidth=1, capsize=2)
        end = max(value, interval[1])
    axes.text(end + 0.8, y, f"{value:.1f}", va="center", fontsize=7, color=INK)
    return bar


def scatter(title: str, points: Sequence[Point]) -> bytes:
    """Draw quality against time on a log scale. Each point has a label, and no label covers another."""
    with open_figure(8.0, 5.2) as (figure, write):
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.scatter([point.ms for point in points], [point.value for point in points], s=34, color=BLUE, zorder=3)
        low, high = min(point.value for point in points), max(point.value for point in points)
        margin = max(2.0, 0.12 * (high - low))
        axes.set(
            xlim=(min(point.ms for point in points) / 2, max(point.ms for point in points) * 4),
            ylim=(low - margin, high + margin),
            xlabel="latency of one query, p50, milliseconds (log scale)",
            ylabel="NDCG@5, percent",
        )
        draw_grid(axes)
        spans_decades = max(point.ms for point in points) > 30 * min(point.ms for point in points)
        ticks = (1,) if spans_decades else (1, 2, 5)
        axes.xaxis.set_major_locator(require("matplotlib.ticker", "lab").LogLocator(subs=ticks))
        write_plain_ticks(axes)
        add_title(figure, title)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        _name_points(axes, points)
        return write()


def _name_points(axes: Axes, points: Sequence[Point]) -> None:
    """Write each label at the nearest place where it covers no label, point or edge. A line leads to a far label."""
    bounds = require("matplotlib.transforms", "lab").Bbox
    frame = axes.get_window_extent()
    marks = axes.transData.transform([(point.ms, point.value) for point in points])
    taken = [bounds.from_bounds(x - 5, y - 5, 10, 10) for x, y in marks]

    def is_free(box: Bbox) -> bool:
        inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        return inside and not any(box.overlaps(other) for other in taken)

    for point in sorted(points, key=lambda point: (-point.value, point.label)):
        anchor: Named = {"xy": (point.ms, point.value), "textcoords": "offset points"}
        for offset in LABEL_OFFSETS:
            note = axes.annotate(
                shorten_text(point.label), **anchor, xytext=offset, **_align_label(*offset), fontsize=8, color=INK
            )
            box = note.get_window_extent()
            if is_free(box) or offset == LABEL_OFFSETS[-1]:
                break
            note.remove()
        taken.append(box)
        if offset not in OFFSETS_WITHOUT_LINE:
            line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6}
            axes.annotate("", **anchor, xytext=offset, arrowprops=line)


def _align_label(x: int, y: int) -> Named:
    """Return the alignment with which a label at this offset faces its point."""
    horizontal = {-1: "right", 0: "center", 1: "left"}
    vertical = {-1: "top", 0: "center", 1: "bottom"}
    return {"ha": horizontal[(x > 0) - (x < 0)], "va": vertical[(y > 0) - (y < 0)]}


def grid(title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]]) -> bytes:
    """Draw a coloured table with the number (percent) in each cell. A cell without a value has no colour."""
    with open_figure(2.9 + 0.78 * max(4, len(columns)), 1.5 + 0.32 * len(rows)) as (figure, write):
        axes = figure.add_subplot()
        table = [[float("nan") if value is None else value for value in row] for row in values]
        axes.imshow(table, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                _write_cell(axes, x, y, value)
        _name_cells(axes, rows, columns)
        axes.grid(which="minor", color="white", linewidth=2)
        axes.tick_params(which="minor", length=0)
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axes.spines[:].set_visible(False)
        add_title(figure, title)
        return write()


def _write_cell(axes: Axes, x: int, y: int, value: float | None) -> None:
    """Write the number of a cell, in white on a dark colour."""
    text, color = ("–", INK) if value is None else (f"{value:.1f}", "white" if value < 48 else "black")
    axes.text(x, y, text, ha="center", va="center", fontsize=8, color=color)


def _name_cells(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Write the names of rows and columns, long column names at an angle; put minor ticks between the cells."""
    letters_per_cell = 10 * max(4, len(columns)) / len(columns)
    is_long = max(len(line) for column in columns for line in column.split("\n")) > letters_per_cell
    angle: Named = {"rotation": 35, "ha": "left", "rotation_mode": "anchor"} if is_long else {}
    axes.set_xticks(range(len(columns)), [shorten_text(column) for column in columns], fontsize=8, **angle)
    axes.set_yticks(range(len(rows)), [shorten_text(row) for row in rows])
    axes.set_xticks([x + 0.5 for x in range(len(columns) - 1)], minor=True)
    axes.set_yticks([y + 0.5 for y in range(len(rows) - 1)], minor=True)


class Panel(NamedTuple):
    """One panel of `lines`.

    Attributes:
        name: stands below the panel.
        ticks: names of the places along the x axis.
        series: series → its value at each tick; None: no point.
        dots: faint points (place, value).
        levels: series → a level, drawn as a faint line in the colour of the series.
    """

    name: str
    ticks: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    dots: Sequence[tuple[int, float]] = ()
    levels: Mapping[str, float] = {}


class MeanAndDeviation(NamedTuple):
    """One row of a panel of `spreads`: series → (mean, deviation); None: there are no values."""

    label: str
    values: Mapping[str, tuple[float, float] | None]


def lines(title: str, panels: Sequence[Panel], unit: str) -> bytes:
    """Draw panels with a common y scale, at most three in a row; each series has a colour and a marker.

    Args:
        title: above all panels.
        panels: the panels.
        unit: label of the y axis. There is no legend if the only series has this name.
    """
    n_columns = min(3, len(panels))
    n_rows = -(-len(panels) // n_columns)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    looks = {name: SERIES[number % len(SERIES)] for number, name in enumerate(names)}
    with open_figure(max(6.0, 3.6 * n_columns), 1.2 + 2.9 * n_rows) as (figure, write):
        fields = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).ravel()
        handles: Named = {}
        for axes, panel in zip(fields, panels, strict=False):
            handles |= _draw_panel(axes, panel, looks)
        for axes in fields[len(panels) :]:
            axes.set_visible(False)
        for axes in fields[::n_columns]:
            axes.set_ylabel(unit)
        add_title(figure, title)
        if names != [unit]:
            add_legend(figure, {name: handles[name] for name in names}, ncols=3, shorten=True)
        return write()


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, tuple[str, str]]) -> Named:
    """Draw one panel of `lines`; return series → what the legend shows for it."""
    if panel.dots:
        x, y = zip(*panel.dots, strict=True)
        axes.scatter(x, y, s=12, color=LIGHT_GREY, zorder=2)
    for name, level in panel.levels.items():
        axes.axhline(level, color=looks[name][0], linewidth=1, linestyle="--", alpha=0.5, zorder=2)
    handles: Named = {}
    for name, values in panel.series.items():
        color, marker = looks[name]
        points = {place: value for place, value in enumerate(values) if value is not None}
        [handles[name]] = axes.plot(
            list(points), list(points.values()), color=color, marker=marker, markersize=4, zorder=3
        )
    is_crowded = max(map(len, panel.ticks)) * len(panel.ticks) > 40
    angle: Named = {"rotation": 30, "ha": "right"} if is_crowded else {}
    axes.set_xticks(range(len(panel.ticks)), [shorten_text(tick, MAX_TICK_CHARS) for tick in panel.ticks], **angle)
    axes.set(xlabel=shorten_text(panel.name), xlim=(-0.4, len(panel.ticks) - 0.6))
    draw_grid(axes)
    axes.tick_params(labelleft=True)
    return handles


def spreads(title: str, fields: Sequence[tuple[str, Sequence[MeanAndDeviation], float | None]]) -> bytes:
    """Draw panels with scales of their own: bars of means, with a line of one deviation to both sides.

    Args:
        title: above all panels.
        fields: (measure, rows, the first on top, upper bound of the measure or None); all panels have the same rows.
    """
    n_rows = len(fields[0][1])
    legend: Named = {}
    with open_figure(4.6 * len(fields), 1.3 + 0.42 * n_rows) as (figure, write):
        all_axes = figure.subplots(1, len(fields), squeeze=False, sharey=True)[0]
        for axes, (measure, rows, bound) in zip(all_axes, fields, strict=True):
            names = list(dict.fromkeys(name for row in rows for name in row.values))
            handles, right = _draw_spreads(axes, rows, names, bound)
            axes.set_yticks(range(n_rows), [shorten_text(row.label) for row in rows])
            axes.set(xlim=(0, 1.18 * right or 1.0), ylim=(n_rows - 0.4, -0.6), xlabel=measure)
            draw_grid(axes, "x")
            if len(names) > 1:
                legend |= handles
        add_title(figure, title)
        if legend:
            add_legend(figure, legend, ncols=2, place="outside lower right")
        return write()


def _draw_spreads(
    axes: Axes, rows: Sequence[MeanAndDeviation], names: Sequence[str], bound: float | None
) -> tuple[Named, float]:
    """Draw the rows of one panel of `spreads`.

    Returns:
        Series → its entry in the legend; the right end of the rows.
    """
    handles: Named = {}
    height, right = 0.8 / len(names), 0.0
    for place, row in enumerate(rows):
        for side, name in enumerate(names):
            figures, y = row.values.get(name), place + height * (side - (len(names) - 1) / 2)
            if figures is None:
                axes.text(0, y, " none", va="center", fontsize=7, color=INK)
                continue
            mean, deviation = figures
            bar = axes.barh(y, mean, 0.9 * height, color=SERIES[side][0])
            handles.setdefault(name, bar)
            end = mean + deviation if bound is None else min(bound, mean + deviation)
            axes.plot([max(0.0, mean - deviation), end], [y, y], color=INK, linewidth=1)
            axes.text(end, y, f" {mean:.1f}", va="center", fontsize=7, color=INK)
            right = max(right, end)
    return handles, right


def cloud(title: str, groups: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
    """Draw groups of points in one plane, as from t-SNE. The first group is small and faint, below the others."""
    looks = ((GREY, "o", 7), (BLUE, "^", 22), (ORANGE, "s", 15))
    with open_figure(7.0, 6.0) as (figure, write):
        axes = figure.add_subplot()
        for (name, points), (color, marker, size) in zip(groups.items(), looks, strict=False):
            x, y = zip(*points, strict=True) if points else ((), ())
            axes.scatter(
                x, y, s=size, color=color, marker=marker, alpha=0.75, linewidths=0, label=f"{name} ({len(points)})"
            )
        axes.set_xticks([])
        axes.set_yticks([])
        add_title(figure, title)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        return write()


def decisions(title: str, series: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> bytes:
    """Draw how well the need for a tool is estimated: ROC curves, and the observed share against the estimate.

    Args:
        title: above both panels.
        series: label → its `statistics.detection_curves`.
    """
    fields = (
        ("roc", "no-tool queries accepted", "tool queries accepted"),
        ("reliability", "mean need", "share that needs a tool"),
    )
    with open_figure(8.4, 4.8) as (figure, write):
        for place, (curve, xlabel, ylabel) in enumerate(fields):
            axes = figure.add_subplot(1, 2, place + 1)
            axes.plot([0, 1], [0, 1], color=LIGHT_GREY, linewidth=1, zorder=1)
            for number, (label, curves) in enumerate(series.items()):
                color, marker = SERIES[number % len(SERIES)]
                x, y = zip(*curves[curve], strict=True)
                markers: Named = {"marker": marker, "markersize": 4} if curve == "reliability" else {}
                axes.plot(x, y, color=color, label=shorten_text(label), zorder=2, **markers)
            axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
            draw_grid(axes)
        add_title(figure, title)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        return write()


def boxes(title: str, groups: Mapping[str, Mapping[str, Mapping[str, float]]], unit: str) -> bytes:
    """Draw box plots from their numbers.

    Args:
        title: above the chart.
        groups: group → series → `q1`, `median`, `q3`, and the whiskers `low` and `high`.
        unit: label of the y axis.
    """
    names = list(dict.fromkeys(name for series in groups.values() for name in series))
    with open_figure(2.2 + 2.2 * len(groups), 4.6) as (figure, write):
        axes = figure.add_subplot()
        handles: Named = {}
        for place, series in enumerate(groups.values()):
            for side, name in enumerate(names):
                numbers, x = series[name], place + 0.46 * (side - (len(names) - 1) / 2)
                boxplot = axes.bxp(
                    [{"q1": numbers["q1"], "med": numbers["median"], "q3": numbers["q3"], "whislo": numbers["low"],
                      "whishi": numbers["high"]}],
                    positions=[x],
                    widths=0.26,
                    showfliers=False,
                    patch_artist=True,
                    boxprops={"facecolor": SERIES[side][0], "edgecolor": INK},
                    medianprops={"color": "white", "linewidth": 2},
                    manage_ticks=False,
                )  # fmt: skip
                handles.setdefault(name, boxplot["boxes"][0])
                axes.text(x + 0.15, numbers["median"], f"{numbers['median']:.2f}", va="center", fontsize=8, color=INK)
        axes.set_xticks(range(len(groups)), [shorten_text(name) for name in groups])
        axes.set(ylabel=unit, xlim=(-0.6, len(groups) - 0.4))
        axes.margins(y=0.08)
        draw_grid(axes, "y")
        add_title(figure, title)
        add_legend(figure, handles, ncols=2, size=9)
        return write()


def stages(title: str, rows: Sequence[tuple[str, float, float]]) -> bytes:
    """Draw the milliseconds of stages on a log scale, the first on top. A bar ends at p50, a line at p95.

    Args:
        title: above the chart.
        rows: (stage, p50, p95) in milliseconds.
    """
    with open_figure(8.0, 1.2 + 0.42 * len(rows)) as (figure, write):
        axes = figure.add_subplot()
        axes.set_xscale("log")
        shortest = min((value for _, p50, p95 in rows for value in (p50, p95) if value > 0), default=0.001)
        left = 10.0 ** math.floor(math.log10(shortest) - 0.3)
        for place, (_, p50, p95) in enumerate(rows):
            axes.barh(place, max(p50, left) - left, 0.6, left=left, color=BLUE)
            axes.plot(
                [max(p50, left), max(p95, left)], [place, place], color=INK, marker="|", linewidth=1, markevery=[1]
            )
            axes.text(max(p95, left), place, f"  {p50:.3g} / {p95:.3g}", va="center", fontsize=8, color=INK)
        longest = max(max(p95, left) for _, _, p95 in rows)
        axes.set_yticks(range(len(rows)), [shorten_text(name, MAX_STAGE_CHARS) for name, _, _ in rows])
        axes.set(
            xlim=(left, longest * (longest / left) ** 0.22 * 1.2),
            ylim=(len(rows) - 0.4, -0.6),
            xlabel="milliseconds of one query, p50 / p95 (log scale)",
        )
        write_plain_ticks(axes)
        draw_grid(axes, "x")
        add_title(figure, title)
        return write()


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
