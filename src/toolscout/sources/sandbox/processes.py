"""Starts processes so that a cancellation of the start leaves none behind."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from anyio.abc import Process

__all__ = ["start_process"]


async def start_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    errors: int | IO[str],
    output: int = subprocess.PIPE,
) -> Process:
    """Start a process in a session of its own, with a pipe to its input. `errors` and `output` take its two outputs.

    The start itself cannot be cancelled, because asyncio would then leave the process, its children and its pipes
    behind. Enter a `try` before the next `await`, and end the process in its `finally`.

    Raises:
        OSError: if the command cannot be started.
        ValueError: if an argument cannot be passed on.
    """
    import anyio

    await anyio.lowlevel.checkpoint_if_cancelled()
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            list(command), env=dict(env), cwd=cwd, stdout=output, stderr=errors, start_new_session=True
        )
    return process
