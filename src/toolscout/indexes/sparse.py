"""Moved to `toolscout.indexes.bm25`."""

from toolscout.indexes.bm25 import BM25, CODE_SETTINGS, PLAIN_SETTINGS, BM25Settings  # moved
from toolscout.indexes.words import tokenize  # moved

__all__ = ["BM25", "CODE_SETTINGS", "PLAIN_SETTINGS", "BM25Settings", "tokenize"]
