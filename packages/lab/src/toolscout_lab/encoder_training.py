"""Tunes an encoder for tools on several datasets and writes its folder, with a card that says what it has seen.

The folder is one of sentence-transformers: `--encoder FOLDER` takes it, and so does other people's code. Its file
`training.json` holds the settings and the report on the training set.
"""

from __future__ import annotations

import copy
import importlib.metadata
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from toolscout.checks.results import write_json
from toolscout.encoders.languages import is_foreign
from toolscout.encoders.static import load_static
from toolscout.errors import ConfigError
from toolscout.types import Tool, digest, render
from toolscout_lab.encoder_data import (
    REQUEST_SHARES,
    DistilOptions,
    EncoderOptions,
    RequestOptions,
    TrainingExample,
    TrainingSet,
    mistype,
    word_tool,
)
from toolscout_lab.encoders.onnx_export import read_licence
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.machine import Record
from toolscout_lab.rankers.dpr import TUNED_TEXT_STYLE

if TYPE_CHECKING:
    from toolscout.encoders import Encoder, Kind, Vectors
    from toolscout_lab.training import Plan, Task
    from toolscout_lab.training.catalogues import CatalogueTexts
    from toolscout_lab.training.towers import Tower

__all__ = ["TRAINING_FILE", "render_without", "train_encoder"]

TRAINING_FILE: Final = "training.json"
ENCODER_TRAINING_FORMAT: Final = "encoder-training/1"
SPOKEN_KINDS: Final = ("request", "compound", "command", "situation")  # of examples: worded as people ask
VECTORS_FOLDER: Final = "teacher"  # of the vectors that a distillation has computed so far
TEACHER_BATCH: Final = 512
CHARS_PER_TOKEN: Final = 4  # of English, about
NO_STEP: Final = "There is no step to train. Give datasets with training queries, and steps above 0."
MAX_MASKED_PARAMETERS: Final = 12  # names of parameters that stand for a tool whose other fields are hidden

TUNED: Final = (
    "{examples:,} examples from {catalogues}; {steps} steps of {queries} examples against lists of about {columns:,} "
    "tools."
)
DISTILLED: Final = (
    "Taught by `{teacher}`, {epochs} times, with {texts:,} texts from {catalogues}: requests, and tools in several "
    "wordings."
)
CARD: Final = """---
library_name: sentence-transformers
license: {licence}
tags: [sentence-transformers, tool-retrieval]
---

# An encoder for tools

Tuned from `{start}` by `toolscout train encoder`, so that a request lies near the tools that it needs.

* {how}
* Left out: {left_out}. No test request was seen, nor one that nearly equals one. `training.json` has the report.
* A figure for a dataset holds for unseen tools only if that dataset is named as left out, here and of the encoder that
  this one was tuned from.

```python
from sentence_transformers import SentenceTransformer

SentenceTransformer("FOLDER").encode(["a request", "name: description (parameters)"], normalize_embeddings=True)
```
"""


