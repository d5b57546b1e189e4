"""Checks that a method keeps the promises of the contract, for our own methods and those of third parties."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.checks.conformance import check_stage, toy_tools
from toolscout.encoders import Encoder
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Model
from toolscout.learn.fit import FitJob, fit, plan_fit
from toolscout.rankers import FittedMethod, Method, Recipe, parse_options
from toolscout.rankers.lesson import Lesson
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Stage
from toolscout.types import Search, Tool

__all__ = ["check_method", "toy_lesson"]

TRAIN_WORDINGS: Final = ("{}", "please {}", "could you {} for me")
DEV_WORDING: Final = "i want to {} now"
TOY_TASKS: Final = {
    "weather/get_forecast": ("see if I need an umbrella", "know about rain tomorrow"),
    "mail/send_email": ("drop grandma a line", "ping the boss"),
    "travel/find_hotel": ("find somewhere to sleep", "get a bed for two"),
    "files/copy": ("back up my thesis", "clone this paper"),
}
NONSENSE_NUMBER: Final = -1_000_000_000


class _Interrupted(BaseException):
    """Raised in the middle of a fit, to simulate a kill."""


def toy_lesson() -> Lesson:
    """Return a small lesson over `toy_tools`. Its queries ask for four tools in words that their texts do not have."""
    train: dict[str, dict[str, float]] = {}
    dev: dict[str, dict[str, float]] = {}
    for tool, tasks in TOY_TASKS.items():
        for task in tasks:
            train |= {wording.format(task): {tool: 1.0} for wording in TRAIN_WORDINGS}
            dev[DEV_WORDING.format(task)] = {tool: 1.0}
    tools = sorted(toy_tools(), key=lambda tool: tool.id)
    return Lesson(name="toy", tools=tools, texts={query: query for query in (*train, *dev)}, train=train, dev=dev)


def check_method(
    method: Method, folder: Path, *, encoder: Encoder | None = None, settings: Mapping[str, Any] | None = None
) -> None:
    """Check every promise of a method.

    New tools are found. Removed and hidden tools are never returned. A fit is seeded and can be resumed, and a saved
    model loads unchanged. Options refuse unknown names and invalid values.

    Args:
        method: the method.
        folder: an empty folder for models.
        encoder: a loaded encoder; by default the bundled one.
        settings: options that make the fit fast.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    recipe = Recipe("checked", "The method that is checked.", method, dict(settings or {}))
    workspace = HomeResources(encoder, seed=3)
    check_options(method)
    if isinstance(method, FittedMethod):
        assert method.needs_usage, "a method with a `fit` needs usage"
        model = check_fit(recipe, workspace, folder)
    else:
        assert not method.needs_usage, "a method that needs usage has a `fit`"
        model = None

    def build(tools: list[Tool]) -> Stage:
        place = model.folder if model is not None else None
        return registry.build(recipe, Catalogue.of(tools), workspace, model=place)

    _check_tools(build(toy_tools()))
    _check_changed_tools(build)


def check_options(method: Method) -> None:
    """Assert that options have defaults and bounds, and refuse unknown names.

    Raises:
        AssertionError: naming the option.
    """
    options_type = method.options_type
    parse_options({}, options_type)
    assert _is_refused({"no such option": 1}, options_type), "an unknown option must be refused"
    for name, hint in typing.get_type_hints(options_type, include_extras=True).items():
        assert _is_refused({name: object()}, options_type), f"{name}: a value of another type must be refused"
        if _is_number(hint):
            assert _is_refused({name: NONSENSE_NUMBER}, options_type), f"{name}: {NONSENSE_NUMBER} must be refused"


