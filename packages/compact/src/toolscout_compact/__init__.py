"""The folder of the encoder `compact`, for toolscout."""

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent / "model"
