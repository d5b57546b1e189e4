"""Builds the training set of an encoder: requests and tools, each with negatives from the same catalogue.

It has four parts. The *requests* of the train splits of datasets, at most a few for each set of gold tools, because the
datasets differ in size a hundredfold. *Compound* requests, joined from two of them. From a corpus of tools without
requests: each field of a tool (name, first sentence, parameters) as a query for the tool, and queries made by rule
(`toolscout.learn.synthetic_queries`). For each example the tools that do the opposite of a gold tool stand apart from
the other negatives.

No test request is in the set, nor one that nearly equals one. No tool of the corpus stands in a test set, by definition
or by nearly the same text. With `leave_out`, nothing of those datasets is in the set: not their requests, not their
tools, and not the same tools of other datasets. Every choice follows from hashes of ids and the seed, so it is the same
each time. No language model is used; `toolscout lab synth` could add requests.
"""

from __future__ import annotations

import dataclasses
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from toolscout.checks.results import TRAINED, UNTRAINED, write_json
from toolscout.dataset import Dataset, Qrels
from toolscout.encoders import split_identifiers
from toolscout.errors import ConfigError
from toolscout.indexes.bm25 import BM25
from toolscout.learn.synthetic_queries import generate_queries
from toolscout.rankers import Amount, Count, NonNegative, Positive, Share
from toolscout.sources.folder import read_tools
from toolscout.types import Tool, digest, render
from toolscout_lab.bench_jobs import load_dataset, load_tools, strip_source
from toolscout_lab.machine import Record
from toolscout_lab.synth.filters import NearDuplicates, normalise

__all__ = [
    "LICENSED_SETS",
    "REQUEST_SHARES",
    "TEST_SETS",
    "DataPlan",
    "EncoderOptions",
    "RequestOptions",
    "TrainingExample",
    "TrainingSet",
    "build_training_set",
    "find_opposites",
    "mistype",
    "word_tool",
]

ENCODER_DATA_FORMAT: Final = "encoder-data/1"
UNLICENSED_SETS: Final = ("toollens", "tooldet")  # their licences do not allow a model to be passed on
LICENSED_SETS: Final = tuple(name for name in TRAINED if name not in UNLICENSED_SETS)
TEST_SETS: Final = (*TRAINED, *UNTRAINED, "multilingual_golden")
TOOL_CORPUS: Final = "tool_corpora/toucan"
#: What people say, and the tools that serve it, by source: requests of it in a step of 96 (see `training.requests`).
REQUEST_SHARES: Final = {
    "requests_sgd": 16,
    "requests_clinc": 18,
    "requests_hwu": 16,
    "requests_snips": 2,
    "requests_hass": 6,
    "requests_tldr": 16,
    "requests_aws": 8,
    TOOL_CORPUS: 14,
}
MIN_MISTYPED_CHARS: Final = 4  # of a word that gets a typing error
BM25_NEGATIVES_DEPTH: Final = 20
MAX_SIBLINGS: Final = 40  # of one tool that are compared further
MIN_TELLING_CHARS: Final = 20  # shorter descriptions are alike by chance
_VERB_PAIRS: Final = """
    add/remove add/delete create/delete create/remove create/destroy insert/delete upload/download import/export
    push/pull get/set read/write read/delete send/receive start/stop enable/disable lock/unlock mute/unmute
    follow/unfollow subscribe/unsubscribe open/close show/hide encode/decode encrypt/decrypt compress/decompress
    increase/decrease increment/decrement approve/reject accept/reject accept/decline deposit/withdraw buy/sell
    like/unlike pin/unpin archive/unarchive archive/restore block/unblock ban/unban star/unstar connect/disconnect
    mount/unmount install/uninstall activate/deactivate publish/unpublish assign/unassign attach/detach link/unlink
    watch/unwatch join/leave login/logout pause/resume play/pause play/stop load/save store/retrieve stake/unstake
    mint/burn expand/collapse undo/redo allow/deny grant/revoke register/unregister promote/demote wrap/unwrap
    tag/untag group/ungroup merge/split raise/lower check/uncheck select/deselect freeze/unfreeze suspend/resume
    complete/reopen close/reopen commit/rollback backup/restore delete/restore serialize/deserialize zip/unzip
    upvote/downvote enter/exit clear/fill add/subtract multiply/divide invite/remove stage/unstage claim/unclaim
    bookmark/unbookmark bind/unbind launch/terminate start/kill reserve/release acquire/release book/cancel
    schedule/cancel place/cancel
"""
VERB_PAIRS: Final = tuple(tuple(pair.split("/")) for pair in _VERB_PAIRS.split())
JOINTS: Final = ("{}. Then {}", "{}, and after that {}", "{}. Also, {}", "{} and {}", "First {}. Next, {}")


class EncoderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the training of an encoder.

    Attributes:
        steps: training steps on all datasets with requests, shared out by the number of tools that their examples use.
        corpus_steps: training steps on each dataset of tools without requests.
        queries: examples (a request and its tools) in one step.
        columns: tools that the requests of one step are compared with; random tools fill the list up.
        rivals: how many tools that rank high but are wrong each example adds to the list.
        temperature: the cosines are divided by this before the softmax.
        hold: tokens of which PyTorch keeps the graph at once; larger batches use cached gradients. 0: no limit.
        rate: highest learning rate.
        kept: share of the trained weights in the result; the rest is the encoder as it was.
        query_length, tool_length: maximum tokens of a text in training.
        dropout, precision, threads: as in `rankers.shared.tuning.Tuning`.
    """

    steps: NonNegative = 8
    corpus_steps: NonNegative = 2
    queries: Count = 384
    columns: Count = 1_000
    rivals: NonNegative = 2
    temperature: Positive = 0.05
    hold: NonNegative = 32_768
    rate: Positive = 2e-4
    kept: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.4
    query_length: Count = 48
    tool_length: Count = 48
    dropout: Share = 0.1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: NonNegative = 0


class RequestOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the training of an encoder on the requests of `REQUEST_SHARES`; see `training.requests.Requests`.

    Attributes:
        steps: training steps.
        max_tools: tools of a source that are in the list.
        tools: gold tools of a step that are encoded with gradients.
        tool_weight: weight of the loss over these.
        near: cosine with a gold tool, before the training, from which a tool is no negative.
        mistyped: share of the requests that get a typing error.
        temperature, hold, rate, kept: as in `EncoderOptions`.
        query_length, tool_length: maximum tokens of a text in training.
        dropout, precision, threads: as in `rankers.shared.tuning.Tuning`.
    """

    steps: NonNegative = 60
    max_tools: Count = 1_500
    tools: NonNegative = 32
    tool_weight: Amount = 0.5
    near: Share = 0.7
    mistyped: Share = 0.08
    temperature: Positive = 0.04
    hold: NonNegative = 32_768
    rate: Positive = 4e-5
    kept: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.6
    query_length: Count = 40
    tool_length: Count = 24
    dropout: Share = 0.1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: NonNegative = 0


class DistilOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a distillation; see `training.distillation.Distillation`.

    Attributes:
        epochs: passes over the texts.
        batch: texts of a step.
        max_tools, max_requests: of a dataset. Each tool is read in several wordings, such as its name alone.
        length: maximum tokens of a text.
        relations: weight of the second part of the loss, the cosines between the texts of a batch.
        kept: as in `EncoderOptions`.
        rate, hold, dropout, precision, threads: as in `RequestOptions`.
    """

    epochs: Count = 2
    batch: Count = 64
    max_tools: Count = 4_000
    max_requests: Count = 9_000
    length: Count = 96
    relations: Amount = 5.0
    kept: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    rate: Positive = 1e-4
    hold: NonNegative = 32_768
    dropout: Share = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: NonNegative = 0


class TrainingExample(msgspec.Struct, frozen=True, kw_only=True):
    """One query with the tools that serve it and tools that do not, all of one catalogue.

    Attributes:
        id: identifies the example.
        kind: request, compound, name, description, parameters, command, situation or union.
        catalogue: name of the dataset or corpus; the ids below are ids within it.
        text: the query.
        hidden: field of the gold tool that the text was taken from. Training must not show it on the tool's side.
        gold: ids of the tools that serve it.
        opposites: ids of tools that do the opposite of a gold tool.
        negatives: ids of other tools that look alike and do not serve it, the likest first.
    """

    id: str
    kind: str
    catalogue: str
    text: str
    hidden: str | None = None
    gold: tuple[str, ...]
    opposites: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class DataPlan:
    """What a training set is built from.

    Attributes:
        root: the folder of the datasets.
        sets: datasets, by their paths below the root; their train splits are read.
        corpus: tools without requests, by its path below the root. None: none.
        test_sets: datasets with test requests and tools; one that is not there is reported.
        leave_out: datasets of which nothing may be in the set.
        held_out_ids: ids of tools of the corpus that must not be in the set.
        max_requests: of one set of gold tools.
        compound_share: number of compound requests as a share of the requests for one tool.
        max_negatives: of one example, opposites not counted.
        seed: seeds every choice.
    """

    root: Path
    sets: tuple[str, ...] = LICENSED_SETS
    corpus: str | None = TOOL_CORPUS
    test_sets: tuple[str, ...] = TEST_SETS
    leave_out: tuple[str, ...] = ()
    held_out_ids: Collection[str] = ()
    max_requests: int = 20
    compound_share: float = 0.2
    max_negatives: int = 8
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class TrainingSet:
    """The examples, the tools by catalogue, and the report on what was left out and why."""

    examples: list[TrainingExample]
    tools: dict[str, list[Tool]]
    report: Record

    def write(self, folder: Path) -> None:
        """Write `examples.jsonl`, `tools.jsonl` and `report.json` into a folder, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        encode = msgspec.json.Encoder(order="deterministic").encode
        with (folder / "examples.jsonl").open("wb") as stream:
            stream.writelines(encode(example) + b"\n" for example in self.examples)
        with (folder / "tools.jsonl").open("wb") as stream:
            for catalogue, tools in self.tools.items():
                stream.writelines(encode({"catalogue": catalogue, "tool": tool}) + b"\n" for tool in tools)
        write_json(folder / "report.json", self.report)


def build_training_set(plan: DataPlan) -> TrainingSet:
    """Build the training set of a plan.

    Raises:
        ConfigError: for a set without a licence to train on, or a `leave_out` that is no test set.
        NotFound: for a set that is not there, or has no train split.
    """
    _check_plan(plan)
    held_out = _HeldOut.load(plan)
    examples: list[TrainingExample] = []
    tools: dict[str, list[Tool]] = {}
    reports: Record = {}
    for name in plan.sets:
        if name not in plan.leave_out:
            reports[name], tools[name], made = _read_set(plan, name, held_out)
            examples += made
    if plan.corpus is not None:
        reports[plan.corpus], tools[plan.corpus], made = _read_corpus(plan, plan.corpus, held_out)
        examples += made
    report = {
        "format": ENCODER_DATA_FORMAT,
        "leave_out": plan.leave_out,
        "seed": plan.seed,
        "missing_test_sets": held_out.missing,
        "language_model": "unused",
        "examples": len(examples),
        "examples_by_kind": dict(sorted(Counter(example.kind for example in examples).items())),
        "fingerprint": digest(ENCODER_DATA_FORMAT, [digest("example/1", example) for example in examples]),
        "sources": reports,
    }
    return TrainingSet(examples, tools, report)


def _check_plan(plan: DataPlan) -> None:
    """Refuse data sets whose licence forbids training, and unknown ones to leave out."""
    refused = [name for name in plan.sets if name.rpartition("/")[2] in UNLICENSED_SETS]
    if refused:
        raise ConfigError(f"{refused[0]} may not be trained on, because of its licence. Leave it out of the sets.")
    unknown = [name for name in plan.leave_out if name not in plan.test_sets]
    if unknown:
        names = ", ".join(plan.test_sets)
        raise ConfigError(f"expected a test set to leave out ({names}), found {unknown[0]!r}")


