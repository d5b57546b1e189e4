"""Models that travel: pushed to a hub, pulled from it, packed as zip files; and hostile ones, which are refused."""

from __future__ import annotations

import json
import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes_in_postgres import find_place
from hub_server import TOKEN, Hub, serve_hub
from test_models import saved
from tests_cli import run
from toolscout.encoders.onnx import file_hash
from toolscout.errors import ConfigError, StoreError
from toolscout.home.models import champion, exchange, model_store
from toolscout.home.models.exchange import HubAddress

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the hub's library


@pytest.fixture
def home(tmp_path: Path) -> Path:
    saved(shelf(tmp_path / "home") / "first", files=add_encoder)
    return tmp_path / "home"


def shelf(home: Path) -> Path:
    """Where the models of a home lie on this machine."""
    return champion.shelf(find_place(home))


def add_encoder(folder: Path) -> None:
    (folder / "encoder").mkdir()
    (folder / "encoder" / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer"}]')
    (folder / "encoder" / "vocab.txt").write_text("a\nb\n")


def zip_folder(folder: Path, file: Path, **extra: bytes) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, path.relative_to(folder).as_posix())
        for name, content in extra.items():
            archive.writestr(name, content)
    return file


def command(home: Path, *words: str) -> str:
    """Run `toolscout models` and return what it said, without lines of progress."""
    done = run("--home", str(home), "models", *words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    lines = [line for line in done.stderr.splitlines() if not line.endswith(" …")]
    return "\n".join([f"exit {done.exit_code}", done.stdout, *lines])


# --- zip files


def test_a_model_travels_in_a_zip_file_and_is_the_same(home: Path, tmp_path: Path) -> None:
    packed = command(home, "push", "first", str(tmp_path / "first.zip"))
    assert "exit 0" in packed and "the model tool2vec" in packed and "It holds ids and names of 10 tools." in packed
    pulled = command(tmp_path / "other", "pull", str(tmp_path / "first.zip"))
    assert "exit 0" in pulled and "toolscout promote first" in pulled
    there, here = shelf(tmp_path / "other") / "first", shelf(home) / "first"
    assert model_store.load(there).manifest == model_store.load(here).manifest
    assert all(not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) for path in there.rglob("*"))
    assert "exit 0" in command(tmp_path / "other", "pull", str(tmp_path / "first.zip"))  # it is there already
    saved(here, seed=8)
    command(home, "push", "first", str(tmp_path / "first.zip"))
    assert "holds another model" in command(tmp_path / "other", "pull", str(tmp_path / "first.zip"))
    assert "exit 0" in command(tmp_path / "other", "pull", str(tmp_path / "first.zip"), "--name", "second")


def test_equal_models_give_equal_zip_files(home: Path, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        exchange.pack_zip(shelf(home) / "first", tmp_path / name)
        shutil.copytree(shelf(home) / "first", tmp_path / "copy", dirs_exist_ok=True)
    exchange.pack_zip(tmp_path / "copy", tmp_path / "c.zip")
    assert len({(tmp_path / name).read_bytes() for name in ("a.zip", "b.zip", "c.zip")}) == 1


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "evil.pkl", "run.py", "../up.json", "/etc/x.json", "a/../../b.json", "c:/x.json", "a\\b.json",
     "weights.npy", "lib.so", "Manifest.json", "no-suffix"],
)  # fmt: skip
def test_a_zip_file_with_what_models_do_not_need_is_refused_before_it_is_unpacked(
    home: Path, tmp_path: Path, name: str
) -> None:
    file = zip_folder(shelf(home) / "first", tmp_path / "evil.zip", **{name: b"x"})
    told = command(tmp_path / "other", "pull", str(file))
    assert "exit 1" in told and "The model holds" in told and len(told) < 400
    assert [path for path in (tmp_path / "other").rglob("*") if path.is_file()] == []
    assert not (tmp_path / "up.json").exists()


def test_a_link_in_a_zip_file_is_refused(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "link.zip"
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo("manifest.json")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(StoreError, match="is a link, a device or encrypted"):
        exchange.unpack_zip(file, tmp_path / "out")


def test_a_changed_file_in_a_zip_file_is_refused_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    (shelf(home) / "first" / "tools.json").write_text("[]")
    file = zip_folder(shelf(home) / "first", tmp_path / "changed.zip")
    told = command(tmp_path / "other", "pull", str(file))
    assert "exit 1" in told and "the file was changed" in told
    assert [path.name for path in shelf(tmp_path / "other").iterdir()] == []


def test_files_that_are_no_models_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    assert "this zip file cannot be read" in command(tmp_path / "home", "pull", str(tmp_path / "text.zip"))
    assert "found no manifest.json" in command(tmp_path / "home", "pull", str(tmp_path / "empty.zip"))
    assert "Check its path" in command(tmp_path / "home", "pull", str(tmp_path / "none.zip"))
    assert "expected hf://owner/name or a file" in command(tmp_path / "home", "pull", "owner/name")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", '[{"type": "os.system"}]'),
        ("config.json", '{"auto_map": {"AutoModel": "modeling.Evil"}}'),
        ("config.json", '{"auto_map": {"AutoModel": "modeling.Evil"}, "scale": NaN}'),
    ],
)
def test_settings_that_would_import_a_program_are_refused(tmp_path: Path, name: str, content: str) -> None:
    def add(folder: Path) -> None:
        add_encoder(folder)
        (folder / "encoder" / name).write_text(content)

    saved(tmp_path / "m", files=add)
    with pytest.raises(StoreError, match="asks to run a program"):
        exchange.check_package(tmp_path / "m")


