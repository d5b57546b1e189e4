"""Moved: see the import."""

from toolscout.access.live_policy import POLICY_FILE, find_policy, put_policy  # moved

__all__ = ["POLICY_FILE", "find_policy", "put_policy"]
