"""The learning loop: journal → dataset → fitted candidates → gate → promotion or refusal.

::

    <home>/learn/dataset/     the requests that the last run learned from, as a dataset folder
                 looks.json   the comparisons with each champion (`toolscout.learn.gate`)
                 last.json    the report of the last run (`Report`)
                 run.json     the last journal event that an unfinished run reads
    <home>/models/            the candidates, and the pointer to the champion (`toolscout.home.models.champion`)

In a PostgreSQL home the three JSON files are rows, and the dataset is a folder of the machine that learned last.

A run reads the journal up to a fixed event. After a kill, the next run reads the same requests, keeps the models that
were fitted, and continues. Servers keep running meanwhile, and use the new champion from their next search on.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.errors import Changed, ConfigError, NotFound, StoreError, UserError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.database import hold_lock, now, open_home
from toolscout.home.journal.evidence import Evidence, Example, collect_evidence
from toolscout.home.models import champion, model_store
from toolscout.home.models.champion import forget_model, publish_model
from toolscout.home.models.model_store import Manifest
from toolscout.learn.fit import SHELF_FOLDER, fit, plan_fit
from toolscout.learn.gate import (
    PromotionVerdict,
    Sample,
    explain_outside_loss,
    find_outside_loss,
    judge,
    make_outside_queries,
    number_look,
)
from toolscout.learn.report import LAST_FILE, Candidate, Report, last
from toolscout.learn.split import Traffic, split_by_time
from toolscout.learn.synthetic_queries import CHAT_QUERIES
from toolscout.location import Home, describe_home
from toolscout.metrics import percentiles
from toolscout.rankers.scout_light import ONLY_NEAR
from toolscout.recipes import registry as recipes
from toolscout.recipes.registry import check_model
from toolscout.recipes.select import Selection
from toolscout.scout import Scout
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Cut, Stage
from toolscout.settings import Settings
from toolscout.trust.private_files import make_private_folder
from toolscout.types import Hit, Search

__all__ = ["BUDGET_MS", "FULL_RECIPE", "Candidate", "Report", "last", "learn"]

DEFAULT_RECIPE: Final = "scout-light"
FULL_RECIPE: Final = "scout-full"
MIN_TRAIN_REQUESTS: Final = 30
MIN_TEST_REQUESTS: Final = 20
RUN_FILE: Final = "learn/run.json"
BUDGET_MS: Final = 50.0
MAX_TIMED_QUERIES: Final = 200
SEARCH_BATCH: Final = 256
RANKING_DEPTH: Final = 20
SAME_SCORE_TOLERANCE: Final = 1e-4  # repeated searches of one request may differ by so much
UNSURE_SHARE: Final = 0.1  # share of the requests that may stay below the certain score
MAX_CHAMPIONS_KEPT: Final = 5  # models of the present and former champions that stay on disk


class _Refused(Exception):
    """The run ends without a promotion. The message is the reason."""


@dataclasses.dataclass
class _Run:
    """The state of one run: what it reads, then what the steps below find out.

    Attributes:
        scout: gives the journal, the catalogue and the models.
        over: stamp of the champion before the run; a promotion fails if somebody changed the champion since.
        served_before: what served searches before the run: the champion, or the recipe of the settings.
        say: called with progress messages.
        evidence: the requests of the journal with successful calls.
        traffic: the same, split into train, dev and test.
        catalogue: the tools.
        candidates: the recipes that were tried.
        chosen: the best of them on dev.
        verdict: the decision of the gate.
        sure_score: score of a first hit from which the chosen model is certain; see `_choose_sure_score`.
    """

    scout: Scout
    over: champion.Stamp | None
    served_before: Selection
    say: Callable[[str], None]
    evidence: Evidence
    traffic: Traffic
    catalogue: Catalogue
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    chosen: Candidate | None = None
    verdict: PromotionVerdict | None = None
    sure_score: float | None = None

    @property
    def settings(self) -> Settings:
        return self.scout.settings

    @property
    def last_fitted_row(self) -> int:
        """Row id of the last search that the champion was fitted on; 0 if it is a recipe without a fit."""
        return _read_journal_row(self.served_before.manifest, "through")


def learn(
    scout: Scout,
    *,
    recipes: Sequence[str] = (),
    dry_run: bool = False,
    budget_ms: float = BUDGET_MS,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Learn from the journal, and promote a candidate that is better than the champion.

    Args:
        scout: gives the journal, the catalogue and the models.
        recipes: names of recipes to fit; by default `scout-light`. `FULL_RECIPE` tunes encoders too.
        dry_run: fit and test, but promote nothing.
        budget_ms: bound on the candidate's 95th percentile of search time, milliseconds of processor time.
        seed: seed of the fits and the tests.
        say: called with progress messages.

    Raises:
        ConfigError: for a recipe that is not fitted.
        StoreError: if another run is under way.
    """
    started, home = time.monotonic(), scout.settings.place
    _require_fitted(recipes)
    busy_message = f"Another `toolscout learn` is running on {describe_home(home)}. Wait for it to finish."
    with hold_lock(home, "learn/lock.db", busy_message):
        state = _load_or_start_state(home, scout, say)
        run = _begin(scout, state["until"], say)
        try:
            _prepare_dataset(run)
            _fit_candidates(run, recipes, seed)
            _test_candidate(run, budget_ms, seed)
            outcome, reason = "promoted", _explain_promotion(run)
            if not dry_run:
                _promote(run, reason)
        except _Refused as refusal:
            outcome, reason = "refused", str(refusal)
        if dry_run:
            outcome = {"promoted": "would-promote", "refused": "would-refuse"}[outcome]
        report = Report(
            outcome=outcome,
            reason=reason,
            champion=_name_of(run.served_before),
            candidate=run.chosen.model if run.chosen else None,
            evidence=_describe_evidence(run),
            splits=_count_splits(run.traffic),
            candidates=tuple(run.candidates),
            verdict=run.verdict,
            seconds=round(time.monotonic() - started, 1),
            at=state["at"],
        )
        _write(home, LAST_FILE, report)
        _remove_old_models(run)
        open_home(home).delete_document(RUN_FILE)
    return report


