"""Load on the HTTP service: requests a second beside what MiniLM on PyTorch allows, times, errors, growth of memory.

Beside the rates stands the processor time of a query: on a core of its own it says the same, on a busy machine it is
what can be compared.

The service runs on one core, journal on, over 13,685 real tools; this program asks from the other, over connections
that stay open, each asking again once it was answered. What MiniLM/PyTorch allows is measured on the service's core in
the same run, before and after: one query encoded at a time, one thread, nothing else.

    python benchmarks/load.py                        5 minutes of single searches, 1 of batches of 16
    python benchmarks/load.py --beside "toolscout learn --dry-run"       a further round beside that command, which is
                                                                         started again whenever it ends; before it,
                                                                         searches with calls that it can learn from

Prints JSON and writes it to benchmarks/results/load.json. Needs TOOLSCOUT_DATA, and two cores that nobody else uses.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolscout.lab.machine import provenance

ROOT = Path(__file__).parent
SERVICE_CORE, LOAD_CORE = 0, 1
SETS = ("livemcpbench", "bfcl", "metatool", "ultratool", "toolbench")
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
MINILM = """
import json, sys, time
import torch
torch.set_num_threads(1)
from toolscout import encoders
from toolscout.config import load_settings
encoder = encoders.load("minilm", load_settings())
texts, seconds = json.load(sys.stdin)
for text in texts[:20]:
    encoder.encode([text])
started, busy, done = time.perf_counter(), time.process_time(), 0
while time.perf_counter() - started < seconds:
    encoder.encode([texts[done % len(texts)]])
    done += 1
