"""The kinds of tables about the papers: what they contain, and ToolRerank's subsets and figures on dev."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from table_layout import MAX_LINE_CHARS, RESULTS, ROOT, lay_out, read_present

from toolscout_lab.reproduce import PAPERS, STATES, Figures, load_papers, write_page

CASE_CHARS = 320  # of a reply that is quoted
DEV_MEASURES = ("recall@5", "ndcg@5", "comp@5")
DETECTION_MEASURES = ("recall@3", "recall@5", "ndcg@5", "comp@5")
DETECTION_CONTROLS = {
    "shuffled": "h of another query",
    "mean": "mean h",
    "zero": "no h",
    "no_joint": "no joint part",
    "encoder": "the encoder alone",
}
TOOLBENCH_SUBSETS = (
    "G1_instruction",
    "G1_tool",
    "G1_category",
    "G2_instruction",
    "G3_instruction",
    "G2_category",
)


def write_pages(root: Path = ROOT) -> dict[Path, str]:
    """The pages of the papers that are below docs/results/papers."""
    pages = {name: root / "docs" / "results" / "papers" / f"{name}.md" for name in PAPERS}
    figures = Figures(RESULTS)
    return {page: write_page(name, figures) for name, page in pages.items() if page.exists()}


def tabulate_papers(words: Sequence[str]) -> list[str]:
    """How many items of each paper are in which state."""
    papers = load_papers()
    rows = [
        [f"[{paper.title}](papers/{name}.md)", str(len(paper.rows)), *(str(paper.count(state)) for state in STATES)]
        for name, paper in papers.items()
    ]
    totals = [sum(len(paper.rows) for paper in papers.values())]
    totals += [sum(paper.count(state) for paper in papers.values()) for state in STATES]
    return lay_out(["paper", "items", *STATES], [*rows, ["all", *map(str, totals)]])


def tabulate_subsets(words: Sequence[str]) -> list[str]:
    """ToolRerank's tables 3 and 6: each label on ToolBench's six subsets, and the means that the paper takes."""
    name, measure, *labels = words
    results = read_present(name, labels)
    columns = {kind: (kind,) for kind in TOOLBENCH_SUBSETS}
    columns |= {"single": TOOLBENCH_SUBSETS[:3], "multi": TOOLBENCH_SUBSETS[3:], "mean": TOOLBENCH_SUBSETS}
    rows = []
    for label, result in results.items():
        kinds = result["slices"]["kind"]
        means = [100 * sum(kinds[kind][measure] for kind in kinds_of) / len(kinds_of) for kinds_of in columns.values()]
        rows.append([f"`{label}`", *(f"{mean:.1f}" for mean in means)])
    return lay_out([measure, *(head.replace("_", " ") for head in columns)], rows)


def tabulate_dev(words: Sequence[str]) -> list[str]:
    """Figures on dev of each label, pooled over its folds: each counts as often as it has dev queries."""
    name, *labels = words
    rows = []
    for label, result in read_present(name, labels).items():
        sizes = [fit["data"]["n_dev"] for fit in result["fitted"]]
        means = [
            sum(size * fit["dev"][measure] for size, fit in zip(sizes, result["fitted"], strict=True)) / sum(sizes)
            for measure in DEV_MEASURES
        ]
        rows.append([f"`{label}`", *(f"{100 * mean:.1f}" for mean in (*means, sum(means)))])
    return lay_out([f"{name}, dev of the folds", *DEV_MEASURES, "sum"], rows)


def tabulate_dev_differences(words: Sequence[str]) -> list[str]:
    """Differences of labels from the first in the sum of three measures on dev: by fold, and over all dev queries.

    The standard error is that of the mean of the folds' differences.
    """
    name, first, *labels = words
    results = read_present(name, [first, *labels])
    sums = {
        label: [100 * sum(fit["dev"][measure] for measure in DEV_MEASURES) for fit in result["fitted"]]
        for label, result in results.items()
    }
    sizes = [fit["data"]["n_dev"] for fit in results[first]["fitted"]]
    rows = []
    for label in labels:
        differences = [value - other for value, other in zip(sums[label], sums[first], strict=True)]
        mean = sum(size * value for size, value in zip(sizes, differences, strict=True)) / sum(sizes)
        error = statistics.stdev(differences) / len(differences) ** 0.5
        rows.append([f"`{label}`", *(f"{value:+.1f}" for value in (*differences, mean)), f"{error:.1f}"])
    folds = [f"fold {number} ({size})" for number, size in enumerate(sizes, 1)]
    return lay_out([f"dev, less `{first}`", *folds, "all", "std. error"], rows)


def tabulate_detection(words: Sequence[str]) -> list[str]:
    """Models that learned to detect against those that did not, and what the controls take from those that did.

    `words` are the dataset and the name of a file of `benchmarks/detection_controls.py`.
    """
    dataset, file = words
    content = json.loads((ROOT / "benchmarks" / "results" / file).read_text(encoding="utf-8"))
    [arm] = [arm for arm in content["arms"] if arm["dataset"] == dataset]
    rows = [
        [label, *(f"{100 * arm[kind]['metrics'][measure]:.1f}" for measure in DETECTION_MEASURES)]
        for label, kind in (("detection learned", "detecting"), ("not learned", "other"))
    ]
    tests = [arm["difference"][measure] for measure in DETECTION_MEASURES]
    rows.append(["**difference (95 %; p)**", *map(_describe_test, tests)])
    models = [model for model in content["models"] if model["dataset"] == dataset and model["detects"]]
    for name, label in DETECTION_CONTROLS.items():
        controls = [model["controls"][name] for model in models]
        means = [
            100 * statistics.fmean(control["metrics"][measure] for control in controls)
            for measure in DETECTION_MEASURES
        ]
        cosines = [control["joint_cosine"] for control in controls if "joint_cosine" in control]
        cosine = f" (cosine {statistics.fmean(cosines):.2f})" if cosines else ""
        rows.append([label + cosine, *(f"{mean:.1f}" for mean in means)])
    seeds = ", ".join(map(str, arm["seeds"]))
    return lay_out([f"{dataset}, test, seeds {seeds}", *DETECTION_MEASURES], rows)


def _describe_test(test: dict[str, Any]) -> str:
    low, high = test["ci95"]
    return f"{100 * test['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}; {test['p_holm']:.2f})"


def tabulate_small_model(words: Sequence[str]) -> list[str]:
    """What each feature cost with the small language model (`cost`), or what came of it (`figures`)."""
    records: dict[str, dict[str, Any]] = json.loads((RESULTS / "language-model.json").read_text())
    if words[0] == "figures":
        rows = []
        for name, record in records.items():
            width = MAX_LINE_CHARS - len(f"| {name} |  |")
            rows.append([name, textwrap.shorten(describe_small_model(record["figures"]), width, placeholder=" …")])
        return lay_out(["feature", "what came of it"], rows, text_columns=2)
    heads = ["feature", "calls", "tokens in", "tokens out", "asked again", "skipped", "seconds"]
    return lay_out(
        heads,
        [
            [
                name,
                *(f"{record[key]:,}" for key in ("calls", "tokens_in", "tokens_out", "repaired")),
                ", ".join(f"{count} {reason}" for reason, count in record["skips"].items()) or "0",
                f"{record['seconds']:,.0f}",
            ]
            for name, record in records.items()
        ],
    )


def describe_small_model(figures: dict[str, Any]) -> str:
    """Write the figures of a feature in one line."""
    parts = []
    for name, value in figures.items():
        if isinstance(value, dict) and "recall@5" in value:
            parts.append(f"{name}: recall@5 {100 * value['recall@5']:.1f}")
        elif name == "drops":
            parts.append(
                "dropped: "
                + (", ".join(f"{count} {reason}" for reason, count in value.items() if "too_" not in reason) or "none")
            )
        elif name in ("results", "polished_or_raw"):
            parts += [
                f"{row['a']} against {row['b']}: {row['win']} won, {row['tie']} tied, {row['loss']} lost"
                for row in value
            ]
        elif name == "conditions":
            parts += [
                f"{row['condition']}: success {'none judged' if row['success'] is None else row['success']}, "
                f"{row['solved_without_call']} without a call"
                for row in value
            ]
        elif name == "notes":
            parts += [f"{count} × {note.rstrip('.')}" for note, count in value.items()]
        elif isinstance(value, (int, float)):
            parts.append(f"{name.replace('_', ' ')} {value}")
    return "; ".join(parts)


def tabulate_query_words(words: Sequence[str]) -> list[str]:
    """Length of queries, how many join needs, and how many of their words their tools have."""
    content = json.loads((RESULTS / "query-words.json").read_text())["datasets"]
    heads = ["test queries of", "words", "sentences", "say *also*, *then*, …", "terms that a gold tool has"]
    return lay_out(
        heads,
        [
            [
                name,
                *(f"{figures[key]:.1f}" for key in ("words", "sentences")),
                *(f"{100 * figures[key]:.0f} %" for key in ("joined", "terms_in_gold_tools")),
            ]
            for name, figures in content.items()
        ],
    )


def tabulate_stage_costs(words: Sequence[str]) -> list[str]:
    """Processor time and memory of a search with each method of Tool2Vec's paper."""
    methods = json.loads((RESULTS / "stage-costs.json").read_text())["methods"]
    rows = [
        [f"`{recipe}`", f"{figures['cpu_ms']:.1f}", f"{figures['mb'] / 1000:.2f}"]
        for recipe, figures in methods.items()
    ]
    return lay_out(["recipe", "processor time of a search, ms", "memory of the process, GB"], rows)


