"""Shared options of the commands, and their output: tables, JSON, progress, errors."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

import click
import msgspec

from toolscout.errors import NotFound, find_nearest
from toolscout.home.catalogue.store import Changes
from toolscout.scout import Scout
from toolscout.settings import list_settings, parse_llm_budget

__all__ = [
    "Say",
    "choose_home",
    "clip",
    "count_things",
    "echo",
    "echo_labelled",
    "encoder_option",
    "escape_line",
    "escape_text",
    "format_changes",
    "home_option",
    "json_option",
    "model_option",
    "print_failure",
    "print_json",
    "print_table",
    "print_warning",
    "progress",
    "ray_option",
    "recipe_option",
    "report_failures",
    "setting_option",
    "suggest_names",
    "tenant_option",
    "with_scout",
]

F = TypeVar("F", bound=Callable[..., Any])
MIN_WRAPPED_CHARS: Final = 24
COLUMN_GAP_CHARS: Final = 3
BAR_CHARS: Final = 20
SECONDS_BETWEEN_COUNTS: Final = 5.0


_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)  # C0 but tab and newline, DEL, C1, what ends a line or turns its direction
_ADVICE_START: Final = re.compile(r"(?<=[.?!])\s+(?=[A-Z`'])")  # between two sentences
_UNSAFE_IN_LINE: Final = re.compile(f"{_UNSAFE.pattern}|[\t\n]")


def escape_text(text: str) -> str:
    r"""Escape control characters for a terminal, as in `\x1b`. Line breaks stay.

    Everything that the program prints passes here. Names, descriptions and messages come from strangers, and a
    terminal obeys control sequences in them (OSC 52 writes to the clipboard, CSI moves the cursor).
    """
    return _UNSAFE.sub(_escape, text)


def escape_line(text: str) -> str:
    r"""Escape a text for use within one line: like `escape_text`, with `\n` for a newline."""
    return _UNSAFE_IN_LINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    r"""Return a character as it is written in code: `\n`, `\x1b` or `\u2028`."""
    code = ord(match[0])
    short_forms = {9: "\\t", 10: "\\n", 13: "\\r"}
    return short_forms.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def echo(text: str = "", *, err: bool = False, nl: bool = True, fg: str | None = None, dim: bool | None = None) -> None:
    """Print a text from any source: control characters are escaped.

    Args:
        text: what to print.
        err: whether to print on standard error.
        nl: whether a line break follows.
        fg: colour on a terminal, by name.
        dim: whether it is dim on a terminal.
    """
    click.secho(escape_text(text), err=err, nl=nl, fg=fg, dim=dim)


def choose_home(ctx: click.Context, home: str | None = None, tenant: str | None = None) -> dict[str, Any]:
    """Return the settings `home` and `tenant` of a command line. None: not given.

    Args:
        ctx: of the command.
        home: the option of the command itself. It takes precedence over the same option of the program.
        tenant: the same.
    """
    program = ctx.find_root().obj or {}
    return {"home": home or program.get("home"), "tenant": tenant or program.get("tenant")}


def setting_option(name: str, *flags: str, **attributes: Any) -> Callable[[F], F]:
    """Make the option of a command that sets a setting. The setting's help is its help.

    Args:
        name: of the setting.
        *flags: by default `--` and the name.
        **attributes: further ones for `click.option`.
    """
    setting = list_settings()[name]
    help_text = f"{setting.help[0].upper()}{setting.help[1:]}. Also TOOLSCOUT_{name.upper()}."
    return click.option(*flags or (f"--{name}",), help=help_text, **attributes)


home_option = setting_option("home", metavar="DIR")
tenant_option = setting_option("tenant", metavar="NAME")
encoder_option = setting_option("encoder")
recipe_option = setting_option("recipe", "--recipe", "-r")
model_option = setting_option("model", metavar="DIR")
ray_option = setting_option("ray", metavar="ADDRESS")


def with_scout(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--home` and `--tenant` to a command, and pass it the open Scout as first argument.

    The Scout has the values of the shared options. In a dry run it writes no journal.
    """

    @home_option
    @tenant_option
    @click.pass_context
    @functools.wraps(command)
    def run(ctx: click.Context, /, home: str | None, tenant: str | None, **options: Any) -> Any:
        """Take the shared options out of the command's own; `pairs` is what `--set` gives, `llm_address` `--llm`."""
        settings = {name: options.pop(name, None) for name in ("encoder", "recipe", "model", "llm_budget", "ray")}
        settings["llm"] = options.pop("llm_address", None)
        settings["recipe_options"] = options.pop("pairs", None) or None
        settings["journal"] = False if options.get("dry_run") else None
        if settings["llm_budget"]:
            parse_llm_budget(settings["llm_budget"])  # a wrong one is refused even if no language model is asked
        with Scout(**choose_home(ctx, home, tenant), **settings) as scout:
            return command(scout, **options)

    return run