@dataclasses.dataclass(frozen=True)
class _HeldOut:
    """What training must not see.

    Attributes:
        requests: test requests of all test sets, and every request of the left-out datasets.
        tools: those of all test sets; for the corpus.
        tools_left_out: those of the left-out datasets; for the other datasets.
        missing: test sets that are not below the root.
    """

    requests: NearDuplicates
    tools: HeldOutTools
    tools_left_out: HeldOutTools
    missing: list[str]

    @classmethod
    def load(cls, plan: DataPlan) -> _HeldOut:
        """Read the requests and the tools of the test sets. A set that is not there is named in the report."""
        requests, tools, missing = NearDuplicates(), [], []
        tools_left_out: list[Tool] = []
        for name in plan.test_sets:
            if not (plan.root / name / "queries.jsonl").is_file():
                if name in plan.leave_out:
                    raise ConfigError(f"The dataset {name}, which is to be left out, is not in {plan.root}.")
                missing.append(name)
                continue
            dataset = load_dataset(name, plan.root)
            is_left_out = name in plan.leave_out
            for query in dataset.queries if is_left_out else dataset.qrels.get("test", {}):
                requests.add(dataset.queries[query])
            set_tools = read_tools(dataset.folder, "d").tools
            tools.extend(set_tools)
            tools_left_out.extend(set_tools if is_left_out else ())
        return cls(requests, HeldOutTools(tools, plan.held_out_ids), HeldOutTools(tools_left_out), missing)

    def has_request(self, text: str) -> bool:
        return text in self.requests or self.requests.has_near_duplicate(text)


# --- datasets ---------------------------------------------------------------------------------------------------------


def _read_set(plan: DataPlan, name: str, held_out: _HeldOut) -> tuple[Record, list[Tool], list[TrainingExample]]:
    """Return the report on a dataset, its tools, and its examples."""
    dataset = load_dataset(name, plan.root)
    qrels = dataset.split("train")
    tools, report = split_by_overlap(load_tools(dataset, qrels), held_out.tools_left_out)
    present = {strip_source(tool.id) for tool in tools}
    drops: Counter[str] = Counter()
    chosen = _choose_requests(plan, dataset, _drop_requests(dataset, qrels, present, held_out, drops), drops)
    miner = _NegativeMiner(tools, plan)
    drafts = [
        *(("request", query, dataset.queries[query], tuple(sorted(qrels[query]))) for query in chosen),
        *_join_requests(plan, name, dataset, {query: tuple(sorted(qrels[query])) for query in chosen}),
    ]
    negatives = miner.mine_for_texts([text for _, _, text, _ in drafts], [gold for *_, gold in drafts])
    examples = [
        TrainingExample(
            id=f"{name}/{kind}/{key}",
            kind=kind,
            catalogue=name,
            text=text,
            gold=gold,
            opposites=miner.find_opposites_of(gold),
            negatives=likest,
        )
        for (kind, key, text, gold), likest in zip(drafts, negatives, strict=True)
    ]
    counts = {"train_requests": len(qrels), "requests_dropped": dict(sorted(drops.items()))}
    return {**report, **counts, "examples": len(examples)}, tools, examples


def _drop_requests(
    dataset: Dataset, qrels: Qrels, present: set[str], held_out: _HeldOut, drops: Counter[str]
) -> list[str]:
    """Return the ids of the requests that training may see; count the others in `drops`."""
    allowed = []
    for query, gold in qrels.items():
        if not present.issuperset(gold):
            drops["gold_tool_left_out"] += 1
        elif held_out.has_request(dataset.queries[query]):
            drops["test_request"] += 1
        else:
            allowed.append(query)
    return allowed


def _choose_requests(plan: DataPlan, dataset: Dataset, queries: Sequence[str], drops: Counter[str]) -> list[str]:
    """Choose at most `max_requests` for each set of gold tools, so that frequent tools do not outweigh the others."""
    by_gold: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for query in queries:
        by_gold[tuple(sorted(dataset.qrels["train"][query]))].append(query)
    chosen: list[str] = []
    for group in by_gold.values():
        group.sort(key=lambda query: digest("order/1", [plan.seed, dataset.name, query]))
        chosen += group[: plan.max_requests]
        drops["beyond_max_requests"] += max(0, len(group) - plan.max_requests)
    return sorted(chosen)


