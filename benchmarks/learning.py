"""Measures how much the search gains from its own traffic: training queries replayed by many callers, then `learn`.

One service (`toolscout serve`) runs all the time, and each caller has its own key. The queries of train and dev are cut
into parts. For each query of a part, a caller searches, then reports successful calls of the gold tools, whatever their
ranks. After each part `toolscout learn` runs beside the service.

The test queries are searched without a journal before the first part and after each, and a promoted model is compared
with its predecessor. In the end the service itself must give the same answers. A rollback must restore the former
answers exactly. With `--flood`, one caller then reports many false calls. Each seed draws order, parts and noise anew.

    python benchmarks/learning.py [--data toollens] [--parts 10] [--only 2] [--callers 50] [--flood 20000]
    python benchmarks/learning.py --in-process --noise 0.3 --parts 10 [--seeds 20] --out FILE

The second command is the noise test. It names the promotion that changed the figures on clean test queries most for
the worse.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import click
import httpx
import msgspec

from toolscout import metrics
from toolscout.dataset import Dataset
from toolscout.errors import NotFound, ToolscoutError
from toolscout.home.models import champion
from toolscout.learn.loop import learn
from toolscout.scout import Scout
from toolscout.trust.policy import hashed_key, new_key
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import peak_mb, provenance, reset_peak

SOURCE, BATCH, FLOOD = "tools", 64, "flood"
MEASURES = ("recall@5", "ndcg@5", "comp@5")
COMPARED = 500  # number of test queries whose answers over HTTP must equal those in process


class Transport(Protocol):
    """The way from the traffic to toolscout."""

    def search(self, queries: Sequence[str], caller: str) -> Sequence[tuple[str, list[str]]]:
        """Search a batch; return the id and the tools of each search."""

    def called(self, search_id: str, tool: str, caller: str) -> None:
        """Report a successful call of a tool."""

    def learn(self) -> dict[str, Any]:
        """Run `learn`; return its report."""


class InProcess:
    """Calls methods of a scout."""

    def __init__(self, scout: Scout) -> None:
        self.scout = scout

    def search(self, queries: Sequence[str], caller: str) -> list[tuple[str, list[str]]]:
        found = self.scout.search_many(queries, caller=caller)
        return [(each.search_id or "", list(each.ids)) for each in found]

    def called(self, search_id: str, tool: str, caller: str) -> None:
        self.scout.called(tool, ok=True, search_id=search_id, caller=caller)

    def learn(self) -> dict[str, Any]:
        reset_peak()
        report = learn(self.scout, say=lambda line: click.echo(f"  {line}", err=True))
        told: dict[str, Any] = msgspec.to_builtins(report)
        return {**told, "learn_wall_seconds": report.seconds, "peak_rss_mb": round(peak_mb(), 1)}


class OverHTTP:
    """Sends requests to a service in its own process, with a key for each caller, and runs the command `learn`."""

    def __init__(self, home: Path, callers: Sequence[str]) -> None:
        self.home = home
        self.keys = {caller: new_key() for caller in callers}
        lines = (
            f'[[caller]]\nname = "{name}"\nkey = "{hashed_key(key)}"\nallow = ["**"]\n'
            for name, key in self.keys.items()
        )
        policy = home / "policy.toml"
        policy.write_text("\n".join(lines))
        policy.chmod(0o600)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "toolscout", "--home", str(self.home), *words]

    def __enter__(self) -> Self:
        self.service = subprocess.Popen(
            self.command("serve", "--port", "0", "--rate", "0"), stderr=subprocess.PIPE, text=True
        )
        assert self.service.stderr is not None
        found = (re.search(r"http://[\d.]+:\d+", line) for line in self.service.stderr)
        address = next(filter(None, found), None)
        if address is None:
            raise ToolscoutError("The service did not start.")
        self.client = httpx.Client(base_url=address[0], timeout=60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.service.terminate()
        self.service.communicate()

    def post(self, path: str, body: Mapping[str, Any], caller: str) -> Any:
        answer = self.client.post(path, json=body, headers={"authorization": f"Bearer {self.keys[caller]}"})
        answer.raise_for_status()
        return answer.json()

    def search(self, queries: Sequence[str], caller: str) -> list[tuple[str, list[str]]]:
        found = self.post("/v1/search/batch", {"queries": list(queries)}, caller)["results"]
        return [(each["search_id"], [hit["id"] for hit in each["hits"]]) for each in found]

    def called(self, search_id: str, tool: str, caller: str) -> None:
        self.post("/v1/calls", {"tool": tool, "ok": True, "search_id": search_id}, caller)

    def learn(self) -> dict[str, Any]:
        started = time.perf_counter()
        done = subprocess.run(self.command("learn", "--json"), stdout=subprocess.PIPE, text=True, check=True)
        return {**json.loads(done.stdout), "learn_wall_seconds": round(time.perf_counter() - started, 1)}


def replay(
    through: Transport,
    texts: Mapping[str, str],
    gold: Mapping[str, Mapping[str, float]],
    queries: Sequence[str],
    callers: Sequence[str],
    wrong: Mapping[str, Sequence[str]],
) -> None:
    """Search each query, then report calls of its gold tools, or of its tools in `wrong`; the callers take turns."""
    size = max(1, min(BATCH, len(queries) // (4 * len(callers))))
    for turn, start in enumerate(range(0, len(queries), size)):
        batch, caller = queries[start : start + size], callers[turn % len(callers)]
        found = through.search([texts[query] for query in batch], caller)
        for query, (search, _) in zip(batch, found, strict=True):
            for tool in wrong.get(query) or gold[query]:
                through.called(search, f"{SOURCE}/{tool}", caller)


def search_all(scout: Scout, texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Search the queries with the champion; return ids of the dataset."""
    ids = list(texts)
    ranking: dict[str, list[str]] = {}
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        found = scout.search_many([texts[query] for query in some], 5)
        ranking |= {query: [id.partition("/")[2] for id in each.ids] for query, each in zip(some, found, strict=True)}
    return ranking


