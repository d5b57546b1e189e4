from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests_cli import run
from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.home.models import champion, model_store
from toolscout.home.models.model_store import Data, Draft, Model, ModelSetting
from toolscout.testing import HashEncoder, toy_tools
from toolscout.trust import private_files
from toolscout.types import Tool

ARRAYS = {
    "table": np.arange(20, dtype=np.float32).reshape(10, 2),
    "uses": np.ones(10, dtype=np.float32),
    "means": np.ones((10, HashEncoder().dim), dtype=np.float32),
}
SETTINGS = {"kappa": 3.0, "sharpness": 1.0, "agreement": 0.0, "novelty": 0.6, "beta": 5.0}


def saved(folder: Path, **fields: object) -> Model:
    defaults: dict[str, object] = {
        "recipe": "tool2vec",
        "job": "j",
        "arrays": ARRAYS,
        "tools": toy_tools(),
        "settings": {name: ModelSetting(value, "dev") for name, value in SETTINGS.items()},
        "seed": 7,
        "data": Data(name="small", fingerprint="f", n_train=9, n_dev=1),
        "metrics": {"recall@5": 0.5},
        "fit_seconds": 1.5,
        "encoder": HashEncoder(),
        "card": "Fitted on small.",
    }
    return model_store.save(folder, Draft(**{**defaults, **fields}))  # type: ignore[arg-type]


def test_what_was_saved_is_loaded_with_every_setting_and_its_origin(tmp_path: Path) -> None:
    saved(tmp_path / "m")
    model = model_store.load(tmp_path / "m", recipe="tool2vec")
    model.check_encoder(HashEncoder())
    model.check_catalogue(toy_tools())
    np.testing.assert_array_equal(model.arrays["table"], ARRAYS["table"])
    assert model.manifest.settings["kappa"] == ModelSetting(3.0, "dev")
    assert (model.manifest.seed, model.manifest.n_tools, model.manifest.data.n_train) == (7, 10, 9)
    assert "Fitted on small." in (tmp_path / "m" / "README.md").read_text()


def test_a_flipped_byte_in_any_file_is_refused_naming_both_digests(tmp_path: Path) -> None:
    def extra(folder: Path) -> None:
        (folder / "encoder").mkdir()
        (folder / "encoder" / "weights.safetensors").write_bytes(bytes(64))

    saved(tmp_path / "m", files=extra)
    files = sorted(path for path in (tmp_path / "m").rglob("*") if path.is_file())
    assert {path.name for path in files} == {
        "manifest.json", "model.safetensors", "tools.json", "README.md", "weights.safetensors",
    }  # fmt: skip
    for path in files:
        whole = path.read_bytes()
        for place in range(0, len(whole), 1 if path.name == "manifest.json" else max(1, len(whole) // 40)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(StoreError, match=r"digest is \S+, not \S+\. Fit|no manifest of format|has format"):
                model_store.load(tmp_path / "m")
        path.write_bytes(whole)
    assert model_store.verify(tmp_path / "m").recipe == "tool2vec"


def test_another_encoder_recipe_or_catalogue_is_refused_naming_both_sides(tmp_path: Path) -> None:
    saved(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"was fitted on hash \(.*not on the encoder hash \("):
        model_store.load(tmp_path / "m").check_encoder(HashEncoder(32))
    with pytest.raises(ConfigError, match="expected a model of dpr, found one of tool2vec"):
        model_store.load(tmp_path / "m", recipe="dpr")
    strangers = [Tool(id="other/get_forecast", name="else")]
    with pytest.raises(ConfigError, match=r"fitted on small \(10 tools\), which shares no tool with this catalogue"):
        model_store.load(tmp_path / "m").check_catalogue(strangers)


@pytest.mark.parametrize("links", [True, False])
def test_a_model_within_another_is_linked_where_that_goes_and_neither_changes_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def extra(folder: Path) -> None:
        (folder / "encoder").mkdir()
        (folder / "encoder" / "weights.safetensors").write_bytes(bytes(64))

    def refused(*about: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not links:
        monkeypatch.setattr("toolscout.home.models.model_store.os.link", refused)
    base, outer = tmp_path / "base", tmp_path / "outer"
    saved(base, files=extra)
    for name in ("outer", "other"):
        saved(tmp_path / name, files=lambda folder: model_store.nest(base, folder / "base"))
    inner = outer / "base"
    assert model_store.load(inner).manifest == model_store.load(base).manifest
    for name in ("model.safetensors", "encoder/weights.safetensors"):
        assert (inner / name).samefile(base / name) == links
    before = model_store.read_manifest(inner)
    model_store.note(base, sure=1.5)
    assert model_store.read_manifest(base).values == {"sure": 1.5} and model_store.verify(inner) == before
    model_store.note(outer, sure=2.5)
    assert model_store.verify(outer).values == {"sure": 2.5} and model_store.verify(tmp_path / "other").values == {}
    saved(base, arrays={"table": np.zeros((10, 2), dtype=np.float32)})
    shutil.rmtree(tmp_path / "outer")
    np.testing.assert_array_equal(model_store.load(tmp_path / "other" / "base").arrays["table"], ARRAYS["table"])


def test_what_was_found_out_later_is_noted_in_the_manifest(tmp_path: Path) -> None:
    saved(tmp_path / "m", values={"floors": 1})
    model_store.note(tmp_path / "m", sure=-1.25, floors=2)
    found = model_store.verify(tmp_path / "m")
    assert found.values == {"floors": 2, "sure": -1.25}
    assert model_store.load(tmp_path / "m", recipe="tool2vec").manifest == found
    with pytest.raises(NotFound):
        model_store.note(tmp_path / "none", sure=1.0)


def test_a_pipe_or_a_giant_in_the_place_of_a_manifest_is_refused_at_once(tmp_path: Path) -> None:
    """A search waited for ever for somebody to write into the pipe, or read gigabytes."""
    (folder := tmp_path / "m").mkdir()
    os.mkfifo(folder / "manifest.json")
    with pytest.raises(NotFound, match=r"found no manifest\.json"):
        model_store.read_manifest(folder)
    (folder / "manifest.json").unlink()
    with open(folder / "manifest.json", "wb") as stream:
        stream.truncate(private_files.MAX_READ_BYTES + 1)
    with pytest.raises(NotFound, match=r"found no manifest\.json"):
        model_store.read_manifest(folder)
    (tmp_path / "home" / "models").mkdir(parents=True)
    os.mkfifo(tmp_path / "home" / champion.CHAMPION_FILE)
    with pytest.raises(StoreError, match="expected a plain file"):
        champion.history(tmp_path / "home")


def test_a_foreign_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"found no manifest\.json"):
        model_store.load(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "else/2"}))
    with pytest.raises(StoreError, match="this is no manifest of format toolscout-model/1"):
        model_store.load(tmp_path)


