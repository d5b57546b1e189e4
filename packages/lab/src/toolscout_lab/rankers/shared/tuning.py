"""Settings, encoders and training for methods that train with gradients.

The module imports torch only when a training begins.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from toolscout.encoders import Encoder
from toolscout.errors import ConfigError
from toolscout.rankers import Amount, Batch, Count, NonNegative, Positive, Share
from toolscout.search.resources import Resources
from toolscout_lab.encoders.transformer import TransformerEncoder, hide_progress_bars
from toolscout_lab.machine import Record

if TYPE_CHECKING:
    from toolscout_lab.training import Plan, Task, TrainingOutcome
    from toolscout_lab.training.towers import Tower

__all__ = [
    "ENCODER_FOLDER",
    "Amount",
    "Count",
    "Graphs",
    "MassToolOptions",
    "MlcOptions",
    "NonNegative",
    "Positive",
    "Share",
    "Transfer",
    "TunedBlend",
    "Tuning",
    "describe_training",
    "make_plan",
    "make_tower",
    "require_tunable",
    "save_encoder",
    "train_task",
]

Transfer = Literal["gate", "attention", "concatenation", "addition", "none"]
ENCODER_FOLDER: Final = "encoder"  # subfolder of a model that holds its tuned encoder


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of every fit that tunes an encoder. Each method sets its own epochs, batch and rate.

    Attributes:
        epochs: maximum number; the model keeps the best epoch on dev, if dev has queries.
        batch: examples per step.
        rate: highest learning rate of the encoder.
        decay: weight decay.
        warmup: share of the steps in which the rate rises.
        schedule: how the rate falls afterwards.
        dropout: replaces the encoder's own in training. Training without dropout is a third faster on a CPU.
        precision: `auto`: bfloat16 where the CPU or the device supports it.
        threads: CPU threads; 0: the default of torch.
    """

    epochs: Count
    batch: Batch
    rate: Positive
    decay: Amount = 0.01
    warmup: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    dropout: Share = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: NonNegative = 0


