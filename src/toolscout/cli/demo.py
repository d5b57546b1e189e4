"""The command `demo`: indexes real tools in a separate catalogue and answers questions."""

from __future__ import annotations

import importlib.util
import sys
import time
from importlib.resources import as_file, files
from pathlib import Path

import click

from toolscout.cli.output import count_things, format_changes, progress, report_failures
from toolscout.cli.search import print_search
from toolscout.errors import SourceError
from toolscout.home.catalogue.store import Changes
from toolscout.location import DEFAULT_TENANT
from toolscout.scout import Scout
from toolscout.settings import load_settings

DEMO_LIBRARIES = ("numpy", "pandas", "httpx")
DEMO_QUESTIONS = (  # the first one needs the MCP server
    "What time is it in Tokyo when it is noon in New York?",
    "Will it rain in Oslo tomorrow, and do I have meetings outside?",
    "¿Lloverá mañana en Oslo?",
    "compress a folder into a zip archive",
    "read a JSON file and turn it into Python objects",
    "solve a system of linear equations",
    "what does `urllib.parse.urlsplit` do?",
    "xyzzy plugh",
    "good morning, how are you?",
)


@click.command("demo")
@click.option(
    "--home", metavar="DIR", help="Folder of the demo's catalogue. Default: `demo` in your home folder of toolscout."
)
@click.argument("questions", nargs=-1, metavar="[QUESTION]...")
@click.pass_context
def demo_command(ctx: click.Context, home: str | None, questions: tuple[str, ...]) -> int:
    """Index real tools and answer questions about them.

    The tools come from a small bundled catalogue, Python's standard library, installed packages and a real MCP server.
    Your own catalogue is not touched. QUESTIONs replace the prepared ones.
    """
    home = home or (ctx.obj or {}).get("home")
    folder = Path(home) if home else load_settings().home / "demo"
    with Scout(folder, tenant=DEFAULT_TENANT) as scout:
        click.echo(f"This demo fills a catalogue of its own in {folder}. Every tool is real.\n")
        started = time.perf_counter()
        with as_file(files("toolscout") / "data" / "everyday.jsonl") as bundled:
            changes, seconds = _index_sources(scout, bundled)
        for change in changes:
            if change.state != "error":
                click.echo(f"  {format_changes(change)}  ({seconds[change.source]:.1f} s)")
        count = sum(source.tools for source in scout.sources())
        took = time.perf_counter() - started
        click.echo(f"\n{count_things(count, 'tool')} indexed in {took:.1f} s. Nothing left this machine.\n")
        has_server = any(change.source == "time" for change in changes)
        for question in questions or (DEMO_QUESTIONS if has_server else DEMO_QUESTIONS[1:]):
            click.secho(question, bold=True)
            print_search(scout.search(question, 3))
            click.echo()
        code = report_failures(changes)
        click.echo("Next:  toolscout add YOUR_TOOLS   then   toolscout search 'what you need'")
        return 3 if code else 0  # even if no source could be read: the catalogue of an earlier demo may answer


def _index_sources(scout: Scout, bundled: Path) -> tuple[list[Changes], dict[str, float]]:
    """Add the sources that the demo searches, and compute the vectors. Returns the changes, and source → seconds."""
    sources = [("everyday", str(bundled), "schemas"), ("stdlib", "py:stdlib", "python")]
    sources += [(name, f"py:{name}", "python") for name in DEMO_LIBRARIES if importlib.util.find_spec(name)]
    if importlib.util.find_spec("mcp") and importlib.util.find_spec("mcp_server_time"):
        sources.append(("time", f"{sys.executable} -m mcp_server_time", "mcp"))
    else:
        click.echo("The demo's MCP server is not installed. Add it with  pip install 'toolscout[demo]'", err=True)
    changes: list[Changes] = []
    seconds: dict[str, float] = {}
    with progress("reading") as say:
        for number, (name, locator, kind) in enumerate(sources):
            say(f"reading {name}", number, len(sources))
            started = time.perf_counter()
            try:
                source_changes = scout.add(locator, name=name, kind=kind, embed=False)
            except SourceError as error:
                source_changes = [Changes(source=name, state="error", message=str(error))]
            seconds |= {change.source: time.perf_counter() - started for change in source_changes}
            changes += source_changes
        scout.embed(progress=lambda done, total: say("indexing tools", done, total))
    return changes, seconds
