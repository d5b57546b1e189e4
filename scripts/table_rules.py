"""The tables of what each rule of ranking brings, from benchmarks/results/rules.json; for scripts/tables.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from table_layout import RESULTS, lay_out

from toolscout.settings import RULES

GAINS = {
    "dev": (("dev", "ndcg@5"), ("dev", "comp@5"), ("untuned", "ndcg@5"), ("joined", "comp@10")),
    "clean": (("clean", "ndcg@5"), ("clean", "comp@5")),
}
HEADS = {"dev": "dev", "untuned": "`requests_*`", "joined": "joined", "clean": "clean"}


def tabulate_rules(which: Sequence[str]) -> list[str]:
    if which[0] == "everyday":
        return tabulate_everyday()
    rules = json.loads((RESULTS / "rules.json").read_text())["rules"]
    if which[0] == "costs":
        heads = ["rule", "what it does", "lines", "data, kB", "ms", "dev requests changed"]
        rows = [
            [
                f"`{rule}`",
                RULES[rule],
                f"{figures['lines']:,}" if figures["lines"] else "in `steps`",
                f"{figures['bytes'] / 1000:,.0f}",
                f"{figures['ms']:.1f}",
                f"{100 * figures['changed']:.1f} %",
            ]
            for rule, figures in rules.items()
        ]
        return lay_out(heads, rows)
    columns = GAINS[which[0]]
    heads = ["rule", *(f"{HEADS[group]}, {measure.upper()}" for group, measure in columns)]
    rows = []
    for rule, figures in rules.items():
        gains = [figures["gains"][group][measure] for group, measure in columns]
        rows.append([f"`{rule}`", *map(describe_gain, gains)])
    return lay_out(heads, rows)


def tabulate_everyday() -> list[str]:
    """Return the rows of what each rule gains on a catalogue of mixed sources."""
    result = json.loads((RESULTS / "everyday_catalogue.json").read_text())
    rules, counts = result["rules"], result["orders"][0]["scout"]
    single, compound = (counts[group]["n"] for group in ("single", "compound"))
    heads = ["rule", f"{single} single, in five", f"{compound} compound, complete in ten", "won, lost"]
    rows = [
        [
            f"`{rule}`",
            *(describe_gain(figures[group], 1) for group in ("single", "compound")),
            f"{len(figures['won'])}, {len(figures['lost'])}",
        ]
        for rule, figures in rules.items()
    ]
    return lay_out(heads, rows)


def describe_gain(gain: Mapping[str, float], digits: int = 2) -> str:
    """Describe a gain in points with its interval."""
    return f"{gain['gain']:+.{digits}f} ({gain['low']:.{digits}f} to {gain['high']:.{digits}f})"


RULE_KINDS: dict[str, Callable[[Sequence[str]], list[str]]] = {"rules": tabulate_rules}
