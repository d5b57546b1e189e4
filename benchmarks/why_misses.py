"""Asks `why` about real misses of the recipe `hybrid`, and checks each cause independently.

There are twenty misses: the first four test queries by id of five datasets that have a gold tool outside the top 5. The
check looks for missing words in the whole text of the tool, counts the rank in the full ranking, and builds and
searches each proposed fix. Writes ids and causes, no texts, to benchmarks/results/why.json.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from toolscout.dataset import Dataset
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import tokenize
from toolscout.recipes import registry
from toolscout.search.pipeline import Cut, Stage
from toolscout.search.why import Why, explain
from toolscout.sources.folder import read_tools
from toolscout.types import Hit, Search, Tool, render
from toolscout_lab.machine import provenance

SETS = ("bfcl", "metatool", "toolbench", "ultratool", "numpybank")
EACH, K = 4, 5
FIELDS = ("name", "description", "parameters", "parameter_descriptions", "path")


def misses(root: Path, name: str) -> list[dict[str, Any]]:
    dataset = Dataset.load(root / name, root=root)
    catalogue = Catalogue.of(read_tools(root / name, "d").tools)
    stage = registry.build("hybrid", catalogue)
    found = []
    for query, gold in sorted(dataset.split("test").items()):
        search = Search(query=dataset.queries[query], k=K)
        [answer] = (stage >> Cut())([search])
        lost = sorted(tool for tool in gold if f"d/{tool}" not in answer.ids)
        if lost:
            tools = {tool.id: tool for tool in catalogue.tools(answer.ids)}
            filled = Search(
                query=search.query, k=K, hits=tuple(Hit(h.id, h.score, h.why, tools[h.id]) for h in answer.hits)
            )
            told = explain(
                catalogue, stage >> Cut(), functools.partial(rebuild, catalogue), search, f"d/{lost[0]}", filled
            )
            found.append({"set": name, "query": query, **check(catalogue, search, told)})
        if len(found) == EACH:
            return found
    return found


def rebuild(catalogue: Catalogue, tool: Tool) -> Stage:
    """Build the recipe again, with another definition of one tool."""
    return registry.build("hybrid", catalogue.replace_tool(tool)) >> Cut()


def check(catalogue: Catalogue, search: Search, told: Why) -> dict[str, Any]:
    """Return the causes of a miss with the outcome of each check."""
    [tool] = catalogue.tools([told.tool])
    held = {term for field in FIELDS for term in tokenize(render(tool, field))}
    wide = registry.build("hybrid", catalogue)
    [everything] = wide([Search(query=search.query, k=len(catalogue))])
    checks = {
        "missing words are absent": all(not set(tokenize(word)) & held for word in told.missing),
        "matching words are there": all(set(tokenize(word)) & held for word in told.matched),
        "rank counted by hand": told.rank
        == (everything.ids.index(told.tool) + 1 if told.tool in everything.ids else None)
        or (told.rank is None or told.rank > K),
        "it is a miss": not told.shown and bool(told.causes),
    }
    for fix in told.fixes:
        tried = re.match(r"with (.*) in its description it would have rank (\d+)", fix)
        if tried:
            added = " ".join(re.findall(r"“([^”]+)”", tried[1]))
            meta = {**tool.meta, "text": f"{tool.meta['text']} {added}"}
            changed = type(tool)(
                **{name: getattr(tool, name) for name in tool.__struct_fields__ if name not in ("description", "meta")},
                description=f"{tool.description} {added}".strip(),
                meta=meta,
            )
            again = registry.build("hybrid", Catalogue.of(changed if t.id == tool.id else t for t in catalogue.tools()))
            checks["the cure works"] = tool.id in (again >> Cut())([Search(query=search.query, k=K)])[0].ids
    return {
        "tool": told.tool.removeprefix("d/"),
        "rank": told.rank,
        "causes": [re.sub(r"“d/", "“", cause) for cause in told.causes],
        "fixes": [re.sub(r"“d/", "“", fix) for fix in told.fixes],
        "checks": checks,
    }


def main() -> None:
    root = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("Set TOOLSCOUT_DATA to the folder of the datasets."))
    found = [miss for name in SETS for miss in misses(root, name)]
    path = Path(__file__).parent / "results" / "why.json"
    path.write_text(json.dumps({"misses": found, **provenance()}, indent=1, ensure_ascii=False) + "\n")
    failed = [miss for miss in found if not all(miss["checks"].values())]
    sys.stdout.write(f"{len(found)} misses, {len(found) - len(failed)} with every cause verified\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
