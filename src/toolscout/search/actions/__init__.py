"""Opposite actions, such as adding and removing: which tools have them, and which one a request asks for."""
