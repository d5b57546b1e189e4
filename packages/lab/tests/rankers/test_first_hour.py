"""The first hour with an endpoint: what commands say and do when it is wrong, slow, dear or strange, over real HTTP."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests_cli import run as cli
from toolscout.errors import BadReply, ConfigError
from toolscout.settings import Settings
from toolscout_lab.llm import Budget, Few, Prices, connect, probe, prompt
from toolscout_lab.llm.wire import ChatRequest as Request
from toolscout_lab.llm.wire import Completion, decode, narrow, schema_of
from toolscout_lab.testing import Faults, ScriptedLLM, ScriptedServer

pytestmark = pytest.mark.net
QUERY = "weather forecast, and grandma letters"


class NeedVerdict(msgspec.Struct):
    needs_tool: bool
    reason: str


class NestedReply(msgspec.Struct):
    id: str
    tools: list[str]


class OuterReply(msgspec.Struct):
    tools: list[NestedReply]
    id: int
    other: str


def refusal(status: int, code: str | None = None) -> tuple[int, dict[str, str], dict[str, Any]]:
    error = {"message": "no", "type": "error", "param": None, "code": code}
    return status, {"Retry-After": "0.01"}, {"error": error}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A catalogue, a dataset, and the folder that holds them as the working directory."""
    monkeypatch.chdir(tmp_path)
    tools = [{"name": f"sky_{n}", "description": "weather forecast humidity of a city"} for n in range(6)]
    tools.append({"name": "send", "description": "Deliver letters to grandma"})
    (tmp_path / "tools.jsonl").write_text("".join(json.dumps(tool) + "\n" for tool in tools))
    folder = tmp_path / "data" / "mail"
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"t{n}", "title": tool["name"], "text": tool["description"]} for n, tool in enumerate(tools)]
    queries = [{"_id": f"q{n}", "text": f"letters to grandma number {n}"} for n in range(30)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, part in (("train", queries[:12]), ("dev", queries[12:18]), ("test", queries[18:])):
        lines = ["query-id\tcorpus-id\tscore", *(f"{row['_id']}\tt6\t1" for row in part)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    yield


def search(server: ScriptedServer, *options: str) -> Any:
    cli("add", "tools.jsonl")
    return cli("search", QUERY, "-r", "feedback", "--set", "base=bm25", "--llm", server.place, *options)


def bench(server: ScriptedServer, *options: str) -> Any:
    common = ("--set", "base=bm25", "--data", "data", "--out", "out", "--llm", server.place)
    return cli("lab", "bench", "mail", "-r", "mmrr", *common, *options)


CAUSES = [
    pytest.param(refusal(401), "refused the key (status 401). Check TOOLSCOUT_LLM_KEY.", 1, id="wrong key"),
    pytest.param(refusal(404), "serves no model 'scripted' (status 404). Check address and model", 1, id="unknown"),
    pytest.param(refusal(400, "model_not_found"), "serves no model 'scripted' (status 400)", 1, id="unknown model"),
    pytest.param(refusal(429, "insufficient_quota"), "The quota of your account at", 1, id="quota"),
    pytest.param(refusal(402), "is used up (status 402). Raise it there", 1, id="payment"),
    pytest.param(refusal(429), "too many requests (status 429). Wait, or lower llm_rpm", 6, id="busy"),
    pytest.param(refusal(503), "failed (status 503). Try again later.", 6, id="broken"),
    pytest.param(refusal(400), "refused the request (status 400)", 1, id="refused"),
    pytest.param((200, {}, b"<html>hello</html>"), "returned something that is no chat completion", 1, id="a page"),
    pytest.param((200, {}, {"choices": []}), "returned something that is no chat completion", 1, id="no choice"),
    pytest.param(
        (200, {}, {"choices": [{"message": {"content": "I would say {it} depends"}}]}),
        "gave no valid reply to the prompt 'feedback_comprehend' in 3 attempts (malformed).",
        3,
        id="malformed",
    ),
    pytest.param(
        (200, {}, {"choices": [{"message": {"content": "<think>well"}, "finish_reason": "length"}]}),
        "in 3 attempts (cut off). Raise llm_reply_tokens above 1,024.",
        3,
        id="cut off",
    ),
]


@pytest.mark.parametrize(("says", "sentence", "requests"), CAUSES)
def test_a_search_gives_the_plain_answer_and_one_sentence_on_what_is_wrong(
    says: Any, sentence: str, requests: int
) -> None:
    with ScriptedServer(says=says) as server:
        done = search(server, "--json", "--set", "seconds=600")
        answer = json.loads(done.stdout)
        assert done.exit_code == 0, done.output
        assert len(server.bodies) == requests, "an endpoint in trouble is asked again, one that says no is not"
    with ScriptedServer() as server:
        plain = json.loads(cli("search", QUERY, "-r", "bm25", "--json").stdout)
    assert [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in plain["hits"]] and answer["hits"]
    assert answer["degraded"].startswith("feedback: no help in round 1: ") and sentence in answer["degraded"]
    assert plain["degraded"] is None


def test_the_terminal_says_it_too_and_doctor_finds_it() -> None:
    with ScriptedServer(says=refusal(401)) as server:
        told = search(server)
        assert "note: feedback: no help in round 1" in told.stderr and "Check TOOLSCOUT_LLM_KEY" in told.stderr
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOOLSCOUT_LLM", server.place)
            found = json.loads(cli("doctor", "--json").stdout)["llm"]
            assert "refused the key (status 401)" in found["problem"]
            assert "refused the key (status 401)" in cli("doctor").output
            server.says = None
            found = json.loads(cli("doctor", "--json").stdout)["llm"]
            assert found["problem"] is None and found["model"] == "scripted" and found["tokens"] > 0
            assert "  answers    in" in cli("doctor").output
    assert json.loads(cli("doctor", "--json").stdout)["llm"] is None


def test_a_caller_with_limited_sight_does_not_learn_where_the_endpoint_is(tmp_path: Path) -> None:
    from toolscout import Scout

    with ScriptedServer(says=refusal(401)) as server:
        cli("add", "tools.jsonl")
        options = {"recipe": "feedback", "recipe_options": ("base=bm25",), "llm": server.place}
        with Scout(**options) as scout:  # type: ignore[arg-type]
            assert "127.0.0.1" in (scout.search(QUERY).degraded or "")
            seen = scout.search(QUERY, visible=lambda tool: True)
    assert seen.degraded == "a stage of the search could not help"


def test_an_endpoint_that_drips_holds_a_search_no_longer_than_its_deadline() -> None:
    with ScriptedServer(drips=100_000) as server:
        done = search(server, "--json", "--deadline", "0.3")
        answer = json.loads(done.stdout)
    assert answer["hits"] and "did not answer in time" in answer["degraded"]
    assert "1 were not answered in time and count in full" in done.stderr


def test_rounds_and_base_are_settings_of_a_search() -> None:
    def more(data: dict[str, Any], chance: random.Random) -> Any:
        return {"instruction": f"{data['query']} weather"}

    assessed = {"solved": [], "unsolved": [{"goal": "x", "reason": "y"}], "ordered": False, "reason": "z"}
    llm = ScriptedLLM(answers={"Assessment": lambda data, chance: assessed, "Refinement": more})
    with ScriptedServer(llm) as server:
        done = search(server, "--set", "rounds=2", "--explain")
        assert len(server.bodies) == 6 and "feedback(bm25)" in done.stdout, done.output
        assert "sent 6 calls" in done.stderr
        wrong = search(server, "--set", "rounds=never")
        assert wrong.exit_code == 1 and "recipe feedback" in wrong.stderr


# --- replies ----------------------------------------------------------------------------------------------------------

RIGHT = '{"needs_tool": true, "reason": "{braces} in a value"}'


@pytest.mark.parametrize(
    "text",
    [
        f'<think>Is it {{"needs_tool": false, "reason": "a draft"}}?</think>\n{RIGHT}',
        f'The set {{a, b}} and {{"needs_tool": maybe}} aside:\n```json\n{RIGHT}\n``` Is {{that}} fine?',
        f'{{"needs_tool": false, "reason": "first"}}. No, wait: {RIGHT}',
        f'{RIGHT}\nFor example {{"x": 1}} would be wrong.',
        f"so I think {{hm}} that it does\n</think>\n\n{RIGHT}",
        f"<Thinking>\n{{</Thinking>{RIGHT}",
    ],
)
def test_thoughts_and_braces_in_prose_are_no_part_of_a_reply(text: str) -> None:
    assert decode(text, NeedVerdict) == NeedVerdict(True, "{braces} in a value")


DRAFT = '{"needs_tool": false, "reason": "a draft"}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{" * 5_000,
        "{oops",
        '{"needs_tool": 1}',
        f"<think>still at it {DRAFT}",
        f"<think>{DRAFT}</think>I cannot say.",
        f"Perhaps {DRAFT}\n</think>\nI cannot say.",
    ],
)
def test_what_is_no_reply_is_said_to_be_none(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(text, NeedVerdict)


class Reasoner(ScriptedLLM):
    """Thinks aloud before it answers."""

    def __call__(self, request: Request, *, seconds: float | None = None) -> Completion:
        reply = super().__call__(request)
        thought = '<think>Let me {see}: {"goals": []} is too short.</think>\nHere {it} is: '
        return msgspec.structs.replace(reply, text=thought + reply.text)


def test_a_reasoning_model_gives_the_same_answer_as_one_that_does_not_say_what_it_thinks() -> None:
    with ScriptedServer(ScriptedLLM()) as plain, ScriptedServer(Reasoner(model="reasoner")) as thinking:
        answers = [json.loads(search(server, "--json").stdout) for server in (plain, thinking)]
    assert answers[0]["hits"] == answers[1]["hits"] and answers[1]["degraded"] is None
    assert len(plain.bodies) == len(thinking.bodies) == 3


def test_the_length_of_a_reply_is_a_setting(tmp_path: Path) -> None:
    with ScriptedServer() as server, connect(Settings(home=tmp_path, llm=server.place, llm_reply_tokens=77)) as llm:
        what = prompt("tooldet_verify", query=QUERY)
        llm.ask(what, NeedVerdict, example_reply=NeedVerdict(False, ""))
        llm.ask(what, NeedVerdict, example_reply=NeedVerdict(False, ""), max_tokens=500)
        assert [body["max_tokens"] for body in server.bodies] == [77, 500]
        probe(llm_settings(server, tmp_path), 5.0)
        server.says = 200, {}, {"choices": [{"message": {"content": "{"}, "finish_reason": "length"}]}
        with pytest.raises(BadReply, match="llm_reply_tokens above 77") as cut:
            llm.ask(prompt("tooldet_verify", query="another"), NeedVerdict, example_reply=NeedVerdict(False, ""))
        assert cut.value.reason == "cut_off"


class Endless(ScriptedLLM):
    """Repeats itself until it is cut off, the first time that it is asked."""

    n_asked = 0

    def __call__(self, request: Request, *, seconds: float | None = None) -> Completion:
        self.n_asked += 1
        answer = super().__call__(request, seconds=seconds)
        if self.n_asked > 1:
            return answer
        return Completion('{"needs_tool": true, "reason": "' + "and so on, " * 50, finish="length")


def test_a_reply_that_was_cut_off_is_asked_for_again_without_it(tmp_path: Path) -> None:
    with ScriptedServer(Endless()) as server, connect(Settings(home=tmp_path, llm=server.place)) as llm:
        llm.ask(prompt("tooldet_verify", query=QUERY), NeedVerdict, example_reply=NeedVerdict(False, ""))
        first, second = [body["messages"] for body in server.bodies]
        assert [message["role"] for message in second] == ["system", "user"]
        assert second[1]["content"].startswith(first[1]["content"]) and "be brief" in second[1]["content"]
        assert "and so on" not in str(second) and llm.repaired == 1 and not llm.skipped


def test_what_stays_invalid_is_counted_by_reason(tmp_path: Path) -> None:
    with ScriptedServer() as server, connect(Settings(home=tmp_path, llm=server.place)) as llm:
        server.says = 200, {}, {"choices": [{"message": {"content": "{"}, "finish_reason": "length"}]}
        for query in ("one", "two"):
            with pytest.raises(BadReply):
                llm.ask(prompt("tooldet_verify", query=query), NeedVerdict, example_reply=NeedVerdict(False, ""))
        server.says = 200, {}, {"choices": [{"message": {"content": "no"}}]}
        with pytest.raises(BadReply):
            llm.limit_tokens(None).ask(
                prompt("tooldet_verify", query="three"), NeedVerdict, example_reply=NeedVerdict(False, "")
            )
        assert llm.skipped == {"cut_off": 2, "malformed": 1} and llm.repaired == 6


def test_the_schema_of_a_reply_ends_lists_that_a_weak_model_would_not_end(tmp_path: Path) -> None:
    class Listed(msgspec.Struct):
        items: Few[str]

    with ScriptedServer() as server, connect(Settings(home=tmp_path, llm=server.place)) as llm:
        server.says = 200, {}, {"choices": [{"message": {"content": json.dumps({"items": ["a"] * 25})}}]}
        with pytest.raises(BadReply) as endless:
            llm.ask(prompt("tooldet_verify", query=QUERY), Listed, example_reply=Listed([]))
        assert endless.value.reason == "malformed"
        shape = server.bodies[0]["response_format"]["json_schema"]["schema"]
        assert shape["properties"]["items"]["maxItems"] == 24


def test_only_tools_that_were_shown_fit_the_schema_and_the_prompt_does_not_hold_their_ids_twice() -> None:
    with ScriptedServer() as server:
        assert search(server, "--json").exit_code == 0
        shapes = [body["response_format"]["json_schema"]["schema"] for body in server.bodies]
        ids = [f"tools/sky_{number}" for number in range(6)]
        purpose, solved = (shapes[place]["$defs"][name] for place, name in ((0, "Purpose"), (1, "Solved")))
        assert set(purpose["properties"]["id"]["enum"]) >= set(ids)
        assert set(solved["properties"]["tools"]["items"]["enum"]) >= set(ids)
        assert solved["properties"]["tools"]["maxItems"] == len(solved["properties"]["tools"]["items"]["enum"])
        assert all("enum" not in body["messages"][0]["content"] for body in server.bodies)
        assert purpose["properties"]["purpose"]["maxLength"] == solved["properties"]["reason"]["maxLength"] == 120
        assert shapes[0]["properties"]["goals"]["items"]["maxLength"] == 120
        assert shapes[1]["properties"]["solved"]["maxItems"] == 6


def test_limits_reach_lists_and_texts_of_that_name_at_any_depth_and_nothing_else() -> None:
    limits = {"id": {"enum": ["a"]}, "tools": {"enum": ["a", "b"], "maxItems": 2}}
    shape = narrow(schema_of(OuterReply), limits)
    part = shape["$defs"]["NestedReply"]["properties"]
    assert part["id"] == {"type": "string", "enum": ["a"]}
    assert part["tools"] == {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2}
    plain = schema_of(OuterReply)
    assert shape["properties"]["tools"] == {**plain["properties"]["tools"], "maxItems": 2}, "objects have no such texts"
    assert narrow(plain, {}) == plain


def llm_settings(server: ScriptedServer, home: Path) -> Settings:
    return Settings(home=home, llm=server.place)


# --- money ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["calls", "calls=", "calls=-1", "calls=x", "euros=3", "calls=1,calls=2", "calls=inf"])
def test_a_budget_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="llm_budget: expected limits like calls=500"):
        Budget.parse(text)


