from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lessons  # noqa: E402
from toolscout.errors import ConfigError  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.models import model_store  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import Lesson, fit  # noqa: E402
from toolscout.rankers import parse_options, zero_shot  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.search.pipeline import Stage  # noqa: E402
from toolscout.settings import Settings  # noqa: E402
from toolscout.testing import check_stage  # noqa: E402
from toolscout.types import Search, Tool  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers.shared.reranking import RankDeeper  # noqa: E402
from toolscout_lab.rankers.toolrefiner import ToolRefiner  # noqa: E402
from toolscout_lab.resources import Workspace  # noqa: E402
from toolscout_lab.training.biencoders import MinedTriplets, Texts, Triplets  # noqa: E402
from toolscout_lab.training.refiners import (  # noqa: E402
    TOOL_POSITION,
    Refine,
    Refiner,
    check_order,
    find_first_position,
)
from toolscout_lab.training.towers import Tower  # noqa: E402

TUNED = {"epochs": 10, "batch": 16, "rate": 0.01, "precision": "float32", "threads": 1}
QUICK = {**TUNED, "epochs": 20, "patience": 20, "fast": 1.0}


def fitted(slang: Lesson, bert: str, home: Path, name: str, **changes: Any) -> Model:
    job = lessons.plan(
        name,
        slang,
        home / "out" / f"{name}-{len(changes)}",
        encoder=TransformerEncoder(bert),
        changes=changes,
        settings=Settings(home=home),
    )
    return fit(job)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, home: Path) -> Model:
    below = {f"base.{name}": value for name, value in {**TUNED, "epochs": 5}.items()}
    return fitted(slang, bert, home, "toolrefiner-tool2vec", candidates=4, **QUICK, **below)


def pipeline(model: Model, tools: Any, bert: str) -> Stage:
    return registry.build(
        model.manifest.recipe, Catalogue.of(tools), Workspace(TransformerEncoder(bert)), model=model.folder
    )


def test_it_puts_the_first_tools_in_a_new_order_and_leaves_the_rest(slang: Lesson, bert: str, model: Model) -> None:
    values = model.manifest.values
    assert values["history"][-1]["loss"] < values["history"][0]["loss"]
    assert model.manifest.metrics["ndcg@5"] >= values["first_stage"]["ndcg@5"]
    stage = pipeline(model, slang.tools, bert)
    texts = [Search(query=text) for text in slang.dataset.texts("test").values()]
    check_stage(stage, texts[:6])
    first = registry.build("tool2vec-tuned", Catalogue.of(slang.tools), model=model.folder / "base")
    pairs = list(zip(first(texts), stage(texts), strict=True))
    assert all(set(one.ids[:4]) == set(other.ids[:4]) and one.ids[4:] == other.ids[4:] for one, other in pairs)
    assert any(one.ids[:4] != other.ids[:4] for one, other in pairs)
    base = model_store.load(model.folder / "base")
    assert not base.manifest.data.refit and base.manifest.settings["refit"].origin == "base"
    assert base.arrays["uses"].sum() == sum(map(len, slang.train.values()))


def test_a_tool_that_training_knew_nothing_of_keeps_its_place(slang: Lesson, bert: str, model: Model) -> None:
    tools = [msgspec.structs.replace(tool, id=f"new/{n}") if n % 3 == 0 else tool for n, tool in enumerate(slang.tools)]
    texts = [Search(query=text) for text in slang.dataset.texts("test").values()]
    first = registry.build("tool2vec-tuned", Catalogue.of(tools), model=model.folder / "base")(texts)
    needed = {tool for gold in slang.train.values() for tool in gold} & {tool.id for tool in tools}
    assert model.manifest.settings["give_way"].value is True
    kept = around = 0
    for one, other in zip(first, pipeline(model, tools, bert)(texts), strict=True):
        new = [tool for tool in one.ids[:4] if tool not in needed]
        assert [tool for tool in other.ids[:4] if tool not in needed] == new
        if new:
            assert other.ids.index(new[0]) == one.ids.index(new[0])
            kept += 1
            around += one.ids != other.ids
    assert kept and around


