"""Reads the small fitted models that ship with toolscout as JSON: splitter, coverage, decision, claims."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from toolscout.errors import StoreError

__all__ = ["read_shipped"]


class _HasFormat(Protocol):
    @property
    def format(self) -> str: ...


T = TypeVar("T", bound=_HasFormat)


def read_shipped(file: Path, kind: type[T], format_name: str, is_sound: Callable[[T], bool]) -> T:
    """Read a fitted model from a JSON file.

    Args:
        file: to read.
        kind: the msgspec struct of the model.
        format_name: what its field `format` must say.
        is_sound: whether the numbers of the model can be used.

    Raises:
        StoreError: if the file cannot be read, is no such model, or has numbers that cannot be used.
    """
    model: T | None = None
    with suppress(OSError, msgspec.MsgspecError):  # no model is read then
        model = msgspec.json.decode(file.read_bytes(), type=kind)
    if model is None or model.format != format_name or not is_sound(model):
        message = f"{file} is damaged, or has another format than {format_name}"
        raise StoreError(f"{message}. Install toolscout again, or fit it anew")
    return model
