"""Moved: see the import."""

from toolscout.access.telemetry import JsonLines, start_logs  # moved

__all__ = ["JsonLines", "start_logs"]
