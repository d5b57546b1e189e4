"""The command `tenant`: lists, adds and removes the tenants of a home."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import click

from toolscout.cli.output import choose_home, echo, json_option, print_json, print_table
from toolscout.errors import NotFound, name_nearest
from toolscout.home.access.tenants import TenantKeys
from toolscout.home.database import open_home
from toolscout.indexes.engine import find_engine
from toolscout.location import DEFAULT_TENANT, Home, describe_home
from toolscout.scout import Scout
from toolscout.settings import load_settings

home_option = click.option("--home", metavar="DIR", help="Folder of the home, or the address of its database.")


def find_tenant_keys(scout: Scout, policy: Path | None, say: Callable[[str], None]) -> TenantKeys | None:
    """Return the API keys of all tenants, if a service shall serve all: no tenant is named, and the home has several.

    Args:
        scout: has the settings.
        policy: the option `--policy`.
        say: called with a sentence when a policy changes or cannot be used.

    Returns:
        None: the service serves one tenant.

    Raises:
        UsageError: if a policy file is named, because it would be for one tenant only.
    """
    settings = scout.settings
    if settings.tenant != DEFAULT_TENANT or "tenant" in settings.origins:
        return None
    if len(open_home(settings.place).list_tenants()) == 1:
        return None
    if policy is not None:
        raise click.UsageError(
            "The home has several tenants, and --policy is that of one. Give --tenant NAME too, or set the policy of "
            "each with  toolscout --tenant NAME policy FILE"
        )
    return TenantKeys(settings.place, say)


@click.group("tenant")
def tenant_command() -> None:
    """List, add and remove the tenants of a home.

    Each tenant has its own catalogue, approvals, journal, models, policy and sign-ins, and reaches no other. Name it
    with --tenant NAME or TOOLSCOUT_TENANT. Without a name every command means the tenant `default`.
    """


@tenant_command.command("list")
@home_option
@json_option
@click.pass_context
def list_command(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """List the tenants of the home."""
    tenants = open_home(_find_home(ctx, home)).list_tenants()
    if as_json:
        print_json(tenants)
        return
    rows = [(tenant.name, tenant.added_at[:16].replace("T", " ") or "with the home") for tenant in tenants]
    print_table([("tenant", "id"), ("added", "left")], rows)


@tenant_command.command("add")
@click.argument("name")
@home_option
@click.pass_context
def add_command(ctx: click.Context, name: str, home: str | None) -> None:
    """Add the tenant NAME with an empty catalogue."""
    root = _find_home(ctx, home)
    open_home(root).add_tenant(name)
    echo(f"{describe_home(root)} has the tenant {name} now. Give it tools with  toolscout --tenant {name} add …")


@tenant_command.command("remove")
@click.argument("name")
@home_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def remove_command(ctx: click.Context, name: str, home: str | None, yes: bool) -> None:
    """Remove the tenant NAME with everything that it has. This cannot be undone."""
    root = _find_home(ctx, home)
    names = [tenant.name for tenant in open_home(root).list_tenants()]
    if name not in names:
        advice = name_nearest(name, names, "See  toolscout tenant list")
        raise NotFound(f"{describe_home(root)} has no tenant {name!r}. {advice}")
    if not yes and name != DEFAULT_TENANT:
        click.confirm(f"Remove the catalogue, the journal, the models and the policy of tenant {name}?", abort=True)
    if name == DEFAULT_TENANT:
        open_home(root).remove_tenant(name)  # it refuses, before any vector is deleted
    settings = load_settings(**choose_home(ctx, home, name))
    engine = find_engine(settings.index)
    # The tenant's vectors go before the rest, and again after it, since a service may write some meanwhile.
    with engine.drop_collections(settings) if engine else contextlib.nullcontext():
        open_home(root).remove_tenant(name)
    echo(f"{describe_home(root)} has no tenant {name} any more")


def _find_home(ctx: click.Context, home: str | None) -> Home:
    """Return the home of the tenant `default`, even if another one is set."""
    return load_settings(**choose_home(ctx, home, DEFAULT_TENANT)).place
