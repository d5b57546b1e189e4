"""The command `lab anatomy`: how an encoder places queries and tools, and what each stage costs."""

from __future__ import annotations

import re
from pathlib import Path

import click

from toolscout.cli.options import data_option, find_root
from toolscout.cli.output import choose_home, encoder_option, json_option, print_json, print_table, progress
from toolscout.settings import load_settings
from toolscout_lab.commands.bench import out_option
from toolscout_lab.machine import Record

COSINE_KINDS = ("positive", "negative")
CLOUD_NAMES = {"queries": "test queries", "usage": "tools by usage", "description": "tools by description"}


@click.command("anatomy")
@click.argument("name", metavar="DATASET")
@encoder_option
@click.option("--recipe", "-r", help="Also measure the cost of each stage of this recipe.")
@click.option("--model", type=click.Path(path_type=Path), metavar="DIR", help="The recipe's model, if it is fitted.")
@click.option("--seed", default=0, show_default=True, help="Seed of the samples and of t-SNE.")
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
    """Show where an encoder places DATASET's queries and tools.

    With --recipe or --model the cost of each stage is measured too.

    A tool is placed twice: by its description, and by the mean of the training queries that use it. Both are compared
    by their cosines with test queries that need the tool and with other test queries, and drawn by t-SNE. Writes
    SLUG.anatomy.json and PNGs below DIR/DATASET. The tuned encoder of a model is MODEL/encoder. For a model of masstool
    the parts of its query vectors are shown too.
    """
    from toolscout import encoders
    from toolscout.checks.results import ANATOMY, write_json
    from toolscout.home.catalogue.vector_cache import VectorStore
    from toolscout.sources.folder import read_tools
    from toolscout_lab.anatomy import cost, find_recipe_and_encoder, geometry, intents
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.machine import provenance

    settings = load_settings(**choose_home(ctx))
    dataset = load_dataset(name, find_root(data))
    tools = read_tools(dataset.folder, "d").tools
    model_encoder = None
    if recipe or model:
        recipe, model_encoder = find_recipe_and_encoder(model, recipe)
    loaded_encoder = encoders.load(encoder or model_encoder or settings.encoder, settings)
    vectors = VectorStore(settings.home / "bench")
    result: Record = {"dataset": dataset.name, "encoder": loaded_encoder.name, "seed": seed, "recipe": recipe}
    with progress(f"looking into {dataset.name}") as say:
        if recipe:  # before the geometry, which needs memory that the pipeline does not
            texts = list(dataset.texts("test").values())
            result["cost"] = cost(
                recipe, tools, texts, encoder=loaded_encoder, model=model, settings=settings, vectors=vectors, say=say
            )
        if model and (recipe or "").startswith("masstool"):
            say("looking into the parts of query vectors")
            result["intents"] = intents(model, dataset, seed)
        result["geometry"] = geometry(dataset, tools, loaded_encoder, vectors=vectors, seed=seed, say=say)
    result |= provenance("scikit-learn")
    path = Path(out) / dataset.name / f"{make_slug(recipe, loaded_encoder.name)}{ANATOMY}"
    write_json(path, result)
    written = [path, *_write_charts(result, path)]
    if as_json:
        print_json(result)
        return
    _print_result(result)
    for file in written:
        click.echo(file)


def make_slug(recipe: str | None, encoder: str) -> str:
    """Return `recipe-encoder` as a file name. A folder gives its last two parts, because models use the same names."""
    path = Path(encoder)
    last = path.resolve().parts[-2:] if path.is_dir() else (path.name,)
    return "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", part).strip("-") for part in (recipe, *last) if part)


def _write_charts(result: Record, path: Path) -> list[Path]:
    """Write the charts beside the result file, and return their files."""
    files = []
    for name, picture in _draw_charts(result).items():
        files.append(path.with_suffix(f".{name}.png"))
        files[-1].write_bytes(picture)
    return files


def _draw_charts(result: Record) -> dict[str, bytes]:
    """Draw the charts: name → PNG."""
    from toolscout_lab.report import charts

    geometry, cost = result["geometry"], result.get("cost")
    title = f"{result['dataset']}, {result['encoder']}"
    pictures = {
        "cosines": charts.boxes(
            f"{title}: cosine of test queries with tools",
            {
                f"{side}\nAUC {cosines['auc']:.3f}": {
                    "needed": cosines["positive"],
                    "not needed": cosines["negative"],
                }
                for side, cosines in geometry["cosines"].items()
            },
            "cosine",
        )
    }
    if any(geometry["tsne"].values()):
        pictures["tsne"] = charts.cloud(
            f"{title}: t-SNE", {CLOUD_NAMES[name]: points for name, points in geometry["tsne"].items()}
        )
    if intents := result.get("intents"):
        pictures["intents"] = charts.cloud(
            f"{result['dataset']}, {result['recipe']}: t-SNE of the parts of {intents['n_queries']} query vectors",
            intents["tsne"],
        )
    if cost:
        rows = [(stage["stage"], stage["p50"], stage["p95"]) for stage in cost["stages"]]
        total = cost["total"]
        pictures["stages"] = charts.stages(
            f"{result['dataset']}, {cost['recipe']}: time of each stage; {cost['memory_mb']['peak']:.0f} MiB at most",
            [*rows, ("all stages", total["p50"], total["p95"])],
        )
    return pictures


def _print_result(result: Record) -> None:
    _print_cosines(result["dataset"], result["geometry"])
    for pair, cosine in result.get("intents", {}).get("cosine", {}).items():
        click.echo(f"mean cosine of the parts {' and '.join(pair.split())} of a query: {cosine:.3f}")
    if not result["geometry"]["n_used"]:
        click.echo("There are no training queries, so only descriptions were compared.")
    if cost := result.get("cost"):
        _print_cost_of_stages(cost)


def _print_cosines(dataset: str, geometry: Record) -> None:
    quantiles = ("low", "q1", "median", "q3", "high")
    rows: list[tuple[str, ...]] = []
    for side, cosines in geometry["cosines"].items():
        positive, negative = (tuple(f"{cosines[kind][name]:.3f}" for name in quantiles) for kind in COSINE_KINDS)
        rows.append((side, "that need it", *positive, f"{cosines['auc']:.4f}"))
        rows.append((side, "others", *negative, ""))
    print_table(
        [("tools by", "left"), ("queries", "left"), *((name, "right") for name in quantiles), ("AUC", "right")],
        rows,
        title=f"{dataset}: cosine of {geometry['n_queries']:,} test queries with {geometry['n_tools']:,} tools",
    )


def _print_cost_of_stages(cost: Record) -> None:
    rows = [(stage["stage"], stage["p50"], stage["p95"], f"{100 * stage['share']:.0f} %") for stage in cost["stages"]]
    print_table(
        [("stage", "left"), ("p50 ms", "right"), ("p95 ms", "right"), ("share", "right")],
        [*rows, ("all", cost["total"]["p50"], cost["total"]["p95"], "")],
    )
    memory = ", ".join(f"{name} {value:.0f}" for name, value in cost["memory_mb"].items())
    click.echo(f"memory of the process, MiB: {memory}")
