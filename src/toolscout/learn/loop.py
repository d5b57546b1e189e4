"""The learning loop: journal → dataset → fitted candidates → gate → promoted, or refused with the reason.

::

    <home>/learn/dataset/     the requests that the last run learned from, a dataset folder
                 looks.json   how often each champion was challenged (`toolscout.learn.looks`)
                 last.json    what the last run found (`Report`)
                 run.json     how far the journal goes that an unfinished run looks at
    <home>/models/            the candidates; the pointer to the champion (`toolscout.models.champion`)

A run looks at the journal up to one event, so that after a kill the next one finds the same requests, keeps what was
fitted already, and goes on. It runs beside whatever serves: those take the new champion at their next search.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.catalogue.store import Catalogue
from toolscout.checks.synthetic_queries import CHAT_QUERIES
from toolscout.config import Settings
from toolscout.database import alone, now
from toolscout.errors import Changed, ConfigError, UserError
from toolscout.journal.evidence import Evidence, Example, collect_evidence
from toolscout.learn.gate import Sample, Verdict, judge
from toolscout.learn.looks import number_look
from toolscout.learn.split import Traffic, cut
from toolscout.methods.shared.ngrams import Ngrams, hash_features
from toolscout.methods.shared.tool_sets import ToolSets
from toolscout.metrics import percentiles
from toolscout.models import champion, model_store
from toolscout.models.model_store import Manifest
from toolscout.privacy.private_files import make_private_folder, replace_file
from toolscout.recipes import registry as recipes
from toolscout.recipes.fit import fit, plan_fit
from toolscout.recipes.select import Selection
from toolscout.scout import Scout
from toolscout.search.pipeline import Cut, Stage
from toolscout.types import Hit, Search
from toolscout.workspace import Workspace

__all__ = ["BUDGET_MS", "Candidate", "Report", "last", "learn"]

LEAST: Final = {"neighbours": 30, "tool2vec": 30, "mlc-light": 200}  # requests to train on that a recipe can learn from
LEAST_TEST: Final = 20
MOST_CELLS: Final = 150_000_000  # words × (tools and sets of tools) of mlc-light, in memory four times over
BUDGET_MS: Final = 50.0
TIMED: Final = 200
BATCH: Final = 256
DEPTH: Final = 20
CLOSE: Final = 1e-4  # scores that differ by less may be of one request, asked twice
UNSURE: Final = 0.1  # share of the requests that a model may be unsure of
KEPT: Final = 5  # models that stay: of the champion, and of those before it


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One recipe that was tried: its model's name and figures on dev, or what was in the way."""

    recipe: str
    model: str | None = None
    dev: dict[str, float] = {}
    seconds: float = 0.0
    problem: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found.

    Attributes:
        outcome: promoted, refused; or would-promote, would-refuse of a dry run.
        reason: one sentence or more.
        champion: who served before: the name of a model, or of the recipe of the settings.
        candidate: name of the model that was chosen on dev; None: there was none.
        evidence: how many requests the journal holds, and what was left out.
        splits: requests to train on, to choose on, and held out.
        candidates: the recipes that were tried.
        verdict: what the gate says.
        seconds: wall time.
        at: when the run began.
    """

    outcome: str
    reason: str
    champion: str
    candidate: str | None
    evidence: dict[str, Any]
    splits: dict[str, int]
    candidates: tuple[Candidate, ...]
    verdict: Verdict | None
    seconds: float
    at: str


class _Refused(Exception):
    """Ends a run; the message is the reason."""


@dataclasses.dataclass
class _Run:
    """One run, as it fills."""

    scout: Scout
    over: champion.Stamp | None
    before: Selection
    say: Callable[[str], None]
    evidence: Evidence
    traffic: Traffic
    catalogue: Catalogue
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    chosen: Candidate | None = None
    verdict: Verdict | None = None
    sure: float | None = None

    @property
    def settings(self) -> Settings:
        return self.scout.settings

    @property
    def through(self) -> int:
        """Row id of the last search that the champion was fitted on."""
        return _through(self.before.manifest)


def learn(
    scout: Scout,
    *,
    recipes: Sequence[str] = (),
    dry_run: bool = False,
    budget_ms: float = BUDGET_MS,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Learn from the journal, and promote what is better.

    Args:
        scout: whose journal, catalogue and models.
        recipes: what to fit; by default the light ones that the data can carry.
        dry_run: fit and test, but promote nothing.
        budget_ms: the most that 95 % of a candidate's searches may take, milliseconds of processor time.
        seed: of the fits and the tests.
        say: told what is going on.

    Raises:
        ConfigError: for a recipe that is not fitted.
        StoreError: if another run is under way.
    """
    started, home, asked = time.monotonic(), scout.settings.home, _asked(recipes)
    with alone(home / "learn" / "lock.db", f"{home}: expected no other run of learn, found one under way: wait for it"):
        state = _state(home, scout, say)
        run = _begin(scout, state["until"], say)
        try:
            _gathered(run)
            _fitted(run, asked, seed)
            _tested(run, budget_ms, seed)
            reason, better = _praise(run), True
        except _Refused as refusal:
            reason, better = str(refusal), False
        if better and not dry_run:
            assert run.chosen is not None and run.chosen.model is not None
            model_store.note(champion.place(home, run.chosen.model), sure=run.sure)
            try:
                champion.promote(home, run.chosen.model, reason, over=run.over)
            except Changed:
                reason, better = f"{run.chosen.model}: somebody changed the champion meanwhile; run it again", False
        verb = "promote" if better else "refuse"
        report = Report(
            outcome=f"would-{verb}" if dry_run else f"{verb.removesuffix('e')}ed",
            reason=reason,
            champion=_called(run.before),
            candidate=run.chosen.model if run.chosen else None,
            evidence=_told(run),
            splits=_splits(run.traffic),
            candidates=tuple(run.candidates),
            verdict=run.verdict,
            seconds=round(time.monotonic() - started, 1),
            at=state["at"],
        )
        _write(home / "learn" / "last.json", report)
        _tidy(run)
        (home / "learn" / "run.json").unlink(missing_ok=True)
    return report


