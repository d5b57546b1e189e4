"""Snapshots in files: atomic, private, checked, shared, and never those of another catalogue."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from toolscout.errors import StoreError
from toolscout.home.catalogue import array_file, snapshot, snapshot_files
from toolscout.home.catalogue.array_file import check_file, open_arrays, write_arrays
from toolscout.home.catalogue.snapshot_files import SNAPSHOTS_FOLDER, check_snapshot_files
from toolscout.home.catalogue.store import Store
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.strings import Strings
from toolscout.scout import Scout
from toolscout.types import Tool

ARRAYS = {
    "codes": np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
    "rows": np.linspace(0, 1, 40, dtype=np.float32).reshape(10, 4),
    "none": np.zeros((0, 3), dtype=np.int32),
    "hollow": np.zeros((2, 0, 5), dtype=np.int32),
    "sums": np.array([1.5, -2.5]),
}


def make_tools(count: int = 30) -> list[Tool]:
    names = [f"tool_{number}" for number in range(count)]
    return [Tool(id=f"s/{name}", name=name, description=f"does thing {name[5:]}") for name in names]


def list_files(home: Path) -> list[Path]:
    return sorted((home / SNAPSHOTS_FOLDER).glob("*.arrays"))


# --- one file ---------------------------------------------------------------------------------------------------------


def test_arrays_and_values_come_back_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "part"
    write_arrays(path, ARRAYS, {"format": "x/1"})
    arrays, meta, rows = open_arrays(path)
    assert meta == {"format": "x/1"} and list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array) and arrays[name].dtype == array.dtype
        assert not arrays[name].flags.writeable
    assert np.array_equal(rows["rows"](np.array([7, 2, 2])), ARRAYS["rows"][[7, 2, 2]])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert check_file(path) is None and list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    with pytest.raises(StoreError, match=r"/part cannot be written: Is a directory$"):
        write_arrays(tmp_path / "part", ARRAYS, {})
    assert list(tmp_path.iterdir()) == [tmp_path / "part"]


def test_any_reader_of_safetensors_reads_the_arrays(tmp_path: Path) -> None:
    write_arrays(tmp_path / "part", {**ARRAYS, "odd": np.arange(3, dtype=np.uint8)}, {"format": "x/1"})
    loaded = load_file(tmp_path / "part")
    assert {name: array.tolist() for name, array in loaded.items()} == {
        **{name: array.tolist() for name, array in ARRAYS.items()},
        "odd": [0, 1, 2],
    }
    arrays = open_arrays(tmp_path / "part")[0]
    assert all(array.flags.aligned for array in arrays.values())


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice on files")
def test_a_cold_file_is_not_read_further_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *advice: advised.append((os.fstat(file).st_ino, *advice)))
    write_arrays(tmp_path / "part", ARRAYS, {})
    open_arrays(tmp_path / "part")
    of_the_whole_file = ((tmp_path / "part").stat().st_ino, 0, 0, os.POSIX_FADV_RANDOM)
    assert advised == [of_the_whole_file] * 2  # the samples that are checked, and the rows of one array


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="the system takes no advice on mapped files")
def test_a_walk_over_a_mapped_graph_does_not_read_page_by_page(tmp_path: Path) -> None:
    advice: list[tuple[str, int, int]] = []

    class Mapped(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            advice.append(("all" if option == mmap.MADV_WILLNEED else "few", start, length))
            super().madvise(option, start, length)

    path = tmp_path / "part"
    path.write_bytes(bytes(range(256)) * 200)
    with path.open("rb") as file:
        content = np.frombuffer(Mapped(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    part = content[5_000:45_000].reshape(100, 400)
    advise = pytest.importorskip("toolscout_scale.ann")
    advise_all, advise_few = advise.advise_all, advise.advise_few
    assert advise_all(part) and advise_few(part[50:]) and not advise_all(part.copy())
    page = mmap.PAGESIZE
    starts = [5_000 - 5_000 % page, 25_000 - 25_000 % page]
    assert advice == [("all", starts[0], 45_000 - starts[0]), ("few", starts[1], 45_000 - starts[1])]
    assert part[0, :5].tolist() == [(5_000 + number) % 256 for number in range(5)]


@pytest.mark.parametrize("place", range(0, 700, 13))
def test_no_changed_byte_goes_unnoticed_in_a_small_file(tmp_path: Path, place: int) -> None:
    path = tmp_path / "part"
    write_arrays(path, ARRAYS, {})
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place] ^= 0x40
    path.write_bytes(content)
    assert check_file(path)
    with pytest.raises(StoreError, match="cannot be read"):
        open_arrays(path)


@pytest.mark.parametrize("length", [0, 10, 60, 300, -1])
def test_half_a_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "part"
    write_arrays(path, ARRAYS, {})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(StoreError, match="cannot be read"):
        open_arrays(path)


def test_of_a_large_file_the_ends_are_checked_at_once_and_the_rest_on_request(tmp_path: Path) -> None:
    path = tmp_path / "part"
    write_arrays(path, {"a": np.zeros(array_file.BLOCK_BYTES * 130, dtype=np.uint8)}, {})
    size = path.stat().st_size
    for place, is_noticed in ((size - 1, True), (array_file.BLOCK_BYTES * 3 // 2, False)):
        write_arrays(path, {"a": np.zeros(array_file.BLOCK_BYTES * 130, dtype=np.uint8)}, {})
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert check_file(path) == "its content is damaged"
        if is_noticed:
            with pytest.raises(StoreError):
                open_arrays(path)
        else:
            open_arrays(path)


def test_a_type_that_needs_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        write_arrays(tmp_path / "part", {"a": np.array([{}], dtype=object)}, {})
    assert list(tmp_path.iterdir()) == []


# --- the snapshot of a home -------------------------------------------------------------------------------------------


def test_a_second_process_builds_nothing_and_reads_no_tool_but_the_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MIN_MAPPED_TOOLS", 10)
    with Scout(tmp_path) as scout:
        scout.add([{"name": tool.name, "description": tool.description} for tool in make_tools()], name="s")
        first = scout.search("does thing 7")
    read: list[int] = []
    load = Store.tools

    def count(self: Store, ids: list[str]) -> list[Tool]:
        read.append(len(ids))
        return load(self, ids)

    monkeypatch.setattr(Store, "tools", count)
    monkeypatch.setattr(BM25, "build_batches", lambda *_: pytest.fail("the index was built again"))
    with Scout(tmp_path) as scout:
        again = scout.search("does thing 7")
        catalogue, _ = scout.pipeline()
        assert isinstance(catalogue.ids, Strings)
        assert (again.ids, scout.search("tool_3").ids[0]) == (first.ids, "s/tool_3")
    assert sum(read) <= 2 * len(first.ids)
    assert {stat.S_IMODE(path.stat().st_mode) for path in list_files(tmp_path)} == {0o600}
    assert stat.S_IMODE((tmp_path / SNAPSHOTS_FOLDER).stat().st_mode) == 0o700


def test_a_damaged_file_is_named_and_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Scout(tmp_path) as scout:
        scout.add([{"name": tool.name, "description": tool.description} for tool in make_tools()], name="s")
        first = scout.search("does thing 7")
    files = list_files(tmp_path)
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[-70] ^= 1
        path.write_bytes(content)
    assert len(check_snapshot_files(tmp_path / SNAPSHOTS_FOLDER)) == len(files)
    with Scout(tmp_path) as scout:
        assert scout.search("does thing 7").hits == first.hits
    assert "is built again" in caplog.text and list_files(tmp_path) == files
    assert len(check_snapshot_files(tmp_path / SNAPSHOTS_FOLDER)) <= 1  # the words of tools, which only a change reads
    with Scout(tmp_path) as scout:
        scout.add([{"name": "brew", "description": "makes coffee"}], name="other")
        assert scout.search("does thing 7").ids[0] == first.ids[0]
    assert check_snapshot_files(tmp_path / SNAPSHOTS_FOLDER) == [] and len(list_files(tmp_path)) == len(files)


def test_a_file_that_another_process_replaced_during_a_check_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrays(tmp_path / "one.arrays", ARRAYS, {})
    (tmp_path / "link.arrays").symlink_to("nowhere")

    def replace_first(path: Path) -> str | None:
        if path.name == "one.arrays":
            path.unlink()
        return check_file(path)

    monkeypatch.setattr(snapshot_files, "check_file", replace_first)
    [line] = check_snapshot_files(tmp_path)
    assert line.startswith("link.arrays: ")


def test_a_change_leaves_the_files_of_the_new_state_alone(tmp_path: Path) -> None:
    tools = [{"name": tool.name, "description": tool.description} for tool in make_tools()]
    with Scout(tmp_path) as scout:
        scout.add(tools, name="s")
        scout.search("does thing 7")
        before = list_files(tmp_path)
        scout.add([*tools, {"name": "brew", "description": "makes coffee"}], name="s")
        assert scout.search("make some coffee").ids[0] == "s/brew"
    after = list_files(tmp_path)
    assert len(after) == len(before) and not set(after) & set(before)


def test_files_of_another_catalogue_of_the_same_generation_are_not_used(tmp_path: Path) -> None:
    for first, second in (("coffee", "tea"), ("tea", "coffee")):
        for path in tmp_path.glob("catalogue.db*"):
            os.unlink(path)
        with Scout(tmp_path, recipe="bm25") as scout:
            names = {"brew_one": first, "brew_two": second}
            scout.add([{"name": name, "description": f"makes {drink}"} for name, drink in names.items()], name="s")
            assert scout.search("tea").ids == (f"s/{'brew_one' if first == 'tea' else 'brew_two'}",)


def test_a_folder_that_cannot_be_written_does_not_end_a_search(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SNAPSHOTS_FOLDER).write_text("a file in its place")
    with Scout(tmp_path) as scout:
        scout.add([{"name": "brew", "description": "makes coffee"}], name="s")
        assert scout.search("make coffee").ids == ("s/brew",)
    assert "every process builds it for itself" in caplog.text


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1])
def test_a_killed_writer_leaves_no_half_file(tmp_path: Path, delay: float) -> None:
    path = tmp_path / "part"
    write_arrays(path, {"a": np.full(7, 7, dtype=np.int32)}, {})
    code = (
        "import sys; import numpy as np; from pathlib import Path; from toolscout.home.catalogue.array_file import *\n"
        "print('ready', flush=True)\n"
        "while True: write_arrays(Path(sys.argv[1]), {'a': np.full(3_000_000, 7, dtype=np.int32)}, {})"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline()
    try:
        writer.wait(delay)
    except subprocess.TimeoutExpired:
        writer.kill()
    writer.wait()
    writer.stdout.close()
    arrays, _, _ = open_arrays(path)
    assert set(arrays["a"][:7].tolist()) == {7} and check_file(path) is None
