"""Measures the HTTP service under load: queries per second, latency, errors, and growth of memory.

The service runs on one core with its journal, over 13,685 real tools. This program searches from the other core. Each
connection stays open and sends a request as soon as the last one was answered.

The rates are compared with MiniLM on PyTorch, which encodes one query at a time in one thread on the core of the
service, before and after. The report also has the processor time of a query, which stays comparable on a busy machine.

    python benchmarks/load.py                        5 minutes of single searches, 1 of batches of 16
    python benchmarks/load.py --beside "toolscout learn --dry-run"       a further round while that command runs again
                                                                         and again; searches and calls before it give
                                                                         it something to learn from

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

from toolscout_lab.machine import provenance

ROOT = Path(__file__).parent
SERVICE_CORE, LOAD_CORE = 0, 1
SETS = ("livemcpbench", "bfcl", "metatool", "ultratool", "toolbench")
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
MINILM = """
import json, sys, time
import torch
torch.set_num_threads(1)
from toolscout import encoders
from toolscout.settings import load_settings
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


def read_queries(data: Path, count: int = 2_000) -> list[str]:
    """Read real queries of several datasets, about `count`."""
    texts: list[str] = []
    for name in SETS:
        lines = (data / name / "queries.jsonl").read_text().splitlines()
        step = max(1, len(lines) * len(SETS) // count)
        texts += [json.loads(line)["text"] for line in lines[::step]]
    return texts


def load(port: int, texts: Sequence[str], *, seconds: float, connections: int, batch: int = 1) -> dict[str, Any]:
    """Send searches over several connections for some time.

    Args:
        port: port of the service on this machine.
        texts: the queries; after the last, the first follows again.
        seconds: duration.
        connections: number of connections that search at once.
        batch: queries per request; 1: single searches.

    Returns:
        Rates, quantiles of the latency in ms, and `errors`, the number of answers whose status was not 200.
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
                queries = [texts[(at + offset) % len(texts)] for offset in range(batch)]
                at += batch
                body = json.dumps({"query": queries[0]} if batch == 1 else {"queries": queries})
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
    all_times = sorted(value for connection_times in times for value in connection_times)
    cuts = statistics.quantiles(all_times, n=100) if len(all_times) > 1 else [0.0] * 99
    return {
        "connections": connections,
        "batch": batch,
        "seconds": took,
        "requests": len(all_times),
        "queries_per_second": len(all_times) * batch / took,
        "p50_ms": cuts[49],
        "p95_ms": cuts[94],
        "p99_ms": cuts[98],
        "p99_over_p50": cuts[98] / cuts[49] if cuts[49] else None,
        "max_ms": all_times[-1] if all_times else None,
        "errors": len(errors),
        "first_errors": errors[:3],
    }


def teach(port: int, texts: Sequence[str]) -> int:
    """Search each text and report a call of the first tool, as evidence for `learn`; return the number of calls."""
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
            for result in post(connection, "/v1/search/batch", batch)["results"]:
                for hit in result["hits"]:
                    post(connection, "/v1/calls", {"tool": hit["id"], "ok": True, "search_id": result["search_id"]})
                    called += 1
    return called


class Beside:
    """Runs a command again and again on both cores until it is stopped; records the exit codes."""

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
    """Return the processor time of a process in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def start_on_core(core: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command on one core, in one thread."""
    pinned = (lambda: os.sched_setaffinity(0, {core})) if (os.cpu_count() or 1) > 1 else None
    return subprocess.Popen(command, preexec_fn=pinned, text=True, env={**os.environ, **ALONE}, **options)


def measure_minilm(texts: Sequence[str], seconds: float) -> tuple[float, float]:
    """Encode queries with MiniLM on PyTorch, one at a time, on the core of the service.

    Returns:
        Queries per second, and the processor time of one in ms.
    """
    process = start_on_core(SERVICE_CORE, [sys.executable, "-c", MINILM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = process.communicate(json.dumps([texts, seconds]))
    rate, busy = map(float, output.split())
    return rate, busy


def start_service(home: str) -> tuple[subprocess.Popen[str], int]:
    """Start the service; return its process and its port."""
    command = [sys.executable, "-m", "toolscout", "--home", home, "serve", "--port", "0"]
    service = start_on_core(SERVICE_CORE, command, stderr=subprocess.PIPE)
    assert service.stderr is not None
    for line in service.stderr:
        if address := re.search(r"http://[\d.]+:(\d+)/", line):
            return service, int(address[1])
    sys.exit("The service did not start.")


def load_and_watch(service: subprocess.Popen[str], port: int, texts: Sequence[str], **options: Any) -> dict[str, Any]:
    """Run a round of load; add the processor time of a query, and the growth of memory after the first fifth."""
    resident: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(max(0.1, options["seconds"] / 50)):
            resident.append(resident_mb(service.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    before = busy_seconds(service.pid)
    figures = load(port, texts, **options)
    busy = 1000 * (busy_seconds(service.pid) - before) / max(1, figures["requests"] * figures["batch"])
    stop.set()
    watching.join()
    early, late = resident[len(resident) // 5], max(resident[-5:])
    return figures | {"cpu_ms_per_query": busy, "rss_mb": late, "rss_growth_percent": 100 * (late / early - 1)}


def main() -> dict[str, Any]:
    read = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    read.add_argument("--seconds", type=float, default=300)
    read.add_argument("--connections", type=int, default=8)
    read.add_argument("--beside", help="a command to run beside a further round")
    read.add_argument("--out", type=Path, default=ROOT / "results" / "load.json")
    options = read.parse_args()
    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("Set TOOLSCOUT_DATA to the folder of the datasets."))
    texts = read_queries(data)
    short = max(2.0, options.seconds / 5)
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {LOAD_CORE})
    before = measure_minilm(texts, min(20.0, short))
    with tempfile.TemporaryDirectory() as home:
        add = [sys.executable, "-m", "toolscout", "--home", home, "add", str(data / "tool_corpora/toucan")]
        subprocess.run(add, check=True, capture_output=True)
        service, port = start_service(home)
        try:
            load(port, texts, seconds=min(10.0, short), connections=options.connections)  # warm
            single = load_and_watch(service, port, texts, seconds=options.seconds, connections=options.connections)
            batches = load_and_watch(service, port, texts, seconds=short, connections=2, batch=16)
            beside: dict[str, Any] = {}
            if options.beside:
                taught = teach(port, texts)
                other = Beside(options.beside, home)
                beside = load_and_watch(service, port, texts, seconds=short, connections=options.connections)
                beside |= {"examples": taught} | other.stop()
                if any(beside["ended"]) or beside["longest_seconds"] < min(2.0, short / 2):
                    sys.exit(f"The command beside the load failed or ended too soon: {beside}")
        finally:
            service.terminate()
            service.communicate()
    after = measure_minilm(texts, min(20.0, short))
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
