"""Downstream evaluation: how often an agent succeeds with the tools that it gets.

The agent calls tools natively, turn by turn. A runner (`toolscout_lab.runners`) runs a tool for real. The model
simulates the other tools from their schemas. Then a model examines whether the request was fulfilled.

A condition says which tools the agent gets: those that a recipe retrieves, all, none, the gold tools, or the gold tools
without some of them or with wrong ones instead (COLT, table 10). The order is that of the retrieval, or shuffled (as
ToolRerank checks).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout.errors import BadReply, ConfigError
from toolscout.metrics import bootstrap_ci
from toolscout.search.pipeline import Stage
from toolscout.types import Search, Tool
from toolscout_lab.llm import LLM, Message, ToolCall, card, prompt, quote
from toolscout_lab.progress import Progress, Say, ignore
from toolscout_lab.runners import MAX_RESULT_CHARS, TYPICAL_RESULT, Runner
from toolscout_lab.synth import chance

__all__ = [
    "AgentProtocol",
    "AgentTask",
    "Condition",
    "Episode",
    "act",
    "condition",
    "measure",
    "select_tools",
    "summary",
]

MAX_TURNS: Final = 8
UNANSWERED: Final = ("refused", "late")  # why the endpoint gave no answer; see `Episode`
CONDITION_KINDS: Final = ("retrieved", "all", "none", "gold", "missing", "wrong")


class AgentTask(msgspec.Struct, frozen=True):
    """A request (`query`), its id in the dataset, and the ids of the `gold` tools, in the order of the dataset."""

    id: str
    query: str
    gold: tuple[str, ...]


class Condition(msgspec.Struct, frozen=True):
    """The tools of an agent.

    Attributes:
        kind: one of `CONDITION_KINDS`.
        count: how many tools are missing or wrong; 0 for other kinds.
        shuffled: whether the tools are in random order.
    """

    kind: str
    count: int = 0
    shuffled: bool = False

    @property
    def name(self) -> str:
        """The text that `condition` reads."""
        return self.kind + (f":{self.count}" if self.count else "") + ("+shuffled" if self.shuffled else "")


def condition(text: str) -> Condition:
    """Read `retrieved`, `all`, `none`, `gold`, `missing:1`, `wrong:2`, each with `+shuffled` if wanted.

    Raises:
        ConfigError: for anything else.
    """
    match = re.fullmatch(r"(\w+)(?::([1-9]\d?))?(\+shuffled)?", text)
    if not match or match[1] not in CONDITION_KINDS or (match[1] in ("missing", "wrong")) != bool(match[2]):
        names = ", ".join(CONDITION_KINDS[:4])
        raise ConfigError(f"expected a condition of {names}, missing:N, wrong:N, found {text!r}")
    return Condition(match[1], int(match[2] or 0), bool(match[3]))


class AgentCall(msgspec.Struct, frozen=True):
    """One call: `tool` id (empty: no such function), arguments as written, the result, `ok`: whether it succeeded."""

    tool: str
    arguments: str
    result: str
    ok: bool


class Episode(msgspec.Struct, frozen=True):
    """One request under one condition. `lab judge answers` reads its JSON: `id`, `request`, `answer`, `condition`.

    Attributes:
        task: id of the request; the key in JSON is `id`.
        request: what the agent was asked.
        given: ids of the tools that the agent saw.
        steps: its calls, in order.
        solved: the examiner's verdict; None: it gave none or was not asked, or the endpoint gave no answer.
        recall: share of the gold tools that were called.
        precision: share of the called tools that are gold.
        exact: whether the called tools are exactly the gold tools.
        order: share of the pairs of gold tools that were called in the dataset's order; None: no two were called. It
            is meaningful if that order is one of calls, as `synth toolbank` writes it.
        stopped: `answer`, or why there is none: `turns`; `refused` if the endpoint refused the request, for example
            because it has too many tools; `late` if it did not answer in time.
        tokens: of the agent's own requests and replies, cached or not.
        dollars: what these tokens cost when they were paid for.
        lab_tokens: the same for simulation and examination; `lab_dollars` too.
    """

    task: str = msgspec.field(name="id")
    request: str
    condition: str
    given: tuple[str, ...]
    steps: tuple[AgentCall, ...]
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

    @property
    def success(self) -> bool | None:
        """Whether the request was solved by calling a tool; None: there is no verdict.

        An answer without any call shows nothing about the tools, and examiners often believe it.
        """
        return None if self.solved is None else self.solved and any(step.tool for step in self.steps)


class Simulated(msgspec.Struct):
    """A simulated result of a tool."""

    result: str


class Grade(msgspec.Struct):
    """The examiner's verdict on an answer: whether it solved the request, and why."""

    solved: bool
    reason: str


