"""The program `toolscout`: imports a command when it is used, and reports errors.

Exit codes: 0 success; 1 an error that the user can fix; 2 wrong usage; 3 partial success, every failure is named.
"""

from __future__ import annotations

import errno
import importlib
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

import toolscout
from toolscout.errors import ConfigError, MissingExtra, UserError, find_nearest, install_line
from toolscout.plugins import COMMAND_PLUGINS, Plugin, find_plugin, is_own, list_plugins, load_plugin

__all__ = ["COMMANDS", "COMMAND_GROUPS", "EXAMPLES", "LAB_COMMANDS", "main", "program"]

Command = tuple[str, str]
"""Where a command is, and one sentence for the help.

`FILE` is a module of toolscout.cli with a function NAME_command; `EXTRA:ENTRY POINT` is in the package toolscout-EXTRA.
"""

COMMAND_GROUPS: Final[Mapping[str, Mapping[str, Command]]] = {
    "Catalogue": {
        "add": ("catalogue", "Read sources of tools into the catalogue."),
        "sync": ("catalogue", "Read the sources again and change only what changed."),
        "list": ("catalogue", "List the sources, or the tools of one."),
        "show": ("catalogue", "Show one tool, or one source with its problems."),
        "remove": ("catalogue", "Remove sources or single tools."),
        "hide": ("catalogue", "Hide single tools for good, or show them again."),
        "enable": ("catalogue", "Search a source again."),
        "disable": ("catalogue", "Keep a source but do not search it."),
        "approve": ("access", "Review definitions that changed, and approve them."),
    },
    "Search": {
        "demo": ("demo", "Index real tools and answer questions, without touching your catalogue."),
        "search": ("search", "Find the tools that a request needs."),
        "why": ("search", "Explain why a tool is missing from an answer, and what would lift it."),
    },
    "Serve": {
        "serve": ("server:serve", "Serve search, catalogue, journal and a web page over HTTP."),
        "gateway": ("gateway:gateway", "Serve all tools to an agent as one MCP server."),
        "status": ("gateway:status", "Show the gateways that run, and the servers behind them."),
        "key": ("access", "Create an API key for a caller."),
        "policy": ("access", "Set or print the policy of the home."),
        "profiles": ("access", "Set or print the profiles of the home."),
        "identity": ("gateway:identity", "Manage the sign-ins of callers at servers behind the gateway."),
    },
    "Learn": {
        "journal": ("journal", "Import, export or count searches and calls."),
        "learn": ("learn", "Fit recipes on the journal and promote a better one."),
        "train": ("lab:train", "Fit a recipe on a dataset and write the model."),
        "models": ("models", "List fitted models and check them."),
        "promote": ("learn", "Make a fitted model the champion, which serves searches by default."),
        "rollback": ("learn", "Undo the last promotion."),
        "export-encoder": (
            "lab:export-encoder",
            "Write a sentence encoder as an ONNX folder, which runs without torch.",
        ),
    },
    "Check": {
        "selftest": ("selftest", "Measure how well your own tools are found, and recommend a recipe."),
        "lint": ("lint", "List tools that are hard to find or easily confused, with advice."),
        "doctor": ("doctor", "Check the installation and the home folder."),
    },
    "Home": {
        "settings": ("settings", "List all settings, with meaning and origin."),
        "trust": ("access", "Trust the settings and MCP configurations in a folder."),
        "tenant": ("tenant", "List, add and remove the tenants of a home."),
        "migrate": ("postgres:migrate", "Copy a home to a database, or back to a folder."),
    },
}
LAB_COMMANDS: Final[Mapping[str, Command]] = {
    "bench": ("lab:lab.bench", "Score recipes on datasets."),
    "transfer": ("lab:lab.transfer", "Fit a recipe on one dataset and score it on others."),
    "compare": ("lab:lab.compare", "Compare two results query by query, with paired tests."),
    "reproduce": ("lab:lab.reproduce", "Make the measurements of a paper, and a page with its figures and yours."),
    "sweep": ("lab:lab.sweep", "Fit a recipe with many settings, and score them on dev."),
    "report": ("lab:lab.report", "Write a page and charts from results."),
    "leaderboard": ("lab:lab.leaderboard", "Print results as a Markdown table of labels by datasets."),
    "convert": ("lab:lab.convert", "Convert a dataset of MTEB, ToolRet, ToolBench or SkillRet."),
    "anatomy": ("lab:lab.anatomy", "Plot where an encoder places queries and tools, and the cost of each stage."),
    "synth": ("lab:lab.synth", "Generate datasets for your tools with a language model."),
    "judge": ("lab:lab.judge", "Compare queries or answers in pairs, with a language model as judge."),
    "downstream": ("lab:lab.downstream", "Measure how often an agent succeeds with the tools that it is given."),
    "elo": ("lab:lab.elo", "Rate recipes by the answers that an agent gives with their tools."),
}
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)  # the disk is full, or the user's share of it
_LAB: Final = "lab"
_LAB_HELP: Final = "Research: measure, compare and tune recipes on datasets."
COMMANDS: Final[Mapping[str, Command]] = {
    name: command for commands in COMMAND_GROUPS.values() for name, command in commands.items()
}


