"""TODO recipes."""
