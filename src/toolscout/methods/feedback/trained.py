"""Iteration-aware training: an encoder that learns from every wording of a query, and searches with the loop around it.

Before training, the encoder as it is (fine-tuned on the queries first, the paper's warm-up) searches for each training
query, a refiner says the query anew, and so on for some rounds; the wrong tools that each wording finds are its hard
negatives. Then the encoder learns from all rounds together, and "Iteration t" before a wording says which round it is
of (Iterative Feedback, section 4.3). The refiner is a language model (`feedback`), or words of the first tools
(`feedback_prf`), which needs none.

Ours: the sum over rounds begins with the query itself. The epoch is the best on dev in the mean of all rounds, over the
wordings that were made before training; then the loop is run on dev with the trained encoder, and a search gets as many
rounds as are surely better there than none. Without joint training each epoch learns from one round, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from toolscout import llm, metrics
from toolscout.arrays import Places, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.dataset import Qrels
from toolscout.indexes.exact import Exact
from toolscout.methods import Artifacts, BaseRule, dpr, parse_options, zero_shot
from toolscout.methods.feedback.loop import Critic, Refiner, Rounds
from toolscout.methods.feedback.prf import SURE, Expand, both
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.tuning import (
    Batch,
    Count,
    NonNegative,
    Positive,
    Tuning,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Retrieve, Stage, newest
from toolscout.types import Hit, Search, digest, render
from toolscout.workspace import Workspace

__all__ = ["FeedbackDpr", "Options"]

FEEDBACK_DPR_LABEL: Final = "feedback-dpr"
QUERIES_PER_ROUND_BATCH: Final = 256
Texts = Callable[[list[str]], Vectors]


class Options(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; `batch` counts pairs of a query and one of its tools, each with all its wordings.

    Attributes:
        base: the recipe whose encoder is trained further, the warm-up; None: the encoder as it was before any training.
        refiner: `words`: of the first tools; `model`: the language model that is set.
        rounds: of new wordings, at most (T of the paper).
        depth: tools that a refiner is shown, and from which hard negatives are drawn (K).
        tools: how many of them lend words, where the refiner is `words`.
        words: how many words these add.
        joint: whether each step learns from all rounds together.
        hard: hard negatives of a wording at a step.
        balance: weight of a round, to the power of its number (α).
        served: rounds of a search later; None: those that dev says are worth it.
        size: of the vectors, by a linear layer behind the encoder; None: the encoder's own.
        patience: epochs without a better dev before it stops; with `joint` only.
        temperature: cosines are divided by it.
        tool_length: tokens after which the text of a tool is cut, as in `dpr`.
        hold: see `dpr`.
        seconds: for a search with a language model; then the last answer counts.
        tokens: that a language model may spend on a search.
    """

    base: str | None = "dpr"
    refiner: Literal["words", "model"] = "words"
    rounds: Count = 3
    depth: Count = 10
    tools: Count = 2
    words: Count = 5
    joint: bool = True
    hard: NonNegative = 1
    balance: Positive = 1.0
    served: NonNegative | None = None
    size: Count | None = None
    epochs: Count = 4
    batch: Batch = 64
    rate: Positive = 2e-5
    patience: Count = 2
    temperature: Positive = 0.05
    tool_length: Annotated[int, msgspec.Meta(ge=8)] = 64
    hold: NonNegative = 32_768
    seconds: Positive = 60.0
    tokens: Count = 40_000


class Said(NamedTuple):
    """What became of a query before training.

    Attributes:
        texts: its wordings, as the encoder reads them, by round.
        found: the first tools of each.
    """

    texts: list[str]
    found: list[list[str]]


def _expand(chosen: Options, catalogue: Catalogue) -> Expand:
    return Expand(catalogue, tools=chosen.tools, words=chosen.words)


# --- before training --------------------------------------------------------------------------------------------------


class Wordings(msgspec.Struct):
    """What was made before training, as it is kept while it lasts; `fit` is the identity of the fit."""

    fit: str
    train: list[Said]
    dev: list[Said]


def _load_or_make_wordings(
    workspace: Workspace, lesson: Lesson, depth: int, loop: Rounds
) -> tuple[list[Said], list[Said]]:
    """The wordings of train and dev; a fit that goes on takes those that it had."""
    file = workspace.work / "wordings.json"
    if workspace.resume and file.exists():
        held = msgspec.json.decode(file.read_bytes(), type=Wordings)
        if held.fit == workspace.identity:
            workspace.say("going on with the wordings that were made before")
            return held.train, held.dev
    made = Wordings(
        workspace.identity,
        _make_wordings(workspace, lesson, lesson.train, depth, loop),
        _make_wordings(workspace, lesson, lesson.dev, depth, loop),
    )
    workspace.work.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(msgspec.json.encode(made))
    partial.replace(file)
    return made.train, made.dev