def tabulate_paper_seeds(words: Sequence[str]) -> list[str]:
    """Each idea's gain over the simpler method on each dataset, in the mean over the seeds, with interval and p."""
    path = RESULTS / "paper-seeds.json"
    ideas = json.loads(path.read_text())["ideas"] if path.exists() else {}
    if not ideas:
        return []

    def show(test: dict[str, Any]) -> str:
        low, high = (100 * end for end in test["ci95"])
        return f"{100 * test['difference']:+.1f} ({low:+.1f} to {high:+.1f}; {test['p_holm']:.3f})"

    names = next(iter(ideas.values()))
    rows = [[name, *(show(figures[name][words[0]]) for figures in ideas.values())] for name in names]
    return lay_out([f"{words[0]} (95 %; p)", *(f"`{recipe}`" for recipe in ideas)], rows)


def tabulate_feedback_rounds(words: Sequence[str]) -> list[str]:
    """Quality and seconds after each round of feedback with the small language model."""
    record = json.loads((RESULTS / "language-model.json").read_text())["feedback"]["figures"]
    measures = ("recall@5", "ndcg@5", "comp@5")
    rows = [
        [str(row["round"]), *(f"{100 * row[measure]:.1f}" for measure in measures), f"{row['seconds']:.0f}"]
        for row in record["rounds"]
    ]
    return lay_out(["round", *measures, "seconds a query"], rows)


