"""The kinds of tables that scripts/tables.py writes, each from the files of benchmarks/results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from table_layout import (
    MAIN_MEASURES,
    RESULTS,
    join_percents,
    lay_out,
    mark_read,
    read_present,
    read_result,
    read_sweep,
    read_value,
    write_means,
)

from toolscout.checks.results import CLEAN, PUBLISHED, TRAINED, UNTRAINED

MORE_MEASURES = ("recall@3", "recall@5", "ndcg@5", "comp@3", "comp@5", "comp@|N|")
BASELINE_LABEL = "hybrid-minilm"
TRANSFER_MEASURES = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
TRANSFER_TARGETS = ("toolbench", "ultratool", "bfcl", "hammerbench")
GOLD_MEASURES = ("recall@5", "comp@5", "comp@|N|")
PARENT_MEASURES = ("ndcg@5", "recall@5", "recall@10")
INTERVAL_MEASURES = ("recall@5", "ndcg@5", "comp@5")
SWEEP_MEASURES = ("recall@5", "ndcg@5", "comp@5", "detect_auroc")
PARENT_KINDS = ("seen", "mixed", "unseen")
SEARCH_TITLES = {
    "hybrid_search": "`hybrid`",
    "hybrid_search_without_judgement": "`hybrid` that never abstains",
    "hybrid_minilm_search": "`hybrid-minilm`",
}
GROUPS = {
    "all": (*TRAINED, *UNTRAINED),
    "trained": TRAINED,
    "untrained": UNTRAINED,
    "clean": CLEAN,
    "targets": TRANSFER_TARGETS,
}


def tabulate_sets(
    names: Sequence[str], groups: Sequence[tuple[str, Sequence[str]]], labels: Sequence[str]
) -> list[str]:
    rows = [
        [f"{name}{mark_read(name)}", *(write_means([read_result(name, label)]) for label in labels)]
        for name in sorted(names)
    ]
    for title, members in groups:
        means = (write_means([read_result(name, label) for name in members]) for label in labels)
        rows.append([f"**{title}**", *means])
    return lay_out(["set", *labels], rows)


def tabulate_means(labels: Sequence[str]) -> list[str]:
    groups = [("mean of all 14", GROUPS["all"]), ("mean of the 8 with train", TRAINED)]
    groups += [("mean of the 6 without", UNTRAINED), ("mean of the 3 clean sets", CLEAN)]
    return tabulate_sets(GROUPS["all"], groups, labels)


def tabulate_trained(labels: Sequence[str]) -> list[str]:
    return tabulate_sets(TRAINED, [("mean", TRAINED)], labels)


def tabulate_headline(which: Sequence[str]) -> list[str]:
    return {"zero-shot": tabulate_zero_shot, "toollens": tabulate_toollens}[which[0]]()


def tabulate_zero_shot() -> list[str]:
    titles = {
        "bm25-plain": "BM25, as most libraries implement it",
        "dense-minilm": "all-MiniLM-L6-v2",
        "rrf-minilm": "this BM25 and all-MiniLM-L6-v2, fused by rank",
        "hybrid": "toolscout's `hybrid`, for requests of one step",
        "scout-installed": "**toolscout, as installed**",
        "scout-compact": "toolscout with the package `toolscout-compact`",
    }
    speed = json.loads((RESULTS / "speed.json").read_text())
    rows = []
    for label, title in titles.items():
        cells = [write_means([read_result(name, label) for name in GROUPS[group]]) for group in ("all", "clean")]
        bold = "**" if title.startswith("**") else ""
        times = speed.get(f"{label.replace('-', '_')}_search")
        rows.append([title, *(f"{bold}{cell}{bold}" for cell in cells), f"{times['p50_ms']:.1f} ms" if times else ""])
    heads = (
        "NDCG@5 / COMP@5, percent",
        "mean of 14 sets",
        "mean of 3 clean sets",
        "one search",
    )
    return [
        *lay_out(heads, rows),
        "",
        "COMP@5 is the share of requests with all their right tools among the first five. Our encoder's training data",
        f"has no tool of the clean sets. One search: the median time among {speed['tools']:,} tools, on one thread.",
    ]


def tabulate_toollens() -> list[str]:
    light, seeds = (
        read_result("toollens", "scout-light"),
        [read_result("toollens", f"mlc{s}") for s in ("", "-s1", "-s2")],
    )
    minutes = sorted(seed["fit_seconds"] / 60 for seed in seeds if seed)
    papers = [paper.metrics for paper in PUBLISHED["toollens"]]
    measures = ("recall@5", "comp@5")
    best = " / ".join(f"{max(paper[name] for paper in papers if name in paper):.1f}" for name in measures)
    assert light is not None
    titles = {
        "hybrid": "hybrid, no learning",
        "scout-light": f"**`scout-light`, {light['fit_seconds']:.0f} s of training, no torch**",
        "mlc": f"**`mlc`, {minutes[0]:.0f} to {minutes[-1]:.0f} minutes of training**",
    }
    rows = []
    for label, title in titles.items():
        cell = join_percents((read_result("toollens", label) or {})["metrics"], measures)
        rows.append([title, f"**{cell}**" if title.startswith("**") else cell])
    rows.append(["best published (ToolRefiner + MLC; COLT)", best])
    return lay_out(("learned from logged queries, ToolLens test", "recall@5 / COMP@5"), rows)


def list_figures(result: dict[str, Any]) -> list[str]:
    p50 = result["latency_ms"].get("p50")  # none where a language model was asked
    percents = (f"{100 * result['metrics'][name]:.1f}" for name in MORE_MEASURES)
    return [*percents, f"{result['fit_seconds']:,.0f}", "" if p50 is None else f"{p50:.1f}"]


def list_figure_heads() -> list[str]:
    return [*(name.replace("|", "\\|") for name in MORE_MEASURES), "fit, s", "search, ms"]


def tabulate_label(labels: Sequence[str]) -> list[str]:
    [label] = labels
    results = {name: result for name in sorted(TRAINED) if (result := read_result(name, label))}
    rows = [
        [name, *list_figures(result), write_means([read_result(name, BASELINE_LABEL)])]
        for name, result in results.items()
    ]
    return lay_out(["set", *list_figure_heads(), BASELINE_LABEL], rows)


def tabulate_labels(labels: Sequence[str]) -> list[str]:
    rows = [[f"`{label}`", *list_figures(result)] for label, result in read_present("toollens", labels).items()]
    return lay_out(["recipe", *list_figure_heads()], rows)


def tabulate_intervals(words: Sequence[str]) -> list[str]:
    name, *labels = words
    rows = []
    for label, result in read_present(name, labels).items():
        row = [f"`{label}`"]
        for measure in INTERVAL_MEASURES:
            low, high = result["ci95"][measure]
            row.append(f"{100 * result['metrics'][measure]:.1f} ({100 * low:.1f} to {100 * high:.1f})")
        rows.append(row)
    return lay_out([name, *INTERVAL_MEASURES], rows)


def tabulate_transfer(words: Sequence[str]) -> list[str]:
    source, *labels = words
    names = (source, *(name for name in TRANSFER_TARGETS if name != source))
    rows = []
    for label in labels:
        results = [read_result(name, f"{label}-from-{source.replace('/', '-')}") for name in names]
        cells = (join_percents(result["metrics"], TRANSFER_MEASURES) if result else "-" for result in results)
        rows.append([f"`{label}`", *cells])
    return lay_out([f"fitted on {source}", *names], rows)


def tabulate_hidden(labels: Sequence[str]) -> list[str]:
    draws = json.loads((RESULTS / "hidden-tools.json").read_text())["metatool"]
    kinds = ("hidden", "dense", "seen", "seen_without_hidden")
    rows = [
        [f"`{label}`", *(", ".join(f"{draw[kind]:.1f}" for draw in draws[label]) for kind in kinds)] for label in labels
    ]
    heads = ("recipe", "hidden", "`dense` there", "seen", "seen, hidden tools taken out")
    return lay_out(heads, rows, text_columns=len(heads))


def tabulate_unseen(labels: Sequence[str]) -> list[str]:
    draws = json.loads((RESULTS / "hidden-tools.json").read_text())["metatool"]
    rows = []
    for label in labels:
        hidden, dense, seen, without = (
            sum(draw[kind] for draw in draws[label]) / len(draws[label])
            for kind in ("hidden", "dense", "seen", "seen_without_hidden")
        )
        means = (f"{hidden:.1f}", f"{dense:.1f}", f"{hidden - dense:+.1f}", f"{seen:.1f}", f"{without - seen:.1f}")
        rows.append([f"`{label}`", *means])
    return lay_out(("recipe", "hidden", "untrained", "difference", "seen", "cost"), rows)


def tabulate_golds(words: Sequence[str]) -> list[str]:
    name, *labels = words
    slices = {label: result["slices"]["gold"] for label, result in read_present(name, labels).items()}
    kinds = sorted({(kind, part["n"]) for parts in slices.values() for kind, part in parts.items()})
    rows = [
        [f"`{label}`", *(join_percents(parts[kind], GOLD_MEASURES) for kind, _ in kinds)]
        for label, parts in slices.items()
    ]
    head = f"{name}, recall@5 / comp@5 / comp@\\|N\\| by gold tools"
    return lay_out([head, *(f"{kind} ({n:,})" for kind, n in kinds)], rows)


def describe_trial(trial: dict[str, Any]) -> str:
    return ", ".join(f"`{setting}` {value}" for setting, value in trial["settings"].items())


def sort_trials(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """The trials in the order in which the values of each setting were given."""
    over = sweep["over"].items()
    return sorted(sweep["trials"], key=lambda trial: [values.index(trial["settings"][name]) for name, values in over])


def tabulate_sweeps(words: Sequence[str]) -> list[str]:
    name, *labels = words
    trials = [trial for label in labels for trial in sort_trials(read_sweep(name, label))]
    measures = [measure for measure in SWEEP_MEASURES if all(measure in trial["dev"] for trial in trials)]
    rows = [
        [describe_trial(trial), *(f"{100 * trial['dev'][measure]:.1f}" for measure in measures)] for trial in trials
    ]
    return lay_out([f"{name}, dev", *measures], rows)


def tabulate_swept(words: Sequence[str]) -> list[str]:
    label, *names = words
    sweeps = [read_sweep(name, label) for name in names]
    first = sweeps[0]
    if any(s["over"] != first["over"] or len(s["trials"]) != len(first["trials"]) for s in sweeps):
        sys.exit(f"{label}: the sweeps on {', '.join(names)} tried different combinations. Sweep them anew.")
    by_settings = [{json.dumps(trial["settings"]): trial for trial in sweep["trials"]} for sweep in sweeps]
    rows = []
    for trial in sort_trials(first):
        dev = [trials[json.dumps(trial["settings"])]["dev"] for trials in by_settings]
        mean = sum(figures[measure] for figures in dev for measure in MAIN_MEASURES) / (2 * len(dev))
        cells = (join_percents(figures, MAIN_MEASURES) for figures in dev)
        rows.append([describe_trial(trial), *cells, f"{100 * mean:.1f}"])
    heads = [f"{sweep['dataset']} ({sweep['n_dev']:,})" for sweep in sweeps]
    return lay_out(["dev, ndcg@5 / comp@5", *heads, "mean of all"], rows)


def tabulate_parents(words: Sequence[str]) -> list[str]:
    name, *labels = words
    results = read_present(name, labels)
    slices = [result["slices"]["parents"] for result in results.values()]
    kinds = [kind for kind in PARENT_KINDS if any(kind in parts for parts in slices)]
    counts = [{parts[kind]["n"] for parts in slices if kind in parts} for kind in kinds]
    if any(len(sizes) > 1 for sizes in counts):
        sys.exit(f"{name}: {', '.join(results)} were scored on different queries of a kind. Bench them anew.")
    rows = []
    for label, result in results.items():
        parts = [result["metrics"], *(result["slices"]["parents"][kind] for kind in kinds)]
        cells = (join_percents(part, PARENT_MEASURES) for part in parts)
        rows.append([f"`{label}`", *cells, f"{result['latency_ms'].get('p50', 0):.0f}"])
    heads = [f"{kind} ({n})" for kind, [n] in zip(kinds, counts, strict=True)]
    return lay_out([f"{name}, {' / '.join(PARENT_MEASURES)}", "all", *heads, "search, ms"], rows)


def write_figure(spec: str) -> str:
    """What a figure in a sentence or a cell must say; see `tables.py`."""
    words = spec.split()
    if words[0].endswith(".json"):
        return format(read_value(words[0], words[1]), words[2]).removesuffix("%")
    names = GROUPS[words[1]] if words[0] == "mean" else [words[0]]
    results = [read_result(name, words[-2]) for name in names]
    if not all(results):
        sys.exit(f"There is no result for the figure {spec!r}. Measure it, or take its mark out of the page.")
    return f"{100 * sum(result['metrics'][words[-1]] for result in results if result) / len(results):.1f}"


#: Name of a table → its header, and rows of a text and figures as `write_figure` takes them.
VALUES: dict[str, tuple[Sequence[str], Sequence[Sequence[str]]]] = {
    "need": (
        ("share called doubtful", "budget 0.02", "budget 0.05"),
        [
            (text, *(f"need.json bundled/mean/budgets/{budget}/{kind}/away .1%" for budget in ("0.02", "0.05")))
            for text, kind in (
                ("requests that a tool answers", "right"),
                ("requests that need no tool", "chat"),
                ("near misses: the right tool is missing", "near"),
            )
        ],
    ),
    "big": (
        ("what", "measured"),
        [
            ("tools in the catalogue", "speed.json tools ,d"),
            ("one search with `hybrid`, ms", "speed.json hybrid_search/p50_ms .1f"),
            ("adding the tools, s", "speed.json add_seconds .1f"),
            ("a sync where nothing changed, s", "speed.json sync_seconds .1f"),
            ("first search of a new process, s", "speed.json cold_search_seconds .2f"),
            ("memory of the service with 13,685 tools, MB", "load.json single/rss_mb .0f"),
            ("searches a second on one core, with 13,685 tools", "load.json single/queries_per_second .0f"),
        ],
    ),
    "stranger": (
        ("what works", "minutes after cloning"),
        [
            ("your own MCP servers can be searched", "stranger.json minutes/searched .1f"),
            ("the gateway works in a client", "stranger.json minutes/gateway .1f"),
            ("a model is fitted on replayed traffic, and measured", "stranger.json minutes/learned .1f"),
        ],
    ),
    "tokens": (
        ("what an agent reads before you ask anything, in tokens", "without", "with the gateway"),
        [
            (
                "four servers with 41 tools: names, descriptions, arguments",
                "gateway.json tokens/0/read/tokens ,d",
                "gateway.json tokens/0/read/gateway_tokens ,d",
            ),
            (
                "the same servers, with all fields of the tool lists, for clients that pass them on",
                "gateway.json tokens/0/listed/tokens ,d",
                "gateway.json tokens/0/listed/gateway_tokens ,d",
            ),
            (
                "10,000 tools, without the names of their sources",
                "gateway.json tokens/3/read/tokens ,d",
                "gateway.json tokens/3/read/gateway_tokens ,d",
            ),
        ],
    ),
}


def tabulate_values(words: Sequence[str]) -> list[str]:
    """A table of single figures of result files."""
    header, rows = VALUES[words[0]]
    return lay_out(
        header,
        [
            [text, *(write_figure(spec) + (" %" if spec.endswith("%") else "") for spec in specs)]
            for text, *specs in rows
        ],
    )


def tabulate_versus(words: Sequence[str]) -> list[str]:
    name, label, *others = words
    path = RESULTS / "versus.json"
    tested_pairs = json.loads(path.read_text()).get(name, {}) if path.exists() else {}
    pairs = {other: tested_pairs[pair] for other in others if (pair := f"{label} {other}") in tested_pairs}
    if not pairs:
        return []
    for other, pair in pairs.items():
        if pair["run_sha256"] != [(read_result(name, one) or {}).get("run_sha256") for one in (label, other)]:
            sys.exit(f"{name}: versus.json compares other rankings of {label} and {other}. Run benchmarks/versus.py.")
    tested = list(next(iter(pairs.values()))["tests"])
    lines: list[str] = []
    for cutoff in dict.fromkeys(measure.partition("@")[2] for measure in tested):  # one table would be too wide
        measures = [measure for measure in tested if measure.endswith(cutoff)]
        lines += [""] * bool(lines) + tabulate_cutoff(name, label, pairs, measures)
    return lines


def tabulate_cutoff(name: str, label: str, pairs: dict[str, Any], measures: Sequence[str]) -> list[str]:
    """The table of some measures; a label that is compared by parents too has a row for itself above its groups."""
    grouped = any(len(pair["parents"]) > 1 for pair in pairs.values())
    counts = "" if grouped else f", {next(iter(pairs.values()))['n_queries']:,} queries"
    rows = []
    for other, pair in pairs.items():
        groups = {"all": {"n": pair["n_queries"], **pair["tests"]}}
        if grouped:
            groups |= {kind: pair["parents"][kind] for kind in PARENT_KINDS if kind in pair["parents"]}
            rows.append([f"**`{other}`**", *("" for _ in measures)])
        for kind, group in groups.items():
            cells = (
                f"{100 * test['difference']:+.1f} ({100 * test['ci95'][0]:+.1f} to {100 * test['ci95'][1]:+.1f}; "
                f"{test.get('p_holm', test['p']):.4f})"
                for test in (group[measure] for measure in measures)
            )
            rows.append([f"{kind} {group['n']:,}" if grouped else f"`{other}`", *cells])
    heads = (f"{measure} (95 %; p)" for measure in measures)
    return lay_out([f"`{label}` on {name}{counts}, against", *heads], rows)


def tabulate_learning(names: Sequence[str]) -> list[str]:
    [name] = names
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return []
    lines = [
        "| part | requests so far | recall@5 | ndcg@5 | comp@5 | what `learn` did | seconds |",
        "|---:|---:|---:|---:|---:|---|---:|",
    ]
    for row in json.loads(path.read_text())["runs"][0]["rows"]:
        percents = " | ".join(f"{100 * row[measure]:.1f}" for measure in INTERVAL_MEASURES)
        did = f"{row['outcome']} `{row['candidate'].rpartition('-')[0]}`" if row["part"] else "the recipe `hybrid`"
        seconds = f"{row['learn_wall_seconds']:.0f}" if row["part"] else ""
        lines.append(f"| {row['part']} | {row['queries']:,} | {percents} | {did} | {seconds} |")
    return lines


def tabulate_noise(names: Sequence[str]) -> list[str]:
    [name] = names
    worst = json.loads((RESULTS / f"{name}.json").read_text()).get("worst", {})  # older files do not say
    rows = [
        [measure, f"{100 * change['difference']:+.1f}", f"{change['p']:.2f}", str(change["part"]), str(change["seed"])]
        for measure, change in worst.items()
    ]
    heads = ("measure", "smallest change by a promotion, points", "p", "part", "seed")
    return lay_out(heads, rows) if rows else []


def tabulate_read(which: Sequence[str]) -> list[str]:
    if which[0] == "gold":
        gold = read_value("contamination.json", "gold")
        rows = [
            [name, *(f"{counts[key]:,}" for key in ("train_sets", "test", "test_in_train"))]
            for name, counts in sorted(gold.items())
        ]
        return lay_out(("set", "sets of tools in train", "test queries", "whose set of tools train needs too"), rows)
    tools = read_value("contamination.json", "tools")
    rows = [
        [f"{name}{mark_read(name)}", f"{counts['tools']:,}", f"{counts['same_name_and_description']:,}"]
        for name, counts in sorted(tools.items())
    ]
    return lay_out(("set", "tools", "read by the bundled encoder"), rows)


def tabulate_speed(which: Sequence[str]) -> list[str]:
    return SPEED_TABLES[which[0]]()


def tabulate_everyday() -> list[str]:
    speed = json.loads((RESULTS / "speed.json").read_text())
    search = speed["search"]
    rows = [
        ["`add` of all tools", f"{speed['add_seconds']:.1f} s", ""],
        ["`sync` where nothing changed", f"{speed['sync_seconds']:.1f} s", ""],
        ["first search of a new process", f"{speed['cold_search_seconds']:.2f} s", ""],
        ["`import toolscout`, above bare Python", f"{speed['import_seconds_above_bare']:.2f} s", ""],
        ["`toolscout --help`, above bare Python", f"{speed['help_seconds_above_bare']:.2f} s", ""],
        ["one search, bare bm25s", f"{search['bm25s_p50_ms']:.1f} ms", f"{search['bm25s_p95_ms']:.1f} ms"],
        ["one search, `bm25`", f"{search['scout_p50_ms']:.1f} ms", f"{search['scout_p95_ms']:.1f} ms"],
    ]
    for key, title in SEARCH_TITLES.items():
        if times := speed.get(key):
            rows.append([f"one search, {title}", f"{times['p50_ms']:.1f} ms", f"{times['p95_ms']:.1f} ms"])
    return lay_out((f"{speed['tools']:,} tools", "median", "95th percentile"), rows)


def tabulate_encoders() -> list[str]:
    found = json.loads((RESULTS / "encoders.json").read_text())
    rows = []
    for name, milliseconds in found["single_query_ms"].items():
        rate = found["texts_a_second"].get(name)
        percents = (f"{100 * figures[name]:.1f}" for figures in found["ndcg@5"].values())
        rows.append([name, f"{milliseconds:.1f}", f"{rate:,.0f}" if rate else "", *percents])
    return lay_out(("encoder", "ms a query", "texts a second", *(f"{name}, ndcg@5" for name in found["ndcg@5"])), rows)


def tabulate_pairs() -> list[str]:
    found = json.loads((RESULTS / "pairs.json").read_text())
    rows = [[name, f"{times['p50']:.0f}", f"{times['p95']:.0f}"] for name, times in found["ms"].items()]
    return lay_out((f"cross-encoder, {found['pairs']} pairs", "median, ms", "95th percentile, ms"), rows)


def tabulate_service() -> list[str]:
    load = json.loads((RESULTS / "load.json").read_text())
    titles = {
        "single": "single searches",
        "batches_of_16": "batches of 16",
        "beside": "single searches beside `toolscout learn`",
    }
    rows = [
        [
            title,
            str(load[key]["connections"]),
            f"{load[key]['queries_per_second']:.0f}",
            *(f"{load[key][name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")),
            str(load[key]["errors"]),
        ]
        for key, title in titles.items()
    ]
    return lay_out(("load", "connections", "queries a second", "p50, ms", "p95, ms", "p99, ms", "errors"), rows)


def tabulate_gateway() -> list[str]:
    rows = []
    for row in read_value("gateway.json", "tokens"):
        counts = [f"{row[kind][key]:,}" for kind in ("read", "listed") for key in ("tokens", "gateway_tokens")]
        rows.append([f"{row['servers']} servers, {row['tools']:,} tools", *counts])
    heads = ("tokens", "name, description, arguments", "with the gateway", "all of tools/list", "with the gateway")
    return lay_out(heads, rows)


def tabulate_gateway_searches() -> list[str]:
    rows = []
    for row in read_value("gateway.json", "search"):
        times = [f"{row[f'{name}_ms']['p50']:.1f}" for name in ("library", "library_blocking", "gateway", "stdio")]
        ratios = [f"{row[f'{cut}_ratio']:.2f}" for cut in ("p50", "p95")]
        rows.append([f"{row['tools']:,}", *times, *ratios])
    heads = ("tools", "library, `asearch`", "library, `search`", "in the gateway", "a client over stdio")
    return lay_out((*heads, "gateway / `asearch`", "the same at p95"), rows)


SPEED_TABLES: dict[str, Callable[[], list[str]]] = {
    "everyday": tabulate_everyday,
    "encoders": tabulate_encoders,
    "pairs": tabulate_pairs,
    "service": tabulate_service,
    "gateway": tabulate_gateway,
    "gateway-searches": tabulate_gateway_searches,
}
KINDS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "headline": tabulate_headline,
    "means": tabulate_means,
    "trained": tabulate_trained,
    "sets": tabulate_label,
    "labels": tabulate_labels,
    "intervals": tabulate_intervals,
    "transfer": tabulate_transfer,
    "hidden": tabulate_hidden,
    "unseen": tabulate_unseen,
    "golds": tabulate_golds,
    "sweeps": tabulate_sweeps,
    "swept": tabulate_swept,
    "parents": tabulate_parents,
    "values": tabulate_values,
    "versus": tabulate_versus,
    "learning": tabulate_learning,
    "noise": tabulate_noise,
    "read": tabulate_read,
    "speed": tabulate_speed,
}
