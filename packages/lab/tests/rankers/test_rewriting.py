from __future__ import annotations

from pathlib import Path

import pytest

import lessons

torch = pytest.importorskip("torch")

from toolscout.errors import ConfigError  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.learn.fit import Lesson, fit  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.settings import Settings  # noqa: E402
from toolscout.testing import check_stage  # noqa: E402
from toolscout.types import Search  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.testing import Faults, ScriptedLLM, ScriptedServer  # noqa: E402

QUICK = {"epochs": 1, "batch": 64, "rate": 0.01, "precision": "float32", "threads": 1, "rewritings": 2}


@pytest.mark.net
@pytest.mark.slow
def test_qta_learns_from_rewritings_and_from_the_queries_where_there_are_none(
    slang: Lesson, bert: str, tmp_path: Path
) -> None:
    said: list[str] = []
    with ScriptedServer(ScriptedLLM(faults=Faults(bad_json=0.2))) as server:
        job = lessons.plan(
            "qta",
            slang,
            tmp_path / "m",
            encoder=TransformerEncoder(bert),
            changes=QUICK,
            settings=Settings(home=tmp_path, llm=server.place, llm_concurrency=8),
            say=said.append,
        )
        model = fit(job)
        bad = server.llm.count("bad_json")
        assert model.manifest.recipe == "qta" and 0 < bad < len(slang.train)
        assert any(line.startswith(f"{2 * (len(slang.train) - bad):,} rewritings") for line in said), said
    stage = registry.build("qta", Catalogue.of(slang.tools), model=model.folder)
    check_stage(stage, [Search(query=text) for text in list(slang.dataset.texts("test").values())[:3]])


def test_qta_says_that_it_needs_a_language_model(slang: Lesson, bert: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No language model is set"):
        fit(
            lessons.plan(
                "qta", slang, tmp_path / "m", encoder=TransformerEncoder(bert), settings=Settings(home=tmp_path)
            )
        )
