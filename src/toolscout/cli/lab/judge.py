"""The command `lab judge`: a language model compares texts two at a time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolscout.cli.data import data_option, find_root
from toolscout.cli.llm import load_llm_settings, open_llm, print_cost, spending_options
from toolscout.cli.output import json_option, print_json, print_table, progress
from toolscout.errors import SourceError

if TYPE_CHECKING:
    from toolscout.lab.judge import Outcome, Pair

QUERY_ASPECTS = ("naturalness", "multifacetedness")
ANSWER_ASPECTS = ("coherence", "relevance", "comprehensiveness", "overall")
REVERSED_RESULTS = {"win": "loss", "tie": "tie", "loss": "win"}
PAIR_COLUMNS = ("aspect", "a", "b", "win", "tie", "loss", "unjudged")

ResultKey = tuple[str, str, str, str]
"""(id, aspect, a, b) of a pair that was judged."""


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
    NAME=FILE for two systems or more, each file with JSON lines of id, request and answer; every two systems are
    compared on each request and rated by Elo.
    """
    from toolscout.lab.judge import agreement, judge
    from toolscout.lab.judge import table as count_results

    pairs = _load_pairs(what, inputs, count, seed, find_root(data))
    chosen_aspects = aspects or (ANSWER_ASPECTS if what == "answers" else QUERY_ASPECTS)
    people_results = _read_people(Path(people), pairs) if people else {}
    settings = load_llm_settings(ctx, llm_address)
    with progress(f"judging {len(pairs):,} pairs") as say, open_llm(settings, **limits) as llm:
        outcomes = judge(llm, pairs, chosen_aspects, say=say)
        print_cost(llm, dry_run=limits["dry_run"])
    if limits["dry_run"]:
        return
    if out:
        Path(out).write_bytes(b"".join(msgspec.json.encode(outcome) + b"\n" for outcome in outcomes))
    result: dict[str, Any] = {"pairs": count_results(outcomes)}
    if what == "answers":
        result["elo"] = {aspect: _rate_systems(outcomes, aspect, seed) for aspect in chosen_aspects}
    if people:
        result["people"] = agreement(outcomes, people_results)
    if as_json:
        print_json(result)
    else:
        _print_result(result)


def _rate_systems(outcomes: Sequence[Outcome], aspect: str, seed: int) -> dict[str, dict[str, float]]:
    """Rate the systems by Elo on one aspect: name → mean and 95 % interval."""
    from toolscout.lab.judge import elo, matches

    played = matches([outcome for outcome in outcomes if outcome.aspect == aspect])
    return {name: rating._asdict() for name, rating in elo(played, seed=seed).items()}


def _print_result(result: dict[str, Any]) -> None:
    print_table(
        [(name, "left" if name in ("aspect", "a", "b") else "right") for name in PAIR_COLUMNS],
        [[row[name] for name in PAIR_COLUMNS] for row in result["pairs"]],
    )
    for aspect, ratings in result.get("elo", {}).items():
        for name, rating in sorted(ratings.items(), key=lambda item: -item[1]["mean"]):
            click.echo(f"Elo, {aspect}: {name} {rating['mean']:.0f} ({rating['low']:.0f} … {rating['high']:.0f})")
    if people := result.get("people"):
        click.echo(f"people: {people['n']:,} pairs, agreement {people['agreement']}, kappa {people['kappa']}")


def _load_pairs(what: str, inputs: Sequence[str], count: int, seed: int, root: Path | None) -> list[Pair]:
    from toolscout.lab.synth import chance

    match what:
        case "queries":
            return _draw_query_pairs(inputs, count, chance("judge", seed), root)
        case "polish":
            return _draw_polished_pairs(inputs, count, chance("judge", seed), root)
        case _:
            return _pair_answers(inputs)


def _draw_query_pairs(inputs: Sequence[str], count: int, random_source: random.Random, root: Path | None) -> list[Pair]:
    """Pair random queries of two datasets. Queries are drawn with replacement."""
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.judge import Pair

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
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.judge import Pair

    if len(inputs) != 1:
        raise click.UsageError(f"judge polish: expected one dataset, found {len(inputs)}")
    dataset = load_dataset(inputs[0], root)
    raw = {id: (meta.get("steps") or {}).get("raw") for id, meta in dataset.query_meta.items()}
    changed = sorted(id for id, text in raw.items() if text and text != dataset.queries[id])
    if not changed:
        raise SourceError(f"{inputs[0]}: no query was polished. Write the dataset with  toolscout lab synth toolbank")
    sample = random_source.sample(changed, min(count, len(changed)))
    return [Pair(id, "polished", "raw", dataset.queries[id], str(raw[id])) for id in sample]


def _pair_answers(inputs: Sequence[str]) -> list[Pair]:
    """Pair the answers of every two systems to the same request."""
    from toolscout.lab.judge import Pair

    systems: dict[str, dict[str, dict[str, str]]] = {}
    for item in inputs:
        name, equals, file = item.partition("=")
        if not equals:
            raise click.UsageError(f"judge answers: expected NAME=FILE, found {item}")
        systems[name] = {row["id"]: row for row in _read_lines(Path(file), "id", "request", "answer")}
    if len(systems) < 2:
        raise click.UsageError("judge answers: expected two systems or more, found one")
    return [
        Pair(id, a, b, systems[a][id]["answer"], systems[b][id]["answer"], systems[a][id]["request"])
        for a, b in itertools.combinations(systems, 2)
        for id in systems[a]
        if id in systems[b]
    ]


def _read_people(file: Path, pairs: Sequence[Pair]) -> dict[ResultKey, Any]:
    """Read the results that people gave, as seen from `a` of each pair.

    A line may leave out a and b if only two systems are compared, and may name them in either order.

    Raises:
        SourceError: naming file and line.
    """
    compared = list(dict.fromkeys((pair.a, pair.b) for pair in pairs))
    results: dict[ResultKey, Any] = {}
    for number, row in enumerate(_read_lines(file, "id", "aspect", "result", optional=("a", "b")), 1):
        result = "loss" if row["result"] == "lose" else row["result"]
        if result not in REVERSED_RESULTS:
            raise SourceError(f"{file}, line {number}: expected the result win, tie or loss, found {row['result']!r}")
        is_unnamed = len(compared) == 1 and "a" not in row and "b" not in row
        a, b = compared[0] if is_unnamed else (row.get("a"), row.get("b"))
        if (b, a) in compared and (a, b) not in compared:
            a, b, result = b, a, REVERSED_RESULTS[result]
        if (a, b) not in compared:
            expected = ", ".join(f"{one} and {other}" for one, other in compared)
            raise SourceError(
                f"{file}, line {number}: expected as a and b two systems that are compared ({expected}), found {a} "
                f"and {b}"
            )
        results[row["id"], row["aspect"], str(a), str(b)] = result
    return results


def _read_lines(file: Path, *keys: str, optional: Sequence[str] = ()) -> list[dict[str, str]]:
    """Read JSON lines as objects of texts, with these keys and the `optional` ones that a line has.

    Raises:
        SourceError: naming file and line.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise SourceError(f"{file}: the file cannot be read ({error.strerror}). Check its path") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
            rows.append({key: str(row[key]) for key in (*keys, *(key for key in optional if key in row))})
        except (msgspec.MsgspecError, KeyError):
            raise SourceError(f"{file}, line {number}: expected an object with {', '.join(keys)}") from None
    return rows
