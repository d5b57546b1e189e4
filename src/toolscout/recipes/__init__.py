"""Recipes: named methods with their settings; how they are chosen for a search and fitted."""
