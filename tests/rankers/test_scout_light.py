"""scout-light: scout with usage. What holds for every method with usage stands in test_light.py."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import lessons
from toolscout.arrays import Vectors
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.journal.evidence import Example
from toolscout.learn.fit import Lesson, fit
from toolscout.rankers import scout_light
from toolscout.rankers.scout_light import _can_classify
from toolscout.rankers.shared.mixture import Part, _QueryMemory, load_mixture, mix_usages
from toolscout.rankers.shared.sparse_features import Ngrams
from toolscout.rankers.shared.usage import FittedUsage, HybridScorer, LiveEstimate
from toolscout.rankers.shared.usage_fit import FitData
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout.search.steps.stage import StepSearch
from toolscout.testing import HashEncoder
from toolscout.types import Search, Tool


def test_the_shares_count_only_among_the_parts_that_know_a_query() -> None:
    nothing, half = np.zeros(2), np.array([0.5, 0.5])
    usage = mix_usages([(0.25, lambda text, row: nothing), (0.75, lambda text, row: half)])
    assert usage("", np.zeros(1, np.float32)).tolist() == [0.5, 0.5]
    both = mix_usages([(0.25, lambda text, row: np.array([1.0, 0.0])), (0.75, lambda text, row: half)])
    assert both("", np.zeros(1, np.float32)).tolist() == [0.625, 0.375]
    assert not mix_usages([(1.0, lambda text, row: nothing)])("", np.zeros(1, np.float32)).any()


class Fixed:
    """A method whose usage side is given."""

    def __init__(self, learned: FittedUsage) -> None:
        self.learned = learned

    def load_usage(self, *_: object) -> FittedUsage:
        return self.learned


def mix(votes: FittedUsage, classifier: FittedUsage, voting_share: float) -> FittedUsage:
    given = {"votes": votes, "classifier": classifier}
    parts = {name: Part(Fixed(one), HashEncoder()) for name, one in given.items()}  # type: ignore[arg-type]
    shares = {"votes": voting_share, "classifier": 1 - voting_share}
    return load_mixture(parts, shares, {"uses": np.ones(2, np.float32)}, {})


CLASSIFIER = FittedUsage(lambda text, row: np.array([0.9, 0.1]))
ROW = np.ones(2, np.float32)


def test_a_newer_tool_is_estimated_by_the_parts_that_can_know_it() -> None:
    """Two tools were there at the fit; calls of a third came after it."""
    votes = FittedUsage(
        lambda text, row: np.array([1.0, 0.0]), lambda texts, gold, n: lambda text, row: LiveEstimate(np.eye(n)[2])
    )
    mixture = mix(votes, CLASSIFIER, 0.25)
    assert mixture.grow is not None
    assert mixture.usage("a", ROW).tolist() == pytest.approx([0.925, 0.075])
    grown = mixture.grow(["a"], [np.array([2])], 3)
    assert grown("a", ROW).probabilities.tolist() == pytest.approx([0.675, 0.075, 1.0])


@pytest.mark.parametrize(
    ("voting_share", "fresh", "expected"),
    [
        (0.1, [0.0, 1.0], [0.63, 0.37]),  # only a new query votes: three tenths of the mixture follow it
        (0.1, [0.0, 0.5], [0.74222, 0.25778]),  # half of the votes are of new queries: half of what is added
        (0.1, [0.0, 0.0], [0.86, 0.14]),  # none is: the share that dev chose
        (0.6, [0.0, 1.0], [0.36, 0.64]),  # the votes have more of the mixture anyway
    ],
)
def test_new_requests_count_although_the_classifier_does_not_know_them(
    voting_share: float, fresh: list[float], expected: list[float]
) -> None:
    old = np.array([0.5, 0.5]) * (1 - sum(fresh))
    votes = FittedUsage(
        lambda text, row: np.zeros(2), lambda *_: lambda text, row: LiveEstimate(old + fresh, np.array(fresh))
    )
    mixture = mix(votes, CLASSIFIER, voting_share)
    assert mixture.grow is not None
    assert mixture.grow(["a"], [np.array([1])], 2)("a", ROW).probabilities.tolist() == pytest.approx(expected, abs=1e-5)


def test_threads_that_read_new_requests_do_not_take_them_from_each_other() -> None:
    """One thread encodes what is new while another forgets a request that the first still needs."""
    encoding, may_go_on, failures = threading.Event(), threading.Event(), []

    class Slow(HashEncoder):
        def encode(self, texts: Sequence[str], kind: str = "query") -> Vectors:
            if threading.current_thread() is first:
                encoding.set()
                may_go_on.wait(10)
            return super().encode(texts, kind)

    def read() -> None:
        try:
            memory.encode(["old", "kept", "new"])
        except KeyError as error:
            failures.append(error)

    memory, first = _QueryMemory(Slow()), threading.Thread(target=read)
    memory.encode(["old", "kept"])
    first.start()
    encoding.wait(10)
    memory.encode(["kept", "newer"])
    may_go_on.set()
    first.join()
    assert not failures


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_new_requests_hide_no_tool_from_others(kappa: float, slang: Lesson, tmp_path: Path) -> None:
    """One caller uses all tools without usage for requests of no meaning."""
    changes = {"steps": False, "kappa": kappa, "novelty": 1.5, "sharpness": 1.0, "agreement": 0.25}
    model = fit(lessons.plan("scout-light", slang, tmp_path / "m", encoder=HashEncoder(), changes=changes))
    tools = [*slang.tools, *(Tool(id=f"new/t{n}", name=f"t{n}", description=f"Sharpens pencil {n}") for n in range(9))]
    examples: list[Example] = []
    workspace = HomeResources(HashEncoder(), live=lambda: (len(examples), tuple(examples)))  # type: ignore[arg-type]
    stage = registry.build("scout-light", Catalogue.of(tools), workspace, model=model.folder)
    request = Search(query="sharpens pencil 3", k=5)
    assert stage([request])[0].ids[0] == "new/t3"
    used = {tool.id: 1.0 for tool in tools if tool.id.startswith("new/")}
    examples += [Example(row=n, at="", caller="c", query=f"zorgle blat {n}", tools=used) for n in range(20)]
    assert stage([request])[0].ids[0] == "new/t3"


def test_a_tool_without_usage_keeps_the_score_of_hybrid(slang: Lesson, tmp_path: Path) -> None:
    changes = {"steps": False, "sharpness": 0.7, "agreement": 0.25}
    model = fit(lessons.plan("scout-light", slang, tmp_path / "m", encoder=HashEncoder(), changes=changes))
    tools = [*slang.tools, *(Tool(id=f"new/t{n}", name=f"t{n}", description=f"Sharpens pencil {n}") for n in range(9))]
    catalogue, workspace = Catalogue.of(tools), HomeResources(HashEncoder())
    request = Search(query="sharpens pencil 3", k=15)
    [learned] = registry.build("scout-light", catalogue, workspace, model=model.folder)([request])
    [plain] = registry.build("hybrid", catalogue, workspace)([request])
    expected = {hit.id: hit.score for hit in plain.hits}
    scores = {hit.id: hit.score for hit in learned.hits if hit.id.startswith("new/")}
    assert len(scores) == 9
    assert scores == pytest.approx({tool: expected[tool] for tool in scores}, abs=1e-3)


def test_each_step_of_a_request_is_served_from_usage(slang: Lesson, tmp_path: Path) -> None:
    model = fit(lessons.plan("scout-light", slang, tmp_path / "m", encoder=HashEncoder(), changes={"steps": True}))
    stage = registry.build("scout-light", Catalogue.of(slang.tools), HomeResources(HashEncoder()), model=model.folder)
    assert isinstance(stage, StepSearch) and stage.splitter is not None
    [found] = stage([Search(query="Book me somewhere to sleep. Then write to auntie.", k=2)])
    assert found.steps == ("Book me somewhere to sleep", "write to auntie.")
    assert set(found.ids[:2]) == {"d/travel/hotel", "d/mail/send"}


def test_dev_decides_whether_requests_are_split(slang: Lesson, tmp_path: Path) -> None:
    said: list[str] = []
    model = fit(lessons.plan("scout-light", slang, tmp_path / "m", encoder=HashEncoder(), say=said.append))
    line = next(line for line in said if "by steps" in line)
    whole, split, error = (float(number) for number in re.findall(r"0\.\d+|1\.0+", line))
    bears_steps = split >= whole - 2 * error
    assert model.manifest.settings["steps"].value is bears_steps
    assert model.manifest.settings["steps"].origin == "dev"


def test_the_classifier_is_left_out_where_its_largest_layer_does_not_fit_into_memory(
    slang: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    def can_classify(hidden: int) -> bool:
        options, _ = registry.resolve("scout-light", {"hidden": hidden})
        data = FitData(HomeResources(HashEncoder()), slang, options, HashEncoder(), HybridScorer)
        data.n_train = 200
        n_words = Ngrams.of(data.features[: data.n_final]).keys.size
        monkeypatch.setattr(scout_light, "MAX_CLASSIFIER_CELLS", 64 * n_words)
        return _can_classify(data)

    assert can_classify(0) and can_classify(64) and not can_classify(65)


def test_the_classifier_waits_for_enough_queries(slang: Lesson, tmp_path: Path) -> None:
    options, _ = registry.resolve("scout-light", {})
    data = FitData(HomeResources(HashEncoder()), slang, options, HashEncoder(), HybridScorer)
    assert data.n_train < 200 and not _can_classify(data)
    data.n_train = 200
    assert _can_classify(data)
    with pytest.raises(ConfigError, match="expected 0 for mlc-light, which needs 200 training queries"):
        changes = {"shares": (0.5, 0.5, 0.0)}
        fit(lessons.plan("scout-light", slang, tmp_path / "none", encoder=HashEncoder(), changes=changes))
    model = fit(lessons.plan("scout-light", slang, tmp_path / "m", encoder=HashEncoder()))
    assert not any(name.startswith("mlc-light") for name in model.arrays)
    assert model.manifest.settings["shares"].value[1] == 0
