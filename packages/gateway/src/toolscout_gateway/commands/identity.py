"""The command `identity`: makes the key for callers' tokens, and shows and removes sign-ins."""

from __future__ import annotations

import click

from toolscout.cli.output import choose_home, count_things, echo, escape_line, json_option, print_json, print_table
from toolscout.errors import NotFound
from toolscout.home.access.vault import Vault
from toolscout.location import describe_home
from toolscout.settings import load_settings
from toolscout.trust.sealing import SEALING_VARIABLE, make_sealing_key, store_in_keyring

__all__ = ["identity_command"]

home_option = click.option("--home", metavar="DIR", help="Folder of the home, or the address of its database.")


@click.group("identity")
def identity_command() -> None:
    """Manage the sign-ins of callers at servers behind the gateway."""


@identity_command.command("key")
@click.option("--keyring", is_flag=True, help="Keep the key in the keyring of the system instead of printing it.")
def key_command(keyring: bool) -> None:
    """Make the key with which callers' tokens are encrypted."""
    key = make_sealing_key()
    if keyring:
        store_in_keyring(key)
        echo("The keyring of the system holds the key now. A gateway that this user starts finds it there.")
        return
    echo(f"{key}\n")
    echo(
        f"This key is shown only once. Set {SEALING_VARIABLE} to it where the gateway runs, and keep it apart from the "
        "home. To change keys, set the new and the old one with a comma between them."
    )


@identity_command.command("list")
@home_option
@json_option
@click.pass_context
def list_command(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show who is signed in at which server. Tokens are never shown."""
    vault = _open_vault(ctx, home)
    rows = vault.describe_sign_ins() if vault.has_key else []
    total = vault.count()
    opened = len(list(vault.list_entries())) if vault.has_key else 0
    unopened = total - opened
    if as_json:
        print_json({"sign_ins": rows, "entries": total, "unopened": unopened})
        return
    if rows:
        columns = [("caller", "left"), ("subject", "left"), ("server", "wrap"), ("issuer", "wrap")]
        print_table(columns, [tuple(row.values()) for row in rows])
    else:
        echo("Nobody is signed in.")
    if unopened > 0:
        entries = count_things(unopened, "entry", "entries")
        echo(f"{entries} cannot be opened. Set {SEALING_VARIABLE} to the key with which they were written.")


@identity_command.command("forget")
@click.argument("caller")
@click.argument("server", required=False, metavar="[URL]")
@home_option
@click.pass_context
def forget_command(ctx: click.Context, caller: str, server: str | None, home: str | None) -> None:
    """Remove the tokens of CALLER, at all servers or at the one with this URL.

    A gateway that runs ends their sessions within a second. Calls that are under way finish.
    """
    vault = _open_vault(ctx, home)
    count = 0
    for entry in list(vault.list_entries()):
        person, url = str(entry.get("person", "")), str(entry.get("url", ""))
        name, _, _ = person.partition("\n")  # the subject of the caller's token may follow
        if name == caller and server in (None, url):
            vault.forget(person, url)
            count += 1
    if not count:
        raise NotFound(f"{escape_line(caller)} is not signed in there. See  toolscout identity list")
    echo(f"{count_things(count, 'sign-in')} of {escape_line(caller)} removed from {describe_home(vault.home)}")


def _open_vault(ctx: click.Context, home: str | None) -> Vault:
    settings = load_settings(**choose_home(ctx, home))
    return Vault(settings.place)