def compare_models(after: metrics.PerQuery, before: metrics.PerQuery) -> dict[str, dict[str, float]]:
    """Compare a promoted model with its predecessor on test."""
    tests = {name: metrics.paired_test(after.values[name], before.values[name]) for name in MEASURES}
    return {name: {"difference": round(each.difference, 5), "p": round(each.p, 5)} for name, each in tests.items()}


def find_worst(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Find for each measure the promotion with the lowest difference on test: seed, part, difference and p."""
    changes: dict[str, list[dict[str, Any]]] = {}
    for found in runs:
        for row in found["rows"]:
            for name, test in row.get("against_former", {}).items():
                changes.setdefault(name, []).append({"seed": found["seed"], "part": row["part"], **test})
    return {name: min(tests, key=lambda test: test["difference"]) for name, tests in changes.items()}


def select_figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Select the figures of a report of `learn` for a row of the result."""
    told = {name: report[name] for name in ("outcome", "candidate", "learn_wall_seconds", "reason")}
    if report["verdict"]:
        told |= {name: report["verdict"][name] for name in ("look", "level")}
    return {
        **told,
        "evidence": report["evidence"]["examples"],
        **{k: report[k] for k in ("peak_rss_mb",) if k in report},
    }


def run_parts(
    asked: Scout, dataset: Dataset, given: argparse.Namespace, seed: int, through: Transport
) -> Iterator[dict[str, Any]]:
    """Yield a row of figures before the first part and after each part."""
    rng = random.Random(seed)
    gold = {**dataset.split("train"), **(dataset.split("dev") if "dev" in dataset.qrels else {})}
    order = sorted(gold)
    rng.shuffle(order)
    tools = sorted({tool for needed in gold.values() for tool in needed})
    wrong = {query: [rng.choice(tools)] for query in order if rng.random() < given.noise}
    texts, qrels = dataset.texts("test"), dataset.split("test")
    yield {"part": 0, "queries": 0, **metrics.score(search_all(asked, texts), qrels, MEASURES).means()}
    size = -(-len(order) // given.parts)
    for part in range(min(given.parts, given.only or given.parts)):
        queries = order[part * size : (part + 1) * size]
        started = time.perf_counter()
        replay(through, dataset.queries, gold, queries, name_callers(given), wrong)
        took = round(time.perf_counter() - started, 1)
        still = metrics.score(search_all(asked, texts), qrels, MEASURES)
        report = through.learn()
        after = metrics.score(search_all(asked, texts), qrels, MEASURES)
        yield {
            "part": part + 1,
            "queries": min((part + 1) * size, len(order)),
            **after.means(),
            "replay_seconds": took,
            **select_figures(report),
            **({"against_former": compare_models(after, still)} if report["outcome"] == "promoted" else {}),
        }


def name_callers(given: argparse.Namespace) -> list[str]:
    """Return the names of the callers."""
    return [f"caller-{number}" for number in range(given.callers)]


def flood(scout: Scout, dataset: Dataset, given: argparse.Namespace, through: Transport) -> dict[str, Any]:
    """Report many false calls by one caller, then learn; nothing may be promoted."""
    rng, texts = random.Random(given.seed + 1), sorted(dataset.texts("train").values())
    queries = {f"f{number}": f"{rng.choice(texts)} {number}" for number in range(given.flood)}
    tool = min(dataset.corpus_ids())
    before = len(champion.history(scout.settings.home))
    replay(through, queries, {query: {tool: 1.0} for query in queries}, list(queries), [FLOOD], {})
    report = through.learn()
    return {
        "calls": given.flood,
        "promoted": len(champion.history(scout.settings.home)) > before,
        **select_figures(report),
    }


def serves_same_answers(asked: Scout, dataset: Dataset, through: Transport, caller: str) -> bool:
    """Return whether the transport answers test queries like the scout; these searches go to the journal."""
    texts = dict(list(dataset.texts("test").items())[:COMPARED])
    expected = search_all(asked, texts)
    for start in range(0, len(texts), BATCH):
        some = list(texts)[start : start + BATCH]
        found = through.search([texts[query] for query in some], caller)
        if any(
            [id.partition("/")[2] for id in ids[:5]] != expected[q] for q, (_, ids) in zip(some, found, strict=True)
        ):
            return False
    return True


def rollback_restores_answers(asked: Scout, dataset: Dataset) -> bool:
    """Promote the former champion, roll back, and return whether the answers are exactly restored."""
    home, texts = asked.settings.home, dataset.texts("test")
    before, held = search_all(asked, texts), champion.history(home)
    if len(held) < 2:
        raise NotFound("A rollback needs two promotions, and there were fewer. Give more --parts.")
    champion.promote(home, held[-2].model, "to take it back")
    other = search_all(asked, texts)
    champion.rollback(home)
    return bool(other != before and search_all(asked, texts) == before)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="toollens")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--only", type=int, help="so many of the parts")
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--noise", type=float, default=0.0, help="share of the queries that call a tool at random")
    parser.add_argument("--flood", type=int, default=0, help="false calls of one more caller at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    parser.add_argument("--in-process", action="store_true", help="method calls instead of HTTP: faster")
    parser.add_argument("--out", type=Path, help="where the result goes; by default it is only printed")
    return parser.parse_args(given)


def run_seed(dataset: Dataset, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run one seed in a new home: its traffic, its promotions, and the final checks."""
    with contextlib.ExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory()))
        scout, asked = held.enter_context(Scout(home)), held.enter_context(Scout(home, journal=False))
        scout.add(dataset.folder, name=SOURCE)
        through: InProcess | OverHTTP = InProcess(scout)
        if not given.in_process:
            through = held.enter_context(OverHTTP(home, [*name_callers(given), FLOOD]))
        rows = []
        for row in run_parts(asked, dataset, given, seed, through):
            rows.append(row)
            click.echo(json.dumps(row))
        promoted = champion.history(home)
        return {
            "seed": seed,
            "rows": rows,
            "served_the_same": serves_same_answers(
                asked, dataset, through, FLOOD if not given.in_process else "caller-0"
            ),
            "rollback_exact": rollback_restores_answers(asked, dataset) if len(promoted) > 1 else None,
            "flood": flood(scout, dataset, given, through) if given.flood else None,
        }


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Run all seeds; the file is written after each."""
    root = os.environ.get("TOOLSCOUT_DATA")
    dataset = load_dataset(given.data, Path(root) if root else None)
    started, found, origin = time.perf_counter(), [], provenance()
    for seed in range(given.seed, given.seed + given.seeds):
        found.append(run_seed(dataset, given, seed))
        click.echo(json.dumps({name: value for name, value in found[-1].items() if name != "rows"}))
        result = {
            "dataset": dataset.name,
            "transport": "in process" if given.in_process else "HTTP",
            "callers": given.callers,
            "parts": given.parts,
            "noise": given.noise,
            "only": given.only,
            "worst": find_worst(found),
            "runs": found,
            "seconds": round(time.perf_counter() - started, 1),
            **origin,
        }
        if given.out:
            given.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    run(arguments())
