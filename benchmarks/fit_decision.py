"""Fits the bundled abstention decision: does a request need a tool, and does a tool of the catalogue fit?

It reads only datasets with a licence: training queries to learn from, validation queries for calibration, and the
no-tool queries of Arena-Hard and Self-Instruct. Requests are searched in the whole catalogue of their dataset and in
parts of it, down to a single tool, because scores differ between small and large catalogues. Names of tools stand for
users who type keywords. Requests without their gold tools, and requests of other datasets, have no tool that fits. Only
the bundled encoder is used, so this takes about a minute.

    python benchmarks/fit_decision.py [--data DIR] [--out src/toolscout/abstain/data/decision.json]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from toolscout.abstain.decision import BUNDLED_DECISION
from toolscout.abstain.fit import QueryGroup, fit_decision
from toolscout.abstain.score_features import ScoreFeatures, names
from toolscout.dataset import NoTool
from toolscout.encoders import encode_tools, split_identifiers
from toolscout.encoders.static import StaticEncoder
from toolscout.indexes.exact import Exact
from toolscout.indexes.sparse import BM25
from toolscout.lab.bench import load_dataset
from toolscout.recipes.fit import Lesson, make_lesson
from toolscout.sources.folder import read_tools
from toolscout.types import Tool

SETS = {
    "metatool": "MIT",
    "bfcl": "Apache-2.0",
    "hammerbench": "Apache-2.0",
    "seal_tools_in": "Apache-2.0",
    "ultratool": "MIT",
    "toollinkos": "MIT",
    "numpybank": "MIT",
}
CHAT = {"arena_hard_v01", "arena_hard_v2", "self_instruct_user", "self_instruct_seed"}  # Apache-2.0; not tooldet
WHOLE = {"train": 600, "dev": 600}  # queries to the whole catalogue
PARTS = {1: (40, 1), 3: (30, 1), 10: (15, 3), 30: (8, 8), 100: (4, 20), 300: (2, 40)}  # size: catalogues, queries each
KEYWORDS = 3  # one in so many requests once more as the name of a tool
SEED = 0
ENCODER = StaticEncoder()


class Drawn:
    """Searches requests of one dataset and split in catalogues, and collects their score features."""

    def __init__(self, held: Lesson, part: str, foreign: Sequence[str], chats: Sequence[str]) -> None:
        self.name, self.queries, self.golds = held.name, held.texts, getattr(held, part)
        self.tools = {tool.id: tool for tool in held.tools}
        self.random = random.Random(f"{SEED} {self.name} {part}")
        self.foreign, self.chats = foreign, chats
        self.found: dict[tuple[bool, bool, bool | None], list[tuple[np.ndarray, np.ndarray]]] = {}

    def whole(self, most: int) -> None:
        """Search requests in the whole catalogue."""
        self._put(self._some(list(self.golds), most), sorted(self.tools), len(self.chats))

    def part(self, size: int, each: int) -> None:
        """Search requests among their gold tools and others drawn at random."""
        some = self._some(list(self.golds), each)
        chosen = {tool for query in some for tool in self.golds[query]}
        rest = sorted(self.tools.keys() - chosen)
        chosen |= set(self._some(rest, max(0, size - len(chosen))))
        self._put(some, sorted(chosen), each)

    def _some(self, every: Sequence[str], most: int) -> list[str]:
        return self.random.sample(every, min(len(every), most))

    def _put(self, some: Sequence[str], chosen: Sequence[str], n_chat: int) -> None:
        """Search requests and keywords, both again without their gold tools, foreign requests, and chat."""
        signals = put([self.tools[each] for each in chosen])
        place = {tool_id: number for number, tool_id in enumerate(signals.words.ids)}
        words = self._some(chosen, max(1, len(some) // KEYWORDS))
        told = [self.queries[query] for query in some]
        told += [split_identifiers(self.tools[each].name).lower() for each in words]
        gone = [[place[tool] for tool in self.golds[query]] for query in some] + [[place[each]] for each in words]
        self._add(signals, told, True, True)
        self._add(signals, told, True, False, gone)
        self._add(signals, self._some(self.foreign, len(some)), True, False)
        self._add(signals, self._some(self.chats, n_chat), False, None)

    def _add(
        self,
        signals: ScoreFeatures,
        texts: Sequence[str],
        needs: bool,
        fits: bool | None,
        gone: Sequence[Sequence[int]] = (),
    ) -> None:
        masks = []
        for places in gone:
            mask = np.ones(len(signals.words.ids), dtype=bool)
            mask[list(places)] = False
            masks.append(mask)
        vectors = ENCODER.encode(texts, "query")
        rows = signals.rows(texts, [vectors], masks or None)
        kept = vectors.any(axis=1) & (np.array([mask.any() for mask in masks]) if masks else True)
        key = len(signals.words.ids) == len(self.tools), needs, fits
        self.found.setdefault(key, []).append((rows[kept], vectors[kept]))

    def asked(self) -> list[QueryGroup]:
        """Return the rows, grouped by the labels of the requests; whole catalogues stand apart from parts."""
        return [
            QueryGroup(
                self.name,
                np.concatenate([rows for rows, _ in held]),
                {"static": np.concatenate([vectors for _, vectors in held])},
                needs,
                fits,
            )
            for (_, needs, fits), held in self.found.items()
        ]


def put(tools: Sequence[Tool]) -> ScoreFeatures:
    """Build the score features of a catalogue."""
    ordered = sorted(tools, key=lambda tool: tool.id)
    index = Exact(ENCODER.dim)
    index.upsert([tool.id for tool in ordered], encode_tools(lambda texts: ENCODER.encode(texts, "tool"), ordered))
    return ScoreFeatures(BM25.build(ordered), {"static": index})


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--out", type=Path, default=BUNDLED_DECISION)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    sets = {}
    for name in SETS:
        dataset = load_dataset(name, Path(options.data))
        sets[name] = make_lesson(dataset, read_tools(dataset.folder, "d").tools, dataset.texts("test"))
    no_tool = NoTool.load(Path(options.data) / "no_tool")
    chats = {
        part: [each.text for each in found if each.kind in CHAT]
        for part, found in (("train", no_tool.train), ("dev", no_tool.calibrate))
    }
    asked: dict[str, list[QueryGroup]] = {"train": [], "dev": []}
    for part, into in asked.items():
        texts = {name: [held.texts[query] for query in getattr(held, part)] for name, held in sorted(sets.items())}
        for name, held in sets.items():
            draw = random.Random(f"{SEED} {name} {part} foreign")
            foreign = [text for other, some in texts.items() if other != name for text in draw.sample(some, 60)]
            drawn = Drawn(held, part, foreign, chats[part])
            drawn.whole(WHOLE[part])
            for size, (count, each) in PARTS.items():
                for _ in range(count if size < len(held.tools) else 0):
                    drawn.part(size, each)
            into += drawn.asked()
            click.echo(f"{part} {name}: {', '.join(f'{len(each):,}' for each in drawn.asked())}", err=True)
    about = {
        "sets": SETS,
        "no_tool": dict.fromkeys(sorted(CHAT), "Apache-2.0"),
        "seed": SEED,
        "requests": {part: sum(len(each) for each in some) for part, some in asked.items()},
        "command": "python benchmarks/fit_decision.py",
    }
    decision = fit_decision(
        names(("words", "static")), asked["train"], asked["dev"], {"static": ENCODER.fingerprint}, about
    )
    options.out.write_bytes(msgspec.json.encode(decision) + b"\n")
    click.echo(f"{options.out}: floors {msgspec.to_builtins(decision.floors)}", err=True)


if __name__ == "__main__":
    main()
