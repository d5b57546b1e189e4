"""Where an interrupted training goes on: one safetensors file with tensors and JSON state, replaced in one step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from toolscout.errors import CheckpointError

__all__ = ["Position", "load", "save"]

FORMAT: Final = "toolscout-checkpoint/1"


class Position(msgspec.Struct, kw_only=True):
    """How far a training has come.

    Attributes:
        identity: of the task and the plan; a checkpoint serves no other.
        epoch: epochs finished.
        step: steps done in the epoch after these.
        loss: sum of the losses of these steps.
        history: the figures of each finished epoch.
        best: which epoch of the history is the best so far; -1: none.
        seconds: wall time spent.
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
    drawn: Mapping[str, Tensor],
) -> None:
    """Write everything that a training needs to go on; random numbers need nothing, they follow from the position.

    Args:
        path: of the file.
        position: how far it has come.
        module: what is trained.
        optimizer: its state goes with it.
        best: the weights of the best epoch so far.
        drawn: see `Task.state`.
    """
    from safetensors.torch import save_file

    tensors = {f"module/{name}": value for name, value in module.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    tensors |= {f"drawn/{name}": value for name, value in drawn.items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value for name, value in values.items()}
    state = {"format": FORMAT, "position": msgspec.json.encode(position).decode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    save_file({name: value.detach().cpu().clone() for name, value in tensors.items()}, aside, metadata=state)
    aside.replace(path)


def load(
    path: Path, identity: str, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Position, dict[str, Tensor], dict[str, Tensor]]:
    """Put a checkpoint's values into the module and the optimizer.

    Returns:
        The position, the best weights so far, and what was drawn for the epoch.

    Raises:
        CheckpointError: if it is damaged, or of another task or plan.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if state.get("format") != FORMAT:
            raise ValueError(f"format {state.get('format')!r}")
        position = msgspec.json.decode(state["position"], type=Position)
    except (OSError, SafetensorError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise CheckpointError(
            f"{path}: expected a checkpoint, found damage ({error}): train without --resume"
        ) from None
    if position.identity != identity:
        raise CheckpointError(
            f"{path}: expected a checkpoint of this training ({identity}), found one of other data or settings "
            f"({position.identity}): train without --resume"
        )
    module.load_state_dict(_below("module/", tensors))
    held: dict[int, dict[str, Tensor]] = {}
    for name, value in _below("optimizer/", tensors).items():
        number, _, key = name.partition("/")
        held.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": held})
    return position, _below("best/", tensors), _below("drawn/", tensors)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
