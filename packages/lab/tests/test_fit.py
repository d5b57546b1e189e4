from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import lessons
from tests_cli import run as cli
from toolscout.dataset import Dataset, NoTool
from toolscout.errors import CheckpointError, ConfigError, NotFound, UserError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.learn.fit import (
    FitJob,
    Lesson,
    fit,
    fit_abstention_floors,
    make_lesson,
    on_shelf,
    resolve_with_base,
)
from toolscout.rankers import Artifacts
from toolscout.rankers.neighbours import Neighbours
from toolscout.recipes import registry
from toolscout.scout import Scout
from toolscout.search.abstain import decision
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Floors
from toolscout.search.resources import BASE_FOLDER as BASE
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout.types import Search
from toolscout_lab.bench import run
from toolscout_lab.bench_jobs import Job, load_dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lessons.write(tmp_path / "data")
    return tmp_path / "data"


def learned(root: Path) -> Lesson:
    dataset = load_dataset("slang", root)
    return make_lesson(dataset, read_tools(dataset.folder, "d").tools, dataset.texts("test"))


def job(root: Path, **fields: object) -> Job:
    settings = Settings(home=root.parent / "home")
    defaults = {"recipe": "neighbours", "label": "neighbours", "out": root.parent / "out", "settings": settings}
    return Job(load_dataset("slang", root), **{**defaults, **fields})  # type: ignore[arg-type]


def leak(root: Path, *pairs: tuple[str, str]) -> None:
    """Give training queries the texts of test queries, written a little otherwise."""
    file = root / "slang" / "queries.jsonl"
    rows = {row["_id"]: row for row in map(json.loads, file.read_text().splitlines())}
    for train, test in pairs:
        rows[train]["text"] = f"  {rows[test]['text'].upper()} !"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


def test_a_fit_sees_train_and_dev_with_whole_ids_and_nothing_of_test(root: Path) -> None:
    found = learned(root)
    test = load_dataset("slang", root).split("test")
    assert len(found.train) == 2 * len(test) and len(found.dev) == len(test) and not found.dropped
    assert not set(test) & {*found.train, *found.dev}
    ids = [tool.id for tool in found.tools]
    assert ids == sorted(ids) and all(set(gold) <= set(ids) for gold in found.train.values())


def test_training_queries_that_repeat_a_test_query_are_dropped_and_counted(root: Path) -> None:
    leak(root, ("q0-0", "q5-3"), ("q3-2", "q9-3"))
    found = learned(root)
    assert found.dropped == ["q0-0", "q3-2"]
    assert "q0-0" not in found.train and "q3-2" not in found.dev
    result = run(job(root)).result
    assert result["dropped_leaks"] == 2
    assert result["fitted"][0]["data"].dropped_leaks == 2


def test_every_setting_is_said_with_its_origin(root: Path, tmp_path: Path) -> None:
    said: list[str] = []
    fit(lessons.plan("neighbours", learned(root), tmp_path / "m", changes={"k": 20}, say=said.append))
    assert "k = 20 (argument)" in said and "focus = chosen on dev (default)" in said
    assert "46 queries of slang to train on, 23 to choose on, 0 left out" in said[0]
    assert said[1] == "encoder = static, seed = 0"


@pytest.mark.parametrize("recipe", ["neighbours", "tool2vec", "mlc-light"])
def test_what_another_fit_goes_on_from_has_not_learned_from_dev(root: Path, tmp_path: Path, recipe: str) -> None:
    taught, settings, said = learned(root), Settings(home=tmp_path / "home"), list[str]()

    def uses(model: model_store.Model | None) -> float:
        assert model is not None and model.manifest.data.refit == (model.manifest.settings["refit"].value is True)
        return float(model.arrays["uses"].sum())

    def below(**changes: object) -> FitJob:
        more = {"base": recipe, **{f"base.{name}": value for name, value in changes.items()}}
        return lessons.plan("feedback-prf", taught, tmp_path / "m", changes=more, settings=settings, say=said.append)

    train, both = (sum(map(len, {**taught.train, **dev}.values())) for dev in ({}, taught.dev))
    assert uses(fit(lessons.plan(recipe, taught, tmp_path / "alone"))) == both
    assert uses(fit(lessons.plan(recipe, taught, tmp_path / "told", changes={"refit": False}))) == train
    base = below().base
    assert base is not None and uses(base.model) == train and "refit = False (base)" in said
    assert not any("trust it more" in line for line in said)
    base = below(refit=True).base
    assert base is not None and uses(base.model) == both and any("trust it more" in line for line in said)


