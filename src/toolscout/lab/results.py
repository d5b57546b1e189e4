"""Result files as `bench` writes them, read without trust; and the figures that papers publish beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from toolscout.sources import Problem

__all__ = ["PUBLISHED", "TRAINED", "UNTRAINED", "Published", "Result", "read_results"]

TRAINED: Final = (
    "toollens",
    "metatool",
    "seal_tools_in",
    "ultratool",
    "hammerbench",
    "bfcl",
    "toollinkos",
    "numpybank",
)
UNTRAINED: Final = (
    "bfcl_parallel_multiple",
    "livemcpbench",
    "mcpproxy_golden",
    "openapi/restbench_spotify",
    "openapi/restbench_tmdb",
    "toolbench",
)
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
NOTHING: Final = msgspec.Raw(b"null")


class Published(NamedTuple):
    """Figures that a paper gives for a dataset: who, where, and measure → percent."""

    label: str
    source: str
    metrics: Mapping[str, float]


_COLUMNS: Final = ("recall@3", "recall@5", "ndcg@3", "ndcg@5", "comp@3", "comp@5")
_COLT, _TOOL2VEC, _MASSTOOL = "arXiv:2405.16089", "arXiv:2409.02141", "arXiv:2507.00487"
_FULL: Final = {"recall@|N|": 92.76, "comp@|N|": 82.95}


def _paper(label: str, source: str, *percents: float, **more: float) -> Published:
    return Published(label, source, {**dict(zip(_COLUMNS, percents, strict=False)), **more})


PUBLISHED: Final[Mapping[str, tuple[Published, ...]]] = {
    "toollens": (
        _paper("BM25", _COLT, 21.58, 26.88, 23.19, 26.09, 3.89, 6.13),
        _paper("Contriever, fine-tuned", _COLT, 83.58, 95.17, 84.98, 91.69, 59.46, 88.65),
        _paper("COLT + Contriever", _COLT, 93.64, 97.75, 94.53, 96.91, 84.55, 94.08, **_FULL),
        _paper("COLT + coCondenser", _COLT, 92.65, 97.78, 93.16, 96.17, 82.25, 94.56),
        _paper("COLT without semantic learning", _COLT, **{"recall@|N|": 65.21, "comp@|N|": 30.90}),
        _paper("COLT without collaborative learning", _COLT, **{"recall@|N|": 80.60, "comp@|N|": 54.44}),
        _paper("COLT without contrastive learning", _COLT, **{"recall@|N|": 84.58, "comp@|N|": 60.52}),
        _paper("ToolRefiner + Tool2Vec", _TOOL2VEC, 93.61, 97.20, 93.88, 96.43),
        _paper("ToolRefiner + MLC", _TOOL2VEC, 95.84, 98.73, 95.97, 98.14),
        _paper("MassTool + ANCE", _MASSTOOL, 96.48, 98.47, 96.70, 97.85),
        _paper("MassTool + coCondenser", _MASSTOOL, 96.42, 98.47, 96.83, 98.02),
    )
}
"""Dataset → published figures. The authors of COLT chose their epoch on the test queries; we choose on dev."""


class Result(msgspec.Struct, frozen=True):
    """A result file, as docs/formats.md describes it; what a chart cannot do without is required."""

    dataset: str
    recipe: str
    label: str
    split: str
    n_queries: Whole
    n_tools: Whole
    metrics: dict[str, Share]
    encoder: str | None = None
    seed: Whole = 0
    ci95: dict[str, tuple[Share, Share]] = {}
    slices: dict[str, dict[str, dict[str, Amount]]] = {}
    fit_seconds: Amount | None = None
    latency_ms: dict[str, Amount] = {}
    batch_qps: Amount | None = None
    peak_rss_mb: Amount | None = None
    selected_on: str | None = None
    settings: msgspec.Raw = NOTHING
    versions: msgspec.Raw = NOTHING
    commit: str | None = None
    machine: msgspec.Raw = NOTHING

    @property
    def quality(self) -> float:
        """NDCG@5, by which labels are ranked."""
        return self.metrics["ndcg@5"]


def read_results(folder: Path) -> tuple[list[Result], list[Problem]]:
    """All results below a folder, in the order of their paths, and what is wrong with each file that is none."""
    decoder = msgspec.json.Decoder(Result)
    results, problems = [], []
    for file in sorted(folder.glob("*/**/*.json")):
        place = file.relative_to(folder)
        try:
            result = decoder.decode(file.read_bytes())
            missing = [name for name in ("ndcg@5", "comp@5") if name not in result.metrics]
            if missing:
                raise ValueError(f"no metric {missing[0]}")
            if (result.dataset, result.label) != (place.parent.as_posix(), place.stem):
                raise ValueError(f"the result of {result.label!r} on {result.dataset!r}, which belongs elsewhere")
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            problems.append(Problem(place.as_posix(), f"expected a result file of `bench`, found: {error}"))
        else:
            results.append(result)
    return results, problems
