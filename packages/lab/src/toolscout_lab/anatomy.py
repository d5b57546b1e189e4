"""Anatomy of a result: missed tools, the geometry of an encoder, and the cost of each stage of a pipeline.

The analyses are those of ToolBank (arXiv:2409.02141: Table 7, Fig. 6, Fig. 3, Table 9). Cosines and failures are
measured on test queries, and nothing is chosen by them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from toolscout.arrays import Places, Scores, Vectors
from toolscout.dataset import Dataset, Qrels, drop_leaks
from toolscout.encoders import Encoder, unit_rows
from toolscout.errors import NotFound, UserError, require
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.models import model_store
from toolscout.metrics import percentiles
from toolscout.recipes import registry
from toolscout.search.pipeline import Stage
from toolscout.settings import Settings
from toolscout.types import Tool
from toolscout_lab.machine import Record, peak_mb, reset_peak, resident_mb
from toolscout_lab.progress import Say, ignore
from toolscout_lab.rankers import masstool
from toolscout_lab.resources import Workspace, time_searches

__all__ = ["DEFAULT_CUT", "box", "cost", "failures", "find_recipe_and_encoder", "geometry", "intents", "stage_costs"]

DEFAULT_CUT: Final = 5
MAX_WORST_LISTED: Final = 10
MAX_SAMPLED_QUERIES: Final = 500  # test queries in the cosines and in t-SNE
MAX_TSNE_POINTS: Final = 300  # tools in t-SNE
PERPLEXITY: Final = 30


# --- failures ---------------------------------------------------------------------------------------------------------


def failures(
    run: Mapping[str, Sequence[str]],
    qrels: Mapping[str, Mapping[str, float]],
    texts: Mapping[str, str],
    k: int = DEFAULT_CUT,
) -> Record:
    """Count the gold tools that are not among the first k, and the length of the queries where that happens.

    Args:
        run: query id → tool ids, best first. A missing query counts as an empty ranking.
        qrels: query id → gold tool id → grade.
        texts: query id → text, for at least the queries of `qrels`.
        k: number of tools of a ranking that count.

    Returns:
        `k`; `tools`: number of tools that are gold for some query. The rate of such a tool is the share of its queries
        that miss it. `rate`: {mean, deviation} of the rates; `missed_per_tool`: mean number of queries that miss a
        tool; `spared`: number of tools that no query misses; `worst`: the tools with the highest rates, `{tool, rate,
        missed, gold}`; `words`: length in words of the queries that miss a gold tool (`failed`) and of the others
        (`found`), `{n, mean, deviation}`. Deviations are of the population. Without queries the mean is None.
    """
    gold: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    words: dict[str, list[int]] = {"failed": [], "found": []}
    for query, tools in qrels.items():
        missed_tools = tools.keys() - set(run.get(query, ())[:k])
        gold.update(tools.keys())
        missed.update(missed_tools)
        words["failed" if missed_tools else "found"].append(len(texts[query].split()))
    rates = {tool: missed[tool] / count for tool, count in gold.items()}
    worst = sorted(gold, key=lambda tool: (-rates[tool], -missed[tool], tool))
    return {
        "k": k,
        "tools": len(gold),
        "rate": _summarise(list(rates.values())),
        "missed_per_tool": sum(missed.values()) / len(gold),
        "spared": sum(not missed[tool] for tool in gold),
        "worst": [
            {"tool": tool, "rate": rates[tool], "missed": missed[tool], "gold": gold[tool]}
            for tool in worst[:MAX_WORST_LISTED]
            if missed[tool]
        ],
        "words": {name: {"n": len(lengths), **_summarise(lengths)} for name, lengths in words.items()},
    }


def _summarise(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and population deviation; None without values."""
    if not values:
        return {"mean": None, "deviation": None}
    return {"mean": float(np.mean(values)), "deviation": float(np.std(values))}


