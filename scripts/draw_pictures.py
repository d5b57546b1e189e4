"""Draws the pictures of the concept pages as SVG: docs/images/{start-here,concepts,search,need,learning,…}.svg.

    python scripts/draw_pictures.py

`start-here` is drawn from the list of places in docs/understand/start-here.md, the others from `FLOWS` and `EXCHANGE`
below. `tests/test_docs.py` sees that the pictures are up to date.
"""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "understand" / "start-here.md"
IMAGES: Final = ROOT / "docs" / "images"
PLACE: Final = re.compile(r"^\d+\. \*\*(.+?)\*\* \(`(.+?)`, `(.+?)`\)", re.M)
COLUMNS: Final = 5
BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN = 176, 70, 22, 12
STYLE: Final = (
    "text{font-family:system-ui,sans-serif;fill:#1f2937}.name{font-size:15px;font-weight:600}"
    ".file{font-size:11px;fill:#4b5563}.box{fill:#eef2ff;stroke:#6366f1}.line{stroke:#6b7280;fill:none;stroke-width:1.5}"
    ".note{fill:#fef9c3;stroke:#ca8a04}"
)


LANE_WIDTH, MESSAGE_HEIGHT = 300, 34


class Place(NamedTuple):
    """A box: what it is called, and two lines below. In start-here a file, and the class or function in it."""

    title: str
    file: str
    name: str


class Message(NamedTuple):
    """An arrow between two lanes of an exchange, from left to right or back."""

    start: int
    end: int
    text: str


#: Picture → boxes in their order: title, lower line, upper line.
FLOWS: Final[dict[str, list[Place]]] = {
    "concepts": [
        Place("Origin", "a file, URL or command", "servers.json"),
        Place("Source", "is read together", "shop"),
        Place("Tool", "name, description, schema", "shop/refund_order"),
        Place("Catalogue", "all tools of the home", "7 tools, generation 1"),
        Place("Snapshot", "all tools at one moment", "no search sees half"),
        Place("Request", "query, k, who asks", "take it back"),
        Place("Pipeline", "the stages of a recipe", "scout"),
        Place("Answer", "hits, or a reason", "refund_order first"),
        Place("Journal", "search, calls, feedback", "shown, called"),
        Place("Model", "fitted, tested, promoted", "the champion"),
    ],
    "search": [
        Place("Request", "and send me the bill", "has Dune left the warehouse,"),
        Place("Steps", "2 steps", "scout splits"),
        Place("Words", "shared words", "BM25"),
        Place("Vectors", "near meaning", "encoder"),
        Place("Fuse", "one score for each tool", "hybrid"),
        Place("Actions", "add or remove?", "opposite verbs"),
        Place("Merge", "a place for each step", "chances"),
        Place("Names", "named tools first", "shop/get_stock"),
        Place("Prerequisites", "list_orders", "what a match needs"),
        Place("Demote, cut", "k tools stay", "hostile texts last"),
        Place("Abstain", "doubtful, or none", "need and fit"),
        Place("Answer", "send_invoice, list_orders", "3 hits, 2 steps"),
    ],
    "steps": [
        Place("Request", "and send me the bill", "has Dune left the warehouse,"),
        Place("Cuts", "where a step may begin", "punctuation, and, then"),
        Place("Steps", "send me the bill", "has Dune left the warehouse"),
        Place("Search each", "and the request itself", "hybrid"),
        Place("Chances", "is this the right tool?", "from scores"),
        Place("Places", "one by one, k in all", "complete answers first"),
        Place("Answer", "list_orders, track_order", "send_invoice"),
        Place("Coverage", "where -k auto ends", "all steps served?"),
    ],
    "need": [
        Place("Request", "tell me a joke", "query"),
        Place("Two searches", "BM25 and cosine", "every visible tool"),
        Place("Score features", "how far the first is ahead", "statistics"),
        Place("Need", "2 % likely to need a tool", "logistic regression"),
        Place("Fit", "does a tool fit?", "logistic regression"),
        Place("Thresholds", "from the budget, 0.02", "held-out requests"),
        Place("Answer", "low confidence, with reason", "the nearest tools"),
    ],
    "learning": [
        Place("Traffic", "searches and calls", "900 searches"),
        Place("Evidence", "query → called tools", "779 requests"),
        Place("Split", "547 / 77 / 155", "train, dev, held out"),
        Place("Candidate", "fitted on train", "scout-light"),
        Place("Gate", "paired test, p < 0.03", "58.4 → 99.4 ndcg@5"),
        Place("Champion", "one file is replaced", "serves searches"),
        Place("Rollback", "one command back", "toolscout rollback"),
    ],
    "security": [
        Place("Approved", "as you first saw it", "refund_order"),
        Place("Server changes", "another description", "read ~/.ssh"),
        Place("Screening", "an order to the model", "finding"),
        Place("Waits", "no search, no call", "unapproved"),
        Place("You read", "toolscout approve", "the difference"),
        Place("Approve, or not", "served again, or never", "your decision"),
    ],
}
#: The messages of one search and one call, as docs/use/gateway.md shows them.
LANES: Final = ("agent and model", "toolscout gateway", "server shop")
EXCHANGE: Final = [
    Message(0, 1, "search_tools: has my order been shipped"),
    Message(1, 0, "two lines, one for each tool, and a search_id"),
    Message(0, 1, "call_tool: shop/track_order, A-1001"),
    Message(1, 1, "may the caller? approved? arguments right?"),
    Message(1, 2, "tools/call track_order"),
    Message(2, 1, "result"),
    Message(1, 0, "the same result, within a budget"),
    Message(1, 1, "the journal notes search and call"),
]


