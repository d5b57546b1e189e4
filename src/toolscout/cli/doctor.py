"""The command `doctor`: checks an installation and its home, prints a report, and repairs damaged files.

Functions named `_check_…` return one line for each problem. `_repair_…` return one line for each repair.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
import sqlite3
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

import toolscout
from toolscout.checks.references import check_home
from toolscout.cli.access import list_findings
from toolscout.cli.doctor_sections import (
    check_snapshots,
    describe_configured_encoder,
    describe_index,
    describe_plugins,
    drop_damaged_snapshots,
    print_encoder,
    print_index,
    print_plugins,
)
from toolscout.cli.output import choose_home, count_things, echo, escape_line, json_option, print_json
from toolscout.errors import ConfigError, StoreError, Unavailable, UserError, install_line
from toolscout.home.catalogue.store import CatalogueSource
from toolscout.home.catalogue.vector_cache import VECTORS_FILE_NAME as VECTORS_FILE
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.database import CacheDatabase, is_damage
from toolscout.home.models import champion
from toolscout.home.repair import repair_home
from toolscout.location import is_address
from toolscout.plugins import REPORT_PLUGINS, list_plugins, load_plugin
from toolscout.recipes.registry import check_model
from toolscout.scout import Scout
from toolscout.settings import Settings, load_settings
from toolscout.sources.sandbox.bubblewrap import find_bubblewrap
from toolscout.sources.sandbox.servers import SANDBOX_FILE, read_sandboxes
from toolscout.trust.private_files import list_exposed, protect_tree
from toolscout.trust.screening import spelled_out

REPORTED_PACKAGES = {"numpy": "", "PyStemmer": "", "mcp": "mcp"}  # package → the extra that brings it


@click.command("doctor")
@click.option("--home", metavar="DIR", help="Folder of the catalogue and the journal.")
@click.option("--repair", is_flag=True, help="Repair damaged files; restrict file permissions to the owner.")
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, home: str | None, repair: bool, as_json: bool) -> int:
    """Check the installation, the settings, the encoder, the language model, the plug-ins, the index and the store.

    If a language model is set, it gets one short request.

    --repair sets damaged files aside, saves what can be read of them, reads lost tools from their sources again, and
    brings the index in step with the catalogue. It says what was lost. Where approvals may be lost, tools wait for new
    ones. Nothing is deleted.
    """
    chosen = choose_home(ctx, home)
    settings = load_settings(**chosen)
    repairs: list[str] = []
    if repair and settings.database is None:
        repairs += _repair_home(settings)
    try:
        scout = Scout(**chosen)
    except StoreError as error:
        findings = [f"catalogue: {error}", *(_advise_restore(settings, "catalogue") if is_damage(error) else [])]
        report = _build_report(settings, None, findings, [*repairs, *(_repair_files(settings.home) if repair else [])])
    else:
        with scout:
            if repair:
                repairs += [*_repair_files(settings.home), *drop_damaged_snapshots(settings), *_repair_catalogue(scout)]
            report = _build_report(settings, scout, _check_store(scout), repairs)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 0 if report["healthy"] else 1


class DoctorReport(Protocol):
    """A part of the report that a package adds, as a module that an entry point of `toolscout.reports` names.

    Attributes:
        CACHE_FILES: name of a file in the home → the class that opens it. Its content can be computed again.
    """

    CACHE_FILES: Mapping[str, Callable[..., CacheDatabase]]

    def describe(self, settings: Settings, scout: Scout | None) -> Any:
        """Return the part for JSON, under the name of the entry point."""

    def check(self, scout: Scout) -> list[str]:
        """Return one line for each problem."""

    def print_report(self, report: Any) -> None:
        """Print what `describe` returned."""


def _load_reports() -> dict[str, DoctorReport]:
    """Return the parts of the report that packages add. `_check_package_reports` names those that cannot be loaded."""
    reports: dict[str, DoctorReport] = {}
    for plugin in list_plugins(REPORT_PLUGINS):
        with contextlib.suppress(ConfigError):
            reports[plugin.name] = load_plugin(plugin)
    return reports


def _check_package_reports(scout: Scout) -> list[str]:
    """Return the problems that the parts of installed packages find, and name the parts that cannot be loaded."""
    problems: list[str] = []
    for plugin in list_plugins(REPORT_PLUGINS):
        try:
            report: DoctorReport = load_plugin(plugin)
        except ConfigError as error:
            problems.append(f"plug-in {plugin.name}: {error}")
        else:
            problems += report.check(scout)
    return problems


def _advise_restore(settings: Settings, part: str) -> list[str]:
    """Say how a damaged file is restored. Nothing is said of a database: its operator restores it."""
    if settings.database is not None:
        return []
    return [
        f"{_locate(settings, part)} is never deleted: restore it from a backup, or run  toolscout doctor --repair , "
        "which saves what can be read and sets the file aside"
    ]


def _locate(settings: Settings, part: str) -> str:
    """Return the file of a part of the home, or the address of its database."""
    return settings.database.label if settings.database else str(settings.home / f"{part}.db")


def _check_store(scout: Scout) -> list[str]:
    """Check the catalogue, the champion, the journal, the caches and the sandboxes."""
    problems = [f"catalogue: {line}" for line in scout.store.check()]
    try:
        history = champion.history(scout.settings.place)
    except StoreError as error:
        problems.append(str(error))
    else:
        problems += _check_champion(scout.settings, history)
    try:
        journal_problems = scout.journal.check()
    except StoreError as error:
        journal_problems = [str(error)]
    if journal_problems:
        problems += [*(f"journal: {line}" for line in journal_problems), *_advise_restore(scout.settings, "journal")]
    for path in _list_caches(scout.settings.home):
        problems += [f"{path.relative_to(scout.settings.home)}: {line}" for line in _check_cache(path)]
    return [
        *problems,
        *check_snapshots(scout.settings),
        *_check_package_reports(scout),
        *_check_sandboxes(scout.settings.home),
    ]


def _check_champion(settings: Settings, history: Sequence[champion.Promotion]) -> list[str]:
    """Check the promoted model, the last of the history."""
    if not history:
        return []
    try:
        check_model(champion.find_model(settings.place, history[-1].model))
    except UserError as error:
        return [f"the promoted model does not serve: {error} Or run  toolscout rollback"]
    return []


def _check_sandboxes(home: Path) -> list[str]:
    """Check that the sandboxes of servers can be made."""
    try:
        if any(not sandbox.command for sandbox in read_sandboxes(home).values()):  # without a command of its own
            find_bubblewrap()  # raises if it is missing
    except ConfigError as error:
        return [str(error)]
    except Unavailable as error:
        return [f"{SANDBOX_FILE}: {error}, or servers with a sandbox do not start"]
    return []


def _list_cache_classes() -> dict[str, Callable[..., CacheDatabase]]:
    """Return name of a file → the class that opens it, for all caches that a home may have."""
    classes: dict[str, Callable[..., CacheDatabase]] = {VECTORS_FILE: VectorStore}
    for report in _load_reports().values():
        classes.update(report.CACHE_FILES)
    return classes


def _list_caches(home: Path) -> list[Path]:
    """List the files of caches in a home and below it, where its tenants are."""
    return sorted(path for name in _list_cache_classes() for path in home.rglob(name))


def _check_cache(path: Path) -> list[str]:
    """Check a file of cached vectors or logits, and change nothing."""
    try:
        cache = _list_cache_classes()[path.name](path.parent, repair=False)
    except StoreError as error:
        return [str(error)]
    try:
        return cache.check()
    finally:
        cache.close()


def _repair_files(home: Path) -> list[str]:
    """Set damaged caches aside, and restrict the permissions of all files to the owner."""
    repairs = []
    for path in _list_caches(home):
        if problems := _check_cache(path):
            repairs += _repair_cache(path, str(path.relative_to(home)), problems[0])
    for path in list_exposed(home):
        if path == home:
            path.chmod(stat.S_IRWXU)
        else:
            protect_tree(path)
        repairs.append(f"{path}: only its owner can access it now")
    return repairs


def _repair_cache(path: Path, name: str, problem: str) -> list[str]:
    """Drop damaged vectors from a cache. If its database is damaged, set the file aside and begin a new one.

    Args:
        path: of the file.
        name: of the file, for messages.
        problem: the first thing that is wrong with it.
    """
    repairs = []
    copies_before = {*path.parent.glob(f"{path.name}.damaged-*")}
    cache = _list_cache_classes()[path.name](path.parent)  # may set the file aside already
    database_problems = CacheDatabase.check(cache)  # without the vectors, which `VectorStore.check` reads too
    if database_problems:
        cache.set_aside(StoreError(database_problems[0]))
    elif isinstance(cache, VectorStore) and (count := cache.drop_damaged()):
        repairs.append(f"{name}: dropped {count:,} damaged vectors")
    cache.close()
    if cache.was_set_aside:
        copies = sorted({*path.parent.glob(f"{path.name}.damaged-*")} - copies_before)
        aside = f"set aside as {copies[0].name}, " if copies else ""
        repairs.append(f"{name}: {problem}: {aside}begun anew")
    return repairs


def _repair_catalogue(scout: Scout) -> list[str]:
    """Repair the catalogue, and compute missing vectors.

    Computing them also updates the indexes that installed packages keep, such as the collections of toolscout-postgres.
    """
    index_problems = _check_package_reports(scout)
    try:
        repairs = scout.store.repair()
        if index_problems or len(scout.store.catalogue()):
            scout.embed()
    except UserError as error:
        return [f"the repair could not finish: {error}"]
    remaining = _check_package_reports(scout) if index_problems else []  # such as a package that cannot be loaded
    return [*repairs, *(f"{line}: brought in step" for line in index_problems if line not in remaining)]


def _repair_home(settings: Settings) -> list[str]:
    """Repair the catalogue, the journal and the list of champions."""
    repairs: list[str] = []
    try:
        repairs.extend(repair_home(settings))  # yields each repair, so those before an error are kept
    except UserError as error:
        repairs.append(f"the repair could not finish: {error}")
    return repairs


def _describe_exposed(home: Path) -> list[str]:
    return [
        f"{path} can be accessed by others (mode {stat.S_IMODE(path.stat().st_mode):04o}): run  toolscout doctor "
        "--repair"
        for path in list_exposed(home)
    ]


def _build_report(
    settings: Settings, scout: Scout | None, findings: list[str], repairs: Sequence[str]
) -> dict[str, Any]:
    """Build the report. If the catalogue cannot be read, its parts about tools are empty.

    Args:
        settings: of the home.
        scout: None: the catalogue cannot be opened.
        findings: the problems; without any, the home is healthy.
        repairs: what `--repair` did.
    """
    catalogue_damaged = any(line.startswith("catalogue:") for line in findings)
    readable = None if catalogue_damaged else scout  # for what reads the catalogue
    sources = readable.sources() if readable else []
    n_tools = sum(source.tools for source in sources)
    return {
        "healthy": not findings,
        "findings": findings,
        "repaired": list(repairs),
        "exposed": _describe_exposed(settings.home),
        "read_only": scout.store.read_only if scout else None,
        "ignored_settings": list(settings.ignored),
        "versions": _read_versions(),
        "settings": [{"name": name, "value": str(value), "origin": origin} for name, value, origin in settings.items()],
        "encoder": describe_configured_encoder(settings),
        "plugins": describe_plugins(),
        "store": {
            "catalogue": _locate(settings, "catalogue"),
            "journal": _locate(settings, "journal"),
            "generation": readable.store.generation() if readable else None,
            "sources": len(sources),
            "tools": n_tools,
        },
        "index": describe_index(settings, n_tools),
        "engine": None,  # without toolscout-postgres
        "llm": None,  # without toolscout-lab
        **{name: report.describe(settings, readable) for name, report in _load_reports().items()},
        **_describe_untrusted(readable),
        "unknown_names": check_home(readable) if readable else [],
        "sources": _list_unserved_sources(sources),
    }


def _describe_untrusted(scout: Scout | None) -> dict[str, Any]:
    """List the definitions that wait for approval, and the findings in the tools of the catalogue."""
    if scout is None:
        return {"waiting": [], "suspicious": []}
    return {
        "waiting": [{"id": definition.id, "why": definition.why} for definition in scout.waiting()],
        "suspicious": list_findings(scout.store.catalogue().tools()),
    }


def _list_unserved_sources(sources: Sequence[CatalogueSource]) -> list[dict[str, str]]:
    """List the sources that could not be read, or are disabled."""
    return [
        {"name": source.name, "state": source.state if source.enabled else "disabled", "message": source.message}
        for source in sources
        if source.state != "ok" or not source.enabled
    ]


def _read_versions() -> dict[str, str]:
    return {
        "toolscout": toolscout.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: _read_version(name, extra) for name, extra in REPORTED_PACKAGES.items()},
    }


def _read_version(name: str, extra: str) -> str:
    """Return the version of a package, or how to install it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed: {install_line(extra)}"


