"""Moved to `toolscout.cli.llm`."""

from toolscout.cli.llm import describe_llm, print_llm  # moved

__all__ = ["describe_llm", "print_llm"]
