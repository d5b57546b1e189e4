"""Charts as PNG bytes: equal input, equal bytes; matplotlib's global state stays as it was."""

from __future__ import annotations

import contextlib
import io
import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from toolscout.errors import require

__all__ = [
    "Bars",
    "Panel",
    "Point",
    "Spread",
    "bars",
    "boxes",
    "cloud",
    "decisions",
    "grid",
    "lines",
    "scatter",
    "spreads",
    "stages",
]

DPI: Final = 120
LONGEST: Final = 36
BLUE, ORANGE, GREY, LIGHT_GREY, INK = "#0072B2", "#E69F00", "#8C8C8C", "#CFCFCF", "#222222"  # Okabe and Ito's palette
GREEN, RED, SKY, PINK = "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
SERIES: Final = tuple(zip((BLUE, ORANGE, GREEN, RED, PINK, SKY, INK), "os^Dv<P", strict=True))  # colours and markers
ROOMS: Final = tuple(
    (x * reach, y * reach)
    for reach in (7, 16, 28, 42, 60)
    for x, y in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1))
)  # where a label may stand beside its point, in typographic points, nearest first


class Bars(NamedTuple):
    """One row of `bars`: percent of NDCG@5 and COMP@5 (None: not known) and their 95 % intervals, if there are any."""

    label: str
    values: tuple[float | None, float | None]
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)
    published: bool = False


class Point(NamedTuple):
    """One point of `scatter`: milliseconds (above 0) and percent."""

    label: str
    ms: float
    value: float


def bars(title: str, rows: Sequence[Bars]) -> bytes:
    """Two bars a row, the first row on top; published rows are grey and hatched.

    Raises:
        MissingExtra: without matplotlib.
    """
    with _drawing(8.0, 1.3 + 0.46 * len(rows)) as (figure, write):
        axes = figure.add_subplot()
        handles: dict[str, Any] = {}
        for place, row in enumerate(rows):
            for side, (name, color) in enumerate((("NDCG@5", BLUE), ("COMP@5", ORANGE))):
                value, interval, y = row.values[side], row.intervals[side], place - 0.2 + 0.4 * side
                if value is None:
                    axes.text(0.6, y, "not published", va="center", fontsize=7, color=INK)
                    continue
                style = {"facecolor": color}
                if row.published:
                    name = f"{name}, published"
                    style = {"facecolor": (GREY, LIGHT_GREY)[side], "edgecolor": "white", "hatch": ("///", "...")[side]}
                bar = axes.barh(y, value, 0.38, **style)
                handles.setdefault(name, bar)
                end = value
                if interval:
                    gaps = [[max(0.0, value - interval[0])], [max(0.0, interval[1] - value)]]
                    axes.errorbar(value, y, xerr=gaps, color=INK, elinewidth=1, capsize=2)
                    end = max(value, interval[1])
                axes.text(end + 0.8, y, f"{value:.1f}", va="center", fontsize=7, color=INK)
        axes.set_yticks(range(len(rows)), [_fit(row.label) for row in rows])
        axes.set(
            xlim=(0, 107), ylim=(len(rows) - 0.4, -0.6), xlabel="percent, with 95 % intervals where they are known"
        )
        axes.set_xticks(range(0, 101, 20))
        axes.grid(axis="x", color="#E3E3E3")
        axes.set_axisbelow(True)
        figure.suptitle(_fit(title, 90), fontsize=11)
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )
        return write()