def test_a_budget_has_three_units() -> None:
    budget = Budget.parse(" calls=500, tokens=200_000,dollars=2.5 ", Prices(1.0, 2.0))
    assert budget.limits == {"calls": 500, "tokens": 200_000, "dollars": 2.5}
    assert set(Budget.parse("").limits.values()) == {None}


def test_a_search_stops_at_the_budget_and_keeps_the_plain_answer() -> None:
    with ScriptedServer() as server:
        done = search(server, "--json", "--llm-budget", "calls=2")
        assert len(server.bodies) == 2
    answer = json.loads(done.stdout)
    assert "The budget of 2 calls is used up" in answer["degraded"] and answer["hits"]
    assert "sent 2 calls" in done.stderr


def test_a_dry_run_of_a_search_sends_nothing_and_leaves_no_trace(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        cost = json.loads(search(server, "--dry-run", "--json").stdout)
        assert not server.bodies
    assert cost["calls"] == 9 and cost["tokens_in"] > 1000, "three rounds of three steps"
    assert not (tmp_path / "home" / "journal.db").exists()


def test_a_benchmark_counts_its_calls_before_stops_at_the_budget_and_continues(tmp_path: Path) -> None:
    with ScriptedServer(ScriptedLLM(faults=Faults(busy=0.3))) as server:
        planned = json.loads(bench(server, "--dry-run", "--json").stdout)
        assert planned["calls"] == 12 and not server.bodies and not (tmp_path / "out").exists()
        short = bench(server, "--llm-budget", "calls=5")
        assert short.exit_code == 1 and "no result is written" in short.stderr and "raise --llm-budget" in short.stderr
        assert len(server.bodies) == 5 and "sent 5 calls" in short.stderr and not list(tmp_path.glob("out/*/*.json"))
        done = bench(server, "--llm-budget", "calls=7", "--json")
        assert done.exit_code == 0 and len(server.bodies) == 12, done.output
    result = json.loads(done.stdout)[0]
    assert result["degraded"] == 0 and result["llm"]["calls"] == 12 and result["llm"]["model"] == "scripted"


def test_all_recipes_of_a_benchmark_share_one_budget() -> None:
    with ScriptedServer() as server:
        done = bench(server, "-r", "feedback", "--llm-budget", "tokens=20000")
        assert done.exit_code in (1, 3) and server.llm.asked
        [told] = re.findall(r"sent (\d+) calls: ([\d,]+) tokens in, ([\d,]+) out", done.stderr)
        calls, tokens_in, tokens_out = (int(number.replace(",", "")) for number in told)
        assert calls == len(server.bodies) and 10_000 < tokens_in + tokens_out <= 20_000
    assert "was used up before the end, so no result is written" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("lab", "elo", "mail", "-r", "bm25", "--condition", "gold", "--out", "elo", "--data", "data"),
        ("lab", "downstream", "mail", "--condition", "gold", "--data", "data"),
        ("lab", "synth", "toolbank", "py:statistics", "--out", "made", "-n", "9"),
    ],
)
def test_a_command_that_stops_at_its_budget_says_what_it_spent(command: tuple[str, ...]) -> None:
    with ScriptedServer() as server:
        stopped = cli(*command, "--llm", server.place, "--llm-budget", "calls=3")
        assert stopped.exit_code == 1 and "The budget of 3 calls is used up" in stopped.stderr, stopped.output
        assert 1 <= len(server.bodies) <= 3 and stopped.stderr.count(f"sent {len(server.bodies)} calls: ") == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_training_counts_its_calls_before_and_never_exceeds_the_budget(bert: str) -> None:
    pytest.importorskip("torch")
    command = ("train", "qta", "--data", "data/mail", "--encoder", bert, "--out", "model")
    with ScriptedServer() as server:
        planned = cli(*command, "--llm", server.place, "--dry-run")
        assert "would send about 12 calls" in planned.stderr and not server.bodies, planned.output
        words = ("feedback-dpr", "--set", "refiner=model", "--set", "rounds=2")
        more = cli("train", *words, *command[2:], "--llm", server.place, "--dry-run", "--json")
        assert json.loads(more.stdout)["calls"] == 2 * 3 * (12 + 6 + 6) and not server.bodies
        stopped = cli(*command, "--llm", server.place, "--llm-budget", "calls=5")
        assert stopped.exit_code == 1 and "Answers so far are kept" in stopped.stderr, stopped.output
        assert 1 <= len(server.bodies) <= 5 and f"sent {len(server.bodies)} calls" in stopped.stderr
        static = cli(*command[:5], "static", "--out", "other", "--llm", server.place)
        assert static.exit_code == 1 and len(server.bodies) <= 5, "what cannot be trained costs nothing"
