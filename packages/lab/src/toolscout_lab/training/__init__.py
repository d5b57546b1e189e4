"""Trains every gradient-based method with one loop: batches, optimizer, schedule, dev evaluation, checkpoints.

A method describes what it trains as a `Task`; `train` does the rest ::

    done = train(task, Plan(epochs=4, batch=384, rate=2e-4), checkpoint=folder / "checkpoint.safetensors", resume=True)

All random numbers follow from the seed and the position (epoch, step). A resumed training therefore takes the same
steps as an uninterrupted one. This package needs torch; import it inside the function that trains.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import CheckpointError, ConfigError, require
from toolscout.types import digest

require("torch", "train")

import torch  # noqa: E402 - after `require`, which says how to install it
from torch import Tensor  # noqa: E402

__all__ = ["Plan", "Task", "TrainingOutcome", "batches", "keep_freed_memory", "train"]

CHECKPOINT_FORMAT: Final = "toolscout-checkpoint/1"
CHECKPOINT_INTERVAL_S: Final = 300.0
PROGRESS_INTERVAL_S: Final = 15.0
LENGTH_WINDOW_BATCHES: Final = 50
TRIM_THRESHOLD: Final = -1  # of mallopt(3)
MMAP_MAX: Final = -4
MAX_TRIM_BYTES: Final = 2**31 - 1
GLIBC_DEFAULTS: Final = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 128 * 1024}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The hyperparameters of one training.

    Attributes:
        epochs: maximum number of epochs.
        batch: examples per step.
        rate: highest learning rate.
        decay: weight decay of AdamW. Biases, norms and embedding tables get none, so that the vectors of words that
            occur in no batch do not change.
        warmup: share of all steps in which the rate rises from 0.
        schedule: how the rate falls to 0 after the warmup; `constant` keeps it.
        clip: maximum norm of the gradients.
        patience: stop after this many epochs without a better dev result.
        targets: the dev figures whose sum chooses the epoch; higher is better.
        seed: seed of all random numbers.
        threads: CPU threads; 0 keeps torch's default.
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
        """Return the learning rate of a step, 0 … steps - 1."""
        warmup_steps = max(1, round(self.warmup * steps))
        if step < warmup_steps:
            return self.rate * (step + 1) / warmup_steps
        remaining = (steps - step) / max(1, steps - warmup_steps)
        factors = {"linear": remaining, "cosine": 0.5 - 0.5 * math.cos(math.pi * remaining), "constant": 1.0}
        return self.rate * factors[self.schedule]


class Task:
    """Describes what the loop trains; each method implements one.

    Attributes:
        module: the module to train, already on its device.
        size: number of examples.
        identity: fingerprint of data, settings and initial weights. A checkpoint is accepted only for the same one.
        lengths: tokens per example, to batch examples of similar length; None draws batches at random.
        evaluate: returns the dev figures of the current module; see `figures`.
    """

    module: torch.nn.Module
    size: int
    identity: str
    lengths: Sequence[int] | None = None
    evaluate: Callable[..., dict[str, float]] = dict

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups; `scale` multiplies the learning rate of a group."""
        tables = {id(part.weight) for part in self.module.modules() if isinstance(part, torch.nn.Embedding)}
        trainable = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        plain = [parameter for parameter in trainable if parameter.ndim < 2 or id(parameter) in tables]
        decayed = [parameter for parameter in trainable if parameter.ndim >= 2 and id(parameter) not in tables]
        return [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]

    def scale_layer_rates(self, decay: float, layers: torch.nn.Module, scale: float) -> list[dict[str, Any]]:
        """Return `groups` with the learning rate of `layers` multiplied by `scale`."""
        inside = {id(parameter) for parameter in layers.parameters()}
        groups = []
        for group in Task.groups(self, decay):
            for in_layers in (False, True):
                parameters = [parameter for parameter in group["params"] if (id(parameter) in inside) == in_layers]
                groups.append({**group, "params": parameters, "scale": scale if in_layers else 1.0})
        return groups

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Prepare an epoch, counted from 0: draw edges, mine negatives.

        The loop calls it again when it resumes an epoch for which `state` is empty.
        """

    def state(self) -> dict[str, Tensor]:
        """Return what `begin` computed from the weights at the start of the epoch. Empty if the task keeps none."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; the loop calls this instead of `begin`."""

    def backward(self, rows: npt.NDArray[np.intp], random: np.random.Generator) -> float:
        """Accumulate the gradients of one batch of examples in the module and return the loss."""
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """Evaluate the current weights on dev. Empty without a dev set; the loop then keeps the last epoch."""
        return self.evaluate()


