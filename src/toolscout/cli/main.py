"""The program `toolscout`: finds the file of a command, and turns errors into a sentence and an exit code.

Exit codes: 0 done; 1 the user can fix it; 2 usage; 3 partly done, every failure named.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import click

import toolscout
from toolscout.errors import UserError

__all__ = ["COMMANDS", "main", "program"]

COMMANDS: Final = {
    "demo": ("demo", "Index real tools and answer questions, without touching your catalogue."),
    "add": ("catalogue", "Read sources of tools into the catalogue."),
    "sync": ("catalogue", "Read the sources again; change only what changed."),
    "list": ("catalogue", "Show the sources, or the tools of one."),
    "show": ("catalogue", "Show one tool, or one source with its problems."),
    "remove": ("catalogue", "Forget sources or single tools."),
    "enable": ("catalogue", "Search a source again."),
    "disable": ("catalogue", "Keep a source but do not search it."),
    "search": ("search", "Find the tools that a request needs."),
    "why": ("search", "Say why a tool is not in an answer, and what would lift it."),
    "train": ("train", "Fit a recipe on a dataset and write the model."),
    "models": ("models", "List fitted models, and what is wrong with them."),
    "bench": ("lab.bench", "Score recipes on datasets."),
    "sweep": ("lab.sweep", "Fit a recipe with many settings, judged on dev."),
    "compare": ("lab.bench", "Compare two results query by query."),
    "export-encoder": ("encoders", "Write a sentence encoder as an ONNX folder, which runs without torch."),
    "report": ("lab.bench", "Write HTML and PNG from results."),
    "anatomy": ("lab.anatomy", "Show where an encoder puts queries and tools, and what each stage costs."),
    "synth": ("lab.synth", "Write datasets for your tools with a language model."),
    "judge": ("lab.judge", "Compare queries or answers, two at a time, with a language model as judge."),
    "downstream": ("lab.downstream", "Measure what retrieval is worth to an agent that only has what was retrieved."),
    "journal": ("journal", "Import, export or count what was searched and called."),
    "serve": ("serve", "Serve search, catalogue, journal and a page over HTTP."),
    "selftest": ("selftest", "Ask for your own tools in other words; score the recipes; recommend one."),
    "lint": ("lint", "Say which tools cannot be found, which are confused, and what would help."),
    "learn": ("learn", "Fit recipes on what was used, and promote what is better."),
    "promote": ("learn", "Make a fitted model the champion, which every search uses that names none."),
    "rollback": ("learn", "Take the last promotion back."),
    "gateway": ("gateway", "Serve all tools to an agent as one MCP server."),
    "key": ("access", "Make an API key for a caller of the gateway."),
    "approve": ("access", "Show the definitions that wait because they changed, and approve them."),
    "doctor": ("doctor", "Check the installation and the store."),
}


class LazyGroup(click.Group):
    """A group that imports a command's file when the command is used; help is printed from the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the file of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"toolscout.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--home", metavar="DIR", help="Folder of the catalogue and the journal. Also TOOLSCOUT_HOME.")
@click.version_option(toolscout.__version__, prog_name="toolscout")
@click.pass_context
def program(ctx: click.Context, home: str | None) -> None:
    """Find the tools that a request needs, among thousands."""
    ctx.obj = {"home": home}


def main(arguments: list[str] | None = None) -> Any:
    """Run the program and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = program.main(args=arguments, standalone_mode=False)
    except UserError as error:
        click.echo(f"toolscout: {error}", err=True)
        code = 1
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("toolscout: stopped", err=True)
        code = 130
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
