"""Requests of several steps: splits a request, searches each step, and merges the answers."""
