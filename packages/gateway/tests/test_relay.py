"""What passes between a caller and a server beside requests and answers, at both ages of the protocol on both sides."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client
from mcp_types import ElicitCompleteNotification, ElicitRequestURLParams, ElicitResult

from gateway.tests.conftest import SERVERS, Agent, Start, open_agent
from gateway.tests.test_gateway import run
from toolscout.trust.policy import Caller
from toolscout_gateway.sessions import relay

pytestmark = pytest.mark.net
both_ages = pytest.mark.parametrize("server", ["modern", "legacy"])
both_callers = pytest.mark.parametrize("mode", ["auto", "legacy"])


def full(age: str) -> dict[str, Any]:
    """An entry for the server of `tests/servers/full.py`."""
    return {"command": sys.executable, "args": [str(SERVERS / "full.py"), age]}


class Gate:
    """A gateway in an event loop of its own, over one server of each age, for all tests of this file."""

    def __init__(self, portal: Any, agent: Agent) -> None:
        self.portal, self.agent = portal, agent

    def run(self, body: Callable[[Agent], Awaitable[None]]) -> None:
        """Run `body` with an agent that has not called anything yet."""
        calls = len(self.agent.events("call"))
        events = self.agent.events
        agent = dataclasses.replace(self.agent)
        agent.events = lambda kind: events(kind)[calls:]  # type: ignore[method-assign]
        self.portal.call(body, agent)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    opened = open_agent(tmp_path_factory.mktemp("gate"), {age: full(age) for age in ("modern", "legacy")})
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as agent:
        yield Gate(portal, agent)


class User:
    """Answers questions, and keeps them."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked, self.logged = list(answers), [], []

    async def answer(self, _: Any, params: Any) -> ElicitResult:
        self.asked.append(params)
        said = self.answers.pop(0)
        if said in ("decline", "cancel") or isinstance(params, ElicitRequestURLParams):
            return ElicitResult(action=said)
        return ElicitResult(action="accept", content={"name": said})

    async def log(self, params: Any) -> None:
        self.logged.append((params.level, params.data))

    def client(self, agent: Agent, mode: str, **options: Any) -> Client:
        return Client(
            agent.gateway.server, mode=mode, elicitation_callback=self.answer, logging_callback=self.log, **options
        )


async def call(client: Client, id: str, **arguments: Any) -> Any:
    return await client.call_tool("call_tool", {"id": id, "arguments": arguments})


