"""The command `models`: lists fitted models and checks their files, pushes and pulls them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolscout.cli.output import (
    choose_home,
    count_things,
    home_option,
    json_option,
    print_failure,
    print_json,
    print_table,
    progress,
    tenant_option,
)
from toolscout.errors import ConfigError, NotFound, find_nearest, require
from toolscout.home.models import model_store
from toolscout.home.models.champion import find_model, history, publish_model
from toolscout.home.models.champion import list_models as list_home_models
from toolscout.home.models.champion import shelf as find_models_folder
from toolscout.home.models.exchange import (
    HUB_PREFIX,
    HubAddress,
    check_package,
    install_package,
    pack_zip,
    pull_from_hub,
    push_to_hub,
    suggest_name,
    unpack_zip,
)
from toolscout.home.models.model_store import Manifest
from toolscout.location import Home
from toolscout.recipes.registry import check_model
from toolscout.settings import load_settings

Entries = Sequence[tuple[Path, Manifest | str]]
"""(folder of a model, its manifest or what is wrong with it)"""


class _DefaultGroup(click.Group):
    """A group that lists models if its first argument is none of its commands: `toolscout models DIR`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names, or take the first argument for the folder to list."""
        first = args[0]
        if first in self.commands:
            return super().resolve_command(ctx, args)
        nearest = find_nearest(first, self.commands)
        if nearest is not None and not Path(first).exists():
            ctx.fail(f"There is no command {first!r}. Did you mean {nearest!r}?")
        return "list", self.commands["list"], args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before options without a command, but for `--help`, which is about the group."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group("models", cls=_DefaultGroup)
def models_command() -> None:
    """List fitted models and check their files; push, pull and pack them.

    Without a command, `list` is meant: `toolscout models`, `toolscout models DIR`.
    """


@models_command.command("push")
@click.argument("model")
@click.argument("target")
@click.option("--public", is_flag=True, help="Make a new repository public. By default it is private.")
@home_option
@tenant_option
@click.pass_context
def push_command(
    ctx: click.Context, model: str, target: str, public: bool, home: str | None, tenant: str | None
) -> None:
    """Push MODEL to TARGET: hf://OWNER/NAME[@BRANCH] on the Hugging Face hub, or a FILE.zip.

    MODEL is the name of a model of the home, or the folder of a model or ONNX encoder. Its files are checked first. A
    model holds the ids and names of the tools that it was fitted on, and what the card says.
    """
    place = load_settings(**choose_home(ctx, home, tenant)).place
    folder = Path(model) if Path(model).is_dir() else find_model(place, model)
    if not target.startswith(HUB_PREFIX):
        file = _check_zip_name(target)
        package = pack_zip(folder, file)
        click.echo(f"{file}: the {package.kind} {package.label}, {file.stat().st_size / 1e6:.1f} MB")
    else:
        address = HubAddress.parse(target)
        require("huggingface_hub", "hub")
        with progress(f"pushing to {target}"):
            commit = push_to_hub(folder, address, public=public)
        package = check_package(folder)
        click.echo(f"pushed: {commit}")
    if package.n_tools:
        click.echo(f"It holds ids and names of {count_things(package.n_tools, 'tool')}.")


@models_command.command("pull")
@click.argument("source")
@click.option("--name", help="Name of the model in the home. Default: that of the repository or file.")
@home_option
@tenant_option
@click.pass_context
def pull_command(ctx: click.Context, source: str, name: str | None, home: str | None, tenant: str | None) -> None:
    """Pull a model or encoder from SOURCE: hf://OWNER/NAME[@REVISION], or a FILE.zip.

    Every file is checked: pickles and programs are refused, and each digest must be that of the manifest. A pulled
    model serves no search before it is promoted.
    """
    settings = load_settings(**choose_home(ctx, home, tenant))
    address = HubAddress.parse(source) if source.startswith(HUB_PREFIX) else None
    file = None if address else _check_zip_name(source)
    name = suggest_name(name or (address.name if address else Path(source).stem))
    folder = find_models_folder(settings.place) / name
    with progress(f"pulling {source}"):  # both are fetched into a folder aside, which is checked, then moved
        if address:
            require("huggingface_hub", "hub")
            package = install_package(folder, functools.partial(_pull_and_print_commit, address), check=check_model)
        else:
            assert file is not None
            package = install_package(folder, functools.partial(unpack_zip, file), check=check_model)
    if package.kind == "encoder":
        click.echo(f"{folder}: the encoder {package.label}. Use it with  --encoder onnx:{folder}")
        return
    publish_model(settings.place, folder)
    click.echo(f"{name}: a model of {package.label}, fitted on {count_things(package.n_tools, 'tool')}.")
    click.echo(f"Try it with  toolscout search QUERY --model {folder}  or serve it with  toolscout promote {name}")


def _pull_and_print_commit(address: HubAddress, folder: Path) -> None:
    """Pull a repository into a folder, and print the commit, which pins what was pulled."""
    commit = pull_from_hub(address, folder)
    click.echo(f"{HUB_PREFIX}{address.repository} at {commit}", err=True)


def _check_zip_name(text: str) -> Path:
    """Return the path of a zip file. Refuse any other name, which was meant as an address."""
    path = Path(text).expanduser()
    if path.suffix.lower() != ".zip" or "://" in text:
        raise ConfigError(f"expected hf://owner/name or a file that ends with .zip, found {text!r:.200}.")
    return path


def _list_entries(folder: Path) -> list[tuple[Path, model_store.Manifest | str]]:
    """List the models in a folder, with their manifests. A folder that is a model itself is listed alone."""
    if not (folder / model_store.MANIFEST).exists():
        return model_store.list_models(folder)
    model = folder.resolve()
    return [entry for entry in model_store.list_models(model.parent) if entry[0] == model]


@models_command.command("list")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@json_option
@home_option
@tenant_option
@click.pass_context
def list_command(ctx: click.Context, folder: Path | None, as_json: bool, home: str | None, tenant: str | None) -> int:
    """List the fitted models in DIR. By default this is the folder `models` of the home.

    Every file is compared with its digest, and damaged models are reported.
    """
    if folder is not None and not folder.is_dir():
        raise NotFound(f"expected a folder of models, found none at {folder}")
    place = load_settings(**choose_home(ctx, home, tenant)).place
    models_folder = folder or find_models_folder(place)
    entries = _list_entries(folder) if folder else list_home_models(place)
    readable, problems = _split_entries(entries)
    owner = place if folder is None else folder.parent  # DIR may be the models folder of another home
    champion = _find_champion(owner, models_folder)
    if as_json:
        print_json([_describe_model(path, entry, champion) for path, entry in entries])
    elif readable:
        _print_models(readable, champion)
    elif not problems:
        out = models_folder / "NAME"
        click.echo(f"{models_folder}: no models. Fit one with  toolscout train RECIPE --data DIR --out {out}")
    return _report_problems(problems, is_partial=bool(readable))


def _report_problems(problems: Sequence[str], *, is_partial: bool) -> int:
    """Print why models cannot be read. Returns the exit code: 3 if others can be, else 1; 0 without a problem."""
    for problem in problems:
        print_failure(problem)
    return (3 if is_partial else 1) if problems else 0


def _split_entries(entries: Entries) -> tuple[list[tuple[Path, Manifest]], list[str]]:
    """Split the models of a folder into readable ones with their manifests, and the problems of the others."""
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


def _find_champion(home: Home, models_folder: Path) -> str | None:
    """Find the name of the champion among the models of a folder. None: it is not the models folder of the home."""
    promotions = history(home) if models_folder == find_models_folder(home) else []
    return promotions[-1].model if promotions else None


def _print_models(models: list[tuple[Path, Manifest]], champion: str | None) -> None:
    measures = list(dict.fromkeys(name for _, manifest in models for name in manifest.metrics))
    columns = [("model", "left"), ("recipe", "left"), ("data", "left"), ("tools", "right")]
    columns += [(f"dev {name}", "right") for name in measures]
    rows = [
        (
            f"{path.name} (champion)" if path.name == champion else path.name,
            manifest.recipe,
            manifest.data.name,
            f"{manifest.n_tools:,}",
            *(f"{100 * manifest.metrics[name]:.1f}" if name in manifest.metrics else "" for name in measures),
            f"{manifest.fit_seconds:.0f}",
        )
        for path, manifest in models
    ]
    print_table([*columns, ("seconds", "right")], rows)
