"""The stages that guard every search: moved."""

from toolscout.recipes.builder import encode_for_rivals, guard  # moved

__all__ = ["encode_for_rivals", "guard"]
