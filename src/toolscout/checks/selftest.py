"""Measures how well a catalogue's own tools are found, by recipe. Needs no language model.

Synthetic queries (`toolscout.learn.synthetic_queries`) show which recipe is better for a catalogue. But they repeat
words of the tools. Recipes that compare only words were best on them in 4 of 12 public catalogues, and on real requests
in none. So these recipes are recommended only if real requests count too. The *champion*, which is the promoted model,
is recommended only if requests for tools that nobody used lose as little as the gate before promotion allows
(`toolscout.learn.gate`).

Only the journal shows how people really ask. If it has enough queries with successful calls (*logged* queries), they
weigh at least as much as the synthetic ones. Queries that the champion was fitted on are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.errors import ConfigError, SourceError, UserError
from toolscout.home.journal.evidence import collect_evidence
from toolscout.learn.gate import explain_outside_loss, find_outside_loss, make_outside_queries
from toolscout.learn.synthetic_queries import SyntheticQuery, generate_queries, make_chat_queries
from toolscout.recipes import registry
from toolscout.recipes.builder import build_decision
from toolscout.recipes.select import Selection
from toolscout.scout import Scout
from toolscout.search.pipeline import Cut, Stage
from toolscout.types import Search, Tool, digest

__all__ = [
    "BASELINE_FORMAT",
    "SELFTEST_RECIPES",
    "RecipeScore",
    "Selftest",
    "encode_baseline",
    "read_baseline",
    "run_selftest",
]

BASELINE_FORMAT: Final = "toolscout-floor/1"
SELFTEST_RECIPES: Final = ("bm25", "dense", "scout")
SELFTEST_MEASURES: Final = ("recall@5", "ndcg@5", "comp@5")
WORD_RECIPES: Final = ("bm25", "bm25-plain")  # they compare only words
CHAMPION: Final = "champion"
UNFITTED: Final = "scout"  # the recipe that the champion is compared with on requests for tools that nobody used
MIN_LOGGED_QUERIES: Final = 30
MIN_QUERIES_TO_RECOMMEND: Final = 10
MAX_LOGGED_QUERIES: Final = 1_000
BASELINE_MARGIN: Final = 0.02
"""How far recall@5 may fall below the measured value before a check fails."""
SELFTEST_DEPTH: Final = 20  # tools of an answer
CHAT_DEPTH: Final = 5  # the same for chat queries, which need no tool


class RecipeScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one recipe.

    Attributes:
        recipe: its name; `champion` is the promoted model.
        measures: measure → mean over all queries. Logged queries weigh at least half of the total, if there are any.
        kinds: kind of query → its number `n`, recall@5 and ndcg@5.
        no_tool: share of the chat queries that got no tool.
    """

    recipe: str
    measures: dict[str, float]
    kinds: dict[str, dict[str, float]]
    no_tool: float


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a selftest.

    Attributes:
        n_tools: size of the catalogue.
        requests: kind of query → how many were asked.
        rows: one per recipe, the best first.
        recommended: the best recipe that may be recommended; None if there are fewer than `MIN_QUERIES_TO_RECOMMEND`
            queries. Without logged queries, it is no recipe that compares only words.
        sure: whether it is significantly better than the next one that may be recommended (paired test on ndcg@5,
            p < 0.05).
        note: which recipe was better but is not recommended, and why; "": there is none.
        problems: recipe → why it could not be scored.
        seed: seed of the synthetic queries.
        test: fingerprint of the queries. Two runs with the same fingerprint asked the same.
    """

    n_tools: int
    requests: dict[str, int]
    rows: tuple[RecipeScore, ...]
    recommended: str | None
    sure: bool
    note: str
    problems: dict[str, str]
    seed: int
    test: str

    def row(self, recipe: str) -> RecipeScore:
        """Return the scores of a recipe.

        Raises:
            ConfigError: if it was not scored.
        """
        for row in self.rows:
            if row.recipe == recipe:
                return row
        raise ConfigError(f"The recipe {recipe!r} was not scored. Name it with --recipe.")


def run_selftest(
    scout: Scout,
    *,
    recipe: Sequence[str] = (),
    max_queries: int = 1_000,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Selftest:
    """Generate queries for the catalogue's own tools and score the recipes on them.

    Args:
        scout: its catalogue and journal are used.
        recipe: recipes to score besides `SELFTEST_RECIPES` and the champion. A recipe that must be fitted needs a
            champion of its own.
        max_queries: upper bound for synthetic queries.
        seed: seed of the synthetic queries.
        say: called with one line of progress at a time.

    Raises:
        ConfigError: if the catalogue is empty or no tool has a description.
    """
    catalogue = scout.store.catalogue()
    queries = generate_queries(catalogue.tools(), max_queries=max_queries, seed=seed)
    if not queries:
        raise ConfigError("No tool of the catalogue has a description to make queries from. Add a source first.")
    serving, notice = scout.engine.serving()
    queries += _collect_logged_queries(scout, set(catalogue.ids), serving)
    scores: dict[str, metrics.PerQuery] = {}
    stages: dict[str, Stage] = {}
    rows: list[RecipeScore] = []
    problems = {CHAMPION: notice} if notice else {}
    selections = _select_recipes(scout, recipe, serving)
    for number, (name, selection) in enumerate(selections.items(), 1):
        say(f"{name}: {len(queries):,} queries, recipe {number} of {len(selections)}")
        try:
            retrieve = scout.engine.builder.build_ranking(selection, catalogue)
            stages[name] = retrieve >> Cut(SELFTEST_DEPTH)
            scores[name] = _score_queries(stages[name], queries)
            decide = build_decision(selection, catalogue, scout.engine.builder.make_resources(selection), retrieve)
            without_tool = _measure_abstention(retrieve >> decide)
        except UserError as error:
            problems[name] = str(error)
            continue
        rows.append(_summarise(name, scores[name], queries, without_tool))
    if not rows:
        raise ConfigError(f"No recipe can search this catalogue: {'; '.join(problems.values())}")
    objection = _find_objection_to_champion(scout, catalogue.tools(), stages, seed)
    rows.sort(key=lambda row: -row.measures["ndcg@5"])
    kinds = Counter(query.kind for query in queries)
    return Selftest(
        n_tools=len(catalogue),
        requests={**kinds, "no-tool": len(make_chat_queries())},
        rows=tuple(rows),
        **_recommend([row.recipe for row in rows], scores, queries, objection, seed),
        problems=problems,
        seed=seed,
        test=digest("selftest/1", [[query.text, query.tools] for query in queries]),
    )


def _recommend(
    recipes: Sequence[str],
    scores: Mapping[str, metrics.PerQuery],
    queries: Sequence[SyntheticQuery],
    objection: str,
    seed: int,
) -> dict[str, Any]:
    """Return `recommended`, `sure` and `note` of a `Selftest`.

    Args:
        recipes: that were scored, the best first.
        scores: of each recipe.
        queries: that it was scored on.
        objection: why the champion may not be recommended, as the end of a sentence; "": it may.
        seed: of the paired test.
    """
    is_logged = any(query.kind == "logged" for query in queries)
    eligible = _order_eligible(recipes, is_logged=is_logged, excludes_champion=bool(objection))
    best, choice = recipes[0], eligible[0]
    sure = len(eligible) < 2 or _is_better(scores[choice], scores[eligible[1]], queries, seed)
    if len(queries) < MIN_QUERIES_TO_RECOMMEND:
        return {"recommended": None, "sure": sure, "note": ""}
    if best == choice:
        note = ""
    elif objection and best == CHAMPION:
        note = f"The champion finds more, but {objection}. Take it back with  toolscout rollback"
    else:
        note = (
            f"{best} finds more here, but these requests are made of the tools' own words, which favours it. "
            f"With {MIN_LOGGED_QUERIES} logged requests it can be recommended too."
        )
    return {"recommended": choice, "sure": sure, "note": note}


def _order_eligible(recipes: Sequence[str], *, is_logged: bool, excludes_champion: bool) -> list[str]:
    """Return the recipes that may be recommended, the first choice first. If none may, all are returned.

    Args:
        recipes: the best first.
        is_logged: whether real requests count too.
        excludes_champion: whether the champion may not be recommended.
    """
    eligible = [recipe for recipe in recipes if is_logged or recipe not in WORD_RECIPES] or [*recipes]
    others = [recipe for recipe in eligible if recipe != CHAMPION]
    if excludes_champion:
        return others or eligible
    # Without real requests here, the champion comes first: the gate chose it on real requests.
    if CHAMPION in eligible and not is_logged:
        return [CHAMPION, *others]
    return eligible


def _find_objection_to_champion(scout: Scout, tools: Sequence[Tool], stages: Mapping[str, Stage], seed: int) -> str:
    """Return why the champion may not be recommended, as the end of a sentence; "": it may.

    As for the gate, the reason is that requests for tools that nobody used lose too much.
    """
    if CHAMPION not in stages or UNFITTED not in stages:
        return ""
    evidence = collect_evidence(scout.journal, until=scout.journal.last(), trusted=scout.settings.learn_trust)
    used = {tool for example in evidence.examples for tool in example.tools}
    queries = make_outside_queries(tools, used, seed)
    champion_run, unfitted_run = (_rank_queries(stages[name], queries) for name in (CHAMPION, UNFITTED))
    # The champion is the candidate here, and what it must not lose against is the unfitted recipe.
    loss = find_outside_loss(champion_run, unfitted_run, queries, seed)
    return "; ".join(explain_outside_loss(loss))


def _select_recipes(scout: Scout, names: Sequence[str], serving: Selection) -> dict[str, Selection]:
    """Return what to score, by name: the recipes, and the champion if there is one.

    Args:
        scout: finds the models of fitted recipes.
        names: of recipes to score besides `SELFTEST_RECIPES`.
        serving: the recipe that searches now use, with the champion's model if there is a champion.
    """
    selections = {name: Selection(name) for name in dict.fromkeys((*SELFTEST_RECIPES, *names))}
    for name in selections:
        if registry.recipe(name).is_fitted:
            selections[name] = scout.engine.selector.find(name, None)
    if serving.model is not None:
        selections[CHAMPION] = serving
    return selections


def _score_queries(stage: Stage, queries: Sequence[SyntheticQuery]) -> metrics.PerQuery:
    """Search for each query, and score the answers by `SELFTEST_MEASURES`."""
    gold = {query.id: dict.fromkeys(query.tools, 1.0) for query in queries}
    return metrics.score(_rank_queries(stage, queries), gold, SELFTEST_MEASURES)


def _rank_queries(stage: Stage, queries: Sequence[SyntheticQuery]) -> dict[str, list[str]]:
    """Search for each query. Returns query id → tool ids, best first."""
    answers = stage([Search(query=query.text, k=SELFTEST_DEPTH) for query in queries])
    return {query.id: list(answer.ids) for query, answer in zip(queries, answers, strict=True)}


def _measure_abstention(stage: Stage) -> float:
    """Return the share of the chat queries that get no tool."""
    answers = stage([Search(query=query.text, k=CHAT_DEPTH) for query in make_chat_queries()])
    return float(np.mean([not answer.hits for answer in answers]))


def _collect_logged_queries(scout: Scout, tool_ids: set[str], serving: Selection) -> list[SyntheticQuery]:
    """Return the newest logged queries that the champion was not fitted on; none if they are too few.

    Args:
        scout: its journal is read.
        tool_ids: of the catalogue; other tools are ignored.
        serving: has the manifest of the champion, if there is a champion.
    """
    fitted_journal = serving.manifest.values.get("journal") if serving.manifest else None
    last_fitted_row = int(fitted_journal["through"]) if isinstance(fitted_journal, Mapping) else 0
    evidence = collect_evidence(scout.journal, until=scout.journal.last(), trusted=scout.settings.learn_trust)
    queries = [
        SyntheticQuery(id=f"q{example.row}", text=example.query, tools=tools, kind="logged")
        for example in evidence.examples
        if example.row > last_fitted_row and (tools := tuple(sorted(tool_ids & set(example.tools))))
    ]
    return queries[-MAX_LOGGED_QUERIES:] if len(queries) >= MIN_LOGGED_QUERIES else []


def _weigh_queries(ids: Sequence[str], queries: Sequence[SyntheticQuery]) -> Any:
    """Return a weight for each query id, mean 1. Logged queries weigh at least half of the total, if there are any."""
    logged_ids = {query.id for query in queries if query.kind == "logged"}
    is_logged = np.array([query_id in logged_ids for query_id in ids])
    logged_share = is_logged.mean()
    if not is_logged.any() or logged_share >= 0.5:
        return np.ones(len(ids))
    return np.where(is_logged, 0.5 / logged_share, 0.5 / (~is_logged).mean())


def _summarise(
    name: str, scores: metrics.PerQuery, queries: Sequence[SyntheticQuery], without_tool: float
) -> RecipeScore:
    """Summarise the scores of a recipe; `without_tool`: the share of the chat queries that got no tool."""
    weights, kind_of = _weigh_queries(scores.ids, queries), {query.id: query.kind for query in queries}
    measures = {measure: float((values * weights).mean()) for measure, values in scores.values.items()}
    slices = metrics.slices(scores, {"kind": kind_of})["kind"]
    by_kind = {kind: {column: row[column] for column in ("n", "recall@5", "ndcg@5")} for kind, row in slices.items()}
    return RecipeScore(recipe=name, measures=measures, kinds=by_kind, no_tool=without_tool)


def _is_better(best: metrics.PerQuery, second: metrics.PerQuery, queries: Sequence[SyntheticQuery], seed: int) -> bool:
    """Tell whether a recipe is significantly better than another one: ndcg@5 of each query, weighted, p < 0.05."""
    weights = _weigh_queries(best.ids, queries)
    test = metrics.paired_test(best.values["ndcg@5"] * weights, second.values["ndcg@5"] * weights, seed)
    return test.difference > 0 and test.p < 0.05


# --- the baseline that later runs are checked against -----------------------------------------------------------------


def encode_baseline(result: Selftest, recipe: str) -> bytes:
    """Return the content of a baseline file: the recall@5 that a recipe must keep, and the full result."""
    min_recall = max(0.0, round(result.row(recipe).measures["recall@5"] - BASELINE_MARGIN, 4))
    value = {"format": BASELINE_FORMAT, "recipe": recipe, "min_recall": min_recall, "found": result}
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def read_baseline(file: Path) -> tuple[str, float]:
    """Read a baseline file: the recipe, and the lowest recall@5 that passes.

    Raises:
        SourceError: if the file cannot be read, or is not a baseline.
    """
    try:
        value = msgspec.json.decode(file.read_bytes())
        if value["format"] != BASELINE_FORMAT:
            raise ValueError(f"format {value['format']!r}")
        return str(value["recipe"]), float(value["min_recall"])
    except OSError as error:
        raise SourceError(
            f"{file} cannot be read ({error.strerror}). Write one with  toolscout selftest --write."
        ) from None
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{file} was not written by  toolscout selftest --write: {error}") from None