@dataclasses.dataclass(frozen=True)
class TrainingOutcome:
    """The outcome of `train`; the module holds the weights of the best epoch.

    Attributes:
        history: the dev figures of each epoch, with its mean `loss`.
        best: the best epoch, counted from 1.
        seconds: wall time, including the parts before an interruption.
        earlier: the part of `seconds` before the last resumption.
        rate: examples per second since the last resumption, dev evaluation excluded.
        peak_mb: highest memory of the process, or of the CUDA device, in MiB.
    """

    history: list[dict[str, float]]
    best: int
    seconds: float
    earlier: float
    rate: float
    peak_mb: float

    @property
    def figures(self) -> dict[str, float]:
        """Dev figures of the best epoch, without its loss."""
        return {name: value for name, value in self.history[self.best - 1].items() if name != "loss"}


def batches(
    size: int, batch: int, random: np.random.Generator, lengths: Sequence[int] | None = None
) -> list[npt.NDArray[np.intp]]:
    """Split the examples of one epoch into batches, in random order, each example once.

    With lengths, examples are drawn for 50 batches at a time, and those of similar length share a batch.
    """
    order = random.permutation(size)
    if lengths is not None:
        sizes, window_size = np.asarray(lengths), LENGTH_WINDOW_BATCHES * batch
        windows = [order[start : start + window_size] for start in range(0, size, window_size)]
        order = np.concatenate([window[np.argsort(sizes[window], kind="stable")] for window in windows])
    parts = [order[start : start + batch] for start in range(0, size, batch)]
    return parts if lengths is None else [parts[place] for place in random.permutation(len(parts))]


def train(
    task: Task,
    plan: Plan,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    job: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> TrainingOutcome:
    """Train the task's module and leave the weights of the best epoch in it.

    Args:
        task: what to train.
        plan: the hyperparameters.
        checkpoint: file for resuming, written every five minutes and after every epoch; None writes none.
        resume: whether to continue from that file if it exists.
        job: fingerprint of the job that the task belongs to. A checkpoint is accepted only for the same one.
        say: receives the loss, the speed and the time left every fifteen seconds, and the dev figures.

    Raises:
        ConfigError: if there is nothing to train on, the loss is no longer finite, or the checkpoint belongs to
            another training.
    """
    if not task.size:
        raise ConfigError("There are no queries to train on. Give a dataset with qrels/train.tsv.")
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads or threads)
    try:
        with torch.random.fork_rng(), keep_freed_memory():
            return _Loop(task, plan, checkpoint, job, say).run(resume)
    finally:
        torch.set_num_threads(threads)