def test_a_model_of_a_later_format_is_refused(tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    later = msgspec.structs.replace(model.manifest, format="toolscout-model/9").seal()
    (tmp_path / "m" / "manifest.json").write_bytes(msgspec.json.encode(later))
    with pytest.raises(StoreError, match="has format 'toolscout-model/9'"):
        model_store.load(tmp_path / "m")


def test_a_file_too_many_or_too_few_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "m")
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(StoreError, match=r"pytorch_model\.bin does not belong to it"):
        model_store.load(tmp_path / "m")
    (tmp_path / "m" / "pytorch_model.bin").unlink()
    (tmp_path / "m" / "tools.json").unlink()
    with pytest.raises(StoreError, match=r"tools\.json is missing"):
        model_store.load(tmp_path / "m")


def test_a_model_that_could_not_be_written_leaves_the_former_one(tmp_path: Path) -> None:
    saved(tmp_path / "m")

    def fails(folder: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        saved(tmp_path / "m", seed=8, files=fails)
    assert model_store.load(tmp_path / "m").manifest.seed == 7
    assert saved(tmp_path / "m", seed=8).manifest.seed == 8


def test_tools_are_known_by_name_and_id_within_the_source(tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    renamed = Tool(id="weather/get_forecast", name="forecast")
    moved = Tool(id="elsewhere/search", name="search")
    exported = Tool(id="mine/mail/search", name="search")
    whole = model_store.places([("mail/search", "search")], [Tool(id="mail/search", name="search"), moved, exported])
    assert whole.tolist() == [0, -1, 0]
    assert model.places([renamed, moved]).tolist() == [-1, model.tools.index(("search", "search"))]


def test_the_mark_of_a_catalogue_follows_what_tools_say_and_not_their_source() -> None:
    tools = toy_tools()
    moved = [msgspec.structs.replace(tool, id=f"x/{tool.id.partition('/')[2]}") for tool in reversed(tools)]
    assert model_store.fingerprint_catalogue(tools) == model_store.fingerprint_catalogue(moved)
    changed = [msgspec.structs.replace(tools[0], description="else"), *tools[1:]]
    assert model_store.fingerprint_catalogue(tools) != model_store.fingerprint_catalogue(changed)


def test_the_shelf_lists_models_and_names_what_is_wrong(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    saved(tmp_path / "b")
    (tmp_path / "b" / "manifest.json").write_text("{}")
    (tmp_path / "c").mkdir()
    [(first, manifest), (second, problem)] = model_store.list_models(tmp_path)
    assert (first.name, second.name) == ("a", "b")
    assert isinstance(manifest, model_store.Manifest) and "this is no manifest" in str(problem)


def test_the_folder_of_a_model_is_listed_as_that_model(tmp_path: Path) -> None:
    for name in ("one", "other"):
        saved(tmp_path / name)
    listed = json.loads(run("models", str(tmp_path / "one"), "--json").stdout)
    assert [Path(row["path"]).name for row in listed] == ["one"]
    assert len(json.loads(run("models", str(tmp_path), "--json").stdout)) == 2
