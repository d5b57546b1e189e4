"""What all charts share: a figure of matplotlib, its title and legend, colours, and texts that fit."""

from __future__ import annotations

import contextlib
import io
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from toolscout.errors import require

__all__ = ["add_legend", "add_title", "draw_grid", "open_figure", "shorten_text"]

DPI: Final = 120
MAX_LABEL_CHARS: Final = 36
MAX_TITLE_CHARS: Final = 90
BLUE, ORANGE, GREY, LIGHT_GREY, INK = "#0072B2", "#E69F00", "#8C8C8C", "#CFCFCF", "#222222"  # Okabe and Ito's palette
GREEN, RED, SKY, PINK = "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
SERIES: Final = tuple(
    zip((BLUE, ORANGE, GREEN, RED, PINK, SKY, INK), "os^Dv<P", strict=True)
)  # (colour, marker) of each series
GRID_COLOR: Final = "#E3E3E3"


@contextlib.contextmanager
def open_figure(width: float, height: float) -> Iterator[tuple[Any, Callable[[], bytes]]]:
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


def add_title(figure: Any, title: str) -> None:
    """Write the title above all panels."""
    figure.suptitle(shorten_text(title, MAX_TITLE_CHARS), fontsize=11)


def draw_grid(axes: Any, axis: str = "both") -> None:
    """Draw faint lines at the ticks, below everything else."""
    axes.grid(axis=axis, color=GRID_COLOR)
    axes.set_axisbelow(True)


def add_legend(
    figure: Any,
    handles: Mapping[str, Any],
    *,
    ncols: int,
    place: str = "outside lower center",
    size: int = 8,
    shorten: bool = False,
) -> None:
    """Add a legend below the panels; `handles`: name → what stands beside it."""
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
