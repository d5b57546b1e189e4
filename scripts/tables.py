"""Writes the tables and figures of results into README.md and the documentation, from benchmarks/results.

A figure in a sentence is followed by `<!--= WHAT -->`, and is written as WHAT says:

    SET LABEL MEASURE          of a result, in percent, one decimal
    mean GROUP LABEL MEASURE   the mean over a group of sets: all, trained, untrained or clean
    FILE.json KEY/KEY FORMAT   a value of a file in benchmarks/results, in Python's format (`,d`, `.1f`)

In README.md every decimal fraction outside of code must stand in a table that is written here, or before such a mark.
A page holds, around each table, `<!-- table KIND LABEL… -->` and `<!-- end of table -->`:

    headline WHICH     README's: zero-shot or toollens
    means LABEL…       NDCG@5 / COMP@5 of each label on each of the fourteen sets, and the means
    trained LABEL…     the same on the eight sets with training queries; `-` where there is no result
    sets LABEL         more figures of one label on each set that has a result, beside those of hybrid-minilm
    labels LABEL…      more figures of each label on ToolLens
    intervals SET LABEL…
                       three figures of each label on a set, with 95 % intervals
    transfer SET LABEL…
                       NDCG@1/3/5/10 of what was fitted on a set, there and on others
    parents SET LABEL…
                       figures of each label on a set, by whether training saw the parents of the gold tools
    golds SET LABEL…   the same of each label, by how many gold tools a query has
    sweeps SET LABEL…  what each sweep of a recipe found on dev
    swept LABEL SET…   what one sweep found on the dev of several sets, and the mean of both figures over all of them
    versus SET A B…    how far A is above each B on a set (benchmarks/versus.py), and by parents; 95 % intervals, p;
                       p is corrected by Holm for the measures among all queries, not among parts of them. A table
                       for each cut-off, so that a row fits into 120 characters
    learning NAME      quality after each part of replayed traffic (benchmarks/learning.py)
    hidden LABEL…      whether tools are found that training never saw (benchmarks/hidden_tools.py), three draws each

With `--check` nothing is written, and the exit code is 1 if a page is out of date. With `--provenance` it counts
instead, for each label, the results whose commit is an ancestor of HEAD, and those that were made by changed code or by
a commit that nobody can reach, into benchmarks/results/provenance.md (with `--check` it only says how many).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolscout.checks.results import CLEAN, PUBLISHED, TRAINED, UNTRAINED, read_results

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHOWN = ("ndcg@5", "comp@5")
MORE = ("recall@3", "recall@5", "ndcg@5", "comp@3", "comp@5", "comp@|N|")
BESIDE = "hybrid-minilm"
GAINS = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
TARGETS = ("toolbench", "ultratool", "bfcl", "hammerbench")
BY_GOLDS = ("recall@5", "comp@5", "comp@|N|")
SWEPT = ("recall@5", "ndcg@5", "comp@5", "detect_auroc")
KINDS_OF_PARENTS = ("seen", "mixed", "unseen")
HEADS = " | ".join(name.replace("|", "\\|") for name in MORE)
TABLE = re.compile(r"(<!-- table (\S+) (.+?) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


FIGURE = re.compile(r"([\d,]+(?:\.\d+)?)(?=\**(?: %)?\**<!--= (.+?) -->)")
BARE = re.compile(r"(?<![\w.-])(?<!Python )(?<!Swagger )\d+\.\d+(?!\**(?: %)?\**<!--= )")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
GROUPS = {"all": (*TRAINED, *UNTRAINED), "trained": TRAINED, "untrained": UNTRAINED, "clean": CLEAN}
READ_ALL, READ_SOME = "²", "¹"


def result(name: str, label: str) -> dict[str, Any] | None:
    path = RESULTS / name / f"{label}.json"
    return json.loads(path.read_text()) if path.exists() else None


def cell(held: Sequence[dict[str, Any] | None]) -> str:
    """Mean NDCG@5 / COMP@5 in percent; `-` where a result is missing."""
    known = [each["metrics"] for each in held if each]
    if len(known) < len(held):
        return "-"
    return " / ".join(f"{100 * sum(each[name] for each in known) / len(known):.1f}" for name in SHOWN)


def by_set(names: Sequence[str], groups: Sequence[tuple[str, Sequence[str]]], labels: Sequence[str]) -> list[str]:
    rows = ["| set | " + " | ".join(labels) + " |", "|---|" + "---:|" * len(labels)]
    for name in sorted(names):
        cells = (cell([result(name, label)]) for label in labels)
        rows.append(f"| {name}{mark_read(name)} | " + " | ".join(cells) + " |")
    for title, some in groups:
        cells = (cell([result(name, label) for name in some]) for label in labels)
        rows.append(f"| **{title}** | " + " | ".join(cells) + " |")
    return rows


def means(labels: Sequence[str]) -> list[str]:
    groups = [("mean of all 14", (*TRAINED, *UNTRAINED)), ("mean of the 8 with train", TRAINED)]
    groups += [("mean of the 6 without", UNTRAINED), ("mean of the 3 that nothing was read or chosen of", CLEAN)]
    return by_set((*TRAINED, *UNTRAINED), groups, labels)


def mark_read(name: str) -> str:
    """The mark of a set of whose tools the bundled encoder has read all, or some; "": none."""
    counts = value_in("contamination.json", f"tools|{name}", "|")
    return READ_ALL if counts["corpus_was_read"] else READ_SOME * (counts["same_name_and_description"] > 0)


def value_in(file: str, path: str, separator: str = "/") -> Any:
    """A value inside a JSON file of benchmarks/results."""
    found = json.loads((RESULTS / file).read_text())
    for key in path.split(separator):
        found = found[key]
    return found


def figure(spec: str) -> str:
    """What a figure in a sentence must say."""
    words = spec.split()
    if words[0].endswith(".json"):
        return format(value_in(words[0], words[1]), words[2])
    names = GROUPS[words[1]] if words[0] == "mean" else [words[0]]
    held = [result(name, words[-2]) for name in names]
    if not all(held):
        sys.exit(f"There is no result for the figure {spec!r}. Measure it, or take its mark out of the page.")
    return f"{100 * sum(each['metrics'][words[-1]] for each in held if each) / len(held):.1f}"


def headline(which: Sequence[str]) -> list[str]:
    return {"zero-shot": zero_shot, "toollens": headline_toollens}[which[0]]()


def zero_shot() -> list[str]:
    labels = ("bm25-plain", "dense-minilm", "rrf-minilm", "hybrid", "hybrid-minilm")
    heads = ("BM25 as libraries ship it", "all-MiniLM-L6-v2", "both, fused by rank", "**toolscout, as installed**")
    rows = [
        f"| NDCG@5 / all needed tools in the first 5 (COMP@5) | {' | '.join(heads)} | toolscout with MiniLM |",
        "|---|" + "---:|" * len(labels),
    ]
    for title, names in (
        ("mean of 14 public test sets, without their training queries", GROUPS["all"]),
        ("mean of the 3 that nothing was read or chosen of", CLEAN),
    ):
        cells = [cell([result(name, label) for name in names]) for label in labels]
        cells[3] = f"**{cells[3]}**"
        rows.append(f"| {title} | {' | '.join(cells)} |")
    speed = json.loads((RESULTS / "speed.json").read_text())
    cells = [
        f"{speed[key]['p50_ms']:.1f} ms" if key in speed else "" for key in ("hybrid_search", "hybrid_minilm_search")
    ]
    rows.append(f"| one search among {speed['tools']:,} tools, one thread, median | | | | {' | '.join(cells)} |")
    return rows


def headline_toollens() -> list[str]:
    light, seeds = result("toollens", "mlc-light"), [result("toollens", f"mlc{seed}") for seed in ("", "-s1", "-s2")]
    minutes = sorted(each["fit_seconds"] / 60 for each in seeds if each)
    papers = [paper.metrics for paper in PUBLISHED["toollens"]]
    best = [max(paper[name] for paper in papers if name in paper) for name in ("recall@5", "comp@5")]
    assert light is not None
    heads = (
        "learned from logged queries: ToolLens test",
        "hybrid, no learning",
        f"`mlc-light`, {light['fit_seconds']:.0f} s of training, no torch",
        f"`mlc`, {minutes[0]:.0f} to {minutes[-1]:.0f} minutes",
        "best published (ToolRefiner + MLC; COLT)",
    )
    shown = [
        [100 * (result("toollens", label) or {})["metrics"][name] for name in ("recall@5", "comp@5")]
        for label in ("hybrid", "mlc-light", "mlc")
    ]
    cells = [f"{recall:.1f} / {comp:.1f}" for recall, comp in [*shown, best]]
    cells[1:3] = [f"**{each}**" for each in cells[1:3]]
    rows = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * len(cells)]
    return [*rows, f"| recall@5 / COMP@5 | {' | '.join(cells)} |"]


def count_provenance() -> tuple[list[str], int, int]:
    """A table of each label's results by where they come from; how many are of a clean commit, of how many."""
    log = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    reachable = sorted(log.stdout.split())
    kinds = ("clean", "dirty", "unreachable", "none")
    counts: dict[str, Counter[str]] = {}
    results, _ = read_results(RESULTS)
    for each in results:
        raw = json.loads((RESULTS / each.dataset / f"{each.label}.json").read_text())
        short = (each.commit or "").removesuffix("-dirty")
        if not each.commit:
            kind = "none"
        elif raw.get("dirty") or each.commit.endswith("-dirty"):
            kind = "dirty"
        else:
            kind = "clean" if any(commit.startswith(short) for commit in reachable) else "unreachable"
        counts.setdefault(each.label, Counter())[kind] += 1
    total = sum(counts.values(), Counter())
    rows = [
        "# Where the results come from",
        "",
        "`python scripts/tables.py --provenance` writes this. *Clean*: made by the code of a commit that this history "
        "holds. *Dirty*: by",
        "changed code. *Unreachable*: the commit is not in this history. *None*: the result names no commit.",
        "",
        f"| label | {' | '.join(kinds)} |",
        "|---|" + "---:|" * len(kinds),
    ]
    for label in sorted(counts):
        rows.append(f"| {label} | {' | '.join(str(counts[label][kind] or '') for kind in kinds)} |")
    rows.append(f"| **all** | {' | '.join(str(total[kind]) for kind in kinds)} |")
    return rows, total["clean"], total.total()


