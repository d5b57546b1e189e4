"""Scripted language models and a scripted server, for tests without a real one."""

from __future__ import annotations

from toolscout_lab.testing.scripted import Faults, ScriptedLLM
from toolscout_lab.testing.server import ScriptedServer

__all__ = ["Faults", "ScriptedLLM", "ScriptedServer"]
