from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests_cli import run
from toolscout.encoders import load
from toolscout.encoders.onnx import CompactEncoder, OnnxEncoder
from toolscout.encoders.static import load_static
from toolscout.errors import ConfigError, MissingExtra
from toolscout.settings import Settings
from toolscout.testing import check_encoder

pytest.importorskip("sentence_transformers", reason="needs the extra train")
pytestmark = pytest.mark.timeout(300)  # an export takes some seconds, and the first one imports torch

ROOT = Path(__file__).parents[4]
SPEECH = "a the tool weather rain tomorrow will it in mail send message to user by id get find ##s ##ing ? ! :"
WORDS = SPEECH.split()
PROMPTS = {"query": "find a tool: ", "document": "the tool: "}
LENGTH = 24
TEXTS = [
    "will it rain tomorrow?",
    "getUserById",
    "WEATHER",
    "",
    "日本",
    *(" ".join(WORDS[n % 7 : n % 7 + n % 11]) for n in range(40)),
    "rain in the mail " * 30,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of random weights, two layers deep, and its word pieces."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    parts = tmp_path_factory.mktemp("parts")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
    (parts / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(set(pieces)),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    bert = BertModel(config)
    for values in bert.parameters():
        if values.ndim == 1:  # a new model has ones and zeros there, and an export keeps equal weights once
            values.data += 0.1 * torch.randn_like(values)
    bert.save_pretrained(parts)
    BertTokenizerFast(str(parts / "vocab.txt")).save_pretrained(parts)
    made = SentenceTransformer(str(parts), prompts=PROMPTS)
    made.max_seq_length = LENGTH
    folder = tmp_path_factory.mktemp("models") / "tiny"
    made.save(str(folder))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# tiny\n")
    return folder


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model in both forms. It is traced once, which takes nearly all of the time."""
    from toolscout_lab.encoders import onnx_export

    folder, build_graph = tmp_path_factory.mktemp("exports"), onnx_export._build_graph
    traced: list[bytes] = []

    def trace_once(source: Any) -> Any:
        import onnx

        if not traced:
            traced.append(build_graph(source).SerializeToString())
        return onnx.load_from_string(traced[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_export, "_build_graph", trace_once)
        onnx_export.export(str(model), folder / "float32")
        onnx_export.export(str(model), folder / "int8", int8=True)
    return {name: folder / name for name in ("float32", "int8")}


@pytest.fixture
def copy(exported: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    """An export that a test may damage."""
    shutil.copytree(exported["int8"], tmp_path / "copy")
    yield tmp_path / "copy"


def agreement(first: Any, second: Any, kind: Any) -> float:
    return float(np.min(np.sum(first.encode(TEXTS, kind) * second.encode(TEXTS, kind), axis=1)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("float32", 0.9999), ("int8", 0.99)])
def test_an_export_answers_as_the_model_does(model: Path, exported: dict[str, Path], name: str, least: float) -> None:
    source, made = load(str(model), Settings()), load(f"onnx:{exported[name]}", Settings())
    assert made.dim == source.dim == 32 and not made.cheap
    for kind in ("query", "tool"):
        assert agreement(source, made, kind) >= least
    assert not np.allclose(made.encode(["rain"], "query"), made.encode(["rain"], "tool"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "int8"])
def test_an_export_keeps_what_encoders_promise(exported: dict[str, Path], name: str) -> None:
    encoder = OnnxEncoder(exported[name])
    check_encoder(encoder)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.allclose(encoder.encode(TEXTS), alone, atol=1e-5)


@pytest.mark.slow
def test_int8_is_smaller_and_is_another_encoder(exported: dict[str, Path]) -> None:
    sizes = {name: (folder / "model.onnx").stat().st_size for name, folder in exported.items()}
    assert sizes["int8"] < sizes["float32"]
    assert OnnxEncoder(exported["int8"]).fingerprint != OnnxEncoder(exported["float32"]).fingerprint


@pytest.mark.slow
def test_the_folder_explains_itself(exported: dict[str, Path]) -> None:
    folder = exported["int8"]
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "model.onnx", "tokenizer.json", "README.md"}
    manifest = OnnxEncoder(folder).manifest
    assert (manifest.source, manifest.licence, manifest.pooling) == ("tiny", "mit", "mean")
    assert (manifest.max_length, manifest.quantisation) == (LENGTH, "int8")
    assert manifest.prompts.query == PROMPTS["query"] and manifest.prompts.tool == PROMPTS["document"]
    card = (folder / "README.md").read_text()
    assert "under its licence: mit" in card and manifest.fingerprint in card and "find a tool: " in card


@pytest.mark.slow
def test_it_runs_without_torch_and_transformers(exported: dict[str, Path]) -> None:
    code = (
        "import sys\nfrom toolscout.encoders.onnx import OnnxEncoder\n"
        f"OnnxEncoder({str(exported['int8'])!r}).encode(['rain'])\n"
        "print({'torch', 'transformers', 'sentence_transformers', 'onnx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_flipped_byte_is_noticed(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name} has the digest \w{{32}}, but manifest.json states \w{{32}}\. "):
        OnnxEncoder(copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format", "other/1", "manifest.json has the format other/1, not toolscout-onnx/1"),
        ("dim", "wide", "an error: Expected `int`, got `str`"),
        ("dim", 31, "the graph maps attention_mask, input_ids to .* vectors of length 31"),
        ("max_length", 0, "an error: Expected `int` >= 3"),
        ("max_length", 8, r"states the fingerprint \w{32}, but it is \w{32}"),
        ("prompts", {"query": "x", "tool": ""}, r"states the fingerprint \w{32}, but it is \w{32}"),
        ("prompts", {"query": ""}, "missing required field `tool`"),
    ],
)
def test_a_changed_manifest_is_refused_with_both_sides_named(copy: Path, key: str, value: Any, said: str) -> None:
    manifest = msgspec.json.decode((copy / "manifest.json").read_bytes())
    (copy / "manifest.json").write_bytes(msgspec.json.encode({**manifest, key: value}))
    with pytest.raises(ConfigError, match=said) as caught:
        OnnxEncoder(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"[1]", b"\xff\xfe", b'{"format": "toolscout-static/1"}'])
def test_a_foreign_folder_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"manifest\.json .*Export it again: .*export-encoder"):
        load(f"onnx:{tmp_path}", Settings())


@pytest.mark.slow
def test_a_missing_file_and_one_that_is_no_graph_are_named(copy: Path) -> None:
    from toolscout.encoders.onnx import file_hash, fingerprint

    made = OnnxEncoder(copy).manifest
    files = {**made.files, "model.onnx": file_hash(b"junk")}
    changed = msgspec.structs.replace(
        made, files=files, fingerprint=fingerprint(files, made.prompts, made.max_length, made.pad)
    )
    (copy / "model.onnx").write_bytes(b"junk")
    (copy / "manifest.json").write_bytes(msgspec.json.encode(changed))
    with pytest.raises(ConfigError, match="the graph or the tokenizer cannot be loaded"):
        OnnxEncoder(copy)
    (copy / "model.onnx").unlink()
    with pytest.raises(ConfigError, match=r"model\.onnx cannot be read"):
        OnnxEncoder(copy)


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers"])
def test_without_a_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[onnx\]'"):
        OnnxEncoder(tmp_path)


@pytest.mark.full
def test_the_command_writes_the_same_again_and_names_no_place(
    model: Path, exported: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run("export-encoder", str(model), "--out", str(out), "--int8")
    assert done.exit_code == 0, done.output
    assert "tiny, int8, 32 dimensions" in done.output and f"--encoder onnx:{out}" in done.output
    assert OnnxEncoder(out).fingerprint == OnnxEncoder(exported["int8"]).fingerprint
    for path in out.iterdir():
        content = path.read_bytes()
        assert b"site-packages" not in content and str(model.parent).encode() not in content, path.name
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_export_never_writes_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt"):
        done = run("export-encoder", "minilm", "--out", str(out))
        assert done.exit_code == 1 and "expected a new or an empty folder" in done.output
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.full
def test_a_model_whose_export_answers_otherwise_is_refused(model: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from toolscout_lab.encoders.onnx_export import export

    odd = SentenceTransformer(str(model))
    odd[1].include_prompt = False  # the prompt is left out of the mean: a graph cannot know where it ends
    odd.save(str(tmp_path / "odd"))
    with pytest.raises(ConfigError, match=r"cannot be exported: .* differ from the model's \(cosine 0\."):
        export(str(tmp_path / "odd"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_compact_reads_english_with_the_transformer(exported: dict[str, Path]) -> None:
    compact, transformer = CompactEncoder(str(exported["int8"])), OnnxEncoder(exported["int8"])
    texts = ["will it rain tomorrow?", "send a message to the user by mail"]
    expected = np.sqrt(0.9) * transformer.encode(texts) @ transformer.encode(texts, "tool").T
    np.testing.assert_allclose(compact.encode(texts) @ compact.encode(texts, "tool").T, expected, atol=1e-5)
    assert compact.languages == load_static().languages
    assert compact.fingerprint not in (transformer.fingerprint, load_static().fingerprint)


def test_compact_reads_other_languages_with_the_bundled_encoder(exported: dict[str, Path]) -> None:
    compact, static = CompactEncoder(str(exported["int8"])), load_static()
    rows = compact.encode(["Wird es morgen regnen?"])
    assert not rows[0, : compact.dim - static.dim].any()
    np.testing.assert_allclose(rows[:, -static.dim :], static.encode(["Wird es morgen regnen?"]), atol=1e-6)
    tools = ["Will it rain in this place?", "Send a message."]
    expected = np.sqrt(0.1) * static.encode(["Wird es morgen regnen?"]) @ static.encode(tools, "tool").T
    np.testing.assert_allclose(rows @ compact.encode(tools, "tool").T, expected, atol=1e-5)


def test_compact_gives_the_transformer_english_words_for_a_foreign_tool(exported: dict[str, Path]) -> None:
    compact, static = CompactEncoder(str(exported["int8"])), load_static()
    split = compact.dim - static.dim
    [foreign, english] = compact.encode(["weather: 查询城市的天气", "weather: query ciudad weather"], "tool")[:, :split]
    assert foreign.any()
    np.testing.assert_allclose(foreign, english, atol=1e-3)


def test_compact_meets_the_contract(exported: dict[str, Path]) -> None:
    check_encoder(CompactEncoder(str(exported["int8"])))


def test_an_installed_compact_encoder_is_the_default(exported: dict[str, Path], tmp_path: Path) -> None:
    package = tmp_path / "packages" / "toolscout_compact"
    shutil.copytree(ROOT / "packages" / "compact" / "src" / "toolscout_compact", package, dirs_exist_ok=True)
    shutil.rmtree(package / "model", ignore_errors=True)
    shutil.copytree(exported["int8"], package / "model")
    script = (
        "import sys, toolscout; from toolscout.settings import Settings; from toolscout.encoders import load; "
        "settings = Settings(); encoder = load(settings.encoder, settings); "
        "print(settings.encoder, encoder.name, encoder.encode(['rain']).shape, 'torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'packages'}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["compact", "compact", "(1,", f"{32 + load_static().dim})", "False"]


def test_compact_without_its_package_says_what_to_install() -> None:
    if importlib.util.find_spec("toolscout_compact"):
        pytest.skip("the package is installed here")
    with pytest.raises(MissingExtra, match=r"toolscout\[compact\]"):
        load("compact", Settings())


def test_weights_are_read_back_from_int8_under_their_names(exported: dict[str, Path], model: Path) -> None:
    import onnx

    from toolscout_lab.encoders.onnx_int8 import read_int8
    from toolscout_lab.encoders.transformer import TransformerEncoder

    weights = read_int8(onnx.load(exported["int8"] / "model.onnx"))
    state = TransformerEncoder(str(model)).model.state_dict()
    named = {name.partition(".")[2]: values.numpy() for name, values in state.items() if "pooler" not in name}
    for name, values in named.items():
        (read,) = [read for key, read in weights.items() if key.endswith(name)]
        assert read.shape == values.shape
        assert np.linalg.norm(read - values) <= 0.05 * np.linalg.norm(values), name