# --- geometry ---------------------------------------------------------------------------------------------------------


def geometry(
    dataset: Dataset,
    tools: Sequence[Tool],
    encoder: Encoder,
    *,
    vectors: VectorStore | None = None,
    sample: int = MAX_SAMPLED_QUERIES,
    seed: int = 0,
    say: Say = ignore,
) -> Record:
    """Compare test queries with tool descriptions, and with the mean training query of each tool.

    Both are compared over the same tools: those that training queries use. Training queries that a test query repeats
    do not count. For a dataset without training queries only the descriptions are compared, over all its tools.

    Args:
        dataset: it must have a test split.
        tools: the tools of the dataset, with ids `<source>/<_id>`.
        encoder: embeds queries and descriptions.
        vectors: cache of the vectors of an expensive encoder.
        sample: maximum number of test queries.
        seed: seed of the samples and of t-SNE.
        say: called with progress messages.

    Returns:
        `n_queries`, `n_tools`, `n_used`: sampled queries, tools compared, and tools with usage; `cosines`: side
        (`usage`, `description`) → `positive`, `negative` (`box` of the cosines of queries with their gold tools, and
        with the others), `auc`; `tsne`: `queries`, `usage`, `description` → points [x, y] (empty with too few points).

    Raises:
        MissingExtra: without scikit-learn.
        NotFound: without a test split.
        UserError: if no sampled query has a gold tool among those compared.
    """
    sklearn_metrics = require("sklearn.metrics", "lab")
    random = np.random.default_rng(seed)
    ordered = sorted(tools, key=lambda tool: tool.id)
    place = {tool.id.partition("/")[2]: number for number, tool in enumerate(ordered)}
    test = _sample_queries(dataset.split("test"), sample, random)
    say(f"embedding {len(ordered):,} tools and {len(test):,} test queries with {encoder.name}")
    described = Workspace(encoder, vectors=vectors).encode_tools(encoder, ordered)
    queries = _encode_queries(encoder, vectors, [dataset.queries[query] for query in test])
    sides: dict[str, Vectors] = {"description": described}
    used = np.arange(len(ordered))
    if train := _read_usage(dataset):
        say(f"embedding {len(train):,} training queries with {encoder.name}")
        rows = _encode_queries(encoder, vectors, [dataset.queries[query] for query in train])
        means, uses = _average_queries(rows, _find_places(train, place), len(place))
        used = np.flatnonzero(uses)
        sides = {"usage": means, "description": described}
    is_gold = np.zeros((len(test), len(ordered)), dtype=np.bool_)
    for row, places in zip(is_gold, _find_places(test, place), strict=True):
        row[places] = True
    is_gold = is_gold[:, used]
    if not is_gold.any() or is_gold.all():
        raise UserError(
            f"{dataset.name}: no cosines can be compared, because the sampled test queries need all or none of the "
            f"{len(used):,} tools compared. Use a dataset whose test queries need tools that training queries use."
        )
    cosines = {}
    for name, rows in sides.items():
        values = queries @ rows[used].T
        cosines[name] = {
            "positive": box(values[is_gold]),
            "negative": box(values[~is_gold]),
            "auc": round(float(sklearn_metrics.roc_auc_score(is_gold.ravel(), values.ravel())), 6),
        }
    drawn = np.sort(random.choice(used, MAX_TSNE_POINTS, replace=False)) if len(used) > MAX_TSNE_POINTS else used
    say("t-SNE")
    return {
        "n_queries": len(test),
        "n_tools": len(used),
        "n_used": len(used) if "usage" in sides else 0,
        "cosines": cosines,
        "tsne": _compute_tsne({"queries": queries, **{name: rows[drawn] for name, rows in sides.items()}}, seed),
    }


def _sample_queries(qrels: Qrels, sample: int, random: np.random.Generator) -> Qrels:
    ids = sorted(qrels)
    if len(ids) > sample:
        ids = [ids[number] for number in np.sort(random.choice(len(ids), sample, replace=False))]
    return {query: qrels[query] for query in ids}