def test_what_training_knew_nothing_of_gives_way_only_where_it_is_told_to(slang: Lesson, bert: str, home: Path) -> None:
    made = fitted(slang, bert, home, "toolrefiner", base="dense", candidates=8, **{**QUICK, "epochs": 1})
    values = made.manifest.values
    assert values["keeping_places"] == made.manifest.metrics and set(values["giving_way"]) == set(made.manifest.metrics)
    needed = {tool for gold in slang.train.values() for tool in gold}
    tools = [msgspec.structs.replace(tool, id=f"new/{n}") if n % 2 else tool for n, tool in enumerate(slang.tools)]
    texts = [Search(query=text) for text in slang.dataset.texts("test").values()]
    first = registry.build("dense", Catalogue.of(tools), Workspace(TransformerEncoder(bert)))(texts)
    several = 0
    for one, other in zip(first, pipeline(made, tools, bert)(texts), strict=True):
        assert [tool in needed for tool in other.ids[:8]] == [tool in needed for tool in one.ids[:8]]
        several += sum(tool not in needed for tool in one.ids[:8]) > 1
    assert several


def test_over_bm25_with_descriptions_and_fewer_hits_than_candidates(slang: Lesson, bert: str, home: Path) -> None:
    made = fitted(slang, bert, home, "toolrefiner", base="bm25", tool_vectors="description", **QUICK)
    assert not (made.folder / "base").exists()
    new = Tool(id="other/translate", name="translate", description="Translate a text into another language.")
    left = [tool for tool in slang.tools if tool.id != "d/weather/forecast"]
    stage = pipeline(made, [*left, new], bert)
    found = stage([Search(query="translate a song"), Search(query="zzz"), Search(query="reserve a room")])
    assert "other/translate" in found[0].ids and not found[1].hits
    assert 0 < len(found[2].hits) < 6 and "d/weather/forecast" not in found[2].ids


def test_a_first_stage_that_finds_nothing_is_named(slang: Lesson, bert: str, home: Path) -> None:
    tools = [Tool(id=tool.id, name=f"n{number}", description="zzz") for number, tool in enumerate(slang.tools)]
    with pytest.raises(ConfigError, match="any of the first 32 tools that bm25 finds.*Set another base"):
        fitted(dataclasses.replace(slang, tools=tools), bert, home, "toolrefiner", base="bm25", **TUNED)


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def refiner(bert: str) -> Refiner:
    tower = Tower(TransformerEncoder(bert).model, dropout=0.0, precision="float32")
    vectors = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    torch.manual_seed(0)
    return Refiner(tower, vectors).eval()


def test_the_input_is_the_query_s_tokens_and_then_the_tools_all_in_one_place(refiner: Refiner) -> None:
    bert, [tokens] = refiner.encoder, refiner.tower.tokens(["book a room"], "query", 16)
    tools = [4, 0, 2]
    tables = bert.embeddings
    rows = [
        tables.word_embeddings.weight[token]
        + tables.position_embeddings.weight[spot]
        + tables.token_type_embeddings.weight[0]
        for spot, token in enumerate(tokens)
    ]
    for tool in tools:
        vector = refiner.vectors[tool]
        rows.append(
            refiner.project.weight @ vector
            + refiner.project.bias
            + tables.position_embeddings.weight[TOOL_POSITION]
            + tables.token_type_embeddings.weight[1]
        )
    hidden = tables.LayerNorm(torch.stack(rows)[None])
    for layer in bert.encoder.layer:
        hidden = layer(hidden)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    wanted = hidden[0, len(tokens) :] @ refiner.score.weight[0] + refiner.score.bias
    with torch.no_grad():
        found = refiner([tokens], np.array([tools]))[0]
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=1e-5)


