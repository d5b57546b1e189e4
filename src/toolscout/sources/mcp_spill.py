"""Moved to `toolscout.sources.mcp_limits`."""

from toolscout.sources.mcp_limits import PARTIAL, RESULTS_FOLDER, SPILL, Spill, SpilledPart, Spills  # moved

__all__ = ["PARTIAL", "RESULTS_FOLDER", "SPILL", "Spill", "SpilledPart", "Spills"]
