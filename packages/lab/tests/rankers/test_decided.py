"""`decided` asks a decision model over real HTTP, in the "System One" format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import Unavailable
from toolscout.scout import Scout
from toolscout_lab.llm import Rehearsal, connect
from toolscout_lab.testing import ScriptedServer

pytestmark = pytest.mark.net
TOOLS = [
    {"name": "refund", "description": "Refund a payment to a customer's card."},
    {"name": "charge", "description": "Charge a customer's card for a payment."},
    {"name": "list", "description": "List the payments of a customer."},
]
Choose = Callable[[str, dict[str, str]], dict[str, float]]


class DecisionServer(ScriptedServer):
    """Answers each question by a function of the state and the options; other replies by `says`."""

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self.choose = choose

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        self.bodies.append(body)
        if self.says is not None:
            return self.says
        if path != "/v1/systemone":
            return 404, {}, {"error": {"message": f"no such path: {path}"}}
        answers = {}
        for name, question in body["questions"].items():
            chances = self.choose(body["state"], question["criteria"])
            best = max(chances, key=chances.__getitem__)
            answers[name] = {"type": "choice", "choice": best, "probabilities": chances, "confidence": chances[best]}
        return 200, {}, {"model": body["model"], "answers": answers, "usage": {"input_tokens": 7, "output_tokens": 0}}


def prefer(word: str, none: float = 0.1) -> Choose:
    """Prefer the option whose description has the word; "none" gets a fixed probability."""

    def choose(_: str, options: dict[str, str]) -> dict[str, float]:
        fitting = [name for name, text in options.items() if word in text and name != "none"]
        others = [name for name in options if name not in (*fitting[:1], "none")]
        best = (1 - none) / 2 if fitting else 0.0
        chances = dict.fromkeys(others, (1 - none - best) / len(others))
        return {name: none if name == "none" else chances.get(name, best) for name in options}

    return choose


@pytest.fixture
def server() -> Iterator[DecisionServer]:
    with DecisionServer(prefer("List")) as opened:
        yield opened


def open_scout(home: Path, server: ScriptedServer, **settings: Any) -> Scout:
    scout = Scout(home=home, llm=server.place, recipe="decided", **settings)
    scout.add(TOOLS, name="pay")
    return scout


def test_the_likeliest_tool_comes_first_and_the_places_keep_their_scores(
    server: DecisionServer, tmp_path: Path
) -> None:
    with open_scout(tmp_path, server) as scout:
        plain = scout.search("refund the payment of a customer", recipe="scout", k=3)
        decided = scout.search("refund the payment of a customer", k=3)
    assert plain.ids[0] == "pay/refund" and decided.ids[0] == "pay/list"
    assert set(decided.ids) == set(plain.ids) and decided.doubt is None
    assert [hit.score for hit in decided.hits] == sorted((hit.score for hit in decided.hits), reverse=True)
    [body] = server.bodies
    [question] = body["questions"].values()
    assert body["state"] == "refund the payment of a customer" and body["model"] == server.llm.model
    assert question["type"] == "choice" and list(question["criteria"]) == ["1", "2", "3", "none"]
    assert "refund: Refund a payment to a customer's card." in question["criteria"].values()


@pytest.mark.parametrize("refuse", [False, True])
def test_a_likely_none_is_doubt_and_with_refuse_no_hits(server: DecisionServer, tmp_path: Path, refuse: bool) -> None:
    server.choose = prefer("List", none=0.7)
    with open_scout(tmp_path, server, refuse=refuse) as scout:
        answer = scout.search("refund the payment of a customer", k=3)
    assert "with a probability of 0.70" in str(answer.doubt)
    assert (answer.kind, bool(answer.hits), bool(answer.weak)) == (
        ("no_tool_fits", False, True) if refuse else ("tools", True, False)
    )


def test_a_request_of_two_steps_is_not_asked_about(server: DecisionServer, tmp_path: Path) -> None:
    with open_scout(tmp_path, server) as scout:
        answer = scout.search("refund the last payment, and list the payments of the customer", k=3)
    assert len(answer.steps) == 2 and server.bodies == []


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ((200, {}, {"answers": {}}), "no decision"),
        ((200, {}, {"answers": {"fits": {"probabilities": {"1": 7.0}}}}), "no decision"),
        ((200, {}, {"answers": {"fits": {"probabilities": {"another": 1.0}}}}), "no probability of an option"),
        ((200, {}, b"[" * 100_000), "no decision"),
        ((400, {}, {"error": {"message": "too long"}}), "refused the request"),
        ((401, {}, {"error": {"message": "key"}}), "refused the key"),
    ],
)
def test_without_a_usable_reply_the_order_of_the_base_stays_and_the_answer_says_why(
    server: DecisionServer, tmp_path: Path, says: Any, problem: str
) -> None:
    server.says = says
    with open_scout(tmp_path, server) as scout:
        answer = scout.search("refund the payment of a customer", k=3)
    assert answer.ids[0] == "pay/refund" and answer.doubt is None
    assert "decided: " in str(answer.degraded) and problem in str(answer.degraded)


def test_a_decision_is_paid_for_once_and_counts_in_the_budget(server: DecisionServer, tmp_path: Path) -> None:
    options = {"1": "refund: Refund.", "none": "None of these."}
    with open_scout(tmp_path, server) as scout, connect(scout.settings) as model:
        first = model.choose("refund it", "Which?", options)
        assert model.choose("refund it", "Which?", options) == first and len(server.bodies) == 1
        assert (model.spent.calls, model.spent.tokens_in) == (1, 7)
        server.says = 500, {"Retry-After": "0"}, {"error": {"message": "down"}}
        with pytest.raises(Unavailable, match="failed"):
            model.choose("charge it", "Which?", options, seconds=1.0)
    rehearsal = Rehearsal()
    assert rehearsal.choose("refund it", "Which?", options) == {"1": 0.5, "none": 0.5}
    assert rehearsal.spent.tokens_in > 5
