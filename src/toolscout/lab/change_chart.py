"""Moved to `toolscout.lab.charts`."""

from toolscout.lab.charts import Change, changes  # moved

__all__ = ["Change", "changes"]
