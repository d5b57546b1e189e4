"""TODO privacy."""
