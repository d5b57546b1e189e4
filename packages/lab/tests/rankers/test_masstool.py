from __future__ import annotations

import dataclasses
import gzip
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import lessons

torch = pytest.importorskip("torch")

from tests_cli import run as cli  # noqa: E402
from toolscout.dataset import NoTool, Prompt  # noqa: E402
from toolscout.encoders import unit_rows  # noqa: E402
from toolscout.errors import ConfigError  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.journal.evidence import Example  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import Lesson, fit  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.search.abstain.calibration import platt  # noqa: E402
from toolscout.search.pipeline import Stage  # noqa: E402
from toolscout.settings import Settings  # noqa: E402
from toolscout.testing import check_stage  # noqa: E402
from toolscout.types import Search, Tool  # noqa: E402
from toolscout_lab import bench  # noqa: E402
from toolscout_lab.anatomy import intents  # noqa: E402
from toolscout_lab.commands.bench import _print_results as show  # noqa: E402
from toolscout_lab.compare import compare  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers import colt  # noqa: E402
from toolscout_lab.rankers.masstool import (  # noqa: E402
    ArrayTowers,
    MassTool,
    Pool,
    compute_query_parts,
    nearest,
    needs,
)
from toolscout_lab.rankers.shared.tuning import MassToolOptions, Transfer  # noqa: E402
from toolscout_lab.resources import Workspace  # noqa: E402
from toolscout_lab.training.intents import IntentQueries, Intents, Towers  # noqa: E402

BASE = {"base.epochs": 8, "base.batch": 16, "base.rate": 0.01, "base.precision": "float32", "base.threads": 1}
QUICK = {"epochs": 30, "batch": 16, "rate": 0.01, "length": 4, "k": 4, "floor": 0.0, "patience": 100, "threads": 1}
OURS = {"loss": "softmax", "length": 0, "sharpness": 5.0, "seen": "new", "scaled": False, "rate": 0.001, "epochs": 100}
CHAT = ["why? why?", "who? when? why?", "what? where?", "how? why? who?", "when? when?", "where? how?", "is it? why?"]
ALSO = ["when? why?", "who? who? what?", "how? where?", "what? what? why?", "where? when? how?", "is he? when?"]


def prompts(texts: list[str], part: str) -> list[Prompt]:
    return [Prompt(f"{part}-{number}", text, "chat") for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def chat() -> NoTool:
    return NoTool(
        prompts(CHAT, "train"),
        prompts(ALSO, "calibrate"),
        prompts(["who? where?", "what? how? when?", "is she? who?"], "test"),
    )


def fitted(slang: Lesson, bert: str, home: Path, name: str = "masstool", **changes: Any) -> Model:
    no_tool = changes.pop("no_tool", None)
    job = lessons.plan(
        name,
        slang,
        home / "out" / f"{name}-{len(changes)}",
        encoder=TransformerEncoder(bert),
        changes={**QUICK, **BASE, **changes},
        settings=Settings(home=home),
        no_tool=no_tool,
    )
    return fit(job)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, home: Path, chat: NoTool) -> Model:
    return fitted(slang, bert, home, no_tool=chat, **OURS)


def pipeline(model: Model, tools: Any) -> Stage:
    return registry.build(model.manifest.recipe, Catalogue.of(tools), model=model.folder)


def test_it_learns_which_tools_and_whether_any(slang: Lesson, model: Model, chat: NoTool) -> None:
    figures = model.manifest.metrics
    assert figures["ndcg@5"] > 0.9 and figures["detect_auroc"] > 0.9
    stage = pipeline(model, slang.tools)
    texts = list(slang.dataset.texts("test").values())
    check_stage(stage, [Search(query=text) for text in texts[:6]])
    asked = [each.need for each in stage([Search(query=text) for text in texts])]
    chatted = [each.need for each in stage([Search(query=each.text) for each in chat.test])]
    assert all(need is not None and 0 <= need <= 1 for need in [*asked, *chatted])
    assert np.mean([need or 0 for need in asked]) > np.mean([need or 0 for need in chatted]) + 0.3


