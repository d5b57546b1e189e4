"""What the methods that train with gradients share: settings, the encoder to tune, and the training itself.

Nothing here needs torch before a training begins.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from toolscout.encoders import Encoder
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.errors import ConfigError
from toolscout.workspace import Workspace

if TYPE_CHECKING:
    from toolscout.training import Plan, Task, Trained
    from toolscout.training.towers import Tower

__all__ = [
    "FOLDER",
    "Amount",
    "Count",
    "Graphs",
    "Positive",
    "Share",
    "Tuning",
    "describe_training",
    "make_plan",
    "make_tower",
    "require_tunable",
    "save_encoder",
    "train_task",
]

FOLDER: Final = "encoder"  # of the tuned encoder, in a model's own
Positive = Annotated[float, msgspec.Meta(gt=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Batch = Annotated[int, msgspec.Meta(ge=2)]


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of every fit that tunes an encoder; each method says its own epochs, batch and rate.

    Attributes:
        epochs: at most; the best on dev is kept, where there is a figure.
        batch: examples a step.
        rate: highest learning rate of the encoder.
        decay: weight decay.
        warmup: share of the steps in which the rate rises.
        schedule: how it falls.
        dropout: in training, in place of the encoder's own; none is a third faster on a processor.
        precision: `auto`: bfloat16 where the processor or the device has it.
        threads: of the processor; 0: as many as torch takes by itself.
    """

    epochs: Count
    batch: Batch
    rate: Positive
    decay: Amount = 0.01
    warmup: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    dropout: Share = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: Whole = 0


class Graphs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of every fit over graphs of what was needed together; see `training.collaboration`.

    Attributes:
        layers: of propagation; 0: none.
        scaled: see `Bipartite.propagate`.
        dropped: share of the edges that are left out in an epoch.
        queries: whether the vectors of training queries are parameters too, or stay the encoder's.
        loss: COLT's list-wise multi-label loss, or the list-wise softmax.
        length: tools in the list of a query: its own and others at random; 0: all that training queries use.
        sharpness: the scores are multiplied with it in the list-wise loss.
        contrast: weight of the contrast between both views of queries and scenes. COLT's released code takes means
            where its eqs. 12 and 13 have sums, over the L tools of a list and over both contrasts: a weight there is
            so many times L / 2 here.
        temperature: τ of that contrast.
        epochs: at most; the best on dev is kept.
        batch: queries a step.
        rate: learning rate.
        decay: weight decay.
        patience: epochs without a better dev before it stops.
        threads: of the processor; 0: as many as torch takes by itself.
    """

    layers: Whole = 1
    scaled: bool = True
    dropped: Share = 0.2
    queries: Literal["free", "frozen"] = "free"
    loss: Literal["colt", "softmax"] = "colt"
    length: Whole = 10
    sharpness: Positive = 1.0
    contrast: Amount = 0.5
    temperature: Positive = 0.2
    epochs: Count = 200
    batch: Batch = 2_048
    rate: Positive = 1e-3
    decay: Amount = 1e-7
    patience: Count = 20
    threads: Whole = 0


def require_tunable(encoder: Encoder) -> TransformerEncoder:
    """The encoder, if it can be tuned.

    Raises:
        ConfigError: if not.
    """
    if not isinstance(encoder, TransformerEncoder):
        raise ConfigError(
            f"expected an encoder that can be tuned (minilm, a folder, or a name on the Hugging Face hub), found "
            f"{encoder.name}: give another --encoder"
        )
    return encoder


def make_tower(encoder: TransformerEncoder, options: Tuning) -> Tower:
    """A copy of the encoder, to be tuned by these settings.

    Raises:
        MissingExtra: without torch.
    """
    from toolscout.training.towers import Tower

    return Tower(copy.deepcopy(encoder.model), dropout=options.dropout, precision=options.precision)


def make_plan(options: msgspec.Struct, seed: int, **fixed: Any) -> Plan:
    """How to train: the settings that a plan has by the same name, and `fixed` over them.

    Raises:
        MissingExtra: without torch.
    """
    from toolscout.training import Plan

    known = {field.name for field in dataclasses.fields(Plan)}
    told = {name: value for name, value in msgspec.structs.asdict(options).items() if name in known}
    return Plan(**{**told, "seed": seed, **fixed})


def train_task(
    workspace: Workspace, options: msgspec.Struct, task: Task, tower: Tower | None = None, **fixed: Any
) -> Trained:
    """Train the task by the options of a fit; the checkpoint lies in the work folder.

    Args:
        workspace: of the fit.
        options: of the fit.
        task: what to train.
        tower: the encoder that is tuned, if there is one: it knows device and precision.
        **fixed: see `make_plan`.

    Raises:
        MissingExtra: without torch.
        ConfigError: see `toolscout.training.train`.
    """
    from toolscout.training import train

    if tower is not None:
        precision = "bfloat16" if tower.half else "float32"
        workspace.say(f"training on {task.size:,} examples with {precision} on {tower.device}")
    return train(
        task,
        make_plan(options, workspace.seed, **fixed),
        checkpoint=workspace.work / "checkpoint.safetensors",
        resume=workspace.resume,
        job=workspace.identity,
        say=workspace.say,
    )


def save_encoder(model: Any) -> Callable[[Path], None]:
    """Return what writes a `SentenceTransformer` into a model's folder; see `Artifacts.files`."""
    return lambda folder: model.save(str(folder / FOLDER), create_model_card=False)


def describe_training(done: Trained) -> dict[str, Any]:
    """What a manifest says of a training."""
    return {
        "best_epoch": done.best,
        "history": done.history,
        "training_seconds": done.seconds,
        "examples_per_second": round(done.rate, 2),
        "peak_mb": round(done.peak_mb, 1),
    }