# --- the steps --------------------------------------------------------------------------------------------------------


def _begin(scout: Scout, until: int, say: Callable[[str], None]) -> _Run:
    """Read the evidence of the journal up to the event `until`, and split it by time."""
    over, before = champion.stamp(scout.settings.place), _find_champion(scout, say)
    catalogue = scout.store.catalogue()
    say("reading the journal")
    since = _read_journal_row(before.manifest, "until")  # the requests of each caller after this row are limited too
    evidence = collect_evidence(scout.journal, until=until, since=since, trusted=scout.settings.learn_trust)
    traffic = split_by_time(evidence.examples, catalogue.tools(), scout.settings.home / "learn" / "dataset")
    return _Run(scout, over, before, say, evidence, traffic, catalogue)


def _find_champion(scout: Scout, say: Callable[[str], None]) -> Selection:
    """Return what serves searches that name no recipe or model: the champion, or the default if it cannot serve.

    Raises:
        UserError: if a setting names a recipe or model that cannot serve. Then no default may replace it.
    """
    selection, error = scout.engine.selector.try_champion(
        lambda chosen: scout.engine.builder.build_ranking(chosen, scout.store.catalogue())
    )
    if error is None:
        assert selection is not None
        return selection
    if scout.engine.selector.is_named(recipe=None, model=None):  # by a setting
        raise error
    say(f"the champion cannot serve: {error}")
    return scout.engine.selector.default


def _prepare_dataset(run: _Run) -> None:
    """Check that a fit can learn from the requests, and write them as a dataset folder.

    Raises:
        _Refused: if there are too few requests, nothing new, or all of them come from one caller who is not trusted.
    """
    splits = _count_splits(run.traffic)
    _check_amount(run, splits)
    _check_callers(run)
    _check_news(run)
    run.say(
        f"{sum(splits.values()):,} requests of {len(run.evidence.callers):,} callers: {splits['train']:,} to train on, "
        f"{splits['dev']:,} to choose on, {splits['test']:,} held out"
    )
    run.traffic.write(run.settings.home / "learn" / "dataset")