def test_settings_that_cannot_be_checked_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "m" / "encoder" / "config.json"

    def add(folder: Path) -> None:
        add_encoder(folder)
        (folder / "encoder" / settings.name).write_text("[" * 100_000)

    saved(tmp_path / "m", files=add)
    with pytest.raises(StoreError, match=r"config.json cannot be read"):
        exchange.check_package(tmp_path / "m")
    monkeypatch.setattr(exchange, "MAX_SETTINGS_BYTES", 10_000)
    with pytest.raises(StoreError, match=r"config.json is too large"):
        exchange.check_package(tmp_path / "m")


def test_an_encoder_travels_too(tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"graph")
    manifest = {"format": "toolscout-onnx/1", "source": "small", "files": {"model.onnx": file_hash(b"graph")}}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": "f"}))
    assert "the encoder small" in command(tmp_path / "home", "push", str(folder), str(tmp_path / "e.zip"))
    assert "--encoder onnx:" in command(tmp_path / "home", "pull", str(tmp_path / "e.zip"))
    (folder / "model.onnx").write_bytes(b"other")
    assert "the file was changed" in command(tmp_path / "home", "push", str(folder), str(tmp_path / "f.zip"))
    assert not (tmp_path / "f.zip").exists()


@pytest.mark.parametrize("text", ["hf://owner", "hf://a/b/c", "hf:///b", "hf://a/b@", "hf://a b/c", "https://a/b"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected hf://owner/name"):
        HubAddress.parse(text)
    assert HubAddress.parse("hf://me/tools.v1@main") == ("me/tools.v1", "main")


# --- the hub


def name_hub(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Do what the variable HF_ENDPOINT does when the hub's library is imported."""
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    # Xet is a protocol of its own, in a library without a public description: files go through LFS here.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serve_hub() as served:
        name_hub(monkeypatch, served.address)
        yield served


@pytest.mark.net
def test_a_model_is_pushed_and_pulled_with_its_card(hub: Hub, home: Path, tmp_path: Path) -> None:
    pushed = command(home, "push", "first", "hf://me/weather-tools")
    assert f"pushed: {hub.address}/me/weather-tools/commit/" in pushed, pushed
    files = hub.repositories["me/weather-tools"]
    assert set(files) == {"README.md", "encoder/modules.json", "encoder/vocab.txt", "manifest.json",
                          "model.safetensors", "tools.json"}  # fmt: skip
    assert files["README.md"].startswith(b"---\nlibrary_name: toolscout\ntags:\n- tool-retrieval\n- tool2vec\n---\n")
    assert hub.private["me/weather-tools"] and len(hub.objects) == 1
    pulled = command(tmp_path / "other", "pull", "hf://me/weather-tools@main")
    assert "exit 0" in pulled and f"hf://me/weather-tools at {hub.sha()}" in pulled, pulled
    there = shelf(tmp_path / "other") / "weather-tools"
    assert model_store.load(there).manifest == model_store.load(shelf(home) / "first").manifest
    assert not (there / ".cache").exists()


@pytest.mark.net
def test_a_hub_without_xet_storage_is_told_from_one_that_cannot_be_reached(
    hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hf_xet")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    told = command(home, "push", "first", "hf://me/tools")
    assert "exit 1" in told and "no Xet storage" in told and "Set HF_HUB_DISABLE_XET=1" in told, told


@pytest.mark.net
def test_another_push_replaces_the_files_and_leaves_no_old_ones(hub: Hub, home: Path) -> None:
    command(home, "push", "first", "hf://me/tools", "--public")
    hub.repositories["me/tools"]["old.txt"] = b"old"
    assert "exit 0" in command(home, "push", "first", "hf://me/tools")
    assert "old.txt" not in hub.repositories["me/tools"] and hub.private["me/tools"] is False


@pytest.mark.net
def test_a_repository_with_a_pickle_is_refused_before_anything_is_fetched(hub: Hub, home: Path, tmp_path: Path) -> None:
    command(home, "push", "first", "hf://me/tools")
    hub.repositories["me/tools"]["pytorch_model.bin"] = b"\x80\x04."
    told = command(tmp_path / "other", "pull", "hf://me/tools")
    assert "exit 1" in told and "pytorch_model.bin" in told and hub.downloaded == []
    hub.repositories["me/tools"].pop("pytorch_model.bin")
    hub.repositories["me/tools"]["tools.json"] = b"[]"
    assert "the file was changed" in command(tmp_path / "other", "pull", "hf://me/tools")
    assert list(shelf(tmp_path / "other").iterdir()) == []


@pytest.mark.net
def test_what_the_hub_refuses_is_said_in_a_sentence(
    hub: Hub, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "shows no such model" in command(home, "pull", "hf://me/nothing")
    command(home, "push", "first", "hf://me/tools")
    assert "shows no such model or revision" in command(home, "pull", "hf://me/tools@nowhere")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the hub refuses access" in command(home, "push", "first", "hf://me/tools")
    name_hub(monkeypatch, "http://127.0.0.1:9")
    told = command(home, "pull", "hf://me/tools")
    assert "exit 1" in told and "cannot be reached" in told and "Check the network and HF_ENDPOINT" in told, told


def test_without_the_library_the_extra_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert "pip install 'toolscout[hub]'" in command(home, "push", "first", "hf://me/tools")
