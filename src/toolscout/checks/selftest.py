"""How well are your own tools found, and by which recipe? A test from the catalogue and the journal, without an LLM.

Requests made by rule (`toolscout.checks.synthetic_queries`) say which recipe serves a catalogue better; how people
really ask only the
journal knows. Where it holds enough requests that successful calls followed, those count at least as much as the rules
do, and only those are asked that came after what the promoted model was fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.checks.synthetic_queries import Probe, chatter, probes
from toolscout.errors import ConfigError, SourceError, UserError
from toolscout.journal.evidence import collect
from toolscout.recipes import registry
from toolscout.recipes.select import Selection
from toolscout.scout import Scout
from toolscout.search.pipeline import Cut
from toolscout.types import Search, digest

__all__ = ["FORMAT", "RECIPES", "Row", "Selftest", "floor", "read_floor", "selftest"]

FORMAT: Final = "toolscout-floor/1"
RECIPES: Final = ("bm25", "dense", "hybrid")
CHAMPION: Final = "champion"
MEASURES: Final = ("recall@5", "ndcg@5", "comp@5")
LEAST_LOGGED: Final = 30
MOST_LOGGED: Final = 1_000
MARGIN: Final = 0.02  # of recall@5, below what was measured, where the floor is
DEPTH: Final = 20


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one recipe does.

    Attributes:
        recipe: its name; `champion` is the promoted model.
        measures: of all requests; where there are logged ones, they count half together, or more if they are more.
        kinds: kind of request → its number `n`, recall@5 and ndcg@5.
        no_tool: share of requests that need no tool and got none.
    """

    recipe: str
    measures: dict[str, float]
    kinds: dict[str, dict[str, float]]
    no_tool: float


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """What the test found.

    Attributes:
        n_tools: in the catalogue.
        requests: how many of each kind were asked.
        rows: a row a recipe, the best first.
        recommended: the best recipe.
        sure: whether it is significantly better than the next (paired test on ndcg@5, p < 0.05).
        problems: recipe → why it could not be scored.
        seed: of the requests.
        test: fingerprint of the requests, so that two runs can be told to have asked the same.
    """

    n_tools: int
    requests: dict[str, int]
    rows: tuple[Row, ...]
    recommended: str
    sure: bool
    problems: dict[str, str]
    seed: int
    test: str

    def row(self, recipe: str) -> Row:
        """The row of a recipe.

        Raises:
            ConfigError: if it was not scored.
        """
        for row in self.rows:
            if row.recipe == recipe:
                return row
        raise ConfigError(f"expected a recipe that was scored, found {recipe!r}: name it with --recipe")