def test_the_epoch_is_chosen_by_retrieval_and_detection_or_by_retrieval_alone(
    slang: Lesson, bert: str, home: Path, chat: NoTool
) -> None:
    """With one rule for both, a fit that learns to detect and one that does not can be compared."""
    chosen = {}
    for rule in ("both", "retrieval"):
        job = lessons.plan(
            "masstool",
            slang,
            home / "out" / f"by-{rule}",
            encoder=TransformerEncoder(bert),
            changes={**QUICK, **OURS, **BASE, "epochs": 30, "epoch_by": rule},
            settings=Settings(home=home),
            no_tool=chat,
        )
        values = fit(job).manifest.values
        targets = ("ndcg@5", "detect_auroc") if rule == "both" else ("ndcg@5",)
        quality = [sum(figures[name] for name in targets) for figures in values["history"]]
        assert values["best_epoch"] == 1 + quality.index(max(quality)) and "need" in values
        chosen[rule] = values["best_epoch"]
    assert chosen["both"] != chosen["retrieval"]


def test_without_no_tool_queries_it_does_not_judge_the_need(slang: Lesson, bert: str, home: Path) -> None:
    stage = pipeline(fitted(slang, bert, home, epochs=2), slang.tools)
    [found] = stage([Search(query="please umbrella")])
    assert found.need is None and "need" not in stage.writes
    assert set(found.ids) == {tool.id for tool in slang.tools}


@pytest.mark.parametrize("name", ["masstool-no-suim", "masstool-no-adakt", "masstool-no-df", "masstool-no-cl"])
def test_the_ablations_are_fitted(slang: Lesson, bert: str, home: Path, chat: NoTool, name: str) -> None:
    changes = {} if "floor" in registry.recipe(name).settings else {"epochs": 2}
    given = {key: value for key, value in {**QUICK, **changes}.items() if key not in registry.recipe(name).settings}
    job = lessons.plan(
        name,
        slang,
        home / "out" / name,
        encoder=TransformerEncoder(bert),
        changes={**given, **BASE, "epochs": 2},
        settings=Settings(home=home),
        no_tool=None if name == "masstool-no-adakt" else chat,
    )
    model = fit(job)
    assert ("need" in model.manifest.values) == (name != "masstool-no-adakt")
    assert ("towers.attend" in model.arrays) == (name != "masstool-no-suim")
    [found] = pipeline(model, slang.tools)([Search(query="please umbrella")])
    assert len(found.hits) == len(slang.tools)


def test_new_tools_are_found_and_removed_ones_are_not(slang: Lesson, model: Model) -> None:
    new = Tool(id="d/chess", name="chess", description="umbrella")
    kept = [tool for tool in slang.tools if tool.id != "d/weather/forecast"]
    [found] = pipeline(model, [*kept, new])([Search(query="umbrella")])
    assert "d/chess" in found.ids and "d/weather/forecast" not in found.ids


@pytest.mark.parametrize("transfer", ["gate", "attention", "concatenation", "addition", "none"])
@pytest.mark.parametrize("search", [True, False])
def test_serving_is_the_network_and_the_network_is_the_paper(transfer: Transfer, search: bool) -> None:
    random, d = np.random.default_rng(0), 6
    towers = Towers(d, search=search, transfer=transfer, seed=1)
    with torch.no_grad():
        for each in towers.parameters():
            each.add_(torch.from_numpy(random.normal(size=tuple(each.shape), scale=0.3)).float())
    rows, pool = unit_rows(random.normal(size=(5, d))), random.normal(size=(9, d)).astype(np.float32)
    near = np.array([[0, 1, 2], [3, -1, 4], [-1, -1, -1], [5, 5, -1], [8, 7, 6]])
    arrays = {f"towers.{name}": value.numpy() for name, value in towers.state_dict().items()}
    served, need = ArrayTowers(arrays, transfer).read(rows, pool, near)
    with torch.no_grad():
        held = torch.from_numpy(pool)[torch.from_numpy(near).clamp(min=0)]
        found, logits = towers(torch.from_numpy(rows), 2 * torch.from_numpy(rows), held, torch.from_numpy(near >= 0))
    np.testing.assert_allclose(served, found.numpy(), atol=1e-5)
    np.testing.assert_allclose(need, logits.numpy(), atol=1e-5)
    for number in range(5):
        expected, logit = by_hand(arrays, transfer, rows[number], [pool[place] for place in near[number] if place >= 0])
        np.testing.assert_allclose(found[number].numpy(), expected, atol=1e-4)
        assert logits[number].item() == pytest.approx(logit, abs=1e-4)


