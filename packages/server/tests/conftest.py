"""A service in this process, over the toy tools, with and without callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import traffic
from homes_in_postgres import copy_home, name_home
from server.tests.program import Program
from toolscout.learn.loop import learn
from toolscout.scout import Scout
from toolscout.trust.policy import Policies, hashed_key
from toolscout_server import Limits, Service, app

pytest.importorskip("starlette", reason="needs the extra `server`")
KEYS = {"ann": "tsk_of_ann", "bob": "tsk_of_bob", "eve": "tsk_of_eve"}
POLICY = "".join(
    f'[[caller]]\nname = "{name}"\nkey = "{hashed_key(KEYS[name])}"\n{rules}\n'
    for name, rules in {
        "ann": 'allow = ["**"]\noperator = true',
        "bob": 'allow = ["mail/**", "weather/**"]\ndeny = ["mail/send_email"]',
        "eve": "allow = []",
    }.items()
)


def as_caller(name: str) -> dict[str, str]:
    """The headers of a caller."""
    return {"authorization": f"Bearer {KEYS[name]}"}


Start = Callable[..., Any]


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return Policies.load(path)


@pytest.fixture
def start(toy: Scout) -> Iterator[Start]:
    """Opens a service over the toy tools, and a client at it."""
    from starlette.testclient import TestClient

    with ExitStack() as stack:

        def started(*, limits: Limits | None = None, scout: Scout | None = None, **options: Any) -> Any:
            service = Service(scout or toy, limits=limits, **options)
            client = TestClient(
                app(service, ["localhost", "127.0.0.1", "::1"]),
                base_url="http://localhost:8766",
                raise_server_exceptions=False,
            )
            opened: Any = stack.enter_context(client)
            opened.service = service
            return opened

        yield started


@pytest.fixture
def client(start: Start) -> Any:
    """A service without a policy."""
    return start()


@pytest.fixture
def guarded(start: Start, policies: Policies) -> Any:
    """A service with a policy."""
    return start(policies=policies)


TOOLS = [{"name": f"tool_{number}", "description": f"Does task number {number} of the list."} for number in range(300)]


@pytest.fixture(scope="session")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three hundred tools: do not change it, copy it."""
    home = tmp_path_factory.mktemp("listed") / "home"
    with Scout(home) as scout:
        scout.add(TOOLS, name="list")
        scout.embed()
    return home


@pytest.fixture
def home(listed: Path, tmp_path: Path) -> str:
    copy_home(listed, tmp_path / "h")
    return name_home(tmp_path / "h")


@pytest.fixture
def program(home: str) -> Iterator[Program]:
    running = Program(home)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture(scope="module")
def shared_program(listed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """One service for all tests that leave it running."""
    home = tmp_path_factory.mktemp("shared") / "h"
    copy_home(listed, home)
    running = Program(name_home(home))
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that has learned once: do not change it, copy it."""
    home = tmp_path_factory.mktemp("learned") / "home"
    with Scout(home, journal=False) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(200, 1), [f"c{number}" for number in range(10)])
        assert learn(scout, recipes=["neighbours"]).outcome == "promoted"
    return home


@pytest.fixture
def taught(learned: Path, tmp_path: Path) -> Iterator[Scout]:
    copy_home(learned, tmp_path / "taught")
    with Scout(tmp_path / "taught") as scout:
        yield scout
