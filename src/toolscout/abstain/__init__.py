"""TODO abstain."""