@both_ages
@both_callers
def test_a_server_asks_the_user_and_gets_the_answer(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        user = User("Ann", "Bob")
        async with user.client(agent, mode) as client:
            answer = await call(client, f"{server}/ask", twice=True)
        assert json.loads(answer.content[0].text) == [
            {"action": "accept", "content": {"name": name}} for name in ("Ann", "Bob")
        ]
        assert [params.message for params in user.asked] == [f"[{server}] Name 0?", f"[{server}] Name 1?"]
        assert user.asked[0].requested_schema["required"] == ["name"]
        assert [(event["tool"], event["ok"]) for event in agent.events("call")] == [(f"{server}/ask", True)]

    gate.run(body)


@both_ages
@both_callers
def test_a_resource_and_a_prompt_ask_the_user_too(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        user = User("Ann", "Bob")
        async with user.client(agent, mode) as client:
            # Both servers of the test have the template; this URI names its server.
            read = await client.read_resource(f"toolscout://{server}/page%3A%2F%2Fask%2F1")
            prompt = await client.get_prompt(f"{server}/greet", {"city": "ask"})
        assert read.contents[0].text == "the text of page://Ann/1"
        assert prompt.messages[0].content.text == "Hello Bob"
        assert [params.message for params in user.asked] == [f"[{server}] Name?"] * 2

    gate.run(body)


def test_a_resource_that_needs_an_open_page_asks_new_clients_and_tells_old_ones(gate: Gate) -> None:
    async def body(agent: Agent) -> None:
        user = User("accept")
        async with user.client(agent, "auto") as client:
            read = await client.read_resource("toolscout://legacy/page%3A%2F%2Furl%2F1")
        assert read.contents[0].text == "the text of page://url/1"
        assert [(each.message, each.url) for each in user.asked] == [
            ("[legacy] Sign in first.", "https://example.com/in")
        ]

    gate.run(body)


@both_ages
@both_callers
def test_a_user_declines_and_the_server_hears_it(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        async with User("decline").client(agent, mode) as client:
            answer = await call(client, f"{server}/ask")
        assert json.loads(answer.content[0].text) == [{"action": "decline"}]

    gate.run(body)


@both_ages
@both_callers
def test_a_url_is_opened_by_the_callers_client(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        user = User("accept")
        async with user.client(agent, mode) as client:
            assert (await call(client, f"{server}/ask_url")).content[0].text == "accept"
        assert [(each.mode, each.url) for each in user.asked] == [("url", "https://example.com/in")]

    gate.run(body)


@both_ages
@both_callers
def test_nobody_is_asked_whose_client_cannot_ask(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server, mode=mode) as client:
            answer = await call(client, f"{server}/ask")
        assert answer.is_error and "client cannot" in answer.content[0].text
        assert [event["ok"] for event in agent.events("call")] == [False]

    gate.run(body)


def test_a_server_learns_what_each_callers_client_can_do(gate: Gate) -> None:
    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server) as plain, User().client(agent, "auto") as asking:
            assert (await call(plain, "modern/capabilities")).content[0].text == "{}"
            declared = json.loads((await call(asking, "modern/capabilities")).content[0].text)
            assert declared == {"elicitation": {"form": {}, "url": {}}}

    gate.run(body)


def test_an_error_that_names_a_url_reaches_old_clients_and_asks_new_ones(gate: Gate) -> None:
    async def body(agent: Agent) -> None:
        from mcp.shared.exceptions import MCPError

        async with User().client(agent, "legacy") as old:
            with pytest.raises(MCPError) as raised:
                await call(old, "legacy/need_url", key="a")
        assert raised.value.code == -32042
        assert raised.value.data["elicitations"][0]["url"] == "https://example.com/in"
        user = User("accept")
        async with user.client(agent, "auto") as new:
            assert (await call(new, "legacy/need_url", key="b")).content[0].text == "opened"
        assert [each.url for each in user.asked] == ["https://example.com/in"]
        async with User("decline").client(agent, "auto") as new:
            assert "did not open the page" in (await call(new, "legacy/need_url", key="c")).content[0].text

    gate.run(body)


@both_callers
def test_a_client_hears_of_the_page_that_was_opened(gate: Gate, mode: str) -> None:
    async def body(agent: Agent) -> None:
        heard: list[str] = []

        async def receive(message: Any) -> None:
            heard.append(getattr(message, "method", ""))

        async with User("accept").client(agent, mode, message_handler=receive) as client:
            await call(client, "legacy/ask_url")
            await call(client, "legacy/cancelled")
        assert ("notifications/elicitation/complete" in heard) == (mode == "legacy")  # later protocols have none

    gate.run(body)


def test_each_client_hears_of_its_own_page_though_servers_name_their_questions_alike(start: Start) -> None:
    """Both servers call their question `one`, and both are open at the same time."""

    async def body(agent: Agent) -> None:
        both_asked, is_first_done = anyio.Event(), anyio.Event()
        asked: dict[str, str] = {}
        completed: dict[str, list[str]] = {"left": [], "right": []}

        async def use(server: str, wait_for: anyio.Event) -> None:
            async def answer(_: Any, params: Any) -> ElicitResult:
                asked[server] = params.elicitation_id
                if len(asked) == 2:
                    both_asked.set()
                await wait_for.wait()
                return ElicitResult(action="accept")

            async def receive(message: Any) -> None:
                if isinstance(message, ElicitCompleteNotification):
                    completed[server].append(message.params.elicitation_id)

            options = {"elicitation_callback": answer, "message_handler": receive}
            async with Client(agent.gateway.server, mode="legacy", **options) as client:
                await call(client, f"{server}/ask_url")
                await call(client, f"{server}/cancelled")  # what was sent before its answer has arrived
                is_first_done.set()
                with anyio.fail_after(20):
                    await both_done.wait() if server == "left" else both_done.set()

        both_done = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(use, "left", both_asked)
            group.start_soon(use, "right", is_first_done)
        assert len(set(asked.values())) == 2
        assert completed == {server: [id] for server, id in asked.items()}

    run(start, body, {"left": full("legacy"), "right": full("legacy")})


@both_ages
@both_callers
def test_log_messages_reach_the_caller_at_the_level_they_want(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        user = User()
        options = {"log_level": "error"} if mode == "auto" else {}
        async with user.client(agent, mode, **options) as client:
            if mode == "legacy":
                from mcp_types import EmptyResult, SetLevelRequest, SetLevelRequestParams

                request = SetLevelRequest(params=SetLevelRequestParams(level="error"))
                await client.session.send_request(request, EmptyResult)
            await call(client, f"{server}/log")
        expected = [] if (server, mode) == ("modern", "legacy") else [("error", {"said": "error"})]
        assert user.logged == expected  # a server of 2026-07-28 logs only for a request that asks for it

    gate.run(body)


@both_ages
@both_callers
def test_meta_and_progress_pass_both_ways(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        steps: list[Any] = []

        async def note(*step: Any) -> None:
            steps.append(step)

        async with Client(agent.gateway.server, mode=mode) as client:
            asking = {"id": f"{server}/meta", "arguments": {}}
            answer = await client.call_tool("call_tool", asking, meta={"trace": "t1"})
            assert json.loads(answer.content[0].text) == {"trace": "t1"}
            assert answer.meta["example.com/trace"] == "kept"
            await client.call_tool("call_tool", {"id": f"{server}/progress", "arguments": {}}, progress_callback=note)
        assert steps == [(n, 3, f"step {n}") for n in (1, 2, 3)]

    gate.run(body)


@both_ages
@both_callers
def test_a_call_that_the_caller_gives_up_is_given_up_at_the_server(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        async with User().client(agent, mode) as client:
            before = (await call(client, f"{server}/cancelled")).content[0].text
            with anyio.fail_after(30):
                while (await call(client, f"{server}/cancelled")).content[0].text == before:
                    with anyio.move_on_after(0.3):  # on a busy machine it may not even be sent by then
                        await call(client, f"{server}/hang")
        assert next(event for event in agent.events("call") if event["tool"] == f"{server}/hang")["ok"] is False

    gate.run(body)


def test_a_call_waits_for_its_user_without_running_out_of_time_and_ends_with_its_server(start: Start) -> None:
    async def body(agent: Agent) -> None:
        user = User("Ann")

        async def think(context: Any, params: Any) -> ElicitResult:
            await anyio.sleep(0.8)
            return await user.answer(context, params)

        async with Client(agent.gateway.server, elicitation_callback=think) as client:
            assert "Ann" in (await call(client, "a/ask")).content[0].text
            session = client.session
            waiting = await session.call_tool("call_tool", {"id": "a/ask", "arguments": {}}, allow_input_required=True)
            assert waiting.result_type == "input_required"
            upstream = agent.gateway.upstreams.servers["a"]
            upstream.end_session(RuntimeError("gone"))
            with anyio.fail_after(20):
                while not upstream.is_in_catalogue:
                    await anyio.sleep(0.02)
            given = {"question": ElicitResult(action="accept", content={"name": "Bob"})}
            answer = await session.call_tool(
                "call_tool",
                {"id": "a/ask", "arguments": {}},
                input_responses=given,
                request_state=waiting.request_state,
                allow_input_required=True,
            )
            assert answer.is_error and "ended during the call" in answer.content[0].text
            again = await session.call_tool(
                "call_tool",
                {"id": "a/ask", "arguments": {}},
                input_responses=given,
                request_state=waiting.request_state,
                allow_input_required=True,
            )
            # Where replicas share a database, one that has forgotten the question may not have been its own.
            assert re.search("no longer open|has stopped: call the tool again", again.content[0].text)
        assert [event["ok"] for event in agent.events("call")] == [True, False]

    run(start, body, {"a": full("legacy")}, call_timeout=0.6)


@contextlib.contextmanager
def named_callers(agent: Agent, rules: dict[str, Any] | None = None) -> Iterator[None]:
    """Have the gateway take the name of each client for the name of its caller."""
    from toolscout.trust.policy import Caller

    def identify(context: Any) -> Caller:
        params = context.session.client_params
        name = params.client_info.name if params is not None else "nobody"
        return Caller(name, (rules or {}).get(name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.gateway.permissions, "get_caller", identify)
        yield


@both_callers
def test_no_caller_is_asked_for_another_or_reads_their_log(gate: Gate, mode: str) -> None:
    async def body(agent: Agent) -> None:
        from mcp_types import Implementation

        ann, bob = User("never"), User("never")
        people = [Implementation(name=name, version="1") for name in ("ann", "bob")]
        with named_callers(agent):
            async with (
                ann.client(agent, mode, client_info=people[0]) as first,
                bob.client(agent, mode, client_info=people[1]) as second,
                anyio.create_task_group() as group,
            ):
                group.start_soon(call, first, "legacy/hang")
                while not agent.gateway.upstreams.host.relay._under_way["legacy"]:
                    await anyio.sleep(0.01)
                answer = await call(second, "legacy/ask")
                assert answer.is_error and "Several callers" in answer.content[0].text
                await call(second, "legacy/log")
                assert not ann.asked and not bob.asked and not ann.logged and not bob.logged
                group.cancel_scope.cancel()

    gate.run(body)


@both_ages
def test_nobody_goes_on_with_the_call_of_another(gate: Gate, server: str) -> None:
    async def body(agent: Agent) -> None:
        from mcp.shared.exceptions import MCPError
        from mcp_types import Implementation

        asking = {"id": f"{server}/ask", "arguments": {}}
        people = [Implementation(name=name, version="1") for name in ("ann", "bob")]
        with named_callers(agent):
            async with (
                User().client(agent, "auto", client_info=people[0]) as ann,
                User().client(agent, "auto", client_info=people[1]) as bob,
            ):
                waiting = await ann.session.call_tool("call_tool", asking, allow_input_required=True)
                [key] = waiting.input_requests
                answers = {key: ElicitResult(action="accept", content={"name": "Ann"})}
                stolen: Any = {"request_state": waiting.request_state, "input_responses": answers}
                with pytest.raises(MCPError):
                    await bob.session.call_tool("call_tool", asking, **stolen)
                with pytest.raises(MCPError):  # nor is it the state of another request of the same caller
                    await ann.session.call_tool("call_tool", {"id": f"{server}/meta", "arguments": {}}, **stolen)
                assert "Ann" in (await ann.session.call_tool("call_tool", asking, **stolen)).content[0].text

    gate.run(body)


def test_the_open_questions_of_one_person_leave_room_for_others(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_OPEN_OF_PERSON", 2)
    asking = {"id": "legacy/ask", "arguments": {}}

    async def body(agent: Agent) -> None:
        questions = agent.gateway.upstreams.host.relay._open
        others = {str(number): SimpleNamespace(exchange=SimpleNamespace(caller=Caller("bob"))) for number in range(3)}
        questions.update(others)  # type: ignore[arg-type]
        try:
            async with User().client(agent, "auto") as client:
                session = client.session
                waiting = [await session.call_tool("call_tool", asking, allow_input_required=True) for _ in range(2)]
                assert [one.result_type for one in waiting] == ["input_required"] * 2
                refused = await session.call_tool("call_tool", asking, allow_input_required=True)
                assert refused.is_error and "too many requests wait" in refused.content[0].text
                for one in waiting:
                    answered = await session.call_tool("call_tool", asking, request_state=one.request_state)
                    assert "cancel" in answered.content[0].text
        finally:
            for handle in others:
                del questions[handle]

    gate.run(body)


# --- resources, prompts, completion -----------------------------------------------------------------------------------


@both_ages
@both_callers
def test_resources_are_listed_read_and_linked_under_their_own_uris(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        from mcp.shared.exceptions import MCPError

        other = "legacy" if server == "modern" else "modern"
        async with Client(agent.gateway.server, mode=mode) as client:
            listed = {item.uri: item for item in (await client.list_resources()).resources}
            own = [uri for uri in listed if uri.startswith("memo://")]
            assert own == ["memo://notes/1", "memo://notes/2"]
            assert set(listed) - set(own) == {f"toolscout://modern/memo%3A%2F%2Fnotes%2F{n}" for n in (1, 2)}
            assert listed["memo://notes/1"].icons is None, "as of tools"
            assert listed["memo://notes/2"].meta == {"example.com/a": 1}
            templates = (await client.list_resource_templates()).resource_templates
            assert [item.uri_template for item in templates] == ["page://{book}/{number}"] * 2
            for uri in (f"toolscout://{server}/memo%3A%2F%2Fnotes%2F2", "memo://notes/2"):
                [content] = (await client.read_resource(uri)).contents
                assert (content.uri, content.blob) == ("memo://notes/2", "aGVsbG8=")
            [content] = (await client.read_resource("page://b/7")).contents
            assert content.text == "the text of page://b/7" and content.meta == {"example.com/b": 2}
            with pytest.raises(MCPError, match="Resource not found: hidden://1"):
                await client.read_resource("hidden://1")
            agent.gateway.offers._links.clear()
            linked = await call(client, f"{server}/links")
            assert linked.content[0].uri == "hidden://1" and linked.content[0].icons
            [content] = (await client.read_resource("hidden://1")).contents
            assert content.text == "the text of hidden://1"
            agent.gateway.offers._links.clear()
            with pytest.raises(MCPError) as raised:
                await client.read_resource(f"toolscout://{other}/nothing%3A%2F%2F1")
            assert raised.value.data == {"uri": "nothing://1"}

    gate.run(body)


@both_ages
@both_callers
def test_prompts_and_completions_come_from_their_server(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        from mcp.shared.exceptions import MCPError
        from mcp_types import PromptReference, ResourceTemplateReference

        async with Client(agent.gateway.server, mode=mode) as client:
            listed = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
            assert set(listed) == {f"{age}/{name}" for age in ("modern", "legacy") for name in ("greet", "team/report")}
            assert listed[f"{server}/greet"].icons is None and listed[f"{server}/greet"].title == "Greet"
            got = await client.get_prompt(f"{server}/greet", {"city": "Oslo"})
            assert [part.content.type for part in got.messages] == ["text", "resource_link"]
            assert got.messages[0].content.text == "Hello Oslo"
            assert (await client.get_prompt(f"{server}/team/report")).description == "A greeting."
            with pytest.raises(MCPError, match="Did you mean 'legacy/greet' or 'modern/greet'"):
                await client.get_prompt("greet")
            with pytest.raises(MCPError, match=f"Did you mean '{server}/greet'"):
                await client.get_prompt(f"{server}_greet")
            reference = PromptReference(name=f"{server}/greet")
            found = (await client.complete(reference, {"name": "city", "value": "O"})).completion
            assert (found.values, found.total, found.has_more) == (["Oslo", "Osaka"], 2, False)
            template = ResourceTemplateReference(uri="page://{book}/{number}")
            found = (await client.complete(template, {"name": "book", "value": "book"})).completion
            assert found.values == ["book-1", "book-2"]

    gate.run(body)


@both_ages
@both_callers
def test_clients_hear_of_resources_that_change(gate: Gate, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        heard: list[Any] = []

        async def receive(message: Any) -> None:
            heard.append((message.method, getattr(message.params, "uri", None)))

        uri = f"toolscout://{server}/memo%3A%2F%2Fnotes%2F1"
        expected = {("notifications/resources/updated", uri), ("notifications/resources/list_changed", None)}
        async with Client(agent.gateway.server, mode=mode, message_handler=receive) as client:
            if mode == "legacy":
                from mcp_types import EmptyResult, SubscribeRequest, SubscribeRequestParams

                assert client.server_capabilities.resources.list_changed
                request = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
                await client.session.send_request(request, EmptyResult)
                await call(client, f"{server}/change", text="another memo")
                with anyio.fail_after(10):
                    while not expected <= set(heard):
                        await anyio.sleep(0.02)
            else:
                listening = client.listen(resources_list_changed=True, resource_subscriptions=[uri])
                async with listening as changes:
                    with anyio.fail_after(10):
                        while server == "modern" and not agent.gateway.protocol._subscriptions._scopes:
                            await anyio.sleep(0.02)
                        await call(client, f"{server}/change", text="another memo")
                        while not expected <= set(heard):
                            await anyio.sleep(0.02)
                        assert changes.honored.resource_subscriptions == [uri]
        with anyio.fail_after(10):
            while agent.gateway.protocol._subscriptions._uses:
                await anyio.sleep(0.02)

    gate.run(body)


@both_callers
def test_a_caller_sees_resources_and_prompts_by_the_policy(gate: Gate, mode: str) -> None:
    async def body(agent: Agent) -> None:
        from mcp.shared.exceptions import MCPError
        from mcp_types import Implementation

        from toolscout.trust.policy import Rules

        rules = {
            "ann": Rules(frozenset({"modern/*"}), frozenset({"*/prompts"}), read_only=True),
            "bob": Rules(frozenset({"*/ask"})),
        }
        people = [Implementation(name=name, version="1") for name in ("ann", "bob")]
        with named_callers(agent, rules):
            async with (
                Client(agent.gateway.server, mode=mode, client_info=people[0]) as ann,
                Client(agent.gateway.server, mode=mode, client_info=people[1]) as bob,
            ):
                listed = (await ann.list_resources()).resources
                assert [item.uri for item in listed] == ["memo://notes/1", "memo://notes/2"]
                assert not (await ann.list_prompts()).prompts and not (await bob.list_resources()).resources
                for client, uri in ((bob, "memo://notes/1"), (ann, "toolscout://legacy/memo%3A%2F%2Fnotes%2F1")):
                    with pytest.raises(MCPError, match="Resource not found"):
                        await client.read_resource(uri)
                with pytest.raises(MCPError, match="Unknown prompt"):
                    await ann.get_prompt("modern/greet")

    gate.run(body)


def test_old_clients_are_served(gate: Gate) -> None:
    async def body(agent: Agent) -> None:
        import mcp.client.session as sdk

        for wanted in ("2025-06-18", "2025-11-25"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sdk, "LATEST_HANDSHAKE_VERSION", wanted)
                user = User("Ann")
                async with user.client(agent, "legacy") as client:
                    assert client.protocol_version == wanted
                    assert "Ann" in (await call(client, "legacy/ask")).content[0].text
                    assert "Ann" not in (await call(client, "modern/structured", number=1)).content[0].text
                    assert (await client.list_prompts()).prompts and (await client.list_resources()).resources

    gate.run(body)


def test_a_pinned_tool_keeps_its_title_and_loses_its_icons(start: Start) -> None:
    async def body(agent: Agent) -> None:
        [pinned] = [tool for tool in (await agent.client.list_tools()).tools if tool.name == "modern_ask_url"]
        assert pinned.title == "Ask_Url" and not pinned.icons

    run(start, body, {"modern": full("modern")}, pins=("modern/ask_url",))
