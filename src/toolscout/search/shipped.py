"""Reads the small fitted models that ship with toolscout as JSON: splitter, coverage, decision, claims."""

from __future__ import annotations

from collections.abc import Callable
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
    try:
        model = msgspec.json.decode(file.read_bytes(), type=kind)
        if model.format == format_name and is_sound(model):
            return model
    except (OSError, msgspec.MsgspecError):
        pass  # for the caller, the same as a model that is not sound
    raise StoreError(
        f"{file} is damaged, or has another format than {format_name}. Install toolscout again, or fit it anew"
    )
