"""What better retrieval is worth in the end: an agent that has only the tools it was given, and whether it succeeds.

The agent calls tools natively, turn by turn. A tool is run for real where a runner takes it (`toolscout.lab.runners`),
and is simulated from its schema by the model where none does. A model then examines whether the
request was fulfilled. Conditions: what a recipe retrieved, every tool, none, the gold tools, and gold tools of which
some are missing or wrong (COLT, table 10); in the order of retrieval, or shuffled (ToolRerank's check).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.errors import BadReply, ConfigError
from toolscout.lab.runners import MOST_RESULT, TYPICAL, Runner
from toolscout.lab.synth import chance
from toolscout.llm import LLM, Message, ToolCall, card, prompt, quote
from toolscout.metrics import bootstrap_ci
from toolscout.search.pipeline import Stage
from toolscout.types import Search, Tool

__all__ = ["Condition", "Episode", "Task", "act", "condition", "measure", "summary"]

TURNS: Final = 8
KINDS: Final = ("retrieved", "all", "none", "gold", "missing", "wrong")


class Task(msgspec.Struct, frozen=True):
    """A request and the tools that it needs."""

    id: str
    query: str
    gold: tuple[str, ...]


class Condition(msgspec.Struct, frozen=True):
    """Which tools the agent is given: one of `KINDS`, how many are missing or wrong, whether they are shuffled."""

    kind: str
    count: int = 0
    shuffled: bool = False

    @property
    def name(self) -> str:
        """As `condition` reads it."""
        return self.kind + (f":{self.count}" if self.count else "") + ("+shuffled" if self.shuffled else "")


def condition(text: str) -> Condition:
    """Read `retrieved`, `all`, `none`, `gold`, `missing:1`, `wrong:2`, each with `+shuffled` if wanted.

    Raises:
        ConfigError: for anything else.
    """
    match = re.fullmatch(r"(\w+)(?::([1-9]\d?))?(\+shuffled)?", text)
    if not match or match[1] not in KINDS or (match[1] in ("missing", "wrong")) != bool(match[2]):
        raise ConfigError(f"expected a condition of {', '.join(KINDS[:4])}, missing:N, wrong:N, found {text!r}")
    return Condition(match[1], int(match[2] or 0), bool(match[3]))


class Step(msgspec.Struct, frozen=True):
    """One call: tool id (empty: no such function), arguments as written, what came back, whether it went well."""

    tool: str
    arguments: str
    result: str
    ok: bool


class Episode(msgspec.Struct, frozen=True):
    """One request under one condition.

    Attributes:
        solved: what the examiner says; None: no verdict of the right shape, or the agent was refused.
        recall: share of the gold tools that were called.
        precision: share of the called tools that are gold.
        exact: whether those called are the gold tools.
        order: share of the pairs of gold tools that were called in the order in which the dataset names them; None: no
            two were called. It means something where that order is one of calls, as `synth toolbank` writes it.
        stopped: `answer`, or why there is none: `turns`; `refused`, if the endpoint does not take the request, as with
            more tools than it allows.
        tokens: of the agent's own requests and replies, wherever the replies came from; `dollars`: what they cost when
            they were paid for.
        lab_tokens: the same of what simulates and examines; `lab_dollars` too.
    """

    task: str
    condition: str
    given: tuple[str, ...]
    steps: tuple[Step, ...]
    answer: str
    stopped: str
    turns: int
    solved: bool | None
    recall: float
    precision: float
    exact: bool
    order: float | None
    tokens: int
    dollars: float
    lab_tokens: int
    lab_dollars: float


class Simulated(msgspec.Struct):
    """What a tool could have given back."""

    result: str


class Grade(msgspec.Struct):
    """The examiner's verdict."""

    solved: bool
    reason: str


@dataclasses.dataclass
class _Desk:
    """The functions that an agent is given, under names that endpoints take."""

    tools: dict[str, Tool]

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> _Desk:
        named: dict[str, Tool] = {}
        for tool in tools:
            base = re.sub(r"[^A-Za-z0-9_-]+", "_", tool.name).strip("_")[:56] or "tool"
            name, number = base, 1
            while name in named:
                number += 1
                name = f"{base}_{number}"
            named[name] = tool
        return cls(named)

    def schemas(self) -> list[dict[str, Any]]:
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": str(card(tool)["description"]),
                    "parameters": tool.parameters or {"type": "object", "properties": {}},
                },
            }
            for name, tool in self.tools.items()
        ]


