"""Iteration-aware training: an encoder learns from every wording of a query, and serves inside the feedback loop.

Before training, the untrained encoder (or one fine-tuned on the queries, the paper's warm-up) searches for each
training query. A refiner rewords the query, and this repeats for some rounds. The wrong tools that a wording finds are
its hard negatives. Then the encoder learns from all rounds together. The prefix "Iteration t" of a wording names its
round (Iterative Feedback, section 4.3). The refiner is a language model (`feedback`) or adds words of the first tools
(`feedback_prf`).

Where we differ: the sum over rounds begins with the query itself. The epoch is the best on dev in the mean over all
rounds, with the wordings from before training. Then the loop runs on dev with the trained encoder. A search gets the
best number of rounds if it is significantly better than none. Without joint training each epoch learns from one
round, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.arrays import Places, Vectors
from toolscout.dataset import Qrels
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.indexes.exact import Exact
from toolscout.rankers import (
    Artifacts,
    Batch,
    Count,
    NonNegative,
    Positive,
    parse_options,
    zero_shot,
)
from toolscout.rankers.lesson import Lesson
from toolscout.search.home_resources import index_words
from toolscout.search.pipeline import DEPTH, Retrieve, Stage, newest
from toolscout.search.resources import Resources
from toolscout.types import Hit, Search, digest, render
from toolscout_lab.llm.prompts import version
from toolscout_lab.rankers import LabMethod, dpr
from toolscout_lab.rankers.feedback.loop import CRITIC_PROMPTS, Critic, Refiner, Rounds
from toolscout_lab.rankers.feedback.prf import MAX_P_VALUE, Expand, sum_quality
from toolscout_lab.rankers.shared.tuning import (
    Tuning,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)
from toolscout_lab.resources import connect_llm, lend_llm
from toolscout_lab.statistics import best_of

if TYPE_CHECKING:
    from toolscout_lab.training import Task
    from toolscout_lab.training.towers import Tokens, Tower

__all__ = ["FeedbackDpr", "FeedbackDprOptions"]

FEEDBACK_DPR_LABEL: Final = "feedback-dpr"
QUERIES_PER_ROUND_BATCH: Final = 256
Texts = Callable[[list[str]], Vectors]


class FeedbackDprOptions(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; `batch` counts pairs of a query and one of its tools, each with all its wordings.

    Attributes:
        base: the recipe whose encoder is trained further, the warm-up; None: the encoder before any training.
        refiner: `words` adds words of the first tools; `model` asks the language model of the settings.
        rounds: maximum number of new wordings of a query (T of the paper); 0: only hard negatives are new.
        depth: number of tools that a refiner sees and that hard negatives are drawn from (K of the paper).
        tools: number of the first tools that lend words to the refiner `words`.
        words: number of words that it adds.
        joint: whether each step learns from all rounds together.
        hard: number of hard negatives per wording and step.
        balance: α; round t has the weight α^t.
        served: number of rounds of a search; None: chosen on dev.
        size: length of the vectors, reached by a linear layer behind the encoder; None: the encoder's own.
        patience: epochs without improvement on dev before training stops; with `joint` only.
        temperature: divisor of the cosines.
        tool_length: maximum tokens of a tool's text, as in `dpr`.
        hold: see `dpr`.
        seconds: time limit of a search with a language model; then the last answer counts.
        tokens: token budget of the language model for a search.
    """

    base: str | None = "dpr"
    refiner: Literal["words", "model"] = "words"
    rounds: NonNegative = 3
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


class QueryWordings(NamedTuple):
    """The wordings of a query before training, with their results.

    Attributes:
        texts: the wordings by round, as the encoder reads them.
        found: the first tools of each wording.
    """

    texts: list[str]
    found: list[list[str]]


def _make_expander(chosen: FeedbackDprOptions, catalogue: Catalogue) -> Expand:
    return Expand(catalogue, tools=chosen.tools, words=chosen.words)


# --- before training --------------------------------------------------------------------------------------------------


class Wordings(msgspec.Struct):
    """All wordings of a fit, stored for a resumed fit; `fit` is the identity of the fit."""

    fit: str
    train: list[QueryWordings]
    dev: list[QueryWordings]