def select_tools(
    task: AgentTask, condition: Condition, tools_by_id: Mapping[str, Tool], ranked: Sequence[str], seed: int
) -> list[Tool]:
    """Select the tools of a condition, in the order in which the agent sees them.

    Args:
        task: the request, with its gold tools.
        condition: the condition.
        tools_by_id: all tools, by id.
        ranked: ids of the retrieved tools, best first.
        seed: seed of the missing and wrong tools and of the shuffle.
    """
    random = chance("downstream", seed, task.id, condition.name)
    gold = [id for id in task.gold if id in tools_by_id]
    if condition.kind == "retrieved":
        ids = list(ranked)
    elif condition.kind == "all":
        ids = sorted(tools_by_id)
    elif condition.kind == "none":
        ids = []
    else:
        lost = set(random.sample(gold, min(condition.count, len(gold))))
        ids = [id for id in gold if id not in lost]
        if condition.kind == "wrong":
            not_gold = sorted(set(tools_by_id) - set(gold))
            ids += random.sample(not_gold, min(len(lost), len(not_gold)))
    if condition.shuffled:
        random.shuffle(ids)
    return [tools_by_id[id] for id in ids]


class AgentRun(NamedTuple):
    """The calls of an agent, its answer, why it stopped, and after how many turns."""

    steps: tuple[AgentCall, ...]
    answer: str
    stopped: str
    turns: int


