"""Moved to `toolscout.encoders.static`."""

from toolscout.encoders.static import (  # moved
    LANGUAGES,
    MULTILINGUAL_FORMAT,
    MULTILINGUAL_SUBFOLDER,
    MultilingualTable,
    UnigramPieces,
)

__all__ = ["LANGUAGES", "MULTILINGUAL_FORMAT", "MULTILINGUAL_SUBFOLDER", "MultilingualTable", "UnigramPieces"]
