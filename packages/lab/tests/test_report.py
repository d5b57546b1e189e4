from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from toolscout.checks.results import TRAINED, UNTRAINED, read_results, read_sweeps
from toolscout.errors import NotFound, UserError
from toolscout_lab.report import PUBLISHED, charts, report
from toolscout_lab.run_files import write_detect

SETS = ("toollens", "bfcl", "openapi/spec")
LABELS = ("bm25", "dense", "hybrid", "scout")
PARTS = {"gold": ("1", "2", "3"), "kind": ("simple", "parallel")}


def result(dataset: str, label: str, value: float, **changes: Any) -> dict[str, Any]:
    """A result whose figures are all told apart by `value`."""
    metrics = {"recall@5": value, "ndcg@5": value - 0.01, "comp@5": value - 0.05, "mrr": value + 0.01}
    return {
        "dataset": dataset,
        "recipe": label,
        "label": label,
        "encoder": None,
        "split": "test",
        "seed": 0,
        "n_queries": 120,
        "n_tools": 40,
        "metrics": metrics,
        "ci95": {name: [each - 0.03, each + 0.02] for name, each in metrics.items()},
        "slices": {
            name: {part: {"n": 40, **metrics} for part in (parts if dataset != "bfcl" else parts[:1])}
            for name, parts in PARTS.items()
        },
        "fit_seconds": 1.5,
        "latency_ms": {"p50": 2.0 * value, "p95": 4.0 * value},
        "batch_qps": 800.0,
        "peak_rss_mb": 210.5,
        "selected_on": "dev",
        "settings": {"k1": 1.2},
        "versions": {"numpy": "2.0"},
        "commit": "abc123",
        "machine": "Linux, 2 cores",
        **changes,
    }


