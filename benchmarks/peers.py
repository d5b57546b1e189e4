"""Measures other tool retrievers beside `scout`: the same catalogues, the same requests, one run.

The 14 sets with at most 100 test requests each (a fixed draw); joined requests of four of them (`joining.py`, test, 2
to 4 parts); and `suites/joined_by_hand.jsonl` (test) over the tools of `languages_dev`. Every peer is installed from
PyPI into an environment of its own (`suites/peers/<peer>.txt`) and run by `suites/peers/run_peer.py`, one request at a
time, on one thread. Text encoders that a peer takes over an endpoint come from `suites/peers/serve_encoder.py`.

    python benchmarks/peers.py [--data DIR] [--only PEER] [--sets NAME…]

What is finished is kept in the scratch folder, so that an interrupted run goes on; `--fresh` starts anew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from joined import SUITES, read_servers, read_suite
from joining import SETS as JOINED_SETS
from joining import build_joined

from toolscout import metrics
from toolscout.checks.results import TRAINED, UNTRAINED
from toolscout.dataset import Dataset
from toolscout.errors import UserError
from toolscout.sources.folder import read_tools
from toolscout.types import Tool, render
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance, refuse_dirty

ROOT = Path(__file__).parent.parent
FOLDER = SUITES / "peers"
PEERS = ("toolscout", "bm25s", "fastmcp", "graph-tool-call", "sentence-transformers", "langgraph-bigtool", "callbus")
MAX_REQUESTS = 100
JOINED_PER_SET = 60
BY_HAND = "joined_by_hand"
PORT = 8095
MEASURES = ("ndcg@5", "comp@5", "comp@10")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
START_S = 120.0

Gold = dict[str, dict[str, float]]


# --- corpora and requests ---------------------------------------------------------------------------------------------


def describe_tools(tools: Sequence[Tool], **common: str) -> list[dict[str, Any]]:
    """Return tools as the peers read them. Names are unique, with the server in front, as gateways make them."""
    rows, names = [], set()
    for tool in tools:
        server = tool.path[-1] if tool.path else ""
        name = re.sub(r"[^\w.-]+", "_", f"{server}_{tool.name}" if server else tool.name) or "tool"
        while name in names:
            name += "_"
        names.add(name)
        parameters = dict(tool.parameters or {})
        rows.append(
            {
                "id": tool.id.partition("/")[2],
                "name": name,
                "bare_name": tool.name or name,
                "server": server or "tools",
                "description": tool.description,
                "parameters": {"type": "object", **parameters},
                "text": render(tool, "raw"),
                **common,
            }
        )
    return rows


def draw_requests(dataset: Dataset) -> tuple[dict[str, str], Gold]:
    """Return the texts and gold tools of a fixed draw of test requests."""
    qrels, texts = dataset.split("test"), dataset.texts("test")
    chosen = random.Random(f"0 {dataset.name}").sample(sorted(qrels), min(MAX_REQUESTS, len(qrels)))
    return {query: texts[query] for query in chosen}, {query: dict(qrels[query]) for query in chosen}


def join_requests(dataset: Dataset) -> tuple[dict[str, str], Gold]:
    """Return the texts and gold tools of joined requests."""
    qrels = dataset.split("test")
    texts, gold = {}, {}
    for number, request in enumerate(build_joined(dataset, "test", JOINED_PER_SET)):
        texts[f"joined/{number}"] = request.text
        gold[f"joined/{number}"] = {tool: 1.0 for part in request.parts for tool in qrels[part]}
    return texts, gold


def write_corpora(root: Path, scratch: Path, names: Sequence[str]) -> dict[str, Gold]:
    """Write the file of each set, and return the gold tools of each."""
    folder = scratch / "corpora"
    folder.mkdir(parents=True, exist_ok=True)
    home, gold = str(scratch / "home"), {}
    for name in names:
        if name == BY_HAND:
            tools = [msgspec.structs.replace(tool, id=f"d/{tool.id}") for tool in read_servers(root, "languages_dev")]
            lines = [line for line in read_suite(BY_HAND) if line["split"] == "test"]
            rows = describe_tools(tools, folder=str(root / "tool_corpora" / "toucan"))
            texts = {f"joined/{number}": line["text"] for number, line in enumerate(lines)}
            steps = {f"joined/{number}": [step["gold"] for step in line["steps"]] for number, line in enumerate(lines)}
            gold[name] = {query: {tools[0]: 1.0 for tools in needs} for query, needs in steps.items()}
            same = {query: {tool: tools[0] for tools in needs for tool in tools} for query, needs in steps.items()}
        else:
            dataset = load_dataset(name, root)
            rows = describe_tools(read_tools(dataset.folder, "d").tools, folder=str(dataset.folder))
            texts, gold[name] = draw_requests(dataset)
            if name in JOINED_SETS:
                more_texts, more_gold = join_requests(dataset)
                texts, gold[name] = texts | more_texts, gold[name] | more_gold
        corpus = {
            "tools": [row | {"home": home} for row in rows],
            "requests": [{"id": query, "text": text} for query, text in texts.items()],
            "same": same if name == BY_HAND else {},
        }
        (folder / f"{name.replace('/', '~')}.json").write_text(json.dumps(corpus), encoding="utf-8")
    return gold


# --- running ----------------------------------------------------------------------------------------------------------


def make_environment(peer: str, scratch: Path) -> tuple[str, list[str]]:
    """Return the Python of a peer's environment, made if it is missing, and what is installed in it."""
    if peer == "toolscout":
        python = sys.executable
    else:
        folder, wanted = scratch / "environments" / peer, (FOLDER / f"{peer}.txt").read_text(encoding="utf-8")
        python, stamp = str(folder / "bin" / "python"), folder / "installed.txt"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            install = [python, "-m", "pip", "install", "--quiet", "-r", str(FOLDER / f"{peer}.txt")]
            subprocess.run(install, check=True)
            stamp.write_text(wanted, encoding="utf-8")
    listed = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    return python, [line for line in listed.splitlines() if "==" in line]