def _make_wordings(workspace: Workspace, lesson: Lesson, queries: Qrels, depth: int, loop: Rounds) -> list[Said]:
    """The wordings of each query, and what each found with the encoder as it is."""
    said: list[Said] = []
    ids = list(queries)
    for start in range(0, len(ids), QUERIES_PER_ROUND_BATCH):
        asked = [Search(query=lesson.texts[query], k=depth) for query in ids[start : start + QUERIES_PER_ROUND_BATCH]]
        for search, answers in zip(*loop.answers(asked), strict=True):
            texts = [_add_round_number(number, text) for number, text in enumerate((search.query, *search.rewrites))]
            said.append(Said(texts, [[hit.id for hit in hits[:depth]] for hits in answers]))
        workspace.say(f"saying queries anew: {len(said):,} of {len(ids):,}")
    workspace.say(f"{sum(len(each.texts) - 1 for each in said):,} new wordings of {len(said):,} queries")
    return said


def _add_round_number(number: int, text: str) -> str:
    return f"Iteration {number} {text}"


def _by_query(said: Sequence[Said]) -> list[Places]:
    """Of each query, where its wordings stand among all of them."""
    ends = np.cumsum([len(each.texts) for each in said])
    return [np.arange(end - len(each.texts), end, dtype=np.intp) for end, each in zip(ends, said, strict=True)]


# --- on dev -----------------------------------------------------------------------------------------------------------


def _score_rounds(lesson: Lesson, n_rounds: int, dev: Sequence[Said], cosines: Vectors) -> list[dict[str, float]]:
    """Figures after each round, of wordings that were made before training; a query that stopped keeps its last."""
    rows = _by_query(dev)
    return [
        lesson.evaluate(
            dpr.rank_nearest(cosines[[own[min(number, len(own) - 1)] for own in rows]], lesson.dev, lesson.tools)
        ).means()
        for number in range(n_rounds + 1)
    ]


def _average(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in figures) / len(figures) for name in figures[0]}


def _run_loop(lesson: Lesson, loop: Rounds) -> tuple[list[metrics.PerQuery], list[float]]:
    """What the loop finds on dev with 0, 1, … rounds, and the seconds that each query takes until then."""
    rounds = range(loop.rounds + 1)
    answers: list[list[tuple[Hit, ...]]] = []
    spent = np.zeros(len(rounds))
    ids = list(lesson.dev)
    for start in range(0, len(ids), QUERIES_PER_ROUND_BATCH):
        asked = [
            Search(query=lesson.texts[query], k=dpr.DEV_DEPTH) for query in ids[start : start + QUERIES_PER_ROUND_BATCH]
        ]
        found, some = loop.answers(asked)
        answers += some
        spent += np.sum([_until(search, len(rounds)) for search in found], axis=0)
    judged = [
        lesson.evaluate(
            {
                query: [hit.id for hit in hits[min(number, len(hits) - 1)]]
                for query, hits in zip(ids, answers, strict=True)
            }
        )
        for number in rounds
    ]
    return judged, (spent / len(ids)).tolist()


def _until(search: Search, count: int) -> list[float]:
    """Seconds until each of `count` answers was there; one that has none has that of the last."""
    ends, total = [], 0.0
    for step in search.trace:
        total += step.seconds
        if not step.stage.startswith(FEEDBACK_DPR_LABEL):
            ends.append(total)
    return [ends[number] if number < len(ends) else total for number in range(count)]


def _choose_rounds(by_round: Sequence[metrics.PerQuery], seed: int) -> int:
    """The best number of rounds, if it is surely better than none."""
    plain, *others = map(both, by_round)
    test = metrics.best_of(others, plain, seed=seed)
    return test.place + 1 if test.p < SURE else 0


# --- serving ----------------------------------------------------------------------------------------------------------


def _search(index: Exact, encode: Texts, rounds: int, mask: Any = None) -> Stage:
    """The nearest tools of a wording that says of which round it is."""

    def wording(search: Search) -> str:
        return _add_round_number(min(len(search.rewrites), rounds), newest(search))

    return Retrieve(index, label="dense", encode=encode, mask=mask, depth=DEPTH, wording=wording)


