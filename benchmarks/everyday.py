"""Counts the requests of `suites/everyday.jsonl` that `scout` answers rightly and completely, judged by hand.

The catalogue is built at run time as a user would have it, each server a source of its own: the servers of
`suites/languages_dev` (toucan) and of livemcpbench, four OpenAPI documents, and pandas.

`suites/everyday_judgements.json` holds what a person judged: for each request its rubric as a rule over roles, and the
role that each tool seen so far plays (an empty role: of no use for this request). A count reads only ranks that a rule
speaks of. Where one of them has a tool without judgement, the request is open: it is printed, and counts as wrong.

    python benchmarks/everyday.py --show       prints each answer and what the rule says of it
    python benchmarks/everyday.py              counts, and writes results/everyday.json if no request is open

Four ways are counted: `installed`; `unlimited`, where the setting `false_rejects` is 0 and nothing is turned away; and
both with the encoder of the package `toolscout-compact`. Each pair differs by what abstention costs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from toolscout.checks.results import write_json
from toolscout.scout import Scout
from toolscout.types import Search
from toolscout_lab.machine import provenance

BENCHMARKS: Final = Path(__file__).resolve().parent
SUITE: Final = BENCHMARKS / "suites" / "everyday.jsonl"
JUDGEMENTS: Final = BENCHMARKS / "suites" / "everyday_judgements.json"
RESULTS: Final = BENCHMARKS / "results" / "everyday.json"
SPECS: Final = ("github_subset", "k8s_core_v1", "tmdb_oas", "spotify_oas")
PANDAS: Final = ("py:pandas", "py:pandas:DataFrame")
MAX_HITS: Final = 10
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "installed": {"encoder": "static"},
    "unlimited": {"encoder": "static", "false_rejects": 0.0},
    "compact": {"encoder": "compact"},
    "compact_unlimited": {"encoder": "compact", "false_rejects": 0.0},
}


def write_servers(data: Path, folder: Path) -> list[Path]:
    """Write each server of toucan and livemcpbench as a folder of its own. Returns the folders."""
    chosen = set((BENCHMARKS / "suites" / "languages_dev" / "tools.txt").read_text(encoding="utf-8").split())
    servers: dict[str, list[str]] = {}
    for corpus, wanted in ((data / "tool_corpora" / "toucan", chosen), (data / "livemcpbench", None)):
        for line in (corpus / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            server, _, name = entry["_id"].partition("/")
            if wanted is None or entry["_id"] in wanted:
                servers.setdefault(server, []).append(json.dumps({**entry, "_id": name}))
    for server, lines in servers.items():
        (folder / server).mkdir()
        (folder / server / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [folder / server for server in servers]


def fill_catalogue(scout: Scout, data: Path, folder: Path) -> None:
    """Add every source of the catalogue."""
    for server in write_servers(data, folder):
        scout.add(server, name=server.name)
    for spec in SPECS:
        scout.add(data / "openapi" / "specs" / f"{spec}.json", name=spec)
    for package in PANDAS:
        scout.add(package)


def read_roles(tool_id: str, judged: Mapping[str, str]) -> set[str]:
    """Return the roles of a tool. Several are separated by blanks, and a missing judgement has none."""
    return set(judged.get(tool_id, "").split())


def list_open_tools(answer: Search, rule: Mapping[str, Any], judged: Mapping[str, str]) -> list[str]:
    """Return the tools without judgement among the ranks that the rule reads."""
    if "answer" in rule:
        return []
    ranks = [rank for name in ("needs", "fills", "outside") for rank in rule.get(name, {}).values()]
    return [tool_id for tool_id in answer.ids[: max(ranks)] if tool_id not in judged]


def find_faults(answer: Search, rule: Mapping[str, Any], judged: Mapping[str, str]) -> list[str]:
    """Return what keeps an answer from being right and complete; nothing if it is both.

    Args:
        answer: the answer.
        rule: `needs` (role, first ranks: one of the tools there plays it; `a|b`: either role), `fills` (all of the
            first ranks play it), `outside` (none of the first ranks plays it), `never_above` (pairs of roles: no tool
            of the first stands above the best tool of the second), `or_uncovered` (roles that may be missing if the
            answer names an uncovered step), `steps_served` (so many steps, none of them uncovered),
            `answer` (this and no other).
        judged: the roles of the tools.
    """
    roles = [read_roles(tool_id, judged) for tool_id in answer.ids]
    if wanted := rule.get("answer"):
        return [] if answer.kind == wanted else [f"{answer.kind} instead of {wanted}"]
    faults = []
    for need, rank in rule.get("needs", {}).items():
        missing = not any(set(need.split("|")) & some for some in roles[:rank])
        if missing and not (need in rule.get("or_uncovered", ()) and answer.uncovered):
            faults.append(f"no {need} in the first {rank}")
    for need, rank in rule.get("fills", {}).items():
        if len(roles) < rank or not all(need in some for some in roles[:rank]):
            faults.append(f"not only {need} in the first {rank}")
    for harm, rank in rule.get("outside", {}).items():
        faults += [f"{harm} in the first {rank}"] if any(harm in some for some in roles[:rank]) else []
    for harm, need in rule.get("never_above", ()):
        first = {role: next((rank for rank, some in enumerate(roles) if role in some), len(roles))
                 for role in (harm, need)}  # fmt: skip
        faults += [f"{harm} above {need}"] if first[harm] < first[need] else []
    served = rule.get("steps_served")
    if served and (len(answer.steps) < served or answer.uncovered):
        faults.append(f"{len(answer.steps)} steps, {len(answer.uncovered)} uncovered, where {served} are served")
    return faults


def describe_answer(answer: Search, judged: Mapping[str, str]) -> Iterable[str]:
    """Yield the lines that a judge reads."""
    yield f"  answer {answer.kind}, coverage {answer.coverage}, need {answer.need}, {answer.reason or ''}"
    if answer.steps:
        yield f"  steps {list(answer.steps)}, uncovered {list(answer.uncovered)}"
    for rank, hit in enumerate(answer.hits, 1):
        text = " ".join(hit.tool.description.split()) if hit.tool else ""
        similar = f" (+{len(hit.similar)})" if hit.similar else ""
        role = judged.get(hit.id, "?") or "-"
        yield f"  {rank:2} [{role}] {hit.id}{similar} {hit.role if hit.role != 'match' else ''} | {text[:110]}"


def count_right(
    requests: Sequence[Mapping[str, str]], answers: Sequence[Search], judgements: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the counts, the faults of each wrong request, and the tools that still need a judgement."""
    wrong: dict[str, list[str]] = {}
    unjudged: dict[str, list[str]] = {}
    for request, answer in zip(requests, answers, strict=True):
        entry = judgements[request["_id"]]
        tools = list_open_tools(answer, entry["rule"], entry["tools"])
        if tools:
            unjudged[request["_id"]] = tools
        elif faults := find_faults(answer, entry["rule"], entry["tools"]):
            wrong[request["_id"]] = faults
    figures: dict[str, Any] = {}
    for kind in ("single", "compound"):
        ids = [request["_id"] for request in requests if request["kind"] == kind]
        right = [one for one in ids if one not in wrong and one not in unjudged]
        figures[kind] = {"n": len(ids), "right": len(right)}
    total = sum(part["right"] for part in figures.values())
    return {"n": len(requests), "right": total, **figures, "wrong": wrong, "open": unjudged}


