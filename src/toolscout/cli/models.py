"""models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from toolscout.cli.output import json_option, print_json, table
from toolscout.config import load_settings
from toolscout.errors import NotFound
from toolscout.models import model_store
from toolscout.models.champion import history
from toolscout.models.champion import shelf as champion_shelf
from toolscout.models.model_store import Manifest


@click.command("models")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def models_command(ctx: click.Context, folder: Path | None, as_json: bool) -> int:
    """List the fitted models in DIR, by default the folder `models` of the home.

    Every file is compared with its digest; of a damaged model it is said what is wrong.
    """
    shelf = folder or load_settings(home=(ctx.obj or {}).get("home")).home / "models"
    if folder is not None and not folder.is_dir():
        raise NotFound(f"{folder}: expected a folder of models, found none")
    found = model_store.list_models(shelf)
    champion = _champion(shelf)
    if as_json:
        print_json([{**_entry(path, each), "champion": path.name == champion} for path, each in found])
    elif not found:
        click.echo(f"{shelf}: no models: fit one with  toolscout train RECIPE --data DIR --out {shelf / 'NAME'}")
    whole = [(path, each) for path, each in found if isinstance(each, Manifest)]
    if whole and not as_json:
        _show(whole, champion)
    damaged = [each for _, each in found if isinstance(each, str)]
    for problem in damaged:
        click.echo(f"toolscout: {problem}", err=True)
    return (3 if whole else 1) if damaged else 0


def _entry(path: Path, found: Manifest | str) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": path.name, "path": str(path), "problem": found if isinstance(found, str) else None}
    if isinstance(found, Manifest):
        entry |= {
            "recipe": found.recipe,
            "job": found.job,
            "data": found.data,
            "n_tools": found.n_tools,
            "encoder": found.encoder.name if found.encoder else None,
            "metrics": found.metrics,
            "fit_seconds": found.fit_seconds,
            "version": found.version,
        }
    return entry


def _champion(shelf: Path) -> str | None:
    """Name of the champion of a home, if this is its shelf."""
    held = history(shelf.parent) if shelf == champion_shelf(shelf.parent) else []
    return held[-1].model if held else None


def _show(found: list[tuple[Path, Manifest]], champion: str | None) -> None:
    figures = list(dict.fromkeys(name for _, manifest in found for name in manifest.metrics))
    columns = [("model", "left"), ("recipe", "left"), ("data", "left"), ("tools", "right")]
    columns += [(f"dev {name}", "right") for name in figures]
    rows = [
        (
            f"{path.name} (champion)" if path.name == champion else path.name,
            manifest.recipe,
            manifest.data.name,
            f"{manifest.n_tools:,}",
            *(f"{100 * manifest.metrics[name]:.1f}" if name in manifest.metrics else "" for name in figures),
            f"{manifest.fit_seconds:.0f}",
        )
        for path, manifest in found
    ]
    table([*columns, ("seconds", "right")], rows)