def read_places(page: str) -> list[Place]:
    """Read the numbered places of the page."""
    return [Place(*match) for match in PLACE.findall(page)]


def draw_places(places: list[Place]) -> str:
    """Draw the places in rows, the second from right to left, with an arrow from each to the next."""
    rows = -(-len(places) // COLUMNS)
    width = 2 * MARGIN + COLUMNS * BOX_WIDTH + (COLUMNS - 1) * GAP
    height = 2 * MARGIN + rows * BOX_HEIGHT + (rows - 1) * 2 * GAP
    corners = [find_corner(number) for number in range(len(places))]
    parts = open_picture(width, height, " → ".join(place.title for place in places))
    for number, (place, (left, top)) in enumerate(zip(places, corners, strict=True), 1):
        parts.append(f'<rect class="box" x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>')
        for shift, style, text in (
            (24, "name", f"{number} {place.title}"),
            (43, "file", place.name),
            (59, "file", place.file),
        ):
            parts.append(f'<text class="{style}" x="{left + 10}" y="{top + shift}">{html.escape(text)}</text>')
    parts += [draw_arrow(start, end) for start, end in itertools.pairwise(corners)]
    return "\n".join([*parts, "</svg>", ""])


def open_picture(width: int, height: int, title: str) -> list[str]:
    """Return the first lines of a picture: size, title, styles, the tip of an arrow, a white ground."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z" fill="#6b7280"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
    ]


def draw_exchange(lanes: tuple[str, ...], messages: list[Message]) -> str:
    """Draw messages between lanes, from the first at the top to the last; one within a lane is a note."""
    width = 2 * MARGIN + len(lanes) * LANE_WIDTH
    height = 2 * MARGIN + 40 + len(messages) * MESSAGE_HEIGHT
    centres = [MARGIN + LANE_WIDTH // 2 + lane * LANE_WIDTH for lane in range(len(lanes))]
    parts = open_picture(width, height, " → ".join(lanes))
    for centre, lane in zip(centres, lanes, strict=True):
        parts.append(f'<rect class="box" x="{centre - 88}" y="{MARGIN}" width="176" height="30" rx="6"/>')
        parts.append(
            f'<text class="name" x="{centre}" y="{MARGIN + 20}" text-anchor="middle">{html.escape(lane)}</text>'
        )
        parts.append(f'<path class="line" d="M{centre},{MARGIN + 30} L{centre},{height - MARGIN}" opacity="0.4"/>')
    for number, message in enumerate(messages):
        y = MARGIN + 66 + number * MESSAGE_HEIGHT
        start, end = centres[message.start], centres[message.end]
        if start != end:
            tip = end - 3 if end > start else end + 3
            parts.append(f'<path class="line" d="M{start},{y} L{tip},{y}" marker-end="url(#tip)"/>')
        else:
            parts.append(f'<rect class="note" x="{start - 130}" y="{y - 19}" width="260" height="24" rx="4"/>')
        text = html.escape(message.text)
        parts.append(f'<text class="file" x="{(start + end) // 2}" y="{y - 4}" text-anchor="middle">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def draw_all() -> dict[str, str]:
    """Draw every picture. Returns its text by its name."""
    places = read_places(PAGE.read_text(encoding="utf-8"))
    pictures = {"start-here": draw_places(places), "gateway": draw_exchange(LANES, EXCHANGE)}
    return pictures | {name: draw_places(boxes) for name, boxes in FLOWS.items()}


def find_corner(number: int) -> tuple[int, int]:
    """Return the upper left corner of a box."""
    row, column = divmod(number, COLUMNS)
    if row % 2:
        column = COLUMNS - 1 - column
    return MARGIN + column * (BOX_WIDTH + GAP), MARGIN + row * (BOX_HEIGHT + 2 * GAP)


def draw_arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Draw the arrow from one box to the next, beside or below it."""
    if start[1] != end[1]:
        middle = start[0] + BOX_WIDTH // 2
        points = (middle, start[1] + BOX_HEIGHT, middle, end[1] - 2)
    else:
        y = start[1] + BOX_HEIGHT // 2
        points = (start[0] + BOX_WIDTH, y, end[0] - 2, y) if start < end else (start[0], y, end[0] + BOX_WIDTH + 2, y)
    x1, y1, x2, y2 = points
    return f'<path class="line" d="M{x1},{y1} L{x2},{y2}" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    for name, picture in draw_all().items():
        (IMAGES / f"{name}.svg").write_text(picture, encoding="utf-8")
