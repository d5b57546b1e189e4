"""Models with valid digests and wrong content: refused in a sentence, or they serve finite scores. Nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import lessons
from toolscout.errors import ToolscoutError
from toolscout.home.models import model_store
from toolscout.learn.fit import fit
from toolscout.recipes import registry
from toolscout.scout import Scout

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
METHODS = ("tool2vec", "neighbours")
CHANGES: dict[str, Callable[[Any], Any]] = {
    "cut": lambda array: array[:-1],
    "empty": lambda array: array[:0],
    "not a number": lambda array: np.full(array.shape, np.nan, np.float32),
    "infinite": lambda array: np.full(array.shape, -np.inf, np.float32),
    "huge": lambda array: np.full(array.shape, 3e38, np.float32),
    "double": lambda array: np.full(array.shape, 1e300),
    "zero": np.zeros_like,
    "bytes": lambda array: array.astype(np.uint8),
    "short": lambda array: array.astype(np.int8),
    "backwards": lambda array: array[::-1].copy(),
    "deeper": lambda array: array[None],
    "truth": lambda array: array.astype(bool),
}
SETTINGS = ("text", "", -1, 1e308, 2**70, None, [1], {"a": 1}, "NaN", True)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Scout]]:
    folder = tmp_path_factory.mktemp("sealed")
    lesson = lessons.load(lessons.write(folder))
    for method in METHODS:
        fit(lessons.plan(method, lesson, folder / method))
    with Scout(folder / "home") as scout:
        scout.add(lesson.dataset.folder, name="office")
        yield folder, scout


def seal(folder: Path) -> None:
    """Write the digests of a model's files into its manifest, as whoever made the model would."""
    manifest = msgspec.json.decode((folder / model_store.MANIFEST).read_bytes(), type=model_store.Manifest)
    files = {name: model_store.digest_file(folder / name) for name in model_store._list_files(folder)}
    model_store._write_manifest(folder / model_store.MANIFEST, msgspec.structs.replace(manifest, files=files))


def check(scout: Scout, folder: Path) -> str:
    """Search with a model as far as it is accepted. Returns where it was refused."""
    step = "promoting"
    try:
        registry.check_model(folder)
        step = "searching"
        for query in ("umbrella", "zzz"):
            assert all(np.isfinite(hit.score) for hit in scout.search(query, model=folder).hits)
    except ToolscoutError:
        return step
    return ""


@pytest.mark.parametrize("method", METHODS)
def test_arrays_of_any_kind_end_in_a_sentence_or_in_finite_scores(method: str, shelf: Any, tmp_path: Path) -> None:
    folder, scout = shelf
    n_refused = 0
    arrays = load_file(folder / method / model_store.ARRAYS)
    for name, array in arrays.items():
        for label, change in CHANGES.items():
            wrong = tmp_path / f"{name} {label}"
            shutil.copytree(folder / method, wrong)
            with np.errstate(all="ignore"):
                changed = {**arrays, name: np.ascontiguousarray(change(array))}
            save_file(changed, wrong / model_store.ARRAYS)
            seal(wrong)
            n_refused += check(scout, wrong) == "promoting"
            shutil.rmtree(wrong)
    assert n_refused > 4 * len(arrays)


@pytest.mark.parametrize("method", METHODS)
def test_settings_of_any_kind_end_in_a_sentence(method: str, shelf: Any, tmp_path: Path) -> None:
    folder, scout = shelf
    shutil.copytree(folder / method, tmp_path / "m")
    file = tmp_path / "m" / model_store.MANIFEST
    sound = file.read_bytes()
    for name in msgspec.json.decode(sound)["settings"]:
        for value in SETTINGS:
            manifest = msgspec.json.decode(sound)
            manifest["settings"][name]["value"] = value
            file.write_bytes(msgspec.json.encode(manifest))
            try:
                seal(tmp_path / "m")
            except msgspec.ValidationError:  # it can't even be sealed
                continue
            check(scout, tmp_path / "m")


TOOL_LISTS = (
    *("[]", "null", "{}", '[["a", "b"]]', "[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]", "[" * 100_000, '[["play"]]'),
    *('["\\ud800"]', "[", '"text"', "[null]", "[[]]"),
)
MANIFEST_VALUES: tuple[Any, ...] = ("x", None, [], {}, -1, "../../x", 10**30, [[]], {"a": {"b": 1}}, True)


@pytest.mark.parametrize("method", METHODS)
def test_a_manifest_of_any_kind_ends_in_a_sentence(method: str, shelf: Any, tmp_path: Path) -> None:
    """Every field is changed in ten ways, and left out. What is refused, is refused before it can serve."""
    folder, scout = shelf
    shutil.copytree(folder / method, tmp_path / "m")
    file = tmp_path / "m" / model_store.MANIFEST
    sound = msgspec.json.decode(file.read_bytes())
    changed = [{**sound, name: value} for name in sound for value in MANIFEST_VALUES]
    changed += [{key: value for key, value in sound.items() if key != name} for name in sound]
    encoder = {"name": "http://127.0.0.1:1", "dim": 256, "fingerprint": "0" * 32}
    changed += [{**sound, "encoder": one} for one in (encoder, {**encoder, "name": "/etc", "dim": 10**12})]
    n_refused = 0
    for manifest in changed:
        file.write_bytes(msgspec.json.encode(manifest))
        n_refused += check(scout, tmp_path / "m") == "promoting"
    assert n_refused > len(changed) / 2


@pytest.mark.parametrize("tools", TOOL_LISTS, ids=lambda text: text[:20])
@pytest.mark.parametrize("method", METHODS)
def test_a_list_of_tools_of_any_kind_ends_in_a_sentence(method: str, tools: str, shelf: Any, tmp_path: Path) -> None:
    folder, scout = shelf
    shutil.copytree(folder / method, tmp_path / "m")
    (tmp_path / "m" / model_store.TOOLS).write_text(tools)
    seal(tmp_path / "m")
    assert check(scout, tmp_path / "m") == "promoting"


@pytest.mark.parametrize(
    "header", [b"\xff" * 200, (2**62).to_bytes(8, "little") + b"{}", b"", b"\0" * 8, b'{"a":' * 9_000]
)
def test_arrays_that_are_none_are_refused(header: bytes, shelf: Any, tmp_path: Path) -> None:
    folder, scout = shelf
    shutil.copytree(folder / "neighbours", tmp_path / "m")
    (tmp_path / "m" / model_store.ARRAYS).write_bytes(header)
    seal(tmp_path / "m")
    assert check(scout, tmp_path / "m") == "promoting"


def test_starts_of_unsigned_numbers_are_refused(shelf: Any, tmp_path: Path) -> None:
    folder, scout = shelf
    shutil.copytree(folder / "neighbours", tmp_path / "m")
    arrays = load_file(tmp_path / "m" / model_store.ARRAYS)
    arrays["gold.indptr"] = arrays["gold.indptr"].astype(np.uint8)  # numpy can't index with what it computes of these
    save_file(arrays, tmp_path / "m" / model_store.ARRAYS)
    seal(tmp_path / "m")
    assert check(scout, tmp_path / "m") == "promoting"