class TunedBlend(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of `mix_usage` and of the encoder that is tuned for it; see `usage.Blend`."""

    sharpness: Positive | None = None
    kappa: Amount | None = None
    agreement: Amount | None = None
    novelty: Amount = 0.8


class Graphs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of every fit over graphs of tools that were needed together; see `training.collaboration`.

    Attributes:
        layers: propagation layers; 0: none.
        scaled: see `Bipartite.propagate`.
        dropped: share of the edges that an epoch leaves out.
        queries: `free`: the vectors of training queries are parameters too; `frozen`: they stay as encoded.
        loss: COLT's list-wise multi-label loss, or the list-wise softmax.
        length: tools in the list of a query: its gold tools, filled up at random; 0: all that training queries use.
        sharpness: factor of the scores in the list-wise loss.
        contrast: weight of the contrast between both views of queries and scenes. COLT's released code takes means
            where its eqs. 12 and 13 have sums, over the L tools of a list and over both contrasts. A weight there
            equals L / 2 times that weight here.
        temperature: τ of that contrast.
        epochs: maximum number; the model keeps the best on dev.
        batch: queries per step.
        rate: learning rate.
        decay: weight decay.
        patience: epochs without improvement on dev before training stops.
        threads: CPU threads; 0: the default of torch.
    """

    layers: NonNegative = 1
    scaled: bool = True
    dropped: Share = 0.2
    queries: Literal["free", "frozen"] = "free"
    loss: Literal["colt", "softmax"] = "colt"
    length: NonNegative = 10
    sharpness: Positive = 1.0
    contrast: Amount = 0.5
    temperature: Positive = 0.2
    epochs: Count = 200
    batch: Batch = 2_048
    rate: Positive = 1e-3
    decay: Amount = 1e-7
    patience: Count = 20
    threads: NonNegative = 0


class MlcOptions(TunedBlend, frozen=True, forbid_unknown_fields=True):
    """Settings of a fit of `rankers.mlc`.

    Attributes:
        loss: loss over the tools: list-wise `softmax`, or `binary` cross-entropy as published.
        start: start of the layer: the mean of the queries that used each tool (`usage`), or `zeros`.
        sets: weight of the sets of tools; None: the best on dev; 0: they are not learned.
        fast: factor of the learning rate for the layer.
        patience: epochs without improvement on dev before training stops.
        thinned: share of a query's tokens that training leaves out at random.
        hold: maximum tokens of a step in memory with their graph; larger steps cache gradients.
    """

    loss: Literal["softmax", "binary"] = "softmax"
    start: Literal["usage", "zeros"] = "usage"
    sets: Amount | None = None
    epochs: Count = 6
    batch: Batch = 128
    rate: Positive = 2e-4
    fast: Positive = 10.0
    patience: Count = 2
    thinned: Share = 0.1
    hold: NonNegative = 32_768
    novelty: Amount = 0.5


class MassToolOptions(Graphs, frozen=True, forbid_unknown_fields=True):
    """Settings of a fit of `rankers.masstool`.

    Attributes:
        base: the recipe with the encoder, which stays frozen.
        seen: whether a training query sees its own edges (`graph`), as published, or none, like a later query (`new`).
        search: whether to search neighbours (SUIM).
        k: maximum number of neighbours.
        floor: cosine that a neighbour must exceed (dynamic filtering, ε); -1: all pass.
        transfer: how to pass on the knowledge of the detection tower (AdaKT): `gate`, `attention`, `concatenation`,
            `addition`, or `none`.
        need: λ, weight of the loss of the detection tower, which learns if there are queries that need no tool.
        epoch_by: the dev figures that choose the epoch if detection is learned: ndcg@5 and the AUROC of the need
            (`both`), or ndcg@5 alone (`retrieval`), as without detection. AUROC rises long after ndcg@5 has begun to
            fall, so fits with and without detection are comparable only if both go by `retrieval`.
    """

    base: str = "dpr"
    seen: Literal["graph", "new"] = "new"
    search: bool = True
    k: Count = 20
    floor: Annotated[float, msgspec.Meta(ge=-1, lt=1)] = 0.7
    transfer: Transfer = "attention"
    need: Amount = 0.2
    epoch_by: Literal["both", "retrieval"] = "both"
    loss: Literal["colt", "softmax"] = "softmax"
    length: NonNegative = 0
    sharpness: Positive = 8.0
    epochs: Count = 40
    patience: Count = 10


def require_tunable(encoder: Encoder) -> TransformerEncoder:
    """Return the encoder if it can be tuned.

    Raises:
        ConfigError: if it cannot.
    """
    if not isinstance(encoder, TransformerEncoder):
        raise ConfigError(
            f"expected an encoder that can be tuned (minilm, a folder, or a name on the Hugging Face hub), found "
            f"{encoder.name}: give another --encoder"
        )
    return encoder


def make_tower(encoder: TransformerEncoder, options: Tuning) -> Tower:
    """Copy the encoder for tuning with these settings.

    Raises:
        MissingExtra: without torch.
    """
    from toolscout_lab.training.towers import Tower

    return Tower(copy.deepcopy(encoder.model), dropout=options.dropout, precision=options.precision)


def make_plan(options: msgspec.Struct, seed: int, **fixed: Any) -> Plan:
    """Make a training plan from the options with the names of its fields; `fixed` overrides them.

    Raises:
        MissingExtra: without torch.
    """
    from toolscout_lab.training import Plan

    names = {field.name for field in dataclasses.fields(Plan)}
    values = {name: value for name, value in msgspec.structs.asdict(options).items() if name in names}
    return Plan(**{**values, "seed": seed, **fixed})


def train_task(
    resources: Resources, options: msgspec.Struct, task: Task, tower: Tower | None = None, **fixed: Any
) -> TrainingOutcome:
    """Train a task with the options of a fit. The checkpoint lies in the work folder.

    Args:
        resources: of the fit.
        options: of the fit.
        task: the task to train.
        tower: the encoder that is tuned, if any. The line of progress names its device and precision.
        **fixed: see `make_plan`.

    Raises:
        MissingExtra: without torch.
        ConfigError: see `toolscout_lab.training.train`.
    """
    from toolscout_lab.training import train

    if tower is not None:
        precision = "bfloat16" if tower.half else "float32"
        resources.say(f"training on {task.size:,} examples with {precision} on {tower.device}")
    return train(
        task,
        make_plan(options, resources.run.seed, **fixed),
        checkpoint=resources.run.work / "checkpoint.safetensors",
        resume=resources.run.resume,
        job=resources.run.identity,
        say=resources.say,
    )


def save_encoder(model: Any) -> Callable[[Path], None]:
    """Return a function that writes a `SentenceTransformer` into a model folder; see `Artifacts.files`."""

    def save(folder: Path) -> None:
        with hide_progress_bars():
            model.save(str(folder / ENCODER_FOLDER), create_model_card=False)

    return save


def describe_training(done: TrainingOutcome) -> Record:
    """Return the record of a training for the manifest."""
    return {
        "best_epoch": done.best,
        "history": done.history,
        "training_seconds": done.seconds,
        "examples_per_second": round(done.rate, 2),
        "peak_mb": round(done.peak_mb, 1),
    }
