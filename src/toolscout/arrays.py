"""Names for the array types that the package passes around; shapes are said where they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Arrays", "Checksums", "Floats", "Ints", "Mask", "Places", "Scores", "Vectors"]

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
"""Name → array, as a fitted model has them."""
Vectors: TypeAlias = npt.NDArray[np.float32]
"""Embeddings and other float32 tables, a row for each text."""
Floats: TypeAlias = npt.NDArray[np.float64]
Scores: TypeAlias = npt.NDArray[np.floating[Any]]
"""Numbers of either precision, such as scores and probabilities."""
Ints: TypeAlias = npt.NDArray[np.int64]
Places: TypeAlias = npt.NDArray[np.intp]
"""Positions in another sequence."""
Mask: TypeAlias = npt.NDArray[np.bool_]
Checksums: TypeAlias = npt.NDArray[np.uint32]
"""CRC-32 of words, so that a model contains no query in readable form."""
