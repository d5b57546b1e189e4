"""Searching with a fitted model: in this process, in another, through the command line, while the catalogue changes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lessons
from homes_in_postgres import find_place, name_home
from tests_cli import run
from tiny import tiny_bert
from toolscout import encoders
from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import champion, model_store
from toolscout.home.models.model_store import ModelSetting
from toolscout.learn.fit import Lesson, fit
from toolscout.recipes import registry
from toolscout.scout import Scout
from toolscout.search.exact_names import EXACT, Names
from toolscout.search.home_resources import HomeResources
from toolscout.settings import load_settings
from toolscout.testing import HashEncoder
from toolscout.types import Hit, Search, Tool

LIGHT = ("tool2vec", "neighbours", "mlc-light")
light = pytest.mark.parametrize("name", LIGHT)
RAIN, BED = "office/weather/forecast", "office/travel/hotel"


@pytest.fixture(scope="module")
def slang(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return lessons.load(lessons.write(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def shelf(slang: Lesson, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each light recipe, on the bundled encoder; the tools had the source `d`."""
    folder = tmp_path_factory.mktemp("models")
    for name in LIGHT:
        fit(lessons.plan(name, slang, folder / name))
    return folder


@pytest.fixture
def office(slang: Lesson, tmp_path: Path) -> Iterator[Scout]:
    """The same tools from a source of another name."""
    with Scout(tmp_path / "home") as scout:
        scout.add(slang.dataset.folder, name="office")
        yield scout


def refuses(*arguments: str) -> str:
    """The one sentence of a command that is refused."""
    done = run(*arguments)
    assert done.exit_code == 1, done.output
    error, *hints = done.stderr.strip().splitlines()
    assert len(hints) <= 1
    return " ".join([error, *hints])


# --- what it finds ----------------------------------------------------------------------------------------------------


@light
def test_usage_finds_what_no_description_says(name: str, shelf: Path, office: Scout, slang: Lesson) -> None:
    texts, split = slang.dataset.texts("test"), slang.dataset.split("test")

    def right(**how: object) -> float:
        """How many test queries get the tools that they need and nothing else."""
        found = office.search_many(list(texts.values()), 2, **how)  # type: ignore[arg-type]
        gold = [{f"office/{tool}" for tool in split[query]} for query in texts]
        return sum(set(each.ids[: len(tools)]) == tools for each, tools in zip(found, gold, strict=True)) / len(texts)

    assert right(model=shelf / name) >= 0.9 > 0.85 > right()
    [hit] = office.search("please umbrella", 1, model=shelf / name).hits
    assert hit.tool == office.tool(RAIN)


@light
def test_new_tools_are_found_and_removed_ones_are_not(name: str, shelf: Path, office: Scout, tmp_path: Path) -> None:
    model = shelf / name
    held = office.pipeline(model=model)
    office.search("umbrella", model=model)
    assert office.pipeline(model=model) is held
    spoken = {"name": "translate_text", "description": "Translate a text into another language."}
    office.add([spoken], name="words")
    assert "words/translate_text" in office.search("translate a text into another language", 2, model=model).ids
    office.remove([RAIN])
    assert RAIN not in office.search("please umbrella", 20, model=model).ids
    assert office.search("please stay overnight", 1, model=model).ids == (BED,)
    office.enable("office", False)
    with pytest.raises(ConfigError, match=r"shares no tool with this catalogue\. Add those tools, or fit .* here"):
        office.search("umbrella", model=model)