def _find_places(qrels: Qrels, place: Mapping[str, int]) -> list[list[int]]:
    """Return the positions of each query's gold tools; gold tools without a position are left out."""
    return [[place[tool] for tool in gold if tool in place] for gold in qrels.values()]


def _read_usage(dataset: Dataset) -> Qrels:
    """Return the training queries that no test query repeats. Empty without a train split."""
    try:
        train = dataset.split("train")
    except NotFound:
        return {}
    return drop_leaks(train, dataset.queries, dataset.texts("test"))[0]


def _encode_queries(encoder: Encoder, store: VectorStore | None, texts: list[str]) -> Vectors:
    """Encode queries. The vectors of an expensive encoder come from the cache that fits use too."""
    if encoder.cheap or store is None:
        return encoder.encode(texts, "query")
    return store.rows(
        f"{encoder.fingerprint}/query", texts, lambda some: encoder.encode(some, "query"), name=encoder.name
    )


def _average_queries(rows: Vectors, gold: Sequence[Sequence[int]], n_tools: int) -> tuple[Vectors, Places]:
    """Return the mean vector of the queries that use each tool, unit rows `(tools, dim)`, and how many use it."""
    sums = np.zeros((n_tools, rows.shape[1]), dtype=np.float64)
    uses = np.zeros(n_tools, dtype=np.intp)
    for row, places in zip(rows, gold, strict=True):
        sums[places] += row
        uses[places] += 1
    return unit_rows(sums), uses


def box(values: Scores) -> dict[str, float | int]:
    """Compute the numbers of a box plot; the whiskers end within 1.5 times the distance of the quartiles.

    Returns:
        `n`, `mean`, `low` (whisker), `q1`, `median`, `q3`, `high` (whisker).
    """
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    reach = 1.5 * (q3 - q1)
    inside = values[(values >= q1 - reach) & (values <= q3 + reach)]
    box_numbers = {
        "mean": values.mean(),
        "low": min(inside.min(), q1),
        "q1": q1,
        "median": median,
        "q3": q3,
        "high": max(inside.max(), q3),
    }
    return {"n": len(values), **{name: round(float(value), 6) for name, value in box_numbers.items()}}


def _compute_tsne(groups: Mapping[str, Vectors], seed: int) -> dict[str, list[list[float]]]:
    """Map the rows of all groups to points of a plane, by cosine distance. None for fewer than four rows."""
    manifold = require("sklearn.manifold", "lab")
    rows = np.concatenate(list(groups.values()))
    if len(rows) < 4:
        return {name: [] for name in groups}
    with threadpool_limits(1):  # with so few points, threads would wait longer for each other than they work
        plane = manifold.TSNE(
            metric="cosine", init="pca", perplexity=min(PERPLEXITY, (len(rows) - 1) / 3), random_state=seed, n_jobs=1
        ).fit_transform(rows)
    ends = np.cumsum([len(rows) for rows in groups.values()])[:-1]
    return {
        name: np.round(points.astype(np.float64), 3).tolist()
        for name, points in zip(groups, np.split(plane, ends), strict=True)
    }


def intents(folder: Path, dataset: Dataset, seed: int = 0) -> Record:
    """Map the parts of query vectors in a masstool model to points of a plane (MassTool, Fig. 7).

    Args:
        folder: folder of the model.
        dataset: it must have a test split.
        seed: seed of the sample and of t-SNE.

    Returns:
        `n_queries`: number of sampled test queries with a neighbour in the model; `tsne`: each part that the model has
        (`graph`, `search`, `joint`) → points [x, y]; `cosine`: two parts → the mean cosine between them in a query.
    """
    test = _sample_queries(dataset.split("test"), MAX_TSNE_POINTS, np.random.default_rng(seed))
    parts = masstool.compute_query_parts(model_store.load(folder), [dataset.queries[query] for query in test])
    pairs = itertools.combinations(parts, 2)
    return {
        "n_queries": len(parts["graph"]),
        "tsne": _compute_tsne(parts, seed),
        "cosine": {
            f"{left} {right}": round(float((parts[left] * parts[right]).sum(axis=1).mean()), 6) for left, right in pairs
        }
        if len(parts["graph"])
        else {},
    }