def json_option(command: F) -> F:
    """Add the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@contextlib.contextmanager
def suggest_names(scout: Scout, *names: str, kind: Literal["source", "tool", "any"] = "any") -> Iterator[None]:
    """Add the nearest name to a `NotFound` that the block raises about a name that the catalogue does not have.

    Args:
        scout: has the catalogue.
        *names: those that the user typed.
        kind: what they should name.
    """
    try:
        yield
    except NotFound as error:
        text = str(error)
        if "Did you mean" in text:
            raise
        hidden = next((name for name in names if name in scout.store.hidden()), None)
        if hidden is not None:
            raise NotFound(f"{hidden} is hidden. Show it again with  toolscout hide --undo {hidden}") from None
        wrong = next((name for name in names if repr(name) in text), None)  # the one that the error quotes
        advice = "" if wrong is None else _suggest_name(scout, wrong, kind)
        raise NotFound(f"{text.rstrip('.')}. {advice}" if advice else text) from None


def _suggest_name(scout: Scout, wrong: str, kind: str) -> str:
    """Ask for the nearest name of a kind (`Did you mean …?`), or say what to do with a name of the other kind.

    Returns:
        Empty if no name is near.
    """
    catalogue = scout.store.catalogue()
    sources = [source.name for source in scout.sources()]
    if kind == "source" and wrong in catalogue.ids:
        source = wrong.partition("/")[0]
        return f"That is a tool of {source}. Single tools are taken out with  toolscout hide {wrong}"
    if kind == "tool" and wrong in sources:
        return f"That is a source. See its tools with  toolscout list {wrong}"
    typed_as = {} if kind == "tool" else {source: source for source in sources}
    if kind != "source":
        for tool_id, name in zip(catalogue.ids, catalogue.names, strict=True):
            typed_as |= {tool_id: tool_id, name: typed_as.get(name, tool_id)}  # of namesakes, the first
    nearest = find_nearest(wrong, typed_as)
    return "" if nearest is None else f"Did you mean {typed_as[nearest]!r}?"


def count_things(count: int, singular: str, plural: str | None = None) -> str:
    """Write a number with its noun: `1 tool`, `2 tools`. By default the plural is the singular with an s."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def print_json(value: Any) -> None:
    """Print one JSON value on standard output, indented. Control characters are escaped as in JSON."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    click.echo(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def print_table(
    columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]], *, title: str | None = None
) -> None:
    """Print a table as wide as the terminal.

    Args:
        columns: (heading, form), where the form is `left`, `right`, `id` or `wrap`. A `wrap` column takes the remaining
            width. An `id` is never cut or broken, so that it can be copied: the table becomes wider than the terminal
            if it must.
        rows: cells; control characters and markup in them are shown as text.
        title: a line above.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for heading, form in columns:
        grid.add_column(
            heading,
            justify="right" if form == "right" else "left",
            no_wrap=form != "wrap",
            ratio=1 if form == "wrap" else None,
        )
    for row in rows:
        grid.add_row(*(Text(escape_line(str(cell))) for cell in row))
    console = Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 120)
    if any(form == "id" for _, form in columns):
        width = sum(_find_width(column, [row[index] for row in rows]) for index, column in enumerate(columns))
        console.width = max(console.width, width)
    console.print(grid)


def _find_width(column: tuple[str, str], cells: Sequence[object]) -> int:
    """Return how many characters a column needs, with the gap beside it."""
    heading, form = column
    if form == "wrap":
        return MIN_WRAPPED_CHARS + COLUMN_GAP_CHARS
    return max(len(heading), *(len(escape_line(str(cell))) for cell in cells), 0) + COLUMN_GAP_CHARS


def clip(text: str, width: int = 200) -> str:
    """Put a text on one line and cut it to `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


class Say(Protocol):
    """Shows what a command is doing."""

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show a text, and if a total is given, how many things of it are done."""