#: Name of a command → examples in its help, without `toolscout`.
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("add mcp.json", "add https://api.example.com/openapi.json --name shop", "add --discover"),
    "sync": ("sync", "sync github"),
    "list": ("list", "list github"),
    "show": ("show github/create_issue", "show github"),
    "remove": ("remove github",),
    "hide": ("hide github/delete_repository", "hide --undo github/delete_repository"),
    "enable": ("enable github",),
    "disable": ("disable github",),
    "approve": ("approve", "approve github"),
    "demo": ("demo", "demo 'read a zip file'"),
    "search": ("search 'open an issue about the login page'", "search 'mail the report to Ann' -k 3 --explain"),
    "why": ("why 'open an issue' github/create_issue",),
    "serve": ("serve", "serve --host 0.0.0.0 --policy policy.toml"),
    "gateway": ("gateway", "gateway --print-config claude", "gateway --http --policy policy.toml"),
    "status": ("status",),
    "key": ("key ann",),
    "policy": ("policy", "policy policy.toml"),
    "profiles": ("profiles", "profiles profiles.toml"),
    "identity list": ("identity list",),
    "identity forget": ("identity forget ann https://mcp.example.com",),
    "identity key": ("identity key",),
    "journal import": ("journal import usage.jsonl",),
    "journal export": ("journal export usage.jsonl", "journal export -"),
    "journal prune": ("journal prune --older-than 30d",),
    "journal stats": ("journal stats",),
    "learn": ("learn --dry-run", "learn"),
    "train": ("train scout-light --data datasets/toollens --out models/mine",),
    "models list": ("models list", "models list models"),
    "models pull": ("models pull hf://owner/name",),
    "models push": ("models push scout-light-1 hf://owner/name",),
    "promote": ("promote scout-light-1",),
    "rollback": ("rollback",),
    "export-encoder": ("export-encoder sentence-transformers/all-MiniLM-L6-v2 --out encoders/minilm",),
    "selftest": ("selftest", "selftest --write baseline.json", "selftest --check baseline.json"),
    "lint": ("lint", "lint --limit 50"),
    "doctor": ("doctor", "doctor --repair"),
    "settings": ("settings", "settings k encoder"),
    "trust": ("trust .", "trust --list"),
    "tenant add": ("tenant add acme",),
    "tenant list": ("tenant list",),
    "tenant remove": ("tenant remove acme",),
    "migrate": ("migrate ~/.local/share/toolscout postgresql://toolscout@db/tools",),
    "lab bench": ("lab bench toollens --recipe scout --recipe bm25", "lab bench toollens -r scout --out results"),
    "lab transfer": ("lab transfer toollens toolbank --recipe scout-light",),
    "lab compare": ("lab compare scout bm25 --dataset toollens",),
    "lab reproduce": (
        "lab reproduce colt --budget 2m",
        "lab reproduce tool2vec my-dataset",
        "lab reproduce colt --plan",
    ),
    "lab sweep": ("lab sweep toollens --recipe mlc-light --over depth=50,100",),
    "lab report": ("lab report results",),
    "lab leaderboard": ("lab leaderboard results --measure comp@5",),
    "lab convert": ("lab convert ToolBench/data/retrieval/G2 --out datasets/g2",),
    "lab anatomy": ("lab anatomy toollens",),
    "lab synth toollens": ("lab synth toollens github --out made --dry-run",),
    "lab synth toolbank": ("lab synth toolbank github --out made -n 200 --dry-run",),
    "lab synth tooldet": ("lab synth tooldet --prompts prompts.jsonl --queries queries.jsonl --out made",),
    "lab synth review": ("lab synth review made",),
    "lab judge": ("lab judge queries made other --dry-run",),
    "lab downstream": ("lab downstream toollens --dry-run",),
    "lab elo": ("lab elo toollens --recipe scout --recipe bm25 --out elo --dry-run",),
}


