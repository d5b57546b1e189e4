"""Rankers that need torch or a language model; those of the papers are among them."""
