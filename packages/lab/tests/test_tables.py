"""The figures of README and docs are those of the results, and a figure that names none is noticed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts_loader import load_script

ROOT = Path(__file__).parents[3]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))  # tables.py imports table_kinds.py from its own folder
    try:
        return load("scripts/tables.py")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def kinds(tables: ModuleType) -> ModuleType:
    assert tables.KINDS
    return sys.modules["table_kinds"]


EVIDENCE = "docs/results/training-data.md"  # a page with figures inside sentences


def copy_pages(tables: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Path:
    """A place whose README, or else its page of evidence, says something else than the repository's."""
    changed = None
    for name in ("README.md", EVIDENCE):
        text = (ROOT / name).read_text()
        if changed is None and old in text:
            text, changed = text.replace(old, new, 1), folder / name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert changed is not None
    monkeypatch.setattr(tables, "ROOT", folder)
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    return changed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("53.8 / 37.5", "53.8 / 37.6", "Figures in README.md are not those of benchmarks/results"),  # a table
        ("88.6<!--=", "88.7<!--=", rf"Figures in {EVIDENCE} are not those of benchmarks/results"),  # a sentence
        ("Linux and macOS", "Linux and macOS (15.5)", "name no result: 15.5"),  # without a mark
        ("88.6<!--= hammerbench hybrid-dpr", "88.6<!--= hammerbench nonesuch", "no result for the figure"),
    ],
)
def test_a_figure_that_differs_from_the_results_fails_the_check(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    copy_pages(tables, tmp_path, monkeypatch, old, new)
    with pytest.raises(SystemExit, match=said):
        tables.main()


def test_a_wrong_figure_is_written_anew(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = copy_pages(tables, tmp_path, monkeypatch, "88.6<!--=", "1.0<!--=")
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    assert page.read_text() == (ROOT / EVIDENCE).read_text()


def test_pages_are_found_by_their_marks_wherever_they_lie(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = copy_pages(tables, tmp_path, monkeypatch, "53.8 / 37.5", "53.8 / 37.5").parent / "docs/new/deep/page.md"
    page.parent.mkdir(parents=True)
    (page.parent / "plain.md").write_text("No mark.\n")
    page.write_text("The mean is 1.0<!--= mean all hybrid ndcg@5 -->.\n")
    assert [found.name for found in tables.find_pages()] == ["README.md", "page.md", "training-data.md"]
    with pytest.raises(SystemExit, match=r"Figures in docs/new/deep/page\.md are not those"):
        tables.main()


def test_a_table_that_is_too_wide_becomes_several_with_the_first_column_in_each(kinds: ModuleType) -> None:
    heads = ["set", *(f"a long heading {number}" for number in range(7))]
    lines = kinds.lay_out(heads, [["bfcl", *(str(number) for number in range(7))]])
    assert [line for line in lines if "bfcl" in line] == ["| bfcl | 0 | 1 | 2 | 3 |", "| bfcl | 4 | 5 | 6 |"]
    assert lines.count("") == 1 and max(map(len, lines)) <= 120
    assert kinds.lay_out(heads[:3], [["bfcl", "0", "1"]]) == [
        "| set | a long heading 0 | a long heading 1 |", "|---|---:|---:|", "| bfcl | 0 | 1 |",
    ]  # fmt: skip
    [first, *_] = kinds.lay_out(["a", "b" * 60, "c" * 60, "d" * 60], [list("wxyz")], keys=2)
    assert first == f"| a | {'b' * 60} | {'c' * 60} |"  # one column alone may be too wide, and stays whole


def test_no_line_of_a_table_is_longer_than_120_characters(tables: ModuleType) -> None:
    long = {
        f"{page.name}: {line}"
        for page in tables.find_pages()
        for block in tables.TABLE.finditer(page.read_text())
        for line in block[0].splitlines()
        if len(line) > tables.MAX_LINE_CHARS
    }
    assert not long


def test_a_long_mark_is_wrapped_and_understood_again(tables: ModuleType) -> None:
    labels = ["bm25", "bm25-plain", "dense", "hybrid", "dense-minilm", "hybrid-minilm", "mlc", "colt", "dpr"]
    block = tables.refresh(f"<!-- table labels {' '.join([*labels, *labels])} -->\n<!-- end of table -->")
    assert block.splitlines()[0].startswith("<!-- table labels") and block.splitlines()[1].endswith("-->")
    assert max(map(len, block.splitlines())) <= 120 and tables.refresh(block) == block


def test_every_sweep_stands_on_the_page_of_sweeps(tables: ModuleType) -> None:
    text = (ROOT / "docs/results/sweeps.md").read_text()
    blocks = [(match[2], match[3].split()) for match in tables.TABLE.finditer(text)]
    shown = {(words[0], label) for kind, words in blocks if kind in ("sweeps", "intervals") for label in words[1:]}
    shown |= {(name, words[0]) for kind, words in blocks if kind == "swept" for name in words[1:]}
    folder = ROOT / "benchmarks/results/sweeps"
    files = {(str(f.parent.relative_to(folder)), f.name.split(".")[0]) for f in folder.rglob("*.json")}
    assert files <= shown, sorted(files - shown)


def test_figures_are_means_shares_and_values_of_files(tables: ModuleType, kinds: ModuleType) -> None:
    names = kinds.GROUPS["clean"]
    held = [json.loads((ROOT / f"benchmarks/results/{name}/hybrid.json").read_text()) for name in names]
    mean = 100 * sum(each["metrics"]["ndcg@5"] for each in held) / 3
    assert tables.write_figure("mean clean hybrid ndcg@5") == f"{mean:.1f}"
    assert tables.write_figure("speed.json tools ,d") == "14,150"
    assert tables.find_unmarked("Python 3.10, `1.5` and 1.7<!--= a b c --> but 2.5 % and\n```\n3.5\n```\n") == ["2.5"]


def test_differences_on_dev_are_shown_by_fold_with_the_standard_error_of_their_mean(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(size: int, total: float) -> dict[str, object]:
        return {"data": {"n_dev": size}, "dev": dict.fromkeys(("recall@5", "ndcg@5", "comp@5"), total / 3)}

    results = {
        "a": {"fitted": [fit(10, 2.0), fit(30, 2.1)]},
        "b": {"fitted": [fit(10, 2.04), fit(30, 2.08)]},
    }
    papers = sys.modules["table_papers"]
    monkeypatch.setattr(papers, "read_present", lambda name, labels: {label: results[label] for label in labels})
    table = papers.tabulate_dev_differences(["toolbench", "a", "b"])
    # +4 and -2 points: (10 * 4 - 30 * 2) / 40 = -0.5; their deviation is 4.24, over the root of two folds 3.0
    assert [cell.strip() for cell in table[-1].strip("|").split("|")] == ["`b`", "+4.0", "-2.0", "-0.5", "3.0"]
    assert "fold 1 (10)" in table[0] and "less `a`" in table[0]


def test_detection_is_shown_with_its_test_and_the_means_of_the_controls_over_the_seeds(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    papers = sys.modules["table_papers"]

    def figures(value: float, **rest: object) -> dict[str, object]:
        return {"metrics": dict.fromkeys(papers.DETECTION_MEASURES, value), **rest}

    def model(detects: bool, value: float) -> dict[str, object]:
        controls = {name: figures(value, joint_cosine=value) for name in papers.DETECTION_CONTROLS}
        return {"dataset": "d", "detects": detects, "controls": controls}

    test = {"difference": -0.012, "ci95": [-0.03, 0.004], "p_holm": 0.1234}
    arm = {"dataset": "d", "seeds": [0, 1], "detecting": figures(0.5), "other": figures(0.512)}
    arm["difference"] = dict.fromkeys(papers.DETECTION_MEASURES, test)
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    content = {"arms": [arm], "models": [model(True, 0.4), model(True, 0.6), model(False, 0.9)]}
    (results / "detection-controls.json").write_text(json.dumps(content))
    monkeypatch.setattr(papers, "ROOT", tmp_path)
    words = ["d", "detection-controls.json"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in papers.tabulate_detection(words)]
    assert rows[0][:2] == ["d, test, seeds 0, 1", "recall@3"]
    assert rows[2][:2] == ["detection learned", "50.0"] and rows[3][:2] == ["not learned", "51.2"]
    assert rows[4][:2] == ["**difference (95 %; p)**", "-1.2 (-3.0 to +0.4; 0.12)"]
    assert rows[5][:2] == ["h of another query (cosine 0.50)", "50.0"], "the mean of those that detect"


def test_sets_whose_tools_the_encoder_has_read_are_marked(kinds: ModuleType) -> None:
    marks = {name: kinds.mark_read(name) for name in kinds.GROUPS["all"]}
    assert [name for name, mark in marks.items() if not mark] == [
        "toollens", "openapi/restbench_spotify", "openapi/restbench_tmdb", "toolbench",
    ]  # fmt: skip
    assert marks["livemcpbench"] == "¹" and marks["bfcl"] == "²"
    assert not any(marks[name] for name in kinds.CLEAN)


def test_the_rows_of_paired_tests_fit_a_line_and_keep_every_measure(kinds: ModuleType) -> None:
    for labels in (
        "toolbench toolrerank hybrid-dpr crossencoder-50",  # by parents
        "toollens masstool masstool-no-suim masstool-published",
    ):
        rows = kinds.tabulate_versus(labels.split())
        assert max(map(len, rows)) <= 120
        heads = " ".join(row for row in rows if "against" in row)
        assert all(heads.count(measure) == 1 for measure in ("recall@3", "recall@5", "ndcg@5", "comp@3", "comp@5"))
    assert "| all 764 | +0.9 (-0.3 to +2.2; 0.1512) |" in "\n".join(
        kinds.tabulate_versus(["toolbench", "toolrerank", "hybrid-dpr"])
    )


# --- benchmarks/headline.py -------------------------------------------------------------------------------------------


def test_the_headline_run_plans_every_figure_of_the_readme(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    headline = load("benchmarks/headline.py")
    assert headline.main(["--plan", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "76 commands, about" in told and "mlc --seed 2" in told
    for label in ("bm25-plain", "dense-minilm", "rrf-minilm", "hybrid", "scout --installed"):
        assert told.count(f"--recipe {label} ") == 14
    assert headline.main(["--plan", "--only", "toollens", "toollens"]) == 0
    assert "speed.py" not in capsys.readouterr().out


def test_a_result_counts_as_current_only_if_the_code_of_head_made_it(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: a commit is compared with HEAD")
    headline = load("benchmarks/headline.py")
    from toolscout_lab import machine

    file = tmp_path / "x.json"
    assert not headline.is_current(file)
    for dirty, commit, current in (
        (False, machine.commit(), True),
        (True, machine.commit(), False),
        (None, machine.commit(), False),
        (False, "0" * 40, False),
        (False, None, False),
    ):
        file.write_text(json.dumps({"commit": commit, "dirty": dirty}))
        assert headline.is_current(file) is current


def test_the_pictures_show_the_results_that_lie_here(monkeypatch: pytest.MonkeyPatch) -> None:
    drawer = load_script("scripts/draw_methods.py")
    monkeypatch.setattr(sys, "argv", ["draw_methods.py", "--check"])
    with pytest.raises(SystemExit) as done:
        drawer.main()
    assert done.value.code == 0, done.value.code


def test_each_method_page_has_a_picture() -> None:
    pages = [page for page in (ROOT / "docs/methods").glob("*.md") if page.name != "README.md"]
    assert len(pages) > 9
    assert [page.name for page in pages if "](../images/" not in page.read_text()] == []