@light
def test_another_process_finds_the_same_and_sees_each_change(
    name: str, shelf: Path, office: Scout, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", "toolscout", "--home", name_home(tmp_path / "home")]

    def ids(*more: str) -> list[str]:
        command = [*program, "search", "could you raincoat for me", "--json", "--model", str(shelf / name), *more]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [hit["id"] for hit in json.loads(done.stdout)["hits"]]

    here = office.search("could you raincoat for me", model=shelf / name).ids
    assert here[0] == RAIN and ids() == list(here)
    subprocess.run([*program, "remove", RAIN], check=True, capture_output=True)
    assert RAIN not in office.search("could you raincoat for me", model=shelf / name).ids
    assert RAIN not in ids("-k", "20")


@light
def test_the_caller_sees_what_it_may_see_and_exact_names_win(name: str, shelf: Path, office: Scout) -> None:
    office.add([{"name": "lookup_v2", "description": "Asks a register."}], name="register")
    named = office.search("please umbrella with lookup_v2", 3, model=shelf / name)
    assert (named.ids[0], named.hits[0].why) == ("register/lookup_v2", EXACT)
    assert RAIN in named.ids
    asked = office.search("select:lookup_v2", model=shelf / name)
    assert asked.ids == ("register/lookup_v2",)
    every = office.search("please umbrella", 10, model=shelf / name)
    shown = office.search("please umbrella", 10, model=shelf / name, visible=_no_weather)
    assert shown.ids == tuple(each for each in every.ids if each != RAIN)


def _no_weather(tool: Tool) -> bool:
    return "weather" not in tool.id


@light
def test_a_query_of_which_nothing_is_known_finds_nothing_and_says_why(name: str, shelf: Path, office: Scout) -> None:
    for query in ("ᚠᚢᚦ", "qqqq"):
        found = office.search(query, model=shelf / name)
        assert (found.ids, found.kind) == ((), "no_tool_fits")
        assert found.reason == "None of the 6 tools scores high enough for this query."
    assert office.search("", model=shelf / name).reason == "The query is empty."
    assert office.why("ᚠᚢᚦ", RAIN, model=shelf / name).stages[0].rank is None


def test_of_several_tools_with_the_named_name_a_low_match_stands_before_none() -> None:
    tools = [Tool(id=f"{source}/send_mail", name="send_mail") for source in ("a", "b", "c")]
    stage = Names(Catalogue.of(tools))
    hits = (Hit("b/send_mail", -3.0, "x"), Hit("c/send_mail", -4.0, "x"))
    assert stage.run([Search(query="send_mail", hits=hits)])[0].ids == ("b/send_mail", "c/send_mail", "a/send_mail")


@light
def test_why_speaks_of_usage_and_tries_its_cures_out(name: str, shelf: Path, office: Scout) -> None:
    told = office.why("please umbrella", RAIN, 1, model=shelf / name)
    assert told.shown and "by usage" in told.stages[0].note and told.missing == ("umbrella",)
    office.add([{"name": "parasol", "description": "Shade for terraces."}], name="garden")
    unused = office.why("a shelter for terraces", "garden/parasol", 1, model=shelf / name)
    assert "no training query uses it" in unused.stages[0].note
    assert "terraces" in unused.matched and "shelter" in unused.missing
    shown = run(
        "--home", name_home(office.settings.place), "why", "please umbrella", RAIN, "--model", str(shelf / name)
    )
    assert shown.exit_code == 0 and "by usage)" in shown.output, shown.output


# --- which model ------------------------------------------------------------------------------------------------------


def test_the_journal_says_which_fit_answered(shelf: Path, office: Scout) -> None:
    office.search("umbrella", model=shelf / "neighbours")
    office.search("umbrella")
    fitted, plain = office.journal.read(event="search")
    assert (fitted["recipe"], fitted["model"]) == ("neighbours", model_store.read_manifest(shelf / "neighbours").job)
    assert (plain["recipe"], plain["model"]) == ("scout", None)


def test_a_model_that_is_fitted_again_is_taken_at_the_next_search(
    shelf: Path, office: Scout, slang: Lesson, tmp_path: Path
) -> None:
    shutil.copytree(shelf / "neighbours", tmp_path / "m")
    assert office.search("please ping the boss", 1, model=tmp_path / "m").ids == ("office/mail/send",)
    train, dev = (
        {query: gold for query, gold in each.items() if "d/mail/send" not in gold} for each in (slang.train, slang.dev)
    )
    again = fit(lessons.plan("neighbours", dataclasses.replace(slang, train=train, dev=dev), tmp_path / "m"))
    assert office.search("please ping the boss", 1, model=tmp_path / "m").ids != ("office/mail/send",)
    assert list(office.journal.read(event="search"))[-1]["model"] == again.manifest.job
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".m.")] == []


def test_the_model_is_a_setting_with_its_origin(shelf: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'model = "{shelf / "tool2vec"}"\n')
    assert load_settings(environ={}).model is None
    held = load_settings(file=file, environ={})
    assert (held.model, held.origins["model"]) == (shelf / "tool2vec", str(file))
    held = load_settings(file=file, environ={"TOOLSCOUT_MODEL": "/x"})
    assert (held.model, held.origins["model"]) == (Path("/x"), "environment")
    held = load_settings(file=file, environ={"TOOLSCOUT_MODEL": "/x"}, model="~/y")
    assert (held.model, held.origins["model"]) == (Path("~/y").expanduser(), "argument")
    file.write_text('model = ""\n')
    with pytest.raises(ConfigError, match="expected a folder, found ''"):
        load_settings(file=file, environ={})


