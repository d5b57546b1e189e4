"""TODO journal."""