def scatter(title: str, points: Sequence[Point]) -> bytes:
    """Quality against time on a log scale, each point with its label beside it, out of the others' way.

    Raises:
        MissingExtra: without matplotlib.
    """
    with _drawing(8.0, 5.2) as (figure, write):
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
        axes.grid(color="#E3E3E3")
        axes.set_axisbelow(True)
        wide = max(point.ms for point in points) > 30 * min(point.ms for point in points)
        axes.xaxis.set_major_locator(require("matplotlib.ticker", "lab").LogLocator(subs=(1,) if wide else (1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        figure.suptitle(_fit(title, 90), fontsize=11)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        _name_points(figure, axes, points)
        return write()


def grid(title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]]) -> bytes:
    """A table in colours, the number (percent) in each cell; None is a cell without colour.

    Raises:
        MissingExtra: without matplotlib.
    """
    with _drawing(2.9 + 0.78 * max(4, len(columns)), 1.5 + 0.32 * len(rows)) as (figure, write):
        axes = figure.add_subplot()
        table = [[float("nan") if value is None else value for value in row] for row in values]
        axes.imshow(table, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                text, color = ("–", INK) if value is None else (f"{value:.1f}", "white" if value < 48 else "black")
                axes.text(x, y, text, ha="center", va="center", fontsize=8, color=color)
        letters = 10 * max(4, len(columns)) / len(columns)  # what stands side by side above a cell
        long = max(len(line) for column in columns for line in column.split("\n")) > letters
        turned = {"rotation": 35, "ha": "left", "rotation_mode": "anchor"} if long else {}
        axes.set_xticks(range(len(columns)), [_fit(column) for column in columns], fontsize=8, **turned)
        axes.set_yticks(range(len(rows)), [_fit(row) for row in rows])
        axes.set_xticks([x + 0.5 for x in range(len(columns) - 1)], minor=True)
        axes.set_yticks([y + 0.5 for y in range(len(rows) - 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=2)
        axes.tick_params(which="minor", length=0)
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axes.spines[:].set_visible(False)
        figure.suptitle(_fit(title, 90), fontsize=11)
        return write()


class Panel(NamedTuple):
    """One field of `lines`: what stands below it, its ticks, series → a value a tick (None: no point), faint dots, and
    series → a level that is a faint line of its colour.
    """

    name: str
    ticks: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    dots: Sequence[tuple[int, float]] = ()
    levels: Mapping[str, float] = {}


class Spread(NamedTuple):
    """One row of a field of `spreads`: series → (mean, deviation); None: there is nothing to take a mean of."""

    label: str
    values: Mapping[str, tuple[float, float] | None]


def lines(title: str, panels: Sequence[Panel], what: str) -> bytes:
    """Fields side by side with one scale, at most three in a row; every series has its colour and its marker.

    Raises:
        MissingExtra: without matplotlib.
    """
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    with _drawing(max(6.0, 3.6 * across), 1.2 + 2.9 * down) as (figure, write):
        fields = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
        handles: dict[str, Any] = {}
        for field, panel in zip(fields, panels, strict=False):
            if panel.dots:
                field.scatter(*zip(*panel.dots, strict=True), s=12, color=LIGHT_GREY, zorder=2)
            for name, level in panel.levels.items():
                color, _ = SERIES[names.index(name) % len(SERIES)]
                field.axhline(level, color=color, linewidth=1, linestyle="--", alpha=0.5, zorder=2)
            for name, values in panel.series.items():
                color, marker = SERIES[names.index(name) % len(SERIES)]
                places = [place for place, value in enumerate(values) if value is not None]
                [handles[name]] = field.plot(
                    places, [values[place] for place in places], color=color, marker=marker, markersize=4, zorder=3
                )
            turned = {"rotation": 30, "ha": "right"} if max(map(len, panel.ticks)) * len(panel.ticks) > 40 else {}
            field.set_xticks(range(len(panel.ticks)), [_fit(tick, 18) for tick in panel.ticks], **turned)
            field.set(xlabel=_fit(panel.name), xlim=(-0.4, len(panel.ticks) - 0.6))
            field.grid(color="#E3E3E3")
            field.set_axisbelow(True)
            field.tick_params(labelleft=True)
        for field in fields[len(panels) :]:
            field.set_visible(False)
        for field in fields[::across]:
            field.set_ylabel(what)
        figure.suptitle(_fit(title, 90), fontsize=11)
        if len(names) > 1 or names != [what]:
            figure.legend(
                [handles[name] for name in names],
                [_fit(name) for name in names],
                loc="outside lower center",
                ncols=3,
                frameon=False,
                fontsize=8,
            )
        return write()


def spreads(title: str, fields: Sequence[tuple[str, Sequence[Spread], float | None]]) -> bytes:
    """Fields side by side, each with its own scale: bars of means with a line of one deviation to both sides.

    Args:
        title: above all.
        fields: (what is measured, rows, the first on top, what no value can exceed); all fields have the same rows.

    Raises:
        MissingExtra: without matplotlib.
    """
    rows = len(fields[0][1])
    legend: dict[str, Any] = {}
    with _drawing(4.6 * len(fields), 1.3 + 0.42 * rows) as (figure, write):
        for axes, (what, held, most) in zip(
            figure.subplots(1, len(fields), squeeze=False, sharey=True)[0], fields, strict=True
        ):
            names = list(dict.fromkeys(name for row in held for name in row.values))
            handles: dict[str, Any] = {}
            height, right = 0.8 / len(names), 0.0
            for place, row in enumerate(held):
                for side, name in enumerate(names):
                    value, y = row.values.get(name), place + height * (side - (len(names) - 1) / 2)
                    if value is None:
                        axes.text(0, y, " none", va="center", fontsize=7, color=INK)
                        continue
                    mean, deviation = value
                    bar = axes.barh(y, mean, 0.9 * height, color=SERIES[side][0])
                    handles.setdefault(name, bar)
                    end = mean + deviation if most is None else min(most, mean + deviation)
                    axes.plot([max(0.0, mean - deviation), end], [y, y], color=INK, linewidth=1)
                    axes.text(end, y, f" {mean:.1f}", va="center", fontsize=7, color=INK)
                    right = max(right, end)
            axes.set_yticks(range(rows), [_fit(row.label) for row in held])
            axes.set(xlim=(0, 1.18 * right or 1.0), ylim=(rows - 0.4, -0.6), xlabel=what)
            axes.grid(axis="x", color="#E3E3E3")
            axes.set_axisbelow(True)
            if len(names) > 1:
                legend |= handles
        figure.suptitle(_fit(title, 90), fontsize=11)
        if legend:
            figure.legend(
                list(legend.values()), list(legend), loc="outside lower right", ncols=2, frameon=False, fontsize=8
            )
        return write()


def cloud(title: str, groups: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
    """Points of several groups in one plane, such as t-SNE gives; the first group small and faint, below the others.

    Raises:
        MissingExtra: without matplotlib.
    """
    looks = ((GREY, "o", 7), (BLUE, "^", 22), (ORANGE, "s", 15))
    with _drawing(7.0, 6.0) as (figure, write):
        axes = figure.add_subplot()
        for (name, points), (color, marker, size) in zip(groups.items(), looks, strict=False):
            x, y = zip(*points, strict=True) if points else ((), ())
            axes.scatter(
                x, y, s=size, color=color, marker=marker, alpha=0.75, linewidths=0, label=f"{name} ({len(points)})"
            )
        axes.set_xticks([])
        axes.set_yticks([])
        figure.suptitle(_fit(title, 90), fontsize=11)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        return write()


def decisions(title: str, series: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> bytes:
    """How `need` tells queries apart: ROC curves, and reliability (what it says against what is so).

    Args:
        title: above the fields.
        series: label → `metrics.detection_curves` of it.

    Raises:
        MissingExtra: without matplotlib.
    """
    fields = (
        ("roc", "no-tool queries accepted", "tool queries accepted"),
        ("reliability", "mean need", "share that needs a tool"),
    )
    with _drawing(8.4, 4.8) as (figure, write):
        for place, (what, across, up) in enumerate(fields):
            axes = figure.add_subplot(1, 2, place + 1)
            axes.plot([0, 1], [0, 1], color=LIGHT_GREY, linewidth=1, zorder=1)
            for number, (label, curves) in enumerate(series.items()):
                color, marker = SERIES[number % len(SERIES)]
                x, y = zip(*curves[what], strict=True)
                marked = {"marker": marker, "markersize": 4} if what == "reliability" else {}
                axes.plot(x, y, color=color, label=_fit(label), zorder=2, **marked)
            axes.set(xlabel=across, ylabel=up, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
            axes.grid(color="#E3E3E3")
            axes.set_axisbelow(True)
        figure.suptitle(_fit(title, 90), fontsize=11)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        return write()


def boxes(title: str, groups: Mapping[str, Mapping[str, Mapping[str, float]]], what: str) -> bytes:
    """Box plots from their numbers (`q1`, `median`, `q3`, whiskers `low` and `high`): group → series → numbers.

    Raises:
        MissingExtra: without matplotlib.
    """
    names = list(dict.fromkeys(name for series in groups.values() for name in series))
    with _drawing(2.2 + 2.2 * len(groups), 4.6) as (figure, write):
        axes = figure.add_subplot()
        handles: dict[str, Any] = {}
        for place, series in enumerate(groups.values()):
            for side, name in enumerate(names):
                found, x = series[name], place + 0.46 * (side - (len(names) - 1) / 2)
                drawn = axes.bxp(
                    [{"q1": found["q1"], "med": found["median"], "q3": found["q3"], "whislo": found["low"],
                      "whishi": found["high"]}],
                    positions=[x],
                    widths=0.26,
                    showfliers=False,
                    patch_artist=True,
                    boxprops={"facecolor": SERIES[side][0], "edgecolor": INK},
                    medianprops={"color": "white", "linewidth": 2},
                    manage_ticks=False,
                )  # fmt: skip
                handles.setdefault(name, drawn["boxes"][0])
                axes.text(x + 0.15, found["median"], f"{found['median']:.2f}", va="center", fontsize=8, color=INK)
        axes.set_xticks(range(len(groups)), [_fit(name) for name in groups])
        axes.set(ylabel=what, xlim=(-0.6, len(groups) - 0.4))
        axes.margins(y=0.08)
        axes.grid(axis="y", color="#E3E3E3")
        axes.set_axisbelow(True)
        figure.suptitle(_fit(title, 90), fontsize=11)
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=2, frameon=False, fontsize=9
        )
        return write()


def stages(title: str, rows: Sequence[tuple[str, float, float]]) -> bytes:
    """Milliseconds of stages on a log scale, the first on top: a bar to p50, a line on to p95. Rows: name, p50, p95.

    Raises:
        MissingExtra: without matplotlib.
    """
    with _drawing(8.0, 1.2 + 0.42 * len(rows)) as (figure, write):
        axes = figure.add_subplot()
        axes.set_xscale("log")
        least = min((value for _, p50, p95 in rows for value in (p50, p95) if value > 0), default=0.001)
        left = 10.0 ** math.floor(math.log10(least) - 0.3)
        for place, (_, p50, p95) in enumerate(rows):
            axes.barh(place, max(p50, left) - left, 0.6, left=left, color=BLUE)
            axes.plot(
                [max(p50, left), max(p95, left)], [place, place], color=INK, marker="|", linewidth=1, markevery=[1]
            )
            axes.text(max(p95, left), place, f"  {p50:.3g} / {p95:.3g}", va="center", fontsize=8, color=INK)
        most = max(max(p95, left) for _, _, p95 in rows)
        axes.set_yticks(range(len(rows)), [_fit(name, 48) for name, _, _ in rows])
        axes.set(
            xlim=(left, most * (most / left) ** 0.22 * 1.2),
            ylim=(len(rows) - 0.4, -0.6),
            xlabel="milliseconds of one query, p50 / p95 (log scale)",
        )
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.grid(axis="x", color="#E3E3E3")
        axes.set_axisbelow(True)
        figure.suptitle(_fit(title, 90), fontsize=11)
        return write()


# --- drawing ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _drawing(width: float, height: float) -> Iterator[tuple[Any, Callable[[], bytes]]]:
    """A figure of that size in inches, drawn by Agg alone, and what turns it into PNG bytes."""
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


def _fit(text: str, longest: int = LONGEST) -> str:
    """`text` as the chart can show it: one line, not too long, a box for each character that the font lacks."""
    manager = require("matplotlib.font_manager", "lab")
    font = manager.get_font(manager.findfont("DejaVu Sans"))
    shown = "".join(
        each if each == "\n" or (unicodedata.category(each)[0] != "C" and font.get_char_index(ord(each))) else "□"
        for each in text
    )
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _name_points(figure: Any, axes: Any, points: Sequence[Point]) -> None:
    """Write each label at the nearest place where it covers no label, no point and no edge; a line leads to it."""
    bounds = require("matplotlib.transforms", "lab").Bbox
    renderer = figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    marks = axes.transData.transform([(point.ms, point.value) for point in points])
    taken = [bounds.from_bounds(x - 5, y - 5, 10, 10) for x, y in marks]
    for point in sorted(points, key=lambda point: (-point.value, point.label)):
        at = {"xy": (point.ms, point.value), "textcoords": "offset points"}
        for x, y in ROOMS:
            side = {
                "ha": "left" if x > 0 else "right" if x < 0 else "center",
                "va": "bottom" if y > 0 else "top" if y < 0 else "center",
            }
            note = axes.annotate(_fit(point.label), **at, xytext=(x, y), **side, fontsize=8, color=INK)
            box = note.get_window_extent(renderer)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if (inside and not any(box.overlaps(other) for other in taken)) or (x, y) == ROOMS[-1]:
                break
            note.remove()
        taken.append(box)
        if (x, y) not in ROOMS[:4]:
            axes.annotate("", **at, xytext=(x, y), arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6})