class FeedbackDpr:
    """Tunes an encoder on every wording of its queries."""

    options_type = Options
    needs_usage = True
    transfers = True
    abstains = False
    base: BaseRule | None = dpr.TUNES_ENCODER

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Make the wordings, train on them, and choose the rounds of a search on dev.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, there is nothing to train on, or the refiner needs a language
                model and none is set.
            OverBudget, Unavailable: by the language model. Its answers are kept, and a resumed fit goes on from there.
        """
        catalogue = Catalogue.of(lesson.tools)
        if options.refiner == "words":
            return _fit(workspace, lesson, options, catalogue, _expand(options, catalogue))
        else:
            with llm.connect(workspace.settings) as model:
                return _fit(
                    workspace,
                    lesson,
                    options,
                    catalogue,
                    Critic(model, catalogue.tools, depth=options.depth, strict=True),
                )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The trained encoder, and the loop around it.

        Raises:
            ConfigError: if it refines by a language model and none is set.
        """
        chosen = parse_options({name: each.value for name, each in model.manifest.settings.items()}, Options)
        encoder = dpr.load_model_encoder(model)
        inner = _search(
            workspace.index_tools(catalogue, encoder, dpr.TUNED_TEXT_STYLE),
            encoder.encode,
            chosen.rounds,
            catalogue.mask,
        )
        if not chosen.served:
            return inner
        refiner: Refiner = _expand(chosen, catalogue)
        if chosen.refiner == "model":
            model_of = llm.connect(workspace.settings)
            refiner = Critic(model_of, catalogue.tools, depth=chosen.depth, tokens=chosen.tokens)
        return Rounds(inner, refiner, label=FEEDBACK_DPR_LABEL, rounds=chosen.served, seconds=chosen.seconds)


def _fit(workspace: Workspace, lesson: Lesson, options: Options, catalogue: Catalogue, refiner: Refiner) -> Artifacts:
    from toolscout.training import biencoders

    chosen = options
    encoder = require_tunable(workspace.load_encoder()) if lesson.base is None else dpr.load_base_encoder(lesson.base)
    before = zero_shot.search_vectors(workspace, catalogue, encoder, dpr.TUNED_TEXT_STYLE)
    train, dev = _load_or_make_wordings(
        workspace,
        lesson,
        chosen.depth,
        Rounds(before, refiner, label=FEEDBACK_DPR_LABEL, rounds=chosen.rounds, seconds=float("inf")),
    )

    tower = make_tower(encoder, chosen)
    if chosen.size is not None:
        tower.project(chosen.size, workspace.seed)
    place = {tool.id: number for number, tool in enumerate(lesson.tools)}
    places = _by_query(train)
    tools = tower.tokens([render(tool, dpr.TUNED_TEXT_STYLE) for tool in lesson.tools], "tool", chosen.tool_length)
    task = biencoders.Wordings(
        biencoders.Texts(
            tower=tower,
            queries=tower.tokens([text for said in train for text in said.texts], "query"),
            tools=tools,
            gold=[np.array([place[tool] for tool in gold], dtype=np.intp) for gold in lesson.train.values()],
            dev=tower.tokens([text for said in dev for text in said.texts], "query"),
            judge=lambda cosines: _average(_score_rounds(lesson, chosen.rounds, dev, cosines)),
            identity=digest(
                "feedback-dpr/1", [encoder.fingerprint, lesson.fingerprint, chosen, [said.texts for said in train]]
            ),
            temperature=chosen.temperature,
            hold=chosen.hold,
        ),
        places,
        [
            np.array([place[tool] for tool in found if tool not in gold], dtype=np.intp)
            for said, gold in zip(train, lesson.train.values(), strict=True)
            for found in said.found
        ],
        hard=chosen.hard,
        balance=chosen.balance,
        turns=None if chosen.joint else chosen.epochs,
    )
    done = train_task(workspace, options, task, tower, patience=chosen.patience if chosen.joint else chosen.epochs)

    workspace.say("choosing the rounds of a search on dev")
    index = Exact(tower.vectors(tools[:1]).shape[1])
    index.upsert(catalogue.ids, tower.vectors(tools))
    tuned = _search(index, lambda texts: tower.vectors(tower.tokens(texts, "query")), chosen.rounds)
    by_round, seconds = _run_loop(
        lesson, Rounds(tuned, refiner, label=FEEDBACK_DPR_LABEL, rounds=chosen.rounds, seconds=float("inf"))
    )
    for number, (found, spent) in enumerate(zip(by_round, seconds, strict=True)):
        told = ", ".join(f"{name} {value:.4f}" for name, value in found.means().items())
        workspace.say(f"dev with {number} rounds: {told}, {1000 * spent:.1f} ms a query in batches")
    served = _choose_rounds(by_round, workspace.seed) if chosen.served is None else min(chosen.served, chosen.rounds)
    return Artifacts(
        {},
        metrics=by_round[served].means(),
        chosen={"served": served} if chosen.served is None else {},
        values={
            **describe_training(done),
            "wordings": sum(len(said.texts) for said in train),
            "by_round": [
                {"rounds": number, **found.means(), "seconds": round(spent, 4)}
                for number, (found, spent) in enumerate(zip(by_round, seconds, strict=True))
            ],
        },
        seconds_before=done.earlier,
        files=save_encoder(tower.model),
    )