def add_examples(name: str, command: click.Command) -> None:
    """Put the examples of a command, and of the commands below it, at the end of their help."""
    if isinstance(command, click.Group):
        for inner_name, inner in command.commands.items():
            add_examples(f"{name} {inner_name}", inner)
    elif name in EXAMPLES:
        lines = "\n".join(f"  toolscout {line}" for line in EXAMPLES[name])
        command.epilog = f"\b\nExamples:\n{lines}"  # \b: click keeps the lines apart


def load_package_command(extra: str, entry: str) -> click.Command:
    """Import a command that one of toolscout's own packages brings.

    Args:
        extra: of toolscout, that installs the package `toolscout-EXTRA`.
        entry: name of the entry point.

    Raises:
        MissingExtra: if the package is not installed; the message names the extra.
    """
    package = f"toolscout-{extra}"
    for plugin in list_plugins(COMMAND_PLUGINS):
        if plugin.name == entry and plugin.package == package:
            return load_command(plugin)
    raise MissingExtra(
        f"`toolscout {entry.replace('.', ' ')}` is in the package {package}, which is not installed. "
        f"Run  {install_line(extra)}"
    )


def load_command(plugin: Plugin) -> click.Command:
    """Import the command that an entry point names.

    Raises:
        ConfigError: if it cannot be imported, or is no command.
    """
    command = load_plugin(plugin)
    if not isinstance(command, click.Command):
        raise ConfigError(f"{plugin.target} of {plugin.package} {plugin.version} is no command. Update the package.")
    return command