def write(folder: Path, content: dict[str, Any], place: str | None = None) -> None:
    file = folder / (place or f"{content['dataset']}/{content['label']}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets by four labels, no two figures alike."""
    made = tmp_path_factory.mktemp("results")
    for x, dataset in enumerate(SETS):
        for y, label in enumerate(LABELS):
            write(made, result(dataset, label, 0.3 + 0.1234 * y + 0.0456 * x))
    return made


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return report(folder, tmp_path_factory.mktemp("out"))


class Tables(HTMLParser):
    """Every table of a page: caption → row header → column header → (data-value, text); and what surrounds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, dict[str, dict[str, tuple[str | None, str]]]] = {}
        self.scopes: set[str | None] = set()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._row: list[tuple[str | None, str]] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = dict(attrs)
        self.tags.append((tag, held))
        if tag == "caption":
            self._inside, self._caption = tag, ""
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th"):
            self._inside = tag
            self._row.append((held.get("data-value"), ""))
            if tag == "th":
                self.scopes.add(held.get("scope"))

    def handle_endtag(self, tag: str) -> None:
        if tag == "caption":
            self._table = self.found.setdefault(self._caption, {})
        elif tag == "thead":
            self._heads = [text for _, text in self._row]
        elif tag == "tr" and self._inside and self._row and self._row[0][1] != "label":
            self._table[self._row[0][1]] = dict(zip(self._heads, self._row, strict=True))
        if tag in ("td", "th", "caption"):
            self._inside = tag if tag != "caption" else ""

    def handle_data(self, data: str) -> None:
        if self._inside == "caption":
            self._caption += data
        elif self._inside in ("td", "th") and self._row:
            value, text = self._row[-1]
            self._row[-1] = (value, text + data.replace("\n", ""))

    def of(self, start: str) -> dict[str, dict[str, tuple[str | None, str]]]:
        [table] = [table for caption, table in self.found.items() if caption.startswith(start)]
        return table


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG whose every chunk and whose pixels are sound."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, pixels, names = 8, b"", []
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(name + data)
        names.append(name)
        pixels += data if name == b"IDAT" else b""
        at += 12 + length
    width, height, depth, color = struct.unpack(">IIBB", png[16:26])
    assert names[-1] == b"IEND" and (depth, color) == (8, 6) and not {b"tEXt", b"tIME"} & set(names)
    assert len(zlib.decompress(pixels)) == height * (1 + 4 * width)
    return width, height


def test_every_figure_of_the_files_stands_in_the_tables(folder: Path, written: list[Path]) -> None:
    page = Tables(written[0].read_text())
    for dataset in SETS:
        quality, cost = page.of(f"{dataset}: all metrics"), page.of(f"{dataset}: what each label")
        for label in LABELS:
            held = json.loads((folder / dataset / f"{label}.json").read_text())
            for name, value in held["metrics"].items():
                low, high = held["ci95"][name]
                cell = quality[label][name]
                assert float(cell[0] or "nan") == value
                assert cell[1] == f"{100 * value:.2f} {100 * low:.2f} to {100 * high:.2f}"
            assert float(cost[label]["p50 ms"][0] or "nan") == held["latency_ms"]["p50"]
            assert cost[label]["queries"][1] == "120" and cost[label]["peak MB"][1] == "210.5"
    assert page.scopes == {"col", "row"}


@pytest.mark.usefixtures("unpainted")
def test_the_summary_holds_means_and_says_over_how_many_sets(folder: Path, tmp_path: Path) -> None:
    for name in SETS:
        for label in LABELS:
            write(tmp_path, json.loads((folder / name / f"{label}.json").read_text()))
    write(tmp_path, result("bfcl", "only-here", 0.9))
    page = Tables(report(tmp_path)[0].read_text())
    table = page.of("Means over 3 datasets")
    values = [json.loads((folder / name / "dense.json").read_text())["metrics"]["ndcg@5"] for name in SETS]
    assert float(table["dense"]["ndcg@5"][0] or "nan") == pytest.approx(sum(values) / 3)
    assert table["dense"]["sets"][1] == "3 of 3" and table["only-here"]["sets"][1] == "1 of 3"
    assert list(table) == ["scout", "hybrid", "dense", "bm25", "only-here"]
    assert table["dense"]["ndcg@10"][1] == "–"


@pytest.mark.usefixtures("unpainted")
def test_with_all_fourteen_sets_those_with_training_queries_stand_apart(tmp_path: Path) -> None:
    for place, name in enumerate(TRAINED + UNTRAINED):
        write(tmp_path, result(name, "bm25", 0.3 + place / 50, slices={}))
    page = Tables(report(tmp_path)[0].read_text())
    means = [page.of(start)["bm25"]["recall@5"][1] for start in ("Means over the 14", "The 8 of them", "The 6 of them")]
    assert means == ["43.00", "37.00", "51.00"]


def test_published_figures_stand_marked_beside_ours_on_their_dataset_alone(written: list[Path]) -> None:
    text = written[0].read_text()
    page = Tables(text)
    rows = {name: row for name, row in page.of("toollens: all metrics").items() if "published" in name}
    assert len(rows) == len(PUBLISHED["toollens"]) == text.count("<tr class=published>")
    for paper in PUBLISHED["toollens"]:
        row = rows[f"{paper.label} published, {paper.source}"]
        assert {name: cell[1] for name, cell in row.items() if cell[0] is not None} == {
            name: f"{value:.2f}" for name, value in paper.metrics.items()
        }
    assert not any("published" in name for name in page.of("bfcl: all metrics"))
    [image] = [held for tag, held in page.tags if tag == "img" and "COMP@5 on toollens for" in (held["alt"] or "")]
    assert "for 12 systems" in (image["alt"] or "")  # four labels and the eight published with NDCG@5


@pytest.mark.usefixtures("unpainted")
def test_files_that_are_no_results_are_named_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    good = result("bfcl", "bm25", 0.5)
    write(tmp_path, good)
    write(tmp_path, {"speed": 3}, "bfcl/other-schema.json")
    write(tmp_path, {**good, "metrics": {"ndcg@5": 0.5}}, "bfcl/no-comp.json")
    write(tmp_path, {**good, "metrics": {"ndcg@5": 50.0, "comp@5": 0.2}}, "bfcl/percent.json")
    write(tmp_path, good, "bfcl/moved.json")
    (tmp_path / "bfcl" / "broken.json").write_bytes(b'{"dataset": "\xff')
    (tmp_path / "bfcl" / "deep.json").write_text('{"settings": ' + "[" * 5000 + "]" * 5000 + "}")
    (tmp_path / "bfcl" / "folder.json").mkdir()
    (tmp_path / "speed.json").write_text("{}")
    written = report(tmp_path)
    names = ["broken", "deep", "folder", "moved", "no-comp", "other-schema", "percent"]
    assert [problem.entry for problem in written.problems] == [f"bfcl/{name}.json" for name in names]
    text = written[0].read_text()
    assert all(f"<code>bfcl/{name}.json</code>" in text for name in names)
    assert list(Tables(text).of("bfcl: all metrics")) == ["bm25"]


def test_single_trials_below_sweeps_are_no_results_and_sweeps_are_read_there(tmp_path: Path) -> None:
    write(tmp_path, result("bfcl", "bm25", 0.5))
    write(tmp_path, result("bfcl", "dpr-one", 0.6), "sweeps/bfcl/dpr-one.json")
    write(tmp_path, result("bfcl", "dpr-two", 0.6), "sweeps/toollens/dpr-two.json")
    write(tmp_path, result("sweeps", "bm25", 0.4))  # a dataset of that name is one like any other
    trial = {"settings": {"k": 1}, "dev": {"ndcg@5": 0.5, "comp@5": 0.4}, "seconds": 1.0}
    swept = {"recipe": "dpr", "over": {"k": [1]}, "trials": [trial]}
    write(tmp_path, {"dataset": "openapi/spec", "label": "k", **swept}, "sweeps/openapi/spec/k.sweep.json")
    write(tmp_path, {"dataset": "bfcl", "label": "old", **swept}, "bfcl/old.sweep.json")
    results, problems = read_results(tmp_path)
    assert [(each.dataset, each.label) for each in results] == [("bfcl", "bm25"), ("sweeps", "bm25")]
    assert [problem.entry for problem in problems] == ["sweeps/toollens/dpr-two.json"]
    sweeps, problems = read_sweeps(tmp_path)
    assert [(each.dataset, each.label) for each in sweeps] == [("bfcl", "old"), ("openapi/spec", "k")] and not problems


def test_no_result_at_all_is_said_with_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"holds no result files .*\. Write some with  toolscout lab bench"):
        report(tmp_path / "absent")
    write(tmp_path, {"speed": 3}, "bfcl/x.json")
    with pytest.raises(
        NotFound, match=r"holds no result files .* 1 cannot be read, bfcl/x\.json: this is not a result file"
    ):
        report(tmp_path)


@pytest.mark.usefixtures("unpainted")
def test_a_place_that_cannot_be_written_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="The report cannot be written to"):
        report(folder, tmp_path / "file")


EVIL = '<script>alert("1")&$x_{'
EVIL_SET = f"{EVIL} 工具"


def write_evil(folder: Path, datasets: Iterable[str]) -> None:
    """Results whose every name is one that could do harm."""
    for dataset in datasets:
        for label in (EVIL, "_hidden", "$\\frac{", "l" * 90, "\u202e\x07"):
            content = result(dataset, label, 0.5, encoder=EVIL, settings={EVIL: EVIL}, machine=EVIL, commit=EVIL)
            content["slices"] = {"kind": {EVIL: {"n": 3, "comp@5": 0.5}, "k" * 90: {"n": 9, "comp@5": 0.5}}}
            write(folder, content)


@pytest.mark.filterwarnings("error")
def test_names_are_painted_as_text_and_never_as_formulas(tmp_path: Path) -> None:
    write_evil(tmp_path, [EVIL_SET])
    written = report(tmp_path, tmp_path / "out")
    assert len(written) == 4 and all(size_of(path.read_bytes()) > (300, 150) for path in written[1:])


@pytest.mark.usefixtures("unpainted")
def test_names_are_text_and_never_markup_or_paths(tmp_path: Path) -> None:
    evil = EVIL
    write_evil(tmp_path, [EVIL_SET, "a b", "a-b", "A-B", ".. ", "_"])
    (tmp_path / "a b" / f"{evil}2.json").write_text("{")
    written = report(tmp_path, tmp_path / "out")
    text = written[0].read_text()
    assert text.count("<script>") == 1 and 'alert("1")' not in text
    assert Tables(text).of("a b: all metrics").keys() >= {evil, "_hidden"}
    assert len(set(written)) == len(written) == len(list((tmp_path / "out").iterdir()))
    assert all(re.fullmatch(r"[a-z0-9_-]+\.(png|html)", path.name) for path in written)


def test_equal_results_give_equal_bytes(folder: Path, written: list[Path], tmp_path: Path) -> None:
    again = report(folder, tmp_path)
    assert [path.name for path in again] == [path.name for path in written]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_the_charts_are_sound_pictures_of_readable_size(written: list[Path]) -> None:
    names = {path.name for path in written[1:]}
    assert names == {
        "latency-1.png",
        *(f"quality-{name}.png" for name in ("toollens", "bfcl", "openapi-spec")),
        *(f"gold-{name}.png" for name in ("toollens", "bfcl", "openapi-spec")),
        *(f"kind-{name}.png" for name in ("toollens", "openapi-spec")),  # bfcl has one kind only
    }
    for path in written[1:]:
        width, height = size_of(path.read_bytes())
        assert 500 <= width <= 2000 and 250 <= height <= 3000, path.name


def test_decisions_are_drawn_from_their_file_and_a_broken_one_is_named(tmp_path: Path) -> None:
    for label in ("scout", "bm25", "broken"):
        content = result("toollens", label, 0.5)
        write(tmp_path, content | {"metrics": content["metrics"] | {"detect_auroc": 0.5 + 0.1 * (label == "scout")}})
    rows = [("q1", 1, 0.9), ("q2", 1, 0.4), ("q3", 0, 0.4), ("q4", 0, 0.1)]
    write_detect(tmp_path / "toollens/scout.detect.gz", rows)
    (tmp_path / "toollens/broken.detect.gz").write_bytes(gzip.compress(b"q1 1 2.0\n"))
    written = report(tmp_path)
    assert size_of((tmp_path / "decision-toollens.png").read_bytes()) > (400, 300)
    assert "areas scout 0.600;" in written[0].read_text()
    assert [problem.entry for problem in written.problems] == ["toollens/broken.detect.gz"]


def test_the_page_needs_nothing_from_elsewhere_and_says_what_its_pictures_show(written: list[Path]) -> None:
    text = written[0].read_text()
    page = Tables(text)
    images = [held for tag, held in page.tags if tag == "img"]
    assert len(images) == len(written) - 1 and all(len(held["alt"] or "") > 40 for held in images)
    assert all((held["src"] or "").startswith("data:image/png;base64,") for held in images)
    assert not re.search(r"https?://|@import|url\(|<link", text)
    assert "prefers-color-scheme: dark" in text


@pytest.mark.usefixtures("unpainted")
def test_the_latency_chart_says_which_datasets_and_labels_it_shows(folder: Path, tmp_path: Path) -> None:
    for label in LABELS:
        for name in SETS[: 2 if label == "scout" else 3]:
            write(tmp_path, json.loads((folder / name / f"{label}.json").read_text()))
    write(tmp_path, result("bfcl", "untimed", 0.9, latency_ms={}))
    page = report(tmp_path)[0].read_text()
    first, second = re.findall(r"<figcaption>(Means over .*?)</figcaption>", page)
    assert first == (
        "Means over bfcl, toollens, which all labels shown have. "
        "Not shown, for want of one of them or of its latency: untimed."
    )
    assert second.startswith("Means over bfcl, openapi/spec, toollens,") and second.endswith(": scout, untimed.")


@pytest.mark.usefixtures("unpainted")
def test_what_a_chart_cannot_hold_is_cut_and_said(tmp_path: Path) -> None:
    kinds = {f"kind {number}": {"n": 3, "comp@5": 0.5} for number in range(30)}
    for number in range(70):
        write(tmp_path, result("bfcl", f"label-{number}", 0.2 + number / 100, slices={"kind": kinds}))
    page = report(tmp_path)[0].read_text()
    assert page.count("The best 60 of 70 labels.") == 3 and "The first 16 of 30 columns." in page
    assert len(Tables(page).of("bfcl: all metrics")) == 70


@pytest.mark.usefixtures("unpainted")
def test_the_charts_leave_matplotlib_as_it_was(folder: Path, tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    report(folder, tmp_path)
    assert dict(matplotlib.rcParams) == before


# --- by what training saw --------------------------------------------------------------------------------------------

KINDS = ("seen", "mixed", "unseen")


def cut(label: str, recipe: str, value: float, settings: dict[str, Any], kinds: Any = KINDS, **more: Any) -> Any:
    """A result on toolbench with the slice `parents`."""
    rows = {
        kind: {"n": 50, "recall@5": value - 0.1 * place, "recall@10": value - 0.1 * place + 0.05}
        for place, kind in enumerate(kinds)
    }
    return result(
        "toolbench", label, value, **{"recipe": recipe, "settings": settings, "slices": {"parents": rows}, **more}
    )


def rerank(m: int, value: float, suffix: str = "", **settings: Any) -> Any:
    own = {"seen": m, "unseen": m, "hierarchy": "none", **settings}
    return cut(f"crossencoder-{m}{suffix}", f"crossencoder-{m}", value, own, encoder="minilm")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was given to `charts.lines` and `charts.grid`, by title."""
    found: dict[str, Any] = {}
    for name in ("lines", "grid"):
        draw = getattr(charts, name)
        monkeypatch.setattr(
            charts, name, lambda title, *rest, draw=draw: (found.update({title: rest}), draw(title, *rest))[1]
        )
    return found


def test_recall_by_the_number_of_candidates_with_the_first_stage_of_the_same_folds(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    for m, value in ((30, 0.8), (10, 0.7), (50, 0.6)):
        write(tmp_path, rerank(m, value, folds="query:5"))
    write(tmp_path, cut("hybrid-dpr", "hybrid-dpr", 0.5, {"folds": "query:5"}, encoder="minilm"))
    write(tmp_path, cut("other-folds", "hybrid-dpr", 0.9, {"folds": "parent:5"}, encoder="minilm"))
    write(tmp_path, cut("other-settings", "hybrid-dpr", 0.9, {"folds": "query:5", "epochs": 9}, encoder="minilm"))
    page = report(tmp_path)[0].read_text()
    [panel], what = drawn["toolbench: recall@5 by number of candidates"]
    assert (panel.name, panel.ticks, what) == ("candidates, folds query:5", ["10", "30", "50"], "percent")
    assert panel.series["seen"] == pytest.approx([70, 80, 60]) and panel.series["unseen"] == pytest.approx([50, 60, 40])
    assert panel.levels == {kind: pytest.approx(50 - 10 * place) for place, kind in enumerate(KINDS)}
    assert (
        "10, 30, 50, folds query:5: seen 70.0, 80.0, 60.0; mixed 60.0, 70.0, 50.0; unseen 50.0, 60.0, 40.0 percent."
        in page
    )
    assert "Faint: the first stage&#39;s own." in page
    width, height = size_of((tmp_path / "candidates-toolbench.png").read_bytes())
    assert 500 <= width <= 2000 and 250 <= height <= 3000


@pytest.mark.usefixtures("unpainted")
def test_each_way_to_fit_has_a_field_and_what_is_alone_or_another_recipe_has_none(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    for m in (10, 50):
        write(tmp_path, rerank(m, 0.5, folds="query:5"))
        write(tmp_path, rerank(m, 0.4, "-parent", folds="parent:5"))
        write(tmp_path, {**rerank(m, 0.4, "-fast", folds="query:5"), "recipe": "toolrerank"})
    below = {"folds": "query:5", "base.base": "hybrid", "base.base.k": 3}
    write(tmp_path, rerank(10, 0.6, "-alone", **below))
    write(tmp_path, cut("hybrid", "hybrid", 0.5, {"folds": "query:5", "k": 3}, encoder="static"))
    page = report(tmp_path)[0].read_text()
    panels, _ = drawn["toolbench: recall@5 by number of candidates"]
    assert [panel.name for panel in panels] == ["candidates, folds parent:5", "candidates, folds query:5"]
    assert not any(panel.levels for panel in panels) and "Faint" not in page
    write(tmp_path, rerank(30, 0.6, "-more", **below))
    report(tmp_path)
    panels, _ = drawn["toolbench: recall@5 by number of candidates"]
    assert len(panels) == 3 and not any(panel.levels for panel in panels), "static vectors are another first stage"
    write(tmp_path, cut("hybrid", "hybrid", 0.5, {"folds": "query:5", "k": 3}, encoder="minilm"))
    report(tmp_path)
    assert [len(panel.levels) for panel in drawn["toolbench: recall@5 by number of candidates"][0]] == [3, 0, 0]


def test_a_table_of_recall_for_each_way_to_cut_folds(tmp_path: Path, drawn: dict[str, Any]) -> None:
    write(tmp_path, cut("bm25", "bm25", 0.5, {"folds": "query:5"}))
    write(tmp_path, cut("dpr", "dpr", 0.75, {"folds": "query:5"}, ("seen",)))
    write(tmp_path, cut("dpr-parent", "dpr", 0.6, {"folds": "parent:5"}, ("unseen",)))
    write(tmp_path, result("toolbench", "no-slice", 0.9))
    page = report(tmp_path)[0].read_text()
    rows, heads, values = drawn["toolbench: recall by what training saw, folds query:5"]
    assert rows == ["dpr", "bm25"]
    assert heads == [f"{kind} {metric}\nn = 50" for kind in KINDS for metric in ("R@5", "R@10")]
    assert values[0] == [pytest.approx(75), pytest.approx(80), None, None, None, None]
    assert values[1] == pytest.approx([50, 55, 40, 45, 30, 35])
    rows, heads, values = drawn["toolbench: recall by what training saw, folds parent:5"]
    assert (rows, heads) == (["dpr-parent"], ["unseen R@5\nn = 50", "unseen R@10\nn = 50"])
    assert "for queries with seen, mixed, unseen parents." in page
    for number in (1, 2):
        assert size_of((tmp_path / f"parents-toolbench-{number}.png").read_bytes()) > (300, 150)


@pytest.mark.filterwarnings("error")
def test_settings_that_are_none_and_odd_names_do_no_harm(tmp_path: Path, drawn: dict[str, Any]) -> None:
    odd: list[Any] = [None, [1], "x", {"seen": "10", "unseen": "10"}, {"seen": True, "base.base": ["y"], "folds": {}}]
    odd += [{"seen": 7, "unseen": 7, "base.base": "$\\frac{<b>", "folds": 9e300, "n": 2**70}]
    for number, settings in enumerate(odd):
        for m in (10, 30):
            held = {**settings, "seen": m, "unseen": m} if isinstance(settings, dict) else settings
            write(tmp_path, cut(f"odd-{number}-{m}", f"crossencoder-{m}", 0.5, held, ("seen", "$x_{")))
    page = report(tmp_path)
    assert not page.problems and "<b>" not in page[0].read_text()
    assert len(drawn["toolbench: recall@5 by number of candidates"][0]) == 3