def trained(labels: Sequence[str]) -> list[str]:
    return by_set(TRAINED, [("mean", TRAINED)], labels)


def figures(held: dict[str, Any]) -> str:
    metrics = " | ".join(f"{100 * held['metrics'][name]:.1f}" for name in MORE)
    p50 = held["latency_ms"].get("p50")  # none where a language model was asked
    return f"{metrics} | {held['fit_seconds']:,.0f} | {'' if p50 is None else f'{p50:.1f}'}"


def sets(labels: Sequence[str]) -> list[str]:
    [label] = labels
    rows = [f"| set | {HEADS} | fit, s | p50, ms | {BESIDE} |", "|---|" + "---:|" * (len(MORE) + 3)]
    for name in sorted(TRAINED):
        held = result(name, label)
        if held:
            rows.append(f"| {name} | {figures(held)} | {cell([result(name, BESIDE)])} |")
    return rows


def labels_of_toollens(labels: Sequence[str]) -> list[str]:
    rows = [f"| recipe | {HEADS} | fit, s | p50, ms |", "|---|" + "---:|" * (len(MORE) + 2)]
    for label in labels:
        held = result("toollens", label)
        if held:
            rows.append(f"| `{label}` | {figures(held)} |")
    return rows


def intervals(labels: Sequence[str]) -> list[str]:
    name, *recipes = labels
    names = ("recall@5", "ndcg@5", "comp@5")
    rows = [f"| {name} | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for label in recipes:
        held = result(name, label)
        if held:
            ends = {each: " to ".join(f"{100 * end:.1f}" for end in held["ci95"][each]) for each in names}
            cells = (f"{100 * held['metrics'][each]:.1f} ({ends[each]})" for each in names)
            rows.append(f"| `{label}` | " + " | ".join(cells) + " |")
    return rows


def transfer(labels: Sequence[str]) -> list[str]:
    source, *recipes = labels
    names = (source, *(name for name in TARGETS if name != source))
    rows = [f"| fitted on {source} | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for label in recipes:
        held = [result(name, f"{label}-from-{source.replace('/', '-')}") for name in names]
        cells = (" / ".join(f"{100 * each['metrics'][name]:.1f}" for name in GAINS) if each else "-" for each in held)
        rows.append(f"| `{label}` | " + " | ".join(cells) + " |")
    return rows


def hidden(labels: Sequence[str]) -> list[str]:
    held = json.loads((RESULTS / "hidden-tools.json").read_text())["metatool"]
    names = ("hidden", "dense", "seen", "seen_without_hidden")
    rows = ["| recipe | hidden | `dense` there | seen | seen, hidden tools taken out |", "|---|---|---|---|---|"]
    for label in labels:
        cells = (", ".join(f"{draw[name]:.1f}" for draw in held[label]) for name in names)
        rows.append(f"| `{label}` | " + " | ".join(cells) + " |")
    return rows


def golds(labels: Sequence[str]) -> list[str]:
    name, *recipes = labels
    held = {label: found["slices"]["gold"] for label in recipes if (found := result(name, label))}
    kinds = sorted({(kind, each["n"]) for slices in held.values() for kind, each in slices.items()})
    heads = " | ".join(f"{kind} ({n:,})" for kind, n in kinds)
    rows = [f"| {name}, recall@5 / comp@5 / comp@\\|N\\| by gold tools | {heads} |", "|---|" + "---:|" * len(kinds)]
    for label, slices in held.items():
        cells = [" / ".join(f"{100 * slices[kind][each]:.1f}" for each in BY_GOLDS) for kind, _ in kinds]
        rows.append(f"| `{label}` | {' | '.join(cells)} |")
    return rows


def sweeps(labels: Sequence[str]) -> list[str]:
    name, *recipes = labels
    held = [json.loads((RESULTS / name / f"{label}.sweep.json").read_text()) for label in recipes]
    shown = [each for each in SWEPT if all(each in trial["dev"] for found in held for trial in found["trials"])]
    rows = [f"| {name}, dev | {' | '.join(shown)} |", "|---|" + "---:|" * len(shown)]
    for found in held:
        for trial in sorted(found["trials"], key=lambda trial: _place(found["over"], trial["settings"])):
            told = ", ".join(f"`{setting}` {value}" for setting, value in trial["settings"].items())
            values = " | ".join(f"{100 * trial['dev'][each]:.1f}" for each in shown)
            rows.append(f"| {told} | {values} |")
    return rows


def swept(labels: Sequence[str]) -> list[str]:
    label, *names = labels
    held = [json.loads((RESULTS / name / f"{label}.sweep.json").read_text()) for name in names]
    heads = " | ".join(f"{found['dataset']} ({found['n_dev']:,})" for found in held)
    rows = [f"| dev, ndcg@5 / comp@5 | {heads} | mean of all |", "|---|" + "---:|" * (len(held) + 1)]
    if any(found["over"] != held[0]["over"] or len(found["trials"]) != len(held[0]["trials"]) for found in held):
        sys.exit(f"{label}: expected the same combinations for {', '.join(names)}, found others: sweep them anew")
    by_settings = [{json.dumps(trial["settings"]): trial for trial in found["trials"]} for found in held]
    for trial in sorted(held[0]["trials"], key=lambda trial: _place(held[0]["over"], trial["settings"])):
        told = ", ".join(f"`{setting}` {value}" for setting, value in trial["settings"].items())
        pairs = [[each[json.dumps(trial["settings"])]["dev"][name] for name in SHOWN] for each in by_settings]
        cells = [" / ".join(f"{100 * value:.1f}" for value in pair) for pair in pairs]
        rows.append(f"| {told} | {' | '.join(cells)} | {100 * sum(map(sum, pairs)) / (2 * len(pairs)):.1f} |")
    return rows


def _place(over: dict[str, list[Any]], settings: dict[str, Any]) -> list[int]:
    """Where a combination stands in the order in which its values were given."""
    return [values.index(settings[setting]) for setting, values in over.items()]


def parents(labels: Sequence[str]) -> list[str]:
    name, *recipes = labels
    held = {label: found for label in recipes if (found := result(name, label))}
    slices = [found["slices"]["parents"] for found in held.values()]
    kinds = [kind for kind in KINDS_OF_PARENTS if any(kind in each for each in slices)]
    counts = [{each[kind]["n"] for each in slices if kind in each} for kind in kinds]
    if any(len(each) > 1 for each in counts):
        sys.exit(
            f"{name}: expected {', '.join(held)} over the same queries of each kind, found others: bench them anew"
        )
    heads = " | ".join(f"{kind} ({n})" for kind, [n] in zip(kinds, counts, strict=True))
    rows = [
        f"| {name}, ndcg@5 / recall@5 / recall@10 | all | {heads} | p50, ms |",
        "|---|" + "---:|" * (len(kinds) + 2),
    ]
    for label, found in held.items():
        cells = [found["metrics"], *(found["slices"]["parents"][kind] for kind in kinds)]
        shown = (
            " / ".join(f"{100 * cell[each]:.1f}" for each in ("ndcg@5", "recall@5", "recall@10")) for cell in cells
        )
        rows.append(f"| `{label}` | {' | '.join(shown)} | {found['latency_ms'].get('p50', 0):.0f} |")
    return rows


def versus(labels: Sequence[str]) -> list[str]:
    name, label, *others = labels
    path = RESULTS / "versus.json"
    held = json.loads(path.read_text()).get(name, {}) if path.exists() else {}
    there = {other: held[pair] for other in others if (pair := f"{label} {other}") in held}
    if not there:
        return []
    for other, found in there.items():
        if found["run_sha256"] != [(result(name, each) or {}).get("run_sha256") for each in (label, other)]:
            sys.exit(
                f"{name}: {label}, {other}: expected tests of the rankings that are there, found others: "
                "run benchmarks/versus.py"
            )
    tested = list(next(iter(there.values()))["tests"])
    rows: list[str] = []
    for cutoff in dict.fromkeys(measure.partition("@")[2] for measure in tested):  # one table would be too wide
        rows += [""] * bool(rows) + versus_at(name, label, there, [each for each in tested if each.endswith(cutoff)])
    return rows


def versus_at(name: str, label: str, there: dict[str, Any], measures: Sequence[str]) -> list[str]:
    """The table of some measures; a label that is compared by parents too has a row for itself above its groups."""
    grouped = any(len(found["parents"]) > 1 for found in there.values())
    counts = "" if grouped else f", {next(iter(there.values()))['n_queries']:,} queries"
    heads = " | ".join(f"{measure} (95 %; p)" for measure in measures)
    rows = [f"| `{label}` on {name}{counts}, against | {heads} |", "|---|" + "---:|" * len(measures)]
    for other, found in there.items():
        groups = {"all": {"n": found["n_queries"], **found["tests"]}}
        if grouped:
            groups |= {kind: found["parents"][kind] for kind in KINDS_OF_PARENTS if kind in found["parents"]}
            rows.append(f"| **`{other}`** |" + " |" * len(measures))
        for kind, group in groups.items():
            cells = (
                f"{100 * test['difference']:+.1f} ({100 * test['ci95'][0]:+.1f} to {100 * test['ci95'][1]:+.1f}; "
                f"{test.get('p_holm', test['p']):.4f})"
                for test in (group[each] for each in measures)
            )
            head = f"{kind} {group['n']:,}" if grouped else f"`{other}`"
            rows.append(f"| {head} | {' | '.join(cells)} |")
    return rows


def learning(names: Sequence[str]) -> list[str]:
    [name] = names
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return []
    rows = [
        "| part | requests so far | recall@5 | ndcg@5 | comp@5 | what `learn` did | seconds |",
        "|---:|---:|---:|---:|---:|---|---:|",
    ]
    for row in json.loads(path.read_text())["runs"][0]["rows"]:
        figures = " | ".join(f"{100 * row[measure]:.1f}" for measure in ("recall@5", "ndcg@5", "comp@5"))
        did = f"{row['outcome']} `{row['candidate'].rpartition('-')[0]}`" if row["part"] else "the recipe `hybrid`"
        took = f"{row['learn_wall_seconds']:.0f}" if row["part"] else ""
        rows.append(f"| {row['part']} | {row['queries']:,} | {figures} | {did} | {took} |")
    return rows


KINDS = {
    "headline": headline,
    "means": means,
    "trained": trained,
    "sets": sets,
    "labels": labels_of_toollens,
    "intervals": intervals,
    "transfer": transfer,
    "hidden": hidden,
    "golds": golds,
    "sweeps": sweeps,
    "swept": swept,
    "parents": parents,
    "versus": versus,
    "learning": learning,
}


def refresh(text: str) -> str:
    """A page with its tables and figures as the results have them."""
    text = TABLE.sub(lambda found: found[1] + "\n".join(KINDS[found[2]](found[3].split())) + "\n" + found[5], text)
    return FIGURE.sub(lambda found: figure(found[2]), text)


def find_unmarked(text: str) -> list[str]:
    """Decimal fractions of a page that stand neither in code, nor in a table from here, nor before a mark."""
    return BARE.findall(CODE.sub("", TABLE.sub("", text)))


def main() -> None:
    check = "--check" in sys.argv
    if "--provenance" in sys.argv:
        rows, clean, total = count_provenance()
        if not check:
            (RESULTS / "provenance.md").write_text("\n".join(rows) + "\n")
        sys.stdout.write(f"{clean} of {total} results are of a clean commit of this history\n")
        return
    late = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        fresh = refresh(text)
        if fresh != text:
            late.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(fresh)
    if late and check:
        sys.exit(f"Figures in {', '.join(late)} are not those of benchmarks/results. Run scripts/tables.py.")
    if unmarked := find_unmarked((ROOT / "README.md").read_text()):
        sys.exit(
            f"Figures in README.md name no result: {', '.join(unmarked)}. Put a mark (scripts/tables.py) after each."
        )


if __name__ == "__main__":
    main()