def _check_amount(run: _Run, splits: Mapping[str, int]) -> None:
    """Refuse to learn from too few requests, and say why so few count."""
    if splits["train"] >= MIN_TRAIN_REQUESTS and splits["test"] >= MIN_TEST_REQUESTS:
        return
    evidence = run.evidence
    left_out = {
        "without success": evidence.unused,
        "without a readable query": evidence.hidden,
        "above the limit of one caller": evidence.capped,
    }
    reasons = "".join(f", {count:,} {why}" for why, count in left_out.items() if count)
    min_requests = MIN_TEST_REQUESTS * 5  # a fifth is held out for the test
    message = (
        f"there is too little to learn from: {sum(splits.values()):,} requests led to a successful call of a tool of "
        f"the catalogue, and at least {min_requests} are needed "
        f"({evidence.searches:,} searches were followed by a call or feedback{reasons})"
    )
    if evidence.unnamed:
        message += (
            f"; {evidence.unnamed:,} successful calls do not count, because they name no search: pass the search_id of "
            "a search on with each call"
        )
    raise _Refused(message)


def _check_callers(run: _Run) -> None:
    """Refuse to learn if one caller who is not trusted could have invented all requests, or all new ones."""
    trusted = {run.settings.caller, *run.settings.learn_trust}
    since = _read_journal_row(run.served_before.manifest, "until")
    new_callers = {example.caller for example in run.evidence.examples if example.row > since}
    callers_by_part = {"all evidence": set(run.evidence.callers), "all that is new since the champion": new_callers}
    for part, callers in callers_by_part.items():
        if len(callers) == 1 and not trusted & callers:
            raise _Refused(
                f"{part} comes from one caller ({min(callers)}), who could have invented it. Wait for others, "
                "or name callers whom you trust in the setting learn_trust"
            )


def _check_news(run: _Run) -> None:
    """Refuse to learn if too few requests are newer than the champion: the fit would be the same."""
    manifest = run.served_before.manifest
    if manifest is not None and manifest.data.fingerprint == run.traffic.lesson.fingerprint:
        raise _Refused("there is nothing new since the champion was fitted")
    n_new = sum(_read_row(query) > run.last_fitted_row for query in run.traffic.test)
    if n_new < MIN_TEST_REQUESTS:
        raise _Refused(
            f"there is too little new since the champion was fitted: {n_new} of the newest requests came later, and at "
            f"least {MIN_TEST_REQUESTS} are needed"
        )


def _require_fitted(names: Sequence[str]) -> None:
    """Refuse recipes that need no fit."""
    for name in names:
        if not recipes.recipe(name).is_fitted:
            raise ConfigError(f"expected recipes that are fitted, found {name}. Use it without a fit")


def _fit_candidates(run: _Run, names: Sequence[str], seed: int) -> None:
    """Fit the named recipes, or the default one, and choose the best of them on dev.

    Raises:
        _Refused: if no recipe could be fitted.
    """
    from threadpoolctl import threadpool_limits

    names = names or [DEFAULT_RECIPE]
    for number, name in enumerate(names, 1):
        run.say(f"fitting {name}, recipe {number} of {len(names)}")
        try:
            with threadpool_limits(1):  # leaves the other cores to searches
                run.candidates.append(_fit(run, name, seed))
        except UserError as error:
            run.say(f"{name}: {error}")
            run.candidates.append(Candidate(recipe=name, problem=str(error)))
    fitted = [candidate for candidate in run.candidates if candidate.model]
    if not fitted:
        why = "; ".join(f"{candidate.recipe}: {candidate.problem}" for candidate in run.candidates)
        raise _Refused(f"no candidate could be fitted: {why}")
    run.chosen = max(fitted, key=lambda candidate: candidate.dev["ndcg@5"] + candidate.dev["comp@5"])


