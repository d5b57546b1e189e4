"""The count of comparisons with one champion: moved."""

from toolscout.learn.gate import bound_p, level_of_look, number_look  # moved

__all__ = ["bound_p", "level_of_look", "number_look"]
