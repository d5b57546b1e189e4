"""The learning loop: fits a model on the journal, and promotes it if it is better than the champion."""

from toolscout.learn.loop import learn

__all__ = ["learn"]