def last(home: Path) -> Report | None:
    """What the last finished run found; None: there was none, or it cannot be read."""
    try:
        return msgspec.json.decode((home / "learn" / "last.json").read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


# --- the steps --------------------------------------------------------------------------------------------------------


def _begin(scout: Scout, until: int, say: Callable[[str], None]) -> _Run:
    over, before, catalogue = champion.stamp(scout.settings.home), _champion(scout, say), scout.store.catalogue()
    say("reading the journal")
    since = _noted(before.manifest, "until")
    evidence = collect_evidence(scout.journal, until=until, since=since, trusted=scout.settings.learn_trust)
    traffic = cut(evidence.examples, catalogue.tools(), scout.settings.home / "learn" / "dataset")
    return _Run(scout, over, before, say, evidence, traffic, catalogue)


def _champion(scout: Scout, say: Callable[[str], None]) -> Selection:
    """How searches are answered now that name nothing; without a champion that cannot serve."""
    try:
        way = scout.selector.find(None, None)
        scout.build(way, scout.store.catalogue())
    except UserError as error:
        if not scout.selector.is_unnamed(None, None):
            raise
        say(f"the champion cannot serve: {error}")
        return scout.selector.default()
    return way


def _gathered(run: _Run) -> None:
    """Refuse where there is too little to learn from, or nothing new; else write the dataset folder."""
    evidence, splits, found = run.evidence, _splits(run.traffic), run.evidence.callers
    own = {run.settings.caller, *run.settings.learn_trust}
    if splits["train"] < min(LEAST.values()) or splits["test"] < LEAST_TEST:
        used = sum(splits.values())
        raise _Refused(
            f"there is too little to learn from: expected at least {LEAST_TEST * 5} requests followed by successful "
            f"calls of tools of the catalogue, found {used:,} "
            f"({evidence.searches:,} searches were followed by a call or feedback, {evidence.unused:,} of them without "
            f"success, {evidence.hidden:,} without a readable query, {evidence.capped:,} beyond what one caller may "
            "bring)"
        )
    since = _noted(run.before.manifest, "until")
    for some, which in (
        (set(found), "all evidence"),
        ({each.caller for each in evidence.examples if each.row > since}, "all that is new since the champion"),
    ):
        if len(some) == 1 and not own & some:
            raise _Refused(
                f"{which} comes from one caller ({min(some)}), who could have made it up: wait for others, "
                "or name callers whom you trust in the setting learn_trust"
            )
    if run.before.manifest is not None and run.before.manifest.data.fingerprint == run.traffic.lesson.fingerprint:
        raise _Refused("there is nothing new since the champion was fitted")
    fresh = sum(_row(query) > run.through for query in run.traffic.test)
    if fresh < LEAST_TEST:
        raise _Refused(
            f"there is too little new since the champion was fitted: expected at least {LEAST_TEST} of the newest "
            f"requests, found {fresh}"
        )
    run.say(
        f"{sum(splits.values()):,} requests of {len(found):,} callers: {splits['train']:,} to train on, "
        f"{splits['dev']:,} to choose on, {splits['test']:,} held out"
    )
    run.traffic.write(run.settings.home / "learn" / "dataset")


def _asked(names: Sequence[str]) -> list[str]:
    for name in names:
        if not recipes.recipe(name).is_fitted:
            raise ConfigError(f"expected recipes that are fitted, found {name}: it can be used as it is")
    return list(names)


def _fitted(run: _Run, asked: Sequence[str], seed: int) -> None:
    """Fit the candidates, and choose among them on dev."""
    from threadpoolctl import threadpool_limits

    for name in asked or LEAST:
        problem = "" if asked else _too_much(run, name)
        if problem:
            run.candidates.append(Candidate(recipe=name, problem=problem))
            continue
        try:
            with threadpool_limits(1):  # the other processor belongs to those who search meanwhile
                run.candidates.append(_fit(run, name, seed))
        except UserError as error:
            run.say(f"{name}: {error}")
            run.candidates.append(Candidate(recipe=name, problem=str(error)))
    whole = [each for each in run.candidates if each.model]
    if not whole:
        why = "; ".join(f"{each.recipe}: {each.problem}" for each in run.candidates)
        raise _Refused(f"no candidate could be fitted: {why}")
    run.chosen = max(whole, key=lambda each: each.dev["ndcg@5"] + each.dev["comp@5"])


def _too_much(run: _Run, name: str) -> str:
    """Why the data cannot carry a light recipe, or it cannot carry the data; empty: they fit."""
    lesson = run.traffic.lesson
    if len(lesson.train) < LEAST[name]:
        return f"it takes {LEAST[name]:,} requests to train on, and there are {len(lesson.train):,}"
    if name == "mlc-light":
        place = {tool.id: number for number, tool in enumerate(lesson.tools)}
        sets, _ = ToolSets.group([np.array(sorted(place[tool] for tool in gold)) for gold in lesson.train.values()])
        features = Ngrams.of([hash_features(lesson.texts[query]) for query in lesson.train]).keys.size
        cells = features * (len(lesson.tools) + len(sets))
        if cells > MOST_CELLS:
            return f"{len(lesson.tools):,} tools and the words of {len(lesson.train):,} requests take too much memory"
    return ""


def _fit(run: _Run, name: str, seed: int) -> Candidate:
    journal = {"through": max(each.row for each in run.traffic.known), "until": run.evidence.until}
    shelf = champion.shelf(run.settings.home)
    workspace = Workspace(
        settings=run.settings,
        vectors=run.scout.vectors,
        say=lambda text: run.say(f"{name}: {text}"),
        seed=seed,
        resume=True,
    )
    job = plan_fit(name, run.traffic.lesson, workspace, shelf)
    model = f"{name}-{job.identity[:12]}"
    make_private_folder(shelf)
    task = dataclasses.replace(job, out=shelf / model, notes=lambda: {**job.notes(), "journal": journal})
    manifest = fit(task).manifest
    return Candidate(recipe=name, model=model, dev=dict(manifest.metrics), seconds=manifest.fit_seconds)


def _tested(run: _Run, budget_ms: float, seed: int) -> None:
    """Hold the chosen one against the champion, on newest requests that neither was fitted on."""
    assert run.chosen is not None and run.chosen.model is not None
    test = {query: gold for query, gold in run.traffic.test.items() if _row(query) > run.through}
    candidate = run.scout.selector.find(None, champion.place(run.settings.home, run.chosen.model))
    texts = {query: run.traffic.lesson.texts[query] for query in test}
    stage = _stage(run, candidate)
    sample = Sample(
        qrels=test,
        callers={query: run.traffic.callers[query] for query in test},
        groups={
            name: {query: label for query, label in labels.items() if query in test}
            for name, labels in run.traffic.groups.items()
        },
        trusted=_trusted(run),
    )
    what = [run.chosen.model, test, sample.callers, sorted(sample.trusted), seed]
    look = number_look(run.settings.home, _called(run.before), what)
    run.say(f"{run.chosen.recipe} against {_called(run.before)} on {len(test):,} requests held out, look {look}")
    found = _found(stage, texts)
    run.sure = _sure(list(found.values()), list(_found(stage, {text: text for text in CHAT_QUERIES}).values()))
    run.verdict = judge(
        _ids(found),
        _ids(_found(_stage(run, run.before), texts)),
        sample,
        latency_ms=_latency(stage, list(texts.values())),
        budget_ms=budget_ms,
        seed=seed,
        look=look,
    )
    if run.verdict.reasons:
        raise _Refused(f"{run.chosen.model}: {'; '.join(run.verdict.reasons)}")


def _trusted(run: _Run) -> frozenset[str]:
    """Who may decide alone: callers of the setting, and the owner of the home where nobody else asks."""
    alone = set(run.evidence.callers) == {run.settings.caller}
    return frozenset({*run.settings.learn_trust, *({run.settings.caller} if alone else ())})


def _stage(run: _Run, way: Selection) -> Stage:
    """The pipeline of a way, knowing what it would have known just before the newest requests."""
    through = _through(way.manifest) if way.manifest and "journal" in way.manifest.values else None
    seen: tuple[Example, ...] = () if through is None else tuple(e for e in run.traffic.known if e.row > through)
    return run.scout.build(way, run.catalogue, live=lambda: (len(seen), seen)) >> Cut(DEPTH)


def _found(stage: Stage, texts: Mapping[str, str]) -> dict[str, tuple[Hit, ...]]:
    found: dict[str, tuple[Hit, ...]] = {}
    waiting = iter(texts.items())
    while batch := list(itertools.islice(waiting, BATCH)):
        answers = stage([Search(query=text, k=DEPTH) for _, text in batch])
        found |= {query: answer.hits for (query, _), answer in zip(batch, answers, strict=True)}
    return found


def _ids(found: Mapping[str, tuple[Hit, ...]]) -> dict[str, list[str]]:
    return {query: [hit.id for hit in hits] for query, hits in found.items()}


def _sure(asked: Sequence[tuple[Hit, ...]], chat: Sequence[tuple[Hit, ...]]) -> float | None:
    """The score of a first hit that says that the model knows such requests.

    What nine in ten later requests reach, but above all that need no tool for certain: a model whose scores do not
    tell them apart is hardly ever sure.

    Args:
        asked: hits of requests that the model was not fitted on.
        chat: hits of requests that need no tool.
    """
    first = [hits[0].score for hits in asked if hits]
    if not first:
        return None
    return float(max([np.quantile(first, UNSURE), *(hits[0].score + CLOSE for hits in chat if hits)]))


def _latency(stage: Stage, texts: Sequence[str]) -> dict[str, float]:
    """p50 and p95 of a search, in processor time: whoever serves or trains beside this run shall not decide it."""
    from threadpoolctl import threadpool_limits

    times = []
    with threadpool_limits(1):
        for text in texts[:: max(1, len(texts) // TIMED)][:TIMED]:
            started = time.thread_time()
            stage([Search(query=text)])
            times.append((time.thread_time() - started) * 1000)
    return percentiles(times)


# --- what is said and kept --------------------------------------------------------------------------------------------


def _row(query: str) -> int:
    """Row id of the search that a query of the traffic comes from."""
    return int(query[1:])


def _through(manifest: Manifest | None) -> int:
    """Row id of the last search that a model was fitted on."""
    return _noted(manifest, "through")


def _noted(manifest: Manifest | None, name: str) -> int:
    """A row id of the journal that a model notes: `through`, or `until`, the newest that its run looked at; else 0."""
    noted = manifest.values.get("journal") if manifest is not None else None
    return int(noted.get(name, 0)) if isinstance(noted, dict) else 0


def _called(way: Selection) -> str:
    return way.model.name if way.model is not None else way.recipe


def _praise(run: _Run) -> str:
    assert run.verdict is not None and run.chosen is not None
    test = run.verdict.tests["ndcg@5"]
    low, high = (100 * each for each in test["ci95"])
    return (
        f"{run.chosen.model} is better than {_called(run.before)} on {run.verdict.n:,} newest requests of "
        f"{run.verdict.callers:,} callers: ndcg@5 {100 * test['champion']:.1f} to {100 * test['candidate']:.1f}, "
        f"difference {100 * test['difference']:+.1f} (95 % interval {low:+.1f} to {high:+.1f}, p {test['p']:.2g}, "
        f"look {run.verdict.look} at its place, which took p < {run.verdict.level:.2g})"
    )


def _told(run: _Run) -> dict[str, Any]:
    told = msgspec.structs.asdict(run.evidence)
    del told["examples"]
    return {
        **told,
        "callers": len(run.evidence.callers),
        "examples": len(run.evidence.examples),
        "unknown_tools": run.traffic.unknown,
        "unsupported_tools": run.traffic.unsupported,
    }


def _splits(traffic: Traffic) -> dict[str, int]:
    return {"train": len(traffic.lesson.train), "dev": len(traffic.lesson.dev), "test": len(traffic.test)}


def _tidy(run: _Run) -> None:
    """Forget the candidates that were not chosen, and those of earlier runs; the latest champions stay, and whatever
    the setting `model` names.
    """
    if run.chosen is None:
        return
    home, pinned = run.settings.home, run.settings.model and run.settings.model.expanduser().resolve()
    with champion.changing(home):
        former = dict.fromkeys(each.model for each in reversed(champion.history(home)))
        kept = {run.chosen.model, *[*former][:KEPT]}
        for folder, found in model_store.list_models(champion.shelf(home)):
            learned = not isinstance(found, str) and "journal" in found.values
            if learned and folder.name not in kept and folder.resolve() != pinned:
                shutil.rmtree(folder)


def _state(home: Path, scout: Scout, say: Callable[[str], None]) -> dict[str, Any]:
    """How far this run looks: as far as an unfinished one did, or to the end of the journal."""
    file = home / "learn" / "run.json"
    try:
        held: dict[str, Any] = msgspec.json.decode(file.read_bytes(), type=dict)
        if isinstance(held.get("until"), int) and isinstance(held.get("at"), str):
            say(f"going on with the run of {held['at']}, which was interrupted")
            return held
    except (OSError, msgspec.MsgspecError):
        pass
    state = {"until": scout.journal.last(), "at": now()}
    _write(file, state)
    return state


def _write(file: Path, value: Any) -> None:
    replace_file(file, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