def _fit(run: _Run, name: str, seed: int) -> Candidate:
    """Fit one recipe on the requests of the run.

    The manifest notes which journal rows were read; see `_read_journal_row`. A repeated run finds its own models by
    their names, which contain the identity of the fit.
    """
    journal_rows = {"through": max(example.row for example in run.traffic.earlier), "until": run.evidence.until}
    shelf = champion.shelf(run.settings.place)
    resources = HomeResources(
        settings=run.settings,
        vectors=run.scout.engine.builder.vectors,
        say=lambda text: run.say(f"{name}: {text}"),
        seed=seed,
        resume=True,
        extras=run.scout.engine.builder.extras,
    )
    job = plan_fit(name, run.traffic.lesson, resources, shelf)
    model = f"{name}-{job.identity[:12]}"
    make_private_folder(shelf)
    named_job = dataclasses.replace(job, out=shelf / model, notes=lambda: {**job.notes(), "journal": journal_rows})
    manifest = fit(named_job).manifest
    return Candidate(recipe=name, model=model, dev=dict(manifest.metrics), seconds=manifest.fit_seconds)


def _test_candidate(run: _Run, budget_ms: float, seed: int) -> None:
    """Compare the chosen candidate with the champion, on the newest requests that neither was fitted on.

    Sets `run.verdict` and `run.sure_score`.

    Raises:
        _Refused: if the candidate is not better.
    """
    assert run.chosen is not None and run.chosen.model is not None
    test = {query: gold for query, gold in run.traffic.test.items() if _read_row(query) > run.last_fitted_row}
    texts = {query: run.traffic.lesson.texts[query] for query in test}
    champion_stage = _build_stage(run, run.served_before)
    stage, outside = _build_candidate(run, champion_stage, seed)
    sample = Sample(
        qrels=test,
        callers={query: run.traffic.callers[query] for query in test},
        groups={
            name: {query: label for query, label in labels.items() if query in test}
            for name, labels in run.traffic.groups.items()
        },
        trusted=_find_trusted_callers(run),
    )
    tested = [run.chosen.model, test, sample.callers, sorted(sample.trusted), seed]
    look = number_look(run.settings.place, _name_of(run.served_before), tested)
    run.say(
        f"comparing {run.chosen.recipe} with {_name_of(run.served_before)} on {len(test):,} held-out requests, "
        f"comparison {look}"
    )
    hits = _search(stage, texts)
    chat_hits = _search(stage, {text: text for text in CHAT_QUERIES})
    run.sure_score = _choose_sure_score(list(hits.values()), list(chat_hits.values()))
    run.verdict = judge(
        _list_ids(hits),
        _list_ids(_search(champion_stage, texts)),
        sample,
        latency_ms=_measure_latency(stage, list(texts.values())),
        budget_ms=budget_ms,
        seed=seed,
        look=look,
        outside=outside,
    )
    if run.verdict.reasons:
        raise _Refused(f"{run.chosen.model}: {'; '.join(run.verdict.reasons)}")


def _build_candidate(run: _Run, champion_stage: Stage, seed: int) -> tuple[Stage, dict[str, Any] | None]:
    """Build the pipeline of the chosen candidate, and compare it with the champion on requests outside the traffic.

    If a candidate of the default recipe loses there, it is restricted to requests near the logged ones, and compared
    again. Its manifest has a note of this.
    """
    assert run.chosen is not None and run.chosen.model is not None
    folder = champion.shelf(run.settings.place) / run.chosen.model
    stage = _build_stage(run, run.scout.engine.selector.find(None, folder))
    outside = _compare_outside(run, stage, champion_stage, seed)
    if explain_outside_loss(outside) and run.chosen.recipe == DEFAULT_RECIPE:
        run.say("requests outside the traffic would lose; the model is used only for requests near the logged ones")
        model_store.note(folder, **{ONLY_NEAR: True})
        stage = _build_stage(run, run.scout.engine.selector.find(None, folder))  # reads the note
        outside = _compare_outside(run, stage, champion_stage, seed)
    return stage, outside


def _compare_outside(run: _Run, candidate: Stage, champion: Stage, seed: int) -> dict[str, Any] | None:
    """Compare two pipelines on requests for the tools that no request of the journal used; see `find_outside_loss`."""
    used = {tool for example in run.evidence.examples for tool in example.tools}
    queries = make_outside_queries(run.catalogue.tools(), used, seed)
    texts = {query.id: query.text for query in queries}
    candidate_hits, champion_hits = _search(candidate, texts), _search(champion, texts)
    return find_outside_loss(_list_ids(candidate_hits), _list_ids(champion_hits), queries, seed)


