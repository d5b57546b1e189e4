"""anatomy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolscout.cli.data import data_option, find_root
from toolscout.cli.lab.bench import out_option
from toolscout.cli.output import encoder_option, json_option, print_json, progress, table
from toolscout.config import load_settings


@click.command("anatomy")
@click.argument("name", metavar="DATASET")
@encoder_option
@click.option("--recipe", "-r", help="Measure what each stage of this recipe costs, too.")
@click.option("--model", type=click.Path(path_type=Path), metavar="DIR", help="The recipe's model, if it is fitted.")
@click.option("--seed", default=0, show_default=True, help="Of the samples and of t-SNE.")
@data_option
@out_option
@json_option
@click.pass_context
def anatomy_command(
    ctx: click.Context,
    name: str,
    encoder: str | None,
    recipe: str | None,
    model: Path | None,
    seed: int,
    data: str | None,
    out: str,
    as_json: bool,
) -> None:
    """Show where an encoder puts DATASET's queries and tools, and with --recipe or --model what each stage costs.

    Compares the mean of the training queries that use a tool with the tool's description: cosines with test queries
    that need it and with others, and t-SNE. Writes SLUG.anatomy.json and PNGs below DIR/DATASET. An encoder that a
    recipe has tuned lies in its model: --encoder MODEL/encoder. A model of masstool is shown by the parts of its query
    vectors, too.
    """
    from toolscout import encoders
    from toolscout.catalogue.vector_cache import VectorStore
    from toolscout.checks.results import ANATOMY, write_json
    from toolscout.lab.anatomy import cost, find_recipe_and_encoder, geometry, intents
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.machine import provenance
    from toolscout.sources.folder import read_tools

    settings = load_settings(home=(ctx.obj or {}).get("home"))
    dataset = load_dataset(name, find_root(data))
    tools = read_tools(dataset.folder, "d").tools
    model_encoder = None
    if recipe or model:
        recipe, model_encoder = find_recipe_and_encoder(model, recipe)
    loaded_encoder = encoders.load(encoder or model_encoder or settings.encoder, settings)
    vectors = VectorStore(settings.home / "bench")
    result: dict[str, Any] = {"dataset": dataset.name, "encoder": loaded_encoder.name, "seed": seed, "recipe": recipe}
    with progress(f"looking into {dataset.name}") as say:
        if recipe:  # first: what the geometry holds in memory is not the pipeline's
            texts = list(dataset.texts("test").values())
            result["cost"] = cost(
                recipe, tools, texts, encoder=loaded_encoder, model=model, settings=settings, vectors=vectors, say=say
            )
        if model and (recipe or "").startswith("masstool"):
            say("what a query's vector is put together of")
            result["intents"] = intents(model, dataset, seed)
        result["geometry"] = geometry(dataset, tools, loaded_encoder, vectors=vectors, seed=seed, say=say)
    result |= provenance("scikit-learn")
    path = Path(out) / dataset.name / f"{slug(recipe, loaded_encoder.name)}{ANATOMY}"
    write_json(path, result)
    written = [path, *_draw(result, path)]
    if as_json:
        print_json(result)
        return
    _show(result)
    for each in written:
        click.echo(each)


def slug(recipe: str | None, encoder: str) -> str:
    """`recipe-encoder` as a file's name; of a folder the last two parts, for those of models are all called alike."""
    place = Path(encoder)
    last = place.resolve().parts[-2:] if place.is_dir() else (place.name,)
    return "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", each).strip("-") for each in (recipe, *last) if each)


def _draw(result: Mapping[str, Any], path: Path) -> list[Path]:
    """The charts, beside the result."""
    from toolscout.lab import charts

    found, cost = result["geometry"], result.get("cost")
    title = f"{result['dataset']}, {result['encoder']}"
    named = {"queries": "test queries", "usage": "tools by usage", "description": "tools by description"}
    pictures = {
        "cosines": charts.boxes(
            f"{title}: cosine of test queries with tools",
            {
                f"{side}\nAUC {each['auc']:.3f}": {"needed": each["positive"], "not needed": each["negative"]}
                for side, each in found["cosines"].items()
            },
            "cosine",
        )
    }
    if any(found["tsne"].values()):
        pictures["tsne"] = charts.cloud(
            f"{title}: t-SNE", {named[name]: points for name, points in found["tsne"].items()}
        )
    if meant := result.get("intents"):
        pictures["intents"] = charts.cloud(
            f"{result['dataset']}, {result['recipe']}: t-SNE of what {meant['n_queries']} queries are put together of",
            meant["tsne"],
        )
    if cost:
        rows = [(each["stage"], each["p50"], each["p95"]) for each in cost["stages"]]
        total = cost["total"]
        pictures["stages"] = charts.stages(
            f"{result['dataset']}, {cost['recipe']}: time of each stage; {cost['memory_mb']['peak']:.0f} MiB at most",
            [*rows, ("all stages", total["p50"], total["p95"])],
        )
    files = []
    for name, picture in pictures.items():
        files.append(path.with_suffix(f".{name}.png"))
        files[-1].write_bytes(picture)
    return files


def _show(result: Mapping[str, Any]) -> None:
    found = result["geometry"]
    parts = ("low", "q1", "median", "q3", "high")
    table(
        [("tools by", "left"), ("queries", "left"), *((name, "right") for name in parts), ("AUC", "right")],
        [
            (side, "that need it" if kind == "positive" else "others", *(f"{each[kind][name]:.3f}" for name in parts),
             f"{each['auc']:.4f}" if kind == "positive" else "")
            for side, each in found["cosines"].items()
            for kind in ("positive", "negative")
        ],
        title=f"{result['dataset']}: cosine of {found['n_queries']:,} test queries with {found['n_tools']:,} tools",
    )  # fmt: skip
    for pair, cosine in result.get("intents", {}).get("cosine", {}).items():
        click.echo(f"mean cosine of the parts {' and '.join(pair.split())} of a query: {cosine:.3f}")
    if not found["n_used"]:
        click.echo("no training queries: descriptions alone")
    if cost := result.get("cost"):
        rows = [(each["stage"], each["p50"], each["p95"], f"{100 * each['share']:.0f} %") for each in cost["stages"]]
        table(
            [("stage", "left"), ("p50 ms", "right"), ("p95 ms", "right"), ("share", "right")],
            [*rows, ("all", cost["total"]["p50"], cost["total"]["p95"], "")],
        )
        memory = ", ".join(f"{name} {value:.0f}" for name, value in cost["memory_mb"].items())
        click.echo(f"memory of the process, MiB: {memory}")