def train_encoder(
    encoder: TransformerEncoder,
    data: TrainingSet,
    out: Path,
    options: EncoderOptions | RequestOptions | DistilOptions,
    *,
    teacher: Encoder | None = None,
    seed: int = 0,
    resume: bool = False,
    say: Any = lambda line: None,
) -> Record:
    """Tune an encoder on a training set and write its folder.

    Args:
        encoder: the encoder to start from; it stays as it is.
        data: from `encoder_data.build_training_set`.
        out: the folder to write; created.
        options: the settings. They choose the task: `training.catalogues.Catalogues`, `training.requests.Requests` or
            `training.distillation.Distillation`.
        teacher: the larger encoder whose vectors are learned, for `DistilOptions`.
        seed: seed of all random choices.
        resume: whether to continue an interrupted training, and to keep a finished one.
        say: receives lines of progress.

    Returns:
        The content of `training.json`.

    Raises:
        ConfigError: if the folder holds another training, or no example is left.
        MissingExtra: without torch.
    """
    from toolscout_lab.training import train
    from toolscout_lab.training.catalogues import average_weights
    from toolscout_lab.training.towers import Tower

    identity = digest(ENCODER_TRAINING_FORMAT, [encoder.fingerprint, data.report["fingerprint"], options, seed])
    if teacher is not None:
        identity = digest(ENCODER_TRAINING_FORMAT, [identity, teacher.fingerprint])
    finished = _read_finished(out, identity, resume)
    if finished is not None:
        return finished
    tower = Tower(copy.deepcopy(encoder.model), dropout=options.dropout, precision=options.precision)
    start = {name: value.clone() for name, value in tower.model.state_dict().items()}
    task: Task
    if isinstance(options, EncoderOptions):
        task = _learn_catalogues(tower, data, identity, options, seed)
    elif isinstance(options, RequestOptions):
        task = _learn_requests(tower, data, identity, options, seed)
    else:
        assert teacher is not None, "distillation needs a teacher"
        task = _learn_teacher(tower, teacher, data, identity, options, out / VECTORS_FOLDER, say)
    out.mkdir(parents=True, exist_ok=True)
    done = train(
        task,
        _plan(options, seed),
        checkpoint=out / "checkpoint.safetensors",
        resume=resume,
        job=identity,
        say=say,
    )
    average_weights(tower.model, start, options.kept)
    tower.model.save(str(out), create_model_card=False)
    record = {
        "format": ENCODER_TRAINING_FORMAT,
        "identity": identity,
        "start": encoder.name,
        "teacher": teacher.name if teacher is not None else None,
        "licence": read_licence(str(encoder.model.tokenizer.name_or_path)),
        "seed": seed,
        "settings": msgspec.to_builtins(options),
        "history": done.history,
        "seconds": round(done.seconds, 1),
        "toolscout": importlib.metadata.version("toolscout"),
        "data": data.report,
    }
    (out / "README.md").write_text(_write_card(record, task), encoding="utf-8")
    write_json(out / TRAINING_FILE, record)
    (out / "checkpoint.safetensors").unlink(missing_ok=True)
    shutil.rmtree(out / VECTORS_FOLDER, ignore_errors=True)
    return record


def _plan(options: EncoderOptions | RequestOptions | DistilOptions, seed: int) -> Plan:
    """Return the loop's settings. Only a distillation counts in texts; for the others a step is an example."""
    from toolscout_lab.training import Plan

    common: dict[str, Any] = {"rate": options.rate, "seed": seed, "threads": options.threads}
    if isinstance(options, DistilOptions):
        return Plan(options.epochs, options.batch, patience=options.epochs, targets=("cosine",), **common)
    return Plan(epochs=1, batch=1, **common)


def _read_finished(out: Path, identity: str, resume: bool) -> Record | None:
    """Return the record of a finished training that is to be kept; None if one is to begin.

    Raises:
        ConfigError: if the folder holds another finished training, or one that was not to be resumed.
    """
    file = out / TRAINING_FILE
    if not file.exists():
        return None
    record: Record = msgspec.json.decode(file.read_bytes())
    if resume and record.get("identity") == identity:
        return record
    raise ConfigError(f"{out} already holds an encoder. Name a new folder, or give the same settings and --resume.")


def _write_card(record: Record, task: Any) -> str:
    report = record["data"]
    catalogues = ", ".join(report["sources"])
    if record["teacher"] is not None:
        epochs = record["settings"]["epochs"]
        how = DISTILLED.format(teacher=record["teacher"], texts=task.size, epochs=epochs, catalogues=catalogues)
    else:
        how = TUNED.format(
            examples=task.n_examples,
            catalogues=catalogues,
            steps=task.size,
            queries=task.n_queries,
            columns=task.n_listed,
        )
    return CARD.format(
        start=record["start"],
        licence=record["licence"],
        how=how,
        left_out=", ".join(report["leave_out"]) or "no dataset",
    )


