"""Measures the exit: is "none of these tools" said where it is true, and only there?

Each clean set's requests are searched in its whole catalogue in four ways. *right*: as they are. *hidden*: with their
gold tools hidden. *foreign*: requests of the other sets, and what people say to a cloud, a command line or an assistant
(`requests_*`, dev), in equal numbers. *chat*: prompts of no_tool. The answer to each is *right* (a gold tool comes
first), *none* (the search doubts that a tool fits, or is needed), or *wrong*. Where no tool fits, only none is right.
The thresholds are those of the setting `false_rejects`, the share of served requests that may be doubted.

Other sets' requests may well be served, and after its gold tool is hidden, another tool may do: a perfect reader of the
first five tools stops 44 % of *hidden* (LAB.md, 2026-11-23). The decision was fitted on train requests of three of the
sets (`fitted_on`); `mean` is over all of them, `unseen` over the others. Only English requests are asked, as others get
no verdict. Intervals of 95 %: requests drawn anew within each set.

    python benchmarks/exit.py [--data DIR] [--part test] [--out benchmarks/results/exit.json]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from toolscout.checks.results import write_json
from toolscout.dataset import NoTool
from toolscout.encoders.languages import is_foreign
from toolscout.encoders.static import load_static
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.search.abstain.decision import Abstainer, build_abstainer
from toolscout.search.abstain.decision import read as read_decision
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Decide, Stage
from toolscout.settings import Settings, load_settings
from toolscout.sources.folder import read_tools
from toolscout.types import Answer, Tool
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance

RESULTS: Final = Path(__file__).resolve().parent / "results" / "exit.json"
CLEAN: Final = (
    "metatool",
    "ultratool",
    "hammerbench",
    "toolbench",
    "openapi/restbench_tmdb",
    "openapi/restbench_spotify",
    "livemcpbench",
    "mcpproxy_golden",
)
DEV: Final = {"metatool": "dev", "hammerbench": "train", "ultratool": "train"}  # what to choose on
SPOKEN: Final = ("requests_aws", "requests_tldr", "requests_clinc", "requests_hwu", "requests_sgd")
KINDS: Final = ("right", "hidden", "foreign", "chat")
ANSWERS: Final = ("right", "none", "wrong")
BUDGETS: Final = (0.005, 0.01, 0.02, 0.03, 0.05)
BATCH: Final = 64
RESAMPLES: Final = 1_000

Outcome = list[str]
"""One of `ANSWERS` for each request."""


@dataclasses.dataclass(frozen=True)
class HideTools:
    """What a caller may see: everything but some tools."""

    ids: frozenset[str]

    def __call__(self, tool: Tool) -> bool:
        return tool.id not in self.ids


@dataclasses.dataclass(frozen=True)
class RequestSet:
    """One set: its tools, and the requests to ask with their gold tools."""

    tools: Sequence[Tool]
    asked: Mapping[str, frozenset[str]]

    @classmethod
    def load(cls, name: str, root: Path, part: str, limit: int) -> RequestSet:
        """Load English requests, at most `limit`, drawn at random."""
        dataset, is_word = load_dataset(name, root), load_static().pieces.is_word
        golds = {
            dataset.queries[query]: frozenset(f"d/{tool}" for tool in gold)
            for query, gold in dataset.split(part).items()
            if not is_foreign(dataset.queries[query], is_word)
        }
        some = random.Random(f"exit {name}").sample(sorted(golds), min(limit, len(golds)))
        return cls(read_tools(dataset.folder, "d").tools, {text: golds[text] for text in some})


def draw_foreign(name: str, clean: Mapping[str, RequestSet], spoken: Mapping[str, RequestSet], limit: int) -> list[str]:
    """Draw requests of other domains: half of the other clean sets, half of what people say, each domain alike."""
    draw, drawn = random.Random(f"foreign {name}"), list[str]()
    for domains in ({other: held for other, held in clean.items() if other != name}, spoken):
        each = max(1, limit // 2 // len(domains))
        for held in domains.values():
            drawn += draw.sample(sorted(held.asked), min(each, len(held.asked)))
    return drawn


def ask(
    stage: Stage, judge: Abstainer, texts: Sequence[str], golds: Sequence[frozenset[str]], *, hide: bool
) -> dict[float, Outcome]:
    """Search requests, and return the outcome of each at every threshold."""
    masks = [HideTools(gold) if hide else None for gold in golds]
    requests = [Answer(query=text, visible=visible) for text, visible in zip(texts, masks, strict=True)]
    found: list[Answer] = []
    for start in range(0, len(requests), BATCH):
        found += stage(requests[start : start + BATCH])
    outcomes = {}
    for budget in BUDGETS:
        decided = Decide(judge=dataclasses.replace(judge, budget=budget))(found)
        outcomes[budget] = [
            "none" if answer.kind != "tools" else "right" if not hide and answer.ids[0] in gold else "wrong"
            for answer, gold in zip(decided, golds, strict=True)
        ]
    return outcomes


class ExitBench:
    """All domains of a part, loaded once; measures one set after the other."""

    def __init__(self, options: argparse.Namespace, settings: Settings) -> None:
        self.options, self.settings, self.root = options, settings, Path(options.data)
        parts = dict.fromkeys(CLEAN, "test") if options.part == "test" else DEV
        self.clean = {name: RequestSet.load(name, self.root, part, options.limit) for name, part in parts.items()}
        self.spoken = {name: RequestSet.load(name, self.root, "dev", options.limit) for name in SPOKEN}
        no_tool = NoTool.load(self.root / "no_tool")
        chats = sorted({each.text for each in (no_tool.test if options.part == "test" else no_tool.calibrate)})
        self.chats = random.Random("exit chat").sample(chats, min(options.limit, len(chats)))

    def measure(self, name: str) -> dict[float, dict[str, Outcome]]:
        """Return threshold → kind → the outcome of each request."""
        held, catalogue = self.clean[name], Catalogue.of(self.clean[name].tools)
        resources = HomeResources(self.options.encoder, self.settings)
        stage = registry.build("scout", catalogue, resources)
        judge = build_abstainer(resources, catalogue, stage)
        assert judge is not None
        foreign = draw_foreign(name, self.clean, self.spoken, self.options.limit)
        nothing = frozenset[str]()
        asked = {
            "right": (list(held.asked), list(held.asked.values())),
            "hidden": (list(held.asked), list(held.asked.values())),
            "foreign": (foreign, [nothing] * len(foreign)),
            "chat": (self.chats, [nothing] * len(self.chats)),
        }
        told = {kind: ask(stage, judge, *asked[kind], hide=kind == "hidden") for kind in KINDS}
        return {budget: {kind: told[kind][budget] for kind in KINDS} for budget in BUDGETS}


def share(outcomes: Outcome) -> dict[str, float]:
    """Return the share of each answer in percent, and the number of requests."""
    shares = {answer: round(100 * outcomes.count(answer) / len(outcomes), 1) for answer in ANSWERS}
    return {"n": len(outcomes), **shares}


def average(sets: Sequence[Outcome]) -> dict[str, Any]:
    """Return the mean share of each answer over sets, in percent, with intervals of 95 %."""
    random_numbers = np.random.default_rng(0)
    figures: dict[str, Any] = {}
    for answer in ANSWERS:
        hits = [np.array([each == answer for each in outcomes]) for outcomes in sets]
        draws = [
            np.mean([random_numbers.choice(of_set, len(of_set)).mean() for of_set in hits]) for _ in range(RESAMPLES)
        ]
        interval = [round(100 * float(edge), 1) for edge in np.quantile(draws, [0.025, 0.975])]
        figures[answer] = {"mean": round(100 * float(np.mean([of_set.mean() for of_set in hits])), 1), "ci95": interval}
    return figures


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--part", choices=("dev", "test"), default="test")
    parser.add_argument("--encoder", default="static", help="the encoder that ranks; the decision has its own")
    parser.add_argument("--limit", type=int, default=300, help="requests of a set and kind at most")
    parser.add_argument("--out", "--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    bench = ExitBench(options, load_settings())
    measured = {}
    for name in bench.clean:
        measured[name] = bench.measure(name)
        told = {kind: share(outcomes)["none"] for kind, outcomes in measured[name][0.02].items()}
        click.echo(f"{name}: none at 2 %: {told}", err=True)
    fitted_on = [name for name in measured if name in read_decision().about["sets"]]
    unseen = [name for name in measured if name not in fitted_on] or list(measured)
    found: dict[str, Any] = {
        "command": "python benchmarks/exit.py",
        "part": options.part,
        "encoder": options.encoder,
        "limit": options.limit,
        "fitted_on": fitted_on,
        **{
            label: {
                str(budget): {kind: average([measured[name][budget][kind] for name in names]) for kind in KINDS}
                for budget in BUDGETS
            }
            for label, names in (("mean", list(measured)), ("unseen", unseen))
        },
        "sets": {
            name: {
                str(budget): {kind: share(told) for kind, told in kinds.items()} for budget, kinds in budgets.items()
            }
            for name, budgets in measured.items()
        },
        **provenance(),
    }
    write_json(options.out, found)


if __name__ == "__main__":
    main()