@contextlib.contextmanager
def progress(message: str) -> Iterator[Say]:
    """Show progress on standard error: a spinner on a terminal, plain lines elsewhere, every few seconds if counted.

    Print results after the block: within it a terminal shows the spinner in their place.
    """
    last_count = time.monotonic()

    def describe(text: str, done: int, total: int) -> str:
        return f"{escape_line(text)}, {done:,} of {total:,}" if total else escape_line(text)

    def say_plainly(text: str, done: int = 0, total: int = 0) -> None:
        nonlocal last_count
        if not total or time.monotonic() - last_count > SECONDS_BETWEEN_COUNTS:
            last_count = time.monotonic()
            echo(f"{describe(text, done, total)} …", err=True)

    if not sys.stderr.isatty():
        say_plainly(message)
        yield say_plainly
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(escape_line(message))) as status:

        def say_in_place(text: str, done: int = 0, total: int = 0) -> None:
            filled = round(BAR_CHARS * done / total) if total else 0
            bar = f"{'█' * filled}{'░' * (BAR_CHARS - filled)} " if total else ""
            status.update(Text(bar + describe(text, done, total)))

        yield say_in_place


def print_failure(message: str) -> None:
    """Print a failure on standard error: the first sentence of its message as what happened, the others as a hint."""
    what_happened, *hints = _ADVICE_START.split(message, maxsplit=1)
    echo_labelled("error", "red", what_happened)
    for hint in hints:  # one text, or none
        echo_labelled("hint", "cyan", hint)


def print_warning(message: str) -> None:
    """Print on standard error what was left out or may surprise."""
    echo_labelled("warning", "yellow", message)


def echo_labelled(label: str, color: str, text: str) -> None:
    """Print a line on standard error that begins with a label, in colour on a terminal."""
    click.echo(f"{click.style(f'{label}:', fg=color, bold=True)} {escape_line(text)}", err=True)


def format_changes(change: Changes, n_waiting: int = 0) -> str:
    """Format the changes of one source in a line. `n_waiting`: its definitions that wait, since now or longer."""
    parts = [_summarize(change, n_waiting)] if change.state == "ok" else [change.state]
    if change.quarantined:
        waits = "new or changed definition waits", "new or changed definitions wait"
        parts.append(f"{count_things(change.quarantined, *waits)} for approval: see  toolscout approve")
    elif n_waiting:
        waits = "definition still waits", "definitions still wait"
        parts.append(f"{count_things(n_waiting, *waits)} for approval: see  toolscout approve")
    if change.problems:
        parts.append(count_things(len(change.problems), "bad entry", "bad entries"))
    return escape_line(
        f"{change.source}: {'; '.join(filter(None, parts))}" + (f" — {change.message}" if change.message else "")
    )


def _summarize(change: Changes, n_waiting: int) -> str:
    """Count what changed in a source, or say that nothing did. Empty if all that there is to say is what waits."""
    counts = [f"{getattr(change, kind):,} {kind}" for kind in ("new", "changed", "gone") if getattr(change, kind)]
    if counts:
        return ", ".join(counts)
    tools = count_things(change.same, "tool")
    if change.quarantined:
        return f"{tools} unchanged" if change.same else ""
    return f"no change ({tools})" if change.same or n_waiting else "no tools"


def report_failures(changes: Sequence[Changes], limit: int = 20) -> int:
    """Print every failure in the changes of sources on standard error.

    Args:
        changes: of each source.
        limit: bad entries of a source to print.

    Returns:
        The exit code: 0, 1 (nothing was read) or 3 (partly done).
    """
    for change in changes:
        for entry, message in change.problems[:limit]:
            print_warning(f"{change.source}: {entry}: {message}")
        if len(change.problems) > limit:
            n_more = len(change.problems) - limit
            print_warning(f"{change.source}: and {n_more:,} more: see  toolscout show {change.source}")
    failed = [change for change in changes if change.state == "error"]
    sources_by_message: dict[str, list[str]] = {}  # a file that cannot be read is one failure of all its servers
    for change in failed:
        sources_by_message.setdefault(change.message.removeprefix(f"{change.source}: "), []).append(change.source)
    for message, sources in sources_by_message.items():
        print_failure(f"{', '.join(sources)}: {message}")
    if changes and len(failed) == len(changes):
        return 1
    return 3 if failed or any(change.problems for change in changes) else 0
