"""The commands `key`, `policy`, `profiles`, `approve` and `trust`; prints findings and waiting definitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from toolscout.checks.references import Reference, explain_unknown, list_policy_names, list_profile_names
from toolscout.cli.output import choose_home, count_things, echo, escape_line, json_option, print_json, with_scout
from toolscout.errors import ConfigError, NotFound
from toolscout.home.access.live_policy import find_policy, put_policy
from toolscout.home.access.profiles import PROFILE_FILE, Profiles, put_profiles
from toolscout.home.catalogue.approvals import describe_change
from toolscout.home.catalogue.store import WaitingDefinition
from toolscout.home.database import now, open_home
from toolscout.location import describe_home
from toolscout.scout import Scout
from toolscout.settings import SETTINGS_FILE_NAME, load_settings, needing_trust, read_settings_file
from toolscout.trust import trusted_folders
from toolscout.trust.policy import Policies, hashed_key, new_key
from toolscout.trust.screening import scan, spelled_out
from toolscout.types import Tool

__all__ = ["list_findings", "show_findings", "show_waiting"]


@click.command("key")
@click.argument("name")
def key_command(name: str) -> None:
    """Create an API key for the caller NAME, and print the lines for the policy file."""
    if not name.strip():
        raise ConfigError("The name of the caller is empty. Run  toolscout key NAME")
    key = new_key()
    echo(f"{key}\n")
    echo("This key is shown only once. Give it to the caller, and put these lines into the policy file:\n")
    title = msgspec.json.encode(name).decode()  # a JSON string is also a TOML string
    allowed = 'allow = []  # no tool yet; "mail/**" allows a source, "**" every tool'
    echo(f'[[caller]]\nname = {title}\nkey = "{hashed_key(key)}"\n{allowed}')


@click.command("policy")
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))
@click.option("--home", metavar="DIR", help="Folder of the home, or the address of its database.")
@click.pass_context
def policy_command(ctx: click.Context, file: Path | None, home: str | None) -> None:
    """Check FILE and make it the policy of the home. Without FILE, print the policy.

    `serve` and `gateway` follow it while they run.
    """
    chosen = choose_home(ctx, home)
    location = load_settings(**chosen).place
    if file is not None:
        put_policy(location, file.expanduser())
        echo(f"{describe_home(location)} has this policy now. Running gateways and services follow it.")
        policies = Policies.load(file.expanduser())
        for sentence in policies.explain_idle_callers():
            echo(escape_line(f"note: {sentence}"), err=True)
        _warn_of_names(chosen, list_policy_names(policies.callers))
        return
    policy = find_policy(location)
    if policy is None:
        raise NotFound(f"{describe_home(location)} has no policy. Set one with  toolscout policy FILE")
    echo(policy.read_text(encoding="utf-8").rstrip("\n"))


@click.command("profiles")
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))
@click.option("--home", metavar="DIR", help="Folder of the home, or the address of its database.")
@click.pass_context
def profiles_command(ctx: click.Context, file: Path | None, home: str | None) -> None:
    """Check FILE and make it the profiles of the home. Without FILE, print the profiles.

    A gateway that runs applies them within two seconds.
    """
    chosen = choose_home(ctx, home)
    location = load_settings(**chosen).place
    if file is not None:
        try:
            count = put_profiles(location, file.expanduser())
        except OSError as error:
            raise NotFound(f"{file} cannot be read: {error.strerror}. Check the path.") from None
        echo(f"{describe_home(location)} has {count_things(count, 'profile')} now.")
        _warn_of_names(chosen, list_profile_names(Profiles(location).all))
        return
    try:
        content = open_home(location).read_document(PROFILE_FILE)
    except OSError:
        raise NotFound(f"{describe_home(location)} has no profiles. Set them with  toolscout profiles FILE") from None
    echo(content.decode("utf-8", "replace").rstrip("\n"))


def _warn_of_names(chosen_home: dict[str, Any], references: Sequence[Reference]) -> None:
    """Print a note for each name in a policy or in profiles that fits no tool or source of the home's catalogue.

    Args:
        chosen_home: as `choose_home` returns it.
        references: the names, and where they are written.
    """
    with Scout(**chosen_home) as scout:
        for sentence in explain_unknown(scout, references):
            echo(escape_line(f"note: {sentence}"), err=True)


@click.command("approve")
@click.argument("names", nargs=-1, metavar="[ID|SOURCE]...")
@click.option("--all", "everything", is_flag=True, help="Approve all of them.")
@json_option
@with_scout
def approve_command(scout: Scout, names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Show the definitions that wait for approval, and what changed. With IDs, SOURCEs or --all, approve them.

    Tools of an MCP server, of an OpenAPI document at a URL, or of a plug-in are approved as they are first seen. If a
    definition changes later, or the server that its calls are sent to, the tool is not served until you approve it
    again.

    SOURCEs and --all also show what they approve; an ID does not, because you have read it.
    """
    if names and everything:
        raise click.UsageError("expected names or --all, found both")
    shall_approve = bool(names) or everything
    waiting = scout.waiting(names)
    count = scout.approve(waiting) if shall_approve else 0
    if count:
        scout.embed()
    if as_json:
        key = "definitions" if count else "waiting"  # the same definitions, after or before their approval
        print_json({"approved": count, key: [_describe_waiting(definition) for definition in waiting]})
        return
    named = [definition for definition in waiting if definition.id in names]  # their user has read what changed
    for definition in waiting:
        if definition not in named:
            show_waiting(definition)
    show_findings([definition.tool for definition in named])
    if shall_approve:
        echo(f"approved {count_things(count, 'definition')}")
        echo(f"{count_things(sum(source.tools for source in scout.sources()), 'tool')} in the catalogue")
    elif waiting:
        held_back = count_things(len(waiting), "definition waits", "definitions wait")
        echo(f"{held_back}. Approve with  toolscout approve ID…, SOURCE… or --all")
    else:
        echo("nothing waits for approval")


