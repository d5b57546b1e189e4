"""Tunes an encoder for tools on several datasets and writes its folder, with a card that says what it has seen.

The folder is one of sentence-transformers: `--encoder FOLDER` takes it, and so does other people's code. Its file
`training.json` holds the settings and the report on the training set.
"""

from __future__ import annotations

import copy
import importlib.metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from toolscout.checks.results import write_json
from toolscout.errors import ConfigError
from toolscout.rankers import Count, NonNegative, Positive, Share
from toolscout.types import Tool, digest, render
from toolscout_lab.encoder_data import TrainingExample, TrainingSet
from toolscout_lab.encoders.onnx_export import read_licence
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers.dpr import TUNED_TEXT_STYLE

__all__ = ["TRAINING_FILE", "EncoderOptions", "render_without", "train_encoder"]

TRAINING_FILE: Final = "training.json"
ENCODER_TRAINING_FORMAT: Final = "encoder-training/1"
MAX_MASKED_PARAMETERS: Final = 12  # names of parameters that stand for a tool whose other fields are hidden

CARD: Final = """---
library_name: sentence-transformers
license: {licence}
tags: [sentence-transformers, tool-retrieval]
---

# An encoder for tools

Tuned from `{start}` by `toolscout train encoder`, so that a request lies near the tools that it needs.

* {examples:,} examples from {catalogues}; {steps} steps of {queries} examples against lists of about {columns:,} tools.
* Left out: {left_out}. No test request was seen, nor one that nearly equals one. `training.json` has the report.
* A figure for a dataset holds for unseen tools only if that dataset is named as left out.

```python
from sentence_transformers import SentenceTransformer

SentenceTransformer("FOLDER").encode(["a request", "name: description (parameters)"], normalize_embeddings=True)
```
"""


class EncoderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the training of an encoder.

    Attributes:
        steps: training steps on datasets with requests, divided by the number of tools that their examples use.
        corpus_steps: training steps on the corpus of tools without requests.
        queries, columns, rivals, temperature, hold: see `training.catalogues.ListSettings`.
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


def train_encoder(
    encoder: TransformerEncoder,
    data: TrainingSet,
    out: Path,
    options: EncoderOptions,
    *,
    seed: int = 0,
    resume: bool = False,
    say: Any = lambda line: None,
) -> dict[str, Any]:
    """Tune an encoder on a training set and write its folder.

    Args:
        encoder: the encoder to start from; it stays as it is.
        data: from `encoder_data.build_training_set`.
        out: the folder to write; created.
        options: the settings.
        seed: seed of all random choices.
        resume: whether to continue an interrupted training, and to keep a finished one.
        say: receives lines of progress.

    Returns:
        The content of `training.json`.

    Raises:
        ConfigError: if the folder holds another training, or no example is left.
        MissingExtra: without torch.
    """
    from toolscout_lab.training import Plan, train
    from toolscout_lab.training.catalogues import Catalogues, ListSettings, average_weights
    from toolscout_lab.training.towers import Tower

    identity = digest(ENCODER_TRAINING_FORMAT, [encoder.fingerprint, data.report["fingerprint"], options, seed])
    finished = _read_finished(out, identity, resume)
    if finished is not None:
        return finished
    tower = Tower(copy.deepcopy(encoder.model), dropout=options.dropout, precision=options.precision)
    start = {name: value.clone() for name, value in tower.model.state_dict().items()}
    texts = _tokenise(tower, data, options)
    if not any(catalogue.steps for catalogue in texts):
        raise ConfigError("There is no step to train. Give datasets with training queries, and steps above 0.")
    settings = ListSettings(**{name: getattr(options, name) for name in ListSettings.__dataclass_fields__})
    task = Catalogues(tower, texts, identity, settings)
    out.mkdir(parents=True, exist_ok=True)
    done = train(
        task,
        Plan(epochs=1, batch=1, rate=options.rate, seed=seed, threads=options.threads),
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
        "licence": read_licence(str(encoder.model.tokenizer.name_or_path)),
        "seed": seed,
        "settings": msgspec.to_builtins(options),
        "history": done.history,
        "seconds": round(done.seconds, 1),
        "toolscout": importlib.metadata.version("toolscout"),
        "data": data.report,
    }
    (out / "README.md").write_text(_write_card(record, task.size), encoding="utf-8")
    write_json(out / TRAINING_FILE, record)
    (out / "checkpoint.safetensors").unlink(missing_ok=True)
    return record


def _read_finished(out: Path, identity: str, resume: bool) -> dict[str, Any] | None:
    """Return the record of a finished training that is to be kept; None if one is to begin.

    Raises:
        ConfigError: if the folder holds another finished training, or one that was not to be resumed.
    """
    file = out / TRAINING_FILE
    if not file.exists():
        return None
    record: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    if resume and record.get("identity") == identity:
        return record
    raise ConfigError(f"{out} already holds an encoder. Name a new folder, or give the same settings and --resume.")


def _write_card(record: dict[str, Any], n_steps: int) -> str:
    report, settings = record["data"], record["settings"]
    return CARD.format(
        start=record["start"],
        licence=record["licence"],
        examples=report["examples"],
        catalogues=", ".join(report["sources"]),
        steps=n_steps,
        queries=settings["queries"],
        columns=settings["columns"],
        left_out=", ".join(report["leave_out"]) or "no dataset",
    )


def _tokenise(tower: Any, data: TrainingSet, options: EncoderOptions) -> list[Any]:
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