def selftest(
    scout: Scout,
    *,
    recipe: Sequence[str] = (),
    most: int = 1_000,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Selftest:
    """Ask the catalogue's own tools for, and score the recipes.

    Args:
        scout: whose catalogue and journal.
        recipe: further recipes than `RECIPES` and the champion; those that are fitted need a champion of their name.
        most: requests by rule at most.
        seed: of the requests.
        say: told what is going on.

    Raises:
        ConfigError: if the catalogue is empty, or says too little of its tools.
    """
    catalogue = scout.store.catalogue()
    asked = probes(catalogue.tools(), most=most, seed=seed)
    if not asked:
        raise ConfigError("expected tools with a description to make requests of, found none: add a source")
    way, notice = scout.serving()
    logged = _logged(scout, set(catalogue.ids), way)
    asked += logged
    ways = {name: Selection(name) for name in dict.fromkeys((*RECIPES, *recipe))}
    for name in ways:
        if registry.recipe(name).is_fitted:
            ways[name] = scout.selector.find(name, None)
    if way.model is not None:
        ways[CHAMPION] = way
    scored: dict[str, metrics.PerQuery] = {}
    rows: list[Row] = []
    problems = {CHAMPION: notice} if notice else {}
    for name, each in ways.items():
        say(f"{name}: {len(asked):,} requests")
        try:
            stage = scout.build(each, catalogue) >> Cut(DEPTH)
            found = stage([Search(query=probe.text, k=DEPTH) for probe in asked])
            idle = stage([Search(query=probe.text, k=5) for probe in chatter()])
        except UserError as error:
            problems[name] = str(error)
            continue
        run = {probe.id: list(answer.ids) for probe, answer in zip(asked, found, strict=True)}
        scored[name] = metrics.score(run, {probe.id: dict.fromkeys(probe.tools, 1.0) for probe in asked}, MEASURES)
        rows.append(_row(name, scored[name], asked, float(np.mean([not answer.hits for answer in idle]))))
    if not rows:
        raise ConfigError(f"expected a recipe that can search here, found none: {'; '.join(problems.values())}")
    rows.sort(key=lambda row: -row.measures["ndcg@5"])
    return Selftest(
        n_tools=len(catalogue),
        requests={kind: sum(probe.kind == kind for probe in asked) for kind in dict.fromkeys(p.kind for p in asked)}
        | {"no-tool": len(chatter())},
        rows=tuple(rows),
        recommended=rows[0].recipe,
        sure=len(rows) < 2 or _better(scored[rows[0].recipe], scored[rows[1].recipe], asked, seed),
        problems=problems,
        seed=seed,
        test=digest("selftest/1", [[probe.text, probe.tools] for probe in asked]),
    )


def _logged(scout: Scout, known: set[str], way: Selection) -> list[Probe]:
    """The newest requests of the journal that the champion was not fitted on, if they are many enough."""
    noted = way.manifest.values.get("journal") if way.manifest else None
    after = int(noted["through"]) if isinstance(noted, Mapping) else 0
    evidence = collect(scout.journal, until=scout.journal.last(), trusted=scout.settings.learn_trust)
    found = [
        Probe(id=f"q{each.row}", text=each.query, tools=tools, kind="logged")
        for each in evidence.examples
        if each.row > after and (tools := tuple(sorted(known & set(each.tools))))
    ]
    return found[-MOST_LOGGED:] if len(found) >= LEAST_LOGGED else []


def _weights(ids: Sequence[str], asked: Sequence[Probe]) -> Any:
    """Of each request, mean 1: those logged count half together, or more if they are more."""
    logged = {probe.id for probe in asked if probe.kind == "logged"}
    is_logged = np.array([query in logged for query in ids])
    if not is_logged.any() or is_logged.mean() >= 0.5:
        return np.ones(len(ids))
    return np.where(is_logged, 0.5 / is_logged.mean(), 0.5 / (~is_logged).mean())


def _row(name: str, scored: metrics.PerQuery, asked: Sequence[Probe], no_tool: float) -> Row:
    weights, kinds = _weights(scored.ids, asked), {probe.id: probe.kind for probe in asked}
    measures = {measure: float((values * weights).mean()) for measure, values in scored.values.items()}
    slices = metrics.slices(scored, {"kind": kinds})["kind"]
    shown = {kind: {name: row[name] for name in ("n", "recall@5", "ndcg@5")} for kind, row in slices.items()}
    return Row(recipe=name, measures=measures, kinds=shown, no_tool=no_tool)


def _better(one: metrics.PerQuery, other: metrics.PerQuery, asked: Sequence[Probe], seed: int) -> bool:
    weights = _weights(one.ids, asked)
    test = metrics.paired_test(one.values["ndcg@5"] * weights, other.values["ndcg@5"] * weights, seed)
    return test.difference > 0 and test.p < 0.05


# --- the floor --------------------------------------------------------------------------------------------------------


def floor(found: Selftest, recipe: str) -> bytes:
    """The content of a floor file: what a recipe must reach from now on, and all that was measured."""
    lowest = max(0.0, round(found.row(recipe).measures["recall@5"] - MARGIN, 4))
    value = {"format": FORMAT, "recipe": recipe, "min_recall": lowest, "found": found}
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def read_floor(file: Path) -> tuple[str, float]:
    """The recipe and the floor of its recall@5.

    Raises:
        SourceError: if it is no floor file.
    """
    try:
        held = msgspec.json.decode(file.read_bytes())
        if held["format"] != FORMAT:
            raise ValueError(f"format {held['format']!r}")
        return str(held["recipe"]), float(held["min_recall"])
    except OSError as error:
        raise SourceError(f"{file}: expected a file that selftest --write wrote, found: {error.strerror}") from None
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{file}: expected a file that selftest --write wrote, found another: {error}") from None
