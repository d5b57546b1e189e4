"""judge."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from toolscout.cli.data import data_option, find_root
from toolscout.cli.llm import load_llm_settings, open_llm, print_cost, spending_options
from toolscout.cli.output import json_option, print_json, progress, table
from toolscout.errors import SourceError

QUERY_ASPECTS = ("naturalness", "multifacetedness")
TURNED = {"win": "loss", "tie": "tie", "loss": "win"}
ANSWER_ASPECTS = ("coherence", "relevance", "comprehensiveness", "overall")


@click.command("judge")
@click.argument("what", type=click.Choice(["queries", "polish", "answers"]))
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--aspect", "aspects", multiple=True, help="May be repeated; by default those of the papers.")
@click.option("-n", "count", default=50, show_default=True, help="How many pairs of two inputs.")
@click.option(
    "--people",
    metavar="FILE",
    help="Lines of id, aspect, result (win, tie, loss) and, of more than two systems, a and b: how far people agree.",
)
@click.option("--seed", default=0, show_default=True, help="Of the pairs that are drawn and of Elo's orders.")
@click.option("--out", metavar="FILE", help="Write each outcome as a line of JSON.")
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
    place: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Compare two at a time, in both orders.

    queries: two datasets; random pairs of their queries. polish: one dataset of  synth toolbank; each query against
    what it was before it was polished. answers: NAME=FILE of two systems or more, lines of id, request and answer;
    every two systems on each request, with Elo.
    """
    from toolscout.lab.judge import Outcome, agreement, elo, judge, matches
    from toolscout.lab.judge import table as rows_of

    pairs = _pairs(what, inputs, count, seed, find_root(data))
    chosen = aspects or (ANSWER_ASPECTS if what == "answers" else QUERY_ASPECTS)
    said = _people(Path(people), pairs) if people else {}
    settings = load_llm_settings(ctx, place)
    with progress(f"judging {len(pairs):,} pairs") as say, open_llm(settings, **limits) as llm:
        outcomes: list[Outcome] = judge(llm, pairs, chosen, say=say)
        print_cost(llm, dry_run=limits["dry_run"])
    if limits["dry_run"]:
        return
    if out:
        Path(out).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in outcomes))
    result: dict[str, Any] = {"pairs": rows_of(outcomes)}
    if what == "answers":
        result["elo"] = {
            aspect: {
                name: rating._asdict()
                for name, rating in elo(
                    matches([each for each in outcomes if each.aspect == aspect]), seed=seed
                ).items()
            }
            for aspect in chosen
        }
    if people:
        result["people"] = agreement(outcomes, said)
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    names = ("aspect", "a", "b", "win", "tie", "loss", "unjudged")
    table(
        [(name, "left" if name in ("aspect", "a", "b") else "right") for name in names],
        [[row[name] for name in names] for row in result["pairs"]],
    )
    for aspect, ratings in result.get("elo", {}).items():
        for name, rating in sorted(ratings.items(), key=lambda item: -item[1]["mean"]):
            click.echo(f"Elo, {aspect}: {name} {rating['mean']:.0f} ({rating['low']:.0f} … {rating['high']:.0f})")
    if held := result.get("people"):
        click.echo(f"people: {held['n']:,} pairs, agreement {held['agreement']}, kappa {held['kappa']}")


def _pairs(what: str, inputs: Sequence[str], count: int, seed: int, root: Path | None) -> list[Any]:
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.judge import Pair
    from toolscout.lab.synth import chance

    source = chance("judge", seed)
    if what == "queries":
        if len(inputs) != 2:
            raise click.UsageError(f"judge queries: expected two datasets, found {len(inputs)}")
        one, other = (load_dataset(name, root) for name in inputs)
        drawn = [source.choices(sorted(each.queries), k=count) for each in (one, other)]
        return [
            Pair(f"{a}|{b}", one.name, other.name, one.queries[a], other.queries[b])
            for a, b in zip(*drawn, strict=True)
        ]
    if what == "polish":
        if len(inputs) != 1:
            raise click.UsageError(f"judge polish: expected one dataset, found {len(inputs)}")
        dataset = load_dataset(inputs[0], root)
        raw = {id: (meta.get("steps") or {}).get("raw") for id, meta in dataset.query_meta.items()}
        changed = sorted(id for id, text in raw.items() if text and text != dataset.queries[id])
        if not changed:
            raise SourceError(f"{inputs[0]}: expected queries that were polished, found none")
        chosen = source.sample(changed, min(count, len(changed)))
        return [Pair(id, "polished", "raw", dataset.queries[id], str(raw[id])) for id in chosen]
    systems: dict[str, dict[str, dict[str, Any]]] = {}
    for each in inputs:
        name, equals, file = each.partition("=")
        if not equals:
            raise click.UsageError(f"judge answers: expected NAME=FILE, found {each}")
        systems[name] = {row["id"]: row for row in _lines(Path(file), "id", "request", "answer")}
    if len(systems) < 2:
        raise click.UsageError("judge answers: expected two systems or more, found one")
    return [
        Pair(id, a, b, systems[a][id]["answer"], systems[b][id]["answer"], systems[a][id]["request"])
        for a, b in itertools.combinations(systems, 2)
        for id in systems[a]
        if id in systems[b]
    ]


def _people(file: Path, pairs: Sequence[Any]) -> dict[tuple[str, str, str, str], Any]:
    """(id, aspect, a, b) → what people said of `a`. Where there is one pair of systems only, a and b may be left out.

    Raises:
        SourceError: naming file and line.
    """
    known = list(dict.fromkeys((each.a, each.b) for each in pairs))
    found: dict[tuple[str, str, str, str], Any] = {}
    for number, row in enumerate(_lines(file, "id", "aspect", "result", maybe=("a", "b")), 1):
        a, b = known[0] if len(known) == 1 and "a" not in row and "b" not in row else (row.get("a"), row.get("b"))
        if (a, b) not in known and (b, a) not in known:
            told = ", ".join(f"{one} and {other}" for one, other in known)
            raise SourceError(
                f"{file}, line {number}: expected as a and b two systems that are compared ({told}), found {a} and {b}"
            )
        result = "loss" if row["result"] == "lose" else row["result"]
        if result not in TURNED:
            raise SourceError(f"{file}, line {number}: expected the result win, tie or loss, found {row['result']!r}")
        if (a, b) not in known:
            a, b, result = b, a, TURNED[result]
        found[row["id"], row["aspect"], str(a), str(b)] = result
    return found


def _lines(file: Path, *keys: str, maybe: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Objects with these keys, and `maybe` with those, all text.

    Raises:
        SourceError: naming file and line.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise SourceError(f"{file}: expected a readable file, found: {error.strerror}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
            rows.append({key: str(row[key]) for key in (*keys, *(key for key in maybe if key in row))})
        except (msgspec.MsgspecError, KeyError):
            raise SourceError(f"{file}, line {number}: expected an object with {', '.join(keys)}") from None
    return rows
