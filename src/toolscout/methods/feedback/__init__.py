"""TODO feedback."""