def _load_or_make_wordings(resources: Resources, lesson: Lesson, depth: int, loop: Rounds) -> Wordings:
    """Load the wordings of train and dev if a resumed fit has them; else make and store them."""
    file = resources.run.work / "wordings.json"
    if resources.run.resume and file.exists():
        stored = msgspec.json.decode(file.read_bytes(), type=Wordings)
        if stored.fit == resources.run.identity:
            resources.say("reusing the wordings of the interrupted fit")
            return stored
    wordings = Wordings(
        resources.run.identity,
        _make_wordings(resources, lesson, lesson.train, depth, loop),
        _make_wordings(resources, lesson, lesson.dev, depth, loop),
    )
    resources.run.work.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(msgspec.json.encode(wordings))
    partial.replace(file)
    return wordings


def _make_wordings(
    resources: Resources, lesson: Lesson, queries: Qrels, depth: int, loop: Rounds
) -> list[QueryWordings]:
    """Make the wordings of each query with the untrained encoder, and record what each finds."""
    wordings: list[QueryWordings] = []
    ids = list(queries)
    for start in range(0, len(ids), QUERIES_PER_ROUND_BATCH):
        batch = [Search(query=lesson.texts[query], k=depth) for query in ids[start : start + QUERIES_PER_ROUND_BATCH]]
        for search, answers in zip(*loop.answers(batch), strict=True):
            texts = [_add_round_number(number, text) for number, text in enumerate((search.query, *search.rewrites))]
            wordings.append(QueryWordings(texts, [[hit.id for hit in hits[:depth]] for hits in answers]))
        resources.say(f"rewording queries: {len(wordings):,} of {len(ids):,}")
    n_new = sum(len(query.texts) - 1 for query in wordings)
    resources.say(f"{n_new:,} new wordings of {len(wordings):,} queries")
    return wordings


def _add_round_number(number: int, text: str) -> str:
    return f"Iteration {number} {text}"


def _group_by_query(wordings: Sequence[QueryWordings]) -> list[Places]:
    """Return for each query the positions of its wordings among all wordings."""
    sizes = [len(query.texts) for query in wordings]
    return [np.arange(end - size, end, dtype=np.intp) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]


# --- on dev -----------------------------------------------------------------------------------------------------------


def _score_rounds(
    lesson: Lesson, n_rounds: int, dev: Sequence[QueryWordings], cosines: Vectors
) -> list[dict[str, float]]:
    """Score each round on the wordings from before training. A query that stopped keeps its last wording."""
    rows = _group_by_query(dev)
    return [
        lesson.evaluate(
            dpr.rank_nearest(
                cosines[[places[min(number, len(places) - 1)] for places in rows]], lesson.dev, lesson.tools
            )
        ).means()
        for number in range(n_rounds + 1)
    ]


def _average_figures(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(of_round[name] for of_round in figures) / len(figures) for name in figures[0]}


def _run_loop(lesson: Lesson, loop: Rounds) -> tuple[list[metrics.PerQuery], list[float]]:
    """Score the loop on dev with 0, 1, … rounds; return the figures and the mean seconds per query."""
    rounds = range(loop.rounds + 1)
    answers: list[list[tuple[Hit, ...]]] = []
    spent = np.zeros(len(rounds))
    ids = list(lesson.dev)
    for start in range(0, len(ids), QUERIES_PER_ROUND_BATCH):
        batch = [
            Search(query=lesson.texts[query], k=dpr.DEV_DEPTH) for query in ids[start : start + QUERIES_PER_ROUND_BATCH]
        ]
        searches, batch_answers = loop.answers(batch)
        answers += batch_answers
        spent += np.sum([_time_answers(search, len(rounds)) for search in searches], axis=0)
    by_round = [
        lesson.evaluate(
            {
                query: [hit.id for hit in hits[min(number, len(hits) - 1)]]
                for query, hits in zip(ids, answers, strict=True)
            }
        )
        for number in rounds
    ]
    return by_round, (spent / len(ids)).tolist()


def _time_answers(search: Search, count: int) -> list[float]:
    """Return the seconds until the answer of each of `count` rounds, the search with the query itself included.

    The trace alternates between searches and steps of the loop, which carry `FEEDBACK_DPR_LABEL`. Each search ends
    with an answer. A query that stopped earlier keeps its last answer, so its further rounds take the whole time.
    """
    answered_after, total = [], 0.0
    for step in search.trace:
        total += step.seconds
        if not step.stage.startswith(FEEDBACK_DPR_LABEL):
            answered_after.append(total)
    return [answered_after[number] if number < len(answered_after) else total for number in range(count)]


