"""The report: turns result, run and sweep files into one self-contained page and its charts.

Equal results give an equal page, byte for byte. Names from result files are untrusted: they are escaped in the page and
never become part of a path.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from toolscout.checks.results import PUBLISHED, Result, SweepResult, read_results, read_sweeps
from toolscout.dataset import Dataset
from toolscout.errors import NotFound, UserError
from toolscout.sources import Problem
from toolscout_lab.anatomy import failures
from toolscout_lab.machine import Record
from toolscout_lab.report.draw import (
    NEED_MEASURE,
    Curves,
    draw_decisions,
    draw_failures,
    draw_latency,
    draw_quality,
    draw_sweeps,
)
from toolscout_lab.report.page import Content, page
from toolscout_lab.run_files import read_detect, read_run
from toolscout_lab.statistics import detection_curves

__all__ = ["PUBLISHED", "WrittenReport", "report"]


class WrittenReport(list[Path]):
    """The files that were written, the page first.

    Attributes:
        problems: the files that were left out, with the reason.
        notes: what could not be shown because a dataset is missing.
    """

    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def report(folder: Path, out: Path | None = None, *, data: Path | None = None) -> WrittenReport:
    """Write `report.html` and its charts from the result, run and sweep files below a folder.

    These are `<dataset>/<label>.json`, `.run.gz` and `.sweep.json`; sweeps may also lie below `sweeps/<dataset>`. An
    invalid file, or one in the wrong place, is left out and named in the page and in `problems`.

    Args:
        folder: the folder that `bench --out` and `sweep --out` wrote, or a dataset's folder or a result file in it.
        out: the folder to write to; by default `folder` itself.
        data: root of the datasets, for failures per tool; datasets that it lacks have none.

    Raises:
        NotFound: when there is no result and no sweep at all.
        MissingExtra: without matplotlib.
        UserError: when `out` cannot be written.
    """
    target = Path(out or (folder.parent if folder.is_file() else folder))
    folder, dataset = _find_results_folder(Path(folder))
    results, problems = read_results(folder)
    sweeps, sweep_problems = read_sweeps(folder)
    problems += sweep_problems
    if dataset is not None:
        results = [result for result in results if result.dataset == dataset]
        sweeps = [swept for swept in sweeps if swept.dataset == dataset]
        problems = [problem for problem in problems if problem.entry.startswith(f"{dataset}/")]
    if not results and not sweeps:
        raise _build_no_results_error(folder, problems)
    sets = _group_by_dataset(results, sweeps)
    slugs = _make_slugs(sets)
    overview = draw_latency(sets)
    notes: list[str] = []
    contents = {}
    for name, set_results in sets.items():
        failures_by_label = _collect_failures(folder, data, set_results, problems, notes)
        set_sweeps = [swept for swept in sweeps if swept.dataset == name]
        images = draw_quality(name, slugs[name], set_results) if set_results else []
        areas, curves = _read_decisions(folder, set_results, problems)
        images += draw_decisions(name, slugs[name], areas, curves)
        images += draw_failures(name, slugs[name], failures_by_label) + draw_sweeps(slugs[name], set_sweeps)
        contents[name] = Content(slugs[name], set_results, set_sweeps, failures_by_label, images)
    files = {"report.html": page(contents, problems, notes, overview).encode(errors="replace")}
    for chart_group in (overview, *(content.images for content in contents.values())):
        files |= {image.file: image.data for image in chart_group}
    _write_files(target, files)
    written = WrittenReport(target / name for name in files)
    written.problems, written.notes = tuple(problems), tuple(notes)
    return written


def _find_results_folder(place: Path) -> tuple[Path, str | None]:
    """Return the folder of all results, and the dataset if `place` is its folder or one of its result files."""
    candidates = [place] if place.is_file() else sorted(place.glob("*.json"))
    for file in candidates:
        try:
            dataset = msgspec.json.decode(file.read_bytes(), type=_NamesDataset).dataset
        except (msgspec.MsgspecError, OSError, RecursionError, UnicodeDecodeError):
            continue
        parts = Path(dataset).parts
        if parts and file.absolute().parent.parts[-len(parts) :] == parts:
            return file.absolute().parents[len(parts)], dataset
    return place, None


class _NamesDataset(msgspec.Struct):
    """The field of a result file that says where it lies."""

    dataset: str


def _build_no_results_error(folder: Path, problems: Sequence[Problem]) -> NotFound:
    unread = f" {len(problems)} cannot be read, {problems[0].entry}: {problems[0].message}." if problems else ""
    return NotFound(
        f"{folder} holds no result files <dataset>/<label>.json.{unread} Write some with  "
        f"toolscout lab bench DATASET --recipe R --out {folder}"
    )


def _group_by_dataset(results: Sequence[Result], sweeps: Sequence[SweepResult]) -> dict[str, list[Result]]:
    """Map each dataset to its results, best first; datasets with sweeps alone come last."""
    sets: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: (result.dataset, -result.quality, result.label)):
        sets.setdefault(result.dataset, []).append(result)
    for name in sorted({swept.dataset for swept in sweeps} - sets.keys()):
        sets[name] = []
    return sets


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a report into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UserError(f"The report cannot be written to {folder}: {error.strerror}. Choose another --out.") from None


def _collect_failures(
    folder: Path, data: Path | None, results: Sequence[Result], problems: list[Problem], notes: list[str]
) -> dict[str, Record]:
    """Return label → `anatomy.failures` for labels with a run file; add to `problems` or `notes` what is wrong."""
    runs = {result.label: folder / result.dataset / f"{result.label}.run.gz" for result in results}
    with_run = [result for result in results if runs[result.label].is_file()]
    if not with_run:
        return {}
    name = results[0].dataset
    if data is None or not (data / name / "queries.jsonl").is_file():
        cause = f"{data / name} holds no dataset" if data else "neither --data nor TOOLSCOUT_DATA is set"
        notes.append(f"{name}: failures per tool are not shown, because {cause}.")
        return {}
    failures_by_label: dict[str, Record] = {}
    try:
        dataset = Dataset.load(data / name, root=data)
        for result in with_run:
            path = runs[result.label]
            if _is_of_another_result(path, result):
                entry = path.relative_to(folder).as_posix()
                problems.append(Problem(entry, f"expected the rankings that {result.label}.json was computed from"))
                continue
            rankings = {query: [tool for tool, _ in hits] for query, hits in read_run(path).items()}
            failures_by_label[result.label] = failures(rankings, dataset.split(result.split), dataset.queries)
    except UserError as error:
        notes.append(f"{name}: failures per tool are not shown: {error}.")
        return {}
    return failures_by_label


def _is_of_another_result(run: Path, result: Result) -> bool:
    """Return whether a run file is not the one that the result was computed from; old results do not say."""
    return bool(result.run_sha256) and result.run_sha256 != hashlib.sha256(run.read_bytes()).hexdigest()


def _read_decisions(
    folder: Path, results: Sequence[Result], problems: list[Problem]
) -> tuple[dict[str, float], dict[str, Curves]]:
    """Return label → AUROC, and label → curves of its detect file; add unreadable files to `problems`."""
    areas: dict[str, float] = {}
    curves: dict[str, Curves] = {}
    for result in results:
        path = folder / result.dataset / f"{result.label}.detect.gz"
        if NEED_MEASURE not in result.metrics or not path.is_file():
            continue
        try:
            rows = read_detect(path)
            curves[result.label] = detection_curves([label for _, label, _ in rows], [need for _, _, need in rows])
        except (UserError, ValueError) as error:
            problems.append(Problem(path.relative_to(folder).as_posix(), str(error)))
            continue
        areas[result.label] = result.metrics[NEED_MEASURE]
    return areas, curves


def _make_slugs(names: Iterable[str]) -> dict[str, str]:
    """Return name → a unique text that is safe as part of a file name."""
    slugs: dict[str, str] = {}
    for name in names:
        slug = base = re.sub(r"[^a-z0-9_]+", "-", name.lower())[:60].strip("-") or "set"
        for number in itertools.count(2):
            if slug not in slugs.values():
                break
            slug = f"{base}-{number}"
        slugs[name] = slug
    return slugs