def run_peer(peer: str, scratch: Path) -> dict[str, Any]:
    """Run a peer over all corpora; return its versions and the wall seconds, or why it could not run."""
    started = time.perf_counter()
    try:
        python, installed = make_environment(peer, scratch)
    except subprocess.CalledProcessError as error:
        return {"failed": f"could not be installed: {error}"}
    words = [python, str(FOLDER / "run_peer.py"), peer, str(scratch / "corpora"), str(scratch / "runs" / peer)]
    environment = os.environ | ONE_THREAD
    if peer == "toolscout":
        paths = [ROOT / "src", ROOT / "packages" / "compact" / "src"]
        environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    else:
        environment.pop("PYTHONPATH", None)
    with serve_encoders(scratch) if peer == "callbus" else nothing_served() as url:
        done = subprocess.run([*words, "--endpoint", url], env=environment)
    outcome: dict[str, Any] = {"seconds": round(time.perf_counter() - started), "load": os.getloadavg()[0]}
    wanted = {line.partition("==")[0] for line in read_requirements(peer)}
    outcome["versions"] = sorted(line for line in installed if line.partition("==")[0] in wanted)
    return outcome | ({"failed": f"exit code {done.returncode}"} if done.returncode else {})


def read_requirements(peer: str) -> list[str]:
    """Return the pinned packages of a peer."""
    file = FOLDER / f"{peer}.txt"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


@contextmanager
def nothing_served() -> Iterator[str]:
    """Serve no endpoint."""
    yield ""


@contextmanager
def serve_encoders(scratch: Path) -> Iterator[str]:
    """Serve the encoders of toolscout while the block runs; gives the address."""
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "packages" / "compact" / "src")))
    words = [sys.executable, str(FOLDER / "serve_encoder.py"), "--port", str(PORT)]
    process = subprocess.Popen(words, env=os.environ | ONE_THREAD | {"PYTHONPATH": paths})
    url = f"http://127.0.0.1:{PORT}/v1"
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/models", timeout=5).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