def test_what_is_said_nearer_to_the_search_decides(
    shelf: Path, office: Scout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_MODEL", str(shelf / "tool2vec"))

    def searched(scout: Scout, **how: str) -> tuple[str, bool]:
        scout.search("umbrella", **how)  # type: ignore[arg-type]
        line = list(scout.journal.read(event="search"))[-1]
        return line["recipe"], line["model"] is not None

    with Scout(tmp_path / "home") as scout:
        assert searched(scout) == ("tool2vec", True)
        assert searched(scout, recipe="tool2vec") == ("tool2vec", True)
        assert searched(scout, recipe="bm25") == ("bm25", False)
        assert searched(scout, model=str(shelf / "mlc-light")) == ("mlc-light", True)
        with pytest.raises(ConfigError, match="expected a model of mlc-light, found one of tool2vec"):
            scout.search("umbrella", recipe="mlc-light")
        with pytest.raises(ConfigError, match="expected a model of bm25, found one of tool2vec"):
            scout.search("umbrella", recipe="bm25", model=shelf / "tool2vec")
    with Scout(tmp_path / "home", recipe="bm25") as scout:
        assert searched(scout) == ("bm25", False)
    monkeypatch.setenv("TOOLSCOUT_RECIPE", "bm25")
    with Scout(tmp_path / "home", model=shelf / "neighbours") as scout:
        assert searched(scout) == ("neighbours", True)
    with (
        Scout(tmp_path / "home") as scout,
        pytest.raises(ConfigError, match="expected a model of bm25, found one of tool2vec: name that recipe or none"),
    ):
        scout.search("umbrella")


def test_sources_come_in_though_the_set_model_does_not_fit_yet(
    shelf: Path, slang: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_MODEL", str(shelf / "neighbours"))
    assert run("add", "py:json").exit_code == 0
    assert "shares no tool with this catalogue" in refuses("search", "umbrella")
    assert run("add", str(slang.dataset.folder), "--name", "office").exit_code == 0
    assert json.loads(run("search", "umbrella", "--json").stdout)["hits"][0]["id"] == RAIN
    assert run("search", "umbrella", "--recipe", "hybrid").exit_code == 0


def test_a_missing_foreign_or_damaged_model_is_refused_in_one_sentence(
    shelf: Path, office: Scout, tmp_path: Path
) -> None:
    home = ("--home", name_home(office.settings.place), "search", "umbrella", "--model")
    gone, foreign, damaged, stranger = (tmp_path / each for each in ("gone", "foreign", "damaged", "stranger"))
    assert "expected the folder of a fitted model, found no manifest.json" in refuses(*home, str(gone))
    foreign.mkdir()
    (foreign / "manifest.json").write_text('{"model": "bert"}')
    assert "this is no manifest of format toolscout-model/1" in refuses(*home, str(foreign))
    shutil.copytree(shelf / "tool2vec", damaged)
    assert office.search("umbrella", 1, model=damaged).ids == (RAIN,)
    weights = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert "model.safetensors: the file was changed" in refuses(*home, str(damaged))
    (damaged / "manifest.json").unlink()
    with pytest.raises(NotFound, match="expected the folder of a fitted model"):
        office.search("umbrella", model=damaged)
    (damaged / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="no manifest of format"):
        office.search("umbrella", model=damaged)
    model_store.save(stranger, model_store.Draft(
        recipe="else", job="j", arrays={}, tools=[], settings={}, seed=0, metrics={}, fit_seconds=0,
        data=model_store.Data(name="x", fingerprint="f", n_train=1, n_dev=1),
    ))  # fmt: skip
    assert "fitted this model for the recipe 'else', which this version does not have" in refuses(*home, str(stranger))
    both = refuses(*home, str(shelf / "tool2vec"), "--recipe", "hybrid")
    assert "expected a model of hybrid, found one of tool2vec" in both


# --- encoders ---------------------------------------------------------------------------------------------------------


def test_a_model_is_searched_with_the_encoder_that_it_was_fitted_on(
    shelf: Path, office: Scout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", "onnx:/nowhere")
    with Scout(tmp_path / "home") as scout:
        assert scout.search("please umbrella", 1, model=shelf / "neighbours").ids == (RAIN,)
        with pytest.raises(ConfigError, match="onnx:/nowhere"):
            scout.search("please umbrella")


def test_another_encoder_than_the_fitted_one_is_refused(
    office: Scout, slang: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = HashEncoder()
    first.name = "onnx:/first"
    fit(lessons.plan("neighbours", slang, tmp_path / "m", encoder=first))
    loaded = encoders.load
    held = {"onnx:/first": first, "moved": HashEncoder(), "wider": HashEncoder(32)}
    monkeypatch.setattr(encoders, "load", lambda name, settings: held.get(name) or loaded(name, settings))
    assert office.search("please umbrella", 1, model=tmp_path / "m").ids == (RAIN,)
    with Scout(tmp_path / "home", encoder="moved", model=tmp_path / "m") as scout:
        assert scout.search("please umbrella", 1).ids == (RAIN,)
    with (
        Scout(tmp_path / "home", encoder="wider", model=tmp_path / "m") as scout,
        pytest.raises(ConfigError, match=r"was fitted on onnx:/first \(.* not on the encoder hash \("),
    ):
        scout.search("please umbrella")
    del held["onnx:/first"]
    with (
        Scout(tmp_path / "home") as scout,
        pytest.raises(ConfigError, match=rf"{tmp_path / 'm'}: The encoder 'onnx:/first'"),
    ):
        scout.search("please umbrella", model=tmp_path / "m")


def test_the_recipe_below_a_model_has_the_encoder_of_its_own_model(shelf: Path, slang: Lesson, tmp_path: Path) -> None:
    above = model_store.save(tmp_path / "m", model_store.Draft(
        recipe="toolrefiner", job="j", arrays={}, tools=slang.tools, seed=0, metrics={}, fit_seconds=0,
        settings={"base": ModelSetting("neighbours", "argument")}, encoder=HashEncoder(),
        data=model_store.Data(name="x", fingerprint="f", n_train=1, n_dev=1),
        files=lambda folder: shutil.copytree(shelf / "neighbours", folder / "base"),  # type: ignore[arg-type,return-value]
    ))  # fmt: skip
    workspace = HomeResources(HashEncoder(), build=registry.build)
    [found] = workspace.build_base(Catalogue.of(slang.tools), above)([Search(query="please umbrella")])
    assert found.ids[0] == "d/weather/forecast"


def test_the_vectors_of_a_tuned_encoder_are_made_by_a_search_or_a_sync_with_the_model(
    office: Scout, slang: Lesson, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    folder = model_store.save(tmp_path / "m", model_store.Draft(
        recipe="dpr", job="j", arrays={"used": np.ones(len(slang.tools), dtype=np.bool_)},
        tools=slang.tools, seed=0, metrics={}, fit_seconds=0,
        settings={"tool_length": ModelSetting(64, "default"), "margin": ModelSetting(0.0, "dev")},
        data=model_store.Data(name="x", fingerprint="f", n_train=1, n_dev=1),
        files=lambda folder: tiny_bert(folder / "encoder"),  # type: ignore[arg-type,return-value]
    )).folder  # fmt: skip
    office.add(
        [{"name": f"tool{number}", "description": f"Does thing {number}."} for number in range(300)], name="many"
    )
    home = ("--home", name_home(office.settings.place))
    first = run(*home, "search", "umbrella", "--model", str(folder), "--json")
    assert len(json.loads(first.stdout)["hits"]) == 5
    assert run(*home, "sync", "--model", str(folder)).exit_code == 0
    done = run(*home, "search", "umbrella", "--model", str(folder), "--json")
    assert len(json.loads(done.stdout)["hits"]) == 5
    assert office.search("umbrella", model=folder).ids == tuple(hit["id"] for hit in json.loads(done.stdout)["hits"])
    assert run(*home, "sync", "--model", str(tmp_path / "nowhere")).exit_code == 1


# --- the shelf --------------------------------------------------------------------------------------------------------


def test_models_are_listed_with_their_figures_or_what_is_wrong(shelf: Path, tmp_path: Path) -> None:
    own = champion.shelf(find_place(tmp_path / "home"))
    assert f"--out {own / 'NAME'}" in run("models").output
    shutil.copytree(shelf, own)
    (own / "notes").mkdir()
    shown = run("models")
    assert shown.exit_code == 0
    for name in LIGHT:
        assert name in shown.output
    assert "slang" in shown.output and "dev ndcg@5" in shown.output and "notes" not in shown.output
    entries = {each["name"]: each for each in json.loads(run("models", str(shelf), "--json").stdout)}
    assert set(entries) == set(LIGHT)
    entry, manifest = entries["tool2vec"], model_store.read_manifest(shelf / "tool2vec")
    assert (entry["recipe"], entry["encoder"], entry["problem"]) == ("tool2vec", "static", None)
    assert (entry["metrics"], entry["job"]) == (manifest.metrics, manifest.job)
    (own / "tool2vec" / "model.safetensors").write_bytes(b"short")
    (own / "neighbours" / "manifest.json").unlink()
    partly = run("models")
    assert partly.exit_code == 3 and "mlc-light" in partly.stdout and "tool2vec" not in partly.stdout
    assert [line.split(": ")[0] for line in partly.stderr.splitlines()] == ["error", "error", "hint"]
    assert "found no manifest.json" in partly.stderr and "model.safetensors: the file was changed" in partly.stderr
    problems = json.loads(run("models", "--json").stdout)
    assert [bool(each["problem"]) for each in problems] == [False, True, True]
    assert "expected a folder of models, found none" in refuses("models", str(tmp_path / "nowhere"))
    other = tmp_path / "other"
    for words in (("models", "--home", str(other)), ("models", "list", "--home", str(other))):
        assert f"--out {other / 'models' / 'NAME'}" in run(*words).output
