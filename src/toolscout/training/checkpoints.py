"""Saves and loads checkpoints: one safetensors file with tensors and JSON state, replaced atomically."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from toolscout.errors import CheckpointError

__all__ = ["Position", "load", "save"]

CHECKPOINT_FORMAT: Final = "toolscout-checkpoint/1"


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


def save(
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


def load(
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
