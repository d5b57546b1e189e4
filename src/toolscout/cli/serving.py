"""Runs the event loop of a command that serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from toolscout.errors import UserError

__all__ = ["run_server"]


def run_server(serve: Callable[..., Awaitable[None]], *arguments: Any, use_uvloop: bool = False) -> None:
    """Run an event loop until `serve(*arguments)` ends.

    Raises:
        UserError: alone, also if it was raised in a task group, which puts every error into a group of errors.
    """
    import anyio

    try:
        anyio.run(serve, *arguments, backend_options={"use_uvloop": use_uvloop})
    except Exception as error:
        if isinstance(cause := _find_single_cause(error), UserError):
            raise cause from None
        raise


def _find_single_cause(error: BaseException) -> BaseException:
    """Return the one error inside a group of errors, at any depth. Of several errors, their group; else the error."""
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    return _find_single_cause(inner[0]) if len(inner) == 1 else error
