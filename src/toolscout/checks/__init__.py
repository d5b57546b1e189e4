"""Checks of a user's own catalogue: lint of tool definitions, and a self-test of the search."""