# --- cost -------------------------------------------------------------------------------------------------------------


def find_recipe_and_encoder(folder: Path | None, recipe: str | None) -> tuple[str, str | None]:
    """Return the recipe and the encoder of a model folder; without a folder, those of the recipe itself.

    Raises:
        UserError: if the folder holds no model, or a model of another recipe.
    """
    if folder is None:
        chosen = registry.recipe(recipe or "hybrid")
        return chosen.name, chosen.encoder
    manifest = model_store.read_manifest(folder)
    if recipe and recipe != manifest.recipe:
        raise UserError(f"{folder}: expected a model of {recipe}, found one of {manifest.recipe}")
    return manifest.recipe, manifest.encoder.name if manifest.encoder else registry.recipe(manifest.recipe).encoder


def cost(
    recipe: str,
    tools: Sequence[Tool],
    texts: Sequence[str],
    *,
    encoder: str | Encoder = "static",
    model: Path | None = None,
    settings: Settings | None = None,
    vectors: VectorStore | None = None,
    say: Say = ignore,
) -> Record:
    """Measure the time of each stage, one query at a time on one thread, and the memory of the process.

    Args:
        recipe: its name.
        tools: the catalogue.
        texts: texts of queries. At most 200 are searched, at even distances.
        encoder: the encoder, by name or loaded.
        model: folder of the model, for a fitted recipe.
        settings: provide timeouts.
        vectors: cache of vectors.
        say: called with progress messages.

    Returns:
        The figures of `stage_costs`, and `memory_mb`: resident before the pipeline was built (`before`), after
        (`built`), and the highest during the searches (`peak`).
    """
    before = resident_mb()
    workspace = Workspace(encoder, settings or Settings(), vectors)
    if registry.recipe(recipe).encodes:
        workspace = dataclasses.replace(workspace, encoder=workspace.load_encoder())
    say(f"building {recipe} over {len(tools):,} tools")
    stage = registry.build(recipe, Catalogue.of(tools), workspace, model=model)
    built = resident_mb()
    say("searching, one query at a time")
    reset_peak()
    stage_figures = stage_costs(stage, texts)
    memory = {"before": before, "built": built, "peak": peak_mb()}
    return {"recipe": recipe, **stage_figures, "memory_mb": {name: round(value, 1) for name, value in memory.items()}}


def stage_costs(stage: Stage, texts: Sequence[str], k: int = DEFAULT_CUT) -> Record:
    """Measure the milliseconds of each stage in `time_searches`.

    Returns:
        `n`: number of searches; `stages`: `{stage, p50, p95, share}` in the order of the trace, where `share` is the
        stage's part of all the time; `total`: {p50, p95} of whole searches.
    """
    times: dict[tuple[str, int], list[float]] = {}
    totals: list[float] = []
    for search, _ in time_searches(stage, texts, k):
        counts: Counter[str] = Counter()  # a pipeline may have the same stage twice
        for step in search.trace:
            times.setdefault((step.stage, counts[step.stage]), []).append(1000 * step.seconds)
            counts[step.stage] += 1
        totals.append(1000 * math.fsum(step.seconds for step in search.trace))
    total = math.fsum(totals)
    return {
        "n": len(totals),
        "stages": [
            {"stage": name, **percentiles(stage_times), "share": round(math.fsum(stage_times) / total, 4)}
            for (name, _), stage_times in times.items()
        ],
        "total": percentiles(totals),
    }