def _choose_rounds(by_round: Sequence[metrics.PerQuery], seed: int) -> int:
    """Choose the best number of rounds if there is one that is significantly better than none."""
    plain, *refined = map(sum_quality, by_round)
    if not refined:
        return 0
    test = best_of(refined, plain, seed=seed)
    return test.trial + 1 if test.p < MAX_P_VALUE else 0


# --- serving ----------------------------------------------------------------------------------------------------------


def _search_by_round(index: Exact, encode: Texts, rounds: int, mask: Any = None) -> Stage:
    """Build the search for the nearest tools; the wording gets the prefix of its round."""

    def wording(search: Search) -> str:
        return _add_round_number(min(len(search.rewrites), rounds), newest(search))

    return Retrieve(index, label="dense", encode=encode, mask=mask, depth=DEPTH, wording=wording)


class FeedbackDpr(LabMethod):
    """Tunes an encoder on every wording of its queries."""

    options_type = FeedbackDprOptions
    base = dpr.TUNES_ENCODER

    def fit(self, resources: Resources, lesson: Lesson, options: FeedbackDprOptions) -> Artifacts:
        """Make the wordings, train on them, and choose the rounds of a search on dev.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, there is nothing to train on, or the refiner needs a language
                model and none is set.
            OverBudget, Unavailable: by the language model. Its answers are kept, and a resumed fit goes on from there.
        """
        catalogue = Catalogue.of(lesson.tools)
        if options.refiner == "words":
            return _fit(resources, lesson, options, catalogue, _make_expander(options, catalogue))
        else:
            with lend_llm(resources) as model:
                return _fit(
                    resources,
                    lesson,
                    options,
                    catalogue,
                    Critic(model, catalogue.tools, depth=options.depth, strict=True),
                )

    def prompt_versions(self, options: FeedbackDprOptions) -> Sequence[str]:
        """Return the versions of the refiner's prompts; none if it only adds words."""
        return tuple(map(version, CRITIC_PROMPTS)) if options.refiner == "model" else ()

    def rehearse(
        self, resources: Resources, lesson: Lesson, options: FeedbackDprOptions, queries: Sequence[str]
    ) -> None:
        """Ask what a fit and searches for `queries` ask at most: the rounds of train, of dev twice, and of each query.

        BM25 stands in for the encoder, which only decides which tools the model sees.
        """
        if options.refiner == "words":
            return
        catalogue = Catalogue.of(lesson.tools)
        critic = Critic(connect_llm(resources), catalogue.tools, depth=options.depth, strict=True)
        loop = _make_loop(Retrieve(index_words(catalogue), label="bm25"), critic, options)
        texts = [lesson.texts[query] for query in (*lesson.train, *lesson.dev, *lesson.dev)]
        if options.served != 0:
            texts += queries
        for start in range(0, len(texts), QUERIES_PER_ROUND_BATCH):
            loop.run([Search(query=text) for text in texts[start : start + QUERIES_PER_ROUND_BATCH]])

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the search with the trained encoder, inside the feedback loop.

        Raises:
            ConfigError: if it refines by a language model and none is set.
        """
        chosen = parse_options(
            {name: setting.value for name, setting in model.manifest.settings.items()}, FeedbackDprOptions
        )
        encoder = dpr.load_model_encoder(model)
        inner = _search_by_round(
            resources.index_tools(catalogue, encoder, dpr.TUNED_TEXT_STYLE),
            encoder.encode,
            chosen.rounds,
            catalogue.mask,
        )
        if not chosen.served:
            return inner
        refiner: Refiner = _make_expander(chosen, catalogue)
        if chosen.refiner == "model":
            refiner = Critic(connect_llm(resources), catalogue.tools, depth=chosen.depth, tokens=chosen.tokens)
        return Rounds(inner, refiner, label=FEEDBACK_DPR_LABEL, rounds=chosen.served, seconds=chosen.seconds)


def _fit(
    resources: Resources, lesson: Lesson, options: FeedbackDprOptions, catalogue: Catalogue, refiner: Refiner
) -> Artifacts:
    """Make the wordings with the encoder before training, train on them, and choose the rounds of a search."""
    encoder = require_tunable(resources.load_encoder()) if lesson.base is None else dpr.load_base_encoder(lesson.base)
    untrained = zero_shot.search_vectors(resources, catalogue, encoder, dpr.TUNED_TEXT_STYLE)
    wordings = _load_or_make_wordings(resources, lesson, options.depth, _make_loop(untrained, refiner, options))

    tower = make_tower(encoder, options)
    if options.size is not None:
        tower.project(options.size, resources.run.seed)
    tools = tower.tokens([render(tool, dpr.TUNED_TEXT_STYLE) for tool in lesson.tools], "tool", options.tool_length)
    task = _make_task(lesson, options, tower, tools, wordings, encoder.fingerprint)
    done = train_task(resources, options, task, tower, patience=options.patience if options.joint else options.epochs)

    resources.say("choosing the rounds of a search on dev")
    index = Exact(tower.vectors(tools[:1]).shape[1])
    index.upsert(catalogue.ids, tower.vectors(tools))
    tuned = _search_by_round(index, lambda texts: tower.vectors(tower.tokens(texts, "query")), options.rounds)
    by_round, seconds = _run_loop(lesson, _make_loop(tuned, refiner, options))
    for number, (figures, spent) in enumerate(zip(by_round, seconds, strict=True)):
        summary = ", ".join(f"{name} {value:.4f}" for name, value in figures.means().items())
        resources.say(f"dev with {number} rounds: {summary}, {1000 * spent:.1f} ms a query in batches")
    served = (
        _choose_rounds(by_round, resources.run.seed) if options.served is None else min(options.served, options.rounds)
    )
    return Artifacts(
        {},
        metrics=by_round[served].means(),
        chosen={"served": served} if options.served is None else {},
        values={
            **describe_training(done),
            "wordings": sum(len(query.texts) for query in wordings.train),
            "by_round": [
                {"rounds": number, **figures.means(), "seconds": round(spent, 4)}
                for number, (figures, spent) in enumerate(zip(by_round, seconds, strict=True))
            ],
        },
        seconds_before=done.earlier,
        files=save_encoder(tower.model),
    )


def _make_loop(inner: Stage, refiner: Refiner, options: FeedbackDprOptions) -> Rounds:
    """Put the loop of the fit around a search; it has no time limit."""
    return Rounds(inner, refiner, label=FEEDBACK_DPR_LABEL, rounds=options.rounds, seconds=float("inf"))


def _make_task(
    lesson: Lesson, options: FeedbackDprOptions, tower: Tower, tools: Tokens, wordings: Wordings, fingerprint: str
) -> Task:
    """Make the training task.

    Args:
        lesson: data of the fit.
        options: of the fit.
        tower: the encoder to tune.
        tools: token ids of the tools.
        wordings: wordings of train and dev.
        fingerprint: of the encoder before training.
    """
    from toolscout_lab.training import biencoders

    train, dev, gold = wordings.train, wordings.dev, lesson.gold_positions()
    texts = biencoders.Texts(
        tower=tower,
        queries=tower.tokens([text for query in train for text in query.texts], "query"),
        tools=tools,
        gold=gold,
        dev=tower.tokens([text for query in dev for text in query.texts], "query"),
        evaluate=lambda cosines: _average_figures(_score_rounds(lesson, options.rounds, dev, cosines)),
        identity=digest("feedback-dpr/1", [fingerprint, lesson.fingerprint, options, [query.texts for query in train]]),
        temperature=options.temperature,
        hold=options.hold,
    )
    return biencoders.WordingPairs(
        texts,
        _group_by_query(train),
        _collect_negatives(lesson, train),
        hard=options.hard,
        balance=options.balance,
        turns=None if options.joint else options.epochs,
    )


def _collect_negatives(lesson: Lesson, train: Sequence[QueryWordings]) -> list[Places]:
    """Return for each wording the positions of its first tools that the query does not need."""
    place = lesson.positions()
    return [
        np.array([place[tool] for tool in ranking if tool not in gold], dtype=np.intp)
        for query, gold in zip(train, lesson.train.values(), strict=True)
        for ranking in query.found
    ]