def act(
    llm: LLM,
    query: str,
    tools: Sequence[Tool],
    runners: Sequence[Runner] = (),
    *,
    turns: int = MAX_TURNS,
    simulator: LLM | None = None,
) -> AgentRun:
    """Let an agent fulfil a request with these tools.

    Args:
        llm: the agent.
        query: the request.
        tools: the tools of the agent.
        runners: run tools for real.
        turns: the most turns.
        simulator: simulates the tools that no runner takes; by default the agent's model.

    Raises:
        OverBudget, Unavailable: replies so far stay in the cache.
    """
    menu, steps = _name_functions(tools), list[AgentCall]()
    messages: list[Message] = [
        {"role": "system", "content": prompt("agent", request=query).system},
        {"role": "user", "content": query},
    ]
    schemas = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": str(card(tool)["description"]),
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            },
        }
        for name, tool in menu.items()
    ]
    for turn in range(1, turns + 1):
        try:
            reply = llm.chat(messages, tools=schemas)
        except BadReply as error:
            return AgentRun(tuple(steps), "", "late" if error.reason == "late" else "refused", turn)
        if not reply.calls:
            return AgentRun(tuple(steps), reply.text, "answer", turn)
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
        messages.append({"role": "assistant", "content": reply.text or None, "tool_calls": calls})
        for call in reply.calls:
            steps.append(_answer_call(simulator or llm, menu, call, runners))
            result = quote("result", steps[-1].result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return AgentRun(tuple(steps), "", "turns", turns)


def _name_functions(tools: Sequence[Tool]) -> dict[str, Tool]:
    """Map function names that endpoints accept to the tools of an agent."""
    menu: dict[str, Tool] = {}
    for tool in tools:
        base = re.sub(r"[^A-Za-z0-9_-]+", "_", tool.name).strip("_")[:56] or "tool"
        names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
        menu[next(name for name in names if name not in menu)] = tool
    return menu


def _answer_call(llm: LLM, menu: Mapping[str, Tool], call: ToolCall, runners: Sequence[Runner]) -> AgentCall:
    """Run a call for real if a runner takes its tool; else let the model simulate its result."""
    tool = menu.get(call.name)
    if tool is None:
        return AgentCall("", call.arguments, f"there is no function {call.name!r}", False)
    try:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return AgentCall(tool.id, call.arguments, "the arguments are no JSON object", False)
    for runner in runners:
        if runner.takes(tool):
            return AgentCall(tool.id, call.arguments, *runner.run(tool, arguments))
    try:
        simulated = llm.ask(
            prompt("simulate", tool=card(tool), arguments=arguments),
            Simulated,
            example_reply=Simulated(TYPICAL_RESULT),
        )
    except BadReply as error:
        return AgentCall(tool.id, call.arguments, f"the function failed ({type(error).__name__})", False)
    return AgentCall(tool.id, call.arguments, simulated.result[:MAX_RESULT_CHARS], True)


@dataclasses.dataclass(frozen=True)
class AgentProtocol:
    """How episodes are run.

    Attributes:
        stage: retrieves tools, for the condition `retrieved`.
        k: how many tools it retrieves.
        runners: run tools for real; a tool that none takes is simulated.
        turns: the most turns of an episode.
        seed: seed of the missing and wrong tools and of the shuffle.
        examine: whether a model examines each answer; if not, `solved` is None.
    """

    stage: Stage | None = None
    k: int = 5
    runners: Sequence[Runner] = ()
    turns: int = MAX_TURNS
    seed: int = 0
    examine: bool = True


def measure(
    llm: LLM,
    tasks: Sequence[AgentTask],
    tools: Sequence[Tool],
    conditions: Sequence[Condition],
    protocol: AgentProtocol = AgentProtocol(),
    *,
    judge: LLM | None = None,
    say: Say = ignore,
) -> list[Episode]:
    """Run every task under every condition.

    Args:
        llm: the agent.
        tasks: requests with their gold tools.
        tools: all tools.
        conditions: which tools the agent is given.
        protocol: how episodes are run.
        judge: simulates tools and examines answers; by default the agent's model.
        say: called with progress messages.

    Raises:
        ConfigError: for the condition `retrieved` without a stage, and for a runner that takes none of the tools.
        OverBudget, Unavailable: replies so far stay in the cache; a new measurement continues from there.
    """
    _check_measurable(tools, conditions, protocol)
    tools_by_id = {tool.id: tool for tool in tools}
    ranked: dict[str, tuple[str, ...]] = {}
    if protocol.stage:
        searches = protocol.stage([Search(query=task.query, k=protocol.k) for task in tasks])
        ranked = {task.id: tuple(search.ids[: protocol.k]) for task, search in zip(tasks, searches, strict=True)}

    def run_episode(item: tuple[Condition, AgentTask]) -> Episode:
        condition, task = item
        selected = select_tools(task, condition, tools_by_id, ranked.get(task.id, ()), protocol.seed)
        return _run_episode(llm, judge or llm, task, condition, selected, protocol)

    work = list(itertools.product(conditions, tasks))
    return list(Progress(say, "episodes", len(work)).count(llm.map(run_episode, work)))


def _check_measurable(tools: Sequence[Tool], conditions: Sequence[Condition], protocol: AgentProtocol) -> None:
    """Refuse conditions that need a recipe that is not there, and runners that can run no tool."""
    if protocol.stage is None and any(condition.kind == "retrieved" for condition in conditions):
        raise ConfigError("The condition `retrieved` needs a recipe that retrieves the tools. Give --recipe.")
    for runner in protocol.runners:
        if not any(map(runner.takes, tools)):
            raise ConfigError(
                f"{runner.name} can run none of the {len(tools):,} tools for real. Check the name, or leave it out."
            )


def _run_episode(
    llm: LLM, judge: LLM, task: AgentTask, condition: Condition, tools: Sequence[Tool], protocol: AgentProtocol
) -> Episode:
    """Let the agent fulfil the request with these tools, and grade the run. Agent and laboratory pay separately."""
    agent, lab = llm.limit_tokens(None), judge.limit_tokens(None)
    run = act(agent, task.query, tools, protocol.runners, turns=protocol.turns, simulator=lab)
    solved = _grade_run(lab, task, run) if protocol.examine else None
    called, gold = {step.tool for step in run.steps if step.tool}, set(task.gold)
    right = len(called & gold)
    return Episode(
        task=task.id,
        request=task.query,
        condition=condition.name,
        given=tuple(tool.id for tool in tools),
        steps=run.steps,
        answer=run.answer,
        stopped=run.stopped,
        turns=run.turns,
        solved=solved,
        recall=right / max(1, len(gold)),
        precision=right / len(called) if called else 0.0,
        exact=called == gold,
        order=_score_order([step.tool for step in run.steps], task.gold),
        tokens=agent.answered.tokens,
        dollars=agent.answered.dollars,
        lab_tokens=lab.answered.tokens,
        lab_dollars=lab.answered.dollars,
    )


def _score_order(called: Sequence[str], gold: Sequence[str]) -> float | None:
    """Return the share of pairs of gold tools whose first calls have the order of `gold`; None without a pair."""
    first = {tool: place for place, tool in reversed(list(enumerate(called)))}
    pairs = list(itertools.combinations([first[tool] for tool in gold if tool in first], 2))
    return sum(earlier < later for earlier, later in pairs) / len(pairs) if pairs else None


def _grade_run(llm: LLM, task: AgentTask, run: AgentRun) -> bool | None:
    """Return whether the run fulfilled the request; None if the endpoint gave no answer, or the examiner no verdict."""
    if run.stopped != "answer":
        return None if run.stopped in UNANSWERED else False
    calls = [{"function": step.tool, "arguments": step.arguments, "result": step.result} for step in run.steps]
    try:
        return llm.ask(
            prompt("grade", request=task.query, calls=calls, answer=run.answer),
            Grade,
            example_reply=Grade(True, "Every wish was met from what the calls gave back."),
        ).solved
    except BadReply:
        return None


def summary(episodes: Sequence[Episode]) -> list[dict[str, object]]:
    """Summarise episodes by condition.

    Returns:
        For each condition: success (share of the examined episodes that were solved with a call of a tool) with its
        95 % interval; solved_without_call (number of solved episodes without any call, which do not count as success);
        pass (an answer was given); recall, precision, exactness and order of the calls; wins and losses against the
        first condition, where both were examined; and the cost of the agent, and of simulation and examination
        (`lab_`).
    """
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.condition, []).append(episode)
    baseline = {episode.task: episode.success for episode in next(iter(groups.values()), [])}
    return [{"condition": name, "n": len(group), **_summarise(group, baseline)} for name, group in groups.items()]