def test_the_order_of_the_candidates_has_no_meaning_and_absent_ones_take_no_part(refiner: Refiner) -> None:
    tokens = refiner.tower.tokens(["book a room", "send mail to the boss by noon"], "query", 16)
    candidates = np.array([[0, 1, 2, -1], [3, 4, 5, 0]])
    with torch.no_grad():
        found = refiner(tokens, candidates).numpy()
        turned = refiner(tokens, candidates[:, ::-1].copy()).numpy()
        alone = refiner(tokens[:1], np.array([[0, 1, 2]])).numpy()
    np.testing.assert_allclose(found[:, ::-1], turned, atol=1e-5)
    np.testing.assert_allclose(found[0, :3], alone[0], atol=1e-5)
    assert found[0, 3] == -np.inf
    shares = np.exp(refiner.log_probabilities(tokens, candidates))
    np.testing.assert_allclose(shares.sum(axis=1), [1, 1], atol=1e-6)


# --- which encoders read tools without an order -----------------------------------------------------------------------

FIRST_POSITIONS = {"bert": 0, "electra": 0, "roberta": 2, "xlm-roberta": 2, "camembert": 2}
DISENTANGLED = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"]}
ORDERED: dict[str, dict[str, Any]] = {  # families to which the order of the input matters, and further settings
    "mpnet": {},
    "deberta": DISENTANGLED,
    "deberta-v2": {**DISENTANGLED, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    "modernbert": {"pad_token_id": 0},  # two layers of three attend to what is near
}


def encoder_of(bert: str, family: str, spread: float = 0.2) -> TransformerEncoder:
    """An encoder of a family with random weights of this deviation, behind the tokens of the tiny BERT."""
    transformers = pytest.importorskip("transformers")
    encoder = TransformerEncoder(bert)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(
            family,
            vocab_size=encoder.model[0].auto_model.config.vocab_size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=160,
            initializer_range=spread,
            **({"embedding_size": 32} if family == "electra" else {}),
            **ORDERED.get(family, {}),
        )
        network = transformers.AutoModel.from_config(config).eval()
    is_property = isinstance(getattr(type(encoder.model[0]), "auto_model", None), property)
    setattr(encoder.model[0], "model" if is_property else "auto_model", network)  # since version 5.4 a property
    return encoder


def refiner_of(bert: str, family: str, **rest: Any) -> Refiner:
    tower = Tower(encoder_of(bert, family).model, dropout=0.0, precision="float32")
    return Refiner(tower, np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32), **rest).eval()


def measure_order_effect(refiner: Refiner) -> float:
    """How far a logit of 100 tools moves, at most, when they stand in another order."""
    tokens, order = refiner.tower.tokens(["book a room"], "query", 16), np.random.default_rng(1).permutation(100)
    with torch.no_grad():
        straight = refiner(tokens, np.arange(100)[None]).numpy()[0]
        turned = refiner(tokens, order[None]).numpy()[0]
    return float(np.abs(straight[order] - turned).max() / straight.std())


@pytest.mark.parametrize("family", FIRST_POSITIONS)
def test_an_encoder_that_reads_positions_alone_gives_the_same_logits_in_any_order(bert: str, family: str) -> None:
    assert measure_order_effect(refiner_of(bert, family)) < 1e-4


@pytest.mark.parametrize("family", ORDERED)
def test_an_encoder_to_which_the_order_matters_is_refused_by_name(bert: str, family: str) -> None:
    with pytest.raises(ConfigError, match=f"family {family}, because there the score of a tool depends on its place"):
        refiner_of(bert, family)
    assert measure_order_effect(refiner_of(bert, family, first_position=0)) > 0.1, "it would be refused in vain"
    untrained = encoder_of(bert, family, spread=0.02).model[0].auto_model
    with pytest.raises(ConfigError, match=f"family {family}"):
        check_order(untrained)


@pytest.mark.parametrize("family", FIRST_POSITIONS)
def test_the_words_of_a_query_have_the_positions_that_the_encoder_gives_them(bert: str, family: str) -> None:
    encoder = encoder_of(bert, family).model[0].auto_model
    first = find_first_position(encoder)
    assert first == FIRST_POSITIONS[family] == check_order(encoder)
    ids = torch.tensor([[7, 20, 9, 30]])
    with torch.no_grad():
        own = encoder(input_ids=ids).last_hidden_state
        found = encoder(
            inputs_embeds=encoder.get_input_embeddings()(ids), position_ids=torch.arange(first, first + 4)[None]
        ).last_hidden_state
    np.testing.assert_allclose(found.numpy(), own.numpy(), atol=1e-6)