def show_answers(
    way: str,
    requests: Sequence[Mapping[str, str]],
    answers: Sequence[Search],
    judgements: Mapping[str, Any],
    *,
    every: bool,
) -> None:
    """Print the answers that a person has to judge, or every answer."""
    for request, answer in zip(requests, answers, strict=True):
        entry = judgements[request["_id"]]
        unjudged = list_open_tools(answer, entry["rule"], entry["tools"])
        if not unjudged and not every:
            continue
        verdict = "open" if unjudged else find_faults(answer, entry["rule"], entry["tools"]) or "right"
        click.echo(f"\n{way}: {request['_id']} {request['text']}\n  rubric: {request['rubric']}\n  verdict: {verdict}")
        click.echo("\n".join(describe_answer(answer, entry["tools"])))


def main() -> None:
    """Search, count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--show", action="store_true", help="print every answer for judging, and write nothing")
    parser.add_argument("--home", type=Path, help="keep the catalogue here [default: a temporary folder]")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    requests = [json.loads(line) for line in SUITE.read_text(encoding="utf-8").splitlines()]
    judgements = json.loads(JUDGEMENTS.read_text(encoding="utf-8"))
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder) / "home"
        for way in options.ways:
            with Scout(home, journal=False, **WAYS[way]) as scout:
                if not scout.sources():
                    (Path(folder) / "servers").mkdir()
                    fill_catalogue(scout, Path(options.data), Path(folder) / "servers")
                scout.embed()
                answers = scout.search_many([request["text"] for request in requests], MAX_HITS)
                counted = sum(source.tools for source in scout.sources())
            figures[way] = count_right(requests, answers, judgements)
            show_answers(way, requests, answers, judgements, every=options.show)
    unjudged = {tool for counts in figures.values() for tools in counts["open"].values() for tool in tools}
    for way, counts in figures.items():
        click.echo(f"{way}: {json.dumps({key: counts[key] for key in ('right', 'n', 'single', 'compound', 'wrong')})}")
    click.echo(f"{len(unjudged)} tools without judgement; {counted} tools")
    if not options.show and not unjudged:
        command = "python benchmarks/everyday.py"
        write_json(options.out, {"command": command, "tools": counted, **figures, **provenance()})


if __name__ == "__main__":
    main()