class LazyGroup(click.Group):
    """A group that imports a command only when it is used. Its help comes from tables such as `COMMAND_GROUPS`."""

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, Command]] | None = None,
        unlisted: Mapping[str, Command] | None = None,
        **kwargs: Any,
    ) -> None:
        """Describe the commands.

        Args:
            *args: as in `click.Group`.
            sections: heading of the help → name of a command → its file and sentence.
            unlisted: commands that work and are not in the help.
            **kwargs: as in `click.Group`.
        """
        super().__init__(*args, **kwargs)
        self.sections = sections or {}
        self.lazy = {name: command for part in self.sections.values() for name, command in part.items()}
        self.lazy |= unlisted or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of the commands in the order of the help."""
        return [*(name for part in self.sections.values() for name in part), *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command: of the tables, of a registered group, or of somebody else's package."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name) or self._find_plugin_command(cmd_name)
        location, _ = self.lazy[cmd_name]
        file_or_extra, _, entry = location.partition(":")
        if entry:
            command = load_package_command(file_or_extra, entry)
        else:
            module = importlib.import_module(f"toolscout.cli.{file_or_extra}")
            command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        add_examples(f"{_LAB} {cmd_name}" if cmd_name in LAB_COMMANDS else cmd_name, command)
        return command

    def _find_plugin_command(self, name: str) -> click.Command | None:
        """Import a command of somebody else's package. Only the program itself has such commands."""
        plugin = find_plugin(COMMAND_PLUGINS, name) if self.sections is COMMAND_GROUPS else None
        return None if plugin is None or is_own(plugin) else load_command(plugin)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names. An unknown name is an error that names the nearest one."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            typed_as = {command: command for command in [*self.lazy, *self.commands]}
            if self.sections is COMMAND_GROUPS:
                typed_as |= {command: f"{_LAB} {command}" for command in LAB_COMMANDS}
            nearest = find_nearest(name, typed_as)
            advice = f"See  {ctx.command_path} --help" if nearest is None else f"Did you mean {typed_as[nearest]!r}?"
            ctx.fail(f"There is no command {name!r}. {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, without importing them."""
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])
        other_commands = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        if self.sections is COMMAND_GROUPS:
            plugins = [plugin for plugin in list_plugins(COMMAND_PLUGINS) if not is_own(plugin)]
            other_commands += [(plugin.name, f"See the package {plugin.package}.") for plugin in plugins]
        if other_commands:
            with formatter.section("Others"):
                formatter.write_dl(other_commands)


@click.group(
    cls=LazyGroup,
    sections=COMMAND_GROUPS,
    unlisted=LAB_COMMANDS,  # their names before `toolscout lab` existed
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--home", metavar="DIR", help="Folder of the catalogue and the journal, or postgresql://… Also TOOLSCOUT_HOME."
)
@click.option("--tenant", metavar="NAME", help="Tenant of the home. Also TOOLSCOUT_TENANT.")
@click.version_option(toolscout.__version__, prog_name="toolscout")
@click.pass_context
def program(ctx: click.Context, home: str | None, tenant: str | None) -> None:
    """Find the tools that a request needs, among thousands."""
    ctx.obj = {"home": home, "tenant": tenant}


program.add_command(
    LazyGroup(_LAB, sections={"Commands": LAB_COMMANDS}, help=_LAB_HELP, short_help=_LAB_HELP),
)


def main(arguments: list[str] | None = None) -> Any:
    """Run the program and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal of another encoding shows `\u2026`, not an error
    try:
        code = program.main(args=arguments, prog_name="toolscout", standalone_mode=False)
    except UserError as error:
        from toolscout.cli.output import print_failure

        print_failure(str(error))
        code = 1
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        _report_misuse(error)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("\ntoolscout: stopped. What was finished is kept; run the command again to go on.", err=True)
        code = 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()  # or Python would complain about the pipe at exit
        code = 0
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        from toolscout.cli.output import print_failure

        failure = f"{error.filename or 'a file'} cannot be written: {error.strerror}"
        print_failure(f"{failure}. Make room on the disk, then repeat the command.")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _report_misuse(error: click.ClickException) -> None:
    """Print what is wrong with a command line, and what was meant or how the command is used."""
    from toolscout.cli.output import echo_labelled, print_failure

    message = error.format_message().replace("is not a valid integer range", "is not a whole number")
    message = re.sub(r" \(Did you mean one of: (.+)\?\)$", r" Did you mean one of \1?", message)
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and "unexpected extra argument" in message:
        takes_query = any(parameter.name == "query" for parameter in context.command.params)
        message += ". Put a query of several words into quotes." if takes_query else "."
    print_failure(message)
    has_advice = any(words in message for words in ("Did you mean", "See  ", "Put a query"))
    if context is not None and not has_advice:
        usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
        echo_labelled("hint", "cyan", f"usage: {usage}  (more with  {context.command_path} --help)")
