"""The figures of README and docs are those of the results, and a figure that names none is noticed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return load("scripts/tables.py")


def copy_readme(tables: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Path:
    """A place whose README says something else than the repository's."""
    text = (ROOT / "README.md").read_text()
    assert text.count(old) >= 1
    (folder / "README.md").write_text(text.replace(old, new, 1))
    monkeypatch.setattr(tables, "ROOT", folder)
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    return folder / "README.md"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("53.8 / 37.5", "53.8 / 37.6", "Figures in README.md are not those of benchmarks/results"),  # a table
        ("88.6<!--=", "88.7<!--=", "Figures in README.md are not those of benchmarks/results"),  # a sentence
        ("NDCG@5, numpybank", "NDCG@5 (15.5 above), numpybank", "name no result: 15.5"),  # without a mark
        ("88.6<!--= hammerbench hybrid-dpr", "88.6<!--= hammerbench nonesuch", "no result for the figure"),
    ],
)
def test_a_figure_that_differs_from_the_results_fails_the_check(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    copy_readme(tables, tmp_path, monkeypatch, old, new)
    with pytest.raises(SystemExit, match=said):
        tables.main()


def test_a_wrong_figure_is_written_anew(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = copy_readme(tables, tmp_path, monkeypatch, "88.6<!--=", "1.0<!--=")
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    assert page.read_text() == (ROOT / "README.md").read_text()


def test_figures_are_means_shares_and_values_of_files(tables: ModuleType) -> None:
    held = [json.loads((ROOT / f"benchmarks/results/{name}/hybrid.json").read_text()) for name in tables.CLEAN]
    mean = 100 * sum(each["metrics"]["ndcg@5"] for each in held) / 3
    assert tables.figure("mean clean hybrid ndcg@5") == f"{mean:.1f}"
    assert tables.figure("speed.json tools ,d") == "14,150"
    assert tables.find_unmarked("Python 3.10, `1.5` and 1.7<!--= a b c --> but 2.5 % and\n```\n3.5\n```\n") == ["2.5"]


def test_sets_whose_tools_the_encoder_has_read_are_marked(tables: ModuleType) -> None:
    marks = {name: tables.mark_read(name) for name in tables.GROUPS["all"]}
    assert [name for name, mark in marks.items() if not mark] == [
        "toollens", "openapi/restbench_spotify", "openapi/restbench_tmdb", "toolbench",
    ]  # fmt: skip
    assert marks["livemcpbench"] == "¹" and marks["bfcl"] == "²"
    assert not any(marks[name] for name in tables.CLEAN)


def test_the_rows_of_paired_tests_fit_a_line_and_keep_every_measure(tables: ModuleType) -> None:
    for labels in (
        "toolbench toolrerank hybrid-dpr crossencoder-50",  # by parents
        "toollens masstool masstool-no-suim masstool-published",
    ):
        rows = tables.versus(labels.split())
        assert max(map(len, rows)) <= 120
        heads = " ".join(row for row in rows if "against" in row)
        assert all(heads.count(measure) == 1 for measure in ("recall@3", "recall@5", "ndcg@5", "comp@3", "comp@5"))
    assert "| all 764 | +0.9 (-0.3 to +2.2; 0.1512) |" in "\n".join(
        tables.versus(["toolbench", "toolrerank", "hybrid-dpr"])
    )


# --- benchmarks/headline.py -------------------------------------------------------------------------------------------


def test_the_headline_run_plans_every_figure_of_the_readme(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    headline = load("benchmarks/headline.py")
    assert headline.main(["--plan", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "76 commands, about" in told and "mlc --seed 2" in told
    for label in ("bm25-plain", "dense-minilm", "rrf-minilm", "hybrid", "hybrid-minilm"):
        assert told.count(f"--recipe {label} ") == 14
    assert headline.main(["--plan", "--only", "toollens", "toollens"]) == 0
    assert "speed.py" not in capsys.readouterr().out


def test_a_result_counts_as_current_only_if_the_code_of_head_made_it(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: a commit is compared with HEAD")
    headline = load("benchmarks/headline.py")
    from toolscout.lab import machine

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
