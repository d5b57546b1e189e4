"""Every method keeps the contract of `toolscout.rankers`; here those that need neither torch nor a language model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolscout.checks.ranker_conformance import check_method, check_options
from toolscout.errors import MissingExtra
from toolscout.rankers import Artifacts
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.mlc_light import MlcLight
from toolscout.rankers.neighbours import Neighbours
from toolscout.rankers.tool2vec import Tool2Vec
from toolscout.rankers.zero_shot import Bm25, Dense, Hybrid
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout_lab.rankers.feedback.prf import FeedbackPrf

FAST = (Bm25(), Dense(), Hybrid(), Neighbours(), Tool2Vec(), MlcLight(), FeedbackPrf())


@pytest.mark.parametrize("method", FAST, ids=lambda method: type(method).__name__)
def test_a_method_keeps_the_contract(method: Any, tmp_path: Path) -> None:
    check_method(method, tmp_path, settings={"base": "bm25"} if isinstance(method, FeedbackPrf) else None)


@pytest.mark.parametrize("name", registry.all_recipes())
def test_options_have_bounds(name: str) -> None:
    check_options(registry.recipe(name).method)


def test_users_see_twelve_recipes_and_when_to_take_each() -> None:
    assert len(registry.list_user_recipes()) <= 12
    assert all(each.when and each.summary for each in registry.list_user_recipes().values())


def test_the_core_knows_the_names_of_the_lab_s_recipes_and_imports_none_of_them() -> None:
    code = "import sys, toolscout.recipes.registry as r; r.recipe('scout-light'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in loaded if name.startswith("toolscout_lab.llm")} == set()
    core = {"declared", "lesson", "mlc_light", "neighbours", "scout_light", "tool2vec", "zero_shot", "shared"}
    assert {name.split(".")[2] for name in loaded if name.startswith("toolscout.rankers.")} <= core
    assert set(registry.load_lab_recipes()) == registry.LAB_RECIPE_NAMES


def test_a_recipe_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load_lab_recipes", dict)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[lab\]'"):
        registry.recipe("colt")
    assert registry.is_known("colt") and "colt" not in registry.list_user_recipes()


class Unseeded(Neighbours):
    """Gives another model each time."""

    fits = 0

    def fit(self, workspace: HomeResources, lesson: Lesson, options: Any) -> Artifacts:
        artifacts = super().fit(workspace, lesson, options)
        Unseeded.fits += 1
        return Artifacts({**artifacts.arrays, "uses": artifacts.arrays["uses"] + Unseeded.fits}, artifacts.metrics,
                         artifacts.encoder, artifacts.chosen)  # fmt: skip


class Boundless(Bm25):
    """Takes any number."""

    class Anything(msgspec.Struct, forbid_unknown_fields=True):
        depth: int = 3

    options_type = Anything  # type: ignore[assignment]


class Forgetful(Bm25):
    """Searches the tools that it was first built over."""

    stage: Any = None

    def build(self, workspace: HomeResources, catalogue: Any, options: Any) -> Any:
        Forgetful.stage = Forgetful.stage or super().build(workspace, catalogue, options)
        return Forgetful.stage


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        (Unseeded(), "the same seed"),
        (Boundless(), "depth: -1000000000"),
        (Forgetful(), "training never saw|removed tool"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_method_that_breaks_a_promise_is_named(method: Any, broken: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=broken):
        check_method(method, tmp_path)
