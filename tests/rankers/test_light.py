"""tool2vec, neighbours, mlc-light, scout-light: what holds for each of them, and small cases by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessons
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.learn.fit import Lesson, fit
from toolscout.rankers import mlc_light
from toolscout.rankers.mlc_light import MlcLightOptions, Training
from toolscout.rankers.neighbours import Log, Neighbours
from toolscout.rankers.shared.sparse_features import Bags, Ngrams, ToolSets, hash_features
from toolscout.rankers.shared.usage_fit import FitData
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Stage
from toolscout.testing import HashEncoder, check_stage
from toolscout.types import Search, Tool

LIGHT = ("tool2vec", "neighbours", "mlc-light", "scout-light")
light = pytest.mark.parametrize("name", LIGHT)


@pytest.fixture(scope="module")
def fitted(slang: Lesson, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    shelf = tmp_path_factory.mktemp("models")
    return {name: fit(lessons.plan(name, slang, shelf / name, encoder=HashEncoder())) for name in LIGHT}


def pipeline(model: Model, tools: Any, encoder: Any = None) -> Stage:
    return registry.build(
        model.manifest.recipe, Catalogue.of(tools), HomeResources(encoder or HashEncoder()), model=model.folder
    )


@light
def test_usage_finds_what_no_description_says(name: str, slang: Lesson, fitted: dict[str, Model]) -> None:
    stage = pipeline(fitted[name], slang.tools)
    plain = registry.build("hybrid", Catalogue.of(slang.tools), HomeResources(HashEncoder()))
    texts = slang.dataset.texts("test")
    gold = {query: {f"d/{tool}" for tool in tools} for query, tools in slang.dataset.split("test").items()}

    def complete(stage: Stage) -> float:
        found = stage([Search(query=text) for text in texts.values()])
        return sum(gold[query] <= set(each.ids[:2]) for query, each in zip(texts, found, strict=True)) / len(texts)

    assert complete(stage) >= 0.9 > 0.6 > complete(plain)
    check_stage(stage, [Search(query=text) for text in texts.values()])


@light
def test_a_tool_that_training_never_saw_is_found_by_its_description(name: str, slang: Lesson, tmp_path: Path) -> None:
    trusting = {"sharpness": 1.0, "novelty": 1.0}  # on these dev queries descriptions are of no use
    model = fit(lessons.plan(name, slang, tmp_path / "m", encoder=HashEncoder(), changes=trusting))
    new = Tool(id="other/translate", name="translate", description="Translate a text into another language.")
    stage = pipeline(model, [*slang.tools, new])
    [unused, fresh] = stage([Search(query="start a song"), Search(query="translate into another language")])
    assert "d/music/play" in unused.ids[:2]
    assert "other/translate" in fresh.ids[:2]
    told = stage.explain(Search(query="start a song"), "d/music/play")
    assert told is not None and "by its description alone" in told.note
    assert told.rank == 1 + unused.ids.index("d/music/play")


@light
def test_a_removed_tool_is_never_returned(name: str, slang: Lesson, fitted: dict[str, Model]) -> None:
    left = [tool for tool in slang.tools if tool.id != "d/weather/forecast"]
    [found] = pipeline(fitted[name], left)([Search(query="please umbrella")])
    assert set(found.ids) <= {tool.id for tool in left}


@light
def test_a_hidden_tool_is_not_returned_and_the_others_move_up(
    name: str, slang: Lesson, fitted: dict[str, Model]
) -> None:
    stage = pipeline(fitted[name], slang.tools)
    [found] = stage([Search(query="please umbrella", visible=lambda tool: "forecast" not in tool.id)])
    [every] = stage([Search(query="please umbrella")])
    assert every.ids[0] == "d/weather/forecast"
    assert found.ids == every.ids[1:]


@light
def test_the_tools_of_a_source_with_another_name_are_the_same(
    name: str, slang: Lesson, fitted: dict[str, Model]
) -> None:
    moved = [Tool(id=f"my{tool.id}", name=tool.name, description=tool.description)
             for tool in slang.tools]  # fmt: skip
    [found] = pipeline(fitted[name], moved)([Search(query="please umbrella")])
    assert found.ids[0] == "myd/weather/forecast"


@light
def test_the_same_seed_gives_the_same_model_and_a_query_the_same_answer_in_any_batch(
    name: str, slang: Lesson, fitted: dict[str, Model], tmp_path: Path
) -> None:
    again = fit(lessons.plan(name, slang, tmp_path / "again", encoder=HashEncoder()))
    for key, array in fitted[name].arrays.items():
        np.testing.assert_array_equal(array, again.arrays[key])
    assert again.manifest.metrics == fitted[name].manifest.metrics
    assert again.manifest.settings == fitted[name].manifest.settings
    stage = pipeline(again, slang.tools)
    texts = [*slang.dataset.texts("dev").values()]
    together = stage([Search(query=text) for text in texts])
    assert [each.hits for each in together] == [stage([Search(query=text)])[0].hits for text in texts]


@light
def test_a_model_on_another_encoder_or_catalogue_is_refused(name: str, slang: Lesson, fitted: dict[str, Model]) -> None:
    with pytest.raises(ConfigError, match=r"fitted on hash .*, not on the encoder hash"):
        pipeline(fitted[name], slang.tools, HashEncoder(32))
    with pytest.raises(ConfigError, match="shares no tool with this catalogue"):
        pipeline(fitted[name], [Tool(id="x/else", name="else")])


@light
def test_without_a_model_the_recipe_says_how_to_get_one(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"needs a fitted model. Run  toolscout train {name} --data DIR --out MODEL_DIR"
    ):
        registry.build(name, Catalogue.of([Tool(id="x/else", name="else")]))


@light
def test_what_is_set_is_not_chosen(name: str, slang: Lesson, tmp_path: Path) -> None:
    model = fit(lessons.plan(name, slang, tmp_path / "m", encoder=HashEncoder(), changes={"kappa": 7.0}))
    assert model.manifest.settings["kappa"].value == 7.0
    assert model.manifest.settings["kappa"].origin == "argument"
    assert model.manifest.settings["sharpness"].origin == "dev"


@light
def test_a_model_holds_no_query_text(name: str, fitted: dict[str, Model]) -> None:
    for path in fitted[name].folder.iterdir():
        assert b"umbrella" not in path.read_bytes(), path.name


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_tool2vec_is_the_unit_mean_of_the_queries_of_train_and_dev(slang: Lesson, fitted: dict[str, Model]) -> None:
    model, encoder = fitted["tool2vec"], HashEncoder()
    judged = {**slang.train, **slang.dev}
    place = model.tools.index(("files/copy", "copy"))
    texts = [slang.dataset.queries[query] for query, gold in judged.items() if "d/files/copy" in gold]
    mean = encoder.encode(texts).sum(axis=0)
    np.testing.assert_allclose(model.arrays["means"][place], mean / np.linalg.norm(mean), rtol=1e-5)
    assert model.arrays["uses"][place] == len(texts)
    assert model.arrays["uses"][model.tools.index(("music/play", "play"))] == 0


def test_neighbours_vote_with_their_likeness() -> None:
    ngrams = Ngrams(np.empty(0, np.uint32), np.empty(0, np.float32))
    gold = Bags(np.array([0, 1, 3, 4]), np.array([0, 0, 1, 2]), np.array([1, 0.5, 0.5, 1], np.float32))
    rows = np.array([[1, 0], [0.6, 0.8], [-1, 0]], np.float32)
    log = Log(rows, ngrams.make_bags([hash_features("")] * 3), ngrams, gold, 3)
    nearest, likeness = log.nearest("anything", np.array([1, 0], np.float32))
    assert nearest.tolist() == [0, 1]
    np.testing.assert_allclose(likeness, [0.5, 0.3], rtol=1e-6)
    less = np.exp(10 * (0.3 - 0.5))
    np.testing.assert_allclose(
        log.votes(nearest, likeness, 2, 10.0), [(1 + less / 2) / (1 + less), less / 2 / (1 + less), 0], rtol=1e-5
    )
    assert log.votes(nearest, likeness, 1, 10.0).tolist() == [1.0, 0.0, 0.0]
    nothing = log.nearest("anything", np.zeros(2, np.float32))
    assert log.votes(*nothing, 2, 10.0).tolist() == [0.0, 0.0, 0.0]


def test_a_log_that_grows_tells_the_votes_of_its_new_queries() -> None:
    """One logged query is near, a new one is the same as what is asked."""
    arrays = {
        "rows": np.array([[0.6, 0.8]], np.float32),
        "keys": np.empty(0, np.uint32),
        "rarity": np.empty(0, np.float32),
        "uses": np.ones(2, np.float32),
        **{f"gold.{name}": np.array(values) for name, values in zip(Bags._fields, ([0, 1], [0], [1.0]), strict=True)},
        **{f"bags.{name}": np.array(values, int) for name, values in zip(Bags._fields, ([0, 0], [], []), strict=True)},
    }
    row = np.array([1, 0], np.float32)
    learned = Neighbours().load_usage(arrays, {"k": 2, "focus": 10.0}, lambda texts: row[None])
    assert learned.grow is not None
    grown = learned.grow(["asked"], [np.array([1])], 2)("asked", row)
    less = np.exp(10 * (0.3 - 0.5))
    np.testing.assert_allclose(grown.probabilities, [less / (1 + less), 1 / (1 + less)], rtol=1e-5)
    assert grown.fresh is not None
    np.testing.assert_allclose(grown.fresh, [0, 1 / (1 + less)], rtol=1e-5)


def test_sets_of_tools_lift_the_tools_that_go_together() -> None:
    sets, of = ToolSets.group([np.array([0, 1]), np.array([2]), np.array([0, 1])])
    assert of.tolist() == [0, 1, 0] and len(sets) == 2
    tools, shares = np.array([[0.6, 0.1, 0.3]]), np.array([[0.8, 0.2]])
    np.testing.assert_allclose(sets.join(tools, shares, 0.0), tools)
    joined = np.sqrt([0.6 * 0.801, 0.1 * 0.801, 0.3 * 0.201])
    np.testing.assert_allclose(sets.join(tools, shares, 1.0), [joined / joined.sum()], rtol=1e-5)
    for weight in (0.5, 2.0):
        joined = (tools[0] * np.array([0.801, 0.801, 0.201]) ** weight) ** (1 / (1 + weight))
        np.testing.assert_allclose(sets.join(tools, shares, weight), [joined / joined.sum()], rtol=1e-5)
    np.testing.assert_array_equal(
        ToolSets.from_arrays(sets.arrays()).join(tools, shares, 1.0), sets.join(tools, shares, 1.0)
    )


def test_where_every_query_needs_one_tool_there_are_no_sets() -> None:
    assert len(ToolSets.group([np.array([0]), np.array([1])])[0]) == 0


def prepare(lesson: Lesson, **changes: Any) -> FitData:
    """The queries of a lesson, as `mlc-light` with these settings gets them."""
    options = MlcLightOptions(**changes)
    return FitData(HomeResources(HashEncoder()), lesson, options, HashEncoder())


def test_a_step_with_a_hidden_layer_is_the_one_that_torch_takes(slang: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(mlc_light, "DROPPED", 0.0)
    data = prepare(slang, hidden=16, batch=1_000, rate=0.05)
    training = Training(data, data.n_train)
    n, n_tools = data.n_train, len(slang.tools)
    layers = [torch.tensor(layer.copy(), requires_grad=True) for layer in training.head.weights]
    words = torch.tensor(training.bags.multiply(np.eye(training.ngrams.keys.size, dtype=np.float32)))
    rows = torch.cat([torch.tensor(data.rows[:n]), torch.ones(n, 1)], dim=1)
    units = torch.relu(words @ layers[0] + rows @ layers[1])
    logits = torch.cat([units, torch.ones(n, 1)], dim=1) @ layers[2]
    tools = torch.zeros(n, n_tools)
    for row, gold in zip(tools, data.gold[:n], strict=True):
        row[torch.tensor(gold)] = 1 / len(gold)
    of_tools = -(tools * logits[:, :n_tools].log_softmax(1)).sum(1)
    of_sets = torch.nn.functional.cross_entropy(logits[:, n_tools:], torch.tensor(training.set_of), reduction="none")
    loss = (of_tools + of_sets).mean()
    loss.backward()
    torch.optim.Adagrad(layers, lr=0.05, initial_accumulator_value=1e-8, eps=0.0).step()
    assert training.run_epoch() == pytest.approx(loss.item(), rel=1e-4)
    for mine, its in zip(training.head.weights, layers, strict=True):
        assert np.abs(mine - its.detach().numpy()).max() < 2e-3


def test_hidden_units_are_left_out_in_training_and_the_others_count_for_them(
    slang: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepare(slang, hidden=64, batch=1_000)
    gradients, moved = [], []
    for dropped in (0.0, 0.5):
        monkeypatch.setattr(mlc_light, "DROPPED", dropped)
        training = Training(data, data.n_train)
        before = training.head.weights.sparse.copy()
        training.run_epoch()
        moved.append((training.head.weights.sparse != before).mean())
        gradients.append(np.sqrt(training._squares.out[:-1]).mean())
    assert moved[1] < 0.9 * moved[0]
    assert 0.8 < gradients[1] / gradients[0] < 1.6


def test_a_model_with_a_hidden_layer_finds_what_no_description_says(slang: Lesson, tmp_path: Path) -> None:
    changes = {"hidden": 64, "epochs": 40}
    model = fit(lessons.plan("mlc-light", slang, tmp_path / "m", encoder=HashEncoder(), changes=changes))
    assert model.arrays["out"].shape[0] == 65 == model.arrays["sparse"].shape[1] + 1
    stage, texts = pipeline(model, slang.tools), slang.dataset.texts("test")
    gold = {query: {f"d/{tool}" for tool in tools} for query, tools in slang.dataset.split("test").items()}
    found = stage([Search(query=text) for text in texts.values()])
    assert sum(gold[query] <= set(each.ids[:2]) for query, each in zip(texts, found, strict=True)) >= 0.9 * len(texts)


@pytest.mark.parametrize(("n", "tools", "hidden"), [(9_999, 3, 0), (10_000, 3, 512), (10_000, 1, 0), (99_999, 1, 0)])
def test_many_queries_that_need_several_tools_train_a_hidden_layer(n: int, tools: int, hidden: int) -> None:
    assert mlc_light.choose_hidden(None, [np.arange(tools)] * n) == hidden
    assert mlc_light.choose_hidden(7, [np.arange(tools)] * n) == 7
