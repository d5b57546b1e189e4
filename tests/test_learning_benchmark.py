"""The benchmark of the learning loop, on a small dataset: it rises, it rolls back, and a flood promotes nothing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

import traffic

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def learning() -> ModuleType:
    spec = importlib.util.spec_from_file_location("learning", ROOT / "benchmarks" / "learning.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dataset(folder: Path) -> Path:
    """Requests of the traffic's slang as a dataset folder."""
    (folder / "qrels").mkdir(parents=True)
    asked = {f"q{number}": pair for number, pair in enumerate(traffic.requests(500, 3))}
    corpus = [{"_id": tool, "title": tool.partition("/")[2], "text": text} for tool, text in traffic.TOOLS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(each) + "\n" for each in corpus))
    queries = [{"_id": query, "text": text} for query, (text, _) in asked.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(each) + "\n" for each in queries))
    for split, some in (("train", list(asked)[:380]), ("test", list(asked)[380:])):
        rows = "".join(f"{query}\t{asked[query][1].removeprefix('office/')}\t1\n" for query in some)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "transport", [pytest.param([], id="http", marks=pytest.mark.full), pytest.param(["--in-process"], id="in-process")]
)
def test_it_gets_better_from_its_own_traffic_and_a_flood_changes_nothing(
    learning: ModuleType, tmp_path: Path, transport: list[str]
) -> None:
    out = tmp_path / "result.json"
    small = ["--data", str(dataset(tmp_path / "slang")), "--parts", "2", "--callers", "10", "--flood", "200"]
    result = learning.run(learning.arguments([*small, *transport, "--out", str(out)]))
    (found,) = result["runs"]
    first, *rows = (row["ndcg@5"] for row in found["rows"])
    assert all(row["outcome"] in ("promoted", "refused") for row in found["rows"][1:])
    assert found["rows"][1]["outcome"] == "promoted"
    assert found["rows"][1]["against_former"]["ndcg@5"]["difference"] == pytest.approx(rows[0] - first, abs=1e-4)
    promoted = [row["against_former"]["ndcg@5"]["difference"] for row in found["rows"] if "against_former" in row]
    assert result["worst"]["ndcg@5"]["difference"] == min(promoted) and found["rows"][1]["look"] == 1
    assert min(rows) > first + 0.1 and rows[-1] >= 0.95
    assert found["served_the_same"]
    assert found["flood"]["calls"] == 200 and not found["flood"]["promoted"]
    assert json.loads(out.read_text()) == json.loads(json.dumps(result))