def _find_trusted_callers(run: _Run) -> frozenset[str]:
    """Return the callers who may decide alone: those in the setting, and the owner if nobody else searches."""
    owner = run.settings.caller
    trusted = frozenset(run.settings.learn_trust)
    return trusted | {owner} if set(run.evidence.callers) == {owner} else trusted


def _promote(run: _Run, reason: str) -> None:
    """Make the chosen candidate the champion.

    Raises:
        _Refused: if somebody changed the champion since the run began.
    """
    assert run.chosen is not None and run.chosen.model is not None
    home, model = run.settings.place, run.chosen.model
    folder = champion.shelf(home) / model
    model_store.note(folder, sure=run.sure_score)
    publish_model(home, folder)
    try:
        champion.promote(home, model, reason, over=run.over, check=check_model)
    except Changed:
        raise _Refused(f"{model} was not promoted, because somebody changed the champion. Run it again") from None


def _build_stage(run: _Run, selection: Selection) -> Stage:
    """Build a pipeline with the examples that it would have had just before the newest requests.

    Searches also use the examples after those that a model was fitted on, if `learn` fitted it.
    """
    manifest = selection.manifest
    examples: tuple[Example, ...] = ()
    if manifest is not None and "journal" in manifest.values:
        through = _read_journal_row(manifest, "through")
        examples = tuple(example for example in run.traffic.earlier if example.row > through)
    ranking = run.scout.engine.builder.build_ranking(selection, run.catalogue, live=lambda: (len(examples), examples))
    return ranking >> Cut(RANKING_DEPTH)


def _search(stage: Stage, texts: Mapping[str, str]) -> dict[str, tuple[Hit, ...]]:
    """Search for all texts (query id → text) in batches. Returns query id → hits."""
    hits_by_query: dict[str, tuple[Hit, ...]] = {}
    remaining = iter(texts.items())
    while batch := list(itertools.islice(remaining, SEARCH_BATCH)):
        answers = stage([Search(query=text, k=RANKING_DEPTH) for _, text in batch])
        hits_by_query |= {query: answer.hits for (query, _), answer in zip(batch, answers, strict=True)}
    return hits_by_query


def _list_ids(hits_by_query: Mapping[str, tuple[Hit, ...]]) -> dict[str, list[str]]:
    return {query: [hit.id for hit in hits] for query, hits in hits_by_query.items()}


def _choose_sure_score(requests: Sequence[tuple[Hit, ...]], chat: Sequence[tuple[Hit, ...]]) -> float | None:
    """Choose the score of a first hit from which a request certainly needs a tool, so that it is never turned away.

    Nine in ten requests reach this score. If a chat request would too, the highest score of a chat request is taken
    instead, so that no chat is certain to need a tool.

    Args:
        requests: hits of each request that the model was not fitted on, best first.
        chat: the same for requests that need no tool.

    Returns:
        None if no request has a hit.
    """
    scores = [hits[0].score for hits in requests if hits]
    if not scores:
        return None
    chat_scores = (hits[0].score + SAME_SCORE_TOLERANCE for hits in chat if hits)
    return float(max([np.quantile(scores, UNSURE_SHARE), *chat_scores]))


