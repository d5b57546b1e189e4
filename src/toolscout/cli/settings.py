"""The command `settings`: what can be set, what it is set to, and where the value comes from."""

from __future__ import annotations

import click

from toolscout.cli.output import (
    choose_home,
    echo,
    escape_line,
    home_option,
    json_option,
    print_json,
    print_table,
)
from toolscout.errors import NotFound, name_nearest
from toolscout.settings import Settings, format_value, list_settings, load_settings


@click.command("settings")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@home_option
@json_option
@click.pass_context
def settings_command(ctx: click.Context, names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """List all settings, or those NAMEd: value, where it comes from, and meaning.

    Set one in the environment, as TOOLSCOUT_ and the name in capitals, or in toolscout.toml in the working directory.
    """
    for name in names:
        _require_setting(name)
    settings = load_settings(**choose_home(ctx, home))
    rows = [row for row in _describe_settings(settings) if not names or row["name"] in names]
    if as_json:
        print_json(rows)
        return
    columns = [("setting", "left"), ("value", "left"), ("from", "left"), ("meaning", "wrap")]
    fields = ["name", "value", "origin", "meaning"]
    if names:
        columns.append(("untrusted file", "wrap"))
        fields.append("untrusted_file")
    for group in dict.fromkeys(row["group"] for row in rows):
        print_table(
            columns,
            [[row[field] for field in fields] for row in rows if row["group"] == group],
            title=group,
        )
    if settings.ignored:
        echo(escape_line(f"ignored, because the folder is not trusted: {', '.join(settings.ignored)}"))


def _require_setting(name: str) -> None:
    """Refuse a name that no setting has.

    Raises:
        NotFound: with the nearest name, or how to set a value.
    """
    all_settings = list_settings()
    if name in all_settings:
        return
    meant, _, value = name.partition("=")
    advice = name_nearest(name, all_settings, "See  toolscout settings")
    if meant in all_settings:
        advice = f"This command only lists. To set it, set TOOLSCOUT_{meant.upper()}={value}"
    raise NotFound(f"expected the name of a setting, found {name!r}. {advice}")


def _describe_settings(settings: Settings) -> list[dict[str, str]]:
    """Describe every setting in texts."""
    all_settings = list_settings()
    return [
        {
            "name": name,
            "group": all_settings[name].group,
            "value": format_value(value),
            "origin": f"TOOLSCOUT_{name.upper()}" if origin == "environment" else origin,
            "meaning": all_settings[name].help,
            "untrusted_file": all_settings[name].describe_file(),
        }
        for name, value, origin in settings.items()
    ]
