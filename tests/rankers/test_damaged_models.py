"""Models with digests that are right and content that is not: whoever wrote the content also wrote the digests."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import lessons
from tests_cli import run
from toolscout.errors import StoreError
from toolscout.home.models import champion, model_store
from toolscout.home.models.exchange import pack_zip
from toolscout.home.models.model_store import Manifest, Model, ModelSetting
from toolscout.learn.fit import Lesson, fit
from toolscout.rankers.tool2vec import Tool2Vec
from toolscout.recipes import registry
from toolscout.scout import Scout

LIGHT = ("tool2vec", "neighbours", "mlc-light", "scout-light")
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def fitted(slang: Lesson, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    shelf = tmp_path_factory.mktemp("models")
    changes = {"scout-light": {"shares": (0.5, 0.0, 0.5)}}  # the classifier needs more queries
    return {name: fit(lessons.plan(name, slang, shelf / name, changes=changes.get(name))) for name in LIGHT}


def damage(
    model: Model,
    to: Path,
    *,
    arrays: Callable[[Arrays], object] = lambda arrays: None,
    manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> Path:
    """Copy a model, change the copy, and seal it again."""
    shutil.copytree(model.folder, to)
    content = load_file(to / model_store.ARRAYS)
    arrays(content)
    save_file({name: np.ascontiguousarray(array) for name, array in content.items()}, to / model_store.ARRAYS)
    changed = manifest(model.manifest)
    files = {name: model_store.digest_file(to / name) for name in changed.files}
    sealed = msgspec.structs.replace(changed, files=files).seal()
    (to / model_store.MANIFEST).write_bytes(msgspec.json.encode(sealed))
    return to


def list_array_damages(model: Model) -> Iterator[tuple[str, Callable[[Arrays], object]]]:
    def set_to(name: str, value: Any) -> Callable[[Arrays], object]:
        return lambda arrays: arrays.update({name: value})

    for name, array in model.arrays.items():
        if not name.endswith("lengths"):  # models of version 0.1 have none
            yield f"{name} missing", lambda arrays, name=name: arrays.pop(name)  # type: ignore[misc]
        yield f"{name} one longer", set_to(name, np.concatenate([array, array[-1:]]))
        yield f"{name} with another axis", set_to(name, array[..., None])
        yield f"{name} of bytes", set_to(name, np.zeros(array.shape, np.bool_))
        if array.dtype.kind == "f":
            yield f"{name} without numbers", set_to(name, np.full_like(array, np.nan))
        elif not name.endswith("keys"):
            yield f"{name} outside", set_to(name, array + 1_000_000)
            yield f"{name} negative", set_to(name, array.astype(np.int64) - 5)
            yield f"{name} without a sign", set_to(name, array.astype(np.uint64))


def set_setting(name: str, value: object) -> Callable[[Manifest], Manifest]:
    def change(manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(manifest, settings={**manifest.settings, name: ModelSetting(value, "dev")})

    return change


def set_value(name: str, value: object) -> Callable[[Manifest], Manifest]:
    return lambda manifest: msgspec.structs.replace(manifest, values={**manifest.values, name: value})


@pytest.mark.parametrize("name", LIGHT)
def test_a_model_that_its_method_cannot_use_is_refused_by_one_sentence(
    name: str, fitted: dict[str, Model], tmp_path: Path
) -> None:
    assert registry.check_model(fitted[name].folder).recipe == name
    damages: list[tuple[str, dict[str, Any]]] = [
        (what, {"arrays": change}) for what, change in list_array_damages(fitted[name])
    ]
    damages += [
        (f"{setting} as text", {"manifest": set_setting(setting, "many")}) for setting in fitted[name].manifest.settings
    ]
    damages += [
        (f"{setting}={value}", {"manifest": set_setting(setting, value)})
        for setting in ("kappa", "agreement", "novelty") for value in (1e308, -1)
    ]  # fmt: skip
    if name == "scout-light":
        damages.append(("no share", {"manifest": set_setting("shares", [0, 0, 0])}))
    damages += [(f"no {setting}", {"manifest": set_setting(setting, None)}) for setting in ("kappa", "agreement")]
    damages += [
        (f"{key}={value}", {"manifest": set_value(key, value)})
        for key, value in (
            ("sure", "very"), ("floors", "low"), ("floors", {"budgets": [0.0, 0.1], "need": [0.0]}), ("journal", {}),
            ("journal", "all"), ("journal", {"through": 10**30}), ("journal", {"through": -1}),
        )
    ]  # fmt: skip
    damages += [("other tools", {"manifest": lambda manifest: msgspec.structs.replace(manifest, n_tools=3)})]
    for number, (what, changes) in enumerate(damages):
        folder = damage(fitted[name], tmp_path / str(number), **changes)
        assert model_store.verify(folder), "its digests are right"
        assert re.fullmatch(r".+: the model cannot be used: .+\. Fit it again\.", explain_refusal(folder)), what


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "C64", "BF16", "Q9"])
def test_a_type_of_numbers_that_is_not_known_is_refused_too(
    kind: str, fitted: dict[str, Model], tmp_path: Path
) -> None:
    folder = damage(fitted["tool2vec"], tmp_path / "model")
    head = f'{{"uses":{{"dtype":"{kind}","shape":[8],"data_offsets":[0,8]}}}}'.encode()
    (folder / model_store.ARRAYS).write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
    files = {
        **fitted["tool2vec"].manifest.files,
        model_store.ARRAYS: model_store.digest_file(folder / "model.safetensors"),
    }
    sealed = msgspec.structs.replace(fitted["tool2vec"].manifest, files=files).seal()
    (folder / model_store.MANIFEST).write_bytes(msgspec.json.encode(sealed))
    assert "the model is damaged: " in explain_refusal(folder)


def test_a_search_falls_back_from_a_model_that_fails_in_a_way_nobody_thought_of(
    fitted: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise IndexError("index 7 is out of bounds")

    loaded = Tool2Vec.load_usage
    monkeypatch.setattr(Tool2Vec, "load_usage", lambda *given: loaded(*given)._replace(usage=fail))
    with Scout(tmp_path / "home") as scout:
        scout.add(lessons.write(tmp_path / "data"))
        shelf = champion.shelf(scout.settings.place)
        champion.promote(scout.settings.place, damage(fitted["tool2vec"], shelf / "m").name, "by hand")
        for _ in range(2):
            answer = scout.search("duplicate a document")
            assert answer.ids[0].endswith("files/copy")
            assert "IndexError('index 7 is out of bounds')" in answer.reason


def explain_refusal(folder: Path) -> str:
    try:
        registry.check_model(folder)
    except StoreError as error:
        return str(error)
    return "not refused"


@pytest.mark.parametrize("name", LIGHT)
def test_a_search_falls_back_from_a_damaged_champion_and_says_so(
    name: str, fitted: dict[str, Model], slang: Lesson, tmp_path: Path
) -> None:
    data = lessons.write(tmp_path / "data")
    with Scout(tmp_path / "home") as scout:
        scout.add(data)
        shelf = champion.shelf(scout.settings.place)
        damages = [{"arrays": change} for _, change in list(list_array_damages(fitted[name]))[::5]]
        damages += [{"manifest": set_setting("kappa", "much")}, {"manifest": set_value("journal", 1)}]
        for number, changes in enumerate(damages):
            folder = damage(fitted[name], shelf / f"m{number}", **changes)
            with pytest.raises(StoreError, match="cannot be used"):
                champion.promote(scout.settings.place, folder.name, "by hand", check=registry.check_model)
            assert not champion.history(scout.settings.place) or number
            champion.promote(scout.settings.place, folder.name, "by an older version, which did not look")
            answer = scout.search("duplicate a document")
            assert answer.ids[0].endswith("files/copy")
            assert "searched with scout instead of the promoted model" in answer.reason
            assert "the model cannot be used" in answer.reason
            with pytest.raises(StoreError, match="cannot be used"):
                scout.search("duplicate a document", model=folder)


@pytest.mark.folder_only("a model is copied into the folder of models")
def test_pull_and_promote_refuse_a_damaged_model(fitted: dict[str, Model], tmp_path: Path) -> None:
    bad = damage(fitted["tool2vec"], tmp_path / "bad", arrays=lambda arrays: arrays.pop("means"))
    pack_zip(bad, tmp_path / "bad.zip")
    home = str(tmp_path / "home")
    done = run("--home", home, "models", "pull", str(tmp_path / "bad.zip"))
    assert done.exit_code == 1 and "its array 'means' is missing" in done.stderr
    assert not list((tmp_path / "home" / "models").glob("[!.]*"))
    shutil.copytree(bad, tmp_path / "home" / "models" / "bad")
    done = run("--home", home, "promote", "bad")
    assert done.exit_code == 1 and "its array 'means' is missing" in done.stderr
    assert champion.history(Path(home)) == []


def test_a_model_inside_a_model_is_checked_too(fitted: dict[str, Model], tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    shutil.copytree(fitted["neighbours"].folder, outer)
    damage(fitted["tool2vec"], outer / "base", arrays=lambda arrays: arrays.pop("means"))
    model = fitted["neighbours"]
    names = sorted(path.relative_to(outer).as_posix() for path in outer.rglob("*") if path.is_file())
    files = {name: model_store.digest_file(outer / name) for name in names if name != model_store.MANIFEST}
    sealed = msgspec.structs.replace(model.manifest, files=files).seal()
    (outer / model_store.MANIFEST).write_bytes(msgspec.json.encode(sealed))
    with pytest.raises(StoreError, match=r"base: the model cannot be used: its array 'means' is missing"):
        registry.check_model(outer)