def _join_requests(
    plan: DataPlan, name: str, dataset: Dataset, gold_of: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield compound requests (kind, key, text, gold), each joined from two requests for one tool."""
    singles = [query for query, gold in gold_of.items() if len(gold) == 1]
    singles.sort(key=lambda query: digest("join/1", [plan.seed, name, query]))
    wanted_count = int(plan.compound_share * len(singles))
    pairs = [pair for pair in zip(singles[::2], singles[1::2], strict=False) if gold_of[pair[0]] != gold_of[pair[1]]]
    for first, second in pairs[:wanted_count]:
        joint = JOINTS[int(digest("joint/1", [plan.seed, first, second])[:8], 16) % len(JOINTS)]
        first_text, second_text = dataset.queries[first].rstrip(" .!"), dataset.queries[second]
        text = joint.format(first_text, second_text[:1].lower() + second_text[1:])
        yield "compound", f"{first}+{second}", text, tuple(sorted({*gold_of[first], *gold_of[second]}))


# --- wordings ---------------------------------------------------------------------------------------------------------


def word_tool(tool: Tool) -> list[str]:
    """Return the text of a tool in several wordings, the one that a search encodes first.

    The others are the name and the description, the first sentence, the name, and the wordings that a dataset has of
    the tool (`metadata.variants`, as in SGD-X).
    """
    texts = [render(tool, "short"), f"{tool.name}: {tool.description}", render(tool, "sentence"), tool.name]
    for variant in tool.meta.get("variants", ()):
        texts.append(f"{variant['title']}: {variant['text']} ({', '.join(variant['parameters'])})")
    return list(dict.fromkeys(texts))


def mistype(text: str, seed: int) -> str:
    """Return a text with one typing error: two letters swapped, one missing, or one doubled. Short words stay."""
    words = [match for match in re.finditer("[a-z]+", text) if len(match[0]) >= MIN_MISTYPED_CHARS]
    if not words:
        return text
    number = int(digest("mistype/1", [seed, text])[:8], 16)
    word = words[number % len(words)]
    place = word.start() + 1 + number // 7 % (len(word[0]) - 2)
    first, second = text[place], text[place + 1]
    changed = (second + first, second, first + first + second)[number // 3 % 3]
    return text[:place] + changed + text[place + 2 :]


# --- the corpus -------------------------------------------------------------------------------------------------------


def _read_corpus(plan: DataPlan, name: str, held_out: _HeldOut) -> tuple[Record, list[Tool], list[TrainingExample]]:
    """Return the report on a corpus of tools, the tools that training may see, and its examples."""
    tools, report = split_by_overlap(read_tools(plan.root / name, "d").tools, held_out.tools)
    miner = _NegativeMiner(tools, plan)

    def make(kind: str, key: str, text: str, gold: tuple[str, ...], hidden: str | None) -> TrainingExample:
        """Make one training example, with the opposites and siblings of its gold tools as hard negatives."""
        opposites, negatives = miner.find_opposites_of(gold), miner.find_siblings(gold)
        return TrainingExample(
            id=f"{name}/{kind}/{key}",
            kind=kind,
            catalogue=name,
            text=text,
            hidden=hidden,
            gold=gold,
            opposites=opposites,
            negatives=negatives,
        )

    fields = [
        make(field, tool_id, text, (tool_id,), field)
        for tool in tools
        for tool_id in [strip_source(tool.id)]
        for field, text in _take_fields(tool)
    ]
    queries = generate_queries(tools, max_queries=len(tools), seed=plan.seed) if tools else []
    made = [
        make(query.kind, strip_source(query.id), query.text, tuple(map(strip_source, query.tools)), None)
        for query in queries
    ]
    examples = [example for example in (*fields, *made) if not held_out.has_request(example.text)]
    report["examples_dropped"] = {"test_request": len(fields) + len(made) - len(examples)}
    return {**report, "examples": len(examples)}, tools, examples


def _take_fields(tool: Tool) -> Iterator[tuple[str, str]]:
    """Yield (field, text) for each field of a tool that can stand as a query."""
    name = " ".join(split_identifiers(tool.name).replace("-", " ").lower().split())
    if " " in name:
        yield "name", name
    sentence = render(tool, "sentence") if tool.description else ""
    if " " in sentence:
        yield "description", sentence
    parameters = " ".join(split_identifiers(render(tool, "parameters")).lower().split())
    if " " in parameters:
        yield "parameters", parameters


# --- negatives --------------------------------------------------------------------------------------------------------


class _NegativeMiner:
    """Finds tools of one catalogue that look like the gold tools and are not."""

    def __init__(self, tools: Sequence[Tool], plan: DataPlan) -> None:
        self._plan = plan
        self._tools = {strip_source(tool.id): tool for tool in tools}
        self._definitions = {tool_id: fingerprint_definition(tool) for tool_id, tool in self._tools.items()}
        self._opposites: defaultdict[str, list[str]] = defaultdict(list)  # tool → tools that do the opposite
        for pair in find_opposites(tools):
            left, right = (strip_source(tool.id) for tool in pair)
            self._opposites[left].append(right)
            self._opposites[right].append(left)
        self._name_words = {tool_id: _find_name_words(tool) for tool_id, tool in self._tools.items()}
        self._order = {tool_id: digest("sibling/1", [plan.seed, tool_id]) for tool_id in self._tools}
        self._siblings: dict[str, list[tuple[float, str, str]]] = {}  # cache of `_rank_siblings`
        self._by_path: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)  # path in a source → its tools
        for tool_id, tool in self._tools.items():
            self._by_path[tool.path].append(tool_id)

    def find_opposites_of(self, gold: Sequence[str]) -> tuple[str, ...]:
        """Return the tools that do the opposite of a gold tool, without the gold tools."""
        return self._without_gold((other for tool_id in gold for other in self._opposites[tool_id]), gold)

    def find_siblings(self, gold: Sequence[str]) -> tuple[str, ...]:
        """Return tools with the same path as a gold tool: first those whose names share most words with its name."""
        opposites = set(self.find_opposites_of(gold))
        ranked = sorted(place for tool_id in gold for place in self._rank_siblings(tool_id))
        siblings = (sibling for *_, sibling in ranked if sibling not in opposites)
        return self._without_gold(siblings, gold)[: self._plan.max_negatives]

    def _rank_siblings(self, tool_id: str) -> list[tuple[float, str, str]]:
        """Return (rank, tie-break, id) of the nearest tools with the same path; cached, because many requests ask."""
        ranked = self._siblings.get(tool_id)
        if ranked is None:
            words, siblings = self._name_words[tool_id], self._by_path[self._tools[tool_id].path]
            shares = ((sibling, _compute_overlap(words, self._name_words[sibling])) for sibling in siblings)
            places = ((-share, self._order[sibling], sibling) for sibling, share in shares)
            ranked = self._siblings[tool_id] = heapq.nsmallest(MAX_SIBLINGS, places)
        return ranked

    def mine_for_texts(self, texts: Sequence[str], golds: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Return for each text the wrong tools that BM25 ranks first, then siblings of the gold tools.

        The catalogue of a dataset may have one path for all tools, so the words of the request come first.
        """
        if not texts:
            return []
        index = BM25.build(list(self._tools.values()))
        depth = BM25_NEGATIVES_DEPTH + max(map(len, golds))
        rankings, _ = index.search(list(texts), depth)
        mined = []
        for ranking, gold in zip(rankings, golds, strict=True):
            opposites = set(self.find_opposites_of(gold))
            likest = [tool_id for tool_id in map(strip_source, ranking) if tool_id not in opposites]
            half = self._plan.max_negatives - self._plan.max_negatives // 2
            by_words = self._without_gold(likest, gold)
            joined = dict.fromkeys((*by_words[:half], *self.find_siblings(gold), *by_words[half:]))
            mined.append(tuple(joined)[: self._plan.max_negatives])
        return mined

    def _without_gold(self, tool_ids: Iterable[str], gold: Sequence[str]) -> tuple[str, ...]:
        """Return the ids, each once, without gold tools and without copies of them."""
        definitions = {self._definitions[tool_id] for tool_id in gold}
        return tuple(dict.fromkeys(each for each in tool_ids if self._definitions[each] not in definitions))


def _find_name_words(tool: Tool) -> frozenset[str]:
    return frozenset(split_identifiers(tool.name).replace("-", " ").lower().split())


def _compute_overlap(words: frozenset[str], other_words: frozenset[str]) -> float:
    return len(words & other_words) / max(1, len(words | other_words))


def fingerprint_definition(tool: Tool) -> str:
    """Hash name, description and parameters: the same tool in another source has the same hash."""
    return digest("definition/1", [tool.name, tool.description, tool.parameters])


class HeldOutTools:
    """The tools that training must not see, found again by definition, by description, or by nearly the same text."""

    def __init__(self, tools: Iterable[Tool], ids: Iterable[str] = ()) -> None:
        """Index the tools that are held out. `ids`: further ones, of which only the id is known."""
        self._ids = frozenset(ids)
        self._definitions: set[str] = set()
        self._descriptions: set[str] = set()
        self._texts = NearDuplicates()
        for tool in tools:
            self._definitions.add(fingerprint_definition(tool))
            self._descriptions.add(normalise(tool.description))
            self._texts.add(_describe_tool(tool))

    def find_reason(self, tool: Tool, tool_id: str) -> str | None:
        """Return why a tool counts as held out: `id`, `definition`, `description` or `near`. None: it does not.

        Args:
            tool: a tool of the training data.
            tool_id: its id, as the held-out ids are written.
        """
        if tool_id in self._ids:
            return "id"
        if fingerprint_definition(tool) in self._definitions:
            return "definition"
        description = normalise(tool.description)
        if len(description) >= MIN_TELLING_CHARS and description in self._descriptions:
            return "description"
        text = _describe_tool(tool)
        return "near" if text in self._texts or self._texts.has_near_duplicate(text) else None


def _describe_tool(tool: Tool) -> str:
    return f"{split_identifiers(tool.name)} {tool.description}"


def split_by_overlap(tools: Sequence[Tool], held_out: HeldOutTools) -> tuple[list[Tool], Record]:
    """Return the tools that are not held out, and a report on the others.

    The report counts `tools`, `kept`, and `dropped` by reason; `dropped_tools` maps ids without the source to reasons.
    """
    reasons: dict[str, str] = {}
    kept_tools = []
    for tool in tools:
        tool_id = tool.id.partition("/")[2]
        reason = held_out.find_reason(tool, tool_id)
        if reason is None:
            kept_tools.append(tool)
        else:
            reasons[tool_id] = reason
    report = {
        "tools": len(tools),
        "kept": len(kept_tools),
        "dropped": dict(sorted(Counter(reasons.values()).items())),
        "dropped_tools": dict(sorted(reasons.items())),
    }
    return kept_tools, report


def find_opposites(tools: Sequence[Tool]) -> Iterator[tuple[Tool, Tool]]:
    """Yield pairs of tools with the same path whose names differ only by opposite verbs.

    A plural `s` does not count as a difference. The pairs come in the order of the verbs and then of the tools.
    """
    verbs = {verb for pair in VERB_PAIRS for verb in pair}
    places: defaultdict[tuple[tuple[str, ...], str, tuple[str, ...]], list[Tool]] = defaultdict(list)
    for tool in tools:
        words = split_identifiers(tool.name).replace("-", " ").lower().split()
        for number, verb in enumerate(words):
            if verb in verbs:
                rest = tuple(word.rstrip("s") for word in (*words[:number], "*", *words[number + 1 :]))
                places[tool.path, verb, rest].append(tool)
    for left, right in VERB_PAIRS:
        for (path, verb, rest), firsts in list(places.items()):
            if verb == left:
                yield from ((first, second) for first in firsts for second in places.get((path, right, rest), ()))