def test_detection_and_the_gate_read_rows_with_a_mean_square_of_one() -> None:
    """Before any training, the gate differs between queries as much as over the raw vectors of an encoder."""
    random, d = np.random.default_rng(0), 384
    raw = random.normal(size=(50, d)).astype(np.float32)  # mean square 1
    towers = Towers(d, search=True, transfer="gate", seed=1)
    weights = {name: value.detach().numpy() for name, value in towers.state_dict().items()}

    def gate(rows: Any) -> Any:
        hidden = np.maximum(rows @ weights["project.weight"].T + weights["project.bias"], 0)
        return 1 / (1 + np.exp(-(hidden @ weights["join.0.weight"].T + weights["join.0.bias"])))

    with torch.no_grad():
        hidden = towers.compute_hidden(torch.from_numpy(unit_rows(raw)))
        found = torch.sigmoid(towers.join[0](hidden)).numpy()
    spread = found.std(axis=0).mean()
    assert spread == pytest.approx(gate(raw).std(axis=0).mean(), rel=0.02)
    assert spread > 10 * gate(unit_rows(raw)).std(axis=0).mean()


@pytest.mark.parametrize("transfer", ["gate", "attention", "concatenation", "addition", "none"])
@pytest.mark.parametrize("search", [True, False])
def test_a_model_of_the_first_version_answers_as_it_did(transfer: Transfer, search: bool) -> None:
    random, d = np.random.default_rng(4), 6
    arrays = {
        f"towers.{name}": random.normal(size=tuple(value.shape)).astype(np.float32)
        for name, value in Towers(d, search=search, transfer=transfer).state_dict().items()
    }
    rows, pool = unit_rows(random.normal(size=(3, d))), random.normal(size=(5, d)).astype(np.float32)
    near = np.array([[0, 1, 2], [3, -1, 4], [-1, -1, -1]])
    vectors, logits = ArrayTowers(arrays, transfer, 1).read(rows, pool, near)
    for number in range(3):
        held = [pool[place] for place in near[number] if place >= 0]
        expected, logit = by_hand(arrays, transfer, rows[number], held, version=1)
        np.testing.assert_allclose(vectors[number], expected, atol=1e-4)
        assert logits[number] == pytest.approx(logit, abs=1e-4)


def test_the_manifest_says_by_which_rules_a_model_answers(slang: Lesson, model: Model) -> None:
    assert model.manifest.values["towers"] == 2
    asked = [Search(query=text) for text in slang.dataset.texts("test").values()]

    def scores(values: dict[str, Any]) -> Any:
        other = dataclasses.replace(model, manifest=msgspec.structs.replace(model.manifest, values=values))
        found = MassTool().build(Workspace(), Catalogue.of(slang.tools), other)(asked)
        return [sorted((hit.id, round(hit.score, 6)) for hit in each.hits) for each in found]

    unmarked = {name: value for name, value in model.manifest.values.items() if name != "towers"}
    assert scores({**unmarked, "towers": 2}) != scores(unmarked) == scores({**unmarked, "towers": 1})
    with pytest.raises(ConfigError, match="fitted this model by rules that this version does not know. Use that"):
        scores({**unmarked, "towers": 3})


def task(random: np.random.Generator, **changes: Any) -> Intents:
    """Six queries of three scenes over four tools, and five queries that need no tool."""
    queries, tools, chat = (unit_rows(random.normal(size=(n, 5))).astype(np.float32) for n in (6, 4, 5))
    gold = [np.array([0, 1]), np.array([2]), np.array([0, 1]), np.array([1, 3]), np.array([2]), np.array([1, 3])]
    made = Intents(
        queries=IntentQueries(
            rows=queries,
            gold=gold,
            scene_of=np.array([0, 1, 0, 2, 1, 2]),
            near=np.array([[1, 2], [0, -1], [3, 4], [-1, -1], [5, 0], [4, 1]]),
            chat=chat,
        ),
        tools=tools,
        evaluate=lambda arrays: {},
        shape=MassToolOptions(**{"dropped": 0.0, **changes}),
        identity="test",
    )
    made.begin(0, random)
    return made


