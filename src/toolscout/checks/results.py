"""Result files as `bench` and `sweep` write them, read without trust; the figures that papers publish beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from toolscout.sources import Problem

__all__ = [
    "ANATOMY",
    "CLEAN",
    "PUBLISHED",
    "SWEEP",
    "SWEEPS_FOLDER",
    "TRAINED",
    "UNTRAINED",
    "Published",
    "Result",
    "SweepResult",
    "Trial",
    "read_results",
    "read_sweeps",
    "write_json",
]

SWEEP, ANATOMY = ".sweep.json", ".anatomy.json"  # how the names of files end that are no results of bench
SWEEPS_FOLDER: Final = "sweeps"  # sweeps and single trials may lie here, in a folder for each dataset

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
CLEAN: Final = ("toolbench", "openapi/restbench_tmdb", "openapi/restbench_spotify")
"""Sets of whose tools the bundled encoder has read none, and on whose queries nothing was chosen."""
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
    """A result file, as docs/reference/formats.md describes it; what a chart cannot do without is required."""

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
    run_sha256: str | None = None

    @property
    def quality(self) -> float:
        """NDCG@5, by which labels are ranked."""
        return self.metrics["ndcg@5"]


class Trial(msgspec.Struct, frozen=True):
    """One combination of a sweep: its settings, its figures on dev, wall seconds."""

    settings: dict[str, Any]
    dev: dict[str, Share]
    seconds: Amount
    fit_seconds: Amount | None = None


class SweepResult(msgspec.Struct, frozen=True):
    """A sweep's file: what was swept over which values, and the trials."""

    dataset: str
    recipe: str
    label: str
    over: dict[str, list[Any]]
    trials: list[Trial]
    encoder: str | None = None
    seed: Whole = 0
    n_dev: Whole | None = None
    combinations: Whole | None = None
    objective: str = ""
    best: Trial | None = None

    def __post_init__(self) -> None:
        if not self.over or not self.trials:
            raise ValueError("nothing that was swept, or no trial")
        for trial in self.trials:
            if trial.settings.keys() != self.over.keys() or not {"ndcg@5", "comp@5"} <= trial.dev.keys():
                raise ValueError("a trial without its settings, or without ndcg@5 and comp@5")


def read_results(folder: Path) -> tuple[list[Result], list[Problem]]:
    """Read all results below a folder, in the order of their paths, and name each file that is none.

    Results below `sweeps/<dataset>` are single trials of a sweep and are left out.
    """
    decoder = msgspec.json.Decoder(Result)
    results, problems = [], []
    for file in sorted(folder.glob("*/**/*.json")):
        if file.name.endswith((SWEEP, ANATOMY)):
            continue
        place = file.relative_to(folder)
        try:
            result = decoder.decode(file.read_bytes())
            if place.parent.as_posix() == f"{SWEEPS_FOLDER}/{result.dataset}":
                continue
            missing = [name for name in ("ndcg@5", "comp@5") if name not in result.metrics]
            if missing:
                raise ValueError(f"no metric {missing[0]}")
            _in_place(result, place, place.stem)
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            problems.append(Problem(place.as_posix(), f"expected a result file of `bench`, found: {error}"))
        else:
            results.append(result)
    return results, problems


def read_sweeps(folder: Path) -> tuple[list[SweepResult], list[Problem]]:
    """Read all sweeps below a folder, as `read_results` reads results; `sweeps/<dataset>` is a right place too."""
    decoder = msgspec.json.Decoder(SweepResult)
    sweeps, problems = [], []
    for file in sorted(folder.glob(f"*/**/*{SWEEP}")):
        place = file.relative_to(folder)
        try:
            found = decoder.decode(file.read_bytes())
            inner = (
                place.relative_to(SWEEPS_FOLDER) if place.is_relative_to(f"{SWEEPS_FOLDER}/{found.dataset}") else place
            )
            _in_place(found, inner, place.name.removesuffix(SWEEP))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(Problem(place.as_posix(), f"expected a file of `sweep`, found: {error}"))
        else:
            sweeps.append(found)
    return sweeps, problems


def _in_place(found: Result | SweepResult, place: Path, label: str) -> None:
    if (found.dataset, found.label) != (place.parent.as_posix(), label):
        raise ValueError(f"the result of {found.label!r} on {found.dataset!r}, which belongs elsewhere")


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result in one step, indented; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    partial.replace(path)
