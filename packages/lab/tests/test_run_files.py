"""Run files: what is written is read back, other scorers agree, and damage is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.errors import SourceError
from toolscout.metrics import score
from toolscout_lab.run_files import read_detect, read_run, write_detect, write_run

IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(
    ["a b", "100%", "%20", "%2", "% 4", "tab\there", "\u3000", "a\x1cb", "\x85"]
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(IDS, st.lists(IDS, min_size=1, max_size=20, unique=True), min_size=1, max_size=4))
def test_a_run_survives_writing_and_reading_whatever_its_ids_are(
    tmp_path_factory: pytest.TempPathFactory, rankings: dict[str, list[str]]
) -> None:
    file = tmp_path_factory.mktemp("runs") / "x.run.gz"
    write_run(file, "my label", {query: [(tool, 0.5) for tool in tools] for query, tools in rankings.items()})
    found = read_run(file)
    assert {query: [tool for tool, _ in hits] for query, hits in found.items()} == rankings
    assert all(len(line.split()) == 6 for line in gzip.decompress(file.read_bytes()).decode().split("\n")[:-1])


def test_other_scorers_read_our_run_files_in_our_order_despite_equal_or_rising_scores(tmp_path: Path) -> None:
    hits = [("a", 0.3), ("b", 0.3), ("c", 0.3), ("d", 9.0), ("e", 0.0), ("f", 0.0), ("g", -1.5)]
    qrels = {"q": {"b": 1, "d": 2, "f": 1}}
    write_run(tmp_path / "x.run.gz", "x", {"q": hits})
    text = gzip.decompress((tmp_path / "x.run.gz").read_bytes()).decode()
    assert text.splitlines()[0] == "q Q0 a 1 0.3 x" and text.splitlines()[-1] == "q Q0 g 7 -1.5 x"
    read = list(ir_measures.read_trec_run(text))
    ours = score({"q": [tool for tool, _ in hits]}, qrels, ["ndcg@5", "mrr"]).means()
    ndcg, rr = ir_measures.nDCG @ 5, ir_measures.RR
    theirs = ir_measures.calc_aggregate([ndcg, rr], qrels, read)
    assert ours == pytest.approx({"ndcg@5": theirs[ndcg], "mrr": theirs[rr]}, abs=1e-9)


def test_equal_runs_give_equal_bytes_and_no_half_written_file_stays(tmp_path: Path) -> None:
    run = {"q2": [("b", 2.0), ("a", 1.0)], "q1": [(f"t{n}", -float(n)) for n in range(30)], "q0": []}
    write_run(tmp_path / "new/x.run.gz", "x", run)
    write_run(tmp_path / "y.run.gz", "x", dict(reversed(run.items())))
    data = (tmp_path / "y.run.gz").read_bytes()
    assert data == (tmp_path / "new/x.run.gz").read_bytes() and data[4:8] == bytes(4)
    found = read_run(tmp_path / "y.run.gz")
    assert list(found) == ["q1", "q2"] and len(found["q1"]) == 20 and found["q2"] == run["q2"]
    with pytest.raises(ValueError, match="expected a finite score for query 'q' and tool 'a', found nan"):
        write_run(tmp_path / "y.run.gz", "x", {"q": [("a", float("nan"))]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "y.run.gz"] and read_run(tmp_path / "y.run.gz")


def test_a_run_is_ordered_by_its_ranks_not_by_its_lines_or_scores(tmp_path: Path) -> None:
    (tmp_path / "x.run").write_text("q Q0 b 2 5.0 x\nq Q0 a 1 1.0 x\nq 0 c 10 7e-1 x\n")
    assert read_run(tmp_path / "x.run") == {"q": [("a", 1.0), ("b", 5.0), ("c", 0.7)]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"q Q0 a 1 0.5 x\nq Q0 a 2 0.4 x\n", "line 2: expected each tool once a query, found 'a' again"),
        (b"q Q0 a 1 0.5\n", "line 1: expected query-id Q0 tool-id rank score label"),
        (b"q Q0 a first 0.5 x\n", "line 1: expected query-id Q0 tool-id rank score label"),
        (b"q Q0 \xff 1 0.5 x\n", "line 1: expected query-id Q0 tool-id rank score label"),
    ],
)
def test_a_line_that_is_no_trec_line_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.run").write_bytes(data)
    with pytest.raises(SourceError, match=said):
        read_run(tmp_path / "x.run")


def test_a_damaged_or_missing_run_file_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "x.run.gz", "x", {"q": [("a", 1.0)]})
    whole = (tmp_path / "x.run.gz").read_bytes()
    for damaged in (whole[:-3], b"no gzip", whole[:12] + b"\xff\xff\xff" + whole[15:]):
        (tmp_path / "x.run.gz").write_bytes(damaged)
        with pytest.raises(SourceError, match=r"x.run.gz: expected a readable file, found: "):
            read_run(tmp_path / "x.run.gz")
    with pytest.raises(SourceError, match="No such file"):
        read_run(tmp_path / "none.run.gz")


def test_detection_lines_are_query_label_and_need_in_the_order_given(tmp_path: Path) -> None:
    write_detect(tmp_path / "x.detect.gz", [("q 2", 1, 0.1 + 0.2), ("q1", 0, 0.0)])
    data = (tmp_path / "x.detect.gz").read_bytes()
    assert gzip.decompress(data) == b"q%202 1 0.30000000000000004\nq1 0 0.0\n"
    assert data[4:8] == bytes(4)
    assert read_detect(tmp_path / "x.detect.gz") == [("q 2", 1, 0.1 + 0.2), ("q1", 0, 0.0)]


@pytest.mark.parametrize("line", ["q1 1", "q1 2 0.5", "q1 1 1.5", "q1 yes 0.5", "q1 0 0.5 more"])
def test_a_line_that_is_no_decision_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.detect").write_text(f"q0 1 0.5\n{line}\n")
    with pytest.raises(SourceError, match=r"x\.detect, line 2: expected"):
        read_detect(tmp_path / "x.detect")