# --- scoring ----------------------------------------------------------------------------------------------------------


def score_requests(ranked: Mapping[str, Sequence[str]], gold: Gold) -> dict[str, Any]:
    """Return the figures of some requests, in percent, with 95 % intervals."""
    values = metrics.score(ranked, gold, MEASURES)
    return {
        "n": len(gold),
        **{name: round(100 * mean, 1) for name, mean in values.means().items()},
        "ci95": {name: [round(100 * end, 1) for end in ends] for name, ends in values.ci95().items()},
    }


def merge_same(tools: Sequence[str], same: Mapping[str, str]) -> list[str]:
    """Return a ranking in which tools that serve a step equally well are one, at the place of the first."""
    return list(dict.fromkeys(same.get(tool, tool) for tool in tools))


def read_runs(scratch: Path, peer: str, gold: Mapping[str, Gold]) -> dict[str, Any]:
    """Return variant → set → figures of the finished sets of a peer. Joined requests are a set of their own."""
    figures: dict[str, Any] = {}
    for name, needs in gold.items():
        file = scratch / "runs" / peer / f"{name.replace('/', '~')}.json"
        if not file.exists():
            continue
        corpus = json.loads((scratch / "corpora" / file.name).read_text(encoding="utf-8"))
        for variant, run in json.loads(file.read_text(encoding="utf-8")).items():
            sets = figures.setdefault(variant, {})
            for label in ("", "joined/"):
                some = {q: tools for q, tools in needs.items() if q.startswith("joined/") == bool(label)}
                if some:
                    ranked = {query: merge_same(run["ranked"][query], corpus["same"].get(query, {})) for query in some}
                    sets[label + name] = score_requests(ranked, some)
            medians = {
                name: round(statistics.median(run[times]), 2)
                for name, times in (("p50_ms", "ms"), ("processor_p50_ms", "processor_ms"))
                if times in run  # an older run has no processor times
            }
            sets.setdefault(name, {}).update({**medians, "index_s": run["index_s"], "peak_mb": run["peak_mb"]})
    return figures


def main() -> None:
    """Run the peers, print a line for each, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--scratch", type=Path, default=Path("~/.cache/toolscout-bench/peers").expanduser())
    parser.add_argument("--only", action="append", choices=PEERS, help="these peers alone")
    parser.add_argument("--sets", nargs="+", default=[*TRAINED, *UNTRAINED, BY_HAND])
    parser.add_argument("--fresh", action="store_true", help="measure again what is finished too")
    parser.add_argument("--allow-dirty", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "peers.json")
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    try:
        refuse_dirty(options.out, allow=options.allow_dirty)
    except UserError as error:
        sys.exit(str(error))
    if options.fresh:
        shutil.rmtree(options.scratch / "runs", ignore_errors=True)
    shutil.rmtree(options.scratch / "corpora", ignore_errors=True)
    gold = write_corpora(Path(options.data), options.scratch, options.sets)
    result: dict[str, Any] = {"max_requests": MAX_REQUESTS, "peers": {}, "runs": {}, **provenance()}
    if options.only and options.out.exists():  # the other peers keep their figures
        earlier = json.loads(options.out.read_text(encoding="utf-8"))
        result |= {"peers": earlier["peers"], "runs": earlier["runs"]}
    for peer in options.only or PEERS:
        outcome = {**run_peer(peer, options.scratch), "commit": result["commit"]}
        result["runs"][peer] = outcome
        figures = read_runs(options.scratch, peer, gold)
        result["peers"] |= figures
        for variant, sets in figures.items():
            mean = statistics.fmean(figures["ndcg@5"] for figures in sets.values() if "ndcg@5" in figures)
            click.echo(f"{variant}: NDCG@5 {mean:.1f} over {len(sets)} sets; {outcome}", err=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
