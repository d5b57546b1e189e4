"""One loop for everything that is trained with gradients: batches, optimizer, schedule, dev, checkpoints.

A method describes what it trains as a `Task`; `train` does the rest ::

    done = train(task, Plan(epochs=4, batch=384, rate=2e-4), checkpoint=folder / "checkpoint.safetensors", resume=True)

Everything random follows from the seed and the position (epoch, step), so a training that was killed and goes on makes
the same steps as one that was not. This package needs torch; import it inside the function that trains.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from toolscout.errors import ConfigError, require
from toolscout.types import digest

require("torch", "train")

import torch  # noqa: E402 - after the sentence that says how to install it
from torch import Tensor  # noqa: E402

from toolscout.training import allocator, checkpoints  # noqa: E402
from toolscout.training.checkpoints import Position  # noqa: E402

__all__ = ["Plan", "Task", "Trained", "batches", "train"]

CHECKPOINT_SECONDS: Final = 300.0
TELL_SECONDS: Final = 15.0
WINDOW: Final = 50


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        epochs: at most.
        batch: examples a step.
        rate: highest learning rate.
        decay: weight decay of AdamW; none for biases, norms and embedding tables, so that words which no batch touches
            stay as they are.
        warmup: share of all steps in which the rate rises from 0.
        schedule: how the rate falls to 0 afterwards, or that it does not.
        clip: largest norm of the gradients.
        patience: stop after so many epochs without a better dev.
        targets: the dev figures whose sum chooses the epoch; higher is better.
        seed: of everything random.
        threads: of the processor; 0: as many as torch takes by itself.
    """

    epochs: int
    batch: int
    rate: float
    decay: float = 0.01
    warmup: float = 0.1
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    clip: float = 1.0
    patience: int = 2
    targets: tuple[str, ...] = ("ndcg@5",)
    seed: int = 0
    threads: int = 0

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, 0 … steps - 1."""
        rising = max(1, round(self.warmup * steps))
        if step < rising:
            return self.rate * (step + 1) / rising
        left = (steps - step) / max(1, steps - rising)
        shape = {"linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "constant": 1.0}
        return self.rate * shape[self.schedule]


class Task:
    """What a method brings to the loop.

    Attributes:
        module: what is trained; on the device where it is trained.
        size: how many examples there are.
        identity: fingerprint of data, settings and starting weights; a checkpoint serves no other.
        lengths: tokens of each example, to batch those of like length; None: batches are drawn at random.
    """

    module: torch.nn.Module
    size: int
    identity: str
    lengths: Sequence[int] | None = None

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Parameter groups of the optimizer; `scale` multiplies the learning rate of a group."""
        tables = {id(part.weight) for part in self.module.modules() if isinstance(part, torch.nn.Embedding)}
        trained = [each for each in self.module.parameters() if each.requires_grad]
        plain = [each for each in trained if each.ndim < 2 or id(each) in tables]
        decayed = [each for each in trained if each.ndim >= 2 and id(each) not in tables]
        return [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]

    def faster(self, decay: float, layers: torch.nn.Module, scale: float) -> list[dict[str, Any]]:
        """`groups` with a rate of its own for some layers, `scale` times that of the others."""
        inside = {id(each) for each in layers.parameters()}
        groups = []
        for group in Task.groups(self, decay):
            for own in (False, True):
                kept = [each for each in group["params"] if (id(each) in inside) == own]
                groups.append({**group, "params": kept, "scale": scale if own else 1.0})
        return groups

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Prepare an epoch, counted from 0: draw edges, mine negatives.

        Called again when an epoch is resumed, if `state` is empty.
        """

    def state(self) -> dict[str, Tensor]:
        """What `begin` made of the weights as they were, which are others in mid-epoch; empty: nothing of the kind."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave, in place of `begin`."""

    def backward(self, rows: npt.NDArray[np.intp], random: np.random.Generator) -> float:
        """Leave the gradients of one batch of examples in the module. Returns the loss."""
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """The dev figures of the module as it is; empty: there is no dev, and the last epoch is kept."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Trained:
    """What `train` did; the module holds the weights of the best epoch.

    Attributes:
        history: the figures of each epoch, with its mean `loss`.
        best: the epoch that was kept, counted from 1.
        seconds: wall time, of all parts of an interrupted training.
        earlier: those of `seconds` that were spent before it was last resumed.
        rate: examples a second, without dev, since it was last resumed.
        peak_mb: highest memory of the process, or of the CUDA device.
    """

    history: list[dict[str, float]]
    best: int
    seconds: float
    earlier: float
    rate: float
    peak_mb: float

    @property
    def figures(self) -> dict[str, float]:
        """Those of the epoch that was kept, without its loss."""
        return {name: value for name, value in self.history[self.best - 1].items() if name != "loss"}


def batches(
    size: int, batch: int, random: np.random.Generator, lengths: Sequence[int] | None = None
) -> list[npt.NDArray[np.intp]]:
    """The examples of one epoch, each once, in batches and in a random order.

    With lengths, examples are drawn for 50 batches at a time, and those of like length share a batch.
    """
    order = random.permutation(size)
    if lengths is not None:
        long = np.asarray(lengths)
        windows = [order[start : start + WINDOW * batch] for start in range(0, size, WINDOW * batch)]
        order = np.concatenate([window[np.argsort(long[window], kind="stable")] for window in windows])
    cut = [order[start : start + batch] for start in range(0, size, batch)]
    return cut if lengths is None else [cut[place] for place in random.permutation(len(cut))]


def train(
    task: Task,
    plan: Plan,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    job: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> Trained:
    """Train the task's module, and leave the weights of the best epoch in it.

    Args:
        task: what to train.
        plan: how.
        checkpoint: the file to go on from after a kill, written every five minutes and after every epoch; None: none.
        resume: whether to go on from that file, if it is there.
        job: fingerprint of what the task belongs to; a checkpoint serves no other.
        say: told the loss, the speed and the time left every fifteen seconds, and the dev figures.

    Raises:
        ConfigError: if there is nothing to train on, the loss is no longer a number, or the checkpoint belongs to
            another training.
    """
    if not task.size:
        raise ConfigError("expected queries to train on, found none: give a dataset with qrels/train.tsv")
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads or threads)
    try:
        with torch.random.fork_rng(), allocator.held():
            return _Loop(task, plan, checkpoint, job, say).run(resume)
    finally:
        torch.set_num_threads(threads)


class _Loop:
    def __init__(self, task: Task, plan: Plan, checkpoint: Path | None, job: str, say: Callable[[str], None]) -> None:
        self.task, self.plan, self.file, self.say = task, plan, checkpoint, say
        self.optimizer = torch.optim.AdamW(task.groups(plan.decay), lr=plan.rate)
        self.parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        self.at = Position(identity=digest("training/2", [job, task.identity, dataclasses.asdict(plan), task.size]))
        self.best: dict[str, Tensor] = {}
        self.earlier = 0.0
        self.drawn: dict[str, Tensor] = {}
        self.per_epoch = math.ceil(task.size / plan.batch)
        self.busy, self.examples = 0.0, 0
        self.ticked = self.told = self.saved = time.monotonic()

    def run(self, resume: bool) -> Trained:
        if self.file is not None and resume and self.file.exists():
            self.at, self.best, self.drawn = checkpoints.load(
                self.file, self.at.identity, self.task.module, self.optimizer
            )
            self.earlier = self.at.seconds
            self.say(f"going on after {self.at.epoch} epochs and {self.at.step} of {self.per_epoch} steps")
        while self.at.epoch < self.plan.epochs and not self._waited_enough():
            self._epoch()
        self.task.module.load_state_dict(self.best)
        self.task.module.eval()
        rate = self.examples / self.busy if self.busy else 0.0
        return Trained(
            self.at.history, self.at.best + 1, round(self.at.seconds, 3), round(self.earlier, 3), rate, _peak_mb()
        )

    def _waited_enough(self) -> bool:
        return bool(self.best) and self.at.epoch - 1 - self.at.best >= self.plan.patience

    def _epoch(self) -> None:
        epoch = self.at.epoch
        torch.manual_seed(int(self._random(epoch, 0, "torch").integers(2**62)))
        if self.at.step and self.drawn:
            self.task.restore(self.drawn)
        else:
            self.task.begin(epoch, self._random(epoch, 0, "task"))
        order = batches(self.task.size, self.plan.batch, self._random(epoch, 0, "order"), self.task.lengths)
        self.task.module.train()
        for rows in order[self.at.step :]:
            self._step(epoch, rows)
            if time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                self._save()
        self._judge()
        self._save()

    def _step(self, epoch: int, rows: npt.NDArray[np.intp]) -> None:
        started = time.monotonic()
        torch.manual_seed(int(self._random(epoch, self.at.step + 1, "torch").integers(2**62)))
        rate = self.plan.rate_at(epoch * self.per_epoch + self.at.step, self.plan.epochs * self.per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.task.backward(rows, self._random(epoch, self.at.step + 1, "task"))
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise ConfigError(
                f"expected a finite loss, found {loss} in epoch {epoch + 1}, step {self.at.step + 1}: lower the "
                "learning rate"
            )
        self.optimizer.step()
        self.at.step += 1
        self.at.loss += loss
        self.busy += time.monotonic() - started
        self.examples += len(rows)
        if time.monotonic() - self.told > TELL_SECONDS:
            self._tell()

    def _tell(self) -> None:
        done, speed = self.at.step, self.examples / self.busy
        left = (self.plan.epochs - self.at.epoch) * self.task.size - done * self.plan.batch
        self.say(
            f"epoch {self.at.epoch + 1}/{self.plan.epochs}, step {done}/{self.per_epoch}: loss "
            f"{self.at.loss / done:.4f}, {speed:.1f} items/s, {max(0.0, left / speed) / 60:.1f} min left, "
            f"{_peak_mb():,.0f} MB at most"
        )
        self.told = time.monotonic()

    def _judge(self) -> None:
        self.task.module.eval()
        with torch.no_grad():
            figures = self.task.figures()
        self.at.history.append({"loss": self.at.loss / self.at.step, **figures})
        quality = [sum(each.get(name, math.inf) for name in self.plan.targets) for each in self.at.history]
        if self.at.best < 0 or quality[-1] > quality[self.at.best] or not figures:
            self.at.best = self.at.epoch
            self.best = {name: value.detach().clone() for name, value in self.task.module.state_dict().items()}
        self.at.epoch, self.at.step, self.at.loss = self.at.epoch + 1, 0, 0.0
        told = ", ".join(f"{name} {value:.4f}" for name, value in self.at.history[-1].items())
        best = ", best so far" if self.at.best == self.at.epoch - 1 else ""
        self.say(f"epoch {self.at.epoch}/{self.plan.epochs} done: {told}{best}")

    def _save(self) -> None:
        now = time.monotonic()
        self.at.seconds += now - self.ticked
        self.ticked = self.saved = now
        if self.file is not None:
            drawn = self.task.state() if self.at.step else {}
            checkpoints.save(self.file, self.at, self.task.module, self.optimizer, self.best, drawn)
            self.saved = time.monotonic()

    def _random(self, epoch: int, step: int, use: Literal["order", "task", "torch"]) -> np.random.Generator:
        return np.random.default_rng([self.plan.seed, epoch, step, *use.encode()])


def _peak_mb() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
