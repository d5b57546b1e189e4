"""A server in a sandbox: a real one tries to read, to write and to connect, with and without."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.tests.conftest import SERVERS, Agent, open_agent
from tests_cli import run as run_cli
from toolscout.cli import doctor
from toolscout.errors import ConfigError, Unavailable
from toolscout.settings import Settings
from toolscout.sources import mcp
from toolscout.sources.sandbox import servers
from toolscout.sources.sandbox.bubblewrap import find_bubblewrap
from toolscout.sources.sandbox.servers import Sandbox, find_sandbox, read_sandboxes, wrap_command

pytestmark = pytest.mark.net
NOSY = str(SERVERS / "nosy.py")


def nosy(**changes: Any) -> dict[str, Any]:
    """An entry for the server of `tests/servers/nosy.py`."""
    return {"command": sys.executable, "args": [NOSY], **changes}


def write_file(folder: Path, text: str) -> Path:
    """Write the file of a home, and return the home."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "sandbox.toml").write_text(text)
    return home


@pytest.fixture
def bubblewrap() -> None:
    """Expects the test to fail on a system without, wherever skipping is forbidden too."""
    try:
        find_bubblewrap()
    except Unavailable as error:
        pytest.xfail(str(error))


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def outside() -> Iterator[Path]:
    """A file that is not there, in a folder that everybody may write."""
    path = Path("/var/tmp") / f"toolscout-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


async def try_all(agent: Agent, folder: Path, outside: Path, port: int) -> dict[str, str]:
    """Return what the server could do."""
    (folder / "data").mkdir(exist_ok=True)
    Path("/tmp/toolscout-outside.txt").write_text("outside")
    return {
        "writes": await agent.text("nosy/write", path=str(folder / "data" / "file")),
        "writes outside": await agent.text("nosy/write", path=str(outside)),
        "reads /tmp": await agent.text("nosy/read", path="/tmp/toolscout-outside.txt"),
        "reads the home": await agent.text("nosy/read", path=str(folder / "home")),
        "connects": await agent.text("nosy/connect", port=port),
        "reads the system": (await agent.text("nosy/read", path="/etc/passwd"))[:4],
        "has its variable": await agent.text("nosy/variable", name="NOSY_MODE"),
    }


def run_nosy(folder: Path, outside: Path, port: int) -> dict[str, str]:
    async def main() -> dict[str, str]:
        (folder / "data").mkdir(exist_ok=True)
        entries = {"nosy": nosy(env={"NOSY_MODE": "curious"})}
        async with open_agent(folder, entries, home=str(folder / "home")) as agent:
            return await try_all(agent, folder, outside, port)

    return anyio.run(main)


def test_without_a_sandbox_a_server_may_do_what_its_user_may(tmp_path: Path, outside: Path, port: int) -> None:
    done = run_nosy(tmp_path, outside, port)
    assert done.pop("reads the home") != "FileNotFoundError" and outside.exists()
    assert done == {
        "writes": "written",
        "writes outside": "written",
        "reads /tmp": "outside",
        "connects": "connected",
        "reads the system": "root",
        "has its variable": "curious",
    }


@pytest.mark.usefixtures("bubblewrap")
def test_a_server_in_bubblewrap_reads_the_system_and_writes_its_folders(
    tmp_path: Path, outside: Path, port: int
) -> None:
    write_file(tmp_path, f'[nosy]\nwrite = ["{tmp_path}/data"]\n')
    assert run_nosy(tmp_path, outside, port) == {
        "writes": "written",
        "writes outside": "OSError",
        "reads /tmp": "FileNotFoundError",
        "reads the home": "",
        "connects": "ConnectionRefusedError",
        "reads the system": "root",
        "has its variable": "curious",
    }
    assert (tmp_path / "data" / "file").read_text() == "written" and not outside.exists()


@pytest.mark.usefixtures("bubblewrap")
def test_a_sandbox_may_have_the_network_and_hide_more(tmp_path: Path, outside: Path, port: int) -> None:
    write_file(tmp_path, '["*"]\nnetwork = true\nhide = ["/etc/passwd"]\n')
    done = run_nosy(tmp_path, outside, port)
    assert (done["connects"], done["reads the system"], done["writes"]) == ("connected", "Perm", "FileNotFoundError")


@pytest.mark.usefixtures("bubblewrap")
def test_a_sandbox_is_in_force_while_the_gateway_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_agent(tmp_path, {"nosy": nosy()}, home=str(tmp_path / "home")) as agent:
            assert int(await agent.text("nosy/processes")) > 3
            write_file(tmp_path, "[nosy]\n")
            with anyio.fail_after(50):
                while int(await agent.text("nosy/processes")) > 3:
                    await anyio.sleep(0.1)

    anyio.run(main)


