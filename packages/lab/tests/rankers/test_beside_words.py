from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import lessons
from toolscout.home.catalogue.store import Catalogue
from toolscout.learn.fit import Lesson, fit
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import words_and_meaning
from toolscout.settings import Settings
from toolscout.testing import check_stage
from toolscout.types import Search, Tool
from toolscout_lab.encoders.transformer import TransformerEncoder


# the cosines of a random encoder differ by less than the margins on offer
@pytest.mark.parametrize("margin", [0.0, 0.0005])
def test_words_and_a_tuned_encoder_find_what_either_finds_and_new_tools(
    slang: Lesson, bert: str, tmp_path: Path, margin: float
) -> None:
    encoder, changes = TransformerEncoder(bert), lessons.QUICK_BASE | {"base.margin": margin}
    job = lessons.plan(
        "hybrid-dpr", slang, tmp_path / "m", encoder=encoder, changes=changes, settings=Settings(home=tmp_path)
    )
    model = fit(job)
    weight = model.manifest.settings["weight"]
    figures = model.manifest.values["by_weight"]
    assert weight.origin == "dev" and len(figures) == 5
    assert model.manifest.metrics == figures[str(weight.value)]
    assert max(each["ndcg@5"] + each["comp@5"] for each in figures.values()) == pytest.approx(
        model.manifest.metrics["ndcg@5"] + model.manifest.metrics["comp@5"]
    )
    new = Tool(id="other/translate", name="translate", description="Translate a text into another language.")
    stage = registry.build("hybrid-dpr", Catalogue.of([*slang.tools, new]), HomeResources(encoder), model=model.folder)
    found = stage([Search(query="translate this"), Search(query="please umbrella")])
    assert "other/translate" in found[0].ids[:2] and "d/weather/forecast" in found[1].ids
    check_stage(stage, [Search(query=text) for text in list(slang.dataset.texts("test").values())[:4]])


def test_the_weight_is_what_the_nearest_tool_gets() -> None:
    words, meaning = [("a", 3.0)], [("b", 0.9), ("c", 0.5)]
    assert words_and_meaning([words, meaning], Search(query="q"), weight=10.0) == {"a": 3.0, "b": 10.0, "c": 0.0}