def given(task: Task, kind: Condition, held: Mapping[str, Tool], ranked: Sequence[str], seed: int) -> list[Tool]:
    """The tools of a condition, in the order in which the agent sees them.

    Args:
        task: with its gold tools.
        kind: the condition.
        held: every tool, by id.
        ranked: what was retrieved, best first.
        seed: of what is missing, wrong or shuffled.
    """
    source = chance("downstream", seed, task.id, kind.name)
    gold = [id for id in task.gold if id in held]
    if kind.kind == "retrieved":
        ids = list(ranked)
    elif kind.kind == "all":
        ids = sorted(held)
    elif kind.kind == "none":
        ids = []
    else:
        lost = set(source.sample(gold, min(kind.count, len(gold))))
        ids = [id for id in gold if id not in lost]
        if kind.kind == "wrong":
            others = sorted(set(held) - set(gold))
            ids += source.sample(others, min(len(lost), len(others)))
    if kind.shuffled:
        source.shuffle(ids)
    return [held[id] for id in ids]


def act(
    llm: LLM,
    query: str,
    tools: Sequence[Tool],
    runners: Sequence[Runner] = (),
    *,
    turns: int = TURNS,
    simulator: LLM | None = None,
) -> _Run:
    """Let an agent fulfil a request with these tools.

    Args:
        llm: the agent.
        query: the request.
        tools: what it is given, all of it.
        runners: run tools for real.
        turns: at most.
        simulator: plays the tools that no runner takes; by default the agent's model.

    Raises:
        OverBudget, Unavailable: what is answered is kept.
    """
    desk, first = _Desk.of(tools), prompt("agent", request=query)
    messages: list[Message] = [{"role": "system", "content": first.system}, {"role": "user", "content": query}]
    schemas, steps = desk.schemas(), list[Step]()
    for turn in range(1, turns + 1):
        try:
            reply = llm.chat(messages, tools=schemas)
        except BadReply:
            return _Run(tuple(steps), "", "refused", turn)
        if not reply.calls:
            return _Run(tuple(steps), reply.text, "answer", turn)
        messages.append(_said(reply.text, reply.calls))
        for call in reply.calls:
            step = _done(simulator or llm, desk, call, runners)
            steps.append(step)
            content = quote("result", step.result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return _Run(tuple(steps), "", "turns", turns)


@dataclasses.dataclass(frozen=True)
class _Run:
    """What an agent did: its calls, its answer, why it stopped, after how many turns."""

    steps: tuple[Step, ...]
    answer: str
    stopped: str
    turns: int


def _said(text: str, calls: Sequence[ToolCall]) -> Message:
    return {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ],
    }


def _done(llm: LLM, desk: _Desk, call: ToolCall, runners: Sequence[Runner]) -> Step:
    tool = desk.tools.get(call.name)
    if tool is None:
        return Step("", call.arguments, f"there is no function {call.name!r}", False)
    try:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return Step(tool.id, call.arguments, "the arguments are no JSON object", False)
    for runner in runners:
        if runner.takes(tool):
            return Step(tool.id, call.arguments, *runner.run(tool, arguments))
    try:
        said = llm.ask(
            prompt("simulate", tool=card(tool), arguments=arguments),
            Simulated,
            typical=Simulated(TYPICAL),
        )
    except BadReply as error:
        return Step(tool.id, call.arguments, f"the function failed ({type(error).__name__})", False)
    return Step(tool.id, call.arguments, said.result[:MOST_RESULT], True)