print(done / (time.perf_counter() - started), 1000 * (time.process_time() - busy) / done)
"""


def queries(data: Path, count: int = 2_000) -> list[str]:
    """Real requests, of several sets."""
    found: list[str] = []
    for name in SETS:
        lines = (data / name / "queries.jsonl").read_text().splitlines()
        step = max(1, len(lines) * len(SETS) // count)
        found += [json.loads(line)["text"] for line in lines[::step]]
    return found


def load(port: int, texts: Sequence[str], *, seconds: float, connections: int, batch: int = 1) -> dict[str, Any]:
    """Ask for `seconds` over so many connections. Times in ms; `errors` names what was no answer of status 200.

    Args:
        port: of the service, on this machine.
        texts: what to ask, again from the start at the end.
        seconds: how long.
        connections: how many ask at once.
        batch: queries a request; 1: single searches.
    """
    path = "/v1/search" if batch == 1 else "/v1/search/batch"
    end = time.perf_counter() + seconds
    times: list[list[float]] = [[] for _ in range(connections)]
    errors: list[str] = []

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        at = number * 97
        try:
            while time.perf_counter() < end:
                asked = [texts[(at + each) % len(texts)] for each in range(batch)]
                at += batch
                body = json.dumps({"query": asked[0]} if batch == 1 else {"queries": asked})
                started = time.perf_counter()
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
                times[number].append((time.perf_counter() - started) * 1000)
                if answer.status != 200:
                    errors.append(f"{answer.status}: {content[:200]!r}")
        except (OSError, http.client.HTTPException) as error:
            errors.append(f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    started = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    every = sorted(value for each in times for value in each)
    cuts = statistics.quantiles(every, n=100) if len(every) > 1 else [0.0] * 99
    return {
        "connections": connections,
        "batch": batch,
        "seconds": took,
        "requests": len(every),
        "queries_per_second": len(every) * batch / took,
        "p50_ms": cuts[49],
        "p95_ms": cuts[94],
        "p99_ms": cuts[98],
        "p99_over_p50": cuts[98] / cuts[49] if cuts[49] else None,
        "max_ms": every[-1] if every else None,
        "errors": len(errors),
        "first_errors": errors[:3],
    }


def teach(port: int, texts: Sequence[str]) -> int:
    """Search each text and call the first tool of the answer: something to learn from. Returns how many were called."""
    called = 0

    def post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return json.loads(content)

    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for start in range(0, len(texts), 64):
            batch = {"queries": texts[start : start + 64], "k": 1}
            for found in post(connection, "/v1/search/batch", batch)["results"]:
                for hit in found["hits"]:
                    post(connection, "/v1/calls", {"tool": hit["id"], "ok": True, "search_id": found["search_id"]})
                    called += 1
    return called


class Beside:
    """A command that runs again and again on both cores, until it is stopped; counts its ends and what they were."""

    def __init__(self, line: str, home: str) -> None:
        self.command, self.codes, self.seconds = shlex.split(line), list[int](), 0.0
        self.environment = {**os.environ, **ALONE, "TOOLSCOUT_HOME": home}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.perf_counter()
            other = subprocess.Popen(self.command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            os.sched_setaffinity(other.pid, {SERVICE_CORE, LOAD_CORE})
            while other.poll() is None and not self._stop.wait(0.05):
                pass
            if other.poll() is not None:
                self.codes.append(other.returncode)
                self.seconds = max(self.seconds, time.perf_counter() - started)
            else:
                other.terminate()
                self.seconds = max(self.seconds, time.perf_counter() - started)
            other.communicate()

    def stop(self) -> dict[str, Any]:
        self._stop.set()
        self._thread.join()
        return {"command": shlex.join(self.command), "ended": self.codes, "longest_seconds": round(self.seconds, 1)}


def busy_seconds(pid: int) -> float:
    """Processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory of a process that lies in RAM (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def on_core(core: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command that runs on one core alone, in one thread."""
    pinned = (lambda: os.sched_setaffinity(0, {core})) if (os.cpu_count() or 1) > 1 else None
    return subprocess.Popen(command, preexec_fn=pinned, text=True, env={**os.environ, **ALONE}, **options)


def minilm(texts: Sequence[str], seconds: float) -> tuple[float, float]:
    """Queries a second that all-MiniLM-L6-v2 on PyTorch encodes, one at a time, on the service's core; and the ms of
    processor time of one.
    """
    asked = on_core(SERVICE_CORE, [sys.executable, "-c", MINILM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    told, _ = asked.communicate(json.dumps([texts, seconds]))
    rate, busy = map(float, told.split())
    return rate, busy


def serve(home: str) -> tuple[subprocess.Popen[str], int]:
    """The service, and its port."""
    command = [sys.executable, "-m", "toolscout", "--home", home, "serve", "--port", "0"]
    service = on_core(SERVICE_CORE, command, stderr=subprocess.PIPE)
    assert service.stderr is not None
    for line in service.stderr:
        if found := re.search(r"http://[\d.]+:(\d+)/", line):
            return service, int(found[1])
    sys.exit("the service did not start")


def watched(service: subprocess.Popen[str], port: int, texts: Sequence[str], **options: Any) -> dict[str, Any]:
    """A round of load, what a query cost, and how the service's memory grew from the first fifth of it to the end."""
    seen: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(max(0.1, options["seconds"] / 50)):
            seen.append(resident_mb(service.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    before = busy_seconds(service.pid)
    found = load(port, texts, **options)
    busy = 1000 * (busy_seconds(service.pid) - before) / max(1, found["requests"] * found["batch"])
    stop.set()
    watching.join()
    early, late = seen[len(seen) // 5], max(seen[-5:])
    return found | {"cpu_ms_per_query": busy, "rss_mb": late, "rss_growth_percent": 100 * (late / early - 1)}


def main() -> dict[str, Any]:
    read = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    read.add_argument("--seconds", type=float, default=300)
    read.add_argument("--connections", type=int, default=8)
    read.add_argument("--beside", help="a command to run beside a further round")
    read.add_argument("--out", type=Path, default=ROOT / "results" / "load.json")
    options = read.parse_args()
    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("expected TOOLSCOUT_DATA to name the data folder"))
    texts = queries(data)
    short = max(2.0, options.seconds / 5)
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {LOAD_CORE})
    before = minilm(texts, min(20.0, short))
    with tempfile.TemporaryDirectory() as home:
        add = [sys.executable, "-m", "toolscout", "--home", home, "add", str(data / "tool_corpora/toucan")]
        subprocess.run(add, check=True, capture_output=True)
        service, port = serve(home)
        try:
            load(port, texts, seconds=min(10.0, short), connections=options.connections)  # warm
            single = watched(service, port, texts, seconds=options.seconds, connections=options.connections)
            batches = watched(service, port, texts, seconds=short, connections=2, batch=16)
            beside: dict[str, Any] = {}
            if options.beside:
                taught = teach(port, texts)
                other = Beside(options.beside, home)
                beside = watched(service, port, texts, seconds=short, connections=options.connections)
                beside |= {"examples": taught} | other.stop()
                if any(beside["ended"]) or beside["longest_seconds"] < min(2.0, short / 2):
                    sys.exit(f"the command beside the load did not run as it should: {beside}")
        finally:
            service.terminate()
            service.communicate()
    after = minilm(texts, min(20.0, short))
    allowed, cost = max(before[0], after[0]), min(before[1], after[1])
    report = {
        "minilm_per_second": {"before": before[0], "after": after[0]},
        "minilm_cpu_ms": {"before": before[1], "after": after[1]},
        "single": single,
        "batches_of_16": batches,
        "single_over_minilm": single["queries_per_second"] / allowed,
        "batches_over_minilm": batches["queries_per_second"] / allowed,
        "single_over_minilm_cpu": cost / single["cpu_ms_per_query"],
        "batches_over_minilm_cpu": cost / batches["cpu_ms_per_query"],
        "load_average": os.getloadavg()[0],
        **provenance(),
    }
    if beside:
        report |= {"beside": beside, "beside_share": beside["queries_per_second"] / single["queries_per_second"]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    return report


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(), indent=2) + "\n")
