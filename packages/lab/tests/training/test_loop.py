from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from toolscout.errors import ConfigError  # noqa: E402
from toolscout_lab import training  # noqa: E402
from toolscout_lab.training import Plan, Task, batches, train  # noqa: E402

PLAN = Plan(epochs=6, batch=8, rate=0.05, patience=6, targets=("right",), threads=1)


class Toy(Task):
    """Learn which half-plane a point lies in, from a table of words whose last row no batch touches; with dropout."""

    identity = "toy"
    size = 60

    def __init__(self, slow: float = 0.0, dev: bool = True) -> None:
        torch.manual_seed(3)
        self.module = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 2))
        self.words = np.random.default_rng(1).integers(0, 8, self.size)
        self.labels = torch.from_numpy(self.words % 2)
        self.slow, self.dev = slow, dev
        self.drawn: list[float] = []

    def backward(self, rows: np.ndarray, random: np.random.Generator) -> float:
        self.drawn.append(random.random())
        time.sleep(self.slow)
        loss = torch.nn.functional.cross_entropy(self.module(torch.from_numpy(self.words[rows])), self.labels[rows])
        loss.backward()
        return loss.item()

    def figures(self) -> dict[str, float]:
        right = self.module(torch.arange(8)).argmax(dim=1) == torch.arange(8) % 2
        return {"right": right.float().mean().item()} if self.dev else {}


class Killed(BaseException):
    pass


class Dying(Toy):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def backward(self, rows: np.ndarray, random: np.random.Generator) -> float:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().backward(rows, random)


def weights(task: Task) -> dict[str, Any]:
    return {name: value.clone() for name, value in task.module.state_dict().items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_toy_is_learned_and_the_best_epoch_is_kept() -> None:
    task, said = Toy(), []
    before = task.figures()["right"]
    done = train(task, PLAN, say=said.append)
    assert task.figures()["right"] == done.figures["right"] == max(each["right"] for each in done.history) > before
    assert done.history[-1]["loss"] < done.history[0]["loss"]
    assert done.peak_mb > 1 and done.rate > 0 and len(said) == len(done.history) == 6


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    tasks = [Toy(), Toy(), Toy()]
    for task, seed in zip(tasks, (0, 0, 1), strict=True):
        torch.rand(seed)  # what the caller drew before must not matter
        train(task, dataclasses.replace(PLAN, seed=seed))
    first, again, other = map(weights, tasks)
    assert same(first, again) and not same(first, other)


def test_training_leaves_the_callers_random_numbers_and_threads_alone() -> None:
    threads = torch.get_num_threads()
    task = Toy()
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    train(task, dataclasses.replace(PLAN, epochs=1, threads=1))
    assert torch.equal(torch.rand(3), wanted) and torch.get_num_threads() == threads


def test_words_that_no_batch_touches_stay_as_they_are() -> None:
    task = Toy()
    before = weights(task)["0.weight"]
    train(task, dataclasses.replace(PLAN, decay=0.5))
    after = weights(task)["0.weight"]
    assert torch.equal(after[8], before[8]) and not torch.equal(after[:8], before[:8])


@pytest.mark.parametrize("steps", [1, 11, 16, 30])
def test_a_training_that_died_at_any_step_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    whole = Toy()
    wanted = train(whole, PLAN)
    monkeypatch.setattr(training, "CHECKPOINT_INTERVAL_S", -1.0)
    file = tmp_path / "work" / "checkpoint.safetensors"
    with pytest.raises(Killed):
        train(Dying(steps), PLAN, checkpoint=file)
    task = Toy()
    done = train(task, PLAN, checkpoint=file, resume=True)
    assert same(weights(task), weights(whole)) and done.history == wanted.history and done.best == wanted.best
    assert len(task.drawn) == 48 - steps


def test_a_finished_training_is_not_done_again(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    first = train(whole := Toy(), PLAN, checkpoint=file)
    done = train(task := Toy(), PLAN, checkpoint=file, resume=True)
    assert not task.drawn and done.history == first.history and same(weights(task), weights(whole))


def test_without_resume_a_training_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    train(Toy(), PLAN, checkpoint=file)
    train(task := Toy(), PLAN, checkpoint=file)
    assert len(task.drawn) == 48


SCRIPT = """
import sys, time
sys.path[:0] = [{here!r}]
from pathlib import Path
from toolscout_lab import training
import loop_toy
training.CHECKPOINT_INTERVAL_S = 0.0
training.train(loop_toy.Toy(slow=0.05), loop_toy.PLAN, checkpoint=Path({file!r}))
"""


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    (tmp_path / "loop_toy.py").write_text(Path(__file__).read_text())
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(here=str(tmp_path), file=str(file))])
    until = time.monotonic() + 50
    while not file.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(np.random.default_rng().uniform(0.0, 0.8))
    process.kill()
    assert process.wait() == -9
    train(whole := Toy(), PLAN)
    train(task := Toy(), PLAN, checkpoint=file, resume=True)
    assert same(weights(task), weights(whole)) and 0 < len(task.drawn) < 48