def _print_catalogue(report: dict[str, Any]) -> None:
    store = report["store"]
    tools, sources = count_things(store["tools"], "tool"), count_things(store["sources"], "source")
    is_read = store["generation"] is not None
    echo(f"\n{tools} in {sources}, generation {store['generation']}" if is_read else "\nthe catalogue was not read")
    for location in dict.fromkeys((store["catalogue"], store["journal"])):  # in a database, they have one address
        echo(f"  {location}")
    for source in report["sources"]:
        message = source["message"].removeprefix(f"{source['name']}: ")
        echo(escape_line(f"  source {source['name']}: {source['state']}: {message}"))
    if report["waiting"]:
        waiting = count_things(len(report["waiting"]), "definition waits", "definitions wait")
        echo(f"  {waiting} for approval: see  toolscout approve")


def _print_report(report: dict[str, Any]) -> None:
    for name, version in report["versions"].items():
        echo(f"{name:<12}{version}")
    echo("\nsettings")
    chosen = [row for row in report["settings"] if row["origin"] != "default"]
    width = max((len(row["name"]) for row in chosen), default=0)
    for row in chosen:
        echo(f"  {row['name']:<{width}}  {row['value']}  ({row['origin']})")
    n_defaults = len(report["settings"]) - len(chosen)
    default_count = count_things(n_defaults, "setting has its default", "settings have their defaults")
    echo(f"  {default_count}: see  toolscout settings")
    print_encoder(report["encoder"])
    print_index(report["index"])
    print_plugins(report["plugins"])
    for name, part in _load_reports().items():
        part.print_report(report[name])
    _print_catalogue(report)
    for finding in report["suspicious"]:
        line = f"  suspicious: {finding['id']}: {finding['kind']} in {finding['field']}: {finding['message']}"
        echo(spelled_out(escape_line(line)))
    if report["read_only"]:
        echo("  the home cannot be written: searches work, but nothing is recorded")
    for line in [*report["unknown_names"], *report["exposed"]]:
        echo(escape_line(f"  {line}"))
    for line in report["repaired"]:
        echo(escape_line(f"repaired: {line}"))
    for line in report["findings"]:
        echo(escape_line(f"found: {line}"), err=True)
    echo(_advise_next_step(report))


def _advise_next_step(report: dict[str, Any]) -> str:
    """Return the last line: that all is well, or what to do. `read_only` is None where no store could be opened."""
    if report["healthy"]:
        return "the store is healthy"
    if report["read_only"] is None and not any("--repair" in line for line in report["findings"]):
        what = "database" if is_address(report["store"]["catalogue"]) else "home"
        return f"the {what} could not be opened: mend what is named above, then run  toolscout doctor  again"
    return "the store is not healthy: run  toolscout doctor --repair"
