"""TODO learn."""
