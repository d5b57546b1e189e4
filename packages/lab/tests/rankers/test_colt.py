from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lessons  # noqa: E402
from toolscout.errors import ConfigError  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import Lesson, fit  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.search.pipeline import Stage  # noqa: E402
from toolscout.settings import Settings  # noqa: E402
from toolscout.testing import check_stage  # noqa: E402
from toolscout.types import Search, Tool, render  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers.dpr import FittedEncoder  # noqa: E402

BASE = lessons.QUICK_BASE | {"base.margin": 0.0}
QUICK = {"epochs": 20, "batch": 16, "rate": 0.01, "length": 4, "patience": 20, "threads": 1, "margin": 0.0}


def fitted(slang: Lesson, bert: str, home: Path, name: str = "colt", **changes: Any) -> tuple[Model, list[str]]:
    said: list[str] = []
    below = BASE if changes.get("base", "") is not None and name != "colt-no-semantic" else {}
    job = lessons.plan(
        name,
        slang,
        home / "out" / name,
        encoder=TransformerEncoder(bert),
        changes={**QUICK, **below, **changes},
        settings=Settings(home=home),
        say=said.append,
    )
    return fit(job), said


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, home: Path) -> Model:
    return fitted(slang, bert, home)[0]


def pipeline(model: Model, tools: Any) -> Stage:
    return registry.build(model.manifest.recipe, Catalogue.of(tools), model=model.folder)


def test_the_second_stage_learns_and_the_best_epoch_is_kept(slang: Lesson, model: Model) -> None:
    values = model.manifest.values
    assert values["history"][-1]["loss"] < values["history"][0]["loss"]
    assert model.manifest.metrics["ndcg@5"] == max(each["ndcg@5"] for each in values["history"])
    stage = pipeline(model, slang.tools)
    check_stage(stage, [Search(query=text) for text in list(slang.dataset.texts("test").values())[:6]])
    [found] = stage([Search(query="please umbrella")])
    assert set(found.ids) == {tool.id for tool in slang.tools}


def test_without_the_second_stage_tools_are_what_the_first_says(slang: Lesson, bert: str, home: Path) -> None:
    model, said = fitted(slang, bert, home, "colt-no-collaborative")
    assert any("already finished" in line and "dpr-inbatch" in line for line in said)  # one first stage for all of them
    first = next((home / "bench-models").glob("dpr-inbatch-*"))
    plain = registry.build("dpr-inbatch", Catalogue.of(slang.tools), model=first)
    texts = list(slang.dataset.texts("test").values())
    mine = pipeline(model, slang.tools)([Search(query=text) for text in texts])
    assert [each.ids for each in mine] == [each.ids for each in plain([Search(query=text) for text in texts])]


def test_the_other_ablations_and_the_strong_one_are_fitted(slang: Lesson, bert: str, home: Path) -> None:
    raw, _ = fitted(slang, bert, home, "colt-no-semantic", epochs=2)
    assert raw.manifest.settings["base"].value is None
    plain, _ = fitted(slang, bert, home, "colt-no-contrastive", epochs=2)
    assert plain.manifest.settings["contrast"].value == 0.0
    strong, _ = fitted(
        slang,
        bert,
        home,
        "colt-strong",
        layers=0,
        queries="frozen",
        loss="softmax",
        length=0,
        sharpness=10.0,
        contrast=0.0,
    )
    assert strong.manifest.metrics["ndcg@5"] >= strong.manifest.values["stage_one"]["ndcg@5"]


def test_a_tool_without_usage_keeps_its_text_and_new_ones_are_found_by_theirs(slang: Lesson, model: Model) -> None:
    unused = next(tool for tool in slang.tools if tool.id == "d/music/play")
    encoder = FittedEncoder(model.folder / "encoder", model.manifest.values["tool_length"])
    row = model.arrays["tools"][model.tools.index(("music/play", "play"))]
    np.testing.assert_allclose(row, encoder.encode([render(unused, "short")], "tool")[0], atol=1e-5)
    twin = Tool(id="other/play", name=unused.name, description=unused.description, path=unused.path)
    left = [tool for tool in slang.tools if tool.id != "d/weather/forecast"]
    [found] = pipeline(model, [*left, twin])([Search(query="start a song", k=20)])
    scores = {hit.id: hit.score for hit in found.hits}
    assert scores["other/play"] == pytest.approx(scores["d/music/play"], abs=1e-4)
    assert "d/weather/forecast" not in scores


def test_a_base_without_an_encoder_and_settings_of_no_base_are_refused(slang: Lesson, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a recipe that tunes an encoder"):
        fit(lessons.plan("colt", slang, tmp_path / "m", changes={"base": "bm25"}, settings=Settings(home=tmp_path)))
    plain = {"base": "bm25", "base.tokenizer": "plain"}
    with pytest.raises(ConfigError, match=r"base bm25 is not fitted, so the setting base\.tokenizer has no meaning"):
        lessons.plan("toolrefiner", slang, tmp_path / "m", changes=plain, settings=Settings(home=tmp_path))
    with pytest.raises(ConfigError, match=r"it has no base, so the setting base\.k has no meaning"):
        lessons.plan("neighbours", slang, tmp_path / "m", changes={"base.k": 3})