def quote_case(words: Sequence[str]) -> list[str]:
    """Quote texts that a paper shows as examples: of queries, or of what the small language model wrote."""
    lines: list[str] = []
    if words[0] == "queries":
        content = json.loads((RESULTS / "query-words.json").read_text())["datasets"]
        lines = [f"{name}: {text}" for name in words[1:] for text in content[name]["examples"]]
    else:
        record = json.loads((RESULTS / "language-model.json").read_text())[words[0]]["figures"]
        lines = QUOTED_CASES[words[0]](record["cases"])
    wrapped = [part for line in lines for part in textwrap.wrap(line, MAX_LINE_CHARS, subsequent_indent="  ")]
    return ["```text", *wrapped, "```"]


def _quote_polish(cases: Sequence[dict[str, Any]]) -> list[str]:
    return [line for case in cases for line in (f"before: {case['raw']}", f"after: {case['polished'].strip()}")]


def _quote_feedback(cases: Sequence[dict[str, Any]]) -> list[str]:
    case = cases[-1]
    lines = [f"request: {case['query']}", f"gold tools: {', '.join(case['gold'])}"]
    for number, hits in enumerate(case["first_hits"]):
        lines.append(f"first tools of round {number}: {', '.join(hits)}")
    for prompt, reply in case["replies"]:
        text = json.dumps(reply, ensure_ascii=False)
        lines.append(f"{prompt}: {text[:CASE_CHARS]}{' …' if len(text) > CASE_CHARS else ''}")
    return lines + [f"result: {note}" for note in case["notes"]]


def _quote_answers(cases: Sequence[dict[str, Any]]) -> list[str]:
    case = cases[0]
    lines = [f"request: {case['request']}"]
    for system in ("bm25", "hybrid", "gold"):
        lines.append(f"tools of {system}: {', '.join(case[system]['tools'])}")
        lines.append(f"answer with them: {' '.join(case[system]['answer'].split())}")
    return lines


QUOTED_CASES: dict[str, Callable[[Sequence[dict[str, Any]]], list[str]]] = {
    "polish": _quote_polish,
    "feedback": _quote_feedback,
    "answers": _quote_answers,
}


PAPER_KINDS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "papers": tabulate_papers,
    "small-model": tabulate_small_model,
    "query-words": tabulate_query_words,
    "stage-costs": tabulate_stage_costs,
    "feedback-rounds": tabulate_feedback_rounds,
    "paper-seeds": tabulate_paper_seeds,
    "case": quote_case,
    "subsets": tabulate_subsets,
    "dev": tabulate_dev,
    "dev-differences": tabulate_dev_differences,
    "detection": tabulate_detection,
}