@pytest.mark.parametrize("part", ["contrast", "need"])
def test_each_part_of_the_loss_counts_by_its_weight(part: str) -> None:
    """The loss of a step is a straight line over the weight of the contrast, and over that of detection."""

    def loss(weight: float) -> float:
        random = np.random.default_rng(0)
        return task(random, **{part: weight}).backward(np.array([0, 1, 3]), random)

    none, some, most = (loss(weight) for weight in (0.0, 0.25, 1.0))
    assert most - none == pytest.approx(4 * (some - none), rel=1e-4) and abs(most - none) > 0.01


def test_detection_is_binary_cross_entropy_in_which_both_kinds_of_queries_weigh_the_same() -> None:
    """Eq. 3 with its minus sign, by hand; six queries need a tool and five do not."""
    random = np.random.default_rng(0)
    made = task(random)
    with torch.no_grad():
        chat_logits = made.towers.need_logits(made.towers.compute_hidden(made.chat)).tolist()
        loss = made._compute_need_loss(torch.tensor([2.0, -1.0, 0.5, 0.0, 3.0, -2.0]), random).item()
    tool_costs = [-math.log(1 / (1 + math.exp(-logit))) for logit in (2.0, -1.0, 0.5, 0.0, 3.0, -2.0)]
    chat_costs = [-math.log(1 - 1 / (1 + math.exp(-logit))) for logit in chat_logits]
    assert loss == pytest.approx((sum(tool_costs) / 6 + sum(chat_costs) / 5) / 2, rel=1e-5)
    assert abs(sum(tool_costs) / 6 - sum(chat_costs) / 5) > 0.1, "equal costs show nothing"


