"""doctor."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sqlite3
from typing import Any

import click

import toolscout
from toolscout.cli.access import findings as suspicious
from toolscout.cli.output import echo, escape_line, json_option, print_json, with_scout
from toolscout.scout import Scout
from toolscout.trust import spelled_out

PACKAGES = {"numpy": "", "PyStemmer": "", "mcp": "mcp"}


@click.command("doctor")
@click.option("--repair", is_flag=True, help="Drop what is damaged and can be read again.")
@json_option
@with_scout
def doctor_command(scout: Scout, repair: bool, as_json: bool) -> int:
    """Say what is installed, which settings hold, and whether the store is healthy."""
    done = scout.store.repair() if repair else []
    findings = [f"catalogue: {line}" for line in scout.store.check()] + [
        f"journal: {line}" for line in scout.journal.check()
    ]
    report = _report(scout, findings, done)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 1 if findings else 0


def _report(scout: Scout, findings: list[str], done: list[str]) -> dict[str, Any]:
    sources = [] if findings else scout.sources()
    return {
        "healthy": not findings,
        "findings": findings,
        "repaired": done,
        "versions": {
            "toolscout": toolscout.__version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            **{name: _version(name, extra) for name, extra in PACKAGES.items()},
        },
        "settings": [
            {"name": name, "value": str(value), "origin": origin} for name, value, origin in scout.settings.items()
        ],
        "store": {
            "catalogue": str(scout.store.path),
            "journal": str(scout.journal.path),
            "generation": None if findings else scout.store.generation(),
            "sources": len(sources),
            "tools": sum(source.tools for source in sources),
        },
        "waiting": [] if findings else [{"id": each.id, "why": each.why} for each in scout.waiting()],
        "suspicious": [] if findings else suspicious(scout.store.catalogue().tools()),
        "sources": [
            {
                "name": source.name,
                "state": source.state if source.enabled else "disabled",
                "message": source.message,
            }
            for source in sources
            if source.state != "ok" or not source.enabled
        ],
    }


def _version(name: str, extra: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed: pip install 'toolscout[{extra}]'"


def _print(report: dict[str, Any]) -> None:
    for name, version in report["versions"].items():
        echo(f"{name:<12}{version}")
    echo("\nsettings")
    for setting in report["settings"]:
        echo(f"  {setting['name']:<17}{setting['value']}  ({setting['origin']})")
    store = report["store"]
    echo(f"\n{store['tools']:,} tools in {store['sources']:,} sources, generation {store['generation']}")
    echo(f"  {store['catalogue']}\n  {store['journal']}")
    for source in report["sources"]:
        echo(escape_line(f"  source {source['name']}: {source['state']}: {source['message']}"))
    if report["waiting"]:
        echo(f"  {len(report['waiting']):,} definitions wait for approval: see  toolscout approve")
    for each in report["suspicious"]:
        line = f"  suspicious: {each['id']}: {each['kind']} in {each['field']}: {each['message']}"
        echo(spelled_out(escape_line(line)))
    for line in report["repaired"]:
        echo(escape_line(f"repaired: {line}"))
    for line in report["findings"]:
        echo(escape_line(f"found: {line}"), err=True)
    echo("the store is healthy" if report["healthy"] else "the store is not healthy: run  toolscout doctor --repair")
