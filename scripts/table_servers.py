"""The tables of published MCP servers and clients, from servers.json and clients.json; for scripts/tables.py."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from table_layout import MAX_LINE_CHARS, RESULTS, ROOT, lay_out

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Heading of a column → the cells that it joins.
COLUMNS = {
    "list": ("tools",),
    "search": ("search",),
    "call": ("calls",),
    "error": ("errors",),
    "resources": ("resources", "templates", "read"),
    "prompts": ("prompts", "prompt"),
    "progress, logs": ("progress", "logs"),
    "cut": ("cut",),
    "killed": ("revived",),
}
#: Of cells that the matrix itself explains: two direct sessions differ.
VARIES = "Two direct sessions list other definitions of the server's tools; what changed waits for approval."
STEPS = ("search", "call", "question", "cut", "resource", "cancel")
Cells = Mapping[str, bool]


def read_servers() -> dict[str, dict[str, Any]]:
    servers: dict[str, dict[str, Any]] = json.loads((RESULTS / "servers.json").read_text())["servers"]
    return servers


def read_sentences() -> dict[str, dict[str, str]]:
    """Server → cell → why the gateway is not like the server there."""
    suite = tomllib.loads((ROOT / "benchmarks" / "suites" / "servers.toml").read_text())
    return {name: server["differs"] for name, server in suite.items() if "differs" in server}


def join(cells: Cells, names: Sequence[str]) -> bool | None:
    """Whether all of these cells are the same as directly; None: there is none of them."""
    values = [cells[name] for name in names if name in cells]
    return all(values) if values else None


def show(value: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[value]


def name_package(row: Mapping[str, Any]) -> str:
    name, _, version = str(row["package"]).replace("==", "@").rpartition("@")
    return f"`{name}` {version}"


def tabulate_all() -> list[str]:
    sentences = read_sentences()
    notes: list[str] = []
    rows = []
    for name, row in read_servers().items():
        if not row["starts"]:
            continue
        cells = []
        for names in COLUMNS.values():
            cell = show(join(row["gateway"], names))
            known = sentences.get(name, {}) | dict.fromkeys(row.get("gateway varies", ()), VARIES)
            for sentence in [known[key] for key in names if cell == "no" and key in known]:
                notes += [sentence] if sentence not in notes else []
                cell = f"no ({notes.index(sentence) + 1})"
            cells.append(cell)
        http = show(all(row["http"].values()) if isinstance(row.get("http"), dict) else None)
        rows.append([name_package(row), str(row["counts"]["tools"]), *cells, http])
    lines = lay_out(["server", "tools", *COLUMNS, "HTTP"], sorted(rows, key=str), keys=1)
    listed = [f"{number}. {sentence}" for number, sentence in enumerate(notes, 1)]
    return [
        *lines,
        "",
        *(line for note in listed for line in textwrap.wrap(note, MAX_LINE_CHARS, subsequent_indent="   ")),
    ]


def tabulate_sums() -> list[str]:
    started = [row for row in read_servers().values() if row["starts"]]
    rows = []
    for head, names in COLUMNS.items():
        counts = []
        for way in ("gateway", "http", "proxy"):
            values = [join(row[way], names) for row in started if isinstance(row.get(way), dict)]
            offered = [value for value in values if value is not None]
            counts.append(f"{sum(offered)} of {len(offered)}" if offered else "")
        rows.append([head, *counts])
    return lay_out(["ability", "gateway", "gateway over HTTP", "FastMCP's proxy"], rows)


def tabulate_silent() -> list[str]:
    rows = [[name_package(row), str(row["why"])] for row in read_servers().values() if not row["starts"]]
    return lay_out(["server", "what the SDK's client says"], sorted(rows), text_columns=2)


def tabulate_tried() -> list[str]:
    rows = list(read_servers().values())
    heads = ["registry", "tried", "list their tools", "tools", "resources", "prompts"]
    lines = []
    for registry in ("npm", "pypi"):
        own = [row for row in rows if row["registry"] == registry]
        counts = [row["counts"] for row in own if row["starts"]]
        sums = [f"{sum(count[key] for count in counts):,}" for key in ("tools", "resources", "prompts")]
        lines.append([{"npm": "npm", "pypi": "PyPI"}[registry], str(len(own)), str(len(counts)), *sums])
    return lay_out(heads, lines)


def tabulate_clients() -> list[str]:
    clients: dict[str, dict[str, Any]] = json.loads((RESULTS / "clients.json").read_text())["clients"]
    rows = []
    for name, row in clients.items():
        ages = [row["modern"], row["legacy"]]
        steps = [show(join({str(n): age[step] for n, age in enumerate(ages) if step in age}, "01")) for step in STEPS]
        rows.append([f"{name}, {name_package(row)}", ages[0]["protocol"] or "-", *(step or "-" for step in steps)])
    return lay_out(["client", "protocol", *STEPS], rows)


def tabulate(which: Sequence[str]) -> list[str]:
    tables: dict[str, Callable[[], list[str]]] = {
        "all": tabulate_all,
        "sums": tabulate_sums,
        "silent": tabulate_silent,
        "tried": tabulate_tried,
        "clients": tabulate_clients,
    }
    return tables[which[0]]()


SERVER_KINDS: dict[str, Callable[[Sequence[str]], list[str]]] = {"servers": tabulate}
