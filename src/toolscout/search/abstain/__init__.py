"""Abstention: whether a request needs a tool at all, and whether any tool of the catalogue fits."""