def test_neighbours_below_the_floor_are_left_out_in_training_and_in_a_search(
    slang: Lesson, bert: str, home: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = model.arrays["keys"]
    _, likeness = nearest(keys, keys, 5)
    floor = float(np.median(likeness[:, 1:]))
    places: list[Any] = []
    init, near = Intents.__init__, Pool.near

    def noted(self: Intents, **fields: Any) -> None:
        places.append(fields["queries"].near)
        init(self, **fields)

    monkeypatch.setattr(Intents, "__init__", noted)
    other = fitted(slang, bert, home, epochs=1, floor=floor)
    [trained] = places
    cosines = np.einsum("nd,nkd->nk", keys, keys[np.maximum(trained, 0)])
    assert (cosines[trained >= 0] > floor - 1e-6).all()
    assert 0.2 < (trained < 0).mean() < 0.8

    floors = []
    monkeypatch.setattr(
        Pool, "near", lambda self, rows, k, least: floors.append((k, least)) or near(self, rows, k, least)
    )
    pipeline(other, slang.tools)([Search(query="umbrella")])
    assert set(floors) == {(QUICK["k"], floor)}  # the build searches once, too


def test_the_shipped_weights_and_bounds_are_those_that_were_chosen_on_dev() -> None:
    """The tables of docs/methods/masstool.md and colt.md are about these; another number needs another choice."""
    shipped = MassToolOptions()
    assert (shipped.k, shipped.floor, shipped.need) == (20, 0.7, 0.2)
    for each in (shipped, colt.ColtOptions()):
        assert (each.contrast, each.temperature) == (0.5, 0.2)


def test_the_parts_of_a_query_are_shown_apart(slang: Lesson, model: Model, tmp_path: Path) -> None:
    texts = [*slang.dataset.texts("test").values(), "zzz"]
    parts = compute_query_parts(model, texts)
    assert set(parts) == {"graph", "search", "joint"}
    for rows in parts.values():
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    stage = pipeline(model, slang.tools)
    best = model.arrays["tools"] @ unit_rows(sum(parts.values())).T
    if len(best.T) == len(texts):
        found = [each.ids[0] for each in stage([Search(query=text) for text in texts])]
        assert found == [slang.tools[place].id for place in best.argmax(axis=0)]
    shown = intents(model.folder, slang.dataset)
    assert set(shown["tsne"]) == {"graph", "search", "joint"} and shown["n_queries"] > 3
    assert {len(points) for points in shown["tsne"].values()} == {shown["n_queries"]}
    assert set(shown["cosine"]) == {"graph search", "graph joint", "search joint"}
    assert all(-1 <= value <= 1 for value in shown["cosine"].values())
    done = cli("anatomy", str(slang.dataset.folder), "--model", str(model.folder), "--out", str(tmp_path))
    assert done.exit_code == 0 and "mean cosine of the parts graph and search" in done.output
    [picture] = (tmp_path / slang.dataset.name).glob("masstool-*.anatomy.intents.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"


def by_hand(arrays: dict[str, Any], transfer: str, row: Any, near: list[Any], version: int = 2) -> tuple[Any, float]:
    """Equations 2 to 6 and appendix B.2, one query and one neighbour at a time.

    The towers of version 1 scaled h for detection alone; those of version 2 scale all that they read.
    """

    def linear(name: str, vector: Any) -> Any:
        weight, bias = arrays[f"towers.{name}.weight"], arrays[f"towers.{name}.bias"]
        return np.array(
            [sum(a * b for a, b in zip(line, vector, strict=True)) + c for line, c in zip(weight, bias, strict=True)]
        )

    def unit(vector: Any) -> Any:
        return vector / math.sqrt(sum(value * value for value in vector))

    root = math.sqrt(len(row))
    scale, scale_of_need = (1.0, root) if version == 1 else (root, 1.0)
    hidden = np.array([max(0.0, value) for value in linear("project", scale * row)])
    logit = float(linear("need", scale_of_need * hidden)[0])
    graph = row + row  # a later query: its own vector in both views
    total = unit(graph)
    found = graph
    if "towers.attend" in arrays:
        if not near:
            return total, logit
        fits = [float(graph @ arrays["towers.attend"] @ each) for each in near]
        mass = [math.exp(fit - max(fits)) for fit in fits]
        found = sum(weight / sum(mass) * each for weight, each in zip(mass, near, strict=True))
        total = total + unit(found)
    found = scale * found
    if transfer == "gate":
        total = total + unit(np.array([1 / (1 + math.exp(-value)) for value in linear("join.0", hidden)]) * found)
    elif transfer == "addition":
        total = total + unit(hidden + found)
    elif transfer == "concatenation":
        middle = [max(0.0, value) for value in linear("join.0", [*hidden, *found])]
        total = total + unit(linear("join.1", middle))
    elif transfer == "attention":
        joined = np.zeros(len(row))
        for asking in (hidden, found):
            fits = [
                float(linear("join.0", asking) @ linear("join.1", offering)) / math.sqrt(len(row))
                for offering in (hidden, found)
            ]
            mass = [math.exp(fit) for fit in fits]
            for weight, offering in zip(mass, (hidden, found), strict=True):
                joined = joined + weight / sum(mass) * linear("join.2", offering)
        total = total + unit(joined)
    return total, logit


def test_the_nearest_are_those_of_a_full_sort_and_a_query_is_never_its_own(model: Model) -> None:
    random = np.random.default_rng(1)
    pool, rows = unit_rows(random.normal(size=(40, 5))), unit_rows(random.normal(size=(7, 5)))
    near, likeness = nearest(pool, rows, 6)
    for row in range(7):
        order = sorted(range(40), key=lambda place: -float(rows[row] @ pool[place]))[:6]
        assert near[row].tolist() == order
        np.testing.assert_allclose(likeness[row], [rows[row] @ pool[place] for place in order], rtol=1e-5)
    few, _ = nearest(pool[:3], rows, 6)
    assert (few[:, 3:] == -1).all() and (few[:, :3] >= 0).all()


def test_what_is_added_to_the_pool_changes_a_like_query_at_once() -> None:
    random = np.random.default_rng(2)
    keys, tools = unit_rows(random.normal(size=(30, 8))), unit_rows(random.normal(size=(5, 8)))
    pool = Pool(keys, (keys + tools[random.integers(5, size=30)]).astype(np.float32))
    towers = Towers(8, search=True, transfer="none", seed=0)
    reader = ArrayTowers({f"towers.{name}": value.numpy() for name, value in towers.state_dict().items()}, "none")
    [asked] = unit_rows(random.normal(size=(1, 8)))

    def scores(pool: Pool) -> Any:
        vectors, _ = reader.read(asked[None], pool.values, pool.near(asked[None], 1, 0.0))
        return (vectors @ tools.T)[0]

    second = int(np.argsort(scores(pool))[-2])
    grown = pool.extend(asked[None], [tools[[second]]])
    assert int(scores(grown).argmax()) == second
    assert len(pool.keys) == 30 and len(grown.keys) == 31


def test_what_was_used_since_counts_at_once_and_not_when_the_tool_is_gone(slang: Lesson, model: Model) -> None:
    used: list[Example] = []
    workspace = Workspace(live=lambda: (len(used), used))
    stage = registry.build("masstool", Catalogue.of(slang.tools), workspace, model=model.folder)
    asked = Search(query="zzz qqq zzz")

    def score(tool: str) -> float:
        [found] = stage([asked])
        return next(hit.score for hit in found.hits if hit.id == tool)

    before = score("d/music/play")
    used.append(Example(row=1, at="", caller="me", query=asked.query, tools={"d/music/play": 1.0, "d/gone": 1.0}))
    assert score("d/music/play") > before + 0.01
    used.append(Example(row=2, at="", caller="me", query="another", tools={"d/gone": 1.0}))
    assert score("d/music/play") > before + 0.01
    used.clear()
    assert score("d/music/play") == before


def test_the_calibration_is_the_best_sigmoid_of_balanced_classes() -> None:
    random = np.random.default_rng(3)
    tool, chat = random.normal(2.0, 2.0, size=400), random.normal(-1.0, 1.0, size=50)
    by = platt(tool, chat)

    def cost(slope: float, shift: float) -> float:
        ones, zeros = 401 / 402, 1 / 52
        total = 0.0
        for value in tool:
            p = 1 / (1 + math.exp(-(slope * value + shift)))
            total -= 0.5 / 400 * (ones * math.log(p) + (1 - ones) * math.log(1 - p))
        for value in chat:
            p = 1 / (1 + math.exp(-(slope * value + shift)))
            total -= 0.5 / 50 * (zeros * math.log(p) + (1 - zeros) * math.log(1 - p))
        return total

    found = cost(**by)
    for slope, shift in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01), (0.3, 0.3), (-0.2, 0.4)):
        assert found < cost(by["slope"] + slope, by["shift"] + shift)
    assert (np.diff(needs(np.linspace(-500, 500, 50), by)) >= 0).all()


