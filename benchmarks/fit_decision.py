"""Fits the bundled abstention decision: does a request need a tool, and does a tool of the catalogue fit?

It reads only datasets with a licence: training queries to learn from, validation queries for calibration, and the
no-tool queries of Arena-Hard and Self-Instruct, beside prompts that `chat_by_rule` makes. The dev lists of our own
suites are one more dataset, `spoken`: people talk to an assistant in another way than the requests of the public sets.
Requests are searched in the whole catalogue of their dataset and in parts of it, down to a single tool, because scores
differ between small and large catalogues. Names of tools stand for users who type keywords. Requests without their
gold tools, and requests of other datasets, have no tool that fits. Only the bundled encoder is used, so this takes
about three minutes.

    python benchmarks/fit_decision.py [--data DIR] [--out src/toolscout/search/abstain/data/decision.json]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import numpy as np

from toolscout.dataset import NoTool
from toolscout.encoders import encode_tools, split_identifiers
from toolscout.encoders.static import StaticEncoder
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.exact import Exact
from toolscout.learn.fit import make_lesson
from toolscout.search.abstain.decision import (
    BUNDLED_DECISION,
    MAX_SMALL_CATALOGUE,
    Decision,
    columns,
)
from toolscout.search.abstain.score_features import ScoreFeatures, names
from toolscout.search.abstain.wording import mark_terms
from toolscout.search.everyday import ExpandedWords, encode_expanded, load_thesaurus
from toolscout.sources.folder import read_tools
from toolscout.types import Tool
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.training.decision import QueryGroup, fit_decision, set_floors

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_by_rule import make_chat

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
SPOKEN = "spoken"
SUITES = Path(__file__).resolve().parent / "suites"
CORPUS = "tool_corpora/toucan"
WHOLE = {"train": 600, "dev": 600, "test": 600}  # queries to the whole catalogue
MAX_TEST_CHATS = 600
FITS = {"right": True, "near": False, "foreign": False, "chat": None}
PARTS = {
    1: (40, 1),
    2: (30, 1),
    3: (30, 1),
    5: (30, 1),
    10: (15, 3),
    30: (8, 8),
    100: (4, 20),
    300: (2, 40),
}  # size: catalogues, queries each
CHAT_BY_RULE = 400  # prompts of `chat_by_rule`, for training alone
KEYWORDS = 3  # one in so many requests once more as the name of a tool
SEED = 0
ENCODER = StaticEncoder()
NAMES = names(("words", "static"))
Groups = dict[tuple[str, str, str], QueryGroup]


class Split(NamedTuple):
    """A dataset: texts of its queries, tools, and part → query → gold tools."""

    name: str
    texts: Mapping[str, str]
    tools: Sequence[Tool]
    golds: Mapping[str, Mapping[str, Sequence[str]]]


class Drawn:
    """Searches requests of one dataset and split in catalogues, and collects their score features."""

    def __init__(self, held: Split, part: str, foreign: Sequence[str], chats: Sequence[str]) -> None:
        self.name, self.queries, self.golds = held.name, held.texts, held.golds[part]
        self.tools = {tool.id: tool for tool in held.tools}
        self.random = random.Random(f"{SEED} {self.name} {part}")
        self.foreign, self.chats = foreign, chats
        self.found: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray, list[str]]]] = {}

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
        self._add(signals, told, "right")
        self._add(signals, told, "near", gone)
        self._add(signals, self._some(self.foreign, len(some)), "foreign")
        self._add(signals, self._some(self.chats, n_chat), "chat")

    def _add(self, signals: ScoreFeatures, texts: Sequence[str], what: str, gone: Sequence[Sequence[int]] = ()) -> None:
        masks = []
        for places in gone:
            mask = np.ones(len(signals.words.ids), dtype=bool)
            mask[list(places)] = False
            masks.append(mask)
        vectors = ENCODER.encode(texts, "query")
        rows = signals.rows(texts, [encode_expanded(texts, ENCODER, signals.words)], masks or None)
        kept = vectors.any(axis=1) & (np.array([mask.any() for mask in masks]) if masks else True)
        size = len(signals.words.ids)
        extent = "whole" if size == len(self.tools) else "small" if size <= MAX_SMALL_CATALOGUE else "part"
        texts = [text for text, keep in zip(texts, kept, strict=True) if keep]
        self.found.setdefault((extent, what), []).append((rows[kept], vectors[kept], texts))

    def asked(self) -> dict[tuple[str, str, str], QueryGroup]:
        """Return (dataset, extent, kind) → rows; whole catalogues, small ones and other parts stand apart."""
        return {
            (self.name, extent, what): QueryGroup(
                self.name,
                np.concatenate([rows for rows, _, _ in held]),
                {"static": np.concatenate([vectors for _, vectors, _ in held])},
                what != "chat",
                FITS[what],
                [text for _, _, texts in held for text in texts],
                extent == "small",
                what == "near",
            )
            for (extent, what), held in self.found.items()
        }


def put(tools: Sequence[Tool]) -> ScoreFeatures:
    """Build the score features of a catalogue."""
    ordered = sorted(tools, key=lambda tool: tool.id)
    index = Exact(ENCODER.dim)
    index.upsert([tool.id for tool in ordered], encode_tools(lambda texts: ENCODER.encode(texts, "tool"), ordered))
    return ScoreFeatures(ExpandedWords(BM25.build(ordered), load_thesaurus), {"static": index})


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSONL file."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def read_spoken(root: Path) -> Split:
    """Read English requests of the suites' dev lists, over the tools of toucan that the lists name.

    Requests for one of two opposite tools are for training, the requests of `languages_dev` for calibration, and single
    steps of joined requests for both in turn. Test lines are not read, and there is no test part.
    """
    texts, train, dev = {}, {}, {}
    for name in ("opposites", "opposites_more"):
        for line in read_lines(SUITES / f"{name}.jsonl"):
            if line["split"] == "dev" and line.get("dataset", CORPUS) == CORPUS and line.get("language", "en") == "en":
                texts[line["_id"]], train[line["_id"]] = line["query"], [line["asked"]]
    for line in read_lines(SUITES / "joined_dev" / "queries.jsonl"):
        part = dev if int(line["_id"][-1]) % 2 else train
        for number, step in enumerate(line["steps"] if line["language"] == "en" else ()):
            texts[f"{line['_id']}-{number}"], part[f"{line['_id']}-{number}"] = step["text"], step["gold"]
    spoken = {line["_id"]: line["text"] for line in read_lines(SUITES / "languages_dev" / "queries.jsonl")}
    for line in (SUITES / "languages_dev" / "qrels" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, tool, _ = line.split("\t")
        if query.endswith("-en"):
            texts[query] = spoken[query]
            dev.setdefault(query, []).append(tool)
    chosen = {tool for gold in (*train.values(), *dev.values()) for tool in gold}
    for name in ("joined_dev", "languages_dev"):
        chosen |= set((SUITES / name / "tools.txt").read_text(encoding="utf-8").split())
    tools = [tool for tool in read_tools(root / CORPUS, "d").tools if tool.id.removeprefix("d/") in chosen]
    golds = {
        part: {query: [f"d/{tool}" for tool in gold] for query, gold in some.items()}
        for part, some in (("train", train), ("dev", dev), ("test", {}))
    }
    return Split(SPOKEN, texts, tools, golds)


def collect(root: Path, parts: Sequence[str] = ("train", "dev")) -> dict[str, Groups]:
    """Return for each part its queries, scored against catalogues, by dataset, extent and kind.

    Args:
        root: the folder of the datasets.
        parts: `train`, `dev`, `test`. The chat of `test` has every kind of no_tool, that of the others those with a
            licence.
    """
    sets = {}
    for name in SETS:
        dataset = load_dataset(name, root)
        tools = read_tools(dataset.folder, "d").tools
        lesson = make_lesson(dataset, tools, dataset.texts("test"))
        test = {query: [f"d/{tool}" for tool in gold] for query, gold in dataset.split("test").items()}
        golds = {"train": lesson.train, "dev": lesson.dev, "test": test}
        sets[name] = Split(name, {**dataset.queries, **lesson.texts}, tools, golds)
    sets[SPOKEN] = read_spoken(root)
    no_tool = NoTool.load(root / "no_tool")
    chats = {
        part: [each.text for each in found if part == "test" or each.kind in CHAT]
        for part, found in (("train", no_tool.train), ("dev", no_tool.calibrate), ("test", no_tool.test))
    }
    chats["train"] += make_chat(CHAT_BY_RULE)
    random.Random(SEED).shuffle(chats["test"])
    chats["test"] = chats["test"][:MAX_TEST_CHATS]
    asked: dict[str, Groups] = {part: {} for part in parts}
    for part, into in asked.items():
        texts = {name: [held.texts[query] for query in held.golds[part]] for name, held in sorted(sets.items())}
        for name, held in sets.items():
            if not held.golds[part]:
                continue
            draw = random.Random(f"{SEED} {name} {part} foreign")
            foreign = [
                text for other, some in texts.items() if other != name for text in draw.sample(some, min(60, len(some)))
            ]
            drawn = Drawn(held, part, foreign, chats[part])
            drawn.whole(WHOLE[part])
            for size, (count, each) in PARTS.items():
                for _ in range(count if size < len(held.tools) else 0):
                    drawn.part(size, each)
            into.update(drawn.asked())
            click.echo(f"{part} {name}: {sum(map(len, drawn.asked().values())):,}", err=True)
    return asked


def leave_out(groups: Groups, name: str, texts: set[str]) -> Groups:
    """Return the groups of the other datasets, without requests of this one that stand in as foreign."""
    kept = {}
    for key, group in groups.items():
        places = [place for place, text in enumerate(group.texts) if text not in texts]
        if key[0] != name and places:
            vectors = {view: rows[places] for view, rows in group.vectors.items()}
            chosen = [group.texts[place] for place in places]
            kept[key] = dataclasses.replace(group, rows=group.rows[places], vectors=vectors, texts=chosen)
    return kept


def estimate(decision: Decision, group: QueryGroup) -> tuple[np.ndarray, np.ndarray]:
    """Return need and fit of the queries, (n,) each."""
    views = group.vectors | mark_terms(group.texts, decision.terms)
    return decision.estimate(columns(NAMES, group.rows, views, decision.wishes))


class Fits:
    """Fits decisions as they ship, with all datasets or with some left out.

    A dataset that nothing was fitted on loses more than one that was. So the floors come from the validation requests
    of each dataset as a fit without this dataset judges them.
    """

    def __init__(self, asked: Mapping[str, Groups]) -> None:
        self.asked = asked
        self.kept: dict[frozenset[str], Decision] = {}

    def fit(self, about: dict[str, Any], left_out: frozenset[str] = frozenset()) -> Decision:
        """Fit a decision that has seen no request of the datasets `left_out`."""
        scored = {key: group for key, group in self.asked["dev"].items() if key[0] not in left_out and group.fits}
        unseen = {key: left_out | ({key[0]} - {SPOKEN}) for key in scored}
        estimates = [estimate(self._fit_without(unseen[key]), group) for key, group in scored.items()]
        large, small = set_floors(list(scored.values()), estimates)
        decision = self._fit_without(left_out)
        return msgspec.structs.replace(decision, floors=large, small_floors=small, about=about)

    def _fit_without(self, left_out: frozenset[str]) -> Decision:
        if left_out not in self.kept:
            train, dev = self.asked["train"], self.asked["dev"]
            for name in sorted(left_out):
                texts = {
                    text for groups in self.asked.values() for key, group in groups.items() for text in group.texts
                    if key[0] == name and key[2] == "right"
                }  # fmt: skip
                train, dev = leave_out(train, name, texts), leave_out(dev, name, texts)
            by = {"static": ENCODER.fingerprint}
            self.kept[left_out] = fit_decision(NAMES, list(train.values()), list(dev.values()), by, {})
            click.echo(f"fitted; left out: {', '.join(sorted(left_out)) or 'nothing'}", err=True)
        return self.kept[left_out]


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--out", type=Path, default=BUNDLED_DECISION)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    asked = collect(Path(options.data))
    about = {
        "sets": SETS,
        "no_tool": dict.fromkeys(sorted(CHAT), "Apache-2.0"),
        "chat_by_rule": CHAT_BY_RULE,
        "seed": SEED,
        "requests": {part: sum(map(len, some.values())) for part, some in asked.items()},
        "command": "python benchmarks/fit_decision.py",
    }
    decision = Fits(asked).fit(about)
    options.out.write_bytes(msgspec.json.encode(decision) + b"\n")
    click.echo(f"{options.out}: floors {msgspec.to_builtins(decision.floors)}", err=True)


if __name__ == "__main__":
    main()
