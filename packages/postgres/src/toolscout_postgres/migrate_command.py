"""The command `migrate`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from toolscout.cli.output import echo, json_option, print_json
from toolscout.location import Home, describe_home, parse_home, place_tenant
from toolscout_postgres.migrate import has_catalogue, migrate_home


@click.command("migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
def migrate_command(source: str, target: str, as_json: bool) -> None:
    """Copy the home FROM to the empty home TO, and verify the copy.

    Both are folders, or addresses such as postgresql://user@host/database. Catalogue, approvals,
    journal, models, champion, policy, profiles and sign-ins are copied. Run it again after an interruption: it
    continues. Stop everything that writes to FROM first.
    """
    new_home = _parse_home(target)
    old_home = _parse_home(source)
    migrated = migrate_home(old_home, new_home, lambda text: echo(text, err=True))
    if as_json:
        print_json(migrated)
        return
    echo(
        f"{describe_home(new_home)} holds {migrated.tools:,} tools, {migrated.events:,} events and {migrated.models:,} "
        "models now"
    )
    echo(f"the digests agree: catalogue {migrated.catalogue_digest}, journal {migrated.journal_digest}")
    if migrated.other_tenants:
        echo(f"other tenants were not copied: {', '.join(migrated.other_tenants)}. Copy each by itself:")
    for name in migrated.other_tenants:
        echo(f"  toolscout --home {shlex.quote(describe_home(new_home))} tenant add {name}")
        old_tenant, new_tenant = (place_tenant(home, name) for home in (old_home, new_home))
        if has_catalogue(old_tenant):
            addresses = " ".join(shlex.quote(describe_home(home)) for home in (old_tenant, new_tenant))
            echo(f"  toolscout migrate {addresses}")


def _parse_home(text: str) -> Home:
    """Parse the folder or the address of a home. A folder becomes absolute."""
    home = parse_home(text)
    return home.absolute() if isinstance(home, Path) else home
