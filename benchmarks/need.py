"""Measures the abstention decision on domains that its fit has not seen: is a tool needed, and does any tool fit?

**Need.** Each of metatool, bfcl and hammerbench is left out once. The fit uses training queries of ToolLens and of the
other two, and the train part of no_tool. The test compares the test queries of the left-out dataset with the test part
of no_tool. From the left-out dataset the fit sees the tools, but no query. The figure is the share of no_tool queries
below a threshold. The threshold `oracle` rejects 2 % of the left-out test queries; `carried` comes from validation
queries of the other datasets. The baseline `vectors` is a logistic regression on frozen MiniLM vectors.

**Fit.** The datasets are metatool, bfcl and seal_tools_in. No tool fits a query without its gold tools (`near`),
without all tools of their parents (`gap`), or from another dataset (`foreign`). The fit uses training queries of all
other datasets (`others`) or of all six (`all`). The threshold rejects 5 % of the dataset's own validation queries. The
baseline is MiniLM's greatest cosine.

**Bundled.** The bundled decision on every test set: the shares of queries that it turns away (`away`) and for which it
says that no tool is needed (`needless`). They are given for the test queries (`right`), for the same without their gold
tools (`near`), and for the queries of no_tool (`chat`). `mean` is over the sets.

`bundled` uses BM25 and the bundled encoder, `minilm` also MiniLM. Writes need.json, and with --lists the errors for
reading, which hold texts of the datasets and must not be published.

With --only one of the three is measured and the rest of the file is kept; `commits` says what made each.

    python benchmarks/need.py [--data DIR] [--out benchmarks/results/need.json] [--lists DIR] [--only PART]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from toolscout import encoders
from toolscout.arrays import Mask
from toolscout.dataset import NoTool
from toolscout.encoders import Vectors, encode_tools
from toolscout.encoders.languages import is_english
from toolscout.encoders.static import StaticEncoder
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.exact import Exact
from toolscout.learn.fit import make_lesson
from toolscout.search.abstain import calibration, decision
from toolscout.search.abstain.calibration import sigmoid
from toolscout.search.abstain.score_features import ScoreFeatures, names
from toolscout.search.abstain.wording import mark_terms
from toolscout.search.everyday import ExpandedWords, encode_expanded, load_thesaurus
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout.types import Tool, render
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance
from toolscout_lab.statistics import detection
from toolscout_lab.training.decision import QueryGroup, fit_decision
from toolscout_lab.training.logistic import logistic

sys.path.insert(0, str(Path(__file__).resolve().parent))
from abstention import mark_away

NEED = ("metatool", "bfcl", "hammerbench")
FIT = ("metatool", "bfcl", "seal_tools_in")
SOURCES = ("toollens", "metatool", "bfcl", "hammerbench", "seal_tools_in", "ultratool")
BUNDLED = (*SOURCES, "toollinkos", "numpybank", "toolbench", "livemcpbench", "mcpproxy_golden")
BUNDLED += ("openapi/restbench_tmdb", "openapi/restbench_spotify")
TRAIN, DEV, FOREIGN, CHAT = 800, 600, 200, 500  # queries of a set at most; test is whole
VIEWS = {"bundled": ("words", "static"), "minilm": ("words", "static", "minilm")}
LOST = {"need": 0.02, "fit": 0.05}
RESAMPLES = 300
Floats = np.ndarray[Any, np.dtype[np.float64]]


class Encoders:
    """The bundled encoder, and MiniLM with a store of its vectors."""

    def __init__(self, settings: Settings, with_minilm: bool = True) -> None:
        self.static, self.settings = StaticEncoder(), settings
        self.minilm = encoders.load("minilm", settings) if with_minilm else None
        self.store = VectorStore(settings.home / "bench")

    def queries(self, texts: Sequence[str]) -> dict[str, Vectors]:
        """Encode queries: view → (n, d)."""
        vectors = {"static": self.static.encode(texts, "query")}
        if self.minilm:
            mark = f"{self.minilm.fingerprint}/query"
            vectors["minilm"] = self.store.rows(
                mark, texts, self.minilm.encode, name="minilm", progress=_report_progress
            )
        return vectors

    def tools(self, tools: Sequence[Tool]) -> dict[str, Exact]:
        """Index tools: view → index."""
        rows = {"static": encode_tools(lambda texts: self.static.encode(texts, "tool"), tools)}
        if self.minilm:
            by_text, encode = {render(tool, "short"): tool for tool in tools}, self.minilm.encode
            rows["minilm"] = self.store.rows(
                f"{self.minilm.fingerprint}/named",
                [render(tool, "short") for tool in tools],
                lambda some: encode_tools(lambda texts: encode(texts, "tool"), [by_text[text] for text in some]),
                name="minilm",
                progress=_report_progress,
            )
        indexes = {}
        for view, vectors in rows.items():
            indexes[view] = Exact(vectors.shape[1])
            indexes[view].upsert([tool.id for tool in tools], vectors)
        return indexes


def _report_progress(done: int, total: int) -> None:
    click.echo(f"embedding: {done:,} of {total:,} texts", err=True)


@dataclasses.dataclass
class Part:
    """Queries of one split: texts, vectors, places of their gold tools."""

    texts: list[str]
    vectors: dict[str, Vectors]
    gold: list[list[int]]

    def only(self, places: Sequence[int]) -> Part:
        """Return the queries at these places."""
        vectors = {view: rows[list(places)] for view, rows in self.vectors.items()}
        return Part([self.texts[n] for n in places], vectors, [self.gold[n] for n in places])


class Domain:
    """One dataset, its signals, and rows of queries put to it."""

    def __init__(self, name: str, root: Path, using: Encoders, draw: random.Random, parts: Sequence[str]) -> None:
        dataset = load_dataset(name, root)
        self.name, self.tools = name, sorted(read_tools(dataset.folder, "d").tools, key=lambda tool: tool.id)
        self.encoder = using.static
        self.signals = ScoreFeatures(ExpandedWords(BM25.build(self.tools), load_thesaurus), using.tools(self.tools))
        place = {tool.id.partition("/")[2]: number for number, tool in enumerate(self.tools)}
        told = {"test": dataset.split("test")}
        if "train" in parts:
            held = make_lesson(dataset, self.tools, dataset.texts("test"))
            for part, most, found, by in (
                ("train", TRAIN, held.train, draw),
                ("dev", DEV, held.dev, random.Random(name)),
            ):
                ids = list(found)
                by.shuffle(ids)
                told[part] = {query: {tool[2:]: 1.0 for tool in found[query]} for query in ids[:most]}
        self.parts = {
            part: Part(
                texts := [dataset.queries[query] for query in found],
                using.queries(texts),
                [[place[tool] for tool in gold] for gold in found.values()],
            )
            for part, found in told.items()
        }

    def rows(self, some: Part, gone: Sequence[Sequence[int]] | None = None) -> Floats:
        """Return the score features of queries, (n, columns); `gone`: places of tools hidden from each query."""
        masks = None
        if gone is not None:
            masks = [np.ones(len(self.tools), dtype=bool) for _ in gone]
            for mask, places in zip(masks, gone, strict=True):
                mask[list(places)] = False
        # As a search does, the bundled encoder reads the words that phrases add, and a slow one does not.
        vectors = some.vectors | {"static": encode_expanded(some.texts, self.encoder, self.signals.words)}
        return self.signals.rows(some.texts, list(vectors.values()), masks)

    def relatives(self, gold: Sequence[int]) -> list[int] | None:
        """Return the places of all tools with a parent of these; None: one has no parent, or no tool would be left."""
        parents = {self.tools[number].parent for number in gold}
        gone = [number for number, tool in enumerate(self.tools) if tool.parent in parents]
        return None if () in parents or len(gone) == len(self.tools) else gone


# --- figures ----------------------------------------------------------------------------------------------------------


def auroc(right: Floats, wrong: Floats) -> float:
    """Return the share of pairs in the right order; equal values count one half."""
    ordered = np.sort(wrong)
    below = np.searchsorted(ordered, right, "left") + np.searchsorted(ordered, right, "right")
    return float(below.mean() / 2 / len(wrong))


def figures(right: Floats, wrong: Floats, lost: float, threshold: float | None = None, seed: int = 0) -> dict[str, Any]:
    """Compute AUROC, the shares stopped by the oracle and by a given threshold, and the share lost, with intervals."""

    def measured(a: Floats, b: Floats) -> dict[str, float]:
        found = {"auroc": auroc(a, b), "stopped": float((b < np.quantile(a, lost)).mean())}
        if threshold is not None:
            found |= {"stopped_carried": float((b < threshold).mean()), "lost_carried": float((a < threshold).mean())}
        return found

    rng = np.random.default_rng(seed)
    draws = [measured(rng.choice(right, len(right)), rng.choice(wrong, len(wrong))) for _ in range(RESAMPLES)]
    intervals = {
        name: [round(float(each), 4) for each in np.quantile([draw[name] for draw in draws], [0.025, 0.975])]
        for name in draws[0]
    }
    values = {name: round(value, 4) for name, value in measured(right, wrong).items()}
    return {"n": [len(right), len(wrong)], **values, "ci95": intervals}


def mean(domains: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each figure over domains."""
    return {
        name: round(float(np.mean([figures[name] for figures in domains])), 4)
        for name in domains[0]
        if isinstance(domains[0][name], float)
    }