def measure(
    llm: LLM,
    tasks: Sequence[Task],
    tools: Sequence[Tool],
    conditions: Sequence[Condition],
    *,
    stage: Stage | None = None,
    k: int = 5,
    runners: Sequence[Runner] = (),
    turns: int = TURNS,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[Episode]:
    """Every task under every condition.

    Args:
        llm: agent, simulator and examiner.
        tasks: requests with their gold tools.
        tools: all that there are.
        conditions: what the agent is given.
        stage: retrieves, for the condition `retrieved`.
        k: how many it retrieves.
        runners: run tools for real; what none takes is simulated.
        turns: of an episode, at most.
        seed: of what is missing, wrong or shuffled.
        say: told how far it is.

    Raises:
        ConfigError: for the condition `retrieved` without a stage, and for a runner that takes none of the tools.
        OverBudget, Unavailable: what is answered is kept; begun again, the measurement goes on from there.
    """
    if stage is None and any(each.kind == "retrieved" for each in conditions):
        raise ConfigError("condition retrieved: expected a recipe to retrieve with, found none: give --recipe")
    for runner in runners:
        if not any(map(runner.takes, tools)):
            raise ConfigError(
                f"expected tools of {runner.name} to run for real, found none among the {len(tools):,} tools: "
                "check the name, or leave it out"
            )
    held = {tool.id: tool for tool in tools}
    found = stage([Search(query=task.query, k=k) for task in tasks]) if stage else []
    ranked = {task.id: search.ids[:k] for task, search in zip(tasks, found, strict=False)}

    def one(item: tuple[Task, Condition]) -> Episode:
        task, kind = item
        shown = given(task, kind, held, ranked.get(task.id, ()), seed)
        agent, lab = llm.limit_tokens(None), llm.limit_tokens(None)
        done = act(agent, task.query, shown, runners, turns=turns, simulator=lab)
        solved = _graded(lab, task, done)
        called, gold = {step.tool for step in done.steps if step.tool}, set(task.gold)
        right = len(called & gold)
        return Episode(
            task=task.id,
            condition=kind.name,
            given=tuple(tool.id for tool in shown),
            steps=done.steps,
            answer=done.answer,
            stopped=done.stopped,
            turns=done.turns,
            solved=solved,
            recall=right / max(1, len(gold)),
            precision=right / len(called) if called else 0.0,
            exact=called == gold,
            order=_order([step.tool for step in done.steps], task.gold),
            tokens=agent.answered.tokens,
            dollars=agent.answered.dollars,
            lab_tokens=lab.answered.tokens,
            lab_dollars=lab.answered.dollars,
        )

    episodes = []
    work = [(task, kind) for kind in conditions for task in tasks]
    for number, episode in enumerate(llm.map(one, work), 1):
        episodes.append(episode)
        if number % 20 == 0:
            say(f"{number:,} of {len(work):,} episodes")
    return episodes


def _order(called: Sequence[str], gold: Sequence[str]) -> float | None:
    """Share of the pairs of `gold` whose first calls stand in its order; None without a pair."""
    first = {tool: place for place, tool in reversed(list(enumerate(called)))}
    pairs = list(itertools.combinations([first[tool] for tool in gold if tool in first], 2))
    return sum(one < other for one, other in pairs) / len(pairs) if pairs else None


def _graded(llm: LLM, task: Task, done: _Run) -> bool | None:
    if done.stopped != "answer":
        return None if done.stopped == "refused" else False
    calls = [{"function": step.tool, "arguments": step.arguments, "result": step.result} for step in done.steps]
    try:
        return llm.ask(
            prompt("grade", request=task.query, calls=calls, answer=done.answer),
            Grade,
            typical=Grade(True, "Every wish was met from what the calls gave back."),
        ).solved
    except BadReply:
        return None


def summary(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """For each condition: success (share of examined episodes) with its 95 % interval, pass (an answer was given), the
    recall, precision, exactness and order of the calls, wins and losses against the first condition (where both were
    examined), and the cost: of the agent, and `lab_` of what simulates and examines."""
    groups: dict[str, list[Episode]] = {}
    for each in episodes:
        groups.setdefault(each.condition, []).append(each)
    first = {each.task: each.solved for each in next(iter(groups.values()), [])}
    rows = []
    for name, held in groups.items():
        solved = np.array([each.solved for each in held if each.solved is not None], dtype=float)
        low, high = bootstrap_ci(solved[None, :], 0)[0] if len(solved) else (np.nan, np.nan)
        pairs = [(each.solved, first.get(each.task)) for each in held]
        both = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
        rows.append(
            {
                "condition": name,
                "n": len(held),
                "refused": sum(each.stopped == "refused" for each in held),
                "ungraded": sum(each.solved is None for each in held),
                "success": round(float(solved.mean()), 4) if len(solved) else None,
                "success_ci95": [round(float(low), 4), round(float(high), 4)] if len(solved) else None,
                "pass": _mean(each.stopped == "answer" for each in held),
                "wins": sum(mine and not other for mine, other in both),
                "losses": sum(other and not mine for mine, other in both),
                "call_recall": _mean(each.recall for each in held),
                "call_precision": _mean(each.precision for each in held),
                "call_exact": _mean(each.exact for each in held),
                "call_order": _mean(ordered) if (ordered := [e.order for e in held if e.order is not None]) else None,
                "failed_calls": _mean(sum(not step.ok for step in each.steps) for each in held),
                "turns": _mean(each.turns for each in held),
                "tools_given": _mean(len(each.given) for each in held),
                "tokens": _mean(each.tokens for each in held),
                "dollars": round(sum(each.dollars for each in held), 6),
                "lab_tokens": _mean(each.lab_tokens for each in held),
                "lab_dollars": round(sum(each.lab_dollars for each in held), 6),
            }
        )
    return rows


def _mean(values: Any) -> float:
    return round(float(np.mean([float(value) for value in values])), 4)
