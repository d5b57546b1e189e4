"""Iterative feedback: search, look at the hits, reword the query, search again."""
