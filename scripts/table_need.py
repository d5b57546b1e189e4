"""The tables of abstention, from abstention.json, need.json and exit.json in benchmarks/results; for tables.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from table_layout import RESULTS, lay_out

DOMAINS = ("metatool", "bfcl", "hammerbench")
FIT_DOMAINS = ("metatool", "bfcl", "seal_tools_in")
SCORERS = {
    "vectors": "regression on frozen MiniLM vectors",
    "bundled": "as it ships",
    "minilm": "with MiniLM beside them",
}
FIT_ROWS = {
    "near": {"minilm_top": "MiniLM's cosine", "bundled_others": "as it ships", "minilm_others": "with MiniLM"},
    "gap": {"minilm_top": "MiniLM's cosine", "bundled_others": "as it ships"},
    "foreign": {"minilm_top": "MiniLM's cosine", "bundled_others": "as it ships"},
}
CHAT_KINDS = {
    "tooldet": "ToolDet",
    "arena_hard_v2": "Arena-Hard 2",
    "arena_hard_v01": "Arena-Hard 0.1",
    "self_instruct_seed": "Self-Instruct, seeds",
    "self_instruct_user": "Self-Instruct, users' instructions",
}
EXTENTS = {"whole": "all tools", "part": "10 to 300 tools", "small": "1 to 5 tools"}
BUDGETS = ("0.02", "0.05")
LEFT_OUT_KINDS = ("right", "near", "foreign", "chat")
EXIT_BUDGETS = ("0.005", "0.01", "0.02", "0.03", "0.05")
WITHOUT_TOOL = ("hidden", "foreign", "chat")


def read(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / file).read_text())
    return found


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}"


def write_pair(figures: Mapping[str, float], share: str) -> str:
    """AUROC without the zero before the point, and a share in percent."""
    return f"{figures['auroc']:.3f}".removeprefix("0") + f" / {percent(figures[share])} %"


def tabulate_left_out() -> list[str]:
    """What is turned away on each domain left out, by the size of the catalogue."""
    found = read("abstention.json")
    domains = {name: of for name, of in found.items() if isinstance(of, dict) and "whole right" in of}
    domains = {name: of for name, of in domains.items() if name != "mean"} | {"**mean**": domains["mean"]}
    heads = ["domain left out"]
    heads += [f"{told}, {size}" for size in EXTENTS.values() for told in ("lost", "near", "foreign", "chat")]
    rows = []
    for name, of in domains.items():
        cells = [of[f"{extent} {kind}"] for extent in EXTENTS for kind in LEFT_OUT_KINDS]
        rows.append([name, *(percent(cell["away"] if isinstance(cell, dict) else cell, 1) for cell in cells)])
    return lay_out(heads, rows)


def tabulate_need() -> list[str]:
    found = read("need.json")["need"]
    rows = []
    for label, told in SCORERS.items():
        mean = found[label]["mean"]
        carried = f"{percent(mean['stopped_carried'])} % ({percent(mean['lost_carried'], 1)} %)"
        cells = [write_pair(found[label][domain], "stopped") for domain in DOMAINS]
        rows.append([told, *cells, write_pair(mean, "stopped"), carried, f"{mean['ece']:.3f}".removeprefix("0")])
    return lay_out(("", *DOMAINS, "mean", "carried (lost)", "calibration error"), rows)


def tabulate_kinds() -> list[str]:
    found = read("need.json")["need"]["bundled"]
    rows = [
        [told, *(percent(found[domain]["stopped_by_kind"][kind]) for domain in DOMAINS)]
        for kind, told in CHAT_KINDS.items()
    ]
    return lay_out(("kind", *DOMAINS), rows)


def tabulate_fit() -> list[str]:
    found = read("need.json")["fit"]
    rows = []
    for what, labels in FIT_ROWS.items():
        for label, told in labels.items():
            figures = found[what][label]
            mean = figures["mean"]
            stopped = f"{percent(mean['stopped_carried'])} % ({percent(mean['lost_carried'], 1)} %)"
            cells = [write_pair(figures[name], "stopped_carried") if name in figures else "" for name in FIT_DOMAINS]
            auroc = f"{mean['auroc']:.3f}".removeprefix("0")
            rows.append([f"{what}: {told}", *cells, auroc, stopped, f"{percent(mean['stopped'], 1)} %"])
    return lay_out(("", *FIT_DOMAINS, "mean AUROC", "mean stopped (lost)", "at 5 % of test"), rows)


def tabulate_shipped() -> list[str]:
    found = read("need.json")["bundled"]
    rows = []
    for name, of in found.items():
        row = ["**mean**", ""] if name == "mean" else [write_name(name, of), f"{of['n']:,}"]
        for budget in BUDGETS:
            told = of["budgets"][budget]
            row += [percent(told[what]["away"], 1) for what in ("right", "near")]
            row.append(f"{percent(told['chat']['away'])} ({percent(told['chat']['needless'])})")
        rows.append(row)
    return lay_out(("", "queries", "2 %: lost", "near", "no_tool", "5 %: lost", "near", "no_tool"), rows)


def write_name(name: str, of: Mapping[str, Any]) -> str:
    """The last part of a set's name, with a star where nothing was fitted on it."""
    return name.rpartition("/")[2] + ("" if of["fitted_on"] else " *")


def tabulate_exit_mean(which: str) -> list[str]:
    """The means over sets at each threshold: all three answers where a tool fits, and "none" where none does."""
    rows = []
    for budget in EXIT_BUDGETS:
        kinds = read("exit.json")[which][budget]
        served = [f"{kinds['right'][answer]['mean']:.1f}" for answer in ("right", "none", "wrong")]
        stopped = [
            f"{none['mean']:.1f} ({none['ci95'][0]:.1f} to {none['ci95'][1]:.1f})"
            for none in (kinds[kind]["none"] for kind in WITHOUT_TOOL)
        ]
        rows.append([f"{percent(float(budget), 1)} %", *served, *stopped])
    return lay_out(("threshold", "right", "none", "wrong", *(f"{kind}: none" for kind in WITHOUT_TOOL)), rows)


def tabulate_exit_sets() -> list[str]:
    """The same on each set at 2 % and 5 %; a star: nothing was fitted on the set."""
    found, rows = read("exit.json"), []
    for name, of in found["sets"].items():
        row = [name.rpartition("/")[2] + ("" if name in found["fitted_on"] else " *")]
        for budget in BUDGETS:
            row += [f"{of[budget][kind]['none']:.1f}" for kind in ("right", *WITHOUT_TOOL)]
        rows.append(row)
    heads = [f"{percent(float(budget))} %: {what}" for budget in BUDGETS for what in ("lost", *WITHOUT_TOOL)]
    return lay_out(("", *heads), rows)


def tabulate_exit(which: Sequence[str]) -> list[str]:
    """The table `mean`, `unseen` or `sets` of benchmarks/exit.py."""
    return tabulate_exit_sets() if which[0] == "sets" else tabulate_exit_mean(which[0])


def tabulate(which: Sequence[str]) -> list[str]:
    kinds: dict[str, Callable[[], list[str]]] = {
        "left-out": tabulate_left_out,
        "need": tabulate_need,
        "kinds": tabulate_kinds,
        "fit": tabulate_fit,
        "shipped": tabulate_shipped,
    }
    return kinds[which[0]]()


NEED_KINDS: dict[str, Callable[[Sequence[str]], list[str]]] = {"abstention": tabulate, "exit": tabulate_exit}