def _learn_requests(tower: Tower, data: TrainingSet, identity: str, options: RequestOptions, seed: int) -> Task:
    """Return the task that learns requests of many domains; the sources without a share are not used."""
    from toolscout_lab.training.requests import Requests, RequestTexts

    chosen = _choose_tools(data, options.max_tools)
    place = {key: number for number, key in enumerate(chosen)}
    is_word = load_static().pieces.is_word
    examples = [
        example
        for example in data.examples
        if example.kind in SPOKEN_KINDS
        and all((example.catalogue, tool) in place for tool in example.gold)
        and not is_foreign(example.text, is_word)
    ]
    examples_of: dict[str, dict[int, list[int]]] = {}
    for number, example in enumerate(examples):
        by_tool = examples_of.setdefault(example.catalogue, {})
        by_tool.setdefault(place[example.catalogue, example.gold[0]], []).append(number)
    if not examples or not options.steps:
        raise ConfigError(NO_STEP)
    wordings = [tower.tokens(word_tool(tool), "tool", options.tool_length) for tool in chosen.values()]
    texts = RequestTexts(
        queries=tower.tokens([example.text for example in examples], "query", options.query_length),
        mistyped=tower.tokens([mistype(example.text, seed) for example in examples], "query", options.query_length),
        wordings=wordings,
        gold=[
            np.array([place[example.catalogue, tool] for tool in example.gold], dtype=np.intp) for example in examples
        ],
        examples_of=examples_of,
        shares=REQUEST_SHARES,
    )
    return Requests(tower, texts, identity, options)


def _learn_teacher(
    tower: Tower,
    teacher: Encoder,
    data: TrainingSet,
    identity: str,
    options: DistilOptions,
    folder: Path,
    say: Callable[[str], None],
) -> Task:
    """Return the task that learns the teacher's vectors of all requests, and of the tools in several wordings."""
    from toolscout_lab.training.distillation import Distillation

    kinds: dict[str, Kind] = {}  # text → how the teacher reads it
    max_chars = CHARS_PER_TOKEN * options.length  # so that both read the same
    for name in data.tools:
        tools = sorted(data.tools[name], key=lambda tool: digest("taught/1", tool.id))[: options.max_tools]
        kinds |= dict.fromkeys((text[:max_chars] for tool in tools for text in word_tool(tool)), "tool")
        examples = (
            example.text[:max_chars]
            for example in data.examples
            if example.catalogue == name and example.kind in SPOKEN_KINDS
        )
        requests = sorted(examples, key=lambda text: digest("taught/1", text))[: options.max_requests]
        kinds |= dict.fromkeys(requests, "query")
    texts = sorted(kinds, key=lambda text: digest("taught/2", text))
    if not texts:
        raise ConfigError(NO_STEP)
    vectors = _encode_in_parts(teacher, texts, kinds, folder / identity, say)
    tokens = [tower.tokens([text], kinds[text], options.length)[0] for text in texts]
    return Distillation(tower, tokens, vectors, identity, options)


