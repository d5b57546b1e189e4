"""Runs the commands of documentation pages, and compares what they print with what the pages show.

    python scripts/run_pages.py PAGE…           compares, and says which line of a page the program did not print
    python scripts/run_pages.py --fill PAGE…    writes what the commands printed into blocks of output that are empty

The blocks of a page are used in order, in one new folder with a home of its own and a copy of `examples`:

    sh                   commands, run by bash. `# exits with 1` on the last line says that the exit code is not 0
    python               a program, run by itself
    text                 what the block before it printed: these lines, in this order, among other lines. `…` stands for
                         any text, and for any lines on a line of its own. Fractions are not compared
    json title="x.json"  a file (also toml, yaml, py, csv), written into the folder before the next commands
    console              commands that nobody can run here: they need a server, a key or a container of the reader

A command that goes on (`toolscout serve &`) is stopped at the end of the page. Addresses that a reader would have are
replaced: ports by free ones, and `postgresql://toolscout@db.example/tools` by the address in `RUN_PAGES_DATABASE`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ports import find_free_port  # noqa: E402

FENCE: Final = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```', re.S | re.M)
FRACTION: Final = re.compile(r"\d+\.\d+")
EXIT_CODE: Final = re.compile(r"# exits with (\d+)\s*\Z")
DATABASE: Final = "postgresql://toolscout@db.example/tools"
COLUMNS: Final = "112"
BLOCK_TIMEOUT_S: Final = 240
PLAIN: Final = re.compile(r"(?!.*(?:://|feedback))toolscout (?!serve|gateway)[^|&;<>$`*\\\n]*")
CHANGING: Final = re.compile(r"\d{4}-\d\d-\d\d[ T][\d:.]+Z?|\b[0-9a-f]{32}\b")  # times and ids of one run
PROGRESS: Final = re.compile(
    r"^((reading|read|indexing|embedding|fitting|pulling|learning|searching)\b.*…$|toolscout: serving)"
)
NOT_RUN: Final = ("pip install", "python3 -m venv .venv")  # it would change the environment that runs the pages
SERVED: Final = {
    "toolscout serve": "8766",
    "toolscout gateway --http": "8765",
    "python examples/shop/account.py &": "8767",
    "python examples/shop/collector.py &": "4318",
}


class Block(NamedTuple):
    """A fenced block of a page: its language, the file that it is (or empty), and its text."""

    language: str
    title: str
    text: str


class PageError(AssertionError):
    """A page shows something else than its commands print."""


def find_blocks(page: Path) -> list[Block]:
    """Return the blocks of code in the order of the page."""
    return [Block(*match) for match in FENCE.findall(page.read_text(encoding="utf-8"))]


def find_missing_line(shown: str, printed: str) -> str | None:
    """Return the first line of `shown` that is not among the lines of `printed` in this order; None: all are there."""
    lines = iter(" ".join(FRACTION.sub("#", line).split()) for line in printed.splitlines())
    for line in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
        if line == "…" or set(line) == {"─"}:
            continue
        pattern = ".*".join(map(re.escape, re.split(" ?… ?", FRACTION.sub("#", line))))
        if not any(re.fullmatch(pattern, printed_line) for printed_line in lines):
            return line
    return None


class Shell:
    """Runs blocks one after the other in a folder; variables that a block exports reach the next ones."""

    def __init__(self, folder: Path) -> None:
        """Make the programs `toolscout`, `python` and `pip` of this checkout, and a copy of the examples."""
        self.folder = folder
        programs = folder / ".programs"
        programs.mkdir()
        for name, line in {
            "toolscout": f'exec "{sys.executable}" -m toolscout "$@"',
            "python": f'exec "{sys.executable}" "$@"',
            "python3": f'exec "{sys.executable}" "$@"',
        }.items():
            (programs / name).write_text(f"#!/bin/sh\n{line}\n")
            (programs / name).chmod(0o755)
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOOLSCOUT_")},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / ".data"),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "TOOLSCOUT_HOME": str(folder / "home"),
            "COLUMNS": COLUMNS,
            "OMP_NUM_THREADS": "1",
        }
        self.replaced = {port: str(find_free_port()) for port in SERVED.values()}
        if address := os.environ.get("RUN_PAGES_DATABASE"):
            self.replaced[DATABASE] = address
        self.groups: list[int] = []

    def run(self, command: list[str]) -> tuple[int, str]:
        """Run a command. Returns its exit code, and what it wrote to both outputs, with the reader's addresses."""
        with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as a server in the background
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            self.groups.append(process.pid)
            code = process.wait(timeout=BLOCK_TIMEOUT_S)
            output.seek(0)
            return code, self.restore_addresses(output.read().decode(errors="replace"))

    def restore_addresses(self, printed: str) -> str:
        """Write what a reader would see: their addresses and their folder."""
        for shown, real in self.replaced.items():
            printed = printed.replace(real, shown)
        return printed.replace(f"{self.folder}/.programs", "…").replace(str(self.folder), "~")

    @staticmethod
    def check_code(script: str, code: int, printed: str) -> str:
        """Return what was printed if the exit code is the one that the last line says, or 0."""
        said = EXIT_CODE.search(script)
        if code != (int(said[1]) if said else 0):
            raise PageError(f"{script}\nended with {code} and printed\n{printed}")
        return printed

    def run_block(self, script: str) -> str:
        """Run the commands of a block. Raises `PageError` if they end with another code than the block says."""
        printed = ""
        for is_plain, group in itertools.groupby(script.splitlines(), lambda line: bool(PLAIN.fullmatch(line))):
            lines = list(group)
            printed += "".join(map(self.run_here, lines)) if is_plain else self.run_script("\n".join(lines))
        return printed

    def run_here(self, line: str) -> str:
        """Run one `toolscout` command in this process: to start a program for each takes most of the time."""
        from click.testing import CliRunner

        from toolscout.cli.main import LazyGroup, main, program

        class Program(LazyGroup):
            def main(self, args: list[str] | None = None, **extra: object) -> object:  # type: ignore[override]
                return main(args)

        for shown, real in self.replaced.items():
            line = line.replace(shown, real)
        words = shlex.split(line, comments=True)[1:]
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            with mock.patch.dict(os.environ, self.environment, clear=True):
                group = Program(name="toolscout", params=program.params, callback=program.callback)
                result = CliRunner().invoke(group, words, prog_name="toolscout")
        finally:
            os.chdir(before)
        fault = result.exception
        output = result.output if fault is None or isinstance(fault, SystemExit) else f"{result.output}{fault!r}"
        return self.check_code(line, result.exit_code, self.restore_addresses(output))

    def run_script(self, script: str) -> str:
        """Run commands by bash. Variables that they export hold for the next commands too."""
        if not any(line.split("#")[0].strip() for line in script.splitlines()):
            return ""
        real = script
        for start, port in SERVED.items():
            command = start.removesuffix(" &")
            real = real.replace(start, start.replace(command, f"{command} --port {port}"))
        for shown, replacement in self.replaced.items():
            real = real.replace(shown, replacement)
        state = self.folder / ".environment"
        code, printed = self.run(["bash", "-c", f"set -euo pipefail\ntrap 'env -0 > \"{state}\"' EXIT\n{real}"])
        variables = (entry.partition("=") for entry in state.read_text().split("\0") if entry)
        self.environment |= {name: value for name, _, value in variables}
        return self.check_code(script, code, printed)

    def stop(self) -> None:
        """End what the blocks left running."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                continue


def run_page(page: Path, folder: Path) -> Iterator[tuple[int, Block, str]]:
    """Run the blocks of a page. Yields number, block and output of each block of output."""
    shell, printed = Shell(folder), ""
    try:
        for number, block in enumerate(find_blocks(page)):
            if block.title:
                (folder / block.title).write_text(block.text)
            elif block.language == "sh":
                lines = (line for line in block.text.splitlines() if not line.startswith(NOT_RUN))
                printed = shell.run_block("\n".join(lines))
            elif block.language == "python":
                program = block.text
                for shown, real in shell.replaced.items():
                    program = program.replace(shown, real)
                code, printed = shell.run([sys.executable, "-c", program])
                if code:
                    raise PageError(f"{block.text}\nended with {code} and printed\n{printed}")
            elif block.language == "text":
                yield number, block, printed
    finally:
        shell.stop()


def check_page(page: Path, folder: Path) -> int:
    """Compare a page with what its commands print. Returns how many blocks of output were compared."""
    count = 0
    for _, block, printed in run_page(page, folder):
        if (missing := find_missing_line(block.text, printed)) is not None:
            raise PageError(f"{page} shows {missing!r}, the program printed\n{printed}")
        count += 1
    return count


def fill_page(page: Path, folder: Path) -> None:
    """Write into the empty blocks of output what was printed."""
    printed = {number: output for number, block, output in run_page(page, folder) if not block.text.strip()}
    numbers = iter(range(10_000))

    def fill(match: re.Match[str]) -> str:
        output = printed.get(next(numbers))
        if output is None:
            return match[0]
        output = CHANGING.sub("…", output)
        lines = [line.rstrip() for line in output.splitlines() if line.strip() and not PROGRESS.match(line)]
        return "\n".join(["```text", *lines, "```"])

    page.write_text(FENCE.sub(fill, page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--fill", action="store_true", help="write empty blocks of output")
    options = parser.parse_args()
    failed = False
    for page in options.pages:
        with tempfile.TemporaryDirectory(prefix="page-") as folder:
            try:
                (fill_page if options.fill else check_page)(page, Path(folder))
            except PageError as error:
                failed = True
                print(f"{page}: {error}", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