def test_bench_scores_the_decision_and_writes_each_need(
    slang: Lesson, bert: str, home: Path, chat: NoTool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = bench.Job(
        dataset=slang.dataset,
        recipe="masstool",
        label="masstool",
        out=tmp_path,
        no_tool=chat,
        encoder=bert,
        changes={**QUICK, **OURS, **BASE},
        settings=Settings(home=home),
    )
    result = bench.run(job).result
    written = json.loads(job.json_path.read_text())
    show([written])
    assert f"AUROC {written['metrics']['detect_auroc']:.4f}, accuracy" in capsys.readouterr().out
    assert 0.5 < written["metrics"]["detect_auroc"] <= 1 and len(written["ci95"]["detect_auroc"]) == 2
    assert result["slices"]["no_tool_kind"]["chat"]["n"] == 3
    compared = compare(tmp_path, slang.dataset, "masstool", "masstool")
    assert compared["tests"]["recall@5"]["difference"] == 0 and "no_tool_kind" not in compared["slices"]
    lines = [line.split() for line in gzip.decompress(job.detect_path.read_bytes()).decode().splitlines()]
    tests = slang.dataset.split("test")
    assert {query for query, label, _ in lines if label == "1"} == set(tests)
    assert [query for query, label, _ in lines if label == "0"] == [each.id for each in chat.test]
    assert all(0 <= float(need) <= 1 for _, _, need in lines)


def test_a_base_without_an_encoder_of_its_own_is_refused(slang: Lesson, bert: str, home: Path) -> None:
    with pytest.raises(ConfigError, match="expected a recipe that tunes an encoder"):
        fit(
            lessons.plan(
                "masstool",
                slang,
                home / "no",
                encoder=TransformerEncoder(bert),
                changes={"base": "bm25"},
                settings=Settings(home=home),
            )
        )