@click.command("trust")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--list", "listing", is_flag=True, help="Show the trusted folders.")
@click.option("--remove", is_flag=True, help="Stop trusting DIR.")
@click.option("--home", metavar="DIR", help="Folder of the catalogue and the journal.")
@json_option
@click.pass_context
def trust_command(
    ctx: click.Context, folder: Path | None, listing: bool, remove: bool, home: str | None, as_json: bool
) -> None:
    """Trust the toolscout.toml and the MCP configurations in DIR, as they are now.

    These files may have come with a repository. As long as their folder is not trusted, toolscout.toml cannot say where
    queries are sent, lower a protection or move the catalogue, and --discover starts no server of the folder. When one
    of the files changes, trust the folder again.
    """
    if listing == (folder is not None) or (listing and remove):  # both or neither of --list and DIR
        raise click.UsageError("expected a folder DIR (with or without --remove), or --list")
    catalogue_home = load_settings(**choose_home(ctx, home), report=False).home
    if folder is None:
        _print_trusted_folders(catalogue_home, as_json)
    elif remove:
        _stop_trusting(catalogue_home, folder.expanduser().resolve(), as_json)
    else:
        _trust_folder(catalogue_home, folder.expanduser().resolve(), as_json)


def _stop_trusting(home: Path, folder: Path, as_json: bool) -> None:
    removed = trusted_folders.forget_folder(home, folder)
    if as_json:
        print_json({"folder": str(folder), "removed": removed})
    else:
        click.echo(f"{folder} is no longer trusted" if removed else f"{folder} was not trusted")