def check_fit(recipe: Recipe, workspace: HomeResources, folder: Path) -> Model:
    """Assert that a fit is seeded, can be resumed, and writes exactly what it learned.

    Returns:
        The model.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    lesson, method = toy_lesson(), recipe.method
    assert isinstance(method, FittedMethod)
    artifacts = dict[str, Any]()

    def keep(self: Any, job_workspace: HomeResources, job_lesson: Lesson, options: Any) -> Any:
        artifacts["fit"] = method.fit(job_workspace, job_lesson, options)
        return artifacts["fit"]

    watched = dataclasses.replace(recipe, method=_Wrapped(method, keep))
    first = fit(plan_fit(watched, lesson, workspace, folder / "first"))
    for name, array in artifacts["fit"].arrays.items():
        assert np.array_equal(first.arrays[name], array), f"{name}: saved and loaded, the array is another one"
    again = fit(plan_fit(recipe, lesson, workspace, folder / "again"))
    _check_same(first, again, "the same seed gave another model")
    interrupted = plan_fit(recipe, lesson, workspace, folder / "interrupted")
    _interrupt(interrupted)
    assert not interrupted.out.exists(), "an interrupted fit must leave no model"
    resumed = dataclasses.replace(interrupted, workspace=dataclasses.replace(interrupted.workspace, resume=True))
    _check_same(first, fit(resumed), "a fit that was interrupted and resumed gave another model")
    return first


class _Wrapped:
    """A method with its `fit` replaced by a given function."""

    def __init__(self, method: FittedMethod, fit_instead: Any) -> None:
        self.options_type, self.needs_usage = method.options_type, method.needs_usage
        self.transfers, self.abstains, self.base = method.transfers, method.abstains, method.base
        self._fit, self.build = fit_instead, method.build

    def fit(self, workspace: HomeResources, lesson: Lesson, options: Any) -> Any:
        """Call the given function."""
        return self._fit(self, workspace, lesson, options)


def _interrupt(job: FitJob) -> None:
    """Run a fit until its second line of progress after the list of its options."""
    lines_left = [3 + len(job.origins)]

    def say(line: str) -> None:
        lines_left[0] -= 1
        if lines_left[0] < 0:
            raise _Interrupted

    try:
        fit(dataclasses.replace(job, workspace=dataclasses.replace(job.workspace, say=say)))
    except _Interrupted:
        return  # what it left is what the next fit finds
    model_store.verify(job.out)  # the fit ended before its second line; move the model, so that it is fitted again
    job.out.rename(job.out.with_name("finished"))


def _check_same(one: Model, other: Model, broken: str) -> None:
    assert one.manifest.metrics == other.manifest.metrics, broken
    assert one.manifest.settings == other.manifest.settings, broken
    assert one.arrays.keys() == other.arrays.keys(), broken
    assert all(np.array_equal(array, other.arrays[name]) for name, array in one.arrays.items()), broken


def _check_tools(stage: Stage) -> None:
    check_stage(stage, [Search(query=query) for query in ("ping the boss", "weather forecast of a city", "")])
    [hidden] = stage([Search(query="weather forecast of a city", visible=lambda tool: tool.source != "weather")])
    assert not any(tool.startswith("weather/") for tool in hidden.ids), "a hidden tool was returned"


def _check_changed_tools(build: Any) -> None:
    """Check that a fitted ranker finds a tool that came after the fit, and does not return one that is gone."""
    new = Tool(id="music/translate_song", name="translate_song", description="Translate the lyrics of a song.")
    removed = "mail/send_email"
    stage = build([*(tool for tool in toy_tools() if tool.id != removed), new])
    [answer] = stage([Search(query="translate the lyrics of a song", k=20)])
    assert new.id in answer.ids[:3], "a tool that training never saw was not found"
    [answer] = stage([Search(query="please ping the boss", k=20)])
    assert removed not in answer.ids, "a removed tool was returned"


def _is_refused(values: Mapping[str, Any], options_type: type[msgspec.Struct]) -> bool:
    try:
        parse_options(values, options_type)
    except ConfigError:
        return True
    return False


def _is_number(hint: Any) -> bool:
    """Tell whether a type is a number, or has one among its arguments, as `int | None` has."""
    if hint in (int, float):
        return True
    return any(_is_number(argument) for argument in typing.get_args(hint))