def average(sets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return budget → kind → the mean shares over sets."""
    return {
        budget: {what: mean([of["budgets"][budget][what] for of in sets]) for what in kinds}
        for budget, kinds in sets[0]["budgets"].items()
    }


def mark_judged(asked: Part, static: StaticEncoder) -> Mask:
    """Return which requests a search judges: those of which the bundled encoder knows a word, and that are English."""
    english = [is_english(text, static.pieces.is_word) for text in asked.texts]
    return np.array(english) & asked.vectors["static"].any(axis=1)


def part_of(table: Floats, every: Sequence[str], views: Sequence[str]) -> Floats:
    """Select the columns of some views."""
    place = {name: number for number, name in enumerate(every)}
    return table[:, [place[name] for name in names(views)]]


# --- the three questions ----------------------------------------------------------------------------------------------


class Bench:
    """The measurements, which share rows and vectors."""

    def __init__(self, root: Path, settings: Settings, seed: int) -> None:
        self.root, self.seed, self.settings = root, seed, settings
        held = NoTool.load(root / "no_tool")
        self.prompts = {"train": held.train, "dev": held.calibrate, "test": held.test}
        self.kinds = [prompt.kind for prompt in held.test]
        self.kept: dict[tuple[str, str, str], Floats] = {}

    @functools.cached_property
    def using(self) -> Encoders:
        """The encoders."""
        return Encoders(self.settings)

    @functools.cached_property
    def domains(self) -> dict[str, Domain]:
        """The datasets with training queries."""
        draw = random.Random(self.seed)
        return {name: Domain(name, self.root, self.using, draw, ("train",)) for name in SOURCES}

    @property
    def every(self) -> tuple[str, ...]:
        """The names of all columns."""
        return self.domains[NEED[0]].signals.names

    @functools.cached_property
    def chat(self) -> dict[str, Part]:
        """The queries that need no tool."""
        texts = {part: [prompt.text for prompt in prompts] for part, prompts in self.prompts.items()}
        return {part: Part(some, self.using.queries(some), [[] for _ in some]) for part, some in texts.items()}

    def rows(self, name: str, part: str, what: str) -> tuple[Floats, Part]:
        """Return rows and queries of one kind (`right`, `near`, `chat` or `foreign`) from a split of a domain."""
        domain = self.domains[name]
        if what == "chat":
            some = self.chat[part]
        elif what == "foreign":
            draw, texts, vectors = random.Random(f"{self.seed} {name} {part}"), [], []
            for other in SOURCES:
                held = self.domains[other].parts[part]
                places = draw.sample(range(len(held.texts)), min(FOREIGN, len(held.texts))) if other != name else []
                texts += [held.texts[n] for n in places]
                vectors.append({view: rows[places] for view, rows in held.vectors.items()})
            joined = {view: np.concatenate([each[view] for each in vectors]) for view in vectors[0]}
            some = Part(texts, joined, [[] for _ in texts])
        else:
            some = domain.parts[part]
        if (name, part, what) not in self.kept:
            self.kept[name, part, what] = domain.rows(some, some.gold if what == "near" else None)
            click.echo(f"{name} {part} {what}: {len(some.texts):,}", err=True)
        return self.kept[name, part, what], some

    def asked(self, name: str, part: str, what: str, views: Sequence[str]) -> QueryGroup:
        """Return the same as a group of queries, for a fit with some views."""
        table, some = self.rows(name, part, what)
        vectors = {view: some.vectors[view] for view in views[1:]}
        fits = {"right": True, "near": False, "foreign": False, "chat": None}[what]
        rows, hides = part_of(table, self.every, views), what == "near"
        return QueryGroup(name, rows, vectors, what != "chat", fits, hides=hides)

    def fit(self, sources: Sequence[str], views: Sequence[str], wishes: bool = True) -> decision.Decision:
        """Fit a decision like the bundled one, but on whole catalogues, and with ToolLens and ToolDet."""
        parts = [
            [self.asked(name, part, what, views) for name in sources for what in ("right", "near", "foreign", "chat")]
            for part in ("train", "dev")
        ]
        return fit_decision(names(views), *parts, dict.fromkeys(views[1:], ""), {}, wishes=wishes)

    def judged(self, by: decision.Decision, asked: QueryGroup) -> tuple[Floats, Floats]:
        """Return the estimates (need, fit) of rows."""
        views = ("words", *by.encoders)
        return by.estimate(decision.columns(names(views), asked.rows, asked.vectors, by.wishes))

    def need(self, errors: list[dict[str, Any]]) -> dict[str, Any]:
        """Measure the need across domains, with one left out at a time."""
        found: dict[str, dict[str, Any]] = {"vectors": {}, **{name: {} for name in VIEWS}}
        for out in NEED:
            sources = [name for name in (SOURCES[0], *NEED) if name != out]
            for label, views in VIEWS.items():
                by = self.fit(sources, views)
                known = [self.judged(by, self.asked(name, "dev", "right", views))[0] for name in sources]
                right, wrong = (self.judged(by, self.asked(out, "test", what, views))[0] for what in ("right", "chat"))
                found[label][out] = self._need(right, wrong, known)
                if label == "bundled":
                    floor = float(np.quantile(right, LOST["need"]))
                    errors += [
                        {"domain": out, "side": "rejected", "need": need, "text": text}
                        for need, text in zip(right.tolist(), self.domains[out].parts["test"].texts, strict=True)
                        if need < floor
                    ]
                    errors += [
                        {"domain": out, "side": "accepted", "need": need, "kind": kind, "text": text}
                        for need, kind, text in zip(wrong.tolist(), self.kinds, self.chat["test"].texts, strict=True)
                        if need >= floor
                    ]
            weigh = self._vectors(sources)
            known = [weigh(self.domains[name].parts["dev"]) for name in sources]
            found["vectors"][out] = self._need(weigh(self.domains[out].parts["test"]), weigh(self.chat["test"]), known)
        return {label: {**of, "mean": mean(list(of.values()))} for label, of in found.items()}

    def _need(self, right: Floats, wrong: Floats, known: Sequence[Floats]) -> dict[str, Any]:
        mass = np.concatenate([np.full(len(each), 1 / len(each)) for each in known])
        floor = calibration.floors(np.concatenate(known), mass=mass).need_at(LOST["need"])
        oracle = np.quantile(right, LOST["need"])
        labels = np.repeat([1, 0], [len(right), len(wrong)])
        kinds = {
            kind: round(float((wrong[[each == kind for each in self.kinds]] < oracle).mean()), 4)
            for kind in sorted(set(self.kinds))
        }
        ece = round(detection(labels, np.concatenate([right, wrong]))["detect_ece"], 4)
        return {**figures(right, wrong, LOST["need"], floor), "ece": ece, "stopped_by_kind": kinds}

    def _vectors(self, sources: Sequence[str]) -> Callable[[Part], Floats]:
        """The baseline: a regression on MiniLM's vectors alone."""
        parts = [*(self.domains[name].parts["train"] for name in sources), self.chat["train"]]
        rows = np.concatenate([part.vectors["minilm"] for part in parts])
        sizes = [len(part.texts) for part in parts]
        mass = [*(0.5 / len(sources) / size for size in sizes[:-1]), 0.5 / sizes[-1]]
        weights = logistic(rows, np.repeat([True] * len(sources) + [False], sizes), 1e-4, np.repeat(mass, sizes))
        return lambda part: sigmoid(part.vectors["minilm"] @ weights[:-1] + weights[-1])

    def fits(self, errors: list[dict[str, Any]]) -> dict[str, Any]:
        """Measure the fit on near misses, gaps, and queries of other datasets."""
        labels = ["minilm_top", *(f"{label}_{which}" for label in VIEWS for which in ("others", "all"))]
        found: dict[str, Any] = {what: {label: {} for label in labels} for what in ("near", "gap", "foreign")}
        everything = {label: self.fit(SOURCES, views, wishes=False) for label, views in VIEWS.items()}
        for out in FIT:
            domain, test = self.domains[out], self.domains[out].parts["test"]
            relatives = [domain.relatives(gold) for gold in test.gold]
            some = [number for number, each in enumerate(relatives) if each is not None]
            gaps = domain.rows(test.only(some), [relatives[n] or [] for n in some]) if some else None
            wrong = {"near": self.rows(out, "test", "near"), "foreign": self.rows(out, "test", "foreign")}
            if gaps is not None:
                wrong["gap"] = gaps, test.only(some)
            top = self.every.index("minilm.top")
            scorers: dict[str, tuple[Sequence[str], Callable[[QueryGroup], Floats]]] = {}
            for label, views in VIEWS.items():
                others = self.fit([name for name in SOURCES if name != out], views, wishes=False)
                scorers[f"{label}_others"] = views, lambda asked, by=others: self.judged(by, asked)[1]
                scorers[f"{label}_all"] = views, lambda asked, by=everything[label]: self.judged(by, asked)[1]
            scorers["minilm_top"] = VIEWS["minilm"], lambda asked, top=top: asked.rows[:, top]
            for label, (views, score) in scorers.items():
                dev = score(self.asked(out, "dev", "right", views))
                right = score(self.asked(out, "test", "right", views))
                floor = float(np.quantile(dev, LOST["fit"]))
                for what, (table, part) in wrong.items():
                    vectors = {view: part.vectors[view] for view in views[1:]}
                    values = score(QueryGroup(out, part_of(table, self.every, views), vectors, True, False))
                    chosen = right[some] if what == "gap" else right
                    found[what][label][out] = figures(chosen, values, LOST["fit"], floor)
                    if (what, label) == ("near", "bundled_others"):
                        errors += self._missed(domain, test, values, floor)
        return {
            what: {label: {**of, "mean": mean(list(of.values()))} for label, of in held.items()}
            for what, held in found.items()
        }

    def _missed(self, domain: Domain, test: Part, values: Floats, floor: float) -> list[dict[str, Any]]:
        """List near misses that passed, with their gold tools and the tools that would be returned instead."""
        errors = []
        for number in np.flatnonzero(values >= floor).tolist():
            scores = self.domains[domain.name].signals.words.scores(test.texts[number]).astype(float)
            scores += 5 * (domain.signals.meanings["static"].vectors @ test.vectors["static"][number])
            scores[test.gold[number]] = -1
            shown = [domain.tools[place] for place in np.argsort(-scores, kind="stable")[:5].tolist()]
            errors.append(
                {
                    "domain": domain.name,
                    "fit": float(values[number]),
                    "text": test.texts[number],
                    "gold": [_line(domain.tools[place]) for place in test.gold[number]],
                    "instead": [_line(tool) for tool in shown],
                }
            )
        return errors

    def bundled(self) -> dict[str, Any]:
        """Measure the bundled decision on every test set."""
        by, using = decision.load_bundled()[0], Encoders(self.settings, with_minilm=False)
        draw, found = random.Random(self.seed), {}
        some = draw.sample(range(len(self.kinds)), CHAT)
        texts = [self.prompts["test"][number].text for number in some]
        chat = Part(texts, using.queries(texts), [[] for _ in texts])
        kinds = np.array([self.kinds[number] for number in some])
        for name in BUNDLED:
            domain = Domain(name, self.root, using, draw, ())
            test, budgets = domain.parts["test"], {}
            tables = {
                what: decision.columns(
                    domain.signals.names, rows, part.vectors | mark_terms(part.texts, by.terms), by.wishes
                )
                for what, rows, part in (
                    ("right", domain.rows(test), test),
                    ("near", domain.rows(test, test.gold), test),
                    ("chat", domain.rows(chat), chat),
                )
            }
            for budget in (0.01, 0.02, 0.05):
                budgets[str(budget)] = told = {}
                for what, table in tables.items():
                    (need, fit), wish = by.estimate(table), decision.wishes(table)
                    asked = chat if what == "chat" else test
                    away = mark_away(by.floors, budget, asked.texts, need, fit, wish) & mark_judged(asked, using.static)
                    needless = away & (wish < 0) & (need < decision.MAX_CHAT_NEED)
                    told[what] = {"away": round(float(away.mean()), 4), "needless": round(float(needless.mean()), 4)}
                    if what == "chat":
                        told[what]["away_by_kind"] = {
                            kind: round(float(away[kinds == kind].mean()), 4) for kind in sorted(set(kinds.tolist()))
                        }
            found[name] = {"n": len(test.texts), "fitted_on": name in by.about["sets"], "budgets": budgets}
            click.echo(f"bundled {name}", err=True)
        return {**found, "mean": {"budgets": average(list(found.values()))}}


def _line(tool: Tool) -> str:
    return f"{tool.name}: {tool.description[:160]}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "need.json")
    parser.add_argument("--lists", type=Path, help="a folder for errors to read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("need", "fit", "bundled"), help="measure this, keep the rest of the file")
    options = parser.parse_args()
    if options.data is None:
        sys.exit("expected --data DIR or TOOLSCOUT_DATA, found neither: say where the datasets lie")
    from toolscout.settings import load_settings

    bench = Bench(Path(options.data), load_settings(), options.seed)
    of_need: list[dict[str, Any]] = []
    of_fit: list[dict[str, Any]] = []
    parts: dict[str, Callable[[], Any]] = {
        "need": lambda: bench.need(of_need),
        "fit": lambda: bench.fits(of_fit),
        "bundled": bench.bundled,
    }
    found = msgspec.json.decode(options.out.read_bytes()) if options.only else {}
    commits = found.get("commits") or dict.fromkeys(parts, found.get("commit"))
    measured = {name: measure() for name, measure in parts.items() if options.only in (None, name)}
    made_by = provenance()
    found |= {
        "command": "python benchmarks/need.py",
        "seed": options.seed,
        "limits": {"train": TRAIN, "dev": DEV, "foreign": FOREIGN, "chat_for_bundled": CHAT, "resamples": RESAMPLES},
        **measured,
        **made_by,
        "commits": commits | dict.fromkeys(measured, made_by["commit"]),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if options.lists:
        options.lists.mkdir(parents=True, exist_ok=True)
        draw = random.Random(options.seed)
        for file, errors in (
            ("rejected", [each for each in of_need if each["side"] == "rejected"]),
            ("accepted", [each for each in of_need if each["side"] == "accepted"]),
            ("missed", of_fit),
        ):
            lines = draw.sample(errors, min(100, len(errors)))
            (options.lists / f"{file}.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))


if __name__ == "__main__":
    main()
