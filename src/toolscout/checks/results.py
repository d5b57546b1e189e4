"""Reads and checks the result files of `bench` and `sweep`; has the figures that papers published."""

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
    "PublishedResult",
    "Result",
    "SweepResult",
    "Trial",
    "read_results",
    "read_sweeps",
    "write_json",
]

SWEEP, ANATOMY = ".sweep.json", ".anatomy.json"  # name endings of the files of  toolscout sweep  and  toolscout anatomy
SWEEPS_FOLDER: Final = "sweeps"  # sweeps and single trials may be here, in a folder for each dataset

#: Test sets with training queries; `UNTRAINED` are those without.
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
"""Datasets that played no part in development: not for training the bundled encoder, not for choosing settings."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
JSON_NULL: Final = msgspec.Raw(b"null")


class PublishedResult(NamedTuple):
    """Figures that a paper gives for a dataset.

    Attributes:
        label: method, as the paper names it.
        source: the paper.
        metrics: measure → percent.
    """

    label: str
    source: str
    metrics: Mapping[str, float]


_COLUMNS: Final = ("recall@3", "recall@5", "ndcg@3", "ndcg@5", "comp@3", "comp@5")
_COLT, _TOOL2VEC, _MASSTOOL = "arXiv:2405.16089", "arXiv:2409.02141", "arXiv:2507.00487"
_COLT_AT_GOLD_COUNT: Final = {"recall@|N|": 92.76, "comp@|N|": 82.95}


def _quote(label: str, source: str, *percents: float, **further_percents: float) -> PublishedResult:
    """Quote a row of a paper: percents in the order of `_COLUMNS`, which may be fewer, then percents by measure."""
    return PublishedResult(label, source, {**dict(zip(_COLUMNS, percents, strict=False)), **further_percents})


PUBLISHED: Final[Mapping[str, tuple[PublishedResult, ...]]] = {
    "toollens": (
        _quote("BM25", _COLT, 21.58, 26.88, 23.19, 26.09, 3.89, 6.13),
        _quote("Contriever, fine-tuned", _COLT, 83.58, 95.17, 84.98, 91.69, 59.46, 88.65),
        _quote("COLT + Contriever", _COLT, 93.64, 97.75, 94.53, 96.91, 84.55, 94.08, **_COLT_AT_GOLD_COUNT),
        _quote("COLT + coCondenser", _COLT, 92.65, 97.78, 93.16, 96.17, 82.25, 94.56),
        _quote("COLT without semantic learning", _COLT, **{"recall@|N|": 65.21, "comp@|N|": 30.90}),
        _quote("COLT without collaborative learning", _COLT, **{"recall@|N|": 80.60, "comp@|N|": 54.44}),
        _quote("COLT without contrastive learning", _COLT, **{"recall@|N|": 84.58, "comp@|N|": 60.52}),
        _quote("ToolRefiner + Tool2Vec", _TOOL2VEC, 93.61, 97.20, 93.88, 96.43),
        _quote("ToolRefiner + MLC", _TOOL2VEC, 95.84, 98.73, 95.97, 98.14),
        _quote("MassTool + ANCE", _MASSTOOL, 96.48, 98.47, 96.70, 97.85),
        _quote("MassTool + coCondenser", _MASSTOOL, 96.42, 98.47, 96.83, 98.02),
    )
}
"""Dataset → published figures. The authors of COLT chose the epoch on the test queries; we choose on dev."""


class Result(msgspec.Struct, frozen=True):
    """A result file. Only the fields that charts need are required; docs/reference/result-files.md describes them all.

    `metrics`, `ci95` and `slices` are shares from 0 to 1. `commit` is the full hash of the code that made the result.
    """

    dataset: str
    recipe: str
    label: str
    split: str
    n_queries: Count
    n_tools: Count
    metrics: dict[str, Share]
    encoder: str | None = None
    seed: Count = 0
    ci95: dict[str, tuple[Share, Share]] = {}
    slices: dict[str, dict[str, dict[str, Amount]]] = {}
    fit_seconds: Amount | None = None
    latency_ms: dict[str, Amount] = {}
    batch_qps: Amount | None = None
    peak_rss_mb: Amount | None = None
    selected_on: str | None = None
    settings: msgspec.Raw = JSON_NULL
    versions: msgspec.Raw = JSON_NULL
    commit: str | None = None
    machine: msgspec.Raw = JSON_NULL
    run_sha256: str | None = None

    @property
    def quality(self) -> float:
        """NDCG@5, by which charts order the results."""
        return self.metrics["ndcg@5"]


class Trial(msgspec.Struct, frozen=True):
    """One combination of a sweep: its settings, its metrics on dev, and wall seconds."""

    settings: dict[str, Any]
    dev: dict[str, Share]
    seconds: Amount
    fit_seconds: Amount | None = None


class SweepResult(msgspec.Struct, frozen=True):
    """The file of a sweep.

    Attributes:
        over: setting → values that were tried.
        trials: in the order in which they ran.
        encoder: its name; None: the recipe has none.
        n_dev: number of dev queries that the trials were scored on.
        combinations: number of combinations of the values in `over`; more than `trials` if only some were tried.
        objective: what the best trial maximises.
        best: the best trial; None: no trial finished.
    """

    dataset: str
    recipe: str
    label: str
    over: dict[str, list[Any]]
    trials: list[Trial]
    encoder: str | None = None
    seed: Count = 0
    n_dev: Count | None = None
    combinations: Count | None = None
    objective: str = ""
    best: Trial | None = None

    def __post_init__(self) -> None:
        if not self.over or not self.trials:
            raise ValueError("the sweep has no setting or no trial")
        for trial in self.trials:
            if trial.settings.keys() != self.over.keys() or not {"ndcg@5", "comp@5"} <= trial.dev.keys():
                raise ValueError("a trial lacks a swept setting, ndcg@5 or comp@5")


def read_results(folder: Path) -> tuple[list[Result], list[Problem]]:
    """Read all results of `bench` below a folder, in the order of their paths.

    Files of other commands are skipped, and so are results in `sweeps/<dataset>`, which are single trials of a sweep.

    Returns:
        The results; a problem for each file that cannot be read, or is in the wrong folder.
    """
    decoder = msgspec.json.Decoder(Result)
    results, problems = [], []
    for file in sorted(folder.glob("*/**/*.json")):
        if file.name.endswith((SWEEP, ANATOMY)):
            continue
        relative_path = file.relative_to(folder)
        try:
            result = decoder.decode(file.read_bytes())
            if relative_path.parent.as_posix() == f"{SWEEPS_FOLDER}/{result.dataset}":
                continue
            missing = [name for name in ("ndcg@5", "comp@5") if name not in result.metrics]
            if missing:
                raise ValueError(f"the metric {missing[0]} is missing")
            _check_place(result, relative_path, relative_path.stem)
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            problems.append(Problem(relative_path.as_posix(), f"this is not a result file of `bench`: {error}"))
        else:
            results.append(result)
    return results, problems


def read_sweeps(folder: Path) -> tuple[list[SweepResult], list[Problem]]:
    """Read all sweeps below a folder, as `read_results` reads results. They may be in `sweeps/<dataset>` too."""
    decoder = msgspec.json.Decoder(SweepResult)
    sweeps, problems = [], []
    for file in sorted(folder.glob(f"*/**/*{SWEEP}")):
        relative_path = file.relative_to(folder)
        try:
            sweep = decoder.decode(file.read_bytes())
            is_in_sweeps = relative_path.is_relative_to(f"{SWEEPS_FOLDER}/{sweep.dataset}")
            path_of_dataset = relative_path.relative_to(SWEEPS_FOLDER) if is_in_sweeps else relative_path
            _check_place(sweep, path_of_dataset, relative_path.name.removesuffix(SWEEP))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(Problem(relative_path.as_posix(), f"this is not a file of `sweep`: {error}"))
        else:
            sweeps.append(sweep)
    return sweeps, problems


def _check_place(result: Result | SweepResult, relative_path: Path, label: str) -> None:
    """Refuse a file whose path is not `DATASET/LABEL`, as its content says.

    Args:
        result: the content.
        relative_path: of the file.
        label: by the name of the file.

    Raises:
        ValueError: if folder or label differ.
    """
    if (result.dataset, result.label) != (relative_path.parent.as_posix(), label):
        raise ValueError(f"it has the result of {result.label!r} on {result.dataset!r}, which belongs elsewhere")


def write_json(path: Path, result: Mapping[str, object]) -> None:
    """Write a result as indented JSON, atomically. Its folder is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    partial.replace(path)