def _measure_latency(stage: Stage, texts: Sequence[str]) -> dict[str, float]:
    """Measure p50 and p95 of a search in ms of processor time, which other processes do not change."""
    from threadpoolctl import threadpool_limits

    step = max(1, len(texts) // MAX_TIMED_QUERIES)
    sample = texts[::step][:MAX_TIMED_QUERIES]
    times_ms = []
    with threadpool_limits(1):  # `thread_time` does not count other threads
        for text in sample:
            started = time.thread_time()
            stage([Search(query=text)])
            times_ms.append((time.thread_time() - started) * 1000)
    return percentiles(times_ms)


# --- reports and files ------------------------------------------------------------------------------------------------


def _read_row(query: str) -> int:
    """Return the journal row id of the search from which a query comes: 7 for the query id `q7`."""
    return int(query[1:])


def _read_journal_row(manifest: Manifest | None, name: str) -> int:
    """Return a journal row id from a model's manifest, 0 if it has none.

    `name`: `through`, the last search that the model was fitted on, or `until`, the newest event that its run read.
    """
    rows = manifest.values.get("journal") if manifest is not None else None
    return int(rows.get(name, 0)) if isinstance(rows, dict) else 0


def _name_of(selection: Selection) -> str:
    """Return the name of the model, or of the recipe without one."""
    return selection.model.name if selection.model is not None else selection.recipe


def _explain_promotion(run: _Run) -> str:
    """Say in one sentence how much better the candidate is, and on which evidence."""
    assert run.verdict is not None and run.chosen is not None
    test = run.verdict.tests["ndcg@5"]
    low, high = (100 * bound for bound in test["ci95"])
    return (
        f"{run.chosen.model} is better than {_name_of(run.served_before)} on {run.verdict.n:,} newest requests of "
        f"{run.verdict.callers:,} callers: ndcg@5 {100 * test['champion']:.1f} to {100 * test['candidate']:.1f}, "
        f"difference {100 * test['difference']:+.1f} (95 % interval {low:+.1f} to {high:+.1f}, p {test['p']:.2g}, "
        f"comparison {run.verdict.look} with this champion, which needed p < {run.verdict.level:.2g})"
    )


def _describe_evidence(run: _Run) -> dict[str, Any]:
    """Return the counts of the evidence. Requests and callers are only counted; the journal has them."""
    return {
        **msgspec.structs.asdict(run.evidence),
        "callers": len(run.evidence.callers),
        "examples": len(run.evidence.examples),
        "unknown_tools": run.traffic.unknown,
        "unsupported_tools": run.traffic.unsupported,
    }


def _count_splits(traffic: Traffic) -> dict[str, int]:
    return {"train": len(traffic.lesson.train), "dev": len(traffic.lesson.dev), "test": len(traffic.test)}


def _remove_old_models(run: _Run) -> None:
    """Delete the candidates of this and earlier runs, except the chosen one and the latest champions.

    The model that the setting `model` names stays too.
    """
    if run.chosen is None:
        return
    home = run.settings.place
    pinned = run.settings.model and run.settings.model.expanduser().resolve()
    with champion.changing(home):
        champions = list(dict.fromkeys(entry.model for entry in reversed(champion.history(home))))  # newest first
        names_to_keep = {run.chosen.model, *champions[:MAX_CHAMPIONS_KEPT]}
        for folder, manifest in model_store.list_models(champion.shelf(home)):
            # A damaged model has a message in place of its manifest.
            is_learned = isinstance(manifest, Manifest) and "journal" in manifest.values
            if is_learned and folder.name not in names_to_keep and folder.resolve() != pinned:
                shutil.rmtree(folder)
                forget_model(home, folder.name)
    _remove_bases(run)


def _remove_bases(run: _Run) -> None:
    """Delete the bases that were fitted for this run. The models that build on them contain copies."""
    for folder in (run.settings.home / SHELF_FOLDER).glob("*"):
        try:
            data = model_store.read_manifest(folder).data
        except (NotFound, StoreError):  # no model, or a damaged one
            continue
        if data.fingerprint == run.traffic.lesson.fingerprint:
            shutil.rmtree(folder)


def _load_or_start_state(home: Home, scout: Scout, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the state of an unfinished run, or start and save a new one.

    Returns:
        `until`: row id of the last journal event to read; `at`: start of the run.
    """
    try:
        unfinished: dict[str, Any] = msgspec.json.decode(open_home(home).read_document(RUN_FILE), type=dict)
        if isinstance(unfinished.get("until"), int) and isinstance(unfinished.get("at"), str):
            say(f"continuing the interrupted run of {unfinished['at']}")
            return unfinished
    except (OSError, msgspec.MsgspecError):
        pass  # no run was interrupted, or its file is damaged: begin anew
    state = {"until": scout.journal.last(), "at": now()}
    _write(home, RUN_FILE, state)
    return state


def _write(home: Home, name: str, value: Any) -> None:
    open_home(home).write_document(name, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