def test_the_check_changes_neither_the_encoder_nor_the_random_numbers(bert: str) -> None:
    encoder = encoder_of(bert, "roberta").model[0].auto_model.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    torch.manual_seed(3)
    check_order(encoder)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert drawn == torch.rand(1) and encoder.training
    for name, value in encoder.state_dict().items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name])


def test_a_fit_refuses_the_encoder_before_it_ranks_a_query(slang: Lesson, bert: str, home: Path) -> None:
    said: list[str] = []
    job = lessons.plan(
        "toolrefiner",
        slang,
        home / "out" / "ordered",
        encoder=encoder_of(bert, "mpnet"),
        changes={"base": "bm25", **QUICK},
        settings=Settings(home=home),
        say=said.append,
    )
    with pytest.raises(ConfigError, match="family mpnet"):
        fit(job)
    assert not any("ranking" in line for line in said)


def test_a_model_from_before_the_check_keeps_its_positions_and_is_checked_when_it_is_loaded(
    slang: Lesson, bert: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lessons.plan(
        "toolrefiner",
        slang,
        home / "out" / "roberta",
        encoder=encoder_of(bert, "roberta"),
        changes={"base": "dense", **QUICK, "epochs": 1, "blend": 0.0},
        settings=Settings(home=home),
    )
    made = fit(job)
    assert made.manifest.values["first_position"] == 2
    asked = [Search(query=text) for text in slang.dataset.texts("test").values()]
    positions: list[int] = []
    read = Refiner.__init__

    def noted(self: Refiner, *given: Any, **rest: Any) -> None:
        read(self, *given, **rest)
        positions.append(self.first_position)

    monkeypatch.setattr(Refiner, "__init__", noted)

    def logits(values: dict[str, Any]) -> list[list[float]]:
        model = dataclasses.replace(made, manifest=msgspec.structs.replace(made.manifest, values=values))
        workspace = Workspace(TransformerEncoder(bert), build=registry.build)
        found = ToolRefiner().build(workspace, Catalogue.of(slang.tools), model)(asked)
        return [[round(hit.score, 5) for hit in each.hits] for each in found]

    old = {name: value for name, value in made.manifest.values.items() if name != "first_position"}
    assert logits(made.manifest.values) != logits(old) and positions == [2, 0]
    monkeypatch.setattr("toolscout_lab.training.refiners.MAX_ORDER_EFFECT", -1.0)
    logits(made.manifest.values)
    with pytest.raises(ConfigError, match="family roberta"):
        logits(old)


def test_a_step_shuffles_and_the_loss_is_the_same(refiner: Refiner) -> None:
    tokens = refiner.tower.tokens(["book a room", "send mail"], "query", 16)
    candidates, gold = np.array([[0, 1, 2], [3, 4, 5]]), np.array([[1, 0, 0], [0, 1, 1]], np.bool_)
    task = Refine(refiner, queries=tokens, candidates=candidates, gold=gold, evaluate=dict, identity="test")
    logs = refiner.log_probabilities(tokens, candidates)
    wanted = -np.mean([logs[0, 0], logs[1, 1:].mean()])
    for seed in (0, 1, 2):
        assert task.backward(np.array([0, 1]), np.random.default_rng(seed)) == pytest.approx(wanted, abs=1e-5)


def test_triplets_share_a_tool_with_their_positive_and_none_with_their_negative(bert: str) -> None:
    tower = Tower(TransformerEncoder(bert).model, dropout=0.0, precision="float32")
    gold = [np.array([0, 1]), np.array([1]), np.array([2]), np.array([2, 3]), np.array([4])]
    queries = tower.tokens(["a b", "b c", "c d", "d e", "e f"], "query", 16)
    texts = Texts(tower=tower, queries=queries, tools=[], gold=gold, dev=[], evaluate=lambda _: {}, identity="test")
    task = Triplets(texts, 0.3)
    rows = np.array([4, 2, 0, 1, 3])
    for seed in range(5):
        anchors, positives, negatives = task.draw_triplets(rows, np.random.default_rng(seed))
        assert rows[anchors].tolist() == [2, 0, 1, 3]  # the query that uses the fifth tool has no like
        for anchor, positive, negative in zip(anchors, positives, negatives, strict=True):
            assert anchor != positive
            assert set(gold[rows[anchor]]) & set(gold[rows[positive]])
            assert not set(gold[rows[anchor]]) & set(gold[rows[negative]])
    vectors = tower.vectors([queries[row] for row in rows])
    drawn = task.draw_triplets(rows, np.random.default_rng(3))
    one, near, far = (vectors[each] for each in drawn)
    wanted = np.maximum((one * far).sum(axis=1) - (one * near).sum(axis=1) + 0.3, 0.0).mean()
    assert task.backward(rows, np.random.default_rng(3)) == pytest.approx(wanted, abs=1e-5)
    assert task.backward(np.array([0]), np.random.default_rng(0)) == 0.0


def test_mined_triplets_are_the_nearest_of_each_kind_and_each_is_compared_with_each(bert: str) -> None:
    tower = Tower(TransformerEncoder(bert).model, dropout=0.0, precision="float32")
    gold = [np.array([0, 1]), np.array([1]), np.array([2]), np.array([2, 3]), np.array([4]), np.array([0])]
    queries = tower.tokens(["a b", "b c", "c d", "d e", "e f", "a f"], "query", 16)
    texts = Texts(tower=tower, queries=queries, tools=[], gold=gold, dev=[], evaluate=lambda _: {}, identity="test")
    task = MinedTriplets(texts, 0.3, nearest=5, each=2)
    task.begin(0, np.random.default_rng(0))
    vectors = tower.vectors(queries)
    cosines = vectors @ vectors.T
    for query, (near, far) in enumerate(zip(task.near, task.far, strict=True)):
        order = [other for other in np.argsort(-cosines[query], kind="stable").tolist() if other != query]
        shares = {other: bool(set(gold[query]) & set(gold[other])) for other in order}
        assert [place for place in near.tolist() if place >= 0] == [other for other in order if shares[other]][:2]
        assert [place for place in far.tolist() if place >= 0] == [other for other in order if not shares[other]][:2]
    assert task.near[4].tolist() == [-1, -1]  # the query that uses the fifth tool has no like
    kept = [
        max(0.0, cosines[0, far] - cosines[0, near] + 0.3) for near in task.near[0] for far in task.far[0] if near >= 0
    ]
    assert task.backward(np.array([0, 4]), np.random.default_rng(0)) == pytest.approx(np.mean(kept), abs=1e-5)
    assert task.backward(np.array([4]), np.random.default_rng(0)) == 0.0
    other = MinedTriplets(texts, 0.3, nearest=5, each=2)
    other.restore(task.state())
    assert (other.near == task.near).all() and (other.far == task.far).all()
    few = MinedTriplets(texts, 0.3, nearest=1, each=2)
    few.begin(0, np.random.default_rng(0))
    assert ((few.near >= 0).sum(axis=1) + (few.far >= 0).sum(axis=1) == 1).all()


def test_a_refiner_gets_its_candidates_from_a_search_for_fewer_tools() -> None:
    catalogue = Catalogue.of([Tool(id=f"t/{n:03}", name=f"tool_{n}", description="weather") for n in range(300)])
    first = zero_shot.search_words(catalogue)
    search = Search(query="weather", k=3)
    assert len(first([search])[0].hits) == 100
    [deep] = RankDeeper(first, 128)([search])
    assert len(deep.hits) == 128 and deep.k == 3 and [step.stage for step in deep.trace] == [first.name]
    explained = RankDeeper(first, 128).explain(search, deep.ids[-1])
    assert explained is not None and explained.rank == 128
    assert parse_options({"candidates": 128}, ToolRefiner.options_type)
    with pytest.raises(ConfigError, match="128"):
        parse_options({"candidates": 129}, ToolRefiner.options_type)