def test_it_stops_when_dev_gets_no_better() -> None:
    class Still(Toy):
        def figures(self) -> dict[str, float]:
            return {"right": 0.5}

    done = train(Still(), dataclasses.replace(PLAN, patience=2))
    assert len(done.history) == 3 and done.best == 1


def test_without_dev_the_last_epoch_is_kept() -> None:
    done = train(task := Toy(dev=False), dataclasses.replace(PLAN, patience=1))
    assert done.best == 6 and done.figures == {}
    assert len(task.drawn) == 48


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    train(Toy(), PLAN, checkpoint=file)
    with pytest.raises(ConfigError, match=r"belongs to a training with other data or settings .* without --resume"):
        train(Toy(), dataclasses.replace(PLAN, rate=0.1), checkpoint=file, resume=True)


@pytest.mark.parametrize("cut", [0, 100, 2_000])
def test_a_damaged_checkpoint_is_refused_with_a_sentence(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "checkpoint.safetensors"
    train(Toy(), PLAN, checkpoint=file)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ConfigError, match=r"checkpoint .* is damaged"):
        train(Toy(), PLAN, checkpoint=file, resume=True)


def test_a_loss_that_is_no_number_is_one_sentence() -> None:
    class Broken(Toy):
        def backward(self, rows: np.ndarray, random: np.random.Generator) -> float:
            return super().backward(rows, random) * float("nan")

    with pytest.raises(ConfigError, match=r"loss is nan in epoch 1, step 1\. Lower the learning rate"):
        train(Broken(), PLAN)


def test_nothing_to_train_on_is_one_sentence() -> None:
    class Empty(Toy):
        size = 0

    with pytest.raises(ConfigError, match="no queries to train on"):
        train(Empty(), PLAN)


def test_the_loss_the_speed_and_the_time_left_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PROGRESS_INTERVAL_S", -1.0)
    said: list[str] = []
    train(Toy(), dataclasses.replace(PLAN, epochs=1), say=said.append)
    assert len(said) == 9
    assert said[0].startswith("epoch 1/1, step 1/8: loss 0.") and "items/s" in said[0] and "min left" in said[0]
    assert said[-1].startswith("epoch 1/1 done: loss") and said[-1].endswith("best so far")


def test_examples_of_like_length_share_a_batch_and_each_comes_once() -> None:
    lengths = list(np.random.default_rng(0).integers(1, 100, 203))
    cut = batches(203, 10, np.random.default_rng(0), lengths)
    assert sorted(np.concatenate(cut)) == list(range(203))
    spread = [max(lengths[row] for row in rows) - min(lengths[row] for row in rows) for rows in cut]
    at_random = batches(203, 10, np.random.default_rng(0))
    assert max(spread) < 20 and {len(rows) for rows in at_random} == {10, 3}
    first = [lengths[rows[0]] for rows in cut]
    assert first != sorted(first)


@pytest.mark.parametrize(
    ("schedule", "middle", "last"), [("linear", 0.5, 1 / 90), ("cosine", 0.5, 0.0003), ("constant", 1.0, 1.0)]
)
def test_the_rate_rises_in_the_warm_up_and_falls_as_asked(schedule: Any, middle: float, last: float) -> None:
    plan = dataclasses.replace(PLAN, rate=1.0, warmup=0.1, schedule=schedule)
    rates = [plan.rate_at(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[55] == pytest.approx(middle) and rates[99] == pytest.approx(last, abs=1e-3)