def _trust_folder(home: Path, folder: Path, as_json: bool) -> None:
    """Trust the folder with its present files, and print what they may do from now on."""
    configurations = trusted_folders.list_configurations(folder)
    content: bytes = b""
    values: dict[str, Any] = {}
    if (folder / SETTINGS_FILE_NAME).exists() or not configurations:  # with neither, reading raises the error
        content, values = read_settings_file(folder / SETTINGS_FILE_NAME)
    trusted_folders.remember_folder(home, folder, content, now())
    allowed_settings = {name: spelled_out(str(values[name])) for name in needing_trust(values)}
    if as_json:
        print_json({"folder": str(folder), "settings": allowed_settings, "configurations": configurations})
        return
    click.echo(f"{folder} is trusted with its present files")
    for name in configurations:
        click.echo(f"  --discover may start the servers of {name}")
    if allowed_settings:
        click.echo(f"  {SETTINGS_FILE_NAME} may set:")
    for name, value in allowed_settings.items():
        click.echo(f"    {spelled_out(name)} = {value}")


def _print_trusted_folders(home: Path, as_json: bool) -> None:
    """Print the trusted folders, and whether their files have changed since they were trusted."""
    rows = []
    for name, entry in sorted(trusted_folders.read_trusted(home).items()):
        try:
            state = "trusted" if _is_unchanged(home, Path(name), entry) else "changed since then. Trust it again"
        except OSError:
            state = "one of its files is gone"
        rows.append({"folder": name, "at": entry.at, "state": state})
    if as_json:
        print_json({"folders": rows})
    elif rows:
        for row in rows:
            click.echo(f"{row['folder']}: {row['state']} ({row['at'][:10]})")
    else:
        click.echo("no folder is trusted")


def _is_unchanged(home: Path, folder: Path, entry: trusted_folders.TrustedFolder) -> bool:
    """Tell whether the files of a trusted folder are as they were when it was trusted.

    Raises:
        OSError: if a file is gone.
    """
    had_settings = entry.digest != trusted_folders.digest_settings(b"")  # as for a folder without settings
    content = (folder / SETTINGS_FILE_NAME).read_bytes() if had_settings else b""
    return trusted_folders.is_trusted(home, folder, content) and all(
        trusted_folders.is_configuration_trusted(home, folder, name) for name in entry.files
    )


def _describe_waiting(waiting: WaitingDefinition) -> dict[str, Any]:
    """Describe a definition that waits, for JSON: what was approved, what it is now, and what the screening found."""
    return {
        "id": waiting.id,
        "why": waiting.why,
        "since": waiting.since,
        "fingerprint": waiting.fingerprint,
        "before": waiting.approved,
        "now": waiting.tool,
        "findings": scan(waiting.tool),
    }


def show_waiting(waiting: WaitingDefinition) -> None:
    """Print a definition that waits for approval: the fields that differ from the approved one, or all of them."""
    since = waiting.since[:16].replace("T", " ")
    echo(f"{spelled_out(escape_line(waiting.id))} waits for approval since {since}: {waiting.why}")
    for line in describe_change(waiting):
        colour = {"+": "green", "-": "red"}.get(line[:1])
        echo(f"  {line}", fg=colour)
    show_findings([waiting.tool])
    echo()


def list_findings(tools: Iterable[Tool]) -> list[dict[str, str]]:
    """List what the screening of the tools found (`screening.scan`), one entry for each finding."""
    return [
        {"id": tool.id, "kind": finding.kind, "field": finding.field, "message": finding.message}
        for tool in tools
        for finding in scan(tool)
    ]


def show_findings(tools: Iterable[Tool], limit: int = 10) -> None:
    """Print the first findings of the screening of the tools on standard error, and how many more there are."""
    entries = list_findings(tools)
    for entry in entries[:limit]:
        line = f"  suspicious: {entry['id']}: {entry['kind']} in {entry['field']}: {entry['message']}"
        echo(spelled_out(escape_line(line)), err=True)
    if len(entries) > limit:
        echo(f"  and {len(entries) - limit:,} more findings: see  toolscout doctor", err=True)