def test_a_container_command_runs_the_command_of_the_server(tmp_path: Path) -> None:
    container = tmp_path / "container"
    container.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nshift\nexec "$@"\n')
    container.chmod(0o755)
    home = write_file(tmp_path, f'[nosy]\ncommand = ["{container}", "--rm"]\n')
    settings = Settings(home=home)
    config = tmp_path / "mcp.json"
    config.write_text(f'{{"mcpServers": {{"nosy": {{"command": "{sys.executable}", "args": ["{NOSY}"]}}}}}}')
    [reading] = mcp.read(str(config), name=None, settings=settings)
    assert len(reading.tools) == 5
    assert (tmp_path / "arguments").read_text().split() == ["--rm", sys.executable, NOSY]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[nosy]\n", "nosy: its sandbox cannot be made, because bubblewrap is not installed: install it"),
        (
            '[nosy]\ncommand = ["no-such-program"]\n',
            "its sandbox needs the command 'no-such-program', which is not",
        ),
        ('[nosy]\nwrite = ["/no/such/folder"]\n', "its sandbox lets it write /no/such/folder, which is no folder"),
    ],
)
def test_a_server_whose_sandbox_cannot_be_made_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    if text == "[nosy]\n":

        def refuse() -> str:
            raise Unavailable("bubblewrap is not installed: install it")

        monkeypatch.setattr(servers, "find_bubblewrap", refuse)
    home, started = write_file(tmp_path, text), tmp_path / "started"
    config = tmp_path / "mcp.json"
    config.write_text(f'{{"mcpServers": {{"nosy": {{"command": "touch", "args": ["{started}"]}}}}}}')
    [reading] = mcp.read(str(config), name=None, settings=Settings(home=home))
    assert reading.state == "error" and sentence in reading.message
    assert not started.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nosy = 1", "the sandboxes of servers cannot be read: Expected `object`, got `int`"),
        ("[nosy]\nwrites = []", "Object contains unknown field `writes`"),
        ('[nosy]\nwrite = ["data"]', r"\[nosy\]: expected an absolute path, found 'data'"),
        ('[nosy]\nnetwork = true\ncommand = ["docker"]', "has a command, which makes rules of its own: remove write"),
        ("[nosy", "cannot be read"),
    ],
)
def test_an_invalid_file_is_refused_and_nothing_starts(tmp_path: Path, text: str, sentence: str) -> None:
    home = write_file(tmp_path, text)
    with pytest.raises(ConfigError, match=sentence):
        read_sandboxes(home)
    with pytest.raises(ConfigError):
        mcp.read(f"{sys.executable} {NOSY}", name="nosy", settings=Settings(home=home))


def test_doctor_names_a_sandbox_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise Unavailable("bubblewrap is not installed: install it")

    monkeypatch.setattr(doctor, "find_bubblewrap", refuse)
    home = write_file(tmp_path, "[nosy]\n")
    outcome = run_cli("doctor", "--home", str(home))
    assert outcome.exit_code == 1 and "sandbox.toml: bubblewrap is not installed: install it, or" in outcome.output
    (home / "sandbox.toml").write_text('[nosy]\ncommand = ["docker"]\n')
    assert "bubblewrap" not in run_cli("doctor", "--home", str(home)).output


def test_a_source_has_its_own_sandbox_or_the_one_for_all(tmp_path: Path) -> None:
    sandboxes = {"a": Sandbox(network=True), "*": Sandbox()}
    assert find_sandbox(sandboxes, "a") == Sandbox(network=True) and find_sandbox(sandboxes, "b") == Sandbox()
    assert find_sandbox({}, "a") is None and read_sandboxes(tmp_path) == {}


def test_a_server_at_a_url_has_no_sandbox(tmp_path: Path) -> None:
    plans = mcp.plan_servers("https://example.com/mcp", "far", {"*": Sandbox()})
    assert plans["far"].sandbox is None  # type: ignore[union-attr]


def test_the_folder_of_the_server_is_one_that_it_can_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_bubblewrap", lambda: "bwrap")
    monkeypatch.chdir(tmp_path)
    words = wrap_command(Sandbox(), ["server"], "", tmp_path / "home")
    assert words[words.index("--chdir") + 1] == "/"
    words = wrap_command(Sandbox(write=(str(tmp_path),)), ["server"], "", tmp_path / "home")
    assert words[words.index("--chdir") + 1] == str(tmp_path)
    words = wrap_command(Sandbox(), ["server"], "/usr", tmp_path / "home")
    assert words[words.index("--chdir") :] == ["--chdir", "/usr", "--", "server"]
