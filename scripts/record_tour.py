"""Records two tours of a minute: docs/images/tour.svg of the terminal, docs/images/tour-page.gif of the page.

    python scripts/record_tour.py [--terminal] [--page]

Both use the bookshop in examples/shop. The terminal is drawn as `record_demo.py` draws it, one picture for each
command, and CSS shows one after the other. The page needs Chromium, playwright and Pillow.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from make_screenshots import service
from record_demo import ROOT, draw_terminal, record_output

IMAGES: Final = ROOT / "docs" / "images"
SECONDS: Final = 60
COMMANDS: Final = (
    "toolscout add examples/shop/servers.json",
    'toolscout search "I want my money back" -k 2',
    'toolscout search "has Dune left the warehouse, and send me the bill" -k 3',
    'toolscout why "is Emma available" shop/get_stock -k 2',
    "toolscout gateway --print-config cursor",
    'toolscout search "good morning, how are you?"',
)
VIEWS: Final = (
    ("#/home", "#examples a"),
    ("#/search?q=I+want+my+money+back&k=3", "ol.hits li"),
    ("#/search?q=has+Dune+left+the+warehouse,+and+send+me+the+bill&k=3", "ol.hits li"),
    ("#/catalogue", "#tools button"),
    ("#/journal", "#events tbody tr"),
)
SIZE: Final = {"width": 1120, "height": 720}
COLOURS: Final = 64
PROGRAM: Final = str(Path(sys.executable).with_name("toolscout"))  # the gateway prints its own path


def record_terminal(folder: Path) -> str:
    """Run the commands, and draw each with what it printed as one picture of an animation."""
    frames = []
    for command in COMMANDS:
        words = [sys.executable, "-m", *shlex.split(command)]
        output = record_output(words, folder).replace(PROGRAM, "toolscout").replace(str(folder), "~")
        frames.append(f"\x1b[1m$ {command}\x1b[0m\n\n{output}")
    pause, share = SECONDS // len(frames), 100 / len(frames)
    style = "".join(
        f".frame{number}{{animation:show {SECONDS}s step-end infinite;animation-delay:{number * pause}s;opacity:0}}"
        for number in range(len(frames))
    )
    rows = max(len(frame.splitlines()) for frame in frames)
    padded = [frame + "\n" * (rows - len(frame.splitlines())) + "\x1b[2m.\x1b[0m" for frame in frames]
    drawings = [draw_terminal(frame, "toolscout", f"frame{number}") for number, frame in enumerate(padded)]
    box = drawings[0].partition('viewBox="')[2].partition('"')[0]
    parts = [f'<g class="frame{number}">{drawing}</g>' for number, drawing in enumerate(drawings)]
    show = f"@keyframes show{{0%{{opacity:1}}{share:.3f}%{{opacity:0}}100%{{opacity:0}}}}"
    size = " ".join(box.split()[2:])
    start = f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg"><style>{show}{style}</style>'
    return "\n".join([start, *parts, "</svg>", ""])


def record_page(home: str) -> None:
    """Take a picture of each view, and write them as one animation."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or sys.exit("The program chromium is missing. Install it.")
    shots: list[Any] = []
    with service(home) as place, sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(color_scheme="light", viewport=SIZE).new_page()
        page.set_default_timeout(120_000)
        for number, (address, ready) in enumerate(VIEWS):
            page.goto(place + address)
            page.wait_for_selector(ready)
            page.wait_for_load_state("networkidle")
            file = f"{folder}/{number}.png"
            page.screenshot(path=file)
            shots.append(Image.open(file).convert("RGB").quantize(COLOURS))
        browser.close()
    pause = 1000 * SECONDS // len(shots)
    shots[0].save(
        IMAGES / "tour-page.gif", save_all=True, append_images=shots[1:], duration=pause, loop=0, optimize=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terminal", action="store_true", help="only the terminal")
    parser.add_argument("--page", action="store_true", help="only the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples")
        os.environ |= {
            "TOOLSCOUT_HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        text = record_terminal(folder)
        if not options.page:
            (IMAGES / "tour.svg").write_text(text, encoding="utf-8")
        if not options.terminal:
            record_page(str(folder / "home"))


if __name__ == "__main__":
    main()