def _encode_in_parts(
    teacher: Encoder, texts: Sequence[str], kinds: Mapping[str, Kind], folder: Path, say: Callable[[str], None]
) -> Vectors:
    """Encode texts, in order. What is done lies in files, so that an interrupted run goes on. Returns unit rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(texts), TEACHER_BATCH):
        file = folder / f"{start:08}.npy"
        if file.exists():
            continue
        part = texts[start : start + TEACHER_BATCH]
        rows = np.zeros((len(part), teacher.dim), np.float16)
        for kind in ("query", "tool"):
            places = sorted(
                (place for place, text in enumerate(part) if kinds[text] == kind), key=lambda place: len(part[place])
            )
            if places:
                rows[places] = teacher.encode([part[place] for place in places], kind)
        partial = file.with_suffix(".partial")
        with partial.open("wb") as stream:
            np.save(stream, rows, allow_pickle=False)
        partial.replace(file)
        say(f"the teacher has read {start + len(part):,} of {len(texts):,} texts")
    parts = [np.load(file, allow_pickle=False) for file in sorted(folder.glob("*.npy"))]
    vectors: Vectors = np.concatenate(parts).astype(np.float32)
    return vectors


def _choose_tools(data: TrainingSet, max_tools: int) -> dict[tuple[str, str], Tool]:
    """Choose the tools that requests use, at most so many of a source: (source, id) → tool."""
    used = {
        (example.catalogue, tool) for example in data.examples if example.kind in SPOKEN_KINDS for tool in example.gold
    }
    chosen: dict[tuple[str, str], Tool] = {}
    for name in REQUEST_SHARES:
        tools = {(name, tool.id.partition("/")[2]): tool for tool in data.tools.get(name, ())}
        order = sorted(tools.keys() & used, key=lambda key: digest("listed/1", key))
        chosen |= {key: tools[key] for key in order[:max_tools]}
    return chosen


def _learn_catalogues(tower: Tower, data: TrainingSet, identity: str, options: EncoderOptions, seed: int) -> Task:
    """Return the task that learns one catalogue at each step."""
    from toolscout_lab.training.catalogues import Catalogues

    texts = _tokenise(tower, data, options)
    if not any(catalogue.steps for catalogue in texts):
        raise ConfigError(NO_STEP)
    return Catalogues(tower, texts, identity, options)


def _tokenise(tower: Tower, data: TrainingSet, options: EncoderOptions) -> list[CatalogueTexts]:
    """Tokenise the examples and tools of each catalogue; see `training.catalogues.CatalogueTexts`."""
    from toolscout_lab.training.catalogues import CatalogueTexts

    made = []
    steps = _share_steps(data, options)
    for name, tools in data.tools.items():
        examples = [example for example in data.examples if example.catalogue == name]
        if not steps.get(name):
            continue
        place = {tool.id.partition("/")[2]: number for number, tool in enumerate(tools)}
        hidden = [number for number, example in enumerate(examples) if example.hidden]
        masked = tower.tokens(
            [render_without(tools[place[examples[number].gold[0]]], examples[number]) for number in hidden],
            "tool",
            options.tool_length,
        )
        made.append(
            CatalogueTexts(
                queries=tower.tokens([example.text for example in examples], "query", options.query_length),
                tools=tower.tokens([render(tool, TUNED_TEXT_STYLE) for tool in tools], "tool", options.tool_length),
                gold=[np.array([place[tool] for tool in example.gold], dtype=np.intp) for example in examples],
                rivals=[
                    np.array([place[tool] for tool in (*example.opposites, *example.negatives)], dtype=np.intp)
                    for example in examples
                ],
                masked=dict(zip(hidden, masked, strict=True)),
                steps=steps[name],
            )
        )
    return made


def _share_steps(data: TrainingSet, options: EncoderOptions) -> dict[str, int]:
    """Share the steps among the catalogues with requests, at least one for each; the corpus has its own."""
    used: dict[str, set[str]] = {}
    for example in data.examples:
        used.setdefault(example.catalogue, set()).update(example.gold)
    with_requests = {example.catalogue for example in data.examples if example.kind == "request"}
    n_used = sum(len(used[name]) for name in with_requests)
    shares = (
        {name: max(1, round(options.steps * len(used[name]) / n_used)) for name in with_requests}
        if options.steps
        else {}
    )
    return {**{name: options.corpus_steps for name in used if name not in with_requests}, **shares}


def render_without(tool: Tool, example: TrainingExample) -> str:
    """Render a tool without the field that an example was taken from, so that the two share no text by copying."""
    parts = {
        "name": render(tool, "name"),
        "description": render(tool, "description"),
        "parameters": " ".join(render(tool, "parameters").split()[:MAX_MASKED_PARAMETERS]),
    }
    if example.hidden == "description":
        parts["description"] = parts["description"].removeprefix(render(tool, "sentence")).strip()
    else:
        parts.pop(example.hidden or "", None)
    return " ".join(part for part in parts.values() if part) or tool.name