@pytest.mark.parametrize("recipe", ["neighbours", "tool2vec", "mlc-light"])
def test_a_model_that_was_not_fitted_on_dev_answers_it_as_its_figures_say(
    root: Path, tmp_path: Path, recipe: str
) -> None:
    taught = learned(root)
    job = lessons.plan(recipe, taught, tmp_path / "m", changes={"refit": False})
    model = fit(job)
    stage = registry.build(recipe, Catalogue.of(taught.tools), model=model.folder)
    found = stage([Search(query=taught.texts[query], k=20) for query in taught.dev])
    figures = taught.evaluate({query: search.ids for query, search in zip(taught.dev, found, strict=True)}).means()
    assert figures == pytest.approx(model.manifest.metrics, abs=1e-9)


def test_a_classifier_that_stays_with_train_is_the_one_of_its_best_epoch(root: Path, tmp_path: Path) -> None:
    chosen = fit(lessons.plan("mlc-light", learned(root), tmp_path / "chosen", changes={"refit": False}))
    epochs = chosen.manifest.settings["epochs"].value
    told = fit(lessons.plan("mlc-light", learned(root), tmp_path / "told", changes={"refit": False, "epochs": epochs}))
    assert all(np.array_equal(told.arrays[name], array) for name, array in chosen.arrays.items())


