"""The command `lab judge`: a language model compares texts two at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolscout.cli.options import data_option, find_root, print_cost
from toolscout.cli.output import json_option, print_json, print_table, progress
from toolscout.errors import SourceError
from toolscout_lab.commands.llm import load_llm_settings, open_llm, spending_options
from toolscout_lab.machine import Record

if TYPE_CHECKING:
    from toolscout_lab.judge import Pair

QUERY_ASPECTS = ("naturalness", "multifacetedness")
ANSWER_ASPECTS = ("coherence", "relevance", "comprehensiveness", "overall")
PAIR_COLUMNS = ("aspect", "a", "b", "win", "tie", "loss", "unjudged")


@click.command("judge")
@click.argument("what", type=click.Choice(["queries", "polish", "answers"]))
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--aspect", "aspects", multiple=True, help="What to compare; may be repeated. Default: as in the papers.")
@click.option("-n", "count", default=50, show_default=True, help="Number of pairs, for `queries` and `polish`.")
@click.option(
    "--people",
    metavar="FILE",
    help="Measure agreement with people: JSON lines with id, aspect and result (win, tie or loss). With more than two "
    "systems each line also names its systems, a and b.",
)
@click.option("--queries", metavar="DATASET", help="For `answers`: take requests that a file lacks from this dataset.")
@click.option("--seed", default=0, show_default=True, help="Seed for drawing pairs and for the orders of Elo.")
@click.option("--out", metavar="FILE", help="Write each outcome as a JSON line.")
@spending_options
@data_option
@json_option
@click.pass_context
def judge_command(
    ctx: click.Context,
    /,
    what: str,
    inputs: tuple[str, ...],
    aspects: tuple[str, ...],
    count: int,
    people: str | None,
    queries: str | None,
    seed: int,
    out: str | None,
    llm_address: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Let a language model compare texts two at a time, in both orders.

    queries: INPUTs are two datasets; random queries of one are compared with random queries of the other. polish: INPUT
    is a dataset of `synth toolbank`; each polished query is compared with its first version. answers: INPUTs are
    NAME=FILE, each file with JSON lines of id, request and answer, as `downstream --out` writes them; a file with
    several conditions gives one system for each, and needs no NAME. Every two systems are compared on each request and
    rated by Elo.
    """
    from toolscout_lab.answers import read_people
    from toolscout_lab.judge import agreement, judge, rate_systems
    from toolscout_lab.judge import table as count_results

    root = find_root(data)
    pairs = _pair_answers(inputs, queries, root) if what == "answers" else _draw_pairs(what, inputs, count, seed, root)
    chosen_aspects = aspects or (ANSWER_ASPECTS if what == "answers" else QUERY_ASPECTS)
    people_results = read_people(Path(people), pairs) if people else {}
    settings = load_llm_settings(ctx, llm_address)
    with progress(f"judging {len(pairs):,} pairs") as say, open_llm(settings, **limits) as llm:
        outcomes = judge(llm, pairs, chosen_aspects, say=say)
        print_cost(llm.spent, dry_run=limits["dry_run"])
    if limits["dry_run"]:
        return
    if out:
        write_lines(Path(out), outcomes)
    result: Record = {"pairs": count_results(outcomes)}
    if what == "answers":
        result["elo"] = rate_systems(outcomes, chosen_aspects, seed=seed)
    if people:
        result["people"] = agreement(outcomes, people_results)
    if as_json:
        print_json(result)
    else:
        print_comparison(result)


def write_lines(file: Path, rows: Sequence[msgspec.Struct]) -> None:
    """Write outcomes or episodes as JSON lines."""
    file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def print_comparison(result: Record) -> None:
    """Print the counts of `pairs`, the ratings of `elo`, and the agreement with `people`."""
    print_table(
        [(name, "left" if name in ("aspect", "a", "b") else "right") for name in PAIR_COLUMNS],
        [[row[name] for name in PAIR_COLUMNS] for row in result["pairs"]],
    )
    for aspect, ratings in result.get("elo", {}).items():
        for name, rating in sorted(ratings.items(), key=lambda item: -item[1]["mean"]):
            click.echo(f"Elo, {aspect}: {name} {rating['mean']:.0f} ({rating['low']:.0f} … {rating['high']:.0f})")
    if people := result.get("people"):
        click.echo(f"people: {people['n']:,} pairs, agreement {people['agreement']}, kappa {people['kappa']}")


def _draw_pairs(what: str, inputs: Sequence[str], count: int, seed: int, root: Path | None) -> list[Pair]:
    from toolscout_lab.synth import chance

    draw = _draw_query_pairs if what == "queries" else _draw_polished_pairs
    return draw(inputs, count, chance("judge", seed), root)


def _draw_query_pairs(inputs: Sequence[str], count: int, random_source: random.Random, root: Path | None) -> list[Pair]:
    """Pair random queries of two datasets. Queries are drawn with replacement."""
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.judge import Pair

    if len(inputs) != 2:
        raise click.UsageError(f"judge queries: expected two datasets, found {len(inputs)}")
    a, b = (load_dataset(name, root) for name in inputs)
    ids_a, ids_b = (random_source.choices(sorted(dataset.queries), k=count) for dataset in (a, b))
    return [
        Pair(f"{id_a}|{id_b}", a.name, b.name, a.queries[id_a], b.queries[id_b])
        for id_a, id_b in zip(ids_a, ids_b, strict=True)
    ]


def _draw_polished_pairs(
    inputs: Sequence[str], count: int, random_source: random.Random, root: Path | None
) -> list[Pair]:
    """Pair random polished queries of a dataset with their versions before the polish."""
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.judge import Pair

    if len(inputs) != 1:
        raise click.UsageError(f"judge polish: expected one dataset, found {len(inputs)}")
    dataset = load_dataset(inputs[0], root)
    raw = {id: (meta.get("steps") or {}).get("raw") for id, meta in dataset.query_meta.items()}
    changed = sorted(id for id, text in raw.items() if text and text != dataset.queries[id])
    if not changed:
        raise SourceError(f"{inputs[0]}: no query was polished. Write the dataset with  toolscout lab synth toolbank")
    sample = random_source.sample(changed, min(count, len(changed)))
    return [Pair(id, "polished", "raw", dataset.queries[id], str(raw[id])) for id in sample]


def _pair_answers(inputs: Sequence[str], dataset: str | None, root: Path | None) -> list[Pair]:
    """Pair the answers of every two systems to the same request.

    An input is `NAME=FILE`, or only FILE if its lines name their system by their condition.
    """
    from toolscout_lab.answers import Systems, pair_answers, read_answers
    from toolscout_lab.bench_jobs import load_dataset

    requests = load_dataset(dataset, root).queries if dataset else {}
    systems: Systems = {}
    for item in inputs:
        is_file = Path(item).is_file()  # whose own name may contain a "="
        name, equals, file = ("", "", item) if is_file else item.partition("=")
        if not equals and not is_file:
            raise click.UsageError(f"judge answers: expected NAME=FILE, found {item}")
        answers = read_answers(Path(file), name, requests)
        if repeated := sorted(systems.keys() & answers.keys()):
            raise click.UsageError(f"judge answers: two inputs are called {repeated[0]}. Name them: NAME=FILE")
        systems |= answers
    if len(systems) < 2:
        raise click.UsageError("judge answers: expected two systems or more, found one")
    return pair_answers(systems)