class _Loop:
    """State of one run of `train`.

    Attributes:
        position: how far the training is; what a checkpoint continues.
        best: the weights of the best epoch so far. Empty: no epoch is finished.
        earlier: seconds before the last resumption.
        epoch_state: `Task.state` of the epoch that a checkpoint interrupted. Empty: the task begins the epoch anew.
        per_epoch: steps in an epoch.
        busy: seconds in steps since the last resumption, and
        examples: examples in them; together the speed.
        clock_at: up to when `position.seconds` counts, in monotonic seconds as the next two.
        reported_at: the last progress line.
        saved_at: the last checkpoint.
    """

    def __init__(self, task: Task, plan: Plan, checkpoint: Path | None, job: str, say: Callable[[str], None]) -> None:
        self.task, self.plan, self.file, self.say = task, plan, checkpoint, say
        self.optimizer = torch.optim.AdamW(task.groups(plan.decay), lr=plan.rate)
        self.parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.position = Position(
            identity=digest("training/2", [job, task.identity, dataclasses.asdict(plan), task.size])
        )
        self.best: dict[str, Tensor] = {}
        self.earlier = 0.0
        self.epoch_state: dict[str, Tensor] = {}
        self.per_epoch = math.ceil(task.size / plan.batch)
        self.busy, self.examples = 0.0, 0
        self.clock_at = self.reported_at = self.saved_at = time.monotonic()

    def run(self, resume: bool) -> TrainingOutcome:
        """Train until the last epoch, or until `patience` epochs have not been better, and load the best weights."""
        if self.file is not None and resume and self.file.exists():
            self.position, self.best, self.epoch_state = load_checkpoint(
                self.file, self.position.identity, self.task.module, self.optimizer
            )
            self.earlier = self.position.seconds
            self.say(f"resuming after {self.position.epoch} epochs and {self.position.step} of {self.per_epoch} steps")
        while self.position.epoch < self.plan.epochs and not self._is_out_of_patience():
            self._run_epoch()
        self.task.module.load_state_dict(self.best)
        self.task.module.eval()
        rate = self.examples / self.busy if self.busy else 0.0
        return TrainingOutcome(
            self.position.history,
            self.position.best + 1,
            round(self.position.seconds, 3),
            round(self.earlier, 3),
            rate,
            _peak_mb(),
        )

    def _is_out_of_patience(self) -> bool:
        return bool(self.best) and self.position.epoch - 1 - self.position.best >= self.plan.patience

    def _run_epoch(self) -> None:
        """Train one epoch, or the rest of an interrupted one. All random numbers follow from epoch and step."""
        epoch = self.position.epoch
        torch.manual_seed(int(self._generator(epoch, 0, "torch").integers(2**62)))
        if self.position.step and self.epoch_state:
            self.task.restore(self.epoch_state)
        else:
            self.task.begin(epoch, self._generator(epoch, 0, "task"))
        order = batches(self.task.size, self.plan.batch, self._generator(epoch, 0, "order"), self.task.lengths)
        self.task.module.train()
        for rows in order[self.position.step :]:
            self._train_step(epoch, rows)
            if time.monotonic() - self.saved_at > CHECKPOINT_INTERVAL_S:
                self._save_checkpoint()
        self._finish_epoch()
        self._save_checkpoint()

    def _train_step(self, epoch: int, rows: npt.NDArray[np.intp]) -> None:
        """Take one step of the optimizer on a batch of examples, `rows`."""
        started = time.monotonic()
        torch.manual_seed(int(self._generator(epoch, self.position.step + 1, "torch").integers(2**62)))
        rate = self.plan.rate_at(epoch * self.per_epoch + self.position.step, self.plan.epochs * self.per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.task.backward(rows, self._generator(epoch, self.position.step + 1, "task"))
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise ConfigError(
                f"Training diverged: the loss is {loss} in epoch {epoch + 1}, step {self.position.step + 1}. "
                "Lower the learning rate."
            )
        self.optimizer.step()
        self.position.step += 1
        self.position.loss += loss
        self.busy += time.monotonic() - started
        self.examples += len(rows)
        if time.monotonic() - self.reported_at > PROGRESS_INTERVAL_S:
            self._report_progress()

    def _report_progress(self) -> None:
        """Say how far the training is, how fast, and how long it will still take."""
        done, speed = self.position.step, self.examples / self.busy
        left = (self.plan.epochs - self.position.epoch) * self.task.size - done * self.plan.batch
        self.say(
            f"epoch {self.position.epoch + 1}/{self.plan.epochs}, step {done}/{self.per_epoch}: loss "
            f"{self.position.loss / done:.4f}, {speed:.1f} items/s, {max(0.0, left / speed) / 60:.1f} min left, "
            f"{_peak_mb():,.0f} MB at most"
        )
        self.reported_at = time.monotonic()

    def _finish_epoch(self) -> None:
        """Evaluate on dev, and keep the weights if the epoch is the best so far."""
        self.task.module.eval()
        with torch.no_grad():
            figures = self.task.figures()
        self.position.history.append({"loss": self.position.loss / self.position.step, **figures})
        quality = [sum(past.get(name, math.inf) for name in self.plan.targets) for past in self.position.history]
        if self.position.best < 0 or quality[-1] > quality[self.position.best] or not figures:
            self.position.best = self.position.epoch
            self.best = {name: value.detach().clone() for name, value in self.task.module.state_dict().items()}
        self.position.epoch, self.position.step, self.position.loss = self.position.epoch + 1, 0, 0.0
        summary = ", ".join(f"{name} {value:.4f}" for name, value in self.position.history[-1].items())
        best = ", best so far" if self.position.best == self.position.epoch - 1 else ""
        self.say(f"epoch {self.position.epoch}/{self.plan.epochs} done: {summary}{best}")

    def _save_checkpoint(self) -> None:
        """Add the time since the last look to the position, and write the checkpoint, if there is a file for it."""
        now = time.monotonic()
        self.position.seconds += now - self.clock_at
        self.clock_at = self.saved_at = now
        if self.file is not None:
            state = self.task.state() if self.position.step else {}
            save_checkpoint(self.file, self.position, self.task.module, self.optimizer, self.best, state)
            self.saved_at = time.monotonic()

    def _generator(self, epoch: int, step: int, use: Literal["order", "task", "torch"]) -> np.random.Generator:
        return np.random.default_rng([self.plan.seed, epoch, step, *use.encode()])


def _peak_mb() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# --- checkpoints: one safetensors file with tensors and JSON state ----------------------------------------------------


class Position(msgspec.Struct, kw_only=True):
    """How far a training has progressed.

    Attributes:
        identity: fingerprint of task and plan. A checkpoint is accepted only for the same one.
        epoch: number of finished epochs.
        step: finished steps of the current epoch.
        loss: sum of the losses of these steps.
        history: the dev figures of each finished epoch.
        best: index in `history` of the best epoch so far; -1 if there is none.
        seconds: wall time so far.
    """

    identity: str
    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    history: list[dict[str, float]] = []
    best: int = -1
    seconds: float = 0.0


def save_checkpoint(
    path: Path,
    position: Position,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    best: Mapping[str, Tensor],
    epoch_state: Mapping[str, Tensor],
) -> None:
    """Write everything that a training needs to resume. Random numbers follow from the position.

    Args:
        path: file to write.
        position: how far the training has progressed.
        module: the module that is trained.
        optimizer: its state is written too.
        best: the weights of the best epoch so far.
        epoch_state: see `Task.state`.
    """
    from safetensors.torch import save_file

    tensors = {f"module/{name}": value for name, value in module.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    tensors |= {f"drawn/{name}": value for name, value in epoch_state.items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value for name, value in values.items()}
    state = {"format": CHECKPOINT_FORMAT, "position": msgspec.json.encode(position).decode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    save_file({name: value.detach().cpu().clone() for name, value in tensors.items()}, partial, metadata=state)
    partial.replace(path)


def load_checkpoint(
    path: Path, identity: str, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Position, dict[str, Tensor], dict[str, Tensor]]:
    """Load a checkpoint into the module and the optimizer.

    Returns:
        The position, the best weights so far, and the state of the epoch (`Task.state`).

    Raises:
        CheckpointError: if the file is damaged, or belongs to another task or plan.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if state.get("format") != CHECKPOINT_FORMAT:
            raise ValueError(f"format {state.get('format')!r}")
        position = msgspec.json.decode(state["position"], type=Position)
    except (OSError, SafetensorError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"The checkpoint {path} is damaged ({error}). Train again without --resume.") from None
    if position.identity != identity:
        raise CheckpointError(
            f"The checkpoint {path} belongs to a training with other data or settings ({position.identity}, this one "
            f"is {identity}). Train again without --resume."
        )
    module.load_state_dict(_take_prefix("module/", tensors))
    optimizer_state: dict[int, dict[str, Tensor]] = {}
    for name, value in _take_prefix("optimizer/", tensors).items():
        number, _, key = name.partition("/")
        optimizer_state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": optimizer_state})
    return position, _take_prefix("best/", tensors), _take_prefix("drawn/", tensors)


def _take_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


# --- memory -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Make glibc keep freed memory inside the block and return it to the system afterwards.

    By default glibc maps each large array separately, and the system zeroes its pages each time. This takes a fifth of
    a training step on a CPU. With another C library nothing changes.
    """
    libc = _load_glibc()
    if libc is None:
        yield
        return
    libc.mallopt(MMAP_MAX, 0)
    libc.mallopt(TRIM_THRESHOLD, MAX_TRIM_BYTES)
    try:
        yield
    finally:
        for option, value in GLIBC_DEFAULTS.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def _load_glibc() -> Any:
    """Load the C library if it is glibc; None otherwise."""
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # TypeError: Windows
        return None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
