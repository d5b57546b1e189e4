"""Fits the bundled splitter: does a new step of the request begin at this cut?

It learns from compound requests joined from train requests (`joining.py`, edition `fit`), from short ones joined from
names of tools, and from requests with one gold tool and from phrases with a conjunction that are one need. It reads
only datasets with a licence, and no dev or test request. The threshold is chosen on the dev edition, whose ways of
joining differ, and on the dev lines of `suites/one_need.jsonl`.

    python benchmarks/fit_steps.py [--data DIR] [--out src/toolscout/search/data/steps.json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from joining import SETS, WAYS, Joined, build_joined, join_parts

from toolscout.encoders import split_identifiers
from toolscout.search.steps.splitter import (
    BUNDLED_STEPS,
    CLASSES,
    FEATURES,
    STEPS_FORMAT,
    Splitter,
    describe_cuts,
    find_cuts,
)
from toolscout.search.steps.words import VERBS
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance
from toolscout_lab.training.logistic import logistic

LICENCES = {"hammerbench": "Apache-2.0", "metatool": "MIT", "bfcl": "Apache-2.0", "seal_tools_in": "Apache-2.0"}
NAMES_FROM = "tool_corpora/toucan"  # MIT
COMPOUNDS = 1_500  # of each dataset
SHORT_COMPOUNDS = 5_000
SINGLES = 2_000  # of each dataset, at most
RIDGE = 1e-4
SINGLE_WEIGHT = 2.0  # of a cut in a request that is one need
PHRASE_WEIGHT = 10.0
SHORT_WEIGHT = 3.0  # of a cut in a compound of short imperatives
SUITES = Path(__file__).parent / "suites"
PHRASES = Path(__file__).parent / "step_phrases.txt"
THING_SHARE = 0.5  # of the further parts of a compound that name a thing alone, if a connector stands before them
LINKED_WAYS = ("also-sentences", "once-done", "apart-from-that", "when-finished", "sentences-next", "leads", "evening")
SEED = 0
THRESHOLD = 0.4  # lower ones split single needs, higher ones miss steps

FOREIGN_GLUES = {
    "de": (
        *(" und ", ", dann ", ". ", " und danach ", "; ", ", und ", ". Danach ", ". Außerdem ", "\n- ", " sowie "),
        *(". Noch etwas: ", " – außerdem ", ". Im Anschluss "),
    ),
    "es": (
        *(" y ", ", luego ", ". ", " y después ", "; ", ", y ", ". Además, ", "\n- ", " y también "),
        *(". Otra petición: ", " – además ", ". Al terminar, "),
    ),
    "fr": (
        *(" et ", ", puis ", ". ", " et ensuite ", "; ", ", et ", ". Ensuite, ", "\n- ", " et aussi "),
        *(". Autre demande : ", " – et aussi ", ". Une fois fini, "),
    ),
    "it": (
        *(" e ", ", poi ", ". ", " e dopo ", "; ", ", e ", ". Poi ", "\n- ", " e anche "),
        *(". Altra richiesta: ", " – e anche ", ". Una volta fatto, "),
    ),
    "pt": (
        *(" e ", ", depois ", ". ", " e depois ", "; ", ", e ", ". Além disso, ", "\n- ", " e também "),
        *(". Outro pedido: ", " – e também ", ". Ao terminar, "),
    ),
    "nl": (
        *(" en ", ", dan ", ". ", " en daarna ", "; ", ", en ", ". Daarna ", "\n- ", " en ook "),
        *(". Nog een verzoek: ", " – en ook ", ". Als dat klaar is, "),
    ),
    "ru": (
        *(" и ", ", затем ", ". ", " и потом ", "; ", ", и ", ". Потом ", "\n- ", " и ещё "),
        *(". Другая просьба: ", " – и ещё ", ". Как закончишь, "),
    ),
    "zh": (
        *("，然后", "，再", "。", "，并", "；", "，", "，最后", "\n- ", "，接着"),
        *("。另一个请求：", "，此外", "。做完以后，"),
    ),
}


def read_phrases() -> dict[str, list[str]]:
    """Return the phrases of `step_phrases.txt` by section."""
    phrases: dict[str, list[str]] = {}
    for line in PHRASES.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = phrases.setdefault(line.strip("[]"), [])
        else:
            section.append(line)
    return phrases


def list_one_needs() -> list[str]:
    """Return phrases with conjunctions that are one need."""
    phrases, draw = read_phrases(), random.Random(SEED)
    pairs, frames = phrases["pairs"], phrases["frames"]
    return [*phrases["one need"], *(draw.choice(frames).replace("{}", pair) for pair in pairs for _ in range(4))]


def name_thing(order: str) -> str:
    """Return what a short order acts on: "the members of my team" of "list the members of my team"."""
    thing = order.split(" ", 1)[1]
    first = thing.split(" ", 1)[0]
    return order if first in ("it", "that", "them") else thing if first in ("the", "my", "a") else f"the {thing}"


def join_short(names: Sequence[str], count: int) -> Iterator[Joined]:
    """Yield compounds of names of tools, which are short imperatives, and of short foreign requests."""
    draw = random.Random(SEED)
    ways = WAYS["fit"]
    for number in range(count):
        parts = draw.sample(names, 2 + number % 3)
        way = list(ways)[number % len(ways)]
        if way in LINKED_WAYS:
            parts[1:] = [name_thing(part) if draw.random() < THING_SHARE else part for part in parts[1:]]
        text, spans = join_parts(parts, ways[way])
        yield Joined(text, spans, (), way)
    phrases = read_phrases()
    for language, glues in FOREIGN_GLUES.items():
        for number in range(120):
            parts = draw.sample(phrases[f"steps {language}"], 2 + number % 3)
            glue = glues[number % len(glues)]
            text = ""
            places: list[tuple[int, int]] = []
            for part in parts:
                text += glue if places else ""
                part = part.rstrip("?？ ") if glue[:1] != "." else part
                places.append((len(text), len(text) + len(part)))
                text += part
            yield Joined(text, tuple(places), (), language)


def label_cuts(joined: Joined) -> tuple[list[dict[str, float]], list[bool]]:
    """Return the features of each cut and whether it begins a part: the first cut in the gap before the part does."""
    cuts = find_cuts(joined.text)
    labels = [False] * len(cuts)
    for (_, end), (start, _) in zip(joined.spans, joined.spans[1:], strict=False):
        inside = [n for n, cut in enumerate(cuts) if cut.end > end - 2 and cut.start <= start and not labels[n]]
        if inside:
            labels[inside[0]] = True
    return describe_cuts(joined.text, cuts), labels


def read_names(root: Path) -> list[str]:
    """Return names of tools that are imperatives of two to five words, some with a value."""
    values = (
        "",
        " for Anna",
        " 4471",
        " in Berlin",
        " of last week",
        ' "Sales, Q3"',
        " on Friday at 5",
        " for my team",
    )
    draw, names = random.Random(SEED), []
    for line in (root / NAMES_FROM / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        words = split_identifiers(json.loads(line)["title"]).lower().split()
        if 2 <= len(words) <= 5 and words[0] in VERBS:
            article = draw.choice(("", "the ", "my ", "a "))
            names.append(f"{words[0]} {article}{' '.join(words[1:])}{draw.choice(values)}")
            if draw.random() < 0.25:
                names.append(f"{words[0]} {draw.choice(('it', 'that', 'them'))}{draw.choice(values[1:])}")
    return sorted(set(names))


def fit(rows: Sequence[Mapping[str, float]], labels: Sequence[bool], mass: Sequence[float]) -> dict[str, float]:
    """Return the weight of each feature."""
    names = [f"{kind}.{name}" for kind in CLASSES for name in FEATURES]
    place = {name: number for number, name in enumerate(names)}
    table = np.zeros((len(rows), len(names)))
    for number, row in enumerate(rows):
        for name, value in row.items():
            table[number, place[name]] = value
    weights = logistic(table, np.array(labels), RIDGE, np.array(mass))
    constant = weights[-1]  # every row has the bias of its class
    fitted: dict[str, float] = dict(zip(names, weights.tolist(), strict=False))
    for kind in CLASSES:
        fitted[f"{kind}.bias"] += float(constant)
    return {name: round(weight, 4) for name, weight in fitted.items() if round(weight, 4)}


def measure(splitter: Splitter, joined: Sequence[Joined]) -> tuple[float, float]:
    """Return the shares of compounds that are split exactly into their parts, and of begins that are found."""
    exact = found = total = 0
    for request in joined:
        _, labels = label_cuts(request)
        logits = splitter.score_cuts(request.text).values() or [-np.inf] * len(labels)  # documents are not split
        guesses = [logit >= np.log(splitter.threshold / (1 - splitter.threshold)) for logit in logits]
        exact += guesses == labels and sum(labels) == len(request.spans) - 1
        found += sum(guess and label for guess, label in zip(guesses, labels, strict=True))
        total += len(request.spans) - 1
    return exact / len(joined), found / total


def read_dev_lines(name: str) -> list[dict[str, Any]]:
    """Return the dev lines of a suite."""
    lines = map(json.loads, (SUITES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["split"] == "dev"]


def main() -> None:
    """Fit, choose the threshold, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--out", type=Path, default=BUNDLED_STEPS)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    root = Path(options.data)
    rows: list[dict[str, float]] = []
    labels: list[bool] = []
    mass: list[float] = []
    compounds: list[Joined] = [*join_short(read_names(root), SHORT_COMPOUNDS)]
    datasets = {name: load_dataset(name, root) for name in SETS}
    singles: list[tuple[str, float]] = [(phrase, PHRASE_WEIGHT) for phrase in list_one_needs()]
    for dataset in datasets.values():
        compounds += build_joined(dataset, "fit", COMPOUNDS, SEED)
        texts, qrels = dataset.texts("train"), dataset.split("train")
        alone = [texts[query] for query, gold in qrels.items() if len(gold) == 1]
        singles += [(text, SINGLE_WEIGHT) for text in random.Random(SEED).sample(alone, min(SINGLES, len(alone)))]
    for request in compounds:
        found, begins = label_cuts(request)
        rows.extend(found)
        labels.extend(begins)
        mass.extend([1.0 if request.parts else SHORT_WEIGHT] * len(begins))
    for text, weight in singles:
        found = describe_cuts(text, find_cuts(text))
        rows.extend(found)
        labels.extend([False] * len(found))
        mass.extend([weight] * len(found))
    counts = {"compounds": len(compounds), "singles": len(singles), "cuts": len(rows), "begins": sum(labels)}
    weights = fit(rows, labels, mass)
    dev = {name: build_joined(dataset, "dev", 300, SEED) for name, dataset in datasets.items()}
    needs = [line["text"] for line in read_dev_lines("one_need")]
    by_hand = read_dev_lines("joined_by_hand")
    about = {
        "sets": LICENCES,
        "names": {NAMES_FROM: "MIT"},
        "seed": SEED,
        "counts": counts,
        "command": "python benchmarks/fit_steps.py",
        **provenance(),
    }
    for threshold in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        splitter = Splitter(STEPS_FORMAT, about, weights, threshold)
        whole = sum(len(splitter.split(text)) == 1 for text in needs) / len(needs)
        right = sum(len(splitter.split(line["text"])) == len(line["steps"]) for line in by_hand)
        shares = {
            name: "/".join(f"{100 * share:.0f}" for share in measure(splitter, some)) for name, some in dev.items()
        }
        click.echo(f"{threshold}: left whole {100 * whole:.1f} %, by hand {right}/{len(by_hand)}, {shares}", err=True)
    splitter = Splitter(STEPS_FORMAT, about, weights, THRESHOLD)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(splitter), indent=1) + b"\n")
    click.echo(f"{options.out}: {counts}", err=True)


if __name__ == "__main__":
    main()