@pytest.mark.parametrize(
    ("recipe", "base", "expected"),
    [
        ("colt", "mlc", "a recipe that tunes an encoder"),
        ("masstool", "bm25", "a recipe that tunes an encoder"),
        ("feedback-dpr", "neighbours", "a recipe that tunes an encoder"),
        ("toolrerank", "dpr", "the recipe crossencoder"),
        ("toolrerank", "crossencoder-10", "the recipe crossencoder"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_before_it_is_fitted(
    root: Path, tmp_path: Path, recipe: str, base: str, expected: str
) -> None:
    home = tmp_path / "home"
    with pytest.raises(ConfigError, match=f"--set base: expected {expected}.*, found {base}"):
        lessons.plan(recipe, learned(root), tmp_path / "m", changes={"base": base}, settings=Settings(home=home))
    assert not (home / "bench-models").exists()


def test_settings_that_a_method_does_not_know_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recipe neighbours: a setting is not valid.*colour"):
        lessons.plan("neighbours", learned(root), tmp_path / "m", changes={"colour": "red"})
    with pytest.raises(ConfigError, match="recipe bm25: there is nothing to fit"):
        lessons.plan("bm25", learned(root), tmp_path / "m")
    with pytest.raises(ConfigError, match="expected a recipe that judges whether a tool is needed"):
        lessons.plan("neighbours", learned(root), tmp_path / "m", no_tool=NoTool([], [], []))


def test_settings_after_the_fit_are_refused(root: Path, tmp_path: Path) -> None:
    model = fit(lessons.plan("neighbours", learned(root), tmp_path / "m"))
    with pytest.raises(ConfigError, match=r"settings \(k\) are fixed when it is fitted"):
        registry.build("neighbours", Catalogue.of(learned(root).tools), model=model.folder, settings={"k": 3})


def test_a_finished_fit_is_kept_on_resume_and_done_again_for_other_settings(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    first = fit(lessons.plan("neighbours", learned(root), out)).manifest
    said: list[str] = []
    assert fit(lessons.plan("neighbours", learned(root), out, resume=True, say=said.append)).manifest == first
    assert any("already finished" in line for line in said)
    other = fit(lessons.plan("neighbours", learned(root), out, resume=True, changes={"k": 20})).manifest
    assert other.job != first.job and other.settings["k"].value == 20


def test_a_folder_of_something_else_is_not_overwritten(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    out.mkdir()
    (out / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="the folder holds other files"):
        fit(lessons.plan("neighbours", learned(root), out))
    fit(lessons.plan("neighbours", learned(root), tmp_path / "n"))
    with pytest.raises(ConfigError, match="holds a model of neighbours, not of tool2vec"):
        fit(lessons.plan("tool2vec", learned(root), tmp_path / "n"))
    assert (out / "thesis.txt").read_text() == "precious"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("resume", [False, True])
def test_a_damaged_model_is_fitted_again(root: Path, tmp_path: Path, resume: bool) -> None:
    out = tmp_path / "m"
    before = fit(lessons.plan("neighbours", learned(root), out)).manifest
    flip(out / model_store.ARRAYS)
    said: list[str] = []
    after = fit(lessons.plan("neighbours", learned(root), out, resume=resume, say=said.append)).manifest
    assert after.files == before.files and model_store.load(out).manifest == after
    assert not resume or any(str(out) in line and "the file was changed" in line for line in said)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a base on the shelf: do not change it, copy it."""
    folder = tmp_path_factory.mktemp("shelf")
    lessons.write(folder / "data")
    settings = Settings(home=folder / "home")
    fit(
        lessons.plan(
            "feedback-prf", learned(folder / "data"), folder / "one", changes={"base": "neighbours"}, settings=settings
        )
    )
    return folder / "home"


@pytest.mark.parametrize("harm", [flip, cut, empty, Path.unlink])
@pytest.mark.parametrize("file", [model_store.MANIFEST, model_store.ARRAYS])
def test_a_damaged_base_on_the_shelf_is_fitted_again(
    root: Path, shelf: Path, tmp_path: Path, file: str, harm: Any
) -> None:
    shutil.copytree(shelf, tmp_path / "home")
    settings = Settings(home=tmp_path / "home")

    def bases() -> list[Path]:
        return sorted((tmp_path / "home" / "bench-models").iterdir())

    [shelved] = bases()
    harm(shelved / file)
    fit(
        lessons.plan("feedback-prf", learned(root), tmp_path / "two", changes={"base": "neighbours"}, settings=settings)
    )
    assert bases() == [shelved] and model_store.load(shelved).manifest.recipe == "neighbours"


@pytest.mark.parametrize("harm", [flip, cut, empty])
def test_where_the_manifest_is_damaged_nobody_knows_whose_model_it_was(root: Path, tmp_path: Path, harm: Any) -> None:
    fit(lessons.plan("tool2vec", learned(root), tmp_path / "m"))
    harm(tmp_path / "m" / model_store.MANIFEST)
    before = (tmp_path / "m" / model_store.ARRAYS).read_bytes()
    with pytest.raises(ConfigError, match="a manifest.json that is damaged, or not of a model. Choose another folder"):
        fit(lessons.plan("neighbours", learned(root), tmp_path / "m"))
    assert (tmp_path / "m" / model_store.ARRAYS).read_bytes() == before


def test_a_checkpoint_on_the_shelf_that_does_not_fit_is_left_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    plain = Neighbours.fit

    def stale(self: Neighbours, workspace: HomeResources, *rest: Any) -> Artifacts:
        tried.append((workspace.work / "checkpoint").exists())
        if tried[-1]:
            raise CheckpointError("of another training")
        return plain(self, workspace, *rest)

    monkeypatch.setattr(Neighbours, "fit", stale)
    settings = Settings(home=tmp_path / "home")
    for task, fits in (
        (on_shelf(lessons.plan("neighbours", learned(root), tmp_path, settings=settings, resume=True)), True),
        (lessons.plan("neighbours", learned(root), tmp_path / "m", settings=settings, resume=True), False),
    ):
        task.work.mkdir(parents=True)
        (task.work / "checkpoint").write_text("old")
        if fits:
            assert fit(task).manifest.recipe == "neighbours"
        else:
            with pytest.raises(CheckpointError):
                fit(task)
    assert tried == [True, False, True]


def test_a_manifest_of_something_else_and_a_file_are_left_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text('{"name": "an app"}')
    with pytest.raises(ConfigError, match="holds a manifest.json that is damaged, or not of a model"):
        fit(lessons.plan("neighbours", learned(root), tmp_path / "app"))
    assert (tmp_path / "app" / "manifest.json").read_text() == '{"name": "an app"}'
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="file: this is a file, and a model is a folder"):
        fit(lessons.plan("neighbours", learned(root), tmp_path / "file"))


def test_models_of_other_rules_are_others(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lessons.plan("scout-light", learned(root), tmp_path / "m").identity
    recipe = registry.RECIPES["scout-light"]
    monkeypatch.setitem(registry.RECIPES, recipe.name, dataclasses.replace(recipe, revision=recipe.revision + 1))
    assert lessons.plan("scout-light", learned(root), tmp_path / "m").identity != before


@pytest.mark.parametrize(
    ("recipe", "setting", "value"),
    [
        ("mlc-light", "batch", 0),
        ("mlc-light", "epochs", 0),
        ("mlc-light", "most_epochs", 0),
        ("mlc-light", "sets", -1),
        ("mlc-light", "rate", -1.0),
        ("mlc-light", "kappa", -10.0),
        ("mlc-light", "kappa", float("nan")),
        ("neighbours", "k", 0),
        ("neighbours", "novelty", -1.0),
        ("neighbours", "sharpness", 0.0),
        ("tool2vec", "beta", 0.0),
        ("tool2vec-tuned", "novelty", -0.1),
        ("mlc", "sets", -0.5),
        ("dpr", "margin", -0.1),
        ("colt", "margin", -0.1),
        ("toolrefiner", "blend", -1.0),
    ],
)
def test_settings_out_of_bounds_are_refused(recipe: str, setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"recipe {recipe}: .*{setting}"):
        registry.resolve(recipe, {setting: value})


def test_checkpoints_stay_for_a_resume_only(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []

    def interrupted(self: Neighbours, workspace: HomeResources, *rest: Any) -> Artifacts:
        found.append((workspace.work / "step").exists())
        (workspace.work / "step").write_text("1")
        raise KeyboardInterrupt

    monkeypatch.setattr(Neighbours, "fit", interrupted)
    for resume in (False, True, False):
        with pytest.raises(KeyboardInterrupt):
            fit(lessons.plan("neighbours", learned(root), tmp_path / "m", resume=resume))
    assert found == [False, True, False]
    monkeypatch.undo()
    fit(lessons.plan("neighbours", learned(root), tmp_path / "m"))
    assert not (tmp_path / "m.work").exists()


def test_a_set_without_training_queries_says_so(root: Path) -> None:
    for name in ("train", "dev"):
        (root / "slang" / "qrels" / f"{name}.tsv").unlink()
    with pytest.raises(NotFound, match="A fitted recipe needs queries to learn from.*--folds query:5"):
        learned(root)
    dataset = load_dataset("slang", root)
    with pytest.raises(UserError, match="has 0 queries to train on and 0 to choose on"):
        make_lesson(dataset, read_tools(dataset.folder, "d").tools, {}, [])


def test_bench_of_a_set_without_training_queries_says_so_too(root: Path) -> None:
    for name in ("train", "dev"):
        (root / "slang" / "qrels" / f"{name}.tsv").unlink()
    with pytest.raises(NotFound, match="A fitted recipe needs queries to learn from.*--folds query:5"):
        run(job(root))


def test_bench_fits_on_train_and_scores_test_once(root: Path) -> None:
    result = run(job(root)).result
    plain = run(job(root, recipe="hybrid", label="hybrid")).result
    assert result["metrics"]["ndcg@3"] >= 0.95 > 0.9 > plain["metrics"]["ndcg@3"]
    [fitted] = result["fitted"]
    assert fitted["settings"]["k"]["origin"] == "dev" and set(fitted["dev"]) == {"recall@5", "ndcg@5", "comp@5"}
    assert result["fit_seconds"] > 0 and result["dropped_leaks"] == 0 and "fitted" not in plain
    written = json.loads((root.parent / "out" / "slang" / "neighbours.json").read_text())
    assert written["fitted"][0]["data"]["n_train"] == 46


def test_bench_twice_gives_the_same_figures_and_resume_keeps_the_model(root: Path) -> None:
    first = run(job(root)).result
    [folder] = (root.parent / "home" / "bench-models").glob("neighbours-*")
    stamp = (folder / "manifest.json").stat().st_mtime_ns
    (root.parent / "out" / "slang" / "neighbours.json").unlink()
    again = run(job(root), resume=True).result
    assert (folder / "manifest.json").stat().st_mtime_ns == stamp
    assert again["metrics"] == first["metrics"] and again["run_sha256"] == first["run_sha256"]
    assert again["fit_seconds"] == first["fit_seconds"]
    anew = run(job(root), force=True).result
    assert (folder / "manifest.json").stat().st_mtime_ns > stamp and anew["run_sha256"] == first["run_sha256"]


def test_a_result_from_under_other_defaults_is_measured_again(root: Path) -> None:
    said: list[str] = []
    first = run(job(root)).result
    file = root.parent / "out" / "slang" / "neighbours.json"
    held = json.loads(file.read_text())
    held["fitted"][0]["settings"]["novelty"]["value"] = 0.5
    file.write_text(json.dumps(held))
    again = run(job(root), resume=True, say=said.append)
    assert not again.kept and again.result["fitted"][0]["settings"] == first["fitted"][0]["settings"]
    assert any("recipe has changed: novelty 0.5 (now 1.0)" in line for line in said)
    assert run(job(root), resume=True).kept


def test_a_result_of_an_earlier_revision_is_measured_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    run(job(root))
    recipe = registry.recipe("neighbours")
    monkeypatch.setitem(registry.RECIPES, recipe.name, dataclasses.replace(recipe, revision=recipe.revision + 1))
    again = run(job(root), resume=True, say=said.append)
    assert not again.kept and again.result["fitted"][0]["revision"] == recipe.revision + 1
    assert any(f"revision {recipe.revision} (now {recipe.revision + 1})" in line for line in said)


def test_every_setting_of_a_fit_is_named_and_of_what_it_goes_on_from() -> None:
    found = resolve_with_base("toolrefiner-tool2vec", {"candidates": 8, "base.batch": 4})
    assert (found["candidates"], found["give_way"], found["blend"]) == (8, True, None)
    assert (found["base"], found["base.batch"], found["base.refit"]) == ("tool2vec-tuned", 4, False)
    assert (
        resolve_with_base("tool2vec-tuned", {})["refit"]
        and resolve_with_base("toolrefiner", {"base": "neighbours", "base.refit": True})["base.refit"]
    )
    assert resolve_with_base("toolrerank", {})["base.base.base"] == "dpr"
    assert not any(
        name.startswith("base.")
        for name in {**resolve_with_base("colt-no-semantic", {}), **resolve_with_base("feedback-prf", {})}
    )


def test_folds_fit_anew_for_each_and_score_every_query_once(root: Path) -> None:
    for name in ("train", "dev"):
        (root / "slang" / "qrels" / f"{name}.tsv").unlink()
    qrels = root / "slang" / "qrels" / "test.tsv"
    rows = [
        f"q{number}-{variant}\t{tool}\t1"
        for number, tool in enumerate(tool for tool, phrases in lessons.SLANG.items() for _ in phrases)
        for variant in range(4)
    ]
    qrels.write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n")
    result = run(job(root, folds="query:3")).result
    assert len(result["fitted"]) == 3 and result["n_queries"] == len(rows)
    assert sum(len(rows) - each["data"].n_train - each["data"].n_dev for each in result["fitted"]) == len(rows)
    assert result["metrics"]["recall@3"] >= 0.9


def test_a_fitted_recipe_is_not_scored_on_what_it_learns_from(root: Path) -> None:
    with pytest.raises(ConfigError, match="--split dev: .* learns from these queries"):
        run(job(root, split="dev"))


def test_a_model_of_one_dataset_is_scored_on_another_that_shares_tools(root: Path) -> None:
    lessons.write(root, "more", {**lessons.TOOLS, "extra/noise": "Ring a bell"})
    target = load_dataset("more", root)
    transferred = dataclasses.replace(job(root), dataset=target, train_on=load_dataset("slang", root))
    result = run(transferred).result
    assert result["n_tools"] == 7 and result["settings"] == {"train_on": "slang"}
    assert result["fitted"][0]["data"].name == "slang"
    assert result["dropped_leaks"] == 0 and result["metrics"]["recall@3"] >= 0.9


def test_what_training_on_another_dataset_would_leak_is_dropped(root: Path) -> None:
    lessons.write(root, "more")
    (root / "more" / "qrels" / "test.tsv").write_bytes((root / "more" / "qrels" / "train.tsv").read_bytes())
    for name in ("train", "dev"):
        (root / "more" / "qrels" / f"{name}.tsv").unlink()
    both = dataclasses.replace(job(root), dataset=load_dataset("more", root), train_on=load_dataset("slang", root))
    with pytest.raises(UserError, match="has 0 queries to train on and 23 to choose on"):
        run(both)


def test_a_method_that_cannot_transfer_refuses_before_it_fits(root: Path) -> None:
    lessons.write(root, "else", {f"else/{key}": text for key, text in lessons.TOOLS.items()} | lessons.TOOLS)
    strange = root / "else"
    for file in (strange / "corpus.jsonl", *(strange / "qrels").glob("*.tsv")):
        file.write_text(file.read_text().replace("/", "-"))
    moved = dataclasses.replace(job(root), dataset=Dataset.load(strange), train_on=load_dataset("slang", root))
    with pytest.raises(ConfigError, match="slang and else share no tool"):
        run(moved)
    assert not (root.parent / "home" / "bench-models").exists()


def test_the_command_trains_and_says_what_came_out(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("TOOLSCOUT_DATA", str(root))
    out = root.parent / "model"
    shown = cli("train", "neighbours", "--data", "slang", "--set", "k=20", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    assert "k = 20 (argument)" in shown.stderr and "focus = " in shown.stdout and "on dev recall@5" in shown.stdout
    assert model_store.load(out).manifest.settings["k"] == model_store.ModelSetting(20, "argument")
    kept = cli(
        "train", "neighbours", "--data", str(root / "slang"), "--set", "k=20", "--out", str(out), "--resume", "--json"
    )
    assert json.loads(kept.stdout)["recipe"] == "neighbours" and "already finished" in kept.stderr
    assert "licence: none known" in (out / "README.md").read_text()
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    here = cli("train", "neighbours", "--data", "slang", "--out", ".")
    assert here.exit_code == 1 and "expected a folder for the model alone" in here.stderr
    refused = cli("train", "bm25", "--data", "slang", "--out", str(out))
    assert refused.exit_code == 1 and "there is nothing to fit" in refused.stderr
    assert cli("train", "neighbours", "--data", "absent", "--out", str(out)).exit_code == 1


def test_a_model_brings_the_floors_of_its_own_requests(root: Path, tmp_path: Path) -> None:
    found = fit(
        lessons.plan("neighbours", learned(root), tmp_path / "model", settings=Settings(home=tmp_path / "home"))
    )
    floors = msgspec.convert(found.manifest.values["floors"], Floors)
    assert floors.need_at(0) == floors.fit_at(0) == 0.0 and floors.need == tuple(sorted(floors.need))
    with Scout(tmp_path / "home") as scout:
        scout.add(root / "slang", name="slang")
        asked = [*load_dataset("slang", root).texts("test").values()]
        answers = [scout.search(text, model=found.folder).kind for text in asked]
        assert answers.count("tools") >= 0.95 * len(asked), "what a model has learned is not turned away"


def test_the_floors_of_a_lesson_are_worked_out_once_and_only_for_what_is_saved(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    fit_floors = decision.fit_floors
    monkeypatch.setattr(
        "toolscout.search.abstain.decision.fit_floors",
        lambda workspace, catalogue, texts: (asked.append(len(texts)), fit_floors(workspace, catalogue, texts))[1],
    )
    one, settings = learned(root), Settings(home=tmp_path / "home")
    begun = lessons.plan("feedback-prf", one, tmp_path / "m", changes={"base": "neighbours"}, settings=settings)
    assert asked == [69]  # of the base, which is saved
    outer = fit(begun)
    inner = model_store.load(outer.folder / BASE)
    assert asked == [69] and outer.manifest.values["floors"] == inner.manifest.values["floors"]
    assert msgspec.convert(outer.manifest.values["floors"], Floors) == fit_abstention_floors(one)
    asked.clear()
    again = lessons.plan(
        "feedback-prf", learned(root), tmp_path / "m", changes={"base": "neighbours"}, settings=settings
    )
    fit(lessons.resumed(again))
    assert asked == [], "nothing is worked out for models that are there"
