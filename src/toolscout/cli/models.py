"""The command `models`: lists fitted models and checks their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolscout.cli.output import choose_home, json_option, print_json, print_table
from toolscout.config import load_settings
from toolscout.errors import NotFound
from toolscout.home import Home
from toolscout.models import model_store
from toolscout.models.champion import history
from toolscout.models.champion import list_models as list_home_models
from toolscout.models.champion import shelf as champion_shelf
from toolscout.models.model_store import Manifest

Entries = Sequence[tuple[Path, Manifest | str]]
"""Folder of a model → its manifest, or what is wrong with it."""


@click.command("models")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def models_command(ctx: click.Context, folder: Path | None, as_json: bool) -> int:
    """List the fitted models in DIR. By default this is the folder `models` of the home.

    Every file is compared with its digest, and damaged models are reported.
    """
    if folder is not None and not folder.is_dir():
        raise NotFound(f"expected a folder of models, found none at {folder}")
    home = load_settings(**choose_home(ctx)).place
    shelf = folder or champion_shelf(home)
    entries = model_store.list_models(shelf) if folder else list_home_models(home)
    readable, problems = _split_entries(entries)
    champion = _find_champion(home if folder is None else folder.parent, shelf)
    if as_json:
        print_json([_describe_model(path, entry, champion) for path, entry in entries])
    elif readable:
        _print_models(readable, champion)
    elif not problems:
        click.echo(f"{shelf}: no models. Fit one with  toolscout train RECIPE --data DIR --out {shelf / 'NAME'}")
    for problem in problems:
        click.echo(f"toolscout: {problem}", err=True)
    return (3 if readable else 1) if problems else 0


def _split_entries(entries: Entries) -> tuple[list[tuple[Path, Manifest]], list[str]]:
    """Split the models of a folder into those that can be read, and the problems of the others."""
    readable = [(path, manifest) for path, manifest in entries if isinstance(manifest, Manifest)]
    return readable, [problem for _, problem in entries if isinstance(problem, str)]


def _describe_model(path: Path, manifest: Manifest | str, champion: str | None) -> dict[str, Any]:
    """Describe a model in JSON values. A text in place of the manifest says what is wrong with the model."""
    entry: dict[str, Any] = {
        "name": path.name,
        "path": str(path),
        "problem": manifest if isinstance(manifest, str) else None,
    }
    if isinstance(manifest, Manifest):
        entry |= {
            "recipe": manifest.recipe,
            "job": manifest.job,
            "data": manifest.data,
            "n_tools": manifest.n_tools,
            "encoder": manifest.encoder.name if manifest.encoder else None,
            "metrics": manifest.metrics,
            "fit_seconds": manifest.fit_seconds,
            "version": manifest.version,
        }
    return {**entry, "champion": path.name == champion}


def _find_champion(home: Home, shelf: Path) -> str | None:
    """Find the name of the champion, if `shelf` is the model folder of the home."""
    promotions = history(home) if shelf == champion_shelf(home) else []
    return promotions[-1].model if promotions else None


def _print_models(models: list[tuple[Path, Manifest]], champion: str | None) -> None:
    figures = list(dict.fromkeys(name for _, manifest in models for name in manifest.metrics))
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
        for path, manifest in models
    ]
    print_table([*columns, ("seconds", "right")], rows)
