"""Moved to `toolscout_postgres.listener`."""

from toolscout_postgres.listener import LISTEN_AFTER_QUESTIONS, GenerationListener  # moved

__all__ = ["LISTEN_AFTER_QUESTIONS", "GenerationListener"]
