"""The tables of large catalogues, from benchmarks/results/scale.json; for scripts/tables.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from table_layout import RESULTS, lay_out

RECIPES = ("bm25", "dense", "hybrid")
PAPER_TOOLS = 100_000_000  # of the installation that is computed on paper, and
REQUESTS_PER_S = 10_000

Sizes = dict[int, dict[str, Any]]


def read_sizes() -> Sizes:
    """Number of tools → figures, ascending."""
    sizes = json.loads((RESULTS / "scale.json").read_text())["sizes"]
    return {int(size): sizes[size] for size in sorted(sizes, key=int)}


def tabulate_scale(which: Sequence[str]) -> list[str]:
    kinds = {
        "add": tabulate_add,
        "first": tabulate_first,
        "search": tabulate_search,
        "recall": tabulate_recall,
        "paper": tabulate_paper,
    }
    return kinds[which[0]](read_sizes())


def tabulate_add(sizes: Sizes) -> list[str]:
    heads = ["tools", "read and store", "build", "both, processor", "processor per tool"]
    heads += ["build after 10 more, processor", "most memory", "files", "load"]
    rows = []
    for size, figures in sizes.items():
        added = figures["add"]
        processor = count_processor_s(added)
        rows.append(
            [
                f"{size:,}",
                f"{added['read']['wall_s']:,.1f} s",
                f"{added['build']['wall_s']:,.1f} s",
                f"{processor:,.1f} s",
                f"{1e3 * processor / size:.2f} ms",
                f"{figures['more']['build']['processor_s']:,.1f} s",
                f"{added['peak_mb']:,.0f} MB",
                f"{added['snapshot_mb'] + added['catalogue_mb']:,.0f} MB",
                f"{max(added['loads']):.0f}",
            ]
        )
    return lay_out(heads, rows)


def count_processor_s(added: dict[str, Any]) -> float:
    """Processor seconds of adding, with those of the second process where they were measured."""
    seconds = (added["read"]["processor_s"], added["build"]["processor_s"], added.get("others_processor_s", 0.0))
    return float(sum(seconds))


def tabulate_first(sizes: Sizes) -> list[str]:
    """The first search of a new process: right after adding, and with files that must be read from the disk."""
    rows = []
    for size, figures in sizes.items():
        firsts = [figures[part]["first_search"] if part in figures else None for part in ("search", "cold")]
        times = [f"{first[kind]:.2f} s" if first else "–" for kind in ("processor_s", "wall_s") for first in firsts]
        rows.append([f"{size:,}", *times])
    return lay_out(["tools", "warm, processor", "cold, processor", "warm, wall", "cold, wall"], rows)


def tabulate_search(sizes: Sizes) -> list[str]:
    heads = ["tools", *(f"`{name}`, median / p95" for name in RECIPES), "own memory", "shared", "load"]
    rows = []
    for size, figures in sizes.items():
        searched = figures["search"]
        times = [searched["recipes"][name]["processor"] for name in RECIPES]
        rows.append(
            [
                f"{size:,}",
                *(f"{time['p50_ms']:.1f} / {time['p95_ms']:.1f} ms" for time in times),
                *(f"{searched['memory'][kind]:,.0f} MB" for kind in ("own_mb", "shared_mb")),
                f"{searched['load']:.0f}",
            ]
        )
    return lay_out(heads, rows)


def tabulate_recall(sizes: Sizes) -> list[str]:
    shares = list(next(iter(sizes.values()))["search"]["recall_at_10"])
    heads = ["tools", "index", *(f"{100 * float(share):g} % visible" for share in shares)]
    heads += ["bytes read", "least time", "measured, `hybrid`"]
    rows = []
    for size, figures in sizes.items():
        searched = figures["search"]
        n_bytes = sum(searched["bytes_per_search"].values())
        rows.append(
            [
                f"{size:,}",
                searched["index"],
                *(f"{searched['recall_at_10'][share]:.3f}" for share in shares),
                f"{n_bytes / 1e6:.1f} MB",
                f"{1e3 * n_bytes / searched['memory_bytes_per_s']:.2f} ms",
                f"{searched['recipes']['hybrid']['processor']['p50_ms']:.1f} ms",
            ]
        )
    return lay_out(heads, rows, text_columns=2)


def tabulate_paper(sizes: Sizes) -> list[str]:
    """What the largest catalogue that was measured says of larger installations."""
    size, figures = max(sizes.items())
    disk = figures["add"]["snapshot_mb"] + figures["add"]["catalogue_mb"]
    seconds = figures["search"]["recipes"]["hybrid"]["processor"]["p50_ms"] / 1e3
    parts = -(-PAPER_TOOLS // size)
    build = count_processor_s(figures["add"])
    return lay_out(
        ["from the figures of", f"{size:,} tools"],
        [
            ["parts of that size in 100 million tools", f"{parts:,}"],
            ["disk for 100 million tools", f"{disk * PAPER_TOOLS / size / 1e6:,.2f} TB"],
            ["processor hours to add them", f"{build * PAPER_TOOLS / size / 3600:,.0f}"],
            ["searches a second of one core", f"{1 / seconds:,.0f}"],
            ["cores for 10,000 requests a second, each to one part", f"{REQUESTS_PER_S * seconds:,.0f}"],
            ["the same where each request searches all parts", f"{REQUESTS_PER_S * seconds * parts:,.0f}"],
        ],
    )


SCALE_KINDS: dict[str, Callable[[Sequence[str]], list[str]]] = {"scale": tabulate_scale}
