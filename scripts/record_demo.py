"""Records `toolscout demo` as docs/images/demo.svg: what the program prints, in a terminal.

    python scripts/record_demo.py [--home DIR]

The demo runs in a pseudo-terminal, with three of its own questions, and Rich draws the text with its colours. Times in
the picture are those of this run: record it on a machine that does nothing else. `--home` takes a demo catalogue that
is there already, which saves the time of indexing, but then the picture says that nothing was new.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from toolscout.cli.demo import DEMO_QUESTIONS

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "images" / "demo.svg"
QUESTIONS = (DEMO_QUESTIONS[0], DEMO_QUESTIONS[1], DEMO_QUESTIONS[-1])
COLUMNS, ROWS = 104, 50
CHUNK_BYTES = 65_536
# Rich's own format without its two fonts from another host: a page that shows the picture fetches nothing.
SVG_FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def record_output(command: list[str], folder: Path) -> str:
    """Run a command in a pseudo-terminal and return what it wrote to standard output, with colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "HOME": str(folder)}
    running = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(ours, CHUNK_BYTES)
        except OSError:  # Linux: the other side is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    if code := running.wait():
        sys.exit(f"`{' '.join(command)}` ended with {code}.")
    return b"".join(chunks).decode().replace("\r\n", "\n")


def draw_terminal(text: str, title: str, unique_id: str = "demo") -> str:
    """Draw text with colours as an SVG. Equal text gives an equal picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text.strip("\n"), overflow="fold"))
    svg = console.export_svg(title=title, theme=MONOKAI, code_format=SVG_FORMAT, unique_id=unique_id)
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines() if line.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="a demo catalogue that is there already")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = str(options.home.resolve()) if options.home else "demo"
        command = [sys.executable, "-m", "toolscout", "--home", home, "demo", *QUESTIONS]
        text = record_output(command, Path(folder))
    options.out.write_text(draw_terminal(text, "toolscout demo"), encoding="utf-8")


if __name__ == "__main__":
    main()
