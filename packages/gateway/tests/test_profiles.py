"""Profiles: what is served under one, and that it never shows more than the caller's policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.tests.conftest import Agent, Start, busy
from gateway.tests.test_gateway import limited, run
from gateway.tests.test_http import ACCEPT, HELLO, KEY, OTHER, Service, policy
from homes_in_postgres import find_place
from test_access_properties import crowded, policies
from tests_cli import run as run_program
from toolscout.errors import ConfigError, NotFound
from toolscout.home.access.profiles import PROFILE_FILE, Profile, Profiles
from toolscout.home.database import open_home
from toolscout.scout import Scout
from toolscout.settings import load_settings
from toolscout.trust.policy import Caller, Rules
from toolscout.types import Hints, Tool
from toolscout_gateway.text import INSTRUCTIONS, META_TOOLS, count_tokens

__all__ = ["crowded"]  # the fixture
pytestmark = pytest.mark.net
PROFILES = """
[[profile]]
name = "mirror"
allow = ["a/echo", "a/pid"]
deny = ["**/pid"]
pins = ["a/echo", "a/pid"]
budget = 200
result_budget = 1000
instructions = "Echo before you answer."

[[profile]]
name = "all"
allow = ["**"]
"""


def write(home: Path | str, text: str = PROFILES) -> Path:
    path = Path(home) / PROFILE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if not isinstance(place := find_place(path.parent), Path):
        open_home(place).write_document(PROFILE_FILE, text.encode())
    return path


async def list_names(agent: Agent) -> list[str]:
    return [tool.name for tool in (await agent.client.list_tools(cache_mode="bypass")).tools]


def test_a_profile_serves_its_tools_pins_budgets_and_instructions(start: Start, tmp_path: Path) -> None:
    async def body(agent: Agent) -> None:
        assert agent.client.instructions == f"Echo before you answer.\n\n{INSTRUCTIONS}"
        assert await list_names(agent) == [*META_TOOLS, "a_echo"]
        found = await agent.search("give back text", "which process is it", limit=50)
        assert {tool["id"] for result in found["results"] for tool in result["tools"]} == {"a/echo"}
        assert await agent.text("a/echo", text="x") == "x"
        for id in ("a/pid", "a/read_invoice_0"):
            answer = await agent.call(id)
            assert answer.is_error and "you may see" in answer.content[0].text
        long = await agent.call("a/echo", text="word " * 2_000)
        assert count_tokens(long.content[0].text) < 1_000 and "handle" in long.content[-1].text
        handle = long.meta["toolscout/result"]["handle"]
        page = await agent.use("read_result", handle=handle)
        assert count_tokens(page.content[0].text) <= 1_100

    write(tmp_path / "home")
    run(start, body, {"a": busy("9")}, profile="mirror")


def test_without_a_profile_nothing_is_narrowed(start: Start, tmp_path: Path) -> None:
    async def body(agent: Agent) -> None:
        assert agent.client.instructions == INSTRUCTIONS and await list_names(agent) == [*META_TOOLS]
        assert await agent.text("a/pid")

    write(tmp_path / "home")
    run(start, body, {"a": busy()})


def test_a_profile_shows_no_more_than_the_policy(start: Start, tmp_path: Path) -> None:
    async def body(agent: Agent) -> None:
        [found] = (await agent.search("give back text", limit=50))["results"]
        assert [tool["id"] for tool in found["tools"]] == ["a/echo"]
        assert (await agent.call("a/pid")).is_error

    write(tmp_path / "home")
    run(start, body, {"a": busy()}, profile="all", policies=limited("a/echo"))


patterns = st.frozensets(st.sampled_from(["**", "mail/*", "*/send", "ops/team/**", "Ｃrm/**"]), max_size=3)
profiles = st.builds(
    Profile,
    st.just("p"),
    allow=patterns,
    deny=patterns,
    tags=st.frozensets(st.sampled_from(["money", "mail"])),
    read_only=st.booleans(),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profile=profiles, rules=st.none() | policies, tags=st.lists(st.sampled_from(["money", "x"]), max_size=2))
def test_whatever_the_profile_and_the_policy_both_must_agree(
    crowded: tuple[Scout, list[Tool]], profile: Profile, rules: Rules | None, tags: list[str]
) -> None:
    caller = Caller("ann", rules)
    narrowed = profile.narrow(caller)
    assert narrowed == profile.narrow(caller) and hash(narrowed) == hash(profile.narrow(caller))
    deny = Rules(frozenset({"**"}), profile.deny, profile.read_only)
    for tool in crowded[1]:
        tagged = Tool(id=tool.id, name=tool.name, path=tool.path, hints=tool.hints, tags=tuple(tags))
        selected = Rules(profile.allow)(tagged) or bool(profile.tags & set(tags))
        assert narrowed.sees(tagged) == (caller.sees(tagged) and selected and deny(tagged))


def test_a_tag_selects_tools_and_deny_and_read_only_take_precedence() -> None:
    reads, writes = (
        Tool(id=f"api/{name}", name=name, path=("api",), tags=("billing",), hints=Hints(read_only=read_only))
        for name, read_only in (("list", True), ("pay", False))
    )
    everybody = Caller("ann")
    assert all(Profile("p", tags=frozenset({"billing"})).narrow(everybody).sees(tool) for tool in (reads, writes))
    narrow = Profile("p", tags=frozenset({"billing"}), read_only=True).narrow(everybody)
    assert narrow.sees(reads) and not narrow.sees(writes)
    assert not Profile("p", tags=frozenset({"billing"}), deny=frozenset({"api/LIST"})).narrow(everybody).sees(reads)


def test_a_changed_profile_is_in_force_and_one_that_is_removed_shows_nothing(start: Start, tmp_path: Path) -> None:
    write(tmp_path / "home")

    async def body(agent: Agent) -> None:
        async def wait_for(refused: bool, id: str) -> None:
            with anyio.fail_after(20):
                while bool((await agent.call(id)).is_error) is not refused:
                    await anyio.sleep(0.05)

        await wait_for(True, "a/pid")
        write(tmp_path / "home", PROFILES.replace('deny = ["**/pid"]\n', ""))
        await wait_for(False, "a/pid")
        write(tmp_path / "home", "[[profile]]\nname = 5")
        with anyio.fail_after(20):
            while not any("the old profiles stay in force" in said for said in agent.said):
                await anyio.sleep(0.05)
        assert not (await agent.call("a/pid")).is_error
        write(tmp_path / "home", '[[profile]]\nname = "other"\nallow = ["**"]\n')
        await wait_for(True, "a/pid")
        assert await list_names(agent) == [*META_TOOLS]

    run(start, body, {"a": busy()}, profile="mirror")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_over_http_each_profile_has_an_address(tmp_path: Path) -> None:
    write(tmp_path / "home")
    service = Service(tmp_path, "--policy", policy(tmp_path))
    try:

        def ask(path: str, key: str, body: dict[str, Any], **headers: str) -> httpx.Response:
            headers = {**ACCEPT, "authorization": f"Bearer {key}", **headers}
            return httpx.post(service.url + path, json=body, headers=headers, timeout=30)

        assert ask("/p/mirror", "wrong", HELLO).status_code == 401
        assert ask("/p/nothing", KEY, HELLO).status_code == 404
        begun = ask("/p/mirror", KEY, HELLO)
        assert begun.status_code == 200 and "Echo before you answer." in begun.text
        assert "Echo before" not in ask("", KEY, HELLO).text

        async def read(path: str, key: str) -> tuple[list[str], list[bool]]:
            from fastmcp import Client
            from fastmcp.client.transports import StreamableHttpTransport

            transport = StreamableHttpTransport(service.url + path, headers={"Authorization": f"Bearer {key}"})
            async with Client(transport) as client:
                refused = []
                for id, arguments in (("a/echo", {"text": "x"}), ("a/pid", {})):
                    call = {"id": id, "arguments": arguments}
                    refused.append((await client.call_tool("call_tool", call, raise_on_error=False)).is_error)
                return [tool.name for tool in await client.list_tools()][len(META_TOOLS) :], refused

        assert anyio.run(read, "/p/mirror", KEY) == (["a_echo"], [False, True])
        assert anyio.run(read, "/p/all", KEY) == ([], [False, False])
        assert anyio.run(read, "/p/all", OTHER) == ([], [False, True])  # bob's policy allows a/echo alone
    finally:
        service.stop()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "holds no profiles: it has the unknown field 'x'"),
        ("[[profile]]\nname = 'A b'\nallow = ['**']", "small letters"),
        ("[[profile]]\nname = 'a'", "expected allow or tags, found neither"),
        ("[[profile]]\nname = 'a'\nallow = ['mail']", r"expected a pattern such as .*mail/\*\*"),
        ("[[profile]]\nname = 'a'\nallow = ['**']\n" * 2, "occurs twice"),
        ("[[profile]]\nname = 'a'\nallow = ['**']\nbudget = 5", "budget of at least 200 tokens, found 5"),
        (f"[[profile]]\nname = 'a'\nallow = ['**']\ninstructions = '{'x' * 4_001}'", "at most 4,000 characters"),
    ],
)
def test_a_file_with_an_error_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as error:
        Profiles(tmp_path)
    assert str(path) in str(error.value)


def test_a_misspelt_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path)
    known = Profiles(tmp_path)
    with pytest.raises(NotFound, match="Did you mean 'mirror'"):
        known.require("miror")
    with pytest.raises(NotFound, match="holds none"):
        Profiles(tmp_path / "none").require("x")


def test_profiles_live_in_the_home_and_are_read_again_while_they_are_used(home: str, tmp_path: Path) -> None:
    place, said = load_settings(home=home).place, list[str]()
    file = write(tmp_path / "mine")
    assert "has no profiles" in run_program("--home", home, "profiles").output
    profiles = Profiles(place)
    assert profiles.all == () and not profiles.has_file
    assert "2 profiles" in run_program("--home", home, "profiles", str(file)).output
    profiles.refresh(said.append)
    assert [profile.name for profile in profiles.all] == ["mirror", "all"] and "in force now" in said[-1]
    assert run_program("--home", home, "profiles").output.strip() == PROFILES.strip()
    write(tmp_path / "mine", "x = 1")
    refused = run_program("--home", home, "profiles", str(file))
    assert refused.exit_code == 1 and str(file) in refused.output
    open_home(place).write_document(PROFILE_FILE, b"x = 1")  # by an older version, or by hand
    profiles.refresh(said.append)
    assert len(profiles.all) == 2 and "the old profiles stay in force" in said[-1]
    with pytest.raises(ConfigError, match="holds no profiles"):
        Profiles(place)
    open_home(place).delete_document(PROFILE_FILE)
    profiles.refresh(said.append)
    profiles.refresh(said.append)
    assert len(profiles.all) == 2 and len(said) == 3 and "is gone" in said[-1]


def test_the_printed_entry_carries_the_profile(tmp_path: Path) -> None:
    write(tmp_path / "home")

    def printed(*more: str) -> dict[str, Any]:
        done = run_program("--home", str(tmp_path / "home"), "gateway", "--print-config", "claude", *more)
        assert done.exit_code == 0, done.output
        entry: dict[str, Any] = json.loads(done.stdout)["mcpServers"]["toolscout"]
        return entry

    assert printed("--profile", "mirror")["args"][-2:] == ["--profile", "mirror"]
    assert printed("--http", "--profile", "mirror")["url"] == "http://127.0.0.1:8765/mcp/p/mirror"
    refusals = {"There is no profile 'none'": ["none"], "/mcp/p/NAME": ["all", "--http"]}
    for message, words in refusals.items():
        done = run_program("--home", str(tmp_path / "home"), "gateway", "--profile", *words)
        assert done.exit_code != 0 and message in done.output