def _summarise(group: Sequence[Episode], baseline: Mapping[str, bool | None]) -> dict[str, object]:
    """Summarise the episodes of one condition, and compare their successes with those of the baseline.

    An episode is *solved* if the examiner says that the request was fulfilled, and a *success* if it was solved by
    calling a tool. It counts for "pass" if the agent gave an answer, whatever the answer is.
    """
    pairs = [(episode.success, baseline.get(episode.task)) for episode in group]
    orders = [episode.order for episode in group if episode.order is not None]
    means: dict[str, Sequence[float]] = {
        "call_recall": [episode.recall for episode in group],
        "call_precision": [episode.precision for episode in group],
        "call_exact": [episode.exact for episode in group],
        "call_order": orders,
        "failed_calls": [sum(not step.ok for step in episode.steps) for episode in group],
        "turns": [episode.turns for episode in group],
        "tools_given": [len(episode.given) for episode in group],
        "tokens": [episode.tokens for episode in group],
        "lab_tokens": [episode.lab_tokens for episode in group],
    }
    return {
        **{stopped: sum(episode.stopped == stopped for episode in group) for stopped in UNANSWERED},
        "ungraded": sum(episode.solved is None for episode in group),
        **_estimate_success([episode.success for episode in group if episode.success is not None]),
        "solved_without_call": sum(bool(episode.solved) and not episode.success for episode in group),
        "pass": _mean([episode.stopped == "answer" for episode in group]),
        "wins": pairs.count((True, False)),
        "losses": pairs.count((False, True)),
        **{name: _mean(values) if values else None for name, values in means.items()},
        "dollars": round(sum(episode.dollars for episode in group), 6),
        "lab_dollars": round(sum(episode.lab_dollars for episode in group), 6),
    }


def _estimate_success(verdicts: Sequence[bool]) -> dict[str, object]:
    """Return the share of successful episodes with its 95 % interval; None without verdicts."""
    if not verdicts:
        return {"success": None, "success_ci95": None}
    solved = np.array(verdicts, dtype=float)
    [(low, high)] = bootstrap_ci(solved[None, :], 0)
    return {"success": _mean(verdicts), "success_ci95": [round(float(low), 4), round(float(high), 4)]}


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(np.array(values, dtype=float))), 4)
