"""Checks that a ranking method keeps the promises of its contract, for our own methods and third parties' alike.

The checks use a small catalogue, `toy_tools`, and a small data set over it, `toy_lesson`.
"""

from __future__ import annotations

import dataclasses
import itertools
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
NONSENSE_NUMBER: Final = -1_000_000_000  # no option accepts it


class _Interrupted(BaseException):
    """Raised in the middle of a fit, to simulate a kill."""


def toy_lesson() -> Lesson:
    """Return small data for a fit: queries for four of the `toy_tools`, in words that their texts don't have."""
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

    The promises: new tools are found; removed and hidden tools are never returned; a fit is seeded and can be resumed;
    a saved model loads unchanged; options refuse unknown names and invalid values.

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
        model_folder = model.folder if model is not None else None
        return registry.build(recipe, Catalogue.of(tools), workspace, model=model_folder)

    _check_tools(build(toy_tools()))
    _check_changed_tools(build)


def check_options(method: Method) -> None:
    """Assert that options have defaults, refuse unknown names and other types, and bound their numbers.

    Raises:
        AssertionError: naming the option.
    """
    options_type = method.options_type
    parse_options({}, options_type)  # raises if an option has no default
    assert _is_refused({"no such option": 1}, options_type), "an unknown option must be refused"
    for name, hint in typing.get_type_hints(options_type, include_extras=True).items():
        assert _is_refused({name: object()}, options_type), f"{name}: a value of another type must be refused"
        if _is_number(hint):
            assert _is_refused({name: NONSENSE_NUMBER}, options_type), f"{name}: {NONSENSE_NUMBER} must be refused"


def check_fit(recipe: Recipe, workspace: HomeResources, folder: Path) -> Model:
    """Assert that a fit is seeded, can be resumed, and writes exactly what it learned.

    Args:
        recipe: with the method.
        workspace: has the encoder and the seed.
        folder: an empty folder for models.

    Returns:
        The model.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    lesson, method = toy_lesson(), recipe.method
    assert isinstance(method, FittedMethod)
    learned: list[Any] = []  # what the method returns, before it is saved

    def fit_and_keep(job_workspace: HomeResources, job_lesson: Lesson, options: Any) -> Any:
        learned.append(method.fit(job_workspace, job_lesson, options))
        return learned[-1]

    watched = dataclasses.replace(recipe, method=_MethodWithOtherFit(method, fit_and_keep))
    first = fit(plan_fit(watched, lesson, workspace, folder / "first"))
    for name, array in learned[-1].arrays.items():
        assert np.array_equal(first.arrays[name], array), f"{name}: saved and loaded, the array is another one"
    again = fit(plan_fit(recipe, lesson, workspace, folder / "again"))
    _check_same(first, again, "the same seed gave another model")
    interrupted = plan_fit(recipe, lesson, workspace, folder / "interrupted")
    _interrupt(interrupted)
    assert not interrupted.out.exists(), "an interrupted fit must leave no model"
    resumed = dataclasses.replace(interrupted, workspace=dataclasses.replace(interrupted.workspace, resume=True))
    _check_same(first, fit(resumed), "a fit that was interrupted and resumed gave another model")
    return first


class _MethodWithOtherFit:
    """A method whose `fit` is another function with the same arguments."""

    def __init__(self, method: FittedMethod, fit_instead: Any) -> None:
        """Take everything else from a method."""
        self.options_type, self.needs_usage = method.options_type, method.needs_usage
        self.transfers, self.abstains, self.base = method.transfers, method.abstains, method.base
        self.fit, self.build = fit_instead, method.build


def _interrupt(job: FitJob) -> None:
    """Run a fit until its second line of progress, and leave what it has written by then to the next fit."""
    n_described = 2 + len(job.origins)  # a fit first describes its data, its encoder and each option, one line each
    line_numbers = itertools.count(1)

    def say(line: str) -> None:
        if next(line_numbers) > n_described + 1:
            raise _Interrupted

    try:
        fit(dataclasses.replace(job, workspace=dataclasses.replace(job.workspace, say=say)))
    except _Interrupted:
        return
    model_store.verify(job.out)  # the fit ended before its second line; move the model, so that it is fitted again
    job.out.rename(job.out.with_name("finished"))


def _check_same(one: Model, other: Model, broken_promise: str) -> None:
    """Assert that two models are equal."""
    assert one.manifest.metrics == other.manifest.metrics, broken_promise
    assert one.manifest.settings == other.manifest.settings, broken_promise
    assert one.arrays.keys() == other.arrays.keys(), broken_promise
    assert all(np.array_equal(array, other.arrays[name]) for name, array in one.arrays.items()), broken_promise


def _check_tools(stage: Stage) -> None:
    """Check that a ranker over `toy_tools` keeps the contract of stages, and returns no hidden tool."""
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
    """Tell whether options of these values are refused."""
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
